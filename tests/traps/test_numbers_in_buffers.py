"""Ints that modules keep in buffers and that the program asks for: sizes, branches and counters."""

from __future__ import annotations

import torch
from tests.traps.trap import Table, Trap, hold
from torch import nn

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


@TABLE.parametrize()
def test_programs_match_eager(trap: Trap) -> None:
    hold(trap)
