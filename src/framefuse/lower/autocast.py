"""Turns the operands of a call recorded under autocast into those that torch's lists make of them."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from framefuse.errors import Stop
from framefuse.ir.dtypes import BY_NAME, BY_TORCH, FLOAT32, DType
from framefuse.ir.graph import Node
from framefuse.ir.stops import reason
from framefuse.ir.target import type_of
from framefuse.ir.trace import Call, TensorMeta, refs
from framefuse.ir.values import Value
from framefuse.lower.context import Lowering


@dataclass(frozen=True, slots=True)
class Lists:
    """What torch does to the float operands of a function under autocast for one type of device
    (aten/src/ATen/autocast_mode.cpp), by the operator's name there: to the lower dtype, to float32, to float32 where
    the call names no dtype, to the widest of its operands. ``key`` is that of the dispatcher.

    What stands on no list runs under autocast, as does a call that gave another dtype when it was recorded than its
    list says. ``alone`` are functions that autocast leaves alone, as it does all that they call; ``same`` are no more
    than the operator that they are mapped to.
    """

    key: str
    lower: frozenset[str]
    single: frozenset[str]
    unless_given: frozenset[str]
    promote: frozenset[str]
    alone: frozenset[str]
    same: Mapping[str, str]


LOWER = frozenset(
    (
        "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "addmm",
        "addbmm", "baddbmm", "bmm", "mm", "matmul", "linear", "linalg_vecdot", "prelu", "scaled_dot_product_attention",
    )
)  # fmt: skip
LOSSES = frozenset(
    (
        "binary_cross_entropy_with_logits", "cosine_embedding_loss", "hinge_embedding_loss", "huber_loss", "kl_div",
        "l1_loss", "margin_ranking_loss", "mse_loss", "multi_margin_loss", "multilabel_margin_loss", "nll_loss",
        "poisson_nll_loss", "smooth_l1_loss", "soft_margin_loss", "triplet_margin_loss",
    )
)  # fmt: skip
ALONE = frozenset(
    (
        "batch_norm", "native_batch_norm", "instance_norm", "max_pool1d", "max_pool2d",
        "avg_pool1d", "avg_pool2d", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_max_pool1d",
        "adaptive_max_pool2d", "max_pool1d_with_indices", "max_pool2d_with_indices", "dropout", "dropout1d",
        "dropout2d", "dropout3d", "alpha_dropout", "feature_dropout", "feature_alpha_dropout",
        "sort", "argsort", "topk", "multinomial", "bernoulli", "bincount", "nonzero", "searchsorted",
        "embedding_bag", "rand", "randn", "rand_like", "randn_like", "randint", "randperm", "normal",
        "unfold", "fold", "scatter", "index_add", "gather", "one_hot", "clone", "permute",
    )
)  # fmt: skip
# Functions of torch's that call others on the lists: these run as they are, under autocast.
COMPOSED = frozenset(("gru_cell", "lstm_cell", "rnn_tanh_cell", "rnn_relu_cell"))
SAME = {
    "__matmul__": "matmul", "__rmatmul__": "matmul", "linalg_matmul": "matmul", "nll_loss_nd": "nll_loss",
    "einsum": "bmm", "inner": "matmul", "chain_matmul": "mm", "linalg_multi_dot": "mm",
}  # fmt: skip
CPU = Lists(
    "AutocastCPU",
    LOWER,
    LOSSES
    | {
        "adaptive_avg_pool3d", "adaptive_max_pool3d", "avg_pool3d", "binary_cross_entropy", "cdist",
        "cross_entropy_loss", "max_pool3d", "prod", "trace",
    },
    frozenset(),
    frozenset(("cat", "stack", "index_copy")),
    ALONE
    | {
        "group_norm", "layer_norm", "cumsum", "cumprod", "logsumexp", "interpolate", "dot", "mv", "addmv",
        "scatter_add", "index_put",
    },
    SAME
    | {"cross_entropy": "cross_entropy_loss", "tensordot": "mm", "concat": "cat", "concatenate": "cat"},
)  # fmt: skip
CUDA = Lists(
    "AutocastCUDA",
    LOWER | {"addmv", "addr", "mv"},
    LOSSES
    | {
        "acos", "asin", "cdist", "cosh", "cosine_similarity", "dist", "erfinv", "exp", "expm1", "group_norm",
        "layer_norm", "log", "log10", "log1p", "log2", "logsumexp", "pdist", "pow", "reciprocal", "renorm",
        "rms_norm", "rsqrt", "sinh", "softplus", "tan", "upsample_nearest2d",
    },
    frozenset(("cumprod", "cumsum", "linalg_vector_norm", "log_softmax", "prod", "softmax", "sum")),
    frozenset(("addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "index_put", "scatter_add", "tensordot",
               "vdot")),
    ALONE,
    SAME
    | {
        "__pow__": "pow", "__rpow__": "pow", "square": "pow", "arccos": "acos", "arcsin": "asin", "arctan2": "atan2",
        "cross_entropy": "nll_loss", "interpolate": "upsample_nearest2d", "upsample": "upsample_nearest2d",
    },
)  # fmt: skip
LISTS = {"cpu": CPU, "cuda": CUDA}
# Overloads where the plain name is none.
OVERLOADS = {
    "conv_transpose2d": "conv_transpose2d.input", "conv_transpose3d": "conv_transpose3d.input",
    "log_softmax": "log_softmax.int", "softmax": "softmax.int", "pow": "pow.Tensor_Tensor",
}  # fmt: skip


def is_composed(call: Call) -> bool:
    """Whether the call runs as it is under autocast: it calls others on the lists, and some that are not."""
    if not call.autocast:
        return False
    return call.name in COMPOSED or (call.name == "einsum" and len(list(refs(call.args))) > 2)


@functools.cache
def policy(name: str, device: str = "cpu") -> str | None:
    """``lower``, ``float32``, ``unless given``, ``promote`` or ``alone`` for a function on the lists of a device type,
    None for another one.
    """
    lists = LISTS[device]
    if name in lists.alone:
        return "alone"
    operator = lists.same.get(name, name)
    kinds = {
        "lower": lists.lower, "float32": lists.single, "unless given": lists.unless_given, "promote": lists.promote
    }  # fmt: skip
    for kind, names in kinds.items():
        if operator in names:  # a version of torch may not have it there
            full = f"aten::{OVERLOADS.get(operator, operator)}"
            return kind if torch._C._dispatch_has_kernel_for_dispatch_key(full, lists.key) else None
    return None


class Autocast:
    """The casts of the calls of one trace, whose values are ``contents`` and ``metas`` by number."""

    def __init__(self, lo: Lowering, contents: Mapping[int, Node], metas: Sequence[TensorMeta]) -> None:
        self.lo = lo
        self.contents = contents
        self.metas = metas
        self.kept: dict[tuple[int, DType], Node] = {}  # what a value that requires grad held when it was cast first

    def eligible(self, call: Call, device: str) -> Iterator[tuple[int, Node]]:
        """The operands of a call that autocast for a type of device may cast."""
        for value in refs((call.args, call.kwargs)):
            node = self.contents[value]
            if type_of(node.device) == device and _is_eligible(node.dtype):
                yield value, node

    def casts(self, call: Call, results: Sequence[TensorMeta]) -> dict[int, Node] | None:
        """By value the cast operands with which the call, without autocast, is what was recorded; None where the lists
        do not tell. A value that keeps its dtype is not named. Raises :class:`Stop` for a weight that was written since
        it was cast, of which torch may use the old cast.
        """
        places = {type_of(self.contents[value].device) for value in refs((call.args, call.kwargs))}
        rows = [row for row in call.autocast if row[0] in places]
        if len(rows) != 1 or call.kwargs.get("out") is not None:
            return None if rows else {}
        device, dtype = rows[0]
        kind = policy(call.name, device)
        if kind is None or (kind == "unless given" and any(isinstance(value, torch.dtype) for value in _values(call))):
            return None
        eligible = dict(self.eligible(call, device))
        if kind == "alone" or not eligible:
            return {}
        low = target = BY_NAME[dtype]
        wide = kind in ("float32", "unless given")
        if wide or (kind == "promote" and any(node.dtype is FLOAT32 for node in eligible.values())):
            target = FLOAT32
        if any(_is_eligible(BY_TORCH[meta.dtype]) and meta.dtype is not target.torch for meta in results):
            return None
        cast = {value: node for value, node in eligible.items() if node.dtype is not target}
        for value, node in cast.items() if target is low else ():
            if self.metas[value].requires_grad and self.kept.setdefault((value, target), node) is not node:
                fact = "A weight is written between two uses under autocast, which keeps its casts."
                raise Stop(reason("autocast-cache", fact, call.line))
        return {value: self.lo.cast(node, target) for value, node in cast.items()}


def _values(call: Call) -> tuple[Value, ...]:
    return (*call.args, *call.kwargs.values())


def _is_eligible(dtype: DType) -> bool:
    return dtype.is_float and dtype.size < 8
