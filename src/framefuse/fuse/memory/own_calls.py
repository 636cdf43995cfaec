"""Turns a call that puts values at positions of a copy of an input into the call on the input's own memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from framefuse.fuse.addressing.ranges import ZERO
from framefuse.fuse.memory.draft import Value
from framefuse.fuse.memory.own_operands import is_given_again
from framefuse.ir.graph import Arg
from framefuse.ir.schedule import Item, Positions, RunCall
from framefuse.ir.torch_calls import TABLE as CALLS

ALONG = ("index_copy_", "index_fill_", "index_add_", "scatter_", "scatter_add_")  # tensor, dimension, positions
PUTS = ("__setitem__", "index_put_")  # tensor, positions in its first dimension
KINDS = ("int64", "int32")


def own_call(items: Sequence[Item], values: Sequence[Value], write: tuple[int, int, int], last: bool) -> RunCall | None:
    """The call behind a write to an input, made on the input; None where it may not be.

    It may where it leaves the same when it is made again: any item behind it may fail, and so may the call when it has
    written some elements, since eager then runs the whole program again. So nothing may read the old contents, not even
    before the call. Where nothing behind it fails (it is the ``last`` that may), the positions are looked at first.

    A call that is not the last is given the buffer that will be behind all others, a view which counts no write.
    """
    target, value, bumps = write
    own, new = values[target], values[value]
    item = items[new.first] if new.first >= 0 else None  # none: an input that keeps its contents
    if not isinstance(item, RunCall) or not _writes_first(item, target) or own.base >= 0 or own.last > new.first:
        return None
    read = new.last > new.first  # by kernels that know how the new contents lie
    if (own.sizes, own.dtype) != (new.sizes, new.dtype) or (read and own.strides != new.strides):
        return None
    calls = [each for each in items if isinstance(each, RunCall) and not each.inside]
    if sum(_root(values, number) == target for each in calls for number in each.operands) > 1:
        return None  # another may have kept the input
    once = own.first < new.first or not _may_repeat(item)
    checks = _positions(item) if once and last else None
    if (once and checks is None) or (last and bumps != 1):
        return None
    node, operands = item.node, item.operands
    attrs = tuple((name, part.target if name == "target" else part) for name, part in node.attrs)
    made = replace(item, node=replace(node, attrs=attrs), outs=(), normal=(), over=(value,), checks=checks)
    if last:
        return made
    place = node.attr("args")[0].index
    return replace(made, operands=(*operands[:place], len(values), *operands[place + 1 :]), inside=True)


def _writes_first(item: RunCall, target: int) -> bool:
    """Whether a call gives nothing but its first operand, a copy of ``target`` in the CPU's memory, as it wrote it.
    What a captured graph of a GPU writes is known by its kernels.
    """
    node = item.node
    if node.op != "library" or node.device != "cpu" or item.binds:
        return False
    if getattr(node.attr("target"), "places", ()) != (0,) or tuple(path for path, _ in item.outs) != ((1,),):
        return False
    first = node.attr("args")[0]
    return isinstance(first, Arg) and item.operands[first.index] == target and not is_given_again(item, target)


def _may_repeat(item: RunCall) -> bool:
    """Whether a call leaves the same when it is made again, whatever was there before."""
    node = item.node
    given = (*node.attr("args"), *node.attr("kwargs").values())
    adds = any(value is True or isinstance(value, str) for value in given)  # sums up, or reduces otherwise
    return CALLS[node.attr("name")].repeats and not adds


def _positions(item: RunCall) -> Positions | None:
    """Where the positions are at which a call writes; None where they are not found."""
    node = item.node
    name, args = node.attr("name"), node.attr("args")
    held, dimension = None, 0
    if name in ALONG and len(args) > 2 and type(args[1]) is int:
        held, dimension = args[2], args[1]
    elif name in PUTS and len(args) > 2:
        held = args[1][0] if isinstance(args[1], tuple | list) and len(args[1]) == 1 else args[1]
    if not isinstance(held, Arg) or node.inputs[held.index].dtype.name not in KINDS:
        return None
    return Positions(held.index, dimension, name in PUTS) if node.inputs[0].shape else None


def seen(own: Value, target: int) -> Value:
    """An input's memory as a view: what is written there counts no write to the input."""
    return Value("view", own.dtype, own.sizes, own.strides, own.device, -1, target, ZERO)


def _root(values: Sequence[Value], number: int) -> int:
    while values[number].base >= 0:
        number = values[number].base
    return number
