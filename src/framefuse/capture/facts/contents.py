"""Turns reads of containers that existed before the call into facts, also after the call changed them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import torch

from framefuse.capture.facts.atoms import ATOMS, CALLABLES, CARRIED, CONTAINERS, SEQUENCES, SETS, is_key, is_shared_key
from framefuse.capture.facts.hidden_state import refuse_hidden_state
from framefuse.capture.facts.numbers import integer, plain_number
from framefuse.capture.facts.place_names import Place
from framefuse.capture.facts.sources import Sources
from framefuse.capture.facts.texts import Text, bare_text
from framefuse.ir.containers import elements, entries, held, size
from framefuse.ir.facts import Fact, Source
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Value


@dataclass(slots=True)
class Change:
    """What is known of a container that the call changes.

    The real container always holds what the program sees. ``length`` and ``keys`` (of dicts and sets, in order) are
    from before the first change. A sequence that only grew at its end holds ``length`` old elements (less those that
    were written by index) and ``added`` new ones. ``owned`` says that no fact about the old content is needed any
    more: all of it was stated, or none of it is left. ``blind`` says that old content moved in a way that is not
    followed.
    """

    container: Value
    length: int
    keys: tuple[Value, ...] | None
    added: int = 0
    owned: bool = False
    blind: bool = False


def _has(container: Value, key: Value) -> bool:
    """Whether a dict has an entry or a set a member; no code of a subclass of dict is asked."""
    if is_a(container, dict):
        return dict.__contains__(container, key)
    return bool(type(container).__contains__(container, key))


# Stands in for what a fault left unmade; nothing reads it, as the recording is dead.
LOST = Change(None, 0, None)


class Contents:
    """What is known of the containers among the objects that existed before the call."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self.changed: dict[int, Change] = {}

    # Changes --------------------------------------------------------------------------------------------------------

    def change(self, container: Value) -> Change:
        """The record of a known container that is about to change."""
        try:
            change = self.changed.get(id(container))
            if change is None:
                keys = tuple(elements(container)) if is_a(container, (dict, *SETS)) else None
                change = self.changed[id(container)] = Change(container, size(container), keys)
            return change
        except Exception as fault:
            self.sources.host.fault(fault)
            return LOST

    def own(self, container: Value) -> Change:
        """As :meth:`change`, with all of the old content stated, so that any change can be followed."""
        try:
            if id(container) not in self.changed or not self.changed[id(container)].owned:
                self.guard_shallow_contents(container)
            change = self.change(container)
            change.owned = True
            return change
        except Exception as fault:
            self.sources.host.fault(fault)
            return LOST

    def has_changed(self, container: Value) -> bool:
        """Whether the call changed a known container."""
        return id(container) in self.changed

    # Reads ----------------------------------------------------------------------------------------------------------

    def guard_length(self, container: Value) -> None:
        """The length of a known container is what it was."""
        try:
            entry = self.sources.known.get(id(container))
            if entry is None or not self.sources.host.alive:
                return
            if not is_a(container, CONTAINERS):
                refuse_hidden_state(self.sources, container)
                return
            changed = self.changed.get(id(container))
            if changed is not None and not self._followed(changed):
                return
            if id(container) not in self.sources.stated_lengths and self.sources.pins(entry[1], container):
                self.sources.stated_lengths.add(id(container))
                self.sources.fact(entry[1], "length", size(container) if changed is None else changed.length)
        except Exception as fault:
            self.sources.host.fault(fault)

    def _followed(self, changed: Change) -> bool:
        """Whether facts about the old content are still needed and can be stated; states which keys are new."""
        if changed.owned:
            return False
        if changed.blind:
            self.sources.host.kill("read-after-write", f"a {type(changed.container).__name__}")
            return False
        if changed.keys is not None:
            self._new_keys(changed)
        return True

    def _new_keys(self, changed: Change) -> int:
        """States of each written key whether it was there before; gives by how much the length has changed."""
        container = changed.container
        base = self.sources.known[id(container)][1]
        for holder, part, key in list(self.sources.written):
            if holder == id(container) and part == "item":
                had = key[1] in set(changed.keys or ())
                self.sources.fact(base, "present" if had else "absent", key[1], key)
        return size(container) - changed.length

    def count(self, container: Value, free: bool) -> int:
        """``len(container)``: a run-time number where ``free`` or where a known container has changed."""
        if type(container) is Text:
            return self._text_length(container)
        length = size(container) if is_a(container, CONTAINERS) else len(container)
        entry = self.sources.known.get(id(container))
        if entry is None or not self.sources.host.alive:
            return length
        changed = self.changed.get(id(container))
        sized = is_a(container, (list, dict, set, deque)) and self.sources.host.symbolic
        if not sized or not (free or changed is not None) or id(container) in self.sources.stated_lengths:
            self.guard_length(container)
            return length
        if changed is not None and not self._followed(changed):
            return length
        before = length if changed is None else changed.length
        place = (id(container), "count", None)
        if place not in self.sources.seen:
            symbol = self.sources.relations.new_symbol("n", before)
            self.sources.fact(entry[1], "count", symbol)
            self.sources.seen[place] = integer(before, symbol.expr, self.sources.relations)
        total: int = self.sources.seen[place] + (length - before)
        return total

    def _text_length(self, value: Text) -> int:
        """The length of a string of the caller as a run-time number."""
        source, length = value.recipe.value, len(bare_text(value))
        moves = value.recipe.kind == "source" and source.root.key not in self.sources.volatile
        if not moves or not self.sources.host.symbolic or not self.sources.host.alive:
            return len(value)
        place = (id(source), "count", None)
        if place not in self.sources.seen:
            symbol = self.sources.relations.new_symbol("n", length)
            self.sources.fact(source, "count", symbol)
            self.sources.seen[place] = integer(length, symbol.expr, self.sources.relations)
        counted: int = self.sources.seen[place]
        return counted

    def guard_filled(self, container: Value) -> None:
        """Whether a known container holds anything is what it was."""
        try:
            changed = self.changed.get(id(container))
            if changed is not None and changed.added > 0 and not changed.owned:
                return
            if is_a(container, (list, dict, set, deque)) and size(container):
                if self.count(container, True) == 0:
                    raise AssertionError("a container with elements has a length")
            else:
                self.guard_length(container)
        except Exception as fault:
            self.sources.host.fault(fault)

    def item(self, container: Value, key: Value, value: Value, free: int = CARRIED) -> Value:
        """An element read from a container by an atom key; ``value`` is what stands there. The reader goes on with what
        it is given.
        """
        try:
            free = free or CARRIED
            entry = self.sources.known.get(id(container))
            if entry is None or not self.sources.host.alive:
                return value
            if is_a(container, dict) and self._is_key(container, key):
                if type(key) is not str:
                    self._hold_key(key)
                place = (id(container), "item", (type(key), key))
                changed = self.changed.get(id(container))
                if changed is not None and changed.owned:
                    return self.sources.written.get(place, value)
                return self.sources.read_at(entry[1], place, "item", key, value, free)
            if is_a(container, SEQUENCES) and type(key) is int:
                return self._element(container, entry[1], key, value, free)
            if self._is_entry(container, key):
                where: Place = (id(container), "entry", id(key))
                return self.sources.read_at(entry[1], where, "entry", self.sources.known[id(key)][1], value, free)
            self.guard_shallow_contents(container)
            return value
        except Exception as fault:
            self.sources.host.fault(fault)
            return value

    def _hold_key(self, key: Value) -> None:
        """A function that names an entry is this very one at later calls; another one may have its code."""
        if type(key) is tuple:
            for part in key:
                self._hold_key(part)
        elif type(key) in CALLABLES and id(key) in self.sources.known:
            self.sources.fact(self.sources.known[id(key)][1], "is", key, id(key))

    def _element(self, container: Value, base: Source, key: int, value: Value, free: int) -> Value:
        changed = self.changed.get(id(container))
        free = True if id(container) in self.sources.moving_tuples else free
        if changed is not None:
            if changed.owned:
                return value
            if -changed.added <= key < 0:  # made by this call, wherever the container ends
                return value
            if not self._followed(changed):
                return value
            if key >= 0:
                if key >= changed.length:
                    self.guard_length(container)
                    return value
            elif any(holder == id(container) and part == "item" for holder, part, _ in self.sources.written):
                self.guard_length(container)
                key += changed.length + changed.added
            else:
                key += changed.added
        elif key < 0 and not is_a(container, list):
            self.guard_length(container)
            key += size(container)
        return self.sources.read_at(base, (id(container), "item", (int, key)), "item", key, value, free)

    def _is_entry(self, container: Value, key: Value) -> bool:
        """Whether a known dict holds something for a known tensor, as an optimizer's state does: found by identity."""
        known = type(key) in (torch.Tensor, torch.nn.Parameter) and id(key) in self.sources.known
        return known and is_a(container, dict) and id(container) not in self.changed

    def guard_membership(self, container: Value, key: Value) -> bool:
        """States whether a known dict or set has ``key``; False when the whole container must be stated instead."""
        try:
            entry = self.sources.known.get(id(container))
            if entry is None or not self.sources.host.alive:
                return True
            changed = self.changed.get(id(container))
            if changed is not None and changed.owned:
                return True
            if type(container) is frozenset and not entry[1].is_argument:
                return True
            if is_a(container, (dict, *SETS)) and self._is_key(container, key):
                if type(key) is not str:
                    self._hold_key(key)
                if (id(container), "item", (type(key), key)) not in self.sources.written:
                    had = _has(container, key)
                    self.sources.fact(entry[1], "present" if had else "absent", key, (type(key), key))
                return True
            if self._is_entry(container, key) and dict.__contains__(container, key):
                self.item(container, key, dict.__getitem__(container, key))
                return True
            return False
        except Exception as fault:
            self.sources.host.fault(fault)
            return True

    def guard_extent(self, container: Value) -> None:
        """The length or the keys of a known container, whose entries are then read one by one."""
        try:
            entry = self.sources.known.get(id(container))
            changed = self.changed.get(id(container))
            if entry is None or not is_a(container, (list, tuple, dict)):
                self.guard_shallow_contents(container)
            elif not is_a(container, dict):
                (self.guard_length if changed is None else self.guard_shallow_contents)(container)
            elif self.sources.host.alive and (changed is None or self._followed(changed)):
                self._guard_keys(container, entry[1], changed)
        except Exception as fault:
            self.sources.host.fault(fault)

    def holds_moving_number(self, container: Value) -> bool:
        """Whether an entry of a known dict, or an element of a list or tuple, is a number that was seen to move, or one
        that a run decides.
        """
        try:
            entry = self.sources.known.get(id(container))
            if entry is None or not self.sources.host.alive:
                return False
            if not is_a(container, dict) and id(container) in self.changed:
                return False
            base = entry[1]
            if self.is_volatile(container):
                return any(type(value) in (int, float) for value in held(container))
            if not self.sources.host.moving:
                return False
            return any(
                type(value) in (int, float) and self.sources.is_moving(Source("item", base, key))
                for key, value in (entries(container) if is_a(container, dict) else enumerate(elements(container)))
            )
        except Exception as fault:
            self.sources.host.fault(fault)
            return False

    def is_volatile(self, container: Value) -> bool:
        """Whether a known container is what a step gave."""
        entry = self.sources.known.get(id(container))
        return entry is not None and entry[1].is_argument and entry[1].root.key in self.sources.volatile

    def guard_shallow_contents(self, container: Value) -> None:
        """A known container is consumed by native code: its shallow content becomes facts, its children get sources."""
        try:
            entry = self.sources.known.get(id(container))
            if entry is None or not self.sources.host.alive:
                return
            if not is_a(container, CONTAINERS):
                refuse_hidden_state(self.sources, container)
                return
            changed = self.changed.get(id(container))
            if changed is not None and not self._followed(changed):
                self._plain(container)
                return
            if (id(container), "whole", None) not in self.sources.seen:
                self.sources.seen[(id(container), "whole", None)] = True
                self._state(container, entry[1], changed)
            if changed is not None:
                self._plain(container)
        except Exception as fault:
            self.sources.host.fault(fault)

    def guard_nested_contents(self, container: Value, depth: int = 0) -> None:
        """As :meth:`guard_shallow_contents`, also for the containers that lie inside, known or new."""
        self.guard_shallow_contents(container)
        if is_a(container, CONTAINERS) and depth < 6:
            for child in held(container):
                if is_a(child, CONTAINERS):
                    self.guard_nested_contents(child, depth + 1)

    def _plain(self, container: Value) -> None:
        """Numbers that this call wrote into a dict stand there without their expression: whoever takes the whole dict
        takes their values.
        """
        if is_a(container, dict):
            for (holder, part, _), value in list(self.sources.written.items()):
                if holder == id(container) and part == "item":
                    plain_number(value)

    def _state(self, container: Value, base: Source, changed: Change | None) -> None:
        """Facts for all of the old content."""
        holder = id(container)
        if is_a(container, dict):
            keys = self._guard_keys(container, base, changed)
            for key in keys if self.sources.host.alive else ():  # to look for a key may run the user's code
                place = (holder, "item", (type(key), key))
                if place not in self.sources.written and dict.__contains__(container, key):
                    plain_number(self.sources.read_at(base, place, "item", key, dict.__getitem__(container, key)))
        elif is_a(container, SEQUENCES):
            count = size(container) if changed is None else changed.length
            if not self.sources.pins(base, container):
                return
            self.sources.fact(base, "length", count)
            for number, value in enumerate(elements(container)[:count]):
                plain_number(self.sources.read_at(base, (holder, "item", (int, number)), "item", number, value))
        elif is_a(container, frozenset) and not base.is_argument:
            return
        else:
            self._guard_keys(container, base, changed)

    def _is_key(self, container: Value, key: Value) -> bool:
        """Whether an entry of a known container can be named by this key."""
        return is_key(key) or (is_shared_key(key) and id(container) not in self.changed)

    def _guard_keys(self, container: Value, base: Source, changed: Change | None) -> list[Value]:
        """The keys of a known dict or the members of a set, in order, as they were when the call began."""
        keys = elements(container) if changed is None else list(changed.keys or ())
        if not self.sources.pins(base, container):
            return []
        if not keys:
            self.sources.fact(base, "length", 0)
        elif all(self._is_key(container, key) for key in keys):
            self.sources.fact(base, "keys", tuple(keys))
        else:
            self.sources.host.kill("argument", "a dict or set with keys that are no atoms")
        return keys

    def guard_deep_contents(self, value: Value, depth: int = 0) -> None:
        """As :meth:`guard_shallow_contents`, also for what lies inside known or new containers."""
        try:
            if type(value) in ATOMS or depth > 6:
                return
            if not is_a(value, CONTAINERS):
                refuse_hidden_state(self.sources, value)
            if is_a(value, CONTAINERS):
                self.guard_shallow_contents(value)
                for child in held(value):
                    self.guard_deep_contents(child, depth + 1)
        except Exception as fault:
            self.sources.host.fault(fault)

    def guard_bare(self, holder: Value, absent: tuple[str, ...], empty: tuple[str, ...]) -> bool:
        """States in one fact that the instance dict of a known object lacks names and that the dicts of C code at
        others hold nothing; False where something is known of these already, or has changed.
        """
        try:
            sources = self.sources
            state, base = sources.instance_dict(holder), sources.known[id(holder)][1]
            if state is None or base.is_argument or not sources.host.alive:
                return False
            content, numbers = state[0], [id(state[0][name]) for name in empty]
            for number, name in zip(numbers, empty, strict=True):
                place = (id(content), "item", (str, name))
                if place in sources.seen or place in sources.written or content[name]:
                    return False
                if number in sources.known or number in self.changed:
                    return False
            if any((id(content), "item", (str, name)) in sources.written for name in absent):
                return False
            mark = (id(holder), "bare", empty)
            if mark not in sources.seen:  # which holds what lies in the dicts: no other object takes its address
                sources.seen[mark] = [content[name] for name in empty]
                sources.stated_absences.update((id(holder), name) for name in absent)
                sources.fact(base, "bare", (absent, empty))
            return True
        except Exception as fault:
            self.sources.host.fault(fault)
            return False

    def guard_empty_dicts(self, holder: Value, names: tuple[str, ...]) -> int:
        """States that the dicts of C code at these names in the instance dict of a known object hold nothing; gives
        how many of the names that is done for.
        """
        try:
            sources = self.sources
            state = sources.instance_dict(holder)
            base = sources.known[id(holder)][1]
            if state is None or base.is_argument or not sources.host.alive:
                return 0
            content, facts, line = state[0], sources.facts, sources.host.line()
            for done, name in enumerate(names):
                value = content[name]
                number, place = id(value), (id(content), "item", (str, name))
                if place in sources.written or number in self.changed:
                    return done
                if place in sources.seen:
                    if sources.seen[place] is not value or number not in sources.stated_lengths:
                        return done
                    continue
                if number in sources.known or value:
                    return done
                source = Source("attr", base, name)
                sources.known[number] = (value, source)
                sources.seen[place] = value
                facts[(id(source), "is", number)] = Fact(source, "is", value, line)
                sources.stated_types.add(number)  # of a dict of C code its identity tells the type
                sources.stated_lengths.add(number)
                facts[(id(source), "length", 0)] = Fact(source, "length", 0, line)
            return len(names)
        except Exception as fault:
            self.sources.host.fault(fault)
            return 0
