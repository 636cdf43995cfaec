"""Gives the shape of fused attention, which stays with the library; with dropout, and where there is no library, it is
products and a softmax.
"""

from __future__ import annotations

import math

from framefuse.ir.builder import ONE, ZERO, Shape
from framefuse.ir.dtypes import BOOL, FLOAT32
from framefuse.ir.graph import Node
from framefuse.ir.numbers import Real, constant_real, expr
from framefuse.ir.values import Value
from framefuse.lower import element as e
from framefuse.lower.context import Lowering
from framefuse.lower.creation import positions
from framefuse.lower.element import where
from framefuse.lower.products import NARROW, multiplied, multiply
from framefuse.lower.random_numbers import dropped
from framefuse.lower.rules import Lowered, Shapes, Unsupported, rule

INFINITY = float("inf")


@rule("scaled_dot_product_attention")
def scaled_dot_product_attention(
    lo: Lowering, query: Node, key: Node, value: Node, attn_mask: Value = None, dropout_p: Value = 0.0,
    is_causal: bool = False, scale: Value = None, enable_gqa: bool = False,
) -> Lowered:  # fmt: skip
    shape = (*query.shape[:-1], value.shape[-1])
    target = lo.targets(query.device)
    alone = target is not None and not target.library
    plain = query.dtype.name in multiplied(lo, query.device) and (alone or not enable_gqa)
    if isinstance(dropout_p, float) and dropout_p < 1.0 and (dropout_p > 0.0 or (dropout_p == 0.0 and alone)) and plain:
        if enable_gqa:
            key, value = (_shared(lo, each, query) for each in (key, value))
        return _by_products(lo, query, key, value, attn_mask, dropout_p, is_causal, scale, shape)
    return Shapes((shape,))


@rule("_transformer_encoder_layer_fwd")
def encoder_layer(lo: Lowering, src: Node, *args: Value, **kwargs: Value) -> Lowered:
    """A layer that torch computes at once where no gradient is asked for."""
    return Shapes((src.shape,))


@rule("_native_multi_head_attention")
def native_attention(
    lo: Lowering, query: Node, key: Node, value: Node, embed_dim: Value, num_head: Value, qkv_weight: Node,
    qkv_bias: Node, proj_weight: Node, proj_bias: Node, mask: Value = None, need_weights: bool = True,
    average_attn_weights: bool = True, mask_type: Value = None,
) -> Lowered:  # fmt: skip
    """The same of attention alone."""
    if not need_weights:
        return Shapes((query.shape,))
    batch, rows, _ = query.shape
    heads = () if average_attn_weights else (expr(num_head),)
    return Shapes((query.shape, (batch, *heads, rows, key.shape[1])))


def _by_products(
    lo: Lowering, query: Node, key: Node, value: Node, mask: Value, p: float, causal: bool, scale: Value, shape: Shape
) -> Node:
    """at::_scaled_dot_product_attention_math, which eager takes on the CPU where there is dropout of ``p``."""
    factor = _factor(lo, query, scale)
    rank = len(query.shape)
    turned = lo.permute(key, (*range(rank - 2), rank - 1, rank - 2))
    narrow = query.dtype.name in NARROW
    if narrow:  # their products are added up, and scaled, in 32 bits
        scores = lo.compute(lambda a: a * factor * factor, multiply(lo, query, turned, FLOAT32))
    else:
        scores = multiply(lo, lo.compute(lambda a: a * factor, query), lo.compute(lambda a: a * factor, turned))
    if causal:
        if mask is not None:
            raise Unsupported("two masks")
        row, column = (positions(lo, scores.shape, axis, query.device) for axis in (rank - 2, rank - 1))
        mask = lo.pointwise("le", column, row)
    if mask is not None:
        scores = _masked(lo, scores, mask)
    weights = _safe_softmax(lo, scores)
    if p > 0.0:
        weights = dropped(lo, weights, p)
    result = multiply(lo, lo.cast(weights, value.dtype) if narrow else weights, value)
    if result.shape != shape:
        raise Unsupported("shapes that broadcast")
    return result


def _shared(lo: Lowering, node: Node, query: Node) -> Node:
    """Keys or values whose heads several heads of the query share, one for each of these."""
    *lead, heads, rows, width = node.shape
    lo.require("!=", heads, ZERO, "the heads of keys")
    sharing = query.shape[-3] // heads
    lo.same_size(query.shape[-3], heads * sharing, "the heads of attention")
    spread = lo.expand(
        lo.reshape(node, (*lead, heads, ONE, rows, width)), (*lead, heads, sharing, rows, width)
    )
    return lo.reshape(spread, (*lead, query.shape[-3], rows, width))


def _factor(lo: Lowering, query: Node, scale: Value) -> float | Real:
    """What both operands of the first product are multiplied by: the root of the scale."""
    if scale is not None:
        if type(scale) not in (int, float) or not scale > 0.0:
            raise Unsupported("a scale that is no positive number")
        return math.sqrt(scale)
    width = query.shape[-1]
    lo.require("!=", width, ZERO, "the width of attention")
    if width.constant is not None:
        return math.sqrt(1.0 / math.sqrt(width.constant))
    return Real("sqrt", (Real("div", (constant_real(1.0), Real("sqrt", (Real("int", (width,)),)))),))


def _masked(lo: Lowering, scores: Node, mask: Value) -> Node:
    if not isinstance(mask, Node) or (mask.dtype is not BOOL and mask.dtype is not scores.dtype):
        raise Unsupported("the kind of the mask")
    if lo.broadcast(scores.shape, mask.shape) != scores.shape:
        raise Unsupported("a mask of more dimensions")
    if mask.dtype is BOOL:
        low, zero = (lo.full(value, scores.dtype, mask.shape, mask.device) for value in (-INFINITY, 0.0))
        mask = lo.pointwise("where", mask, zero, low)
    return lo.compute(lambda a, m: a + m, scores, mask)


def _safe_softmax(lo: Lowering, scores: Node) -> Node:
    """Softmax over the last axis; zeros in rows where everything is masked."""
    axis = len(scores.shape) - 1
    lo.require("!=", scores.shape[axis], ZERO, "keys of attention")
    high = lo.reduce("amax", scores, (axis,), True)
    top = lo.compute(lambda a, m: e.exp(a - m), scores, high)
    ratio = lo.compute(lambda a, s: a / s, top, lo.reduce("sum", top, (axis,), True))
    return lo.derived(lo.compute(lambda a, m: where(m <= -INFINITY, 0.0, a), ratio, high), "softmax", (scores,), axis)
