"""Native code and Python name places, steps, templates and instructions alike, and its sources build on one another."""

import re
from graphlib import TopologicalSorter
from pathlib import Path
from typing import get_args

import pytest

from framefuse import _native
from framefuse.capture import recorder
from framefuse.ir import elements, plan

NATIVE = Path(_native.__file__).parent / "native"
SOURCES = {path.stem: path.read_text() for path in NATIVE.glob("*.c")}
HEADERS = {path.stem: path.read_text() for path in NATIVE.glob("*.h")}
# A call of a function reaches its Dispatch through a door, and a Dispatch that goes closes its door.
KNOWN_CYCLES = {("dispatch", "frame_hook")}
# The module is asked by CPython; the facts of torch fill the struct that torch_abi.h has.
WITHOUT_HEADER = ("module", "abi_facts")
WIDTH = 120


def test_names_are_those_of_the_python_that_defines_them():
    assert _native.tables() == {
        "places": plan.PLACES,
        "steps": tuple(kind.__name__ for kind in get_args(plan.Step)),
        "templates": plan.TEMPLATES,
        "arguments": plan.LAUNCH_ARGUMENTS,
        "numbers": plan.NUMBER_OPS,
        "guards": tuple(name for name in plan.GUARD_OPS if name not in ("object", "watch")),
    }


def test_the_place_of_an_element_is_one_number():
    text = re.search(r"enum \{ ELEMENT = (-?\d+) \}", HEADERS["call"])
    assert text is not None and int(text[1]) == elements.ELEMENT == recorder.ELEMENT


def included(text: str) -> list[str]:
    return re.findall(r'#include "(\w+)\.h"', text)


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_a_source_has_its_header(name):
    assert name in (*WITHOUT_HEADER, included(SOURCES[name])[0])


def test_sources_build_on_one_another():
    """What a source includes directly, it calls."""
    graph = {name: {part for part in included(text) if part in SOURCES} - {name} for name, text in SOURCES.items()}
    for one, other in KNOWN_CYCLES:
        assert other in graph[one] and one in graph[other], "no cycle any more: take it off the list"
        graph[one].discard(other)
    list(TopologicalSorter(graph).static_order())  # raises CycleError


def test_no_line_is_wider_than_the_page():
    files = sorted([*NATIVE.glob("*.c"), *NATIVE.glob("*.h")])
    widest = {path.name: max(map(len, path.read_text().split("\n"))) for path in files}
    wide = {name: width for name, width in widest.items() if width > WIDTH}
    assert not wide, wide
