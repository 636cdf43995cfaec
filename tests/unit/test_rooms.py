"""Tests stand where what they are about stands: below tests/unit the folders are those of the package."""

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
    texts = {file: file.read_text() for file in [*ROOT.glob("tests/**/*.py"), *ROOT.glob("benchmarks/*.py")]}
    unread = [
        file.relative_to(ROOT).as_posix()
        for file in shared
        if not any(file.stem in text for other, text in texts.items() if other != file)
    ]
    assert not unread
