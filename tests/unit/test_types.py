"""mypy is strict, and `Any` is no type of framefuse's own objects: what belongs to the program is called Value."""

import ast
import tomllib

import pytest

from module_map import PACKAGE, ROOT

ROOMS = ("autodiff", "capture", "driver", "explain", "fuse", "guards", "lower", "run", "runtime")
TORCHS = {"runtime/cuda_graphs.py"}  # handles and functions of torch's that torch says nothing of


def says_any(text):
    return any(
        (isinstance(node, ast.Name) and node.id == "Any") or (isinstance(node, ast.Attribute) and node.attr == "Any")
        for node in ast.walk(ast.parse(text))
    )


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_says_what_it_holds(room):
    files = {str(path.relative_to(PACKAGE)): path.read_text() for path in (PACKAGE / room).rglob("*.py")}
    assert {name for name, text in files.items() if says_any(text)} <= TORCHS


@pytest.mark.parametrize("name", ["trace", "facts", "graph", "builder", "printer", "trace_printer", "values"])
def test_what_stages_hand_on_says_what_it_holds(name):
    assert says_any((PACKAGE / "ir" / f"{name}.py").read_text()) is (name == "values")


@pytest.mark.parametrize("text", ["def f(x: Any): ...", "def f() -> dict[str, typing.Any]: ...", "x: list[Any] = []"])
def test_any_is_seen(text):
    assert says_any(text) and not says_any("def f(x: Value) -> object: ...")


def test_mypy_is_strict():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    assert settings["strict"] is True and "src/framefuse" in settings["files"]
    assert sorted(name for name, on in settings.items() if on is False) == ["disallow_untyped_calls"]
