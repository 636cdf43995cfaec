"""Looks for the smallest program that a trace serves which was made for another argument, and writes it as a test."""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from framefuse import api
from framefuse.ir.values import Function, Keywords, Value
from framefuse.verification.nearness import unlike
from framefuse.verification.other_arguments import APART, ROWS, VALUES

TWO = "    if {}:\n        return x + 1\n    return x - 1"
SHAPE = "x.shape[0]"
HELD = "n.value"  # a number, truth or text that an object holds


@dataclass(frozen=True, slots=True)
class GuardCase:
    """A function of a tensor ``x``, perhaps of a number too, and the arguments with which it is called in turn, each
    as an expression: the last of them is another than those before. Eager is called on what compiled code was called
    with, so that a body that writes must give the same when it is called once more.
    """

    about: str
    parameters: str
    body: str
    calls: tuple[str, ...]

    @property
    def text(self) -> str:
        """The case as a file that runs and is a test."""
        return "\n".join(
            [
                f'"""guards: {self.about}"""',
                *(["import types", ""] if HELD in self.body else []),
                "import torch",
                "",
                "import framefuse",
                "",
                "",
                f"def f({self.parameters}):",
                self.body,
                "",
                "",
                "def test_a_trace_serves_what_it_was_made_for():",
                "    fast = framefuse.compile(f)",
                f"    for given in [{', '.join(self.calls)}]:",
                "        torch.testing.assert_close(fast(*given), f(*given))",
                "",
            ]
        )

    def shows(self, options: Keywords) -> bool:
        """Whether compiled code gives another result than eager's."""
        space: dict[str, Value] = {"torch": torch}
        exec(compile(f"def f({self.parameters}):\n{self.body}", f"<{self.about}>", "exec"), space)
        function: Function = space["f"]
        fast = api.compile(function, options=options)
        for call in self.calls:
            args = eval(call, {"torch": torch, "types": types})
            try:
                found = fast(*args)
            except Exception:
                return True
            if unlike(found, function(*args), None):
                return True
        return False


def guard_case(about: str, was: Value, now: Value, options: Keywords) -> GuardCase | None:
    """The first case that shows that a trace made for ``was`` serves ``now``: a number, truth or text, a size where
    both are shapes, a container, None, other values of tensors (``VALUES``), one tensor for two (``APART``), matrices
    in another order (``ROWS``), another dtype or type; None where no case does.
    """
    return next((case for case in _cases(about, was, now) if case.shows(options)), None)


def _cases(about: str, was: Value, now: Value) -> Iterator[GuardCase]:
    if was is VALUES:
        calls = _called("(torch.tensor([1.0, -2.0]),)", "(torch.tensor([-2.0, 1.0]),)")
        bodies, parameters = ["    return x * float(x[0])", TWO.format("x[0] > 0")], "x"
    elif was is APART:
        calls = _called("(torch.ones(2), torch.ones(2))", "(torch.ones(2),) * 2")
        bodies, parameters = ["    return x.mul_(0).sin() + n", TWO.format("x is n")], "x, n"
    elif was is ROWS:
        calls = _called("(torch.ones(2, 3),)", "(torch.ones(3, 2).t(),)")
        bodies, parameters = [TWO.format("x.is_contiguous()"), "    return x.sin().flatten() * x.stride(0)"], "x"
    elif isinstance(was, torch.dtype):
        calls = _called(*(f"(torch.ones(2, dtype={dtype}),)" for dtype in (was, now)))
        bodies, parameters = [TWO.format(f"x.dtype == {was}"), "    return x.sin()"], "x"
    elif isinstance(was, torch.Size):
        calls = _called(*(f"(torch.ones({size[0]}),)" for size in (was, now)))
        bodies, parameters = [f"    return x * {SHAPE}", *_decided(SHAPE, was[0], now[0])], "x"
    else:
        calls, parameters = _called(*(f"(torch.ones(2), {_simple(value)!r})" for value in (was, now))), "x, n"
        if isinstance(was, bool):
            bodies = [TWO.format("n")]
        elif was is None:
            bodies = [TWO.format("n is None")]
        elif isinstance(was, dict):
            bodies = ["    return x * len(n)", TWO.format(f"{list(was)[-1]!r} in n")]
        elif type(was) is not type(now):
            bodies = [TWO.format(f"type(n) is {type(was).__name__}")]
        elif isinstance(was, (list, tuple)):
            bodies = ["    return x * len(n)", TWO.format(f"len(n) == {len(was)}")]
        elif isinstance(was, str):
            bodies = [TWO.format(f"n == {was!r}")]
        else:
            bodies = ["    return x * n", *_decided("n", was, now)]
    for body in bodies:
        yield GuardCase(about, parameters, body, calls)
    if isinstance(was, (int, float, str)):  # bool as well
        held = (f"(torch.ones(2), types.SimpleNamespace(value={value!r}))" for value in (was, now))
        yield GuardCase(about, parameters, TWO.format(f"{HELD} == {was!r}"), _called(*held))


def _simple(value: Value) -> Value:
    """An argument of the same kind that its text makes again."""
    if isinstance(value, torch.Tensor):
        return 2.0
    if isinstance(value, dict):
        return dict.fromkeys(value, 1.0)
    return type(value)([1.0] * len(value)) if isinstance(value, (list, tuple)) else value


def _called(was: str, now: str) -> tuple[str, ...]:
    """Two calls that record and run a trace, and one that it is not for."""
    return was, was, now


def _decided(name: str, was: Value, now: Value) -> Sequence[str]:
    """Bodies in which a number decides a branch."""
    order = f"{name} <= {was!r}" if now > was else f"{name} >= {was!r}"
    return [TWO.format(order), TWO.format(f"{name} == {was!r}")]
