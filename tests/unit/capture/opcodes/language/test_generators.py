"""Generators run, stop, receive and delegate as CPython's do."""

import inspect
import itertools
import sys
import types

import pytest
from tests.unit.capture.opcodes.language.table import Row, Table, check

TABLE = Table()
row = TABLE.row


def count(x, n):
    for i in range(n):
        yield x + i


def echo():
    got = None
    log = []
    while True:
        try:
            got = yield got
            log.append(got)
        except ValueError as error:
            log.append(str(error))
        if isinstance(got, str):
            return log


@row()
def made_and_drained():
    def f(x):
        return list(count(x, 3)), sum(count(x, 2))

    return f


@row()
def partly_consumed():
    def f(x):
        g = count(x, 4)
        a = next(g)
        for b in g:
            break
        return a, b, list(g), next(g, None)

    return f


@row(after=list)
def returned_new():
    def f(x):
        return count(x * 2, 3)

    return f


@row(eager="result", after=list)
def returned_partly_consumed():
    def f(x):
        g = count(x * 2, 3)
        next(g)
        return g

    return f


@row(after=list)
def returned_generator_expression():
    def f(x):
        y = x * 2
        return (y + i for i in range(3))

    return f


@row(after=lambda found: [(type(part).__name__, list(part)) for part in found])
def returned_iterators():
    def f(x):
        def scaled(value):
            return value * x

        return map(scaled, [1, 2]), enumerate(scaled(i) for i in range(2)), itertools.groupby([1, 3], key=lambda v: 1)

    return f


@row()
def send_and_receive():
    def f(x):
        g = echo()
        next(g)
        a = g.send(x * 2)
        b = g.throw(ValueError("v"))
        try:
            g.send("stop")
        except StopIteration as stop:
            return a, b, len(stop.value), stop.value[1]

    return f


@row()
def send_to_a_new_one():
    def f(x):
        g = echo()
        try:
            g.send(x)
        except TypeError as error:
            return x, str(error)

    return f


@row()
def throw_into_a_new_one():
    def f(x):
        g = count(x, 3)
        try:
            g.throw(KeyError("k"))
        except KeyError as error:
            return x, repr(error), list(g)

    return f


@row()
def throw_forms():
    def f(x):
        out = []
        for thrown in (ValueError, ValueError("b")):
            g = echo()
            next(g)
            out.append(g.throw(thrown))
        return x, out

    return f


@row()
def throw_of_no_exception():
    def f(x):
        g = echo()
        next(g)
        try:
            g.throw(3)
        except TypeError as error:
            return x, str(error)

    return f


@row()
def close_runs_finally():
    log = []

    def f(x):
        def g():
            try:
                yield x * 2
            finally:
                log.append("closed")

        it = g()
        y = next(it)
        it.close()
        it.close()
        return y, list(it)

    return f, lambda: list(log)


@row()
def close_that_is_ignored():
    def f(x):
        def g():
            for _ in range(2):
                try:
                    yield x
                except GeneratorExit:
                    pass

        it = g()
        next(it)
        try:
            it.close()
        except RuntimeError as error:
            text = str(error)
        return x, text

    return f


@row()
def close_that_raises():
    def f(x):
        def g():
            try:
                yield x
            except GeneratorExit:
                raise KeyError("inside") from None

        it = g()
        next(it)
        try:
            it.close()
        except KeyError as error:
            return x, repr(error), error.__suppress_context__

    return f


@row()
def return_value():
    def f(x):
        def g():
            yield 1
            return x * 3

        it = g()
        next(it)
        try:
            next(it)
        except StopIteration as stop:
            return stop.value

    return f


@row()
def delegation_returns():
    def f(x):
        def inner():
            got = yield x
            return got * 2

        def outer():
            a = yield from inner()
            b = yield from [1, 2]
            yield a
            return b

        it = outer()
        next(it)
        return [it.send(x + 1), *it]

    return f


@row()
def delegation_throws():
    def f(x):
        log = []

        def inner():
            try:
                yield x
            except ValueError as error:
                log.append(str(error))
                yield x * 2
            finally:
                log.append("inner")

        def outer():
            try:
                yield from inner()
            finally:
                log.append("outer")

        it = outer()
        next(it)
        y = it.throw(ValueError("in"))
        it.close()
        return y, log

    return f


@row()
def delegation_to_an_iterator_without_send():
    def f(x):
        def g():
            yield from iter([1, 2])

        it = g()
        next(it)
        try:
            it.send(3)
        except AttributeError as error:
            return x, str(error)

    return f


@row()
def delegation_to_an_object_with_protocol():
    def f(x):
        class It:
            def __iter__(self):
                return self

            def __next__(self):
                return 1

            def send(self, value):
                return value * 2

            def throw(self, *args):
                raise StopIteration("end")

            def close(self):
                log.append("closed")

        log = []

        def g():
            return (yield from It())

        it = g()
        a = next(it)
        b = it.send(x)
        try:
            it.throw(KeyError)
        except StopIteration as stop:
            log.append(stop.value)
        it = g()
        next(it)
        it.close()
        return a, b, log

    return f


@row()
def stop_iteration_inside():
    def f(x):
        def g():
            yield x
            raise StopIteration("inner")

        it = g()
        next(it)
        try:
            next(it)
        except RuntimeError as error:
            return x, str(error), repr(error.__cause__)

    return f


@row()
def exception_inside_ends_it():
    def f(x):
        def g():
            yield x
            raise KeyError("k")

        it = g()
        next(it)
        try:
            next(it)
        except KeyError:
            pass
        return x * 2, list(it)

    return f


@row()
def reentered():
    def f(x):
        def g():
            yield next(it)

        it = g()
        try:
            next(it)
        except ValueError as error:
            return x, str(error)

    return f


@row()
def attributes():
    def f(x):
        g = count(x, 2)
        out = [inspect.getgeneratorstate(g), g.gi_running, g.gi_yieldfrom, g.__name__, g.__qualname__]
        next(g)
        out += [inspect.getgeneratorstate(g), g.gi_code.co_name, sorted(g.gi_frame.f_locals)]
        list(g)
        out += [inspect.getgeneratorstate(g), g.gi_frame is None]
        return x * 2, out

    return f


@row()
def is_a_generator():
    def f(x):
        g = count(x, 2)
        ok = isinstance(g, types.GeneratorType), inspect.isgenerator(g), type(g) is types.GeneratorType
        return next(g), ok, iter(g) is g, hasattr(g, "send")

    return f


@row()
def generator_expression_scopes():
    def f(x):
        k = 2
        g = (x * i * k for i in range(3))
        k = 3
        return list(g)

    return f


@row()
def generator_of_generators():
    def f(x):
        g = ((x * i + j for j in range(2)) for i in range(3))
        return [list(inner) for inner in g]

    return f


@row()
def handled_exception_is_per_generator():
    def f(x):
        def g():
            try:
                raise ValueError("in")
            except ValueError:
                yield repr(sys.exc_info()[1])
                yield repr(sys.exc_info()[1])

        out = [repr(sys.exc_info()[1])]
        it = g()
        out.append(next(it))
        try:
            raise KeyError("out")
        except KeyError:
            out.append(next(it))
            out.append(repr(sys.exc_info()[1]))
        out.append(repr(sys.exc_info()[1]))
        return x * 2, out

    return f


@row()
def context_of_errors_inside():
    def f(x):
        def g():
            yield x
            raise ValueError("v")

        it = g()
        next(it)
        try:
            try:
                raise KeyError("k")
            except KeyError:
                next(it)
        except ValueError as error:
            return x * 2, repr(error.__context__)

    return f


@row()
def passed_to_native_consumers():
    def f(x):
        return (
            max(i for i in range(4)), sorted(-i for i in range(3)), ",".join(str(i) for i in range(3)),
            dict((i, x * i) for i in range(2)), tuple(x + i for i in range(2)), set(i % 2 for i in range(4)),
            list(map(lambda v: v + 1, (i for i in range(3)))), list(zip((i for i in range(2)), "ab")),
            any(i > 2 for i in range(4)), all(i < 2 for i in range(4)), list(enumerate(i for i in range(2))),
        )  # fmt: skip

    return f


@row()
def passed_to_itertools():
    def f(x):
        g = count(x, 5)
        a = list(itertools.islice(g, 2))
        return a, list(itertools.chain(g, [x])), list(itertools.islice(itertools.count(3), 2))

    return f


@row()
def unpacked():
    def f(x):
        a, b = count(x, 2)
        c, *d = count(x, 3)
        return a, b, c, d, [*count(x, 2)], {*(i for i in range(2))}

    return f


@row()
def unpacked_too_many():
    def f(x):
        try:
            a, b = count(x, 3)
        except ValueError as error:
            return x * 2, str(error)

    return f


@row()
def extended():
    def f(x):
        out = [x]
        out.extend(count(x, 2))
        out += count(x, 1)
        return out

    return f


@row()
def in_a_containment_test():
    def f(x):
        g = (i for i in range(5))
        return x * (2 in g), list(g)

    return f


@row()
def endless():
    def f(x):
        def forever():
            y = x
            while True:
                y = y * 0.5
                yield y

        return [y for _, y in zip(range(3), forever())]

    return f


@row()
def method_as_generator():
    class Tree:
        def __init__(self, left, value, right):
            self.left, self.value, self.right = left, value, right

        def __iter__(self):
            if self.left:
                yield from self.left
            yield self.value
            if self.right:
                yield from self.right

    tree = Tree(Tree(None, 1, None), 2, Tree(None, 3, None))

    def f(x):
        return [x * v for v in tree]

    return f


@row()
def passed_in():
    def g(x):
        yield x * 2
        yield x * 3

    def f(x):
        def use(it):
            return next(it) + next(it)

        return use(g(x))

    return f


@row(eager="native-call")
def captured_native_generator():
    g = (i for i in range(100))

    def f(x):
        return x * next(g)

    return f


@row()
def generator_in_a_class_attribute():
    def f(x):
        class C:
            values = (i * 2 for i in range(3))

        return x * sum(C.values)

    return f


@row()
def finally_runs_when_dropped():
    log = []

    def f(x):
        def g():
            try:
                yield x
            finally:
                log.append("end")

        for y in g():
            break
        return y * 2

    return f, lambda: list(log)


@row()
def dropped_in_order():
    def f(x):
        log = []

        def g():
            try:
                yield 1
            finally:
                log.append("end")

        it = g()
        next(it)
        log.append("before")
        del it
        log.append("after")
        return x * 2, log

    return f


@row()
def deep_delegation():
    def f(x):
        def g(n):
            if n:
                yield from g(n - 1)
            yield x * n

        return list(g(6))

    return f


@pytest.mark.parametrize("case", TABLE, ids=lambda case: case.name)
def test_generators(case: Row) -> None:
    check(case)
