"""Ints that modules keep in buffers and that the program asks for: sizes, branches and counters."""

from __future__ import annotations

import torch
from tests.traps.trap import Table, Trap, hold
from torch import nn
from torch.nn import functional

TABLE = Table()
trap = TABLE.trap


class Padded(nn.Module):
    """A convolution of which stride and padding are buffers, as audio models of transformers keep them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 2, 7, 2)
        self.stride = nn.Buffer(torch.tensor(2))
        self.kernel = nn.Buffer(torch.tensor(7))
        self.padding = nn.Buffer(torch.tensor(5))

    def forward(self, x):
        length = x.shape[-1]
        frames = torch.ceil((length - self.kernel + self.padding) / self.stride + 1).to(torch.int64) - 1
        right = frames * self.stride + self.kernel - self.padding - length
        extra, most = 0, max(self.padding, right)
        if length <= most:
            extra = most - length + 1
            x = nn.functional.pad(x, (0, extra))
        padded = nn.functional.pad(x, (self.padding, right), "reflect")
        return self.conv(padded[..., : padded.shape[-1] - extra])


def run(compiled, changes):
    torch.manual_seed(0)
    module = Padded()
    f = compiled(module)
    with torch.no_grad():
        for length in (100, 100, 101, 64, 90):
            yield f(torch.randn(2, 2, length))
        for change in changes:
            change(module)
            for length in (100, 33, 57, 12):
                yield f(torch.randn(2, 2, length))


@trap(traces=2, hits=4)
def buffers_filled_between_calls(compiled):
    yield from run(compiled, [lambda m, n=n: m.padding.fill_(n) for n in (3, 6, 1, 4)])


@trap(traces=2, hits=4)
def buffers_given_other_data(compiled):
    yield from run(compiled, [lambda m, n=n: setattr(m.padding, "data", torch.tensor(n)) for n in (3, 6, 1)])


@trap(traces=3, hits=17)
def buffers_replaced(compiled):
    kinds = torch.tensor(3), torch.tensor(4), torch.tensor(2, dtype=torch.int32), torch.tensor(6)
    yield from run(compiled, [lambda m, new=new: setattr(m, "padding", new) for new in kinds])


@trap(traces=2, hits=4)
def buffers_loaded(compiled):
    states = [{**Padded().state_dict(), "padding": torch.tensor(n), "stride": torch.tensor(n)} for n in (3, 1, 4)]
    yield from run(compiled, [lambda m, state=state: m.load_state_dict(state) and None for state in states])


@trap(traces=2, hits=4)
def buffers_written_through_numpy_and_tied(compiled):
    yield from run(compiled, [lambda m: m.padding.numpy().fill(3), lambda m: setattr(m, "stride", m.padding)])


@trap(traces=6, hits=4)
def a_limit_of_another_type(compiled):
    module = nn.Module()
    module.n, module.k = nn.Buffer(torch.tensor(4)), nn.Buffer(torch.tensor(3))

    @compiled
    def f(x):
        return x * 2 if module.n > module.k else x * 3

    for limit in (3, 3, 5, 4.0, 3.5, -1.0, True, -2, [3]):
        module.k = torch.tensor(limit)
        yield f(torch.randn(3))


@trap(traces=4, hits=9)
def a_counter_that_each_call_writes(compiled):
    module = nn.Module()
    module.n, module.k = nn.Buffer(torch.tensor(0)), nn.Buffer(torch.tensor(3))

    @compiled
    def f(x):
        y = x * 2 if module.n >= module.k else x * 3
        module.n += 1
        if module.n == module.k:
            y = y * 10
        return y + max(module.n, module.k)

    for call in range(12):
        if call == 8:
            module.n.zero_()
        yield f(torch.randn(3)), module.n.clone()


def counted(compiled, body, calls=12):
    module = nn.Module()
    module.n, module.k = nn.Buffer(torch.tensor(1)), nn.Buffer(torch.tensor(4))
    f = compiled(lambda x: body(module, x))
    for call in range(calls):
        if call % 5 == 4:
            module.k.fill_(call - 3)
        yield f(torch.randn(6, 3)), module.n.clone(), module.k.clone()


@trap(traces=2, hits=10)
def an_item_that_decides(compiled):
    yield from counted(compiled, lambda m, x: x * 2 if m.k.item() > int(m.n) else x * 3)


@trap(traces=2, hits=9)
def an_item_that_is_a_size(compiled):
    yield from counted(compiled, lambda m, x: x[: int(m.k)] * m.n.item())


@trap(traces=3, hits=9)
def an_item_that_is_an_index(compiled):
    values = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    yield from counted(compiled, lambda m, x: (x * values[int(m.k)], f"{m.k.item()}"))


@trap(traces=2, hits=10)
def a_buffer_halved(compiled):
    def body(m, x):
        half = m.k // 2
        most = max(half, m.k - half)
        return functional.pad(x, (half, m.k - half)) if most < 4 else x * most

    yield from counted(compiled, body)


@trap(traces=2, hits=10)
def an_item_behind_a_write(compiled):
    def body(m, x):
        before = m.n * 2
        m.n += 1
        m.n.add_(m.k)
        m.n -= m.k
        after = m.n * 2
        return x * 2 if m.n.item() % 4 == 0 else x * (after.item() - before.item())

    yield from counted(compiled, body)


@trap(traces=3, hits=10)
def an_item_behind_writes_of_other_kinds(compiled):
    def body(m, x):
        m.n.fill_(3).mul_(m.k)
        view = m.k.view(())
        view += 1
        m.k.add_(m.n, alpha=2)
        m.k.copy_(m.n)
        return x * 2 if m.n.item() > 5 else x * m.k.item()

    yield from counted(compiled, body)


@trap(traces=3, hits=16)
def a_product_that_wraps(compiled):
    module = nn.Module()
    module.n = nn.Buffer(torch.tensor(2))
    f = compiled(lambda x: x * (2 if (module.n * 6364136223846793005 + 1442695040888963407).item() % 3 else 3))
    for call in range(24):
        module.n.fill_(call)
        yield f(torch.ones(3))


@trap(traces=3, hits=16)
def a_power_that_wraps(compiled):
    module = nn.Module()
    module.n = nn.Buffer(torch.tensor(2))
    f = compiled(lambda x: x * (module.n * module.n // 2 * module.n * 2).item() + (module.n * module.n * 4 // 4).item())
    for call in range(24):
        module.n.fill_(call if call < 5 else 10**9 * call)
        yield f(torch.ones(3, dtype=torch.int64))


@trap(traces=2, hits=10)
def a_buffer_assigned_as_it_is(compiled):
    def body(m, x):
        m.n += 1
        m.n = m.n
        return x * 2 if int(m.n) < 6 else x * 3

    yield from counted(compiled, body)


@TABLE.parametrize()
def test_programs_match_eager(trap: Trap) -> None:
    hold(trap)
