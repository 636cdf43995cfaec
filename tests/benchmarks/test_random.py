import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.drawn import random_programs, random_times
from benchmarks.drawn.random_programs import LAYOUTS, Input, drawn
from benchmarks.drawn.random_table import TABLE
from benchmarks.harness import compilers


@pytest.fixture
def plain(monkeypatch):
    """A framefuse that compiles nothing, so that only the harness is tested."""
    monkeypatch.setitem(compilers.COMPILERS, "framefuse", lambda function, dynamic, mode=None: function)


def test_a_seed_gives_the_same_program_and_values():
    for seed in range(8):
        one, other = drawn(seed), drawn(seed)
        assert one == other
        for left, right in zip(one.arguments(1), other.arguments(1), strict=True):
            assert left.stride() == right.stride() and left.dtype is right.dtype
            assert torch.equal(left.detach().nan_to_num(), right.detach().nan_to_num())


@pytest.mark.filterwarnings("ignore")
def test_every_program_runs():
    for seed in range(40):
        program = drawn(seed)
        if program.families:
            program.function()(*program.arguments(seed))


@pytest.mark.parametrize("layout", dict.fromkeys(LAYOUTS))
def test_inputs_have_their_shape_whatever_their_layout(layout):
    given = Input((2, 3, 4, 5), torch.float32, layout).draw(torch.Generator().manual_seed(0))
    assert given.shape == (2, 3, 4, 5) and given.is_contiguous() is (layout == "contiguous")


@pytest.mark.parametrize("family", TABLE)
def test_a_family_alone(family):
    taken = {name for seed in range(30) for name in drawn(seed, (family,)).families}
    assert taken == {family}


def test_what_is_slower_is_named(plain, monkeypatch, tmp_path, capsys):
    times = iter([(1.0, 2.0), (1.0, 4.0), (1.0, 3.0)])
    monkeypatch.setattr(random_times, "medians", lambda *given: next(times, (2.0, 1.0)))
    monkeypatch.setattr(random_programs, "TRIES", 5)
    assert main(["random", "--count", "4", "--only", "pointwise", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "slower than eager: 1 of" in shown and "0.50  0" in shown  # the best of three
    assert (tmp_path / "random.csv").exists()


def test_results_are_compared_with_room_for_roundings():
    x = torch.randn(100)
    assert random_times.same((x, x > 0), (x + 1e-6, x > 0))
    assert not random_times.same(x, x + 1) and not random_times.same(x, x.double())
    assert not random_times.same([x], [x, x])
