"""Every cost and size of lower and fuse stands in one file, and each says what it is and where it comes from."""

import ast
from pathlib import Path

from benchmarks.large.costs import CASES
from framefuse.ir import costs

TABLE = Path(costs.__file__)
STAGES = TABLE.parents[1] / "lower", TABLE.parents[1] / "fuse"
# Constants of arithmetic and of torch, by which nothing is decided that could as well be decided otherwise.
EXACT = {"ALPHA", "LAST", "SCALES", "STEPS", "MOST", "LONGEST", "PROBES", "END"}


def is_number(value: ast.expr) -> bool:
    """Whether an expression is a number, or a tuple of them."""
    if isinstance(value, ast.Tuple):
        return all(map(is_number, value.elts))
    if isinstance(value, ast.BinOp):
        return is_number(value.left) and is_number(value.right)
    return isinstance(value, ast.Constant) and type(value.value) in (int, float)


def numbers(tree: ast.Module) -> list[str]:
    """The names of a module that are numbers."""
    given = [node for node in tree.body if isinstance(node, ast.Assign) and is_number(node.value)]
    return [name.id for node in given for name in ast.walk(node) if isinstance(name, ast.Name)]


def test_no_file_of_lower_or_fuse_names_a_number():
    files = [path for stage in STAGES for path in stage.rglob("*.py")]
    assert not [(path.name, names) for path in files if (names := {*numbers(ast.parse(path.read_text()))} - EXACT)]
    assert len(numbers(ast.parse(TABLE.read_text()))) > 40


def test_each_says_where_it_comes_from():
    """Its own line, the line above it, or the heading of its section."""
    lines = TABLE.read_text().splitlines()
    heading, silent = "", []
    for number, line in enumerate(lines):
        if line.startswith("# ----"):
            heading = line
        elif line[:1].isupper() and " = " in line:
            above = []
            for before in reversed(lines[:number]):
                if not before.startswith("#") or before.startswith("# ----"):
                    break
                above.append(before)
            told = " ".join((heading, *above, line)).lower()
            if not any(word in told for word in ("measured", "chosen", "fitted")):
                silent.append(line)
    assert not silent


def test_what_is_measured_is_there():
    assert all(hasattr(costs, case.name) and getattr(costs, case.name) not in case.others for case in CASES)
