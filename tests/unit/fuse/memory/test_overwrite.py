"""Kernels that write inputs in place: where nothing reads the old contents later, and nothing after them can fail."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import framefuse
from framefuse.ir.loops.key import key_of
from framefuse.ir.plan import CallStep


def compiled(function: Any, *args: Any) -> tuple[Any, list[str]]:
    """The compiled function after a first call, and the names of its plan's calls."""
    made = framefuse.compile(function)
    made(*args)
    plan = made.__framefuse__.products[-1].stages.plan
    return made, [step.name for step in plan.steps if isinstance(step, CallStep)]


def same(function: Any, made: Any, make: Any) -> None:
    for seed in range(3):
        torch.manual_seed(seed)
        eager = make()
        torch.manual_seed(seed)
        ours = make()
        expected, found = function(*eager), made(*ours)
        torch.testing.assert_close(found, expected)
        for left, right in zip(eager, ours, strict=True):
            torch.testing.assert_close(right, left)
            assert right._version == left._version
    assert made.__framefuse__.dispatch.hits == 3


def pair() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(6, 5), torch.randn(6, 5)


def test_a_last_write_needs_no_copy() -> None:
    def step(x: torch.Tensor, g: torch.Tensor) -> None:
        x.mul_(0.5).add_(g)
        g.zero_()

    made, calls = compiled(step, *pair())
    assert calls == ["versions"]
    same(step, made, pair)


def test_old_contents_that_are_read_later_are_kept() -> None:
    def swap(x: torch.Tensor, y: torch.Tensor) -> None:
        z = x.clone()
        x.copy_(y)
        y.copy_(z)

    def transposed(x: torch.Tensor, y: torch.Tensor) -> None:
        x.add_(y.sum(0))
        x.copy_(x.flip(0))

    for function in (swap, transposed):
        made, calls = compiled(function, *pair())
        assert "copy_" in calls
        same(function, made, pair)


def test_a_result_has_memory_of_its_own() -> None:
    def step(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        y = x + g
        x.copy_(y)
        return y

    made, _ = compiled(step, *pair())
    same(step, made, pair)
    x, g = pair()
    y = made(x, g)
    y.zero_()
    assert x.abs().sum() > 0


def test_nothing_is_half_written_when_a_later_step_fails() -> None:
    def step(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return torch.ones(3)[places]

    made, _ = compiled(step, torch.zeros(4), torch.tensor([0, 1]))
    x = torch.zeros(4)
    with pytest.raises(IndexError):
        made(x, torch.tensor([0, 7]))
    assert torch.equal(x, torch.ones(4))  # eager's one write
    assert made.__framefuse__.dispatch.declines == 1


def test_a_call_that_was_given_an_input_may_have_kept_it() -> None:
    def step(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        counts = torch.histogram(x, 4, range=(-1.0, 1.0))[0]
        x.add_(g)
        return counts

    def looks(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        order = torch.argsort(x.view(-1))
        x.add_(g)
        return order

    made, calls = compiled(step, *pair())
    assert "copy_" in calls
    same(step, made, pair)
    made, calls = compiled(looks, *pair())
    assert "copy_" not in calls
    same(looks, made, pair)


RETURNED: dict[str, Any] = {
    "nothing": lambda loss, p: None,
    "the loss": lambda loss, p: loss,
    "detached": lambda loss, p: loss.detach(),
    "data": lambda loss, p: loss.data,
    "a view": lambda loss, p: loss.view(1),
    "copied": lambda loss, p: loss.detach().clone(),
    "computed": lambda loss, p: loss * 1,
    "a root": lambda loss, p: loss.sqrt(),
    "a part of a parameter": lambda loss, p: p[0][0],
    "a library call": lambda loss, p: torch.histc(loss.detach(), 4, 0.0, 9.0),
    "places": lambda loss, p: (loss.detach() > 0).nonzero(),
}


@pytest.mark.parametrize("returned", list(RETURNED))
def test_what_a_step_returns_does_not_move_its_writes(returned: str) -> None:
    def make() -> tuple[Any, list[torch.Tensor], torch.Tensor]:
        torch.manual_seed(0)
        weights = [torch.nn.Parameter(torch.randn(5, 5)) for _ in range(3)]
        optimizer = torch.optim.Adam(weights, lr=0.01)

        def step(x: torch.Tensor) -> Any:
            optimizer.zero_grad()
            for weight in weights:
                x = torch.tanh(x @ weight)
            loss = x.pow(2).mean()
            loss.backward()
            optimizer.step()
            return RETURNED[returned](loss, weights)

        return step, weights, torch.randn(4, 5)

    eager, expected, x = make()
    step, weights, _ = make()
    made = framefuse.compile(step)
    for turn in range(6):
        one, other = made(x + turn), eager(x + turn)
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other)
            assert one.requires_grad == other.requires_grad
        for mine, theirs in zip(weights, expected, strict=True):
            torch.testing.assert_close(mine, theirs)
            assert mine._version == theirs._version
    state = made.__framefuse__
    assert state.dispatch.hits >= 3
    copies = [step.name for step in state.products[-1].stages.plan.steps if getattr(step, "name", "") == "copy_"]
    assert not copies


def test_an_input_that_autograd_may_save_is_written_last() -> None:
    def step(x: torch.Tensor, weight: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
        y = torch.sin(x * buffer) * weight
        with torch.no_grad():
            buffer.mul_(0.5)
        return y.sum()

    made = framefuse.compile(step)
    for turn in range(4):
        found = []
        for function in (step, made):
            torch.manual_seed(turn)
            x, weight, buffer = torch.randn(3, 4), torch.randn(4, requires_grad=True), torch.randn(4)
            out = function(x, weight, buffer)
            out.backward()
            found.append((out.detach(), weight.grad, buffer, buffer._version))
        torch.testing.assert_close(found[1], found[0])
    assert made.__framefuse__.dispatch.hits == 3


def test_inference_tensors_have_no_versions() -> None:
    def step(x: torch.Tensor, g: torch.Tensor) -> None:
        x.mul_(0.5).add_(g)

    with torch.inference_mode():
        made, calls = compiled(step, *pair())
        assert calls == ["versions"]
        x, g = pair()
        expected = x * 0.5 + g
        made(x, g)
        torch.testing.assert_close(x, expected)
    assert made.__framefuse__.dispatch.hits == 1


def test_kernels_that_differ_in_length_are_one() -> None:
    def step(*tensors: torch.Tensor) -> None:
        for tensor in tensors:
            tensor.mul_(0.5).add_(1)

    sizes = [(3, 4), (7,), (1,), (0, 3), (40, 40), ()]
    made = framefuse.compile(step, dynamic=False)
    made(*[torch.ones(size) for size in sizes])
    schedule = made.__framefuse__.products[-1].stages.code.schedule
    kernels = [item.kernel for item in schedule.items if hasattr(item, "kernel")]
    assert len(kernels) == 6 and len({key_of(kernel) for kernel in kernels}) <= 3
    tensors = [torch.randn(size) for size in sizes]
    expected = [tensor * 0.5 + 1 for tensor in tensors]
    made(*tensors)
    torch.testing.assert_close(tensors, expected)
    assert made.__framefuse__.dispatch.hits == 1


def test_a_row_kept_in_a_result_is_read_before_that_result_is_written() -> None:
    """What a row's second loop needs again waits in the memory of a result, which another result may overtake."""

    def function(x: Any, y: Any, z: Any, w: Any) -> Any:
        total = z + w
        first = x * z + total * y
        second = x * -w - total * y
        sums = [part.sum(-1, keepdim=True) for part in (first, second, z * y)]
        late = first - (sums[0] * y + x * sums[2])
        return late, z * y - y * sums[2], x * (w + sums[0]) + (total + sums[1]) * y

    fast = framefuse.compile(function)
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        given = [torch.randn(8, 16, dtype=torch.float64, generator=generator) for _ in range(4)]
        torch.testing.assert_close(fast(*given), function(*given))


def large() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(60, 50), torch.randn(60, 50)


def other_column(x: torch.Tensor, g: torch.Tensor) -> None:
    x[:, 3] = x[:, 5] + g[:, 0]


def sum_of_all(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    total = x.sum()
    x[2] = g[2] * 2
    return total


def next_row(x: torch.Tensor, g: torch.Tensor) -> None:
    x[2:5] = x[3:6].clone()


def reversed_rows(x: torch.Tensor, g: torch.Tensor) -> None:
    x[2:5] = x[2:5].flip(0)


def later_sum(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    x[2] = g[2] * 2
    return x.sum(0)


PARTS: dict[str, tuple[Any, int]] = {  # with how many parts are copied into place
    "a constant": (lambda x, g: x[2].fill_(1), 0),
    "rows": (lambda x, g: x[1:5].mul_(2), 0),
    "a column": (lambda x, g: x[:, 3].add_(g[:, 1]), 0),
    "a box": (lambda x, g: x[1:9, 2:7].copy_(g[:8, 1:6]), 0),
    "what a row sums up to": (lambda x, g: x[1:5].copy_(x[1:5].softmax(1)), 0),
    "from another row": (lambda x, g: x[2].copy_(x[5] * g[1]), 0),
    "from another column": (other_column, 1),
    "after a sum": (sum_of_all, 0),
    "from the next rows": (next_row, 1),
    "reversed": (reversed_rows, 1),
    "before a sum": (later_sum, 0),
}


@pytest.mark.parametrize("name", PARTS)
def test_a_part_is_written_in_place_where_no_old_element_of_it_is_read_later(name: str) -> None:
    program, copies = PARTS[name]

    def function(x: torch.Tensor, g: torch.Tensor) -> Any:
        out = program(x, g)
        return None if out is None or out._base is x else out

    made, calls = compiled(function, *large())
    assert calls.count("copy_") == copies
    same(function, made, large)


def test_a_part_of_an_argument_is_left_alone_when_a_later_step_fails() -> None:
    def step(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        x[1:3].add_(1)
        return torch.ones(3)[places]

    made, _ = compiled(step, torch.zeros(4, 90), torch.tensor([0, 1]))
    x = torch.zeros(4, 90)
    with pytest.raises(IndexError):
        made(x, torch.tensor([0, 7]))
    assert x.sum() == 180 and x._version == 1  # eager's one write
    assert made.__framefuse__.dispatch.declines == 1


GAPS = {
    "all": lambda x, g: x.mul_(2),
    "a row": lambda x, g: x[1].add_(1),
    "every second": lambda x, g: x[:, 1::2].copy_(g[:, 1::2]),
    "a sum of rows": lambda x, g: x.copy_(x / x.sum(1, keepdim=True)),
}


@pytest.mark.parametrize("name", GAPS)
def test_an_argument_with_gaps_is_written_where_it_lies(name: str) -> None:
    def function(x: torch.Tensor, g: torch.Tensor) -> None:
        GAPS[name](x, g)

    made, calls = compiled(function, torch.randn(6, 21)[:, 2:18:2], torch.randn(6, 8))
    assert calls.count("copy_") == 0
    for rows, columns, begin, step in ((6, 21, 2, 2), (9, 30, 0, 2), (4, 12, 1, 2), (5, 24, 0, 3)):
        whole, g = torch.rand(rows, columns), torch.randn(rows, columns)
        expected = whole.clone()
        views = [each[:, begin::step] for each in (expected, whole)]
        for run, view in zip((function, made), views, strict=True):
            run(view, g[:, : view.shape[1]])
        torch.testing.assert_close(whole, expected)
        assert whole._version == expected._version
    assert made.__framefuse__.dispatch.hits >= 2


def test_planes_with_gaps_are_written_where_they_lie() -> None:
    def function(x: torch.Tensor) -> None:
        x.mul_(2).add_(x.amax(-1, keepdim=True))

    made, calls = compiled(function, torch.randn(3, 5, 1, 11)[..., 2:-1])
    assert calls.count("copy_") == 0
    for sizes in ((3, 5, 1, 11), (2, 7, 3, 40), (1, 1, 2, 4), (4, 2, 1, 9)):
        whole = torch.randn(sizes)
        expected = whole.clone()
        for run, each in ((function, expected), (made, whole)):
            run(each[..., 2:-1])
        torch.testing.assert_close(whole, expected)
        assert whole._version == expected._version
    assert made.__framefuse__.dispatch.hits >= 2
