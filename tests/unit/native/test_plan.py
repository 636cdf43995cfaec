"""The C plan executor against the one in Python, and what a run must survive."""

from __future__ import annotations

import collections
import ctypes
import dataclasses
import gc
import itertools
import math
import os
import sys
import threading
import time
import types
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.native import kernels, python_plan
from tests.unit.native.plans import Writer, word_of

from framefuse import _native
from framefuse.ir.plan import NUMBER_OPS, NumbersStep, Plan, ReleaseStep, Slot
from framefuse.native import abi

# Every behaviour below must hold whatever is known of torch: each entry leaves out one fact that plans use.
WITHOUT = [
    (),
    ("wrap",),
    ("getters",),
    ("handle",),
    ("grad_mode",),
    ("blas",),
    ("gomp",),
    ("num_threads",),
    ("key_set",),
    ("sizes",),
]


@pytest.fixture(
    scope="module", autouse=True, params=WITHOUT, ids=lambda names: "without-" + "-".join(names) if names else "all"
)
def known(request: pytest.FixtureRequest) -> Iterator[frozenset[str]]:
    yield abi.initialise(request.param)
    abi.initialise()


def same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        equal = type(left) is type(right) and left.dtype == right.dtype and left.shape == right.shape
        return (
            equal
            and left.stride() == right.stride()
            and torch.allclose(left, right, rtol=1e-5, atol=1e-6, equal_nan=True)
        )
    if isinstance(left, (list, tuple)):
        return type(left) is type(right) and len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    return type(left) is type(right) and (left == right or left != left)


def agree(plan: Plan, registers: tuple[Any, ...], numbers: tuple[int, ...] = ()) -> Any:
    """The result of both executors, or None where both decline."""
    program = _native.PlanProgram(plan)
    try:
        expected = python_plan.run_plan(plan, registers, numbers)
    except python_plan.Declined:
        for _ in range(2):
            with pytest.raises(_native.Declined):
                program.run(registers, numbers)
        return None
    for _ in range(2):
        assert same(program.run(registers, numbers), expected)
    return expected


def test_a_kernel_with_sizes_from_the_guards() -> None:
    w = Writer(bound=2)
    total = w.number("mul", 0, 1)
    x = w.input(0, (0, 1))
    out = w.fresh((0, 1))
    w.axpy(x, x, out, total, 2.0)
    plan = w.plan(("tensor", out))
    for shape in ((3, 5), (1, 1), (0, 4), (100, 7)):
        tensor = torch.randn(shape)
        result = agree(plan, (tensor,), shape)
        assert torch.allclose(result, tensor * 3)
        assert result.untyped_storage().nbytes() == tensor.numel() * 4 and result.untyped_storage().resizable()


def test_results_are_tensors_of_torch() -> None:
    w = Writer()
    n = w.const(6)
    x = w.input(0, (n,))
    out = w.fresh((n,))
    w.axpy(x, x, out, n)
    result = _native.PlanProgram(w.plan(("tensor", out))).run((torch.ones(6),), ())
    assert type(result) is torch.Tensor and result.device == torch.device("cpu") and result._version == 0
    assert result.is_leaf and not result.requires_grad and result._base is None
    result.resize_(100)
    with torch.inference_mode():
        inside = _native.PlanProgram(w.plan(("tensor", out))).run((torch.ones(6),), ())
    assert inside.is_inference()


def test_arena_and_views() -> None:
    w = Writer(bound=1)
    w.arena = w.number("mul", w.number("add", 0, w.const(64)), w.const(8))
    x = w.input(0, (0,))
    first = w.slot("arena", (0,), base=w.const(0))
    half = w.number("floordiv", 0, w.const(2))
    view = w.slot("view", (half,), base=first, offset=half)
    out = w.fresh((half,))
    w.axpy(x, x, first, 0, 1.0)
    w.axpy(view, view, out, half, 3.0)
    w.steps.append(ReleaseStep((out,)))
    w.steps.append(w.steps[0])
    w.axpy(view, view, out, half, 3.0)
    plan = w.plan(("tensor", out))
    for size in (4, 1000, 8, 0, 100000):
        agree(plan, (torch.randn(size),), (size,))
    program = _native.PlanProgram(plan)
    program.run((torch.randn(8),), (8,))
    small = program.arena_bytes
    program.run((torch.randn(4096),), (4096,))
    assert small < program.arena_bytes >= 4096 * 8
    grown = program.arena_bytes
    program.run((torch.randn(8),), (8,))
    assert program.arena_bytes == grown


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("accumulate", [False, True])
def test_matmul_in_every_layout(dtype: str, accumulate: bool) -> None:
    kind = getattr(torch, dtype)
    layouts = {"rows": lambda m, n: (m * n, n, 1), "columns": lambda m, n: (m * n, 1, m)}
    for (b, m, n, k), la, lc, lo in itertools.product(
        [
            (1, 3, 4, 5),
            (3, 2, 7, 4),
            (2, 1, 5, 3),
            (2, 4, 1, 3),
            (2, 3, 4, 1),
            (1, 1, 1, 1),
            (0, 2, 2, 2),
            (2, 3, 4, 0),
        ],
        *[layouts] * 3,
    ):
        w = Writer()
        sizes = [(b, m, k), (b, k, n), (b, m, n)]
        strides = [layouts[layout](*shape[1:]) for layout, shape in zip((la, lc, lo), sizes, strict=True)]
        slots = [w.strided("input", size, stride, dtype=dtype) for size, stride in zip(sizes, strides, strict=True)]
        w.inputs = [0, 1, 2]
        w.matmul(slots[2], slots[0], slots[1], (b, m, n, k), *strides, accumulate=accumulate)
        a, c, out = (
            torch.empty_strided(size, stride, dtype=kind).normal_() for size, stride in zip(sizes, strides, strict=True)
        )
        expected = (out if accumulate else 0) + a @ c
        _native.PlanProgram(w.plan(("const", None))).run((a, c, out), ())
        assert torch.allclose(out, expected, atol=1e-5), (la, lc, lo, b, m, n, k)


def test_matmul_of_broadcast_batches_and_many_threads() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        w = Writer()
        sizes = ((40, 32, 32), (40, 32, 32), (40, 32, 32))
        strides = ((1024, 32, 1), (0, 32, 1), (1024, 32, 1))
        slots = [w.strided("input", size, stride) for size, stride in zip(sizes, strides, strict=True)]
        w.inputs = [0, 1, 2]
        w.matmul(slots[2], slots[0], slots[1], (40, 32, 32, 32), *strides)
        a, c, out = torch.randn(40, 32, 32), torch.randn(32, 32), torch.empty(40, 32, 32)
        _native.PlanProgram(w.plan(("const", None))).run((a, c, out), ())
        assert torch.allclose(out, a @ c, atol=1e-5)
    finally:
        torch.set_num_threads(before)


def test_matmul_in_an_arena() -> None:
    w = Writer()
    n = w.const(8)
    w.arena = w.const(512)
    a = w.input(0, (n, n))
    middle = w.slot("arena", (n, n), base=w.const(256))
    out = w.fresh((n, n))
    w.matmul(middle, a, a, (1, 8, 8, 8), (0, 8, 1), (0, 8, 1), (0, 8, 1))
    w.axpy(middle, middle, out, w.const(64))
    tensor = torch.randn(8, 8)
    assert torch.allclose(agree(w.plan(("tensor", out)), (tensor,)), 2 * (tensor @ tensor), atol=1e-5)


def test_call_steps() -> None:
    w = Writer()
    n, m = w.const(3), w.const(4)
    x = w.input(0, (n, m))
    both = [w.slot("call", (m,)), w.slot("call", (m,), dtype="int64")]
    w.call(torch.max, (("tensor", x), ("const", 0)), outs=(((0,), both[0]), ((1,), both[1])))
    scaled = w.slot("call", (m,))
    w.call(torch.mul, (("tensor", both[0]), ("real", w.real(2.5))), scaled)
    plan = w.plan(("tuple", ("tensor", both[1]), ("tensor", scaled)))
    agree(plan, (torch.randn(3, 4),))
    with torch.enable_grad():
        result = agree(plan, (torch.randn(3, 4, requires_grad=True),))
        assert not result[1].requires_grad and torch.is_grad_enabled()


def test_a_call_with_gradient() -> None:
    for grad in (False, True):
        w = Writer()
        x = w.input(0, (w.const(3),))
        out = w.slot("call", (w.const(3),))
        w.call(torch.sin, (("tensor", x),), out, grad=grad)
        result = agree(w.plan(("tensor", out)), (torch.randn(3, requires_grad=True),))
        assert (result.grad_fn is not None) is grad


def test_calls_may_see_arena_memory_inside() -> None:
    w = Writer()
    n = w.const(6)
    w.arena = w.const(64)
    x = w.input(0, (n,))
    inner = w.slot("arena", (n,), base=w.const(0))
    flipped = w.slot("view", (w.const(3),), base=inner, offset=w.const(3))
    out = w.slot("call", (w.const(3),))
    w.axpy(x, x, inner, n)
    w.call(torch.sort, (("tensor", flipped),), outs=(((0,), out),), inside=True)
    tensor = torch.randn(6)
    assert torch.equal(agree(w.plan(("tensor", out)), (tensor,)), torch.sort(2 * tensor[3:])[0])
    w.steps[-1] = type(w.steps[-1])("sort", torch.sort, (("tensor", inner),), (), (((0,), out),))
    with pytest.raises(ValueError, match="arena"):
        _native.PlanProgram(w.plan(("tensor", out)))


def test_sizes_that_a_call_tells() -> None:
    for further in (False, True):
        w = Writer()
        x = w.input(0, (w.const(6),))
        count = w.free()
        found = w.slot("call", (count,))
        w.call(
            torch.masked_select, (("tensor", x), ("register", 1)), found, binds=((found, 0, count),), normal=(found,)
        )
        if further:
            double = w.free()
            w.steps.append(NumbersStep((("add", double, count, count),)))
        else:
            double = w.number("add", count, count)
        w.arena = w.number("mul", double, w.const(4))
        inner = w.slot("arena", (count,), base=w.const(0))
        out = w.fresh((count,))
        w.axpy(found, found, inner, count)
        w.axpy(inner, found, out, count)
        plan = w.plan(("tuple", ("tensor", out), ("int", double)))
        for _ in range(4):
            tensor = torch.randn(6)
            result = agree(plan, (tensor, tensor > 0))
            assert torch.allclose(result[0], 3 * tensor[tensor > 0])


def test_results_in_another_layout_are_copied() -> None:
    w = Writer()
    n, m = w.const(3), w.const(4)
    x = w.input(0, (m, n))
    out = w.slot("call", (n, m))
    w.call(torch.t, (("tensor", x),), out, normal=(out,))
    doubled = w.fresh((n, m))
    w.axpy(out, out, doubled, w.const(12))
    tensor = torch.randn(4, 3)
    assert torch.equal(agree(w.plan(("tensor", doubled)), (tensor,)), 2 * tensor.t())
    with pytest.raises(_native.Declined):
        _native.PlanProgram(w.plan(("tensor", doubled))).run((torch.randn(5, 3),), ())


def test_lazy_negatives_are_computed() -> None:
    w = Writer()
    n = w.const(4)
    x = w.input(0, (n,))
    out = w.slot("call", (n,))
    w.call(torch._neg_view, (("tensor", x),), out, normal=(out,))
    doubled = w.fresh((n,))
    w.axpy(out, out, doubled, n)
    assert torch.equal(
        _native.PlanProgram(w.plan(("tensor", doubled))).run((torch.ones(4),), ()), torch.full((4,), -2.0)
    )


def test_every_template() -> None:
    w = Writer(bound=2)
    x = w.input(0, (w.const(2),))
    marker = object()
    plan = w.plan((
        "tuple", ("tensor", x), ("int", 0), ("real", 1), ("const", marker), ("register", 2),
        ("list", ("int", 0), ("list",)), ("set", ("int", 0), ("const", "a")), ("frozenset", ("int", 0)),
        ("dict", (("const", "b"), ("int", 0)), (("int", 0), ("tuple",))),
        ("slice", ("int", 0), ("const", None), ("const", 2)),
        ("build", complex, ("real", 1), ("int", 0)), ("build", dict),
    ))  # fmt: skip
    held = ["held"]
    result = agree(plan, (torch.zeros(2), None, held), (7, word_of(2.5)))
    assert result[1:] == (
        7, 2.5, marker, held, [7, []], {7, "a"}, frozenset((7,)), {"b": 7, 7: ()}, slice(7, None, 2), complex(2.5, 7),
        {}
    )  # fmt: skip
    assert result[4] is held and list(result[8]) == ["b", 7]


class Slotted:
    __slots__ = ("value",)


class Guarded(collections.OrderedDict[str, Any]):
    """None of its own methods runs when it is made again."""

    def __init__(self) -> None:
        raise AssertionError

    def __setitem__(self, key: Any, value: Any) -> None:
        raise AssertionError

    def __setattr__(self, name: str, value: Any) -> None:
        raise AssertionError


def test_templates_of_objects() -> None:
    w = Writer(bound=1)
    x = w.input(0, (w.const(2),))
    one = (("const", "value"), ("tuple", ("int", 0), ("tensor", x)))
    inner = (("const", "inner"), ("object", Slotted, object, (), ()))
    entries = ((("const", "b"), ("int", 0)), (("const", "a"), ("tensor", x)))
    plan = w.plan((
        "tuple",
        ("object", Guarded, collections.OrderedDict, entries, (one,)),
        ("object", Slotted, object, (), (one,)),
        ("object", types.SimpleNamespace, types.SimpleNamespace, (), (one, inner)),
    ))  # fmt: skip
    program, tensor = _native.PlanProgram(plan), torch.zeros(2)
    for found in (program.run((tensor,), (7,)), python_plan.run_plan(plan, (tensor,), (7,))):
        named, slotted, plain = found
        assert type(named) is Guarded and list(dict.items(named)) == [("b", 7), ("a", tensor)]
        assert named.value[1] is tensor and type(slotted) is Slotted and slotted.value[0] == 7
        assert plain.value == (7, tensor) and not hasattr(plain.inner, "value")
    before = sys.getrefcount(Guarded), sys.getrefcount(tensor)
    for _ in range(100):
        program.run((tensor,), (7,))
    assert (sys.getrefcount(Guarded), sys.getrefcount(tensor)) == before
    bad = w.plan(("object", Slotted, object, (), ((("const", "other"), ("int", 0)),)))
    with pytest.raises(AttributeError):
        _native.PlanProgram(bad).run((tensor,), (7,))


class Named(NamedTuple):
    """None of its own methods runs when it is made again."""

    first: Any
    second: Any


class Careful(Named):
    def __new__(cls, *parts: Any) -> Careful:
        raise AssertionError


def test_templates_of_named_tuples() -> None:
    w = Writer(bound=1)
    x = w.input(0, (w.const(2),))
    parts = (("tensor", x), ("int", 0))
    kind = torch.return_types.topk
    plan = w.plan((
        "tuple", ("namedtuple", kind, kind, *parts), ("namedtuple", Named, tuple, *parts),
        ("namedtuple", Careful, tuple, *parts), ("namedtuple", torch.Size, torch.Size, ("int", 0), ("const", 3)),
    ))  # fmt: skip
    program, tensor = _native.PlanProgram(plan), torch.zeros(2)
    for found in (program.run((tensor,), (7,)), python_plan.run_plan(plan, (tensor,), (7,))):
        assert [type(one) for one in found] == [kind, Named, Careful, torch.Size]
        assert found[0].values is tensor and found[0].indices == found[1].second == found[2].second == 7
        assert found[2].first is tensor and found[3] == (7, 3)
    del found
    before = sys.getrefcount(kind), sys.getrefcount(Careful), sys.getrefcount(tensor)
    for _ in range(100):
        program.run((tensor,), (7,))
    assert (sys.getrefcount(kind), sys.getrefcount(Careful), sys.getrefcount(tensor)) == before


@pytest.mark.parametrize(
    "template",
    [("namedtuple",), ("namedtuple", Named), ("namedtuple", Named, list), ("namedtuple", 3, tuple),
     ("namedtuple", list, tuple), ("namedtuple", Named, tuple, 3),
     ("namedtuple", torch.return_types.topk, torch.return_types.topk, ("const", 1)),
     ("object",), ("object", 3, object, (), ()), ("object", Slotted, dict, (), ()),
     ("object", Slotted, object, ((("int", 0),) * 2,), ()),
     ("object", Slotted, object, (), (3,)),
     ("tensor",), ("tensor", 5), ("int", 9), ("nothing",), (), "int", ("const",), ("slice", ("const", 1)), ("build",),
        ("build", 3),
     ("list", 3), ("dict", (("const", 1),)), ("register", -1)],
)  # fmt: skip
def test_bad_templates_are_refused(template: Any) -> None:
    with pytest.raises(ValueError):
        _native.PlanProgram(Writer().plan(template))


def test_effects_run_in_order_after_the_steps() -> None:
    w = Writer()
    n = w.const(2)
    x = w.input(0, (n,))
    out = w.fresh((n,))
    w.axpy(x, x, out, n)
    seen: list[Any] = []
    w.finish = [(seen.append, (("tensor", out),)), (seen.append, (("const", 2),))]
    result = _native.PlanProgram(w.plan(("tensor", out))).run((torch.ones(2),), ())
    assert seen[0] is result and seen[1] == 2


def test_an_error_in_an_effect_is_the_programs_own() -> None:
    w = Writer()
    w.finish = [([].pop, ()), (print, (("const", "never"),))]
    with pytest.raises(IndexError):
        _native.PlanProgram(w.plan(("const", 1))).run((), ())


def fails(*args: Any) -> Any:
    raise RuntimeError("in the call")


def interrupts(*args: Any) -> Any:
    raise KeyboardInterrupt


def test_what_fails_before_the_effects_declines() -> None:
    effects: list[Any] = []

    def declines(w: Writer, registers: tuple[Any, ...] = (), numbers: tuple[int, ...] = ()) -> None:
        w.finish = [(effects.append, (("const", 1),))]
        program = _native.PlanProgram(w.plan(("const", 1)))
        for count in (1, 2):
            with pytest.raises(_native.Declined):
                program.run(registers, numbers)
            assert program.declines == count
        assert not effects and torch.is_grad_enabled()

    w = Writer()
    w.call(fails, ())
    declines(w)
    w = Writer()
    w.call(torch.add, (("const", 1), ("const", "x")))
    declines(w)
    w = Writer()
    x = w.input(0, (w.const(3),))
    w.negative(x, w.const(3))
    declines(w, (torch.tensor([1.0, -1.0, 0.0]),))
    w = Writer()
    w.input(0, (w.const(3),))
    declines(w, ("no tensor",))
    w = Writer(bound=1)
    w.number("floordiv", w.const(1), 0)
    declines(w, (), (0,))
    w = Writer()
    w.call(dict, (), w.slot("call", ()))
    declines(w)
    w = Writer(bound=1)
    w.fresh((0,))
    declines(w, (), (-5,))
    w = Writer(bound=1)
    w.arena = 0
    declines(w, (), (-1,))


def test_an_interrupt_is_not_answered_by_running_again() -> None:
    w = Writer()
    w.call(interrupts, ())
    with pytest.raises(KeyboardInterrupt):
        _native.PlanProgram(w.plan(("const", 1))).run((), ())


def test_gradient_mode_is_restored_after_a_failing_call() -> None:
    w = Writer()
    w.call(fails, ())
    with torch.enable_grad(), pytest.raises(_native.Declined):
        _native.PlanProgram(w.plan(("const", 1))).run((), ())
    assert torch.is_grad_enabled()


def big(words: int, parallel: bool = True) -> tuple[Plan, torch.Tensor]:
    w = Writer()
    n = w.const(words)
    w.arena = w.const(4 * words)
    x = w.input(0, (n,))
    inner = w.slot("arena", (n,), base=w.const(0))
    out = w.fresh((n,))
    w.axpy(x, x, inner, n, 2.0, work=1_000_000, parallel=parallel)
    w.axpy(inner, x, out, n, 2.0, work=1_000_000, parallel=parallel)
    return w.plan(("tensor", out)), torch.randn(words)


@pytest.mark.parametrize("words", [1, 2, 7, 1000, 65537])
def test_threads_of_a_kernel(words: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        plan, tensor = big(words)
        assert torch.allclose(_native.PlanProgram(plan).run((tensor,), ()), 7 * tensor)
    finally:
        torch.set_num_threads(before)


def test_four_python_threads_share_a_plan() -> None:
    plan, _ = big(50000, parallel=False)
    program = _native.PlanProgram(plan)
    wrong: list[int] = []

    def work(seed: int) -> None:
        tensor = torch.full((50000,), float(seed))
        for _ in range(40):
            if not torch.equal(program.run((tensor,), ()), 7 * tensor):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and program.runs == 160


def test_a_plan_that_runs_itself() -> None:
    programs: list[Any] = []
    w = Writer()
    n = w.const(3)
    w.arena = w.const(64)
    x = w.input(0, (n,))
    inner = w.slot("arena", (n,), base=w.const(0))
    out, again = w.fresh((n,)), w.slot("call", (n,))
    w.axpy(x, x, inner, n)

    def step(depth: int, tensor: torch.Tensor) -> torch.Tensor:
        return programs[0].run((tensor + 1, depth - 1), ()) if depth else tensor

    w.call(step, (("register", 1), ("tensor", x)), again)
    w.axpy(inner, again, out, n)
    programs.append(_native.PlanProgram(w.plan(("tensor", out))))
    # 2x + f(x + 1, depth - 1), with f(x, 0) = 3x
    tensor = torch.ones(3)
    assert torch.equal(programs[0].run((tensor, 3), ()), torch.full((3,), 2.0 * (1 + 2 + 3) + 12))
    programs.clear()


def test_a_child_after_fork_uses_one_thread() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        plan, tensor = big(65536)
        program = _native.PlanProgram(plan)
        expected = program.run((tensor,), ())
        child = os.fork()
        if child == 0:
            # torch's own threads hang here, so that not even the comparison may use them
            os._exit(0 if program.run((tensor,), ()).numpy().tobytes() == expected.numpy().tobytes() else 1)
        deadline = time.monotonic() + 20
        while (answer := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
            time.sleep(0.01)
        if answer == (0, 0):
            os.kill(child, 9)
            os.waitpid(child, 0)
        assert answer != (0, 0), "the child hangs"
        assert answer[1] == 0
    finally:
        torch.set_num_threads(before)


def test_kernels_of_python() -> None:
    """The interface is C's: any address of that type will do."""
    seen: list[Any] = []

    def body(buffers: Any, numbers: Any, begin: int, end: int) -> int:
        values = ctypes.cast(buffers[0], ctypes.POINTER(ctypes.c_float))
        seen.append(([values[i] for i in range(begin, end)], numbers[0], begin, end))
        return 0

    callback = kernels.KERNEL(body)
    w = Writer(bound=1)
    x = w.input(0, (w.const(3),))
    step = Writer.negative
    step(w, x, w.const(3))
    address = ctypes.cast(callback, ctypes.c_void_p).value
    assert address is not None
    w.steps = [type(w.steps[0])("python", address, (x,), (0,), w.const(3), w.const(1), False, callback)]
    _native.PlanProgram(w.plan(("const", None))).run((torch.tensor([1.0, 2.0, 3.0]),), (9,))
    assert seen == [([1.0, 2.0, 3.0], 9, 0, 3)]


def test_nothing_is_kept_between_runs() -> None:
    w = Writer()
    n = w.const(3)
    x = w.input(0, (n,))
    mid, out = w.fresh((n,)), w.slot("call", (n,))
    w.axpy(x, x, mid, n)
    w.call(torch.neg, (("tensor", mid),), out)
    program = _native.PlanProgram(w.plan(("tuple", ("tensor", out), ("register", 1))))
    tensor, held = torch.ones(3), type("Held", (), {})()
    refs = [weakref.ref(tensor), weakref.ref(held)]
    result = program.run((tensor, held), ())
    refs.append(weakref.ref(result[0]))
    del tensor, held, result
    gc.collect()
    assert [ref() for ref in refs] == [None, None, None]


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_many_runs_leak_nothing(known: frozenset[str]) -> None:
    w = Writer(bound=1)
    w.arena = w.number("mul", 0, w.const(4))
    x = w.input(0, (0,))
    inner, out = w.slot("arena", (0,), base=w.const(0)), w.fresh((0,))
    w.axpy(x, x, inner, 0)
    w.axpy(inner, inner, out, 0)
    w.negative(x, 0)
    program = _native.PlanProgram(
        w.plan(("list", ("tensor", out), ("int", 0), ("dict", (("const", 1), ("tuple", ("tensor", x))))))
    )
    good, bad = torch.ones(64), -torch.ones(64)

    def rounds(count: int) -> None:
        for _ in range(count):
            program.run((good,), (64,))
            try:
                program.run((bad,), (64,))
            except _native.Declined:
                pass

    full = len(known) == len(abi.FACTS)
    rounds(2000)
    before = resident()
    rounds(50000 if full else 3000)
    assert resident() - before < 2 << 20


def test_a_plan_in_a_cycle_is_collected() -> None:
    class Holder:
        pass

    holder = Holder()
    holder.program = _native.PlanProgram(Writer().plan(("const", holder)))  # type: ignore[attr-defined]
    ref = weakref.ref(holder)
    del holder
    gc.collect()
    assert ref() is None


@pytest.mark.parametrize(
    "change",
    [
        {"count": 0}, {"bound": 9}, {"arena": 9}, {"inputs": (0, 1, 2, 3)}, {"inputs": ()}, {"steps": (3,)},
        {"numbers": (("add", 0, 0, 99),)}, {"numbers": (("none", 0, 0, 0),)}, {"steps": (ReleaseStep((9,)),)},
        {"slots": (Slot("nowhere", "float32", (), ()),)}, {"slots": (Slot("input", "float31", (), ()),)},
        {"slots": (Slot("input", "float32", (0,), ()),)}, {"slots": (Slot("input", "float32", (), (), device="tpu"),)},
    ],
)  # fmt: skip
def test_plans_that_break_the_rules_are_refused(change: dict[str, Any]) -> None:
    w = Writer()
    x = w.input(0, (w.const(3),))
    w.negative(x, w.const(3))
    plan = w.plan(("const", None))
    fields = {name: getattr(plan, name) for name in plan.__dataclass_fields__}
    with pytest.raises(ValueError):
        _native.PlanProgram(Plan(**{**fields, **change}))


@pytest.mark.parametrize("known", [()], indirect=True)
class TestNumbers:
    """Arithmetic needs no torch: one set of facts is enough."""

    @settings(max_examples=400, deadline=None)
    @given(st.data())
    def test_integers(self, known: Any, data: st.DataObject) -> None:
        words = data.draw(
            st.lists(st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-9, 9)), min_size=2, max_size=2)
        )
        op = data.draw(st.sampled_from(["add", "sub", "mul", "floordiv", "mod", "min", "max"]))
        self.compare(op, words)

    @settings(max_examples=300, deadline=None)
    @given(st.data())
    def test_bits_and_powers(self, known: Any, data: st.DataObject) -> None:
        whole = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-9, 9))
        op = data.draw(st.sampled_from(["and", "or", "xor", "lshift", "rshift", "power"]))
        right = whole if op in ("and", "or", "xor") else st.integers(-2, 70)
        self.compare(op, [data.draw(whole), data.draw(right)])

    @settings(max_examples=400, deadline=None)
    @given(st.data())
    def test_roundings(self, known: Any, data: st.DataObject) -> None:
        halves = st.integers(-(2**60), 2**60).map(lambda k: k / 2)
        special = st.sampled_from([0.0, -0.0, 0.5, 1.5, -0.5, -1.5, 2.5, 2.0**63, -(2.0**63), 2.0**52 + 0.5, math.nan])
        value = data.draw(st.one_of(st.floats(), special, halves, st.floats(-100, 100)))
        self.compare(data.draw(st.sampled_from(["trunc", "floor", "ceil", "round"])), [word_of(value), 0])

    @settings(max_examples=900, deadline=None)
    @given(st.data())
    def test_reals(self, known: Any, data: st.DataObject) -> None:
        special = [0.0, -0.0, 1.0, -1.0, 0.5, -2.0, 3.0, math.inf, -math.inf, math.nan, 1e308, 5e-324]
        real = st.one_of(st.floats(), st.floats(-8, 8), st.sampled_from(special))
        op = data.draw(
            st.sampled_from([name for name in NUMBER_OPS if name.startswith("real_") and name != "real_const"])
        )
        if op == "real_of_int":
            self.compare(op, [data.draw(st.integers(-(2**63), 2**63 - 1)), 0])
        else:
            self.compare(op, [word_of(data.draw(real)), word_of(data.draw(real))])

    @staticmethod
    def compare(op: str, words: list[int]) -> None:
        try:
            expected = python_plan.number(op, *words)
        except python_plan.Declined:
            expected = None
        found = _native.numbers_run(((op, 2, 0, 1),), (*words, 0))
        if expected is None or found is None:
            assert found is None and expected is None, (op, words, found, expected)
        elif op.startswith("real") and math.isnan(python_plan.real_of(expected)):
            assert math.isnan(python_plan.real_of(found[2]))
        elif op == "real_pow":
            assert math.isclose(python_plan.real_of(found[2]), python_plan.real_of(expected), rel_tol=1e-15, abs_tol=0)
        else:
            assert found[2] == expected, (op, words)


def test_a_declined_run_puts_generators_back() -> None:
    own = torch.Generator()
    w = Writer()
    y = w.input(0, (w.const(3),))
    x = w.slot("call", (w.const(3),))
    w.call(torch.rand, (("const", 3),), x)
    w.call(lambda: torch.rand(3, generator=own), ())
    w.negative(y, w.const(3))
    plan = dataclasses.replace(w.plan(("tensor", x)), generators=(("const", torch.default_generator), ("register", 1)))
    program = _native.PlanProgram(plan)
    before = torch.get_rng_state(), own.get_state()
    for _ in range(2):
        with pytest.raises(_native.Declined):
            program.run((torch.tensor([1.0, -1.0, 0.0]), own), ())
        assert torch.equal(torch.get_rng_state(), before[0]) and torch.equal(own.get_state(), before[1])
    expected = torch.rand(3)
    torch.set_rng_state(before[0])
    assert torch.equal(program.run((torch.ones(3), own), ()), expected)
    assert not torch.equal(own.get_state(), before[1])


def test_after_a_call_that_commits_nothing_declines() -> None:
    sent: list[int] = []
    for broken in ("step", "kernel"):
        w = Writer()
        x = w.input(0, (w.const(3),))
        w.call(sent.append, (("const", 1),))
        w.steps[-1] = dataclasses.replace(w.steps[-1], commits=True)
        if broken == "step":
            w.call(fails, ())
        else:
            w.negative(x, w.const(3))
        program = _native.PlanProgram(w.plan(("const", 1)))
        with pytest.raises(RuntimeError, match="in the call" if broken == "step" else "cannot run twice") as raised:
            program.run((torch.tensor([1.0, -1.0, 0.0]),), ())
        assert program.declines == 0
        assert ["written its inputs" in note for note in raised.value.__notes__] == [True]
    assert sent == [1, 1]
    w = Writer()  # the error of a step that commits is its own: nothing was done before it
    w.call(fails, ())
    w.steps[-1] = dataclasses.replace(w.steps[-1], commits=True)
    with pytest.raises(RuntimeError, match="in the call") as raised:
        _native.PlanProgram(w.plan(("const", 1))).run((), ())
    assert not hasattr(raised.value, "__notes__")
    w = Writer()  # one that fails before it declines, and the next run starts anew
    x = w.input(0, (w.const(3),))
    w.negative(x, w.const(3))
    w.call(sent.append, (("const", 2),))
    w.steps[-1] = dataclasses.replace(w.steps[-1], commits=True)
    program = _native.PlanProgram(w.plan(("const", 1)))
    assert program.run((torch.ones(3),), ()) == 1
    with pytest.raises(_native.Declined):
        program.run((torch.tensor([1.0, -1.0, 0.0]),), ())
    assert sent == [1, 1, 2]
