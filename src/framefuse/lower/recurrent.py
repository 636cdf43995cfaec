"""Lowers the cells of recurrent networks to products and gates, so that an unrolled network fuses as any program."""

from __future__ import annotations

from collections.abc import Callable

from framefuse.ir.graph import Node
from framefuse.ir.values import Value
from framefuse.lower import element as e
from framefuse.lower.activations import relu
from framefuse.lower.context import Lowering
from framefuse.lower.element import Element
from framefuse.lower.products import linear
from framefuse.lower.rules import Lowered, Rule, Shapes, Unsupported, register, rule

GATES = "the gates of a recurrent cell"


def _products(
    lo: Lowering, gates: int, input: Node, hidden: Node, w_ih: Node, w_hh: Node, b_ih: Value, b_hh: Value
) -> tuple[list[Node], list[Node]] | None:
    """What input and hidden state give for each gate by weights and biases; None where the library multiplies."""
    if len(input.shape) != 2 or len(hidden.shape) != 2:
        raise Unsupported("ranks")
    lo.same_size(input.shape[0], hidden.shape[0], "the rows of a recurrent cell")
    width = hidden.shape[1]
    by_gate = []
    for operand, weight, bias in ((input, w_ih, b_ih), (hidden, w_hh, b_hh)):
        product = linear(lo, operand, weight, bias)
        if not isinstance(product, Node):
            return None
        lo.same_size(product.shape[1], width * gates, GATES)
        by_gate.append([lo.narrow(product, 1, width * gate, width) for gate in range(gates)])
    return by_gate[0], by_gate[1]


@rule("gru_cell")
def gru_cell(
    lo: Lowering, input: Node, hx: Node, w_ih: Node, w_hh: Node, b_ih: Value = None, b_hh: Value = None
) -> Lowered:
    products = _products(lo, 3, input, hx, w_ih, w_hh, b_ih, b_hh)
    if products is None:
        return Shapes((hx.shape,))

    def state(h: Element, r: Element, z: Element, n: Element, hr: Element, hz: Element, hn: Element) -> Element:
        new = e.tanh(n + hn * e.sigmoid(hr + r))
        return (h - new) * e.sigmoid(hz + z) + new

    return lo.compute(state, hx, *products[0], *products[1])


@rule("lstm_cell")
def lstm_cell(
    lo: Lowering, input: Node, hx: Value, w_ih: Node, w_hh: Node, b_ih: Value = None, b_hh: Value = None
) -> Lowered:
    hidden, cell = hx
    lo.same_size(cell.shape[0], hidden.shape[0], "the rows of a recurrent cell")
    lo.same_size(cell.shape[1], hidden.shape[1], GATES)
    products = _products(lo, 4, input, hidden, w_ih, w_hh, b_ih, b_hh)
    if products is None:
        return Shapes((hidden.shape, cell.shape))
    into, forget, new, out = (lo.compute(lambda a, b: b + a, *pair) for pair in zip(*products, strict=True))
    kept = lo.compute(lambda c, f, i, g: e.sigmoid(f) * c + e.sigmoid(i) * e.tanh(g), cell, forget, into, new)
    return lo.compute(lambda o, c: e.sigmoid(o) * e.tanh(c), out, kept), kept


def _plain(activation: Callable[[Lowering, Node], Node]) -> Rule:
    def lowered(
        lo: Lowering, input: Node, hx: Node, w_ih: Node, w_hh: Node, b_ih: Value = None, b_hh: Value = None
    ) -> Lowered:
        products = _products(lo, 1, input, hx, w_ih, w_hh, b_ih, b_hh)
        if products is None:
            return Shapes((hx.shape,))
        return activation(lo, lo.compute(lambda a, b: b + a, *products[0], *products[1]))

    return lowered


register(("rnn_tanh_cell",), "recurrent", _plain(lambda lo, node: lo.compute(e.tanh, node)))
register(("rnn_relu_cell",), "recurrent", _plain(relu))
