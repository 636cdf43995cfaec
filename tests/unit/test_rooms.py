"""Tests stand where what they are about stands: below tests/unit the folders are those of the package."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE, UNIT = ROOT / "src" / "framefuse", ROOT / "tests" / "unit"

# Folders of tests about what no single folder of the package does.
ACROSS = {
    "training": "a step of training: forward, loss, backward and optimizer through all stages",
    "capture/opcodes/language": "Python's own rules, which opcodes, continuations and callables keep together",
}


def folders(root: Path, files: Iterable[Path]) -> set[str]:
    """The folders below `root` that hold one of the files."""
    return {file.parent.relative_to(root).as_posix() for file in files} - {"."}


def test_the_folders_of_tests_are_those_of_the_package():
    package = folders(PACKAGE, [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.c")])
    tests = folders(UNIT, UNIT.rglob("test_*.py"))
    assert tests - package - ACROSS.keys() == set(), "tests of a folder that is not there"
    assert package - tests == set(), "no test stands in the folder of"
    assert ACROSS.keys() <= tests, "a folder of tests that is not there any more"
    assert not ACROSS.keys() & package, "a folder of the package needs no reason"


def test_what_tests_share_is_read_by_a_test():
    shared = [file for file in UNIT.rglob("*.py") if not file.name.startswith(("test_", "conftest"))]
    texts = {file: file.read_text() for file in [*ROOT.glob("tests/**/*.py"), *ROOT.glob("benchmarks/**/*.py")]}
    unread = [
        file.relative_to(ROOT).as_posix()
        for file in shared
        if not any(file.stem in text for other, text in texts.items() if other != file)
    ]
    assert not unread


# Names that files of several rooms share, each for one idea that every stage has its part of.
SHARED = {
    "attention": "fused attention", "attributes": "attributes of objects", "autocast": "torch's autocast",
    "builder": "makes the values of one form of a program",
    "calls": "calls of Python",
    "casts": "changes of dtype", "collectives": "calls in which other processes take part",
    "compile": "text to machine code", "convolution": "convolutions",
    "derivative": "what autodiff makes of a graph, and its place in autograd", "devices": "torch's devices",
    "emitter": "writes one form of a program", "faults": "the compiler's own faults", "functions": "Python functions",
    "fused_steps": "torch's fused steps of optimizers", "generators": "Python generators",
    "indexing": "elements by their indices", "kernels": "kernels of a device", "library": "calls of torch's library",
    "loops": "loops of a nest", "marks": "what the user marked", "nest": "a loop nest",
    "numbers": "run-time numbers: expressions, and values that carry them", "passes": "a list of named passes",
    "patterns": "graphs to find and replace", "pointwise": "pointwise primitives", "pooling": "pooling",
    "products": "matrix products", "reductions": "reductions", "registry": "what decorators fill",
    "results": "results and their memory",
    "rewrite": "one form of a program made out of another", "saved": "what a forward keeps for its backward",
    "scans": "running sums",
    "target": "a device that code is made for", "tuning": "measured choices", "two_stages": "reductions in two kernels",
    "values": "the values of one form of a program", "verify": "the rules of one form of a program",
    "views": "views of tensors",
}  # fmt: skip


def test_files_of_one_name_are_about_one_idea():
    stems = Counter(path.stem for path in PACKAGE.rglob("*.py") if path.stem != "__init__")
    assert {stem for stem, count in stems.items() if count > 1} == SHARED.keys()
