"""Doors without torch: calls of a function itself reach its Dispatch, from Python and C, whatever else goes on."""

import functools
import gc
import os
import sys
import threading
import unittest
import weakref

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from loader import load

native, _ = load()


def opened(function, answer=lambda args, kwargs: ("compiled", args, kwargs)):
    dispatch = native.Dispatch(function, answer)
    native.open_door(dispatch)
    return dispatch


class Thing:
    def __init__(self, value=0):
        self.value = value

    def method(self, x):
        return "eager"

    @property
    def attribute(self):
        return "eager"

    def __getitem__(self, key):
        return "eager"

    def __call__(self, x):
        return "eager"

    def __add__(self, other):
        return "eager"


def plain(x, y=2):
    return x, y


def many(function, times=200):
    """The last answer of a call site that is specialised by now."""
    for _ in range(times):
        answer = function()
    return answer


class DoorsTest(unittest.TestCase):
    def test_every_way_to_call(self):
        thing, named = Thing(), {"y": 3}

        def f(x, y=2):
            return "eager"

        sites = {
            "call": (f, lambda: f(1)),
            "exact": (f, lambda: f(1, 2)),
            "keywords": (f, lambda: f(y=1, x=2)),
            "unpacked": (f, lambda: f(*(1,), **named)),
            "map": (f, lambda: next(map(f, [1]))),
            "sorted": (f, lambda: sorted([1], key=lambda x: f(x))),
            "reduce": (f, lambda: functools.reduce(f, [1, 2])),
            "partial": (f, lambda: functools.partial(f, 1)()),
            "method": (Thing.method, lambda: thing.method(1)),
            "property": (Thing.attribute.fget, lambda: thing.attribute),
            "item": (Thing.__getitem__, lambda: thing[0]),
            "object": (Thing.__call__, lambda: thing(1)),
            "operator": (Thing.__add__, lambda: thing + 1),
        }
        for name, (function, site) in sites.items():
            with self.subTest(name):
                many(site)
                dispatch = opened(function, lambda args, kwargs: "compiled")
                self.assertEqual(many(site, 201), [1] if name == "sorted" else "compiled")
                self.assertEqual(dispatch.misses, 201)
                native.close_door(dispatch)
                many(site)
                self.assertEqual(dispatch.calls, 201)

    def test_arguments_are_bound_as_the_function_binds_them(self):
        def f(a, b=2, *rest, c, d=4, **more):
            return a, b, rest, c, d, more

        want = f(1, 5, 6, 7, c=8, z=9), f(1, c=3)
        dispatch = opened(f, lambda args, kwargs: dispatch_original(args, kwargs))

        def dispatch_original(args, kwargs):
            return f(*args, **kwargs)  # one call passes: the Dispatch's own way to what it stands for

        self.assertEqual((f(1, 5, 6, 7, c=8, z=9), f(1, c=3)), want)
        self.assertEqual(dispatch.misses, 2)
        with self.assertRaisesRegex(TypeError, r"f\(\) missing 1 required"):
            f()
        with self.assertRaisesRegex(TypeError, "unexpected keyword|multiple values"):
            f(1, a=2, c=3)
        self.assertEqual(f(1, c=3), want[1])

    def test_eager_ways_do_not_loop(self):
        def f(n):
            return n if n == 0 else f(n - 1)

        for answer in (None, lambda args, kwargs: f(*args)):
            dispatch = opened(f, answer)
            self.assertEqual(f(5), 0)
            self.assertEqual(dispatch.calls, 6)  # the recursion comes in by the door too
            dispatch.bypass = True
            self.assertEqual(f(5), 0)
            dispatch.bypass = False
            native.bypass(True)
            self.assertEqual(f(5), 0)
            native.bypass(False)
            self.assertEqual(dispatch(5), 0)
            native.close_door(dispatch)

    def test_exceptions(self):
        def f():
            raise KeyError("own")

        for answer in (None, lambda args, kwargs: f()):
            dispatch = opened(f, answer)
            for _ in range(100):
                with self.assertRaisesRegex(KeyError, "own"):
                    f()
                with self.assertRaisesRegex(KeyError, "own"):
                    sorted([1], key=lambda _: f())
            self.assertEqual(dispatch.calls, 200)
            native.close_door(dispatch)

    def test_closures_have_doors_of_their_own(self):
        def make(value):
            def f():
                return value

            return f

        first, second = make(1), make(2)
        dispatch = opened(second, lambda args, kwargs: "compiled")
        self.assertEqual((first(), second()), (1, "compiled"))
        other = opened(first, lambda args, kwargs: "first")
        native.close_door(dispatch)
        self.assertEqual((first(), second()), ("first", 2))
        native.close_door(other)
        self.assertEqual((first(), second()), (1, 2))

    def test_code_replaced(self):
        def f():
            return "eager"

        def g():
            return "other"

        opened_f = opened(f)
        f.__code__ = g.__code__
        self.assertEqual((many(f), many(g)), ("other", "other"))
        opened_g = opened(g)
        self.assertEqual((many(f), many(g)[0]), ("other", "compiled"))
        del opened_f
        gc.collect()
        self.assertEqual((f(), g()[0]), ("other", "compiled"))
        del opened_g

    def test_lifetime(self):
        def f():
            return "eager"

        dispatch = opened(f)
        self.assertEqual(f()[0], "compiled")
        self.assertIs(dispatch.door, f.__code__)
        del dispatch
        self.assertEqual(many(f), "eager")
        f.compiled = opened(f)  # the function keeps it: a cycle
        self.assertEqual(f()[0], "compiled")
        refs = [weakref.ref(f), weakref.ref(f.compiled)]
        del f
        gc.collect()
        self.assertEqual([ref() for ref in refs], [None, None])

    def test_gone_during_its_call(self):
        def f():
            return "eager"

        held = []

        def answer(args, kwargs):
            native.close_door(held[0])
            held.clear()
            gc.collect()
            return f()

        held.append(opened(f, answer))
        self.assertEqual(f(), "eager")
        self.assertEqual(many(f), "eager")

    def test_doors_of_one_first_argument(self):
        class Node:
            def __call__(self, x):
                return "eager"

        one, other, call = Node(), Node(), Node.__call__
        dispatch = native.Dispatch(call, lambda args, kwargs: (args[0] is one, args[1:], kwargs))
        native.open_door(dispatch, one)
        self.assertEqual(many(lambda: (one(1), one(x=2), other(1), call(one, 3))),
                         ((True, (1,), {}), one(x=2), "eager", (True, (3,), {})))  # fmt: skip
        self.assertIs(native.behind_door(call, one), dispatch)
        self.assertIsNone(native.behind_door(call, other))
        second = native.Dispatch(call, lambda args, kwargs: call(*args, **kwargs))
        native.open_door(second, other)
        self.assertEqual((other(1), second.calls, second.misses), ("eager", 1, 1))
        for_all = opened(call, lambda args, kwargs: "all")
        third = Node()
        self.assertEqual((one(1)[0], other(1), third(1)), (True, "eager", "all"))
        native.forget_first(call, id(one))
        self.assertEqual(one(1), "all")
        native.close_door(for_all)
        native.close_door(dispatch)
        native.open_door(dispatch, one)
        self.assertEqual(one(1)[0], True)
        del dispatch  # its door closes
        self.assertEqual((one(1), other(1), second.calls), ("eager", "eager", 3))
        native.close_door(second)
        self.assertEqual(many(lambda: other(1)), "eager")
        self.assertEqual(second.calls, 3)

    def test_what_has_no_door(self):
        def generator():
            yield 1

        async def coroutine():
            pass

        for function in (generator, coroutine, len):
            with self.assertRaises(TypeError):
                native.open_door(native.Dispatch(function, None))
        with self.assertRaises(TypeError):
            native.open_door(native.Dispatch(many, None, owner=1))
        with self.assertRaises(TypeError):
            native.open_door(many)
        with self.assertRaises(TypeError):
            native.watch_calls(generator, print)

    def test_generators_and_tracers_around(self):
        def f(x):
            return x

        def numbers():
            for i in range(3):
                yield f(i)

        dispatch = opened(f, lambda args, kwargs: args[0] + 10)
        suspended = numbers()
        next(suspended)
        lines = []
        # A tracer is a debugger or coverage, which is to see each line: no call is another while it listens.
        for install, values in ((sys.settrace, [1, 0, 1, 2]), (sys.setprofile, [11, 10, 11, 12])):
            install(lambda *event: lines.append(event[1]) or None)
            try:
                self.assertEqual([f(1), *numbers()], values)
            finally:
                install(None)
        self.assertIn("call", lines)
        native.close_door(dispatch)
        self.assertEqual(list(suspended), [1, 2])

    def test_threads(self):
        def f(x):
            return x

        wrong = []

        def work(seed):
            for i in range(2000):
                if i % 3 == seed % 3:
                    own = opened(f, lambda args, kwargs: f(*args))
                if f(i) != i or list(map(f, [i])) != [i]:
                    wrong.append(i)
            native.close_door(own)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])
        self.assertEqual(f(1), 1)

    def test_deep_recursion(self):
        def f(n):
            return f(n + 1)

        def deep(n):
            return n if n == 0 else deep(n - 1)

        dispatch = opened(f, None)
        limit = sys.getrecursionlimit()
        try:
            with self.assertRaises(RecursionError):
                f(0)
            self.assertEqual(deep(500), 0)
            if sys.version_info < (3, 12):  # the evaluator makes C calls of Python's: no crash where it could go on
                sys.setrecursionlimit(10**6)
                with self.assertRaises(RecursionError):
                    deep(500_000)
                sys.setrecursionlimit(9000)
                self.assertEqual(deep(8000), 0)
        finally:
            sys.setrecursionlimit(limit)
        self.assertGreater(dispatch.calls, 100)

    def test_nothing_leaks(self):
        def f(a, b=1, *c, **d):
            return None

        opened_f = opened(f, lambda args, kwargs: None)
        argument = object()
        counts = sys.getrefcount(argument), sys.getrefcount(f), sys.getrefcount(f.__code__)
        for _ in range(1000):
            f(argument, argument, argument, k=argument)
            list(map(f, [argument]))
        self.assertEqual((sys.getrefcount(argument), sys.getrefcount(f), sys.getrefcount(f.__code__)), counts)
        for _ in range(100):
            native.close_door(opened_f)
            native.open_door(opened_f)
            native.watch_calls(f, print)
            native.watch_calls(f, None)
        self.assertEqual((sys.getrefcount(argument), sys.getrefcount(f), sys.getrefcount(f.__code__)), counts)


class WatchTest(unittest.TestCase):
    def test_outermost_calls_only(self):
        class Node:
            def __init__(self, *children):
                self.children = children

            def run(self):
                return [child.run() for child in self.children]

        seen = []
        native.watch_calls(Node.run, lambda function, first: seen.append((function, first)), True)
        root, other = Node(Node(), Node(Node())), Node()
        root.run()
        many(other.run, 50)
        with self.assertRaises(AttributeError):
            Node(1).run()
        root.run()
        native.watch_calls(Node.run, None)
        root.run()
        self.assertEqual([first for _, first in seen[:1] + seen[-1:]], [root, root])
        self.assertEqual([first for _, first in seen].count(other), 50)
        self.assertEqual(len(seen), 53)
        self.assertIs(seen[0][0], Node.run)

    def test_new_functions_of_a_code_object(self):
        space, doors = {}, []

        def found(function, first):
            doors.append(opened(function))

        code = compile("def f(x, y=2):\n return x, y\ndef g():\n return 1", "<test>", "exec")
        native.watch_calls(next(part for part in code.co_consts if getattr(part, "co_name", "") == "f"), found)
        exec(code, space)
        self.assertEqual(space["g"](), 1)
        self.assertEqual(doors, [])
        answer = space["f"](5)
        self.assertEqual(answer[0], "compiled")
        self.assertIs(doors[0].function, space["f"])
        many(lambda: space["f"](6, y=7))
        self.assertEqual((len(doors), doors[0].calls), (1, 201))

        def site(function):
            return function(1)

        before = space["f"]
        exec(code, space)  # the same code object, another function
        for other in (plain, before, space["f"]):
            many(lambda other=other: site(other))  # the site is specialised for another one by then
        self.assertEqual((len(doors), doors[0].calls, doors[1].calls), (2, 401, 200))

    def test_an_error_in_the_watcher_is_no_error_of_the_call(self):
        def f():
            return 1

        said = []
        before, sys.unraisablehook = sys.unraisablehook, lambda event: said.append(event.exc_type)
        native.watch_calls(f, lambda function, first: 1 / 0)
        try:
            self.assertEqual(f(), 1)
        finally:
            sys.unraisablehook = before
            native.watch_calls(f, None)
        self.assertEqual(said, [ZeroDivisionError])


if __name__ == "__main__":
    unittest.main()
