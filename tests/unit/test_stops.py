"""Every reason for a break or an eager call is a row of the catalogue, and every row has its page."""

import ast

import stop_pages
from framefuse.ir import stops
from module_map import PACKAGE


def test_the_pages_are_the_catalogue():
    there = {path.name: path.read_text() for path in stop_pages.FOLDER.iterdir()}
    assert there == stop_pages.pages(), "docs/stops is behind the catalogue: make stops"


def test_every_code_in_the_source_is_a_row():
    used = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                text = node.args[0].value
                if name in ("Reason", "reason", "kill") and isinstance(text, str):
                    used[text] = path.name
    unknown = {code: name for code, name in used.items() if code not in stops.CATALOGUE}
    assert not unknown
    assert len(used) > 20


def test_only_the_catalogue_makes_reasons():
    """guards has another Reason, of why a place is compared."""
    makers = set()
    for path in PACKAGE.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        errors = [n for n in nodes if isinstance(n, ast.ImportFrom) and n.module == "framefuse.errors"]
        imported = {alias.name for node in errors for alias in node.names}
        called = {getattr(node.func, "id", "") for node in nodes if isinstance(node, ast.Call)}
        if "Reason" in imported & called:
            makers.add(str(path.relative_to(PACKAGE)))
    assert makers == {"ir/stops.py"}


def test_rows_say_all_there_is_to_say():
    assert len(stops.CATALOGUE) == len(stops.ROWS)
    for row in stops.ROWS:
        assert row.title and row.what and row.did and row.write.endswith((".", '"')), row.code
        assert bool(row.before) is bool(row.after)
        text = str(stops.reason(row.code, "this", None))
        assert f"[{row.code}]" in text and "{" not in text
