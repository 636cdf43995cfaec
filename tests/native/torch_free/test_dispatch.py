"""Dispatch without torch, on every CPython that framefuse supports: binding, attributes, recursion, leaks."""

import copy
import functools
import gc
import inspect
import itertools
import os
import pickle
import sys
import threading
import unittest
import weakref

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from loader import load

native, _ = load()


def plain(a, b=2):
    """Adds."""
    return a + b


SIGNATURES = [
    "", "a", "a, b=2", "a, /", "a, /, b=1", "*args", "a, *args", "**kw", "a, *, k", "a, *, k=3",
    "a=1, /, b=2, *args, k=3, **kw",
    "*, k=1, j", "a, b, /, **kw", "a, *args, k, **kw",
]  # fmt: skip
POSITIONAL = [(), (1,), (1, 2), (1, 2, 3)]
KEYWORDS = [{}, {"a": 5}, {"b": 6}, {"k": 7}, {"k": 7, "j": 8}, {"a": 1, "k": 2}, {"z": 9}, {"z": 9, "k": 1}]


class DispatchTest(unittest.TestCase):
    def test_binding(self):
        for signature, args, kwargs, owned in itertools.product(SIGNATURES, POSITIONAL, KEYWORDS, (False, True)):
            space = {}
            exec(f"def f({signature}):\n return tuple(locals().items())", space)
            function, owner = space["f"], object()
            dispatch = native.Dispatch(function, None, owner=owner if owned else None)
            everything = ((owner,) if owned else ()) + args
            try:
                expected = function(*everything, **kwargs)
            except TypeError as error:
                self.assertIsNone(dispatch.bind(*args, **kwargs))
                with self.assertRaises(TypeError) as caught:
                    dispatch(*args, **kwargs)
                self.assertEqual(str(caught.exception), str(error))
            else:
                self.assertEqual(native.bound_names(function.__code__), tuple(name for name, _ in expected))
                self.assertEqual(dispatch.bind(*args, **kwargs), tuple(value for _, value in expected))
                self.assertEqual(dispatch(*args, **kwargs), expected)

    def test_miss(self):
        seen = []
        dispatch = native.Dispatch(plain, lambda args, kwargs: seen.append((args, kwargs)))
        dispatch(1, b=2)
        self.assertEqual(seen, [((1,), {"b": 2})])
        self.assertEqual((dispatch.calls, dispatch.hits, dispatch.misses), (1, 0, 1))
        dispatch.bypass = True
        self.assertEqual(dispatch(1), 3)
        dispatch.bypass = False
        native.bypass(True)
        self.assertEqual(dispatch(1), 3)
        thread = threading.Thread(target=dispatch, args=(5,))
        thread.start()
        thread.join()
        native.bypass(False)
        self.assertEqual(seen[1:], [((5,), {})])

    def test_cells_among_arguments(self):
        def f(a, b, *c):
            return lambda: (b, c, a)

        self.assertEqual(native.Dispatch(f, None).bind(1, 2, 3), (1, 2, (3,)))
        self.assertEqual(native.Dispatch(f, None)(1, 2, 3)(), (2, (3,), 1))

    def test_looks_like_its_function(self):
        dispatch = native.Dispatch(plain, None)
        self.assertEqual((dispatch.__name__, dispatch.__doc__, dispatch.__wrapped__), ("plain", "Adds.", plain))
        self.assertEqual(inspect.signature(dispatch), inspect.signature(plain))
        functools.update_wrapper(dispatch, len)
        self.assertEqual((dispatch.__name__, dispatch.__module__), ("len", "builtins"))
        other = native.Dispatch(plain, None)
        self.assertEqual((other.__module__, type(other).__module__), (__name__, "framefuse._native"))
        other.__module__ = "elsewhere"
        self.assertEqual((other.__module__, plain.__module__), ("elsewhere", __name__))
        self.assertIs(copy.deepcopy(dispatch), dispatch)
        with self.assertRaises(TypeError):
            pickle.dumps(dispatch)
        self.assertIs(weakref.ref(dispatch)(), dispatch)

    def test_methods(self):
        class Holder:
            method = native.Dispatch(lambda self, x=1: (self, x), None)

        holder = Holder()
        for _ in range(50):  # the call site is specialised by now
            self.assertEqual(holder.method(2), (holder, 2))
        self.assertEqual(Holder.method(holder), (holder, 1))
        self.assertIs(holder.method.__self__, holder)

    def test_recursion(self):
        def f(x):
            return dispatch(x)

        dispatch = native.Dispatch(f, None)
        with self.assertRaises(RecursionError):
            dispatch(1)

    def test_exceptions_pass(self):
        def f():
            raise KeyError("own")

        for miss in (None, lambda args, kwargs: f()):
            with self.assertRaises(KeyError):
                native.Dispatch(f, miss)()

    def test_leaks(self):
        argument = object()
        dispatch = native.Dispatch(lambda a, *b, **c: None, lambda args, kwargs: None, owner=object())
        before = sys.getrefcount(argument)
        for _ in range(2000):
            dispatch(argument, argument, k=argument)
            dispatch.bind(argument, argument, k=argument)
        self.assertEqual(sys.getrefcount(argument), before)

    def test_cycles(self):
        def f():
            pass

        f.dispatch = native.Dispatch(f, [f].append)
        ref = weakref.ref(f.dispatch)
        del f
        gc.collect()
        self.assertIsNone(ref())


if __name__ == "__main__":
    unittest.main()
