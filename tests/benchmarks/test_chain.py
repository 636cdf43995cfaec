import inspect
import traceback

import pytest
import torch

from benchmarks.calls.chain import STATEMENTS, chain, source


def test_the_statements_of_the_experiment():
    wanted = (
        "x+0.1 sin x*1.1 cos x+0.2 relu x-0.1 exp(x*0.5) x+0.3 sigmoid "
        "x*1.2 sin x+0.4 cos x-0.2 relu x+0.5 exp(x*0.4) x*1.3 sigmoid"
    ).split()
    bare = [text.removeprefix("x = ").replace("torch.", "") for text in STATEMENTS]
    written = [text.replace("(x)", "").replace(" ", "") for text in bare]
    assert written == wanted


@pytest.mark.parametrize("count", [1, 5, 20, 25, 30])
def test_a_chain_draws_in_turn_and_ends_in_a_sum(count):
    lines = source(count).splitlines()
    assert lines[0] == "def chain(x):" and lines[-1] == "    return x.sum()"
    assert [line.strip() for line in lines[1:-1]] == [*STATEMENTS, *STATEMENTS][:count]


def test_a_chain_computes_what_it_says():
    x = torch.randn(8, 16)
    torch.testing.assert_close(chain(3)(x), (torch.sin(x + 0.1) * 1.1).sum())


def test_tools_see_the_lines():
    function = chain(5)
    assert inspect.getsource(function) == source(5)
    with pytest.raises(TypeError) as caught:
        function("no tensor")
    assert "x = x + 0.1" in "".join(traceback.format_exception(caught.value))


def test_each_chain_has_its_own_code():
    assert chain(2).__code__ is not chain(2).__code__
