"""Gives the result shapes of library calls whose sizes follow from those of operands; a GPU reads one_hot itself."""

from __future__ import annotations

from collections.abc import Callable

import torch

from framefuse.ir.builder import ONE
from framefuse.ir.dtypes import INT64
from framefuse.ir.graph import Node
from framefuse.ir.numbers import Expr, expr
from framefuse.ir.values import Value
from framefuse.lower.context import Lowering
from framefuse.lower.quantiles import one_of_each
from framefuse.lower.rules import Lowered, Shapes, Unsupported, register, rule

# Calls that give one tensor of their first operand's shape.
SAME = (
    "argsort", "masked_scatter", "scatter",
    "index_copy", "index_fill", "index_put", "bernoulli", "rand_like", "randn_like", "randint_like",
    "empty_like", "renorm", "i0", "bucketize", "msort", "put",
    "matrix_exp", "special.i0e", "special.i1", "special.i1e", "special.ndtr", "special.ndtri", "special.entr",
    "local_response_norm", "index_reduce",
)  # fmt: skip
# Calls that give two tensors of their first operand's shape.
PAIRS = ("sort",)


def _like_first(count: int) -> Callable[..., Shapes]:
    def lowered(lo: Lowering, input: Node, *args: Value, **kwargs: Value) -> Shapes:
        return Shapes((input.shape,) * count)

    return lowered


for _name in SAME:
    register((_name,), "known_shapes", _like_first(1))
for _name in PAIRS:
    register((_name,), "known_shapes", _like_first(2))


@rule("topk")
def topk(
    lo: Lowering,
    input: Node,
    k: Value,
    dim: Value = -1,
    largest: bool = True,
    sorted: bool = True,
    *,
    out: Value = None,
) -> Shapes:
    axis = lo.axis(dim, len(input.shape))
    lo.require("<=", expr(k), input.shape[axis], "topk")
    shape = (*input.shape[:axis], expr(k), *input.shape[axis + 1 :]) if input.shape else ()
    return Shapes((shape, shape))


def _reduced(lo: Lowering, input: Node, dim: Value, keepdim: Value, least: Value = 1) -> Shapes:
    """Two tensors of one of at least ``least`` elements along ``dim``."""
    if not input.shape:
        return Shapes(((), ()))
    axis = lo.axis(dim, len(input.shape))
    lo.require("<=", expr(least), input.shape[axis], "a choice along a dimension")
    shape = (*input.shape[:axis], *((ONE,) if keepdim else ()), *input.shape[axis + 1 :])
    return Shapes((shape, shape))


@rule("kthvalue")
def kthvalue(
    lo: Lowering, input: Node, k: Value, dim: Value = -1, keepdim: bool = False, *, out: Value = None
) -> Shapes:
    return _reduced(lo, input, dim, keepdim, k)


@rule("mode")
def mode(lo: Lowering, input: Node, dim: Value = -1, keepdim: bool = False, *, out: Value = None) -> Shapes:
    return _reduced(lo, input, dim, keepdim)


@rule("median", "nanmedian")
def median(lo: Lowering, input: Node, dim: Value = None, keepdim: bool = False, *, out: Value = None) -> Shapes:
    return Shapes(((),)) if dim is None else _reduced(lo, input, dim, keepdim)


@rule("multinomial")
def multinomial(lo: Lowering, input: Node, num_samples: Value, replacement: bool = False, **options: Value) -> Shapes:
    return Shapes(((*input.shape[:-1], expr(num_samples)),))


@rule("F.one_hot")
def one_hot(lo: Lowering, tensor: Node, num_classes: Value = -1) -> Lowered:
    """On a GPU the rows of a unit matrix, which nobody writes."""
    if num_classes == -1:
        raise TypeError("the number of classes depends on values")
    target, count = lo.targets(tensor.device), expr(num_classes)
    if target is None or not target.tiles or tensor.dtype is not INT64:
        return Shapes(((*tensor.shape, count),))
    line = lo.iota(0, 1, INT64, count, tensor.device)
    sides = [lo.expand(lo.along(line, axis, 2), (count, count)) for axis in (0, 1)]
    return lo.take(lo.cast(lo.pointwise("eq", *sides), INT64), tensor, 0, False)


@rule("_grouped_mm", "F.grouped_mm")
def grouped_mm(lo: Lowering, mat_a: Node, mat_b: Node, offs: Node | None = None, **options: Value) -> Shapes:
    if len(mat_b.shape) != 3:
        raise Unsupported("groups along the dimension that is summed")
    lo.same_size(mat_a.shape[-1], mat_b.shape[1], "a grouped product")
    groups = () if len(mat_a.shape) == 2 else (lo.same_size(mat_a.shape[0], mat_b.shape[0], "groups"),)
    return Shapes(((*groups, mat_a.shape[-2], mat_b.shape[2]),))


@rule("torch.rand", "torch.randn", "torch.empty")
def made(lo: Lowering, *size: Value, **options: Value) -> Shapes:
    return Shapes((lo.shape_of(*((options["size"],) if "size" in options else size)),))


@rule("new_empty")
def new_empty(lo: Lowering, input: Node, *size: Value, **options: Value) -> Shapes:
    return Shapes((lo.shape_of(*((options["size"],) if "size" in options else size)),))


@rule("new")
def new(lo: Lowering, input: Node, *size: Value) -> Shapes:
    if not size or not all(isinstance(part, (int, Expr)) for part in size):
        raise Unsupported("elements in place of sizes")
    return Shapes((lo.shape_of(*size),))


@rule("torch.get_rng_state")
def generator_state(lo: Lowering) -> Shapes:
    return Shapes(((expr(torch.get_rng_state().numel()),),))


@rule("searchsorted")
def searchsorted(lo: Lowering, sorted_sequence: Node, input: Value, **options: Value) -> Shapes:
    return Shapes((input.shape if isinstance(input, Node) else (),))


@rule("histc")
def histc(lo: Lowering, input: Node, bins: Value = 100, min: Value = 0, max: Value = 0, *, out: Value = None) -> Shapes:
    return Shapes(((expr(bins),),))


@rule("cdist")
def cdist(lo: Lowering, x1: Node, x2: Node, p: Value = 2.0, compute_mode: Value = None) -> Shapes:
    lo.same_size(x1.shape[-1], x2.shape[-1], "distances of points")
    return Shapes(((*lo.broadcast(x1.shape[:-2], x2.shape[:-2]), x1.shape[-2], x2.shape[-2]),))


@rule("pdist")
def pdist(lo: Lowering, input: Node, p: Value = 2.0) -> Shapes:
    count = input.shape[0]
    return Shapes(((count * (count - 1) // 2,),))


@rule("nanquantile")
def nanquantile(
    lo: Lowering, input: Node, q: Value, dim: Value = None, keepdim: bool = False, *, interpolation: str = "linear",
    out: Value = None,
) -> Shapes:  # fmt: skip
    return Shapes(((*(q.shape if isinstance(q, Node) else ()), *one_of_each(lo, input, dim, keepdim)),))


@rule("special.polygamma", "polygamma")
def polygamma(lo: Lowering, n: Value, input: Value, *, out: Value = None) -> Shapes:
    known = next(each for each in (input, n) if isinstance(each, Node))  # the method takes the tensor first
    return Shapes((known.shape,))


@rule("F.grid_sample")
def grid_sample(
    lo: Lowering, input: Node, grid: Node, mode: str = "bilinear", padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Shapes:  # fmt: skip
    batch = lo.same_size(input.shape[0], grid.shape[0], "a grid for each picture")
    lo.require("==", grid.shape[-1], expr(len(input.shape) - 2), "coordinates of a grid")
    for size in input.shape[1:]:
        lo.require("!=", size, expr(0), "a picture with elements")
    return Shapes(((batch, input.shape[1], *grid.shape[1:-1]),))


@rule("F.embedding_bag")
def embedding_bag(
    lo: Lowering, input: Node, weight: Node, offsets: Node | None = None, max_norm: Value = None,
    norm_type: Value = 2.0, scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False,
    per_sample_weights: Value = None, include_last_offset: bool = False, padding_idx: Value = None,
) -> Shapes:  # fmt: skip
    if max_norm is not None or (offsets is None) == (len(input.shape) == 1):
        raise Unsupported("a table that is written, or no bags")
    bags = input.shape[0] if offsets is None else offsets.shape[0] - (1 if include_last_offset else 0)
    return Shapes(((bags, weight.shape[1]),))


@rule("F.affine_grid")
def affine_grid(lo: Lowering, theta: Node, size: Value, align_corners: bool | None = None) -> Shapes:
    batch, _, *sides = lo.shape_of(*size)
    return Shapes(((lo.same_size(batch, theta.shape[0], "a grid for each picture"), *sides, expr(len(sides))),))


@rule("F.bilinear")
def bilinear(lo: Lowering, input1: Node, input2: Node, weight: Node, bias: Value = None) -> Shapes:
    pairs = zip(input1.shape[:-1], input2.shape[:-1], strict=True)
    return Shapes(((*(lo.same_size(one, two, "pairs of rows") for one, two in pairs), weight.shape[0]),))


@rule("vander", "linalg.vander")
def vander(lo: Lowering, x: Node, N: Value = None, increasing: bool = False, *, out: Value = None) -> Shapes:
    return Shapes(((*x.shape, x.shape[-1] if N is None else expr(N)),))


@rule("isin")
def isin(lo: Lowering, elements: Value, test_elements: Value, **options: Value) -> Shapes:
    return Shapes((elements.shape if isinstance(elements, Node) else (),))


@rule("nonzero_static")
def nonzero_static(lo: Lowering, input: Node, *, size: Value, fill_value: Value = -1, out: Value = None) -> Shapes:
    return Shapes(((expr(size), expr(len(input.shape))),))


@rule("histogram")
def histogram(lo: Lowering, input: Node, bins: Value, **options: Value) -> Shapes:
    if isinstance(bins, Node):
        return Shapes(((bins.shape[0] - 1,), bins.shape))
    return Shapes(((expr(bins),), (expr(bins) + 1,)))


@rule("stft")
def stft(
    lo: Lowering, input: Node, n_fft: Value, hop_length: Value = None, win_length: Value = None,
    window: Node | None = None, center: bool = True, pad_mode: str = "reflect", normalized: bool = False,
    onesided: bool | None = None, return_complex: bool | None = None, align_to_window: bool | None = None,
) -> Shapes:  # fmt: skip
    hop = hop_length if hop_length is not None else n_fft // 4 if isinstance(n_fft, int) else None
    if not isinstance(n_fft, int) or not isinstance(hop, int) or hop <= 0 or align_to_window is not None:
        raise Unsupported("windows of another length at each call")
    whole = input.dtype.kind == "complex" or (window is not None and window.dtype.kind == "complex")
    half = onesided if onesided is not None else not whole
    *batch, length = input.shape
    beside = n_fft // 2 if center else 0
    if center and pad_mode == "reflect":
        lo.require("<", expr(beside), length, "a reflected border")
    lo.require("<=", expr(n_fft), length + 2 * beside, "a window")
    frames = (length + 2 * beside - n_fft) // hop + 1
    parts = () if (whole if return_complex is None else return_complex) else (expr(2),)
    return Shapes(((*batch, expr(n_fft // 2 + 1 if half else n_fft), frames, *parts),))


@rule("torch.lstm")
def lstm(
    lo: Lowering, input: Node, hx: Value, params: Value, has_biases: bool, num_layers: int, dropout: float, train: bool,
    bidirectional: bool, batch_first: bool,
) -> Shapes:  # fmt: skip
    if not isinstance(hx, (tuple, list)):
        raise Unsupported("a packed sequence")
    hidden, cell = hx
    return Shapes((_every_step(input, hidden, bidirectional), hidden.shape, cell.shape))


@rule("torch.gru", "torch.rnn_tanh", "torch.rnn_relu")
def recurrent(
    lo: Lowering, input: Node, hx: Value, params: Value, has_biases: bool, num_layers: int, dropout: float, train: bool,
    bidirectional: bool, batch_first: bool,
) -> Shapes:  # fmt: skip
    if not isinstance(params, (tuple, list)):
        raise Unsupported("a packed sequence")
    return Shapes((_every_step(input, hx, bidirectional), hx.shape))


def _every_step(input: Node, hidden: Node, bidirectional: bool) -> tuple[Expr, ...]:
    """The last layer's hidden state at every step of a sequence."""
    return (*input.shape[:-1], hidden.shape[-1] * (2 if bidirectional else 1))
