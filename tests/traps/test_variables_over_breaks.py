"""Variables that inner functions share and layers of torch, met behind a step that runs eagerly."""

from __future__ import annotations

import torch
from tests.traps.subclasses import brk
from tests.traps.trap import Table, Trap, hold
from torch import nn

TABLE = Table()
trap = TABLE.trap
ROUNDS = range(10)


@trap(traces=2, hits=7)
def rates_that_inner_functions_read(compiled):
    rate = 0.5

    @compiled
    def f(x, lr):
        nonlocal rate
        step = lambda t: t * lr + rate
        x = step(x)
        brk(x)
        lr = lr * 0.5
        x = step(x)
        brk(x)
        rate = rate * 0.9
        rows = [step(x) for _ in range(2)]
        return rows[0] + rows[1], lr, f"{rate:.3f}"

    for number in ROUNDS:
        yield f(torch.randn(3), 0.1 + 0.02 * number), rate


@trap(traces=2, hits=8)
def inner_steps_of_meta_learning(compiled):
    layer = nn.Linear(3, 3)

    @compiled
    def f(x, lr):
        for _ in range(2):
            loss = layer(x).square().mean()
            gradients = torch.autograd.grad(loss, list(layer.parameters()), create_graph=True)
            weights = {name: own - lr * part for (name, own), part in zip(layer.named_parameters(), gradients)}
            x = x @ weights["weight"]
        return x

    for number in ROUNDS:
        yield f(torch.randn(2, 3), 0.1 + 0.02 * number)


@trap(traces=1, hits=6)
def recurrent_layers_that_a_shared_variable_holds(compiled):
    layers = {"gru": nn.GRU(4, 4, batch_first=True), "lstm": nn.LSTM(4, 4, batch_first=True)}

    def outer():
        model = nn.ModuleDict(layers)

        @compiled
        def f(x):
            brk(x)
            each = [model[name](x)[0] for name in ("gru", "lstm")]
            return sum(each)

        return f

    f = outer()
    for number in ROUNDS:
        yield f(torch.randn(2, 3 + number % 2, 4))
        if number == 6:
            with torch.no_grad():
                layers["gru"].weight_hh_l0 = nn.Parameter(layers["gru"].weight_hh_l0 * 2)


@TABLE.parametrize()
def test_programs_match_eager(trap: Trap) -> None:
    hold(trap)
