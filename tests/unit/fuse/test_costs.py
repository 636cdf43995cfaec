"""Every cost and size of fuse stands in one file, and each says what it is and where it comes from."""

import ast
from pathlib import Path

from benchmarks.large.costs import CASES
from framefuse.fuse import costs

FOLDER = Path(costs.__file__).parent


def is_number(value: ast.expr) -> bool:
    """Whether an expression is a number, or a tuple of them."""
    if isinstance(value, ast.Tuple):
        return all(map(is_number, value.elts))
    if isinstance(value, ast.BinOp):
        return is_number(value.left) and is_number(value.right)
    return isinstance(value, ast.Constant) and type(value.value) in (int, float)


def numbers(tree: ast.Module) -> list[str]:
    """What a module gives to names that are numbers."""
    return [ast.unparse(node) for node in tree.body if isinstance(node, ast.Assign) and is_number(node.value)]


def test_no_other_file_of_fuse_names_a_number():
    files = [path for path in FOLDER.rglob("*.py") if path.name != "costs.py"]
    assert not [(path.name, names) for path in files if (names := numbers(ast.parse(path.read_text())))]
    assert len(numbers(ast.parse((FOLDER / "costs.py").read_text()))) > 40


def test_each_says_where_it_comes_from():
    """Its own line, the line above it, or the heading of its section."""
    lines = (FOLDER / "costs.py").read_text().splitlines()
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
