"""record() is the eager call, and its trace replayed on other arguments is the eager call on those."""

import copy
import dataclasses
from typing import Any

import pytest
import torch
from tests.unit.capture import programs
from tests.unit.capture.replay import equal, replay

from framefuse.capture.entry import bind
from framefuse.capture.record import record
from framefuse.guards.check import explain
from framefuse.guards.program import build


class Side:
    """One instance of a program, with its own state and its own random numbers."""

    def __init__(self, program: Any) -> None:
        made = list(program.make())
        made += [(), {}, None, None][len(made) - 2 :]
        self.function, self.arguments, self.watched, self.kwargs, self.stop, self.view = made
        self.generator = torch.Generator().manual_seed(0)

    def args(self, size: int) -> tuple[Any, ...]:
        return self.arguments(lambda *sizes: torch.randn(*sizes, generator=self.generator), size)

    def seen(self, value: Any) -> Any:
        return self.view(value) if self.view is not None else value

    def state(self) -> list[Any]:
        return copy.deepcopy([watch() for watch in self.watched])


def run(function: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    try:
        return function(*args, **kwargs), None
    except Exception as error:
        return None, error


def bound_guards(trace: Any) -> Any:
    """The guards of a trace less the relations over sizes of intermediate values, which lowering substitutes."""
    assumed = trace.assumptions
    bound = {size for given in assumed.inputs for size in given.spec.sizes} | {
        f.value for f in assumed.facts if f.kind == "integer"
    }
    kept = tuple(r for r in assumed.relations if (r.left.symbols | r.right.symbols) <= bound)
    return build(dataclasses.replace(assumed, relations=kept)).program


@pytest.mark.parametrize("grad", [False, True], ids=["no_grad", "grad"])
@pytest.mark.parametrize("program", programs.TABLE, ids=lambda program: program.name)
def test_program(program: Any, grad: bool) -> None:
    eager, ours = Side(program), Side(program)
    stop = ours.stop or program.stop
    if stop == "custom-function" and not grad:
        stop = None  # without gradients its forward is like any function
    with torch.set_grad_enabled(grad):
        programs.COUNTER, programs.REGISTRY[:] = 0, []
        first, second = eager.args(4), eager.args(6)
        torch.manual_seed(0)
        expected, error = run(eager.function, first, eager.kwargs)
        torch.set_grad_enabled(grad)
        expected = eager.seen(expected)
        middle = (eager.state(), programs.COUNTER, len(programs.REGISTRY))
        torch.manual_seed(1)
        later = eager.seen(run(eager.function, second, eager.kwargs)[0])
        torch.set_grad_enabled(grad)
        last = (eager.state(), programs.COUNTER, len(programs.REGISTRY))

        programs.COUNTER, programs.REGISTRY[:] = 0, []
        args, fresh = ours.args(4), ours.args(6)
        torch.manual_seed(0)
        made = record(ours.function, args, ours.kwargs)
        torch.set_grad_enabled(grad)
        value = ours.seen(made.value)
        assert type(made.exception) is type(error) and str(made.exception) == str(error)
        assert error is not None or equal(expected, value)
        assert equal(first, args), "the arguments after the call"
        assert equal(list(middle[0]), ours.state()) and middle[1:] == (programs.COUNTER, len(programs.REGISTRY))
        if stop is not None:
            assert made.trace is None and made.reason is not None and made.reason.code == stop, str(made.reason)
            return
        assert made.trace is not None, str(made.reason)
        missed = explain(bound_guards(made.trace), bind(ours.function, fresh, ours.kwargs))
        assert (missed is not None) is program.once, missed
        torch.manual_seed(1)
        again = replay(made.trace, ours.function, *fresh, **ours.kwargs)
        assert equal(later, ours.seen(again))
        assert equal(second, fresh), "the arguments after the replay"
        assert equal(list(last[0]), ours.state()) and last[1:] == (programs.COUNTER, len(programs.REGISTRY))
