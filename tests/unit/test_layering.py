"""The imports of src/framefuse point one way: stages know the shared types only, and only the top knows the stages.

The benchmarks stand outside: they use the package, and nothing in it knows them.
"""

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "framefuse"
BENCHMARKS = ROOT / "benchmarks"
STAGES = {"capture", "guards", "lower", "autodiff", "fuse", "codegen", "runtime"}
SHARED = {"ir", "options", "errors"}
NATIVE = {"native", "_native"}
# What knows the stages, lowest first: explain writes what they made, the driver runs them. The public surface stands
# above: the modules at the top level, and the folders backends and run.
ABOVE = ("explain", "driver")

# The rooms of a stage, each with those below it: a room knows itself and these. A file that stands beside the folders
# is a room of its own, and so is a folder in a folder; the stage's ``__init__`` is what others see of it, and no room.
ROOMS: dict[str, dict[str, set[str]]] = {
    "capture": {
        "program": set(),
        "facts": {"program"},
        "recording": {"program", "facts"},
        "interp": {"program", "facts", "recording"},
        "callables": {"program", "facts", "recording", "interp"},
        "opcodes": {"program", "facts", "recording", "interp", "callables"},
        "known": {"program", "callables", "opcodes"},
        "exits": {"program", "facts", "recording", "interp", "opcodes"},
        "run": {"program", "recording", "interp", "callables", "opcodes", "known", "exits"},
        "entry": {"program", "recording", "exits"},
        "record": {"program", "facts", "recording", "callables", "opcodes", "exits", "run", "entry"},
    },
    "driver": {
        "wiring": set(),
        "faults": set(),
        "variants": set(),
        "position_limits": set(),
        "winners": set(),
        "measuring": {"winners"},
        "tuning": {"measuring", "winners"},
        "few_forms": {"measuring", "winners"},
        "known_digits": {"winners"},
        "behind": {"programs"},
        "ambient": set(),
        "own_backwards": set(),
        "peeled": set(),
        "kernels": {"measuring", "few_forms", "tuning", "variants", "behind"},
        "tiers": {"behind", "kernels"},
        "programs": set(),
        "calls": {"programs"},
        "backward": {"ambient", "behind", "programs"},
        "graph_as_trace": {"ambient"},
        "captured_passes": {"graph_as_trace"},
        "examples": set(),
        "fixed_inputs": set(),
        "passes": {
            "ambient", "backward", "behind", "captured_passes", "examples", "faults", "fixed_inputs", "kernels",
            "known_digits", "position_limits", "programs",
        },
        "tree": {
            "ambient", "behind", "own_backwards", "peeled", "wiring", "faults", "passes", "programs", "calls", "tiers",
        },
        "patterns": {"passes", "tree"},
        "folders": {"programs", "calls", "winners"},
        "archive": {"folders", "programs", "calls"},
    },
    "aot": {
        "weights": set(),
        "arguments": set(),
        "loader": {"arguments"},
        "inputs": set(),
        "own_views": set(),
        "own_code": {"own_views"},
        "tails": {"own_code", "own_views"},
        "exported_program": {"weights", "own_views", "tails"},
        "forms": set(),
        "scaled_convolutions": set(),
        "torch_calls": {"exported_program"},
        "recording": {
            "weights", "exported_program", "own_code", "own_views", "forms", "scaled_convolutions", "torch_calls",
        },
        "results": {"weights", "exported_program", "own_views", "recording"},
        "c_words": set(),
        "c_checks": {"c_words", "exported_program"},
        "derived": {"exported_program", "own_views"},
        "c_products": {"c_checks", "derived", "exported_program", "own_code", "own_views", "tails"},
        "c_torch_calls": {"c_words", "exported_program"},
        "c_text": {
            "weights", "c_products", "c_torch_calls", "c_words", "exported_program", "own_code", "own_views",
        },
        "c_launches": {"c_text", "c_words", "exported_program"},
        "shared_library": {"weights", "loader", "exported_program", "c_launches", "c_text"},
        "cpu_code": {"exported_program", "recording", "tails"},
        "gpu_code": {"exported_program", "own_views", "recording"},
        "aten_functions": {"forms", "own_code", "torch_calls"},
        "torchscript": {"aten_functions"},
        "exporting": {
            "weights",
            "exported_program",
            "inputs",
            "recording",
            "results",
            "shared_library",
            "cpu_code",
            "gpu_code",
            "torchscript",
            "aten_functions",
        },
    },
    "codegen": {
        "unsupported": set(),
        "specialisation": set(),
        "disk_cache": set(),
        "python": set(),
        "fx": set(),
        "interpreter": set(),
        "aten": {"python"},
        "optimise": set(),
        "llvm": {"unsupported", "disk_cache", "optimise"},
        "triton": {"unsupported", "specialisation", "disk_cache", "optimise"},
        "targets": {"specialisation", "llvm", "triton"},
    },
    "ir": {
        "dtypes": set(),
        "frozen_classes": set(),
        "numbers": {"frozen_classes", "source"},
        "source": set(),
        "ops": set(),
        "costs": set(),
        # for type checkers: its body is read late
        "kernel": {"dtypes", "frozen_classes", "numbers", "source", "loops.nodes"},
        "loops": {"kernel", "loops.nodes"},
        "loops.nodes": {"dtypes", "numbers"},
        "loops.walk": {"numbers", "loops.nodes"},
        "loops.rewrite": {"numbers", "loops.nodes", "loops.walk"},
        "loops.key": {"numbers", "source", "kernel", "loops.nodes", "loops.walk"},
        "loops.print": {"kernel", "loops.nodes"},
        "loops.verify": {"dtypes", "numbers", "ops", "kernel", "loops.nodes", "loops.walk"},
    },
    "fuse": {
        "setting": set(),
        "addressing": set(),
        "graph": {"setting", "addressing"},
        "layouts": {"setting", "addressing", "graph"},
        "grouping": {"setting", "addressing", "graph"},
        "nest": {"addressing", "grouping"},
        "nest.cpu": {"addressing", "grouping", "nest"},
        "nest.gpu": {"addressing", "grouping", "nest"},
        "memory": {"setting", "addressing"},
        "writer": {"setting", "addressing", "graph", "grouping", "nest", "nest.cpu", "nest.gpu", "memory"},
        "text": {"addressing", "grouping", "memory"},
        "verify": {"addressing", "grouping", "memory"},
        "passes": {"setting", "graph", "layouts", "grouping", "memory", "writer", "text", "verify"},
    },
}
# Of these the test knows some rooms; the other files may import what they like of the part.
PARTLY = {"ir"}

# Importing one of these costs 0.9 s at first use, or is the compiler that we replace.
FOREIGN = ("torch._dynamo", "torch._inductor", "torch._functorch", "torch._subclasses", "torch.fx.experimental")
FOREIGN_ALLOWED = {"backends", "benchmarks"}


def may_import(part: str) -> set[str] | None:
    """The parts of the package that `part` may import; None where all of them are allowed."""
    if part in STAGES:
        return SHARED | {part} | (NATIVE if part in ("guards", "runtime") else set())
    if part in ABOVE:
        return STAGES | SHARED | NATIVE | set(ABOVE[: ABOVE.index(part) + 1])
    if part in SHARED | NATIVE:
        return SHARED | ({part} | NATIVE if part in NATIVE else set())
    return None


def part_of(module: str) -> str:
    """The folder or file right below the package: "framefuse.ir.graph" -> "ir"; the package itself is ""."""
    if module.partition(".")[0] == "benchmarks":
        return "benchmarks"
    return module.partition(".")[2].partition(".")[0]


def room_of(module: str) -> tuple[str, str]:
    """The stage and the room in it that a module belongs to, by the longest name: ("fuse", "nest.cpu"); the room is ""
    for a stage's ``__init__``, and "?" for what is in no room that is known.
    """
    stage, _, rest = module.partition(".")[2].partition(".")
    if stage not in ROOMS:
        return stage, ""
    parts = rest.split(".")
    names = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    found = next((name for name in names if name in ROOMS[stage]), None)
    return stage, found if found is not None else "" if rest in ("", "__init__") else "?"


def wrong_rooms(where: str, names: Iterable[str]) -> Iterator[str]:
    """What is wrong with the imports of one file inside its stage."""
    stage, own = room_of(where)
    if stage not in ROOMS or own == "":
        return
    if own == "?":
        if stage in PARTLY:
            return
        yield f"{where} stands in no room of {stage}"
        return
    for name in names:
        other_stage, other = room_of(name)
        if name.startswith("framefuse.") and other_stage == stage and other not in ROOMS[stage][own] | {own}:
            yield f"{where} imports {name}, which {stage}/{own} must not know"


def imported(tree: ast.AST, package: str) -> list[tuple[ast.stmt, str]]:
    """Every module that an import statement of the tree names, with relative names resolved against `package`."""
    found: list[tuple[ast.stmt, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, base]) if base else ".".join(parents)
            # `from framefuse import ir` and `from torch import _dynamo` name modules after the word import.
            found += [(node, f"{base}.{alias.name}") for alias in node.names]
    return found


def arrows(text: str, where: str) -> list[str]:
    """What is wrong with the imports of one file; `where` is its dotted name, a package's with `.__init__`."""
    tree = ast.parse(text)
    own_part, package = part_of(where), where.rpartition(".")[0]
    own_part = "" if own_part == "__init__" else own_part
    allowed = may_import(own_part)
    local = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for inner in ast.walk(node)
        if isinstance(inner, (ast.Import, ast.ImportFrom))
    }
    wrong: list[str] = []
    for node, name in imported(tree, package):
        top = name.partition(".")[0]
        if top == "benchmarks" and own_part != "benchmarks":
            wrong.append(f"{where}:{node.lineno} imports {name}")
        elif top in ("framefuse", "benchmarks"):
            if node in local:
                wrong.append(f"{where}:{node.lineno} imports {name} inside a function")
            if allowed is not None and part_of(name) not in allowed:
                wrong.append(f"{where}:{node.lineno} imports {name}, which {own_part} must not know")
        elif name.startswith(FOREIGN) and own_part not in FOREIGN_ALLOWED:
            wrong.append(f"{where}:{node.lineno} imports {name}")
    wrong += wrong_rooms(where, [name for _, name in imported(tree, package)])
    if own_part not in FOREIGN_ALLOWED:
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in FOREIGN:
                wrong.append(f"{where}:{node.lineno} reaches {ast.unparse(node)}")
    return wrong


def sources() -> list[tuple[str, str]]:
    """(dotted name, text) of every Python file of the package and of the benchmarks."""
    files = sorted([*PACKAGE.rglob("*.py"), *BENCHMARKS.rglob("*.py")])
    roots = [ROOT if BENCHMARKS in file.parents else PACKAGE.parent for file in files]
    names = [".".join(file.relative_to(root).with_suffix("").parts) for file, root in zip(files, roots, strict=True)]
    return [(name, file.read_text()) for name, file in zip(names, files, strict=True)]


def test_imports_point_one_way():
    wrong = [line for where, text in sources() for line in arrows(text, where)]
    assert not wrong, "\n" + "\n".join(wrong)


@pytest.mark.parametrize("stage", ROOMS)
def test_every_room_is_there_and_none_is_below_itself(stage):
    for room, below in ROOMS[stage].items():
        place = PACKAGE / stage / room.replace(".", "/")
        assert place.is_dir() or place.with_suffix(".py").is_file(), f"{stage} has no {room}"
        assert below <= ROOMS[stage].keys(), f"{stage}/{room} knows rooms that are not there"
    TopologicalSorter(ROOMS[stage]).prepare()  # raises CycleError


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("framefuse.fuse.plan", "from framefuse.lower import pointwise"),
        ("framefuse.fuse.plan", "from framefuse.driver import passes"),
        ("framefuse.fuse.plan", "import framefuse"),
        ("framefuse.fuse.plan", "from ..codegen import llvm"),
        ("framefuse.fuse.plan", "from framefuse import _native"),
        ("framefuse.fuse.__init__", "from ..codegen import llvm"),
        ("framefuse.capture.interp.calls", "from framefuse.capture.callables.specials import special"),
        ("framefuse.capture.interp.machine", "from framefuse.capture.exits.machine_exits import Exits"),
        ("framefuse.capture.facts.sources", "from framefuse.capture.recording.recorder import Recorder"),
        ("framefuse.capture.program.frame", "from framefuse.capture.interp.machine import Machine"),
        ("framefuse.capture.callables.unseen", "from framefuse.capture.opcodes import operators"),
        ("framefuse.fuse.nest.cpu.kernels", "from framefuse.fuse.nest.gpu import build_kernels"),
        ("framefuse.fuse.nest.forms", "from framefuse.fuse.nest.cpu.kernels import build_kernels"),
        ("framefuse.fuse.grouping.fused_products", "from framefuse.fuse.nest.nest import Nest"),
        ("framefuse.fuse.memory.arena", "from ..grouping import cells"),
        ("framefuse.fuse.memory.arena", "from framefuse.fuse import fuse"),
        ("framefuse.fuse.somewhere", "from framefuse.ir.graph import Graph"),
        ("framefuse.ir.graph", "from framefuse.fuse import plan"),
        ("framefuse.driver.passes", "def f():\n    from framefuse.fuse import plan"),
        ("framefuse.driver.passes", "f = lambda: torch._inductor.compile"),
        ("framefuse.ir.loops.nodes", "from framefuse.ir.loops.walk import operands"),
        ("framefuse.ir.loops.walk", "from framefuse.ir.graph import Graph"),
        ("framefuse.codegen.optimise.share", "from framefuse.codegen.llvm.builder import Reg"),
        ("framefuse.codegen.llvm.values", "from framefuse.codegen.triton.blocks import choose"),
        ("framefuse.codegen.somewhere", "from framefuse.ir.loops import Kernel"),
        ("framefuse.lower.matrix", "from torch.fx.experimental.proxy_tensor import make_fx"),
        ("framefuse.lower.matrix", "from torch import _dynamo"),
        ("framefuse.cli", "from benchmarks.calls.curve import curve"),
        ("framefuse.explain.files", "from framefuse.driver import passes"),
        ("framefuse.driver.tree", "from framefuse.api import compile"),
        ("framefuse.driver.faults", "from framefuse.driver.passes import run"),
        ("framefuse.explain.report", "import benchmarks"),
        ("benchmarks.calls.curve", "def f():\n    from benchmarks import models"),
    ],
)
def test_a_wrong_arrow_is_seen(where, text):
    assert arrows(text, where)


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("framefuse.fuse.passes", "from framefuse.ir.graph import Graph\nfrom framefuse.options import Options"),
        ("framefuse.lower.plan", "from . import rules\nfrom .cost import cost\nfrom ..errors import Stop"),
        ("framefuse.fuse.__init__", "from .passes import fuse"),
        ("framefuse.fuse.grouping.cells", "from framefuse.ir import costs\nfrom ..graph.copies import a"),
        ("framefuse.fuse.nest.gpu.rows", "from framefuse.fuse.nest.forms import rows_of\nfrom . import decode"),
        ("framefuse.codegen.llvm.values", "from framefuse.codegen.optimise import Optimised"),
        ("framefuse.ir.schedule", "from framefuse.ir.loops import Kernel"),
        ("framefuse.guards.check", "from framefuse import _native"),
        ("framefuse.driver.passes", "from framefuse.fuse import plan"),
        ("framefuse.__init__", "from framefuse.driver.passes import compile"),
        ("benchmarks.calls.curve", "import framefuse\ndef f():\n    import torch._dynamo"),
        ("benchmarks.calls.curve", "from benchmarks.calls.chain import chain\nfrom framefuse.runtime.plan import Plan"),
    ],
)
def test_a_right_arrow_passes(where, text):
    assert not arrows(text, where)


def test_importing_framefuse_leaves_torch_compile_alone():
    code = "import sys, framefuse; print([m for m in ('torch._dynamo', 'torch._inductor') if m in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_compiling_a_function_transform_leaves_torch_compile_alone():
    """Of these two transforms torch itself imports nothing of it either."""
    code = """
import sys, torch, framefuse
from torch.func import jvp, vmap
f = framefuse.compile(lambda x: (vmap(lambda v: v * v.sum())(x), jvp(torch.sin, (x,), (x,))))
for _ in range(3):
    f(torch.randn(3, 4))
print(len(framefuse.explain(f).graphs), [m for m in ("torch._dynamo", "torch._inductor") if m in sys.modules])
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "1 []"
