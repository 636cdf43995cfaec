"""assert_compiles counts the traces of a block, and says of each where and why it was compiled."""

import pytest
import torch

import framefuse


def f(x, flag=False):
    return x * 2 if flag else x + 1


def test_the_number_is_held():
    compiled, other = framefuse.compile(f), framefuse.compile(lambda x: x - 1)
    x = torch.randn(3)
    with torch.no_grad():
        with framefuse.assert_compiles(1):
            compiled(x), compiled(x)
        with framefuse.assert_compiles(0):
            compiled(x)
        with framefuse.assert_compiles(0, compiled):
            other(x)
        with framefuse.assert_compiles(2):
            compiled(x, True), compiled(x.double())


def test_the_text_names_place_and_cause():
    compiled = framefuse.compile(f)
    x = torch.randn(3)
    with torch.no_grad():
        compiled(x)
        with pytest.raises(AssertionError) as raised, framefuse.assert_compiles(0):
            compiled(x, True)
    text = str(raised.value)
    assert "1 trace was compiled, 0 expected" in text
    assert "test_testing.py" in text
    assert "flag" in text or "args[1]" in text
    assert "True" in text


def test_the_error_of_the_block_comes_first():
    with pytest.raises(ZeroDivisionError), framefuse.assert_compiles(3):
        1 / 0


def test_what_was_not_compiled():
    with pytest.raises(framefuse.UserError, match="was not compiled"), framefuse.assert_compiles(1, f):
        pass
