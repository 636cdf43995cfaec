"""Finds products whose only reader is an activation that the library computes with them, and makes both one call.

That is gelu by tanh. The library has relu too, but some of its kernels make 0 of a NaN, which eager's relu keeps, and
sizes and device decide which kernel runs; torch's convolution with relu asks cuDNN for the same.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from dataclasses import replace

import torch

from framefuse.fuse.addressing.ranges import ONE, ZERO, address, row_major
from framefuse.fuse.addressing.strided import Strides, View, is_product_layout
from framefuse.fuse.grouping.cells import Cell
from framefuse.fuse.grouping.choices import Activated, FusedProduct
from framefuse.fuse.grouping.fused_products import fused_product
from framefuse.fuse.grouping.groups import Groups
from framefuse.fuse.setting import Setting
from framefuse.ir import costs
from framefuse.ir.dtypes import FLOAT32
from framefuse.ir.graph import Arg, Node, call_attrs
from framefuse.ir.numbers import Expr
from framefuse.ir.values import Function

SCHEMA = (
    "aten::_addmm_activation(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1, "
    "bool use_gelu=False) -> Tensor"
)
DTYPES = ("float16", "bfloat16")  # in float32 it is no faster than two kernels
CUBE = "mul(mul(x, x), x)"
GELU_TANH = (
    f"mul(mul(0.5, x), add(1.0, tanh(mul(0.7978845608028654, fma({CUBE}, 0.044715, x)))))",  # torch's
    # 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3))), as GPT-2's sources have it
    f"mul(mul(x, 0.5), add(tanh(mul(add(x, mul({CUBE}, 0.044715)), 0.7978845608028654)), 1.0))",
)


@functools.cache
def activating_call() -> Function | None:
    """torch's product with bias and activation; None where this torch has another, or a setting keeps it from
    the library whose kernels do it at once. It is not public.
    """
    target = getattr(torch, "_addmm_activation", None)
    overload = getattr(getattr(torch.ops.aten, "_addmm_activation", None), "default", None)
    if os.environ.get("DISABLE_ADDMM_CUDA_LT") == "1" or str(getattr(overload, "_schema", "")) != SCHEMA:
        return None
    return target


def with_activations(groups: Groups, setting: Setting) -> Groups:
    """The groups with the products that the library computes with the activation that alone reads them. Exact kernels
    have none: eager rounds the product before its activation.
    """
    activated = () if setting.exact else tuple(_activated(groups, setting))
    return replace(groups, activated=activated) if activated else groups


def _activated(groups: Groups, setting: Setting) -> Iterator[Activated]:
    """In program order."""
    for node in groups.graph.nodes:
        target = setting.targets(node.device) if node.op == "library" else None
        if target is None or not target.epilogues or activating_call() is None:
            continue
        product = fused_product(groups, node, setting, DTYPES, costs.EPILOGUE_LEAST)
        activated = _call(groups, product) if product is not None and _is_gelu(product) else None
        if activated is not None:
            yield activated


def _is_gelu(product: FusedProduct) -> bool:
    """Whether the kernel computes that and nothing else."""
    group = product.group
    if product.kept or len(group.roots) != 1 or len(group.cells) > costs.EPILOGUE_CELLS:
        return False
    ((root, cell),) = group.roots.items()
    if root.dtype is not product.cell.node.dtype or cell.node.op != "cast":
        return False
    return _formula(cell.kids[0], product.cell, {}) in GELU_TANH


def _formula(cell: Cell, product: Cell, known: dict[Cell, str]) -> str:
    """What a cell computes, in words; the product, as it is or in float32, is ``x``. Casts are left out where a kernel
    keeps all digits.
    """
    formula = known.get(cell)
    if formula is None:
        node, kids = cell.node, cell.kids
        if cell is product or (node.op == "cast" and kids == (product,) and node.dtype is FLOAT32):
            formula = "x"
        elif cell.kind != "op":
            formula = cell.kind
        elif node.op == "cast" and node.attr("loose"):
            formula = _formula(kids[0], product, known)
        elif node.op == "full":
            formula = str(node.attr("value"))
        else:
            formula = f"{node.op}({', '.join(_formula(kid, product, known) for kid in kids)})"
        known[cell] = formula
    return formula


def _call(groups: Groups, product: FusedProduct) -> Activated | None:
    """The call, where the library computes it in one kernel from memory as it is, and its result lies as the kernel's
    would.
    """
    factors, group = product.factors, product.group
    ((root, cell),) = group.roots.items()
    if factors.bias is None or factors.bias[1][1:] != (ZERO, ONE):
        return None
    if not factors.terms.constant:  # of a sum without terms it does not compute the activation
        return None
    place = address(product.cell.index, row_major(product.cell.node.shape))
    if address(cell.index, groups.strides_of(root)) is not place:
        return None
    shapes = ((factors.columns,), (factors.rows, factors.terms), (factors.terms, factors.columns))
    operands: list[View] = []
    for (base, (offset, *steps)), shape in zip((factors.bias, factors.left, factors.right), shapes, strict=True):
        strides = tuple(steps[-len(shape) :])
        if len(shape) == 2 and not is_product_layout(*shape, *strides):
            return None
        operands.append(_view(groups, base, shape, strides, offset))
    old = product.node
    name, args = f"{old.attr('name')}_gelu_tanh", tuple(Arg(number) for number in range(3))
    attrs = call_attrs(activating_call(), args, (None, None, None), name=name, kwargs={"use_gelu": True})
    node = Node("library", tuple(view.node for view in operands), attrs, root.dtype, (), None, old.line, old.device)
    sizes, strides = (factors.rows, factors.columns), (factors.columns, ONE)
    flat = Node("result", (node,), (("path", ()),), root.dtype, sizes, strides, old.line, old.device)
    return Activated(product, node, tuple(operands), flat)


def _view(groups: Groups, base: Node, shape: Strides, strides: Strides, offset: Expr) -> View:
    if base.shape == shape and groups.strides_of(base) == strides and offset is ZERO:
        return View(base, base, strides, offset)
    node = Node("reshape", (base,), (), base.dtype, shape, None, base.line, base.device)
    return View(node, base, strides, offset)
