"""Finds convolutions that a GPU's library multiplies with all digits as they lie in eager, but not channels-last."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from framefuse.fuse.addressing.layout import estimate
from framefuse.fuse.layouts.movable_calls import (
    BACKWARD,
    NAMES,
    argument,
    groups_of,
    is_transposed,
    is_turned,
    may_round,
    operands,
    sizes_of,
)
from framefuse.fuse.setting import Setting
from framefuse.ir import costs
from framefuse.ir.graph import Graph, Node
from framefuse.ir.numbers import Expr, Symbol
from framefuse.ir.values import Value
from framefuse.ir.whole_digits import ITSELF, OF_PICTURE, OF_WEIGHT, SizedConvolution


def digits_kept(graph: Graph, setting: Setting) -> dict[Node, bool]:
    """By call whether it must stay contiguous to have the digits that it has in eager, where the library could tell."""
    if setting.asks is None:
        return {}
    asked: dict[SizedConvolution, list[Node]] = {}
    for node in graph.nodes:
        if node.op == "library" and node.attr("name") in NAMES and node.attr("name") not in costs.WINDOWS:
            for question in _questions(node, setting, graph.hints):
                asked.setdefault(question, []).append(node)
    if not asked:
        return {}
    contiguous = dict(zip(asked, setting.asks(tuple(asked)), strict=True))
    exact = [question for question, all_digits in contiguous.items() if all_digits]
    turned = dict(zip(exact, setting.asks(tuple(question.turned() for question in exact)), strict=True))
    found: dict[Node, bool] = {}
    for question, calls in asked.items():
        if contiguous[question] is not None:
            found.update({call: found.get(call, False) or turned.get(question) is False for call in calls})
    return found


def _questions(call: Node, setting: Setting, hints: Mapping[Symbol, int]) -> Iterator[SizedConvolution]:
    """What to ask about a call that eager makes contiguous. Convolutions in groups that a backward pass is about are
    not asked for: contiguous they take 2.6 times as long in the geometric mean, and up to 20 times.
    """
    target, (picture, weight, _) = setting.targets(call.device), operands(call)
    if target is None or target.device == "cpu" or picture is None or weight is None:
        return
    rank, transposed, backward = len(weight.shape) - 2, is_transposed(call), call.attr("name") == BACKWARD
    groups, sizes = groups_of(call), tuple(sizes_of(weight, hints))
    if rank not in (2, 3) or len(picture.shape) != rank + 2 or not may_round(picture) or not isinstance(groups, int):
        return
    if groups != 1 and (sizes[1] == 1 or backward or setting.trains):
        return
    if any(is_turned(node, order, hints) for node, order in zip(call.inputs, call.attr("orders"), strict=True)):
        return
    first = 4 if backward else 3
    stride = _numbers(argument(call, first, "stride", 1), rank, hints)
    padding = argument(call, first + 1, "padding", 0)
    holes = _numbers(argument(call, first + 2 if backward else 7 if transposed else 5, "dilation", 1), rank, hints)
    extra = _numbers(argument(call, 8 if backward else 5, "output_padding", 0) if transposed else 0, rank, hints)
    if stride is None or holes is None or extra is None:
        return
    if padding == "same":
        around = [hole * (size - 1) for hole, size in zip(holes, sizes[2:], strict=True)]
        padding = None if any(each % 2 for each in around) else tuple(each // 2 for each in around)
    borders = _numbers(0 if padding == "valid" else padding, rank, hints)
    if borders is None:
        return
    seen = tuple(sizes_of(picture, hints))
    mask = argument(call, 10, "output_mask", (True, True)) if backward else ()
    parts = [part for part, asks in zip((OF_PICTURE, OF_WEIGHT), mask, strict=False) if asks] if backward else [ITSELF]
    for part in parts:
        yield SizedConvolution(call.device, seen, sizes, stride, borders, holes, transposed, extra, groups, part)


def _numbers(given: Value, rank: int, hints: Mapping[Symbol, int]) -> tuple[int, ...] | None:
    """One number for each dimension of the points."""
    each = tuple(given) if isinstance(given, (tuple, list)) else (given,)
    known = [estimate(number, hints) if isinstance(number, Expr) else number for number in each]
    if len(known) not in (1, rank) or not all(isinstance(number, int) for number in known):
        return None
    return tuple(known) if len(known) == rank else (*known,) * rank
