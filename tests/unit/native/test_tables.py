"""Native code and Python name places, steps, templates and instructions alike, and its sources build on one another."""

import re
from graphlib import TopologicalSorter
from pathlib import Path
from typing import get_args

import pytest

from framefuse import _native
from framefuse.guards import instructions
from framefuse.ir import elements, plan

NATIVE = Path(_native.__file__).parent / "native"
SOURCES = {path.stem: path.read_text() for path in NATIVE.glob("*.c")}
HEADERS = {path.stem: path.read_text() for path in NATIVE.glob("*.h")}
# The rooms in which the sources stand, lowest first: one includes headers of its own room and of lower ones.
ROOMS = {
    "python": "base bind distinct exported fields frame_hook frames numbers objects processor profile records switch "
    "tags weigh",
    "torch": "abi_facts convolutions cuda marks positions tensor_check threads torch_abi",
    "guards": "guard_compile guard_program guard_set guard_state guards watch",
    "plans": "arena autograd call frame launch matmul memory plan plan_compile plan_type replay rewind run steps "
    "template",
    "calls": "dispatch",
    "module": "module tables",
}
ROOM_OF = {name: room for room, names in ROOMS.items() for name in names.split()}
APART = {("guards", "plans"), ("plans", "guards")}  # what a guard set leaves, a plan takes: by arrays alone
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
        "relations": plan.RELATIONS,
        "unset": plan.UNSET_KINDS,
    }


def test_the_checks_in_python_know_the_same_names():
    assert tuple(instructions.RELATIONS) == tuple(instructions.REAL_RELATIONS) == plan.RELATIONS
    assert tuple(instructions.UNSET) == plan.UNSET_KINDS


def test_the_place_of_an_element_is_one_number():
    text = re.search(r"enum \{ ELEMENT = (-?\d+) \}", HEADERS["call"])
    assert text is not None and int(text[1]) == elements.ELEMENT


def included(text: str) -> list[str]:
    return re.findall(r'#include "(\w+)\.h"', text)


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_a_source_has_its_header(name):
    assert name in (*WITHOUT_HEADER, included(SOURCES[name])[0])


def test_sources_build_on_one_another():
    """What a source includes directly, it calls."""
    graph = {name: {part for part in included(text) if part in SOURCES} - {name} for name, text in SOURCES.items()}
    list(TopologicalSorter(graph).static_order())  # raises CycleError


def wrong_arrows(name: str, text: str) -> list[str]:
    """The headers that this file must not include."""
    rooms = list(ROOMS)
    own = ROOM_OF[name]
    return [
        f"{name} ({own}) includes {part} ({ROOM_OF[part]})"
        for part in included(text)
        if rooms.index(ROOM_OF[part]) > rooms.index(own) or (own, ROOM_OF[part]) in APART
    ]


def test_every_file_stands_in_one_room():
    names = [name for room in ROOMS.values() for name in room.split()]
    assert sorted(names) == sorted({*SOURCES, *HEADERS})


@pytest.mark.parametrize("name", sorted({*SOURCES, *HEADERS}))
def test_a_room_knows_only_those_below_it(name):
    assert wrong_arrows(name, SOURCES.get(name, "") + HEADERS.get(name, "")) == []


@pytest.mark.parametrize(("name", "other"), [("frame_hook", "dispatch"), ("guards", "plan"), ("run", "guard_set")])
def test_a_wrong_arrow_between_rooms_is_seen(name, other):
    assert wrong_arrows(name, f'#include "base.h"\n#include "{other}.h"\n')


def test_no_line_is_wider_than_the_page():
    files = sorted([*NATIVE.glob("*.c"), *NATIVE.glob("*.h")])
    widest = {path.name: max(map(len, path.read_text().split("\n"))) for path in files}
    wide = {name: width for name, width in widest.items() if width > WIDTH}
    assert not wide, wide
