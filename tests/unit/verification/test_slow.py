"""`minify(kind="slow")` finds the call that is slower than eager's, or says what else a program's time goes to."""

import importlib

import pytest
import torch

import framefuse
from framefuse.codegen.llvm import pointwise
from framefuse.errors import UserError


@pytest.fixture
def slow_root(monkeypatch):
    """The code of square roots divides some hundred times more."""
    root, over = pointwise.FLOAT["sqrt"], pointwise.FLOAT["div"]

    def slow(b, x):
        y = root(b, x)
        for _ in range(300):
            y = over(b, b.like(1.0, x), root(b, y))
        return b.add(b.mul(y, b.like(0.0, x)), root(b, x))

    monkeypatch.setitem(pointwise.FLOAT, "sqrt", slow)


@pytest.mark.parametrize("training", [False, True])
def test_the_slow_call_is_found_in_a_file_of_few_lines_that_is_a_test(slow_root, tmp_path, training):
    def f(x, w):
        h = (x @ w).tanh()
        for _ in range(3):
            h = h.sin() * 2 + h
        return (h / (h * h + 1).sqrt().sum(-1, keepdim=True)).relu()

    x, w = torch.randn(64, 32), torch.randn(32, 256, requires_grad=training)
    found = framefuse.minify(f, x, w, kind="slow", seconds=3.0, path=tmp_path / "slow.py")
    assert found.kind == "slow" and found.call == "sqrt" and "test_slow.py" in found.line
    text = (tmp_path / "slow.py").read_text()
    assert text == found.text and len([line for line in text.splitlines() if line]) <= 15
    space = {}
    exec(compile(text, str(tmp_path / "slow.py"), "exec"), space)
    with pytest.raises(AssertionError):
        space["test_it_is_as_fast_as_eager"]()


def test_a_program_that_is_not_slow_is_said_to_be_none():
    with pytest.raises(UserError, match=r"takes \d\.\d\d of eager's time: it is not slow. Time it by"):
        framefuse.minify(lambda x: (x.sin() * 2 + 1).cos().tanh(), torch.randn(300), kind="slow", seconds=3.0)


def test_what_lies_between_stretches_is_named(monkeypatch):
    room = importlib.import_module("framefuse.verification.minify")
    monkeypatch.setattr(room, "slowness_of_all", lambda program, options: 1.5)
    with pytest.raises(UserError, match=r"takes 1.50 of .* what lies between them is. Ask .* the price of each break"):
        framefuse.minify(lambda x: (x.sin() * 2 + 1).cos().tanh(), torch.randn(300), kind="slow", seconds=3.0)


def test_wrong_arguments_are_told_before_the_work(tmp_path):
    with pytest.raises(UserError, match=r"test_slow.py:(.|\n)*cannot be written: No such file.*Make the folder"):
        framefuse.minify(torch.sin, torch.ones(2), path=tmp_path / "none" / "small.py")
    with pytest.raises(UserError, match=r"seconds is -1\. Give how long"):
        framefuse.minify(torch.sin, torch.ones(2), seconds=-1)
    with pytest.raises(UserError, match=r"training is 'yes'\. Give True, False or None"):
        framefuse.verify(torch.sin, torch.ones(2), training="yes")
