"""Recurrent layers, a step after the other: one product of all steps with the input's weights, then one a step."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from framefuse.aot.forms.registry import Given, form
from framefuse.ir.values import Function, Value

State = tuple[Tensor, ...]
Cell = Callable[[Tensor, State, Tensor, Value], State]


def _is_sure(given: Given) -> bool:
    """Whether nothing is dropped, and the steps of all rows are as many."""
    return not (given["train"] and given["dropout"]) and isinstance(given["has_biases"], bool)


def _lstm_cell(given: Tensor, state: State, weight: Tensor, bias: Value) -> State:
    gates = given + F.linear(state[0], weight, bias)
    enter, forget, cell, leave = gates.chunk(4, 1)
    held = torch.sigmoid(forget) * state[1] + torch.sigmoid(enter) * torch.tanh(cell)
    return torch.sigmoid(leave) * torch.tanh(held), held


def _gru_cell(given: Tensor, state: State, weight: Tensor, bias: Value) -> State:
    reset, update, new = given.chunk(3, 1)
    held_reset, held_update, held_new = F.linear(state[0], weight, bias).chunk(3, 1)
    fresh = torch.tanh(new + torch.sigmoid(reset + held_reset) * held_new)
    return (fresh + torch.sigmoid(update + held_update) * (state[0] - fresh),)


def _tanh_cell(given: Tensor, state: State, weight: Tensor, bias: Value) -> State:
    return (torch.tanh(given + F.linear(state[0], weight, bias)),)


def _relu_cell(given: Tensor, state: State, weight: Tensor, bias: Value) -> State:
    return (torch.relu(given + F.linear(state[0], weight, bias)),)


def _layers(
    cell: Cell, input: Value, states: State, weights: Value, biased: bool, layers: int, both: bool, batch_first: bool,
) -> tuple[Tensor, State]:  # fmt: skip
    """All steps of all layers, and the last states."""
    if batch_first:
        input = input.transpose(0, 1)
    directions = 2 if both else 1
    each = len(weights) // (layers * directions)
    lasts: list[State] = []
    for layer in range(layers):
        results: list[Tensor] = []
        for direction in range(directions):
            place = layer * directions + direction
            taken = weights[place * each : (place + 1) * each]
            from_input = F.linear(input, taken[0], taken[2] if biased else None)
            projected = taken[-1] if each % 2 else None
            state = tuple(part[place] for part in states)
            steps = list(range(input.shape[0]))
            outs: list[Value] = [None] * len(steps)
            for step in reversed(steps) if direction else steps:
                state = cell(from_input[step], state, taken[1], taken[3] if biased else None)
                if projected is not None:
                    state = (F.linear(state[0], projected), *state[1:])
                outs[step] = state[0]
            results.append(torch.stack(outs))
            lasts.append(state)
        input = torch.cat(results, -1) if both else results[0]
    ends = tuple(torch.stack([last[number] for last in lasts]) for number in range(len(states)))
    return (input.transpose(0, 1) if batch_first else input), ends


@form(torch._VF.lstm, where=_is_sure)
def lstm(
    input: Tensor, hx: Value, params: Value, has_biases: bool, num_layers: int, dropout: float, train: bool,
    bidirectional: bool, batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    result, (hidden, cell) = _layers(
        _lstm_cell, input, tuple(hx), params, has_biases, num_layers, bidirectional, batch_first
    )
    return result, hidden, cell


def _of_one_state(cell: Cell) -> Function:
    def layer(
        input: Tensor, hx: Tensor, params: Value, has_biases: bool, num_layers: int, dropout: float, train: bool,
        bidirectional: bool, batch_first: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        result, (hidden,) = _layers(cell, input, (hx,), params, has_biases, num_layers, bidirectional, batch_first)
        return result, hidden

    return layer


form(torch._VF.gru, where=_is_sure)(_of_one_state(_gru_cell))
form(torch._VF.rnn_tanh, where=_is_sure)(_of_one_state(_tanh_cell))
form(torch._VF.rnn_relu, where=_is_sure)(_of_one_state(_relu_cell))
