"""A fault in the recorder's own work ends the recording and nothing else: the call goes on as eager does."""

import ast
import importlib
import inspect
import logging
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import framefuse
from framefuse.capture.callables import native_calls, policy
from framefuse.capture.facts import contents, effects, functions, hidden_state, relations, sources, told_apart
from framefuse.capture.recording import call_arguments, outcome, recorder, run_time_sizes, written_memory
from framefuse.driver import faults
from framefuse.errors import CompilerBug

record = importlib.import_module("framefuse.capture.record")  # the name in its package is the function


class Injected(Exception):
    """Raised in our own code."""


class Counter:
    def __init__(self) -> None:
        self.calls, self.log, self.table = 0, [1.0], {"k": 2}

    @property
    def twice(self) -> int:
        return self.calls * 2


GAIN = 3


def program() -> tuple[Callable[..., Any], Callable[[], Any]]:
    """A function that reads and writes all kinds of places, with a view of what it wrote."""
    counter, total = Counter(), 0

    def f(x: torch.Tensor, values: list[int], scale: float) -> Any:
        nonlocal total
        total += 1
        counter.calls += 1
        counter.log.append(total)
        counter.table["n"] = x.shape[0]
        y = x * scale + counter.twice * GAIN
        y.add_(values[0] + len(values))
        rows = [y[i] for i in range(x.size(0))]
        try:
            {}["missing"]
        except KeyError as error:
            text = str(error)
        z = torch.relu(torch.stack(rows)).sum(0, keepdim=True) if isinstance(x, torch.Tensor) else None
        if x.shape[0] > 1:
            z = z / x.shape[0]
        return z, text, {"rows": tuple(rows), "n": x.shape[0] * 2}, values[-1] in (1, 2)

    return f, lambda: (total, counter.calls, counter.log, counter.table)


PLACES = [
    (sources, "Fact"), (sources, "place_of"), (sources, "Source"), (hidden_state, "has_hidden_state"),
    (contents, "Change"), (contents, "is_key"), (effects, "Write"), (effects, "settle"),
    (recorder, "describe"), (recorder, "Call"), (call_arguments, "Ref"), (written_memory, "versions_of"),
    (relations, "Relation"),
    (recorder.call_names, "may_be_random"), (recorder, "special"), (recorder, "keys_of"), (outcome, "dense_order"),
    (policy.leaves, "is_torch_native"), (outcome, "Input"), (record, "Recipes"), (record, "Trace"),
]  # fmt: skip


def failing(real: Any, after: int, hits: list[int]) -> Any:
    left = [after]

    def fails(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            hits.append(1)
            raise Injected("on purpose")
        return real(*args, **kwargs)

    return fails


def call(function: Any, number: int) -> Any:
    x = torch.rand(3, 4, generator=torch.Generator().manual_seed(number))
    return x, function(x, [number + 1, 2], 1.5)


def assert_same(got: Any, expected: Any) -> None:
    (x, (z, *rest)), (ex, (ez, *erest)) = got, expected
    torch.testing.assert_close(x, ex)
    torch.testing.assert_close(z, ez)
    torch.testing.assert_close(rest[1].pop("rows"), erest[1].pop("rows"))
    assert rest == erest
    assert type(rest[1]["n"]) is int


@pytest.mark.parametrize("after", [0, 1, 4])
@pytest.mark.parametrize(("module", "name"), PLACES, ids=lambda part: getattr(part, "__name__", part))
def test_a_fault_costs_the_trace_only(
    module: Any,
    name: str,
    after: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(faults, "_reported", {})
    eager, watch_eager = program()
    plain, watch = program()
    compiled = framefuse.compile(plain, options={"check": False, "report": str(tmp_path)})
    hits: list[int] = []
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(module, name, failing(getattr(module, name), after, hits))
        assert_same(call(compiled, 0), call(eager, 0))
    assert watch() == watch_eager()
    if hits:
        assert not compiled.entries
        (reason,) = framefuse.api.compiled_function(compiled).reasons
        assert reason.code == "fault" and "on purpose" in reason.fact
        (said,) = [line.getMessage() for line in caplog.records if "on purpose" in line.getMessage()]
        (folder,) = tmp_path.glob("fault_*")
        assert str(folder) in said and str(folder) in reason.advice
        assert "on purpose" in (folder / "error.txt").read_text()
    compiled.__framefuse__.reset()
    for number in range(1, 6):  # and without a fault it compiles
        assert_same(call(compiled, number), call(eager, number))
        assert watch() == watch_eager()
    assert compiled.hits


@pytest.mark.first_call
def test_each_place_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    reached = 0
    for module, name in PLACES:
        hits: list[int] = []
        with monkeypatch.context() as patch:
            patch.setattr(module, name, failing(getattr(module, name), 0, hits))
            call(framefuse.compile(program()[0], options={"check": False}), 0)
        reached += bool(hits)
    assert reached >= len(PLACES) - 3


def test_check_raises_the_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "describe", failing(None, 0, []))
    with pytest.raises(CompilerBug, match="on purpose"):
        call(framefuse.compile(program()[0], options={"check": True}), 0)


def test_the_programs_own_errors_are_none_of_ours() -> None:
    def f(x: torch.Tensor) -> Any:
        try:
            return x.size(7)
        except IndexError as error:
            return x, type(error).__name__

    compiled = framefuse.compile(f, options={"check": True})
    for size in (2, 3, 4):
        assert compiled(torch.ones(size))[1] == f(torch.ones(size))[1]


# Methods whose body is one ``try``: what they do is the recorder's own, so no exception of the program comes from them.
NETS = {
    sources.Sources: (
        "source_of root fact guard_value assign_source read read_at instance_dict guard_absent "
        "guard_absent_names guard_type guard_version tell_apart"
    ),
    hidden_state: "refuse_hidden_state",
    told_apart: "guard_partition",
    functions.Functions: "guard read_global guard_unset_global enter assign_cells read_cell guard_unset_cell",
    contents.Contents: (
        "change own guard_length guard_filled item holds_moving_number guard_membership guard_extent "
        "guard_shallow_contents guard_deep_contents guard_bare guard_empty_dicts"
    ),
    effects.Journal: "place class_number global_variable operation content settle",
    relations.Relations: "relate derive short pin_real pin_sizes",
    recorder.Recorder: "line number _prepare _note",
    run_time_sizes.Sizes: "of at",
    call_arguments.CallArguments: "of",
    native_calls.Natives: "_unseen",
    policy: "policy_of stop_of",
}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in NETS.items() for name in names.split()])
def test_a_fault_in_a_netted_method_ends_the_recording(kind: Any, name: str) -> None:
    (method,) = ast.parse(textwrap.dedent(inspect.getsource(vars(kind)[name]))).body
    assert isinstance(method, ast.FunctionDef)
    net = method.body[-1]
    assert isinstance(net, ast.Try) and not net.orelse and not net.finalbody
    assert len(method.body) == 1 or (ast.get_docstring(method) is not None and len(method.body) == 2)
    (handler,) = net.handlers
    assert handler.type is not None and ast.unparse(handler.type) == "Exception" and handler.name == "fault"
    assert ast.unparse(handler.body[0]).endswith("fault(fault)")
    assert len(handler.body) == 2 or (method.returns is not None and ast.unparse(method.returns) == "None")


def test_no_other_method_of_these_hides_a_fault() -> None:
    for kind, names in NETS.items():
        found = [
            name
            for name, method in vars(kind).items()
            if inspect.isfunction(method) and "except Exception as fault" in inspect.getsource(method)
        ]
        assert sorted(found) == sorted(names.split())
