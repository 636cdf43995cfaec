"""Guards without torch: facts about plain objects, tags, reports and words, on each CPython that framefuse supports."""

import collections
import gc
import os
import random
import sys
import types
import unittest
import weakref

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from loader import load

native, tags = load()
Program = collections.namedtuple("Program", "state instructions registers numbers texts")


def guards(*instructions, registers=8, numbers=8):
    return native.GuardSet(Program(None, instructions, registers, numbers, ()))


def hit(answer):
    return isinstance(answer, tuple)


class Thing:
    shared = 5

    def __init__(self, **kwargs):
        for name, value in kwargs.items():
            setattr(self, name, value)


def store(thing, value):
    thing.a = value


def trust(dicts, types, reports):
    native.trust_tags(dicts, types)
    return native.watch_open(reports) == reports


class Trusting(unittest.TestCase):
    """What the probe trusts; the classes below run the same with less."""

    without = frozenset()

    def setUp(self):
        self.trusted = tags.probe() - self.without
        known = ("dict_tags", "type_tags", "dict_watchers")
        self.assertTrue(trust(*(name in self.trusted for name in known)))

    def tearDown(self):
        found = tags.probe()
        trust("dict_tags" in found, "type_tags" in found, "dict_watchers" in found)

    def test_instance_attributes_by_every_route(self):
        changes = [
            lambda t: store(t, 9), lambda t: setattr(t, "a", 9), lambda t: object.__setattr__(t, "a", 9),
            lambda t: vars(t).update(a=9),
            lambda t: t.__dict__.__setitem__("a", 9), lambda t: delattr(t, "a"), lambda t: vars(t).pop("a"), lambda
            t: vars(t).clear(), lambda t: exec("t.a += 8", {"t": t}), lambda t: setattr(t, "__dict__", {"a": 9, "b":
            2}),
        ]  # fmt: skip
        for make in (lambda: Thing(a=1, b=2), lambda: Thing(b=2, a=1, **{f"x{n}": n for n in range(40)})):
            for change in changes:
                thing = make()
                for value in (3, 1):
                    store(thing, value)  # a specialised site, before and after there is a dict
                content = native.instance_dict(thing)
                self.assertIs(content, thing.__dict__)
                check = guards(
                    ("object", 0, thing), ("dict", 1, 0), ("is", 1, content), ("object", 2, content),
                    ("watch", content, 2), ("item_dict", 3, 2, "a"), ("int_eq", 3, 1),
                ).check  # fmt: skip
                for _ in range(3):
                    self.assertTrue(hit(check(())))
                change(thing)
                for _ in range(2):
                    self.assertFalse(hit(check(())), change)

    def test_a_store_elsewhere_keeps_the_facts(self):
        thing = Thing(a=1, b=2)
        content = native.instance_dict(thing)
        found = guards(("object", 0, content), ("watch", content, 2), ("item_dict", 1, 0, "a"), ("integer", 1, 0))
        for value in range(100):
            thing.b = value
            store(thing, value)
            self.assertEqual(found.check(())[1][0], value)

    def test_globals(self):
        space = {"__builtins__": {"len": len}}
        exec("def f(): return a\na = 1", space)
        found = guards(
            ("object", 0, space["f"]), ("object", 1, space), ("watch", space, 2), ("item_dict", 2, 1, "a"),
            ("int_eq", 2, 1),
            ("global", 3, 0, "len"), ("is", 3, len),
        )  # fmt: skip
        self.assertTrue(hit(found.check(())))
        exec("def g():\n global a\n a = 2\ng()", space)
        self.assertEqual(found.check(()), 4)
        space["a"] = 1
        space["len"] = 3
        self.assertEqual(found.check(()), 6)

    def test_types(self):
        class Base:
            x = 1

        class Derived(Base):
            pass

        found = guards(
            ("object", 0, Derived),
            ("watch", Derived, 3),
            ("type_attr", 1, 0, "x"),
            ("int_eq", 1, 1),
            ("type_absent", 0, "y"),
        )
        for _ in range(3):
            self.assertTrue(hit(found.check(())))
        Base.x = 2
        self.assertEqual(found.check(()), 3)
        Base.x = 1
        self.assertTrue(hit(found.check(())))
        Derived.y = 1
        self.assertEqual(found.check(()), 4)
        del Derived.y
        Derived.__bases__ = (types.new_class("Other", (), {}, lambda ns: ns.update(x=7)),)
        self.assertEqual(found.check(()), 3)

    def test_a_type_that_changes_very_often(self):
        class Kind:
            x = 0

        found = guards(("object", 0, Kind), ("watch", Kind, 2), ("type_attr", 1, 0, "x"), ("integer", 1, 0))
        for value in range(3000):
            Kind.x = value
            self.assertEqual(found.check(())[1][0], value)

    def test_the_version_of_a_type(self):
        class Kind:
            pass

        found = guards(("object", 0, Kind), ("version", 0, native.type_tag(Kind)))
        Kind.x = 1
        self.assertFalse(hit(found.check(())))

    def test_words(self):
        class Other(Thing):
            pass

        def f(a=1, *, b=2):
            return self

        thing, values = Thing(a=1), [1]
        self.assertTrue(hit(guards(("object", 0, thing), ("type_is", 0, Thing)).check(())))
        watch = guards(
            ("object", 0, thing), ("type_is", 0, Thing), ("object", 1, values), ("length", 1, 1), ("object", 2, f),
            ("code", 2, f.__code__, f.__defaults__, f.__kwdefaults__), ("cell", 3, 2, 0), ("is", 3, self),
        )  # fmt: skip
        self.assertTrue(hit(watch.check(())))
        thing.__class__ = Other
        self.assertEqual(watch.check(()), 1)
        thing.__class__ = Thing
        values.append(1)
        self.assertEqual(watch.check(()), 3)
        values.pop()
        f.__kwdefaults__ = {"b": 2}
        self.assertEqual(watch.check(()), 5)

    def test_atoms(self):
        atoms = [0, False, 0.0, -0.0, 1, True, 1.0, "", "a", b"a", None, 2**70, float("nan"), 1j, (1,), (True,), (1.0,)]
        for left in atoms:
            for right in atoms:
                same = left is right or (type(left) is type(right) and repr(left) == repr(right))
                for op in ("int_eq", "float_eq", "str_eq"):
                    self.assertEqual(hit(guards(("arg", 0, 0), (op, 0, left)).check((right,))), same, (left, right))

    def test_order_of_keys(self):
        ordered = collections.OrderedDict(a=1, b=2)
        for mapping in ({"a": 1, "b": 2}, ordered, collections.defaultdict(int, a=1, b=2)):
            check = guards(("arg", 0, 0), ("keys", 0, ("a", "b"))).check
            self.assertTrue(hit(check((mapping,))))
        ordered.move_to_end("a")
        self.assertFalse(hit(check((ordered,))))
        self.assertFalse(hit(check(({"b": 2, "a": 1},))))

    def test_numbers(self):
        found = guards(
            ("arg", 0, 0), ("integer", 0, 0), ("number", ("const", 1, 3, 0)), ("number", ("mul", 2, 0, 1)),
            ("relation", "<", 2, 1),
        )  # fmt: skip
        self.assertEqual(found.check((-5,))[1][:3], (-5, 3, -15))
        self.assertEqual(found.check((1,)), 4)
        self.assertEqual(found.check((2**62,)), 3)
        self.assertEqual(found.check((2**63,)), 1)
        self.assertEqual(found.check((True,)), 1)
        self.assertEqual(native.numbers_run((("floordiv", 2, 0, 1), ("mod", 3, 0, 1)), (-7, 2, 0, 0)), (-7, 2, -4, 1))
        self.assertIsNone(native.numbers_run((("floordiv", 2, 0, 1),), (-(2**63), -1, 0)))

    def test_properties_may_do_anything(self):
        class Nasty:
            @property
            def again(self):
                nested.append(found.check((self,)))
                del held[:]
                gc.collect()
                return Thing()

            @property
            def broken(self):
                raise ValueError

        held, nested = [Thing(), Thing()], []
        found = guards(("arg", 0, 0), ("arg", 1, 1), ("getattr", 2, 0, "again"), ("type", 3, 2), ("is", 3, Thing))
        self.assertTrue(hit(found.check((Nasty(), held))))
        self.assertEqual(nested, [-3])  # its registers are in use
        self.assertEqual(guards(("arg", 0, 0), ("getattr", 1, 0, "broken")).check((Nasty(),)), 1)

    def test_leaks_and_cycles(self):
        thing = Thing(a=object())
        before = sys.getrefcount(thing.a)
        found = guards(("arg", 0, 0), ("getattr", 1, 0, "a"), ("dict", 2, 0), ("item_dict", 3, 2, "a"), ("same", 1, 3))
        for _ in range(2000):
            self.assertTrue(hit(found.check((thing,))))
        self.assertEqual(sys.getrefcount(thing.a), before)
        thing.guards = guards(("object", 0, thing), ("type_is", 0, Thing))
        ref = weakref.ref(thing)
        del thing
        gc.collect()
        self.assertIsNone(ref())

    def test_bad_programs(self):
        for instructions in ((("nothing",),), (("is", 0, 1),), (("arg", 99, 0),), ((),), (3,), (("watch", {}, 1),)):
            with self.assertRaises(ValueError):
                guards(*instructions)


    def test_unchanged_dicts_are_not_read_again(self):
        things = [Thing(a=1) for _ in range(50)]
        found = watching(things)
        for _ in range(3):
            self.assertTrue(hit(found.check(())))
        quick = bool(self.trusted & {"dict_tags", "dict_watchers"})
        self.assertEqual(found.reruns, 50 if quick else 150)
        things[7].b = 1
        before = found.reruns
        self.assertTrue(hit(found.check(())) and hit(found.check(())))
        self.assertEqual(found.reruns - before, 1 if quick else 100)
        self.assertEqual(found.dicts, 50 if quick else 0)

    def test_a_dict_that_changes_at_every_call(self):
        things = [Thing(a=1, n=0) for _ in range(20)]
        found = watching(things)
        for value in range(300):
            things[3].n = things[11].n = value
            self.assertTrue(hit(found.check(())))
        for thing in things:
            thing.a = 2
            self.assertFalse(hit(found.check(())))
            self.assertFalse(hit(found.check(())))
            thing.a = 1
            self.assertTrue(hit(found.check(())))
        if self.trusted & {"dict_tags", "dict_watchers"}:
            before = found.reruns
            for _ in range(10):
                found.check(())
            alone = 0 if "dict_tags" in self.trusted else 2
            self.assertEqual(found.reruns - before, 10 * alone)

    def test_several_sets_rest_on_one_dict(self):
        thing = Thing(a=1)
        sets = [watching([thing]) for _ in range(10)]
        for found in sets:
            self.assertTrue(hit(found.check(())))
        del sets[3:6], found
        gc.collect()
        thing.a = 2
        self.assertEqual([hit(found.check(())) for found in sets], [False] * 7)
        thing.a = 1
        self.assertEqual([hit(found.check(())) for found in sets], [True] * 7)
        content, ref = native.instance_dict(thing), weakref.ref(thing)
        before = sys.getrefcount(content)
        del thing, sets
        gc.collect()
        self.assertIsNone(ref())
        self.assertLess(sys.getrefcount(content), before)
        content["a"] = 5  # nobody listens any more

    def test_a_change_while_facts_are_read(self):
        class Key(str):
            __hash__ = str.__hash__

            def __eq__(self, other):
                thing.a = 2
                return str.__eq__(self, other)

        thing, mapping = Thing(a=1), {Key("k"): 1}
        content = native.instance_dict(thing)
        found = guards(
            ("object", 0, content), ("object", 1, mapping),
            ("watch", content, 2), ("item_dict", 2, 0, "a"), ("int_eq", 2, 1),
            ("watch", mapping, 1), ("present", 1, "k"),
        )  # fmt: skip
        self.assertTrue(hit(found.check(())))  # the facts held when they were read
        self.assertEqual(found.check(()), 4)
        self.assertEqual(found.check(()), 4)

    def test_random_changes(self):
        draw = random.Random(7)
        for _ in range(20):
            things = [Thing(a=1, **dict.fromkeys("bcd"[: draw.randrange(4)], 0)) for _ in range(draw.randrange(1, 40))]
            chosen = [draw.sample(things, draw.randrange(1, len(things) + 1)) for _ in range(5)]
            sets = [(watching(some), some) for some in chosen]
            for _ in range(60):
                for _ in range(draw.choice((0, 0, 1, 2, 30))):
                    thing = draw.choice(things)
                    change = draw.randrange(5)
                    if change == 0:
                        thing.a = draw.choice((1, 2))
                    elif change == 1:
                        vars(thing).update(a=1, z=draw.random())
                    elif change == 2:
                        vars(thing).clear()
                        thing.b, thing.a = 0, draw.choice((1, 1, 2))
                    elif change == 3:
                        thing.n = draw.random()
                    elif thing in things[:3]:
                        thing.a += 0
                found, some = sets[draw.randrange(5)]
                self.assertEqual(hit(found.check(())), all(thing.a == 1 for thing in some))
                if draw.random() < 0.05:
                    where = draw.randrange(5)
                    sets[where] = (watching(sets[where][1]), sets[where][1])


def watching(things):
    """A set that holds ``thing.a == 1`` of each."""
    instructions = []
    for index, thing in enumerate(things):
        content = native.instance_dict(thing)
        instructions += [("object", 2 * index, content), ("watch", content, 2)]
        instructions += [("item_dict", 2 * index + 1, 2 * index, "a"), ("int_eq", 2 * index + 1, 1)]
    return guards(*instructions, registers=2 * len(things))


class WithoutReports(Trusting):
    """Tags alone, as before CPython 3.12."""

    without = frozenset({"dict_watchers"})


class WithoutTags(Trusting):
    """Reports alone, as they will be once the tags have gone."""

    without = frozenset({"dict_tags"})


class Distrusting(Trusting):
    """Blocks run on every check."""

    without = frozenset({"dict_tags", "type_tags", "dict_watchers"})


if __name__ == "__main__":
    unittest.main()
