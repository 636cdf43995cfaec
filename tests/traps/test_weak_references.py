"""What a call made ends when the call lets go of it: weak references, proxies, weak containers and finalizers tell."""

from __future__ import annotations

import weakref

from tests.traps.small_programs import MOST, Rows, draw
from tests.traps.trap import Trap, hold

ROWS = Rows()


class Held:
    pass


def watched(function):
    """Adds a function that sees whether what it made has ended: such a call runs as it is."""

    def program(compiled):
        fast = compiled(function)
        for i in range(4):
            yield fast(draw(i, 3))

    program.__name__ = function.__name__
    ROWS.trap(MOST, 0)(program)


@watched
def tensor(x):
    y = x * 2
    r = weakref.ref(y)
    there = r() is y
    del y
    return there, r() is None


@watched
def tensor_from_before_a_break(x):
    y = x * 2
    values = y.tolist()
    r = weakref.ref(y)
    z = y + 1
    del y
    return r() is None, z, len(values)


@watched
def tensor_that_outlives_a_break(x):
    y = x * 2
    r = weakref.ref(y)
    values = x.tolist()
    there = r() is y
    y = None
    return there, r() is None, len(values)


@watched
def tensor_in_a_list_over_a_break(x):
    parts = [x * 2, x + 1]
    x.tolist()
    r = weakref.ref(parts[0])
    there = r() is parts.pop(0)
    return there, r() is None, parts


@watched
def object_over_a_break(x):
    o = Held()
    o.v = x * 2
    r = weakref.ref(o)
    x.tolist()
    there = r() is o
    o = None
    return there, r() is None


@watched
def callback(x):
    log = []
    o = Held()
    o.v = x * 2
    r = weakref.ref(o, lambda _: log.append("ended"))
    o = None
    log.append("behind")
    return log, r() is None


@watched
def finalizer(x):
    log = []
    o = Held()
    o.v = x * 2
    weakref.finalize(o, log.append, "ended")
    y = o.v + 1
    del o
    log.append("behind")
    return log, y


@watched
def finalizer_behind_a_break(x):
    log = []
    o = Held()
    o.v = x * 2
    x.tolist()
    weakref.finalize(o, log.append, "ended")
    y = o.v + 1
    del o
    log.append("behind")
    return log, y


@watched
def proxy_in_try(x):
    o = Held()
    o.v = x * 2
    p = weakref.proxy(o)
    y = p.v + 1
    del o
    try:
        told = p.v
    except ReferenceError as error:
        told = str(error)
    return y, told


@watched
def proxy_of_a_tensor(x):
    o = x * 2
    p = weakref.proxy(o)
    y = p + 1
    del o
    try:
        told = p + 1
    except ReferenceError as error:
        told = str(error)
    return y, told


@watched
def weak_set(x):
    kept = weakref.WeakSet()
    y = x * 2
    kept.add(y)
    before = len(kept)
    print(end="")
    del y
    return before, len(kept)


@watched
def weak_value_that_nobody_holds(x):
    d = weakref.WeakValueDictionary()
    d["y"] = x * 2
    return "y" in d, len(d)


@watched
def weak_value_over_a_break(x):
    d = weakref.WeakValueDictionary()
    y = x * 2
    d["y"] = y
    x.tolist()
    there = "y" in d
    y = None
    return there, "y" in d


@watched
def weak_key(x):
    d = weakref.WeakKeyDictionary()
    o = Held()
    d[o] = x * 2
    y = d[o] + 1
    before = len(d)
    del o
    return before, len(d), y


@ROWS.program
def given(compiled):
    """What the caller made compiles: only its own calls end it."""
    kept, known = weakref.WeakKeyDictionary(), [Held(), Held()]

    def counted(o, x):
        kept[o] = kept.get(o, 0) + 1
        return x * kept[o], weakref.ref(o)() is o, weakref.ref(x)() is x

    fast = compiled(counted)
    for i in range(5):
        yield fast(known[i % 2], draw(i, 3)), len(kept)


@ROWS.parametrize()
def test_ends_as_eagers(trap: Trap) -> None:
    hold(trap)
