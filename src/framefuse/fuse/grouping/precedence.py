"""Which groups run before which others, and an order of all of them that agrees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from framefuse.errors import CompilerBug
from framefuse.fuse.grouping.cells import Group


@dataclass(slots=True, eq=False)
class Precedence:
    """What is known of the order of groups: ``reach`` has for each one the bits of those that run after it."""

    after: dict[Group, set[Group]] = field(default_factory=dict)
    before: dict[Group, set[Group]] = field(default_factory=dict)
    reach: dict[Group, int] = field(default_factory=dict)

    def add(self, group: Group) -> None:
        """A group of which nothing is known yet."""
        self.after[group], self.before[group] = set(), set()
        self.reach[group] = 0

    def state(self, first: Group, second: Group) -> None:
        """Notes that ``first`` runs before ``second``; CompilerBug where that cannot be."""
        if self.reach[second] & (1 << first.number) or first is second:
            raise CompilerBug(f"groups {first.number} and {second.number} need each other")
        self.after[first].add(second)
        self.before[second].add(first)
        new = self.reach[second] | (1 << second.number)
        waiting = [first]
        while waiting:  # those before a group that reaches all of it reach it already
            group = waiting.pop()
            reached = self.reach[group]
            if reached | new != reached:
                self.reach[group] = reached | new
                waiting += self.before[group]

    def order(self, places: Mapping[Group, tuple[bool, int]]) -> tuple[Group, ...]:
        """All groups, each behind those that it waits for, else by their ``places``."""
        waiting = {group: len(self.before[group]) for group in places}
        by_number = {group.number: group for group in places}
        ready = [(places[group], group.number) for group, count in waiting.items() if not count]
        heapify(ready)
        order: list[Group] = []
        while ready:
            group = by_number[heappop(ready)[1]]
            order.append(group)
            for later in self.after[group]:
                waiting[later] -= 1
                if not waiting[later]:
                    heappush(ready, (places[later], later.number))
        if len(order) != len(places):
            raise CompilerBug("groups wait for each other")
        return tuple(order)
