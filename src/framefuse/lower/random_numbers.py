"""Lowers dropout and fills with random numbers into one draw by the library and arithmetic that fuses with the rest."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from framefuse.ir.builder import ONE, ZERO, Shape
from framefuse.ir.dropout_masks import DropoutMask
from framefuse.ir.dtypes import BOOL, DType
from framefuse.ir.graph import Node, Scalar
from framefuse.ir.numbers import Real, constant_real
from framefuse.ir.strides import dense_strides
from framefuse.ir.target import type_of
from framefuse.ir.values import Value
from framefuse.ir.wrapped_calls import Draw
from framefuse.lower.activations import leaky_relu
from framefuse.lower.context import Lowering
from framefuse.lower.element import where
from framefuse.lower.promotion import is_number
from framefuse.lower.rules import Shapes, Unsupported, register, rule

ALPHA = 1.7580993408473766  # of SELU, as at::alpha_dropout has it


def draw(
    lo: Lowering, fill: str, numbers: tuple[Scalar, ...], dtype: DType, shape: Shape, like: Node, by_rows: bool = False
) -> Node:
    """A tensor of ``shape``, filled by the in-place method ``fill``. It lies in memory as eager's ``empty_like(like)``
    where it has that shape, else row-major: which element gets which number depends on that.
    """
    order = tuple(range(len(shape))) if by_rows or shape != like.shape else lo.order_like(like)
    target = Draw(fill, order, dtype.torch, like.device)
    return lo.draw(target, (shape, *numbers), dtype, shape, dense_strides(shape, order), like.device)


# ---- dropout: at::_dropout_impl --------------------------------------------------------------------------------------


def _dropout(
    lo: Lowering, input: Node, p: Value, train: bool, shape: Shape | None = None, alpha: bool = False
) -> Node | Shapes:
    """``shape`` is that of the noise where it is shared along dimensions, None for one of each element.

    On a CPU the mask is drawn as bool: eager draws it in the input's dtype, from the same stream.
    """
    if not isinstance(train, bool) or not isinstance(p, (bool, int, float, Real)):
        raise Unsupported("the kind of the arguments")
    if not input.dtype.is_float:
        raise Unsupported("integers")
    if not train or (not isinstance(p, Real) and p == 0):
        return input
    count = lo.count(input.shape)
    if lo.size(count) == 0:
        lo.require("==", count, ZERO, "a tensor without elements is not dropped from")
        return input
    if input.device != "cpu" and shape is None and not alpha:  # a kernel of its own, which draws in another order
        return _dropout_on_gpu(lo, input, p)
    if input.device != "cpu" and (type_of(input.device) != "cuda" or isinstance(p, Real) or not 0.0 < p < 1.0):
        return Shapes((input.shape,))
    lo.require("!=", count, ZERO, "a tensor without elements is not dropped from")
    if not isinstance(p, Real) and p == 1:
        return lo.compute(lambda a: a * 0.0, input)
    keep = Real("sub", (constant_real(1.0), p)) if isinstance(p, Real) else 1.0 - p
    noise_of = input.dtype if type_of(input.device) == "cuda" else BOOL
    mask = draw(lo, "bernoulli_", (keep,), noise_of, input.shape if shape is None else shape, input, shape is not None)
    if isinstance(p, Real):
        if alpha:
            raise Unsupported("a run-time probability")
        noise = lo.settled(lo.compute(lambda m: m / keep, lo.cast(mask, input.dtype)))
        return lo.compute(lambda a, n: a * n, input, noise)
    factors, shifts = _two_values(input.dtype.torch, p, alpha)
    noise = lo.settled(lo.compute(lambda m: m * factors[1], lo.cast(mask, input.dtype)))
    result = lo.settled(lo.compute(lambda a, n: a * n, input, noise))
    if not alpha:
        return result
    kept = lo.cast(mask, input.dtype)
    shift = lo.settled(lo.compute(lambda m: where(m.apply("ne", 0.0), m.number(shifts[1]), shifts[0]), kept))
    return lo.compute(lambda a, b: a + b, result, shift)


def _dropout_on_gpu(lo: Lowering, input: Node, p: Value) -> Node | Shapes:
    """at::native_dropout, where eager takes it: its mask is drawn, and its arithmetic is part of the rest."""
    if type_of(input.device) != "cuda" or not isinstance(p, float) or not 0.0 < p < 1.0:
        return Shapes((input.shape,))
    if input not in lo.memory or not lo.is_dense(input):
        return Shapes((input.shape,))
    lo.require("!=", lo.count(input.shape), ZERO, "a tensor without elements is not dropped from")
    order = lo.order_like(input)
    wide = torch.float64 if input.dtype.torch is torch.float64 else torch.float32
    scale = (1.0 / torch.tensor(1.0 - p, dtype=wide, device="cpu")).item()
    target = DropoutMask(order, input.dtype.torch, input.device, p, not lo.differentiable)
    mask = lo.draw(target, (input.shape,), BOOL, input.shape, dense_strides(input.shape, order), input.device)
    return lo.settled(lo.compute(lambda a, m: a * m * scale, input, lo.cast(mask, input.dtype)))


def _two_values(dtype: torch.dtype, p: float, alpha: bool) -> tuple[list[float], list[float]]:
    """What eager multiplies and what it adds where a mask is 0 and where it is 1, rounded as eager rounds."""
    noise = torch.tensor([0.0, 1.0], dtype=dtype, device="cpu")
    if not alpha:
        return noise.div_(1.0 - p).tolist(), [0.0, 0.0]
    a = 1.0 / math.sqrt((ALPHA * ALPHA * p + 1) * (1 - p))
    shift = noise.add(-1).mul_(ALPHA * a).add_(ALPHA * a * p)
    return noise.mul_(a).tolist(), shift.tolist()


def dropped(lo: Lowering, node: Node, p: float) -> Node:
    """Dropout in training of what a call computes on its way."""
    result = _dropout(lo, node, p, True)
    if isinstance(result, Shapes):
        raise Unsupported("dropout by the library")
    return result


def _features(input: Node) -> Shape:
    """One element for each channel of each sample."""
    if len(input.shape) < 2:
        raise Unsupported("no channels")
    return (*input.shape[:2], *[ONE] * (len(input.shape) - 2))


@rule("F.dropout")
def dropout(lo: Lowering, input: Node, p: Value = 0.5, training: bool = True, inplace: bool = False) -> Node | Shapes:
    return _dropout(lo, input, p, training)


@rule("torch.dropout")
def torch_dropout(lo: Lowering, input: Node, p: Value, train: bool) -> Node | Shapes:
    return _dropout(lo, input, p, train)


@rule("F.alpha_dropout")
def alpha_dropout(
    lo: Lowering, input: Node, p: Value = 0.5, training: bool = False, inplace: bool = False
) -> Node | Shapes:
    return _dropout(lo, input, p, training, alpha=True)


@rule("torch.alpha_dropout")
def torch_alpha_dropout(lo: Lowering, input: Node, p: Value, train: bool) -> Node | Shapes:
    return _dropout(lo, input, p, train, alpha=True)


@rule("F.feature_alpha_dropout")
def feature_alpha_dropout(
    lo: Lowering, input: Node, p: Value = 0.5, training: bool = False, inplace: bool = False
) -> Node | Shapes:
    return _dropout(lo, input, p, training, _features(input), alpha=True)


@rule("torch.feature_alpha_dropout")
def torch_feature_alpha_dropout(lo: Lowering, input: Node, p: Value, train: bool) -> Node | Shapes:
    return _dropout(lo, input, p, train, _features(input), alpha=True)


@rule("torch.feature_dropout")
def feature_dropout(lo: Lowering, input: Node, p: Value, train: bool) -> Node | Shapes:
    return _dropout(lo, input, p, train, _features(input))


def _by_channel(batched: int, single: bool) -> Callable[..., Node | Shapes]:
    """``F.dropout1d`` and its kin for batches of ``batched`` dimensions and, where ``single``, for one sample; the
    library warns of the rest.
    """

    def lowered(
        lo: Lowering, input: Node, p: Value = 0.5, training: bool = True, inplace: bool = False
    ) -> Node | Shapes:
        rank = len(input.shape)
        if rank == batched:
            return _dropout(lo, input, p, training, _features(input))
        if rank != batched - 1 or not single or inplace:
            if input.device != "cpu":
                return Shapes((input.shape,))
            raise Unsupported("dimensions")
        sample = lo.reshape(input, (ONE, *input.shape))
        result = _dropout(lo, sample, p, training, _features(sample))
        return lo.reshape(result, input.shape) if isinstance(result, Node) else Shapes((input.shape,))

    return lowered


register(("F.dropout1d",), "random_numbers", _by_channel(3, True))
register(("F.dropout2d",), "random_numbers", _by_channel(4, False))
register(("F.dropout3d",), "random_numbers", _by_channel(5, True))


# ---- fills -----------------------------------------------------------------------------------------------------------

# In-place methods that draw every element anew, and how many numbers they take.
FILLS = {
    "uniform_": 2, "normal_": 2, "bernoulli_": 1, "exponential_": 1, "cauchy_": 2, "log_normal_": 2, "geometric_": 1,
    "random_": 2,
}  # fmt: skip


def _fill(name: str, count: int) -> Callable[..., Node]:
    def lowered(lo: Lowering, input: Node, *numbers: Value, generator: None = None) -> Node:
        if generator is not None or len(numbers) > count or not all(is_number(value) for value in numbers):
            raise Unsupported("parameters")
        if not lo.is_dense(input):
            raise Unsupported("memory with gaps")
        return draw(lo, name, numbers, input.dtype, input.shape, input)

    return lowered


for _name, _count in FILLS.items():
    register((f"Tensor.{_name}",), "random_numbers", _fill(_name, _count))


# ---- calls that stay with the library --------------------------------------------------------------------------------


@rule("F.rrelu", "torch.rrelu")
def rrelu(
    lo: Lowering, input: Node, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, inplace: bool = False
) -> Node | Shapes:
    if training:  # how many numbers are drawn depends on the signs
        return Shapes((input.shape,))
    return leaky_relu(lo, input, (lower + upper) / 2)


@rule("torch.randperm")
def randperm(lo: Lowering, n: Value, **options: Value) -> Shapes:
    return Shapes((lo.shape_of(n),))


@rule("torch.randint")
def randint(lo: Lowering, *bounds: Value, size: Value = None, **options: Value) -> Shapes:
    if size is None:
        size = bounds[-1]
    return Shapes((lo.shape_of(size),))


@rule("torch.normal")
def normal(lo: Lowering, mean: Value, std: Value = 1.0, size: Value = None, **options: Value) -> Shapes:
    if size is not None:
        return Shapes((lo.shape_of(size),))
    tensors = [value for value in (mean, std) if isinstance(value, Node)]
    return Shapes((lo.broadcast(*(node.shape for node in tensors)),))


@rule("torch.poisson", "torch.binomial")
def counts(lo: Lowering, input: Node, *args: Value, **options: Value) -> Shapes:
    return Shapes((input.shape,))
