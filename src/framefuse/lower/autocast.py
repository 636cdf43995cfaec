"""Turns the operands of a call recorded under the CPU's autocast into those that torch's lists make of them."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence

import torch

from framefuse.errors import Reason, Stop
from framefuse.ir.dtypes import BY_NAME, BY_TORCH, FLOAT32, DType
from framefuse.ir.graph import Node
from framefuse.ir.trace import Call, TensorMeta
from framefuse.lower.context import Lowering
from framefuse.lower.values import refs

# What torch does to the float operands of a function under the CPU's autocast (aten/src/ATen/autocast_mode.cpp), by
# the operator's name there. What stands on no list here runs under autocast, as does a call that gave another dtype
# when it was recorded than its list says.
LOWER = frozenset(
    (
        "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "addmm",
        "addbmm", "baddbmm", "bmm", "mm", "matmul", "linear", "linalg_vecdot", "prelu", "scaled_dot_product_attention",
    )
)  # fmt: skip
SINGLE = frozenset(
    (
        "adaptive_avg_pool3d", "adaptive_max_pool3d", "avg_pool3d", "binary_cross_entropy", "cdist",
        "binary_cross_entropy_with_logits", "cosine_embedding_loss", "cross_entropy_loss", "hinge_embedding_loss",
        "huber_loss", "kl_div", "l1_loss", "margin_ranking_loss", "max_pool3d", "mse_loss", "multi_margin_loss",
        "multilabel_margin_loss", "nll_loss", "poisson_nll_loss", "prod", "smooth_l1_loss", "soft_margin_loss", "trace",
        "triplet_margin_loss",
    )
)  # fmt: skip
PROMOTE = frozenset(("cat", "stack", "index_copy"))
# Functions that autocast leaves alone, as it does all that they call.
ALONE = frozenset(
    (
        "batch_norm", "native_batch_norm", "instance_norm", "group_norm", "layer_norm", "max_pool1d", "max_pool2d",
        "avg_pool1d", "avg_pool2d", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_max_pool1d",
        "adaptive_max_pool2d", "max_pool1d_with_indices", "max_pool2d_with_indices", "dropout", "dropout1d",
        "dropout2d", "dropout3d", "alpha_dropout", "feature_dropout", "feature_alpha_dropout", "cumsum", "cumprod",
        "sort", "argsort", "topk", "multinomial", "bernoulli", "bincount", "nonzero", "searchsorted", "logsumexp",
        "embedding_bag", "interpolate", "rand", "randn", "rand_like", "randn_like", "randint", "randperm", "normal",
        "unfold", "fold", "dot", "mv", "addmv", "scatter", "scatter_add", "index_add", "index_put", "gather",
        "one_hot", "clone", "permute",
    )
)  # fmt: skip
# Overloads where the plain name is none, and functions that are no more than such an operator.
OVERLOADS = {"conv_transpose2d": "conv_transpose2d.input", "conv_transpose3d": "conv_transpose3d.input"}
SAME = {
    "__matmul__": "matmul", "__rmatmul__": "matmul", "linalg_matmul": "matmul", "cross_entropy": "cross_entropy_loss",
    "nll_loss_nd": "nll_loss", "einsum": "bmm", "tensordot": "mm", "inner": "matmul", "chain_matmul": "mm",
    "linalg_multi_dot": "mm", "concat": "cat", "concatenate": "cat",
}  # fmt: skip


@functools.cache
def policy(name: str) -> str | None:
    """``lower``, ``float32``, ``promote`` or ``alone`` for a function on the lists, None for another one."""
    if name in ALONE:
        return "alone"
    operator = SAME.get(name, name)
    for kind, names in (("lower", LOWER), ("float32", SINGLE), ("promote", PROMOTE)):
        if operator in names:  # a version of torch may not have it there
            full = f"aten::{OVERLOADS.get(operator, operator)}"
            return kind if torch._C._dispatch_has_kernel_for_dispatch_key(full, "AutocastCPU") else None
    return None


class Autocast:
    """The casts of the calls of one trace, whose values are ``contents`` and ``metas`` by number."""

    def __init__(self, lo: Lowering, contents: Mapping[int, Node], metas: Sequence[TensorMeta]) -> None:
        self.lo = lo
        self.contents = contents
        self.metas = metas
        self.kept: dict[tuple[int, DType], Node] = {}  # what a value that requires grad held when it was cast first

    def casts(self, call: Call, results: Sequence[TensorMeta]) -> dict[int, Node] | None:
        """By value the cast operands with which the call, without autocast, is what was recorded; None where the lists
        do not tell. A value that keeps its dtype is not named. Raises :class:`Stop` for a weight that was written since
        it was cast, of which torch may use the old cast.
        """
        if call.autocast is None:
            return {}
        kind = policy(call.name)
        if kind is None or call.kwargs.get("out") is not None:
            return None
        eligible = dict(_eligible(call, self.contents))
        if kind == "alone" or not eligible:
            return {}
        low = target = BY_NAME[call.autocast]
        if kind == "float32" or (kind == "promote" and any(node.dtype is FLOAT32 for node in eligible.values())):
            target = FLOAT32
        if any(_is_eligible(BY_TORCH[meta.dtype]) and meta.dtype is not target.torch for meta in results):
            return None
        cast = {value: node for value, node in eligible.items() if node.dtype is not target}
        for value, node in cast.items() if target is low else ():
            if self.metas[value].requires_grad and self.kept.setdefault((value, target), node) is not node:
                fact = "A weight is written between two uses under autocast, which keeps its casts."
                raise Stop(Reason("autocast", fact, "Leave autocast before the write.", call.line))
        return {value: self.lo.cast(node, target) for value, node in cast.items()}


def _eligible(call: Call, contents: Mapping[int, Node]) -> Iterator[tuple[int, Node]]:
    for value in refs((call.args, call.kwargs)):
        node = contents[value]
        if node.device == "cpu" and _is_eligible(node.dtype):
            yield value, node


def _is_eligible(dtype: DType) -> bool:
    return dtype.is_float and dtype.size < 8
