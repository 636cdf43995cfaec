"""Calls of torch that write what their name does not say, and calls whose values decide sizes, run compiled as eager
runs them.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.unit.capture.effects import same_as_eager

import framefuse
from framefuse.api import compiled_function

BEHIND = (0.1, 1e-5)
ATEN = torch.ops.aten
NORMS: dict[str, Callable[..., Any]] = {
    "F.batch_norm": lambda x, m, v, w, b, train: F.batch_norm(x, m, v, w, b, train),
    "F.instance_norm": lambda x, m, v, w, b, train: F.instance_norm(x, m, v, w, b, train),
    "batch_norm": lambda x, m, v, w, b, train: torch.batch_norm(x, w, b, m, v, train, *BEHIND, True),
    "instance_norm": lambda x, m, v, w, b, train: torch.instance_norm(x, w, b, m, v, train, *BEHIND, True),
    "native": lambda x, m, v, w, b, train: torch.native_batch_norm(x, w, b, m, v, train, *BEHIND)[0],
    "legit": lambda x, m, v, w, b, train: torch._native_batch_norm_legit(x, w, b, m, v, train, *BEHIND)[0],
    "index": lambda x, m, v, w, b, train: torch._batch_norm_impl_index(x, w, b, m, v, train, *BEHIND, True)[0],
    "aten": lambda x, m, v, w, b, train: ATEN.batch_norm.default(x, w, b, m, v, train, *BEHIND, True),
    "aten native": lambda x, m, v, w, b, train: ATEN.native_batch_norm.default(x, w, b, m, v, train, *BEHIND)[0],
    "aten update": lambda x, m, v, w, b, train: ATEN._batch_norm_with_update.default(x, w, b, m, v, *BEHIND)[0],
    "update": lambda x, m, v, w, b, train: torch.batch_norm_update_stats(x, m, v, 0.1)[0],
}


@pytest.mark.parametrize("train", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("made", [True, False], ids=["made", "given"])
@pytest.mark.parametrize("name", NORMS)
def test_statistics_are_read_before_and_after_they_are_written(name: str, made: bool, train: bool) -> None:
    def make() -> Any:
        mean, variance, weight, bias = torch.zeros(3), torch.ones(3), torch.ones(3), torch.zeros(3)

        def f(x: Any) -> Any:
            m, v = (mean + 1, variance + 1) if made else (mean, variance)
            before = m * 2 + v
            y = NORMS[name](x, m, v, weight, bias, train)
            return before, y + 1, m * 2 + v

        return f, lambda: (mean, variance)

    def arguments(call: int) -> Any:
        return (torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(call)),)

    same_as_eager(make, traces=1, calls=4, args=arguments)


def one(*values: int) -> Any:
    return torch.tensor(values)


SIZES: dict[str, tuple[Callable[..., Any], tuple[Any, Any]]] = {
    "packed": (
        lambda x, n: torch._VF._pack_padded_sequence(x[:3, :5], n[:3], True)[0] + 1, (one(5, 4, 3), one(5, 2, 1))
    ),
    "padded": (
        lambda x, n: torch._VF._pad_packed_sequence(x[0, :6], n, True, 0.0, -1)[0] + 1, (one(3, 2, 1), one(4, 1, 1))
    ),
    "unique": (lambda x, n: torch._unique(n[:4])[0] * 2, (one(1, 2, 3, 4), one(1, 2, 2, 4))),
    "expand": (lambda x, n: x[0, 0, :1].expand(n) + 1, (torch.tensor(5), torch.tensor(7))),
    "arange": (lambda x, n: torch.arange(n) * 2, (torch.tensor(5), torch.tensor(7))),
    "topk": (lambda x, n: x[0, :6, 0].topk(n)[0] * 2, (torch.tensor(5), torch.tensor(3))),
    "unflatten": (lambda x, n: x[0, :6].unflatten(0, (n, -1)) * 2, (torch.tensor(3), torch.tensor(2))),
    "window": (lambda x, n: torch.hann_window(n) * 2, (torch.tensor(3), torch.tensor(2))),
    "indices": (lambda x, n: torch.tril_indices(n, n) * 2, (torch.tensor(3), torch.tensor(2))),
    "combinations": (lambda x, n: torch.combinations(x[0, :4, 0], n) * 2, (torch.tensor(2), torch.tensor(3))),
}  # fmt: skip


@pytest.mark.parametrize("name", SIZES)
def test_sizes_that_values_decide_run_as_compiled(name: str) -> None:
    function, values = SIZES[name]
    fast = framefuse.compile(function)
    x = torch.randn(3, 6, 2)
    for call in range(5):
        n = values[call % 2].clone()
        assert torch.equal(fast(x, n), function(x, n))
    dispatch = compiled_function(fast).dispatch  # type: ignore[union-attr]
    assert dispatch.hits == 4 and dispatch.declines == 0


def test_a_call_that_gives_a_list_gives_as_many_as_eager() -> None:
    """The later sizes had the number of edges of the recorded ones."""

    def f(x: Any) -> Any:
        counts, edges = torch.histogramdd(x, 2)
        return counts.sum(0), [edge * 2 for edge in edges]

    fast = framefuse.compile(f)
    for rows, columns in ((5, 3), (5, 3), (6, 4), (6, 4), (7, 2), (7, 2), (5, 3)):
        x = torch.randn(rows, columns)
        (counts, edges), (want, wanted) = fast(x), f(x)
        assert torch.equal(counts, want) and len(edges) == len(wanted) and all(map(torch.equal, edges, wanted))


def test_sizes_that_no_value_decides_are_known() -> None:
    """What two lists of functions said in two ways: sizes of neither depend on values."""

    def f(x: Any) -> Any:
        index = x[:, :4].argsort(1)
        edges = torch.histogram(x[:3].flatten(), 4)
        return torch.take_along_dim(x[:, :4], index, 1) * 2, edges[0] + 1, torch.histogramdd(x[:, :2], [3, 4])[0] + 1

    fast = framefuse.compile(f)
    for _ in range(4):
        x = torch.randn(5, 6)
        assert all(map(torch.allclose, fast(x), f(x)))
    dispatch = compiled_function(fast).dispatch  # type: ignore[union-attr]
    assert dispatch.hits == 3 and dispatch.declines == 0


def test_an_assertion_of_torch_is_part_of_the_trace() -> None:
    def f(x: Any) -> Any:
        y = x * 2
        torch._assert_async((y < 10).all())
        return y + 1

    fast = framefuse.compile(f)
    for value in (1.0, 2.0, 3.0):
        assert torch.equal(fast(torch.full((3,), value)), torch.full((3,), value * 2 + 1))
    state = compiled_function(fast)
    assert state is not None and state.dispatch.hits == 2 and not state.reasons
    with pytest.raises(RuntimeError, match="Expected Tensor with single nonzero value"):
        fast(torch.full((3,), 6.0))
    assert torch.equal(fast(torch.full((3,), 4.0)), torch.full((3,), 9.0))


def test_draws_keep_their_order_among_all_that_draw() -> None:
    def f(x: Any) -> Any:
        w = x.clone()
        torch.nn.init.kaiming_uniform_(w)
        return torch.rand(4), ATEN.uniform(x), torch.rand(4), ATEN.normal_functional(x), w, torch.rand(2)

    fast, x = framefuse.compile(f), torch.randn(4, 5)
    for seed in range(4):
        torch.manual_seed(seed)
        expected, state = f(x), torch.get_rng_state()
        torch.manual_seed(seed)
        assert all(map(torch.equal, fast(x), expected))
        assert torch.equal(torch.get_rng_state(), state)
    assert compiled_function(fast).dispatch.hits == 3  # type: ignore[union-attr]
