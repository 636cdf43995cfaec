"""The pages for people fit a screen, and what they name is there: files, links, commands."""

import re
from pathlib import Path

import pytest

from benchmarks import page as performance
from benchmarks.__main__ import parser
from framefuse import cli

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "framefuse"
INTERNALS = ROOT / "docs" / "internals"
STAGES = ("capture", "guards", "lower", "autodiff", "fuse", "codegen", "runtime", "native")
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *INTERNALS.glob("*.md")]
FILE = re.compile(r"`((?:[\w.]+/)*[\w]+(?:/|\.(?:py|c|h)))`")
WIDTH = 120


@pytest.mark.parametrize(
    ("name", "lines"), [("README.md", 120), ("ARCHITECTURE.md", 200), ("CONTRIBUTING.md", 80), ("CHANGELOG.md", 150)]
)
def test_a_first_page_is_short(name, lines):
    text = (ROOT / name).read_text().splitlines()
    assert len(text) <= lines and max(map(len, text)) <= WIDTH, [line for line in text if len(line) > WIDTH]


def test_every_stage_has_its_page():
    assert {path.stem for path in INTERNALS.glob("*.md")} == {*STAGES, "programs", "README"}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_files_and_links_are_there(path):
    text = path.read_text()
    roots = (PACKAGE, ROOT, PACKAGE / path.stem, path.parent)
    missing = [name for name in FILE.findall(text) if not any((root / name).exists() for root in roots)]
    links = [link for link in re.findall(r"\]\(([^)#:]+)\)", text) if not (path.parent / link).exists()]
    assert not missing and not links


def commands(name: str) -> list[tuple[Path, list[str]]]:
    pattern = re.compile(rf"`{name} ([^`]+)`|<!-- [^:]+: {name} ([^\n]+) -->")
    every = [(path, "".join(found).split()) for path in PAGES for found in pattern.findall(path.read_text())]
    return [(path, words) for path, words in every if words[0].isalpha() and words[0].islower()]


def test_commands_are_understood():
    for path, words in commands("python -m benchmarks"):
        assert parser().parse_args(words), path
    for path, words in commands("framefuse"):
        assert cli.parser().parse_args(words), path
    assert len(commands("python -m benchmarks")) > 10


def test_every_table_of_the_performance_page_can_be_written_again():
    text = performance.PAGE.read_text()
    assert {"curve", "models", "start", "train", "models cuda"} <= set(performance.sections(text))
    assert text.count("<!-- end -->") == len(performance.sections(text)) == len(re.findall(r"<!-- \w[^\n]+: ", text))
