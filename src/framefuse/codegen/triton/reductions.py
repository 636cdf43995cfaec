"""Writes running reductions: the tiles that a loop carries, how terms join them, and how they fold into one result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from framefuse.codegen.triton.builder import TYPES
from framefuse.codegen.triton.values import literal
from framefuse.ir.dtypes import FLOAT32, DType
from framefuse.ir.loops import Accumulator

SCANS = {"sum": "add", "prod": "multiply", "max": "largest", "min": "smallest"}
FOLDS = {"prod": "multiply", "max": "largest", "min": "smallest", "argmax": "larger_first", "argmin": "smaller_first",
         "logaddexp": "log_add_exp"}  # fmt: skip


@dataclass(slots=True)
class Running:
    """An accumulator at this point of the nest: the names of its ``parts`` (two for argmax and argmin: the extreme and
    its position), which differ along ``axes``; ``own`` are those that stay when it is read.
    """

    accumulator: Accumulator
    parts: list[str]
    own: frozenset[int]
    axes: frozenset[int]
    turns: str = ""  # how many turns of the loop that feeds it once each came before the one at hand
    term: str | None = None  # what was accumulated, if that was one tile
    result: str = ""  # once it was folded
    extreme: str = ""  # and of argmax and argmin what lies there

    @property
    def op(self) -> str:
        """The operation; of bools sums and extremes are the logical ones."""
        op = self.accumulator.op
        if self.compared.kind != "bool" or op.startswith("arg"):
            return op
        return {"sum": "any", "max": "any", "prod": "all", "min": "all"}.get(op, op)

    @property
    def compared(self) -> DType:
        """The dtype in which terms are joined: that of the terms, float32 for the 16-bit floats."""
        accumulator = self.accumulator
        dtype = (accumulator.of or accumulator.dtype) if accumulator.op.startswith("arg") else accumulator.dtype
        return FLOAT32 if dtype.is_float and dtype.size == 2 else dtype


def identity(op: str, dtype: DType) -> str:
    """The literal that changes nothing."""
    if op in ("any", "all"):
        return str(op == "all")
    if op in ("sum", "prod"):
        return literal(float(op == "prod") if dtype.is_float else int(op == "prod"))
    lowest = op in ("max", "argmax", "logaddexp")
    if dtype.is_float:
        return literal(-math.inf if lowest else math.inf)
    if dtype.kind == "bool":
        return str(not lowest)
    limits = torch.iinfo(dtype.torch)
    return str(limits.min if lowest else limits.max)


def nothing(dtype: DType) -> str:
    """The zero that changes no zero."""
    return literal(-0.0 if dtype.is_float else 0)


def scanned(op: str, carry: str, text: str, axis: int) -> str:
    """Of each element along a dimension: those up to it made one, behind what was ``carry``."""
    if op == "logaddexp":
        return f"device.log_sums({text}, {carry}, {axis})"
    return joined(op, [carry], [f"tl.associative_scan({text}, {axis}, device.{SCANS[op]})"])


def joined(op: str, parts: Sequence[str], more: Sequence[str]) -> str:
    """Two reductions made one."""
    if op in ("any", "all"):
        return f"{parts[0]} {'|' if op == 'any' else '&'} {more[0]}"
    if op in ("sum", "prod"):
        return f"{parts[0]} {'+' if op == 'sum' else '*'} {more[0]}"
    return f"device.{FOLDS[op]}({', '.join(part for pair in zip(parts, more, strict=True) for part in pair)})"


def joined_positions(op: str, parts: Sequence[str], more: Sequence[str]) -> str:
    """The same for an extreme and its position."""
    return f"device.{FOLDS[op]}({', '.join([*parts, *more])})"


def later(op: str, parts: Sequence[str], value: str, none: int) -> str:
    """Whether a value takes the place of an extreme whose positions all come before its own."""
    return f"device.{FOLDS[op].replace('first', 'later')}({', '.join([*parts, value])}, {none})"


def folded(op: str, dtype: DType, part: str, axis: int) -> str:
    """The elements along a dimension made one; that dimension is gone."""
    held = TYPES[dtype.name]
    if op in ("any", "all"):
        return f"tl.{'max' if op == 'any' else 'min'}({part}.to(tl.int32), {axis}) != 0"
    if op == "sum":
        text = f"tl.sum({part}, {axis})"
        return text if dtype.size >= 4 else f"{text}.to({held})"
    return f"tl.reduce({part}, {axis}, device.{FOLDS[op]})"


def extreme(op: str, part: str, axis: int) -> str:
    """The extreme along a dimension; that dimension is gone."""
    return f"tl.reduce({part}, {axis}, device.{FOLDS[op.removeprefix('arg')]})"


def first_of(parts: Sequence[str], best: str, axis: int, none: int) -> str:
    """The first position along a dimension at which the extreme lies, ``none`` where there is none: two reductions of
    one value each, which are a few instructions an element, where one of both is dozens.
    """
    return f"tl.min(tl.where(device.same({parts[0]}, {best}), {parts[1]}, {none}), {axis})"
