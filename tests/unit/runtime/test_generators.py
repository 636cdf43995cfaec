"""A call that compiled code begins and eager ends draws the numbers that eager alone draws."""

import pytest
import torch

import framefuse


def quotient(a, b, generator):
    noise = torch.rand(3)
    return torch.rand(3) + noise, a // b


def own_generator(a, b, generator):
    noise = torch.rand(3, generator=generator)
    return noise, a // b


@pytest.mark.parametrize("backend", ["native", "eager"])
@pytest.mark.parametrize("function", [quotient, own_generator])
def test_a_run_that_declines_leaves_generators_as_they_were(function, backend):
    compiled = framefuse.compile(function, backend=backend)
    own = torch.Generator()
    a = torch.arange(4)
    states, found = [], []
    for run in (function, compiled):
        torch.manual_seed(3)
        own.manual_seed(4)
        for divisor in (1, 2, 3, 0, 5):
            try:
                found.append(run(a, torch.full((4,), divisor), own))
            except RuntimeError:
                found.append(None)
        states.append((torch.get_rng_state(), own.get_state()))
    assert all(torch.equal(one, other) for one, other in zip(*states, strict=True))
    assert [part is None for part in found] == [False, False, False, True, False] * 2
    for one, other in zip(found[:5], found[5:], strict=True):
        if one is not None:
            torch.testing.assert_close(one, other)
    if function is quotient:
        assert (compiled.hits, compiled.declines) == (3, 1)
