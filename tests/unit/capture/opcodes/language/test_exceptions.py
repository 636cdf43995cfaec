"""Exceptions pass frames, finally blocks, groups and context managers as in CPython, with its texts and tracebacks."""

import contextlib
import sys
import traceback
import types

import pytest
from tests.unit.capture.opcodes.language.table import Row, Table, check

TABLE = Table()
NOTHING, TEXT, THREE = None, "a", 3
row = TABLE.row


class Odd(Exception):
    def __init__(self, code, *, why=None):
        super().__init__(code)
        self.code, self.why = code, why

    def __str__(self):
        return f"odd {self.code}"


@row(eager="raises")
def escapes_deep():
    def f(x):
        def g(n):
            if n == 0:
                raise ValueError("deep")
            return g(n - 1)

        return g(3) + x

    return f


@row(eager="raises")
def escapes_with_cause():
    def f(x):
        try:
            {}["k"]
        except KeyError as error:
            raise Odd(3, why="w") from error

    return f


@row(eager="raises")
def escapes_from_none():
    def f(x):
        try:
            1 // 0
        except ZeroDivisionError:
            raise Odd(4) from None

    return f


@row(eager="raises")
def escapes_with_context_in_finally():
    def f(x):
        try:
            raise KeyError("a")
        finally:
            int("no")

    return f


@row(eager="raises")
def escapes_through_generators():
    def f(x):
        def g():
            yield x
            raise Odd(1)

        def h():
            yield from g()

        return list(h())

    return f


@row(eager="raises")
def escapes_through_a_manager():
    @contextlib.contextmanager
    def manager():
        try:
            yield 1
        except KeyError as error:
            raise Odd(2) from error

    def f(x):
        with manager():
            raise KeyError("in")

    return f


@row(eager="raises")
def escapes_reraised():
    def f(x):
        try:
            raise Odd(5)
        except Odd as error:
            error.add_note("noted")
            raise

    return f


@row(eager="raises")
def escapes_as_variable():
    def f(x):
        try:
            raise Odd(5)
        except Odd as error:
            raise error

    return f


@row(eager="raises")
def escapes_from_torch():
    def f(x):
        return x @ x @ x

    return f


@row(eager="raises")
def escapes_from_a_property():
    class C:
        @property
        def p(self):
            return self.missing

    def f(x):
        return x + C().p

    return f


@row(eager="raises")
def escapes_from_a_comprehension():
    def f(x):
        return [x / i for i in (1, "a")]

    return f


@row()
def finally_order():
    log = []

    def f(x):
        def g():
            try:
                try:
                    raise ValueError("v")
                finally:
                    log.append(1)
            except ValueError:
                log.append(2)
                return x * 2
            finally:
                log.append(3)

        return g()

    return f, lambda: list(log)


@row()
def finally_replaces_the_exception():
    def f(x):
        def g():
            try:
                raise ValueError("lost")
            finally:
                return x * 2  # noqa: B012

        return g()

    return f


@row()
def finally_in_loops():
    def f(x):
        log = []
        for i in range(4):
            try:
                if i == 1:
                    continue
                if i == 3:
                    break
            finally:
                log.append(i)
        return x * 2, log

    return f


@row()
def else_and_finally():
    def f(x):
        log = []
        for bad in (False, True):
            try:
                if bad:
                    raise KeyError
            except KeyError:
                log.append("except")
            else:
                log.append("else")
            finally:
                log.append("finally")
        return x + 1, log

    return f


@row()
def chains():
    def f(x):
        try:
            try:
                raise KeyError("a")
            except KeyError as first:
                raise ValueError("b") from first
        except ValueError as error:
            return x * 2, repr(error.__cause__), repr(error.__context__), error.__suppress_context__

    return f


@row()
def from_none_keeps_the_context():
    def f(x):
        try:
            try:
                raise KeyError("a")
            except KeyError:
                raise ValueError("b") from None
        except ValueError as error:
            return x * 2, error.__cause__, repr(error.__context__), error.__suppress_context__

    return f


@row()
def context_over_calls():
    def f(x):
        def g():
            raise ValueError("b")

        try:
            try:
                raise KeyError("a")
            except KeyError:
                g()
        except ValueError as error:
            return x * 2, repr(error.__context__), error.__context__.__context__

    return f


@row()
def context_of_native_errors():
    def f(x):
        try:
            try:
                raise KeyError("a")
            except KeyError:
                int("z")
        except ValueError as error:
            return x * 2, repr(error.__context__)

    return f


@row()
def context_cycle_is_cut():
    def f(x):
        a, b = KeyError("a"), ValueError("b")
        try:
            try:
                raise a
            except KeyError:
                try:
                    raise b
                except ValueError:
                    raise a  # noqa: B904
        except KeyError as error:
            return x * 2, repr(error.__context__), repr(b.__context__)

    return f


@row()
def context_replaces_an_old_one():
    def f(x):
        old = ValueError("old")
        try:
            try:
                raise TypeError("t")
            except TypeError:
                raise old  # noqa: B904
        except ValueError:
            pass
        try:
            try:
                raise KeyError("k")
            except KeyError:
                raise old  # noqa: B904
        except ValueError as error:
            return x * 2, repr(error.__context__)

    return f


@row()
def bare_raise_keeps_the_object():
    def f(x):
        seen = []
        try:
            try:
                raise Odd(1)
            except Odd as error:
                seen.append(error)
                raise
        except Odd as error:
            return x * 2, error is seen[0], error.__context__, error.code

    return f


@row()
def bare_raise_without_one():
    def f(x):
        try:
            raise
        except RuntimeError as error:
            return x * 2, str(error)

    return f


@row()
def bare_raise_in_a_called_function():
    def f(x):
        def again():
            raise

        try:
            try:
                raise Odd(9)
            except Odd:
                again()
        except Odd as error:
            return x * 2, str(error), sys.exc_info()[0] is Odd

    return f


@row()
def variable_is_unbound_after():
    def f(x):
        try:
            raise KeyError
        except KeyError as error:
            pass
        try:
            error  # noqa: F821
        except UnboundLocalError as other:
            return x * 2, str(other)

    return f


@row()
def raising_what_is_no_exception():
    def f(x):
        texts = []
        for thing in (3, "text", object, None):
            try:
                raise thing
            except TypeError as error:
                texts.append(str(error))
        try:
            raise KeyError from 3
        except TypeError as error:
            texts.append(str(error))
        return x * 2, texts

    return f


@row()
def matching_what_is_no_exception():
    def f(x):
        try:
            try:
                raise KeyError("k")
            except TEXT:
                pass
        except TypeError as error:
            return x * 2, str(error), repr(error.__context__)

    return f


@row()
def class_that_makes_no_exception():
    class Bad(Exception):
        def __new__(cls):
            return 3

    def f(x):
        try:
            raise Bad
        except TypeError as error:
            return x * 2, str(error)

    return f


@row()
def tuple_of_kinds():
    def f(x):
        out = []
        for kind in (KeyError, IndexError, ValueError):
            try:
                raise kind("v")
            except (LookupError, ArithmeticError) as error:
                out.append(repr(error))
            except Exception as error:
                out.append(str(error))
        return x * 2, out

    return f


@row()
def user_exception_with_init():
    def f(x):
        try:
            raise Odd(3, why="because")
        except Odd as error:
            return x * error.code, error.why, str(error), error.args

    return f


@row()
def group_split():
    def f(x):
        log = []
        try:
            raise ExceptionGroup("g", [ValueError("a"), KeyError("b"), ExceptionGroup("h", [ValueError("c")])])
        except* ValueError as group:
            log.append([repr(error) for error in group.exceptions])
        except* KeyError as group:
            log.append((group.message, len(group.exceptions)))
        return x * 2, log

    return f


@row(eager="raises")
def group_rest_escapes():
    def f(x):
        try:
            raise ExceptionGroup("g", [ValueError("a"), KeyError("b")])
        except* ValueError:
            pass

    return f


@row()
def group_of_a_plain_exception():
    def f(x):
        try:
            raise ValueError("plain")
        except* ValueError as group:
            out = type(group).__name__, group.message, repr(group.exceptions)
        return x * 2, out

    return f


@row()
def group_raised_inside():
    def f(x):
        try:
            try:
                raise ExceptionGroup("g", [ValueError("a"), KeyError("b")])
            except* ValueError:
                raise TypeError("new")  # noqa: B904
        except ExceptionGroup as group:
            return x * 2, [repr(e) for e in group.exceptions], group.message

    return f


@row()
def group_not_matched():
    def f(x):
        try:
            try:
                raise ExceptionGroup("g", [ValueError("a")])
            except* KeyError:
                pass
        except ExceptionGroup as group:
            return x * 2, repr(group)

    return f


@row()
def group_with_else_and_finally():
    def f(x):
        log = []
        try:
            pass
        except* ValueError:
            log.append("no")
        else:
            log.append("else")
        finally:
            log.append("finally")
        return x * 2, log

    return f


@row()
def group_star_of_group_is_an_error():
    def f(x):
        try:
            try:
                raise ValueError("a")
            except* ExceptionGroup:
                pass
        except TypeError as error:
            return x * 2, str(error)

    return f


@row()
def group_methods():
    def f(x):
        group = ExceptionGroup("g", [ValueError("a"), KeyError("b")])
        match, rest = group.split(ValueError)
        return x * 2, repr(match), repr(rest), repr(group.subgroup(KeyError))

    return f


@row()
def managers_of_the_user():
    class Manager:
        def __init__(self, log, swallow):
            self.log, self.swallow = log, swallow

        def __enter__(self):
            self.log.append("in")
            return self

        def __exit__(self, kind, error, trace):
            self.log.append((kind and kind.__name__, str(error), trace is None))
            return self.swallow

    def f(x):
        log = []
        with Manager(log, True) as m:
            raise ValueError("v")
        try:
            with Manager(log, False), Manager(log, 0):
                raise KeyError("k")
        except KeyError:
            log.append("caught")
        with m:
            pass
        return x * 2, log

    return f


@row()
def manager_with_return_and_break():
    def f(x):
        log = []

        @contextlib.contextmanager
        def manager(name):
            log.append("+" + name)
            try:
                yield name
            finally:
                log.append("-" + name)

        def g():
            for name in "abc":
                with manager(name):
                    if name == "b":
                        return x * 2

        return g(), log

    return f


@row()
def not_a_manager():
    def f(x):
        class Half:
            def __enter__(self):
                return 1

        texts = []
        for thing in (3, Half()):
            try:
                with thing:
                    pass
            except TypeError as error:
                texts.append(str(error))
        return x * 2, texts

    return f


@row()
def contextlib_all():
    def f(x):
        log = []

        class Thing:
            def close(self):
                log.append("closed")

        with contextlib.suppress(KeyError, ValueError):
            raise KeyError("k")
        with contextlib.closing(Thing()) as thing:
            log.append(type(thing).__name__)
        with contextlib.nullcontext(3) as three:
            log.append(three)
        with contextlib.ExitStack() as stack:
            stack.callback(log.append, "callback")
            stack.enter_context(contextlib.suppress(ValueError))
            stack.push(lambda *info: log.append(info[0] and info[0].__name__))
            raise ValueError("v")
        return x * 2, log

    return f


@row()
def exit_stack_order_and_pop():
    def f(x):
        log = []

        @contextlib.contextmanager
        def manager(i):
            log.append(i)
            yield i
            log.append(-i)

        with contextlib.ExitStack() as stack:
            values = [stack.enter_context(manager(i)) for i in range(1, 4)]
            kept = stack.pop_all()
            log.append("left")
        kept.close()
        return x * sum(values), log

    return f


@row()
def exit_stack_chains_exceptions():
    def f(x):
        def bad(*info):
            raise KeyError("exit")

        try:
            with contextlib.ExitStack() as stack:
                stack.push(bad)
                raise ValueError("body")
        except KeyError as error:
            return x * 2, repr(error.__context__)

    return f


@row()
def manager_as_decorator():
    def f(x):
        log = []

        @contextlib.contextmanager
        def manager():
            log.append("in")
            yield
            log.append("out")

        @manager()
        def g(y):
            return y * 2

        class D(contextlib.ContextDecorator):
            def __enter__(self):
                log.append("D")

            def __exit__(self, *info):
                log.append("d")

        @D()
        def h(y):
            return y + 1

        return g(x), g(x), h(x), log

    return f


@row()
def manager_that_yields_twice():
    def f(x):
        @contextlib.contextmanager
        def bad():
            yield 1
            yield 2

        @contextlib.contextmanager
        def worse():
            return
            yield

        texts = []
        for manager in (bad, worse):
            try:
                with manager():
                    pass
            except RuntimeError as error:
                texts.append(str(error))
        return x * 2, texts

    return f


@row()
def manager_sees_stop_iteration():
    def f(x):
        @contextlib.contextmanager
        def manager():
            yield 1

        try:
            with manager():
                raise StopIteration("mine")
        except StopIteration as error:
            return x * 2, error.value

    return f


@row()
def exc_info_in_frames():
    def f(x):
        out = [sys.exc_info()[0]]
        try:
            raise KeyError("k")
        except KeyError:
            out.append(sys.exc_info()[0])
            try:
                raise ValueError
            except ValueError:
                out.append(sys.exc_info()[0])
            out.append(sys.exc_info()[0])
        out.append(sys.exc_info()[0])
        return x * 2, out

    return f


@row(eager="native-call")
def traceback_seen_inside():
    def f(x):
        def g():
            raise KeyError("k")

        try:
            g()
        except KeyError as error:
            entries = traceback.extract_tb(error.__traceback__)
            return x * 2, [(entry.name, entry.lineno) for entry in entries if "language" in entry.filename][-2:]

    return f


@row()
def with_traceback():
    def f(x):
        try:
            raise KeyError("k").with_traceback(None)
        except KeyError as error:
            return x * 2, isinstance(error.__traceback__, types.TracebackType)

    return f


@row()
def error_texts_of_native_operations():
    def f(x):
        texts = []
        for action in (
            lambda: 1 + "a", lambda: [] < 3, lambda: None.a, lambda: {}[[]], lambda: [1][5], lambda: TEXT @ 2,
            lambda: -"a", lambda: THREE(), lambda: len(3), lambda: iter(3), lambda: {}["k"], lambda: [1][TEXT],
            lambda: (1).b, lambda: 3 in 4, lambda: f"{3:zz}", lambda: int("x"), lambda: [].pop(),
            lambda: next(iter([])),
            lambda: x.nothing, lambda: type.nothing, lambda: [*3], lambda: {**3}, lambda: 1 // 0,
            lambda: "abc".index("z"),
            lambda: THREE[0], lambda: abs("a"), lambda: sum(["a"]), lambda: max([]), lambda: sorted([1, "a"]),
        ):  # fmt: skip
            try:
                action()
            except Exception as error:
                texts.append((type(error).__name__, str(error)))
        return x * 2, texts

    return f


@row()
def stores_that_fail():
    def f(x):
        texts = []

        def put(thing):
            thing.a = 1

        def put_item(thing):
            thing[0] = 1

        def drop(thing):
            del thing.a

        def drop_item(thing):
            del thing[0]

        for action in (put, put_item, drop, drop_item):
            for thing in (3, (1,), object()):
                try:
                    action(thing)
                except Exception as error:
                    texts.append((type(error).__name__, str(error)))
        return x * 2, texts

    return f


@row()
def notes():
    def f(x):
        try:
            error = ValueError("v")
            error.add_note("one")
            raise error
        except ValueError as caught:
            return x * 2, caught.__notes__

    return f


@row(eager="result", after=repr)
def returned_exception():
    def f(x):
        x + 1
        try:
            raise KeyError("k")
        except KeyError as error:
            return error

    return f


@pytest.mark.parametrize("case", TABLE, ids=lambda case: case.name)
def test_exceptions(case: Row) -> None:
    check(case)
