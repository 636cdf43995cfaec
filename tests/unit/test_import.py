"""`import framefuse` costs little beside torch: the compiler is imported for the first function that is compiled."""

import json
import subprocess
import sys

import pytest

AFTER = """
import json, resource, sys, time
import torch
before, kilobytes = set(sys.modules), lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
held, begun = kilobytes(), time.process_time()
import framefuse
seconds, grown = time.process_time() - begun, kilobytes() - held
{more}
print(json.dumps([sorted(set(sys.modules) - before), seconds, grown]))
"""
STAGES = ("capture", "guards", "lower", "autodiff", "fuse", "codegen", "driver")
LIBRARIES = ("llvmlite", "networkx", "rich", "matplotlib", "jinja2", "platformdirs", "triton", "torch._dynamo")


def imported(more=""):
    """The modules that come with framefuse after torch, the seconds of the CPU, and the kilobytes."""
    command = [sys.executable, "-c", AFTER.format(more=more)]
    modules, seconds, grown = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return set(modules), seconds, grown


def below(modules, names):
    return {name for name in modules for part in names if name == part or name.startswith(part + ".")}


def test_the_package_imports_no_stage_and_no_library():
    modules, seconds, grown = imported()
    assert not below(modules, [f"framefuse.{stage}" for stage in STAGES])
    assert not below(modules, LIBRARIES)
    assert len(below(modules, ["framefuse"])) < 40
    assert grown < 15 * 1024
    assert seconds < 0.5, "0.06 s where nothing else runs"


PROGRAM = """
f = framefuse.compile(lambda x: torch.exp(x) * 2 + 1)
f(x := torch.ones(3)), f(x)
assert f.hits
"""
TRAINED = """
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.GELU(), torch.nn.LayerNorm(4), torch.nn.Linear(4, 2))
f = framefuse.compile(model)
for _ in range(3):
    f(torch.randn(5, 3)).sum().backward()
from framefuse.runtime.function import compiled_function
assert compiled_function(f).dispatch.hits
"""
CALLED = """
model = torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Dropout(), torch.nn.Linear(4, 6), torch.nn.Softplus())
f = framefuse.compile(lambda ids, w: torch.linalg.solve(w, model(ids).mT))
for _ in range(3):
    f(torch.randint(0, 9, (2, 6)), torch.eye(6).requires_grad_()).sum().backward()
from framefuse.runtime.function import compiled_function
assert compiled_function(f).dispatch.hits
"""


@pytest.mark.parametrize(
    ("program", "most"), [(PROGRAM, 166), (TRAINED, 190), (CALLED, 190)],
    ids=["inference", "training", "calls that only backward graphs have"],
)  # fmt: skip
def test_a_call_that_an_earlier_process_kept_imports_few_stages(program, most, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("FRAMEFUSE_CHECK", "0")  # under which nothing is kept
    cold, *_ = imported(program)
    warm, *_ = imported(program)
    assert {f"framefuse.{stage}" for stage in STAGES} <= cold and "llvmlite" in cold
    assert not below(warm, [f"framefuse.{stage}" for stage in ("lower", "autodiff", "fuse", "capture.opcodes")])
    assert not below(warm, ["framefuse.ir.loops", "framefuse.ir.tuning"]), "bodies of kernels, whose code is there"
    assert len(below(warm, ["framefuse"])) < most < 400 < len(below(cold, ["framefuse"]))


def test_where_no_call_is_to_wait_compiling_imports_what_the_first_one_needs():
    code = "f = framefuse.compile(lambda x: x * 2 + 1, options={'wait': False})\nthen = set(sys.modules)\n"
    late = "late = [name for name in set(sys.modules) - then if name.startswith('framefuse.')]\nassert not late, late\n"
    imported(code + "f(torch.ones(3))\n" + late)


def test_marks_and_explain_need_no_compiler_before_they_are_used():
    used = (
        "framefuse.mark_dynamic(torch.ones(2), 0)\nframefuse.disable(len)\nframefuse.graph_break()\n"
        "framefuse.list_backends(), framefuse.is_compiling()\n"
        f"assert not [name for name in sys.modules if name.startswith({tuple(f'framefuse.{s}' for s in STAGES)})]\n"
        "try: framefuse.explain(len)\nexcept framefuse.UserError: pass\n"
        "assert callable(framefuse.explain), 'the function, not the folder of its name'\n"
        "@framefuse.allow_in_graph\ndef f(x): return x"
    )
    modules, _, _ = imported(used)
    assert {"framefuse.explain.report", "framefuse.capture.callables.marks"} <= modules
