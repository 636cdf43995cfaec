"""Every instruction of the running CPython is known to the interpreter, and its tables agree with CPython's own."""

from __future__ import annotations

import _collections_abc
import argparse
import contextlib
import dataclasses
import dis
import functools
import inspect
import opcode
import sys
import typing
import unittest.mock
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from framefuse.capture.program.decoded import HANDLERS, Code
from framefuse.capture.program.versions import CURRENT, TABLES, listing, py312, py313
from framefuse.driver.wiring import load_stages

load_stages()  # which fills HANDLERS
assert CURRENT is not None
TABLE: Any = CURRENT
REAL = sorted(
    name for name, number in opcode.opmap.items()
    if number < 256 and not name.startswith("INSTRUMENTED_") and name not in listing.INTERNAL
)  # fmt: skip
ARGUMENTS = {"CALL_INTRINSIC_1": range(1, len(py312.INTRINSICS)), "CALL_INTRINSIC_2": range(1, 6)}
FOLDED = py313.FOLDED if sys.version_info >= (3, 13) else frozenset()


def test_the_running_version_has_a_table() -> None:
    major, minor = sys.version_info[:2]
    assert TABLE.__name__.endswith(f".py{major}{minor}") and TABLES[major, minor] == f"py{major}{minor}"


@pytest.mark.parametrize("name", REAL)
def test_every_opcode_has_a_handler_or_a_reason(name: str) -> None:
    if name in FOLDED:
        return
    for argument in ARGUMENTS.get(name, (0, 1, 2, 3, 16, 17)):
        for plain, _ in TABLE.expand(name, argument):
            known = plain in HANDLERS
            assert known is not (plain in listing.COROUTINE | listing.MODULE), plain


@pytest.mark.skipif(sys.version_info < (3, 12), reason="3.11 has no intrinsics")
def test_the_intrinsics_stand_at_their_numbers() -> None:
    ours = py312.INTRINSICS, py312.INTRINSICS_OF_TWO
    theirs = getattr(opcode, "_intrinsic_1_descs"), getattr(opcode, "_intrinsic_2_descs")  # noqa: B009
    for names, descriptions in zip(ours, theirs, strict=True):
        known = [text.removeprefix("INTRINSIC_") for text in descriptions]
        assert list(names[1 : len(known)]) == known[1:]


def codes(root: CodeType) -> list[CodeType]:
    return [root, *[inner for part in root.co_consts if isinstance(part, CodeType) for inner in codes(part)]]


def library() -> list[CodeType]:
    """The code of some modules of the standard library: much syntax, and all that compilers make of it."""
    found = []
    for module in (_collections_abc, argparse, contextlib, dataclasses, dis, functools, inspect, typing, unittest.mock):
        path = str(module.__file__)
        found += codes(compile(Path(path).read_text(), path, "exec"))
    return found


def test_jumps_and_lines_are_those_that_dis_shows() -> None:
    jumps = 0
    for code in library():
        found, index = TABLE.instructions(code)
        shown = {row.offset: row for row in dis.get_instructions(code)}
        for row in found:
            if row.target is not None:
                jumps += 1
                assert shown[row.offset].argval == row.target
                assert row.target in index
        assert all(row.offset in shown and row.offset in index for row in found)
    assert jumps > 3_000


def test_functions_of_the_library_are_known_whole() -> None:
    """What is not interpreted is asynchronous, or the body of a class or module."""
    functions = 0
    for code in library():
        missing = Code(code).missing
        if code.co_flags & 1:  # CO_OPTIMIZED: a function
            functions += 1
            assert missing is None or missing == "coroutine" or missing in listing.COROUTINE, (code, missing)
    assert functions > 800
