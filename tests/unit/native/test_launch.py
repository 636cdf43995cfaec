"""Launch steps against a driver of GPUs that are not there: its kernels run on the CPU, over the CPU's memory."""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.unit.native.fake_driver import FakeDriver, fake_driver
from tests.unit.native.plans import Writer, word_of

from framefuse import _native
from framefuse.ir.plan import AllocStep, GuardProgram, LaunchStep, ReleaseStep
from framefuse.ir.plan_printer import plan_text
from framefuse.native import abi

LAUNCH_FAILED = 719


@pytest.fixture
def streams() -> Iterator[dict[int, int]]:
    """Torch has no streams of these GPUs: a dict stands for them, by device."""
    state: dict[int, int] = {}
    python = dict(abi.FALLBACKS)
    abi.FALLBACKS["stream"] = lambda device: state.get(device, 0)
    abi.initialise(without=("stream",))
    yield state
    abi.FALLBACKS.update(python)
    abi.initialise()


@pytest.fixture
def driver(streams: dict[int, int]) -> Iterator[FakeDriver]:
    with fake_driver() as driver:
        yield driver


def axpy_plan(driver: FakeDriver, variant: Any = None, scale: float = 2.0, **rest: Any) -> Any:
    """``scale * x + y`` over the bound number of elements."""
    w = Writer(bound=1)
    x, y = w.input(0, (0,)), w.input(1, (0,))
    out = w.fresh((0,))
    number = w.real(scale)
    arguments = [("pointer", x), ("pointer", y), ("pointer", out), ("real32", number), ("int32", 0)]
    w.launch(driver.function("axpy"), arguments, 0, variant, **rest)
    return w.plan(("tensor", out))


def test_arguments_grid_and_results(driver: FakeDriver) -> None:
    program = _native.PlanProgram(axpy_plan(driver, threads=64, shared=1024))
    for size in (1, 3, 4, 5, 1000):
        x, y = torch.randn(size), torch.randn(size)
        assert torch.equal(program.run((x, y), (size,)), 2 * x + y)
        launch = driver.launches[-1]
        assert (launch.name, launch.grid, launch.threads, launch.shared) == ("axpy", -(-size // 4), 64, 1024)
        assert launch.parameters_null == 1 and launch.stream is None and launch.device == 0
    assert program.runs == 5 and program.declines == 0 and driver.launch_count == 5


def test_every_kind_of_number(driver: FakeDriver) -> None:
    w = Writer(bound=3)
    one = w.const(1)
    out = w.fresh((w.const(4),), dtype="float64")
    arguments = [("pointer", out), ("int64", 0), ("int32", 1), ("real64", 2), ("real32", 2)]
    w.launch(driver.function("kinds"), arguments, one)
    program = _native.PlanProgram(w.plan(("tensor", out)))
    for wide, narrow, real in ((1 << 40, -5, 0.1), (-(1 << 62), 2**31 - 1, -1e30), (0, -(2**31), float("inf"))):
        result = program.run((), (wide, narrow, word_of(real)))
        assert result.tolist() == [float(wide), float(narrow), real, ctypes.c_float(real).value]


def test_nothing_is_launched_over_no_points(driver: FakeDriver) -> None:
    program = _native.PlanProgram(axpy_plan(driver))
    result = program.run((torch.empty(0), torch.empty(0)), (0,))
    assert result.shape == (0,) and driver.launch_count == 0 and program.declines == 0


def test_a_number_that_32_bits_do_not_hold_declines(driver: FakeDriver) -> None:
    w = Writer(bound=1)
    out = w.fresh((w.const(4),), dtype="float64")
    real = w.real(0.0)
    arguments = [("pointer", out), ("int64", 0), ("int32", 0), ("real64", real), ("real32", real)]
    w.launch(driver.function("kinds"), arguments, w.const(1))
    program = _native.PlanProgram(w.plan(("tensor", out)))
    for number in (2**31, -(2**31) - 1, 2**32, 2**63 - 1):
        with pytest.raises(_native.Declined):
            program.run((), (number,))
    assert driver.launch_count == 0
    for number in (2**31 - 1, -(2**31)):
        assert program.run((), (number,)).tolist()[:2] == [number, number]


def test_more_programs_than_a_grid_holds_decline(driver: FakeDriver) -> None:
    w = Writer(bound=1)
    out = w.fresh((w.const(4),), dtype="float64")
    one = w.const(1)
    real = w.real(0.0)
    arguments = [("pointer", out), ("int64", 0), ("int32", one), ("real64", real), ("real32", real)]
    w.launch(driver.function("kinds"), arguments, 0, blocks=2)
    program = _native.PlanProgram(w.plan(("tensor", out)))
    program.run((), (2 * (2**31 - 1),))
    assert driver.launches[-1].grid == 2**31 - 1
    with pytest.raises(_native.Declined):
        program.run((), (2 * (2**31 - 1) + 1,))
    with pytest.raises(_native.Declined):
        program.run((), (2**63 - 1,))


# ---- alignment ----


def unaligned_like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.cat([tensor[:1], tensor])[1:]


def test_the_variant_follows_the_addresses(driver: FakeDriver) -> None:
    x, y = torch.randn(8), torch.randn(8)
    shifted = unaligned_like(x)
    assert shifted.data_ptr() % 16 == 4 and x.data_ptr() % 16 == 0
    plan = axpy_plan(driver, lambda aligned: (driver.function("axpy_unaligned"), 512), shared=1024)
    program = _native.PlanProgram(plan)
    for given, name, shared in ((x, "axpy", 1024), (shifted, "axpy_unaligned", 512), (x, "axpy", 1024)):
        assert torch.equal(program.run((given, y), (8,)), 2 * x + y)
        assert (driver.launches[-1].name, driver.launches[-1].shared) == (name, shared)
        assert torch.equal(program.run((y, given), (8,)), 2 * y + x)
        assert (driver.launches[-1].name, driver.launches[-1].shared) == (name, shared)


def test_without_the_variant_the_run_declines(driver: FakeDriver) -> None:
    program = _native.PlanProgram(axpy_plan(driver))
    x = torch.randn(8)
    with pytest.raises(_native.Declined):
        program.run((unaligned_like(x), x), (8,))
    assert program.declines == 1 and driver.launch_count == 0
    assert torch.equal(program.run((x, x), (8,)), 3 * x)


def test_the_variant_is_compiled_when_it_is_first_needed(driver: FakeDriver) -> None:
    made = []

    def make(aligned: bool) -> tuple[int, int]:
        assert aligned is False
        made.append(driver.function("axpy_unaligned"))
        return made[-1], 0

    program = _native.PlanProgram(axpy_plan(driver, make))
    x, y = torch.randn(8), torch.randn(8)
    program.run((x, y), (8,))
    assert not made
    for _ in range(3):
        assert torch.equal(program.run((unaligned_like(x), y), (8,)), 2 * x + y)
    assert len(made) == 1 and driver.launches[-1].name == "axpy_unaligned"


@pytest.mark.parametrize("answer", [0, (0, 0), (1, -1), ("no number", 0), (1 << 70, 0), ZeroDivisionError])
def test_a_variant_that_cannot_be_compiled_declines(driver: FakeDriver, answer: Any) -> None:
    asked = []

    def make(aligned: bool) -> Any:
        asked.append(1)
        if isinstance(answer, type):
            raise answer
        return answer

    program = _native.PlanProgram(axpy_plan(driver, make))
    x = torch.randn(8)
    for _ in range(3):
        with pytest.raises(_native.Declined):
            program.run((unaligned_like(x), x), (8,))
    assert program.declines == 3 and len(asked) == 1
    assert torch.equal(program.run((x, x), (8,)), 3 * x)


def test_the_variant_follows_the_numbers(driver: FakeDriver) -> None:
    """The step's code is for multiples of 4 from 4 to 16; there are others for any number and for any address."""
    asked = []

    def make(aligned: bool) -> tuple[int, int]:
        asked.append(aligned)
        return driver.function("axpy_unaligned"), 256 if aligned else 512

    plan = axpy_plan(driver, make, shared=1024, fits=((0, 4, 4, 16),))
    assert plan_text(plan).count("for n0 % 4 == 0") == 1
    program = _native.PlanProgram(plan)
    for size, shared in ((8, 1024), (16, 1024), (7, 256), (20, 256), (4, 1024), (20, 256)):
        x, y = torch.randn(size), torch.randn(size)
        assert torch.equal(program.run((x, y), (size,)), 2 * x + y)
        assert driver.launches[-1].shared == shared
    assert asked == [True]
    for size in (8, 9):
        x, y = unaligned_like(torch.randn(size)), torch.randn(size)
        assert torch.equal(program.run((x, y), (size,)), 2 * x + y)
        assert driver.launches[-1].shared == 512
    assert asked == [True, False] and program.declines == 0


def test_without_code_for_other_numbers_the_run_declines(driver: FakeDriver) -> None:
    seen: list[int] = []
    program = _native.PlanProgram(axpy_plan(driver, fits=((0, 1, 8, 8),)))
    with pytest.raises(_native.Declined):
        program.run((torch.randn(9), torch.randn(9)), (9,))
    program = committing(driver, None, seen, fits=((0, 1, 8, 8),))
    x, y = torch.randn(8), torch.randn(8)
    with pytest.raises(_native.Declined):
        program.run((x, y), (4,))
    assert not seen and driver.launch_count == 0


def test_views_are_looked_at_where_they_begin(driver: FakeDriver) -> None:
    """A view of an aligned tensor may begin anywhere."""
    w = Writer(bound=1)
    x = w.input(0, (w.const(8),))
    four = w.const(4)
    view = w.slot("view", (four,), base=x, offset=0)
    out = w.fresh((four,))
    arguments = [("pointer", view), ("pointer", view), ("pointer", out), ("real32", w.real(1.0)), ("int32", four)]
    w.launch(driver.function("axpy"), arguments, four, lambda aligned: (driver.function("axpy_unaligned"), 0))
    program = _native.PlanProgram(w.plan(("tensor", out)))
    x_given = torch.randn(8)
    for offset, name in ((0, "axpy"), (1, "axpy_unaligned"), (4, "axpy"), (3, "axpy_unaligned")):
        assert torch.equal(program.run((x_given,), (offset,)), 2 * x_given[offset : offset + 4])
        assert driver.launches[-1].name == name


# ---- what cannot run twice ----


def committing(driver: FakeDriver, variant: Any, seen: list[int], **rest: Any) -> Any:
    """A step that commits, then ``x = 2 * x + y`` in place, with the number 0 as a 32-bit argument."""
    w = Writer(bound=1)
    x, y = w.input(0, (w.const(8),)), w.input(1, (w.const(8),))
    w.call(lambda: seen.append(1), (), commits=True, outs=())
    arguments = [("pointer", x), ("pointer", y), ("pointer", x), ("real32", w.real(2.0)), ("int32", 0)]
    w.launch(driver.function("axpy"), arguments, 0, variant, **rest)
    return _native.PlanProgram(w.plan(("const", None)))


def test_a_launch_declines_before_what_cannot_run_twice(driver: FakeDriver) -> None:
    seen: list[int] = []
    program = committing(driver, None, seen)
    x, y = torch.randn(8), torch.randn(8)
    before = x.clone()
    for arguments, number in (((unaligned_like(x), y), 8), ((x, y), 2**31), ((x, y), 2**62)):
        with pytest.raises(_native.Declined):
            program.run(arguments, (number,))
    assert not seen and torch.equal(x, before)
    program.run((x, y), (8,))
    assert seen == [1] and torch.equal(x, 2 * before + y)


def test_the_variant_is_compiled_before_what_cannot_run_twice(driver: FakeDriver) -> None:
    seen: list[int] = []

    def make(aligned: bool) -> tuple[int, int]:
        assert aligned is False
        seen.append(0)
        return driver.function("axpy_unaligned"), 0

    program = committing(driver, make, seen)
    x, y = unaligned_like(torch.randn(8)), torch.randn(8)
    expected = 2 * x + y
    program.run((x, y), (8,))
    assert seen == [0, 1] and torch.equal(x, expected)


# ---- errors ----


def test_a_failed_launch_raises_what_the_driver_says(driver: FakeDriver) -> None:
    program = _native.PlanProgram(axpy_plan(driver))
    x = torch.randn(8)
    driver.fail("launch", LAUNCH_FAILED)
    with pytest.raises(RuntimeError, match=r"unspecified launch failure \(CUDA_ERROR_LAUNCH_FAILED, code 719\)"):
        program.run((x, x), (8,))
    driver.fail("launch", 4242)
    with pytest.raises(RuntimeError, match="code 4242"):
        program.run((x, x), (8,))
    driver.fail("launch", 0)
    assert torch.equal(program.run((x, x), (8,)), 3 * x) and program.declines == 0


def test_a_failed_launch_reaches_the_caller_of_a_function(driver: FakeDriver) -> None:
    """Eager code does not run in its place."""
    program = GuardProgram(None, (("arg", 0, 0), ("arg", 1, 1), ("number", ("const", 0, 8, 0))), 2, 1, ("",) * 3)
    calls = []
    dispatch = _native.Dispatch(lambda x, y: calls.append(1), lambda args, kwargs: calls.append(2))
    dispatch.add(_native.Compiled(_native.GuardSet(program), _native.PlanProgram(axpy_plan(driver))))
    x = torch.randn(8)
    assert torch.equal(dispatch(x, x), 3 * x)
    driver.fail("launch", LAUNCH_FAILED)
    with pytest.raises(RuntimeError, match="unspecified launch failure"):
        dispatch(x, x)
    assert not calls


def test_modules_that_cannot_be_loaded(driver: FakeDriver) -> None:
    for image, name, code in ((b"other", "axpy", 200), (b"module", "missing", 500)):
        with pytest.raises(RuntimeError, match=rf"could not be loaded.*code {code}"):
            _native.load_module(image, name, 0)
    assert driver.unloaded == 1
    driver.fail("attribute", 1)
    with pytest.raises(RuntimeError, match="code 1"):
        driver.function("axpy", 100 << 10)
    assert driver.unloaded == 2 and driver.pushed == driver.popped == 3
    with pytest.raises(RuntimeError, match="code 100"):
        driver.function("axpy", device=5)
    with pytest.raises(RuntimeError, match="no GPU has the number"):
        driver.function("axpy", device=64)


def test_a_driver_that_is_not_there_or_does_not_start(driver: FakeDriver) -> None:
    _native.use_driver("/nowhere/libcuda.so.1")
    with pytest.raises(RuntimeError, match="no driver of a GPU: /nowhere"):
        _native.load_module(b"module", "axpy", 0)
    _native.use_driver(torch._C.__file__)  # a library, but no driver
    with pytest.raises(RuntimeError, match="lacks cuInit"):
        _native.load_module(b"module", "axpy", 0)
    driver.fail("init", 999)
    _native.use_driver(driver.path)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"does not start.*code 999"):
            _native.load_module(b"module", "axpy", 0)
    driver.fail("init", 0)
    assert driver.function("axpy")
    with pytest.raises(ValueError, match="a path of more than"):
        _native.use_driver("x" * 4096)


def test_shared_memory_above_the_limit_is_asked_for(driver: FakeDriver) -> None:
    driver.function("axpy", 48 << 10)
    assert driver.shared_limit == 0
    driver.function("axpy", 100 << 10)
    assert driver.shared_limit == 100 << 10
    assert driver.relaxed == 2  # loading does not spoil a capture


def test_steps_that_break_the_rules_are_refused(driver: FakeDriver) -> None:
    good = axpy_plan(driver)
    step = next(step for step in good.steps if isinstance(step, LaunchStep))
    changes: list[dict[str, Any]] = [
        {"function": 0}, {"variant": "f"}, {"variant": 0}, {"arguments": (("pointer", 9),)},
        {"fits": ((99, 1, 0, 1),)}, {"fits": ((0, 0, 0, 1),)}, {"fits": ((0, 1, 0),)}, {"fits": (0,)}, {"fits": None},
        {"arguments": (("int32", 99),)},
        {"arguments": (("int16", 0),)}, {"arguments": ("pointer", 0)}, {"arguments": [("pointer", 0)]}, {"extent": 99},
        {"blocks": 0}, {"threads": 0}, {"threads": 2048}, {"shared": -1}, {"device": -1},
        {"arguments": (("int64", 0),) * 5000},
    ]  # fmt: skip
    for change in changes:
        bad = dataclasses.replace(good, steps=(*good.steps[:-1], dataclasses.replace(step, **change)))
        with pytest.raises((ValueError, TypeError, OverflowError)):
            _native.PlanProgram(bad)
    _native.PlanProgram(good)


def test_a_kernel_of_the_cpu_is_given_its_memory_only() -> None:
    for place in ("input", "fresh"):
        w = Writer()
        four = w.const(4)
        x = w.input(0, (four,), device="cuda:0" if place == "input" else "cpu")
        out = w.fresh((four,), device="cuda:0" if place == "fresh" else "cpu")
        w.axpy(x, x, out, four)
        with pytest.raises(ValueError, match="memory of another device than the CPU"):
            _native.PlanProgram(w.plan(("tensor", out)))
    w = Writer()
    slots = [w.strided("input", (2, 2), (2, 1), device="cuda:0") for _ in range(3)]
    w.inputs = [0, 1, 2]
    w.matmul(slots[2], slots[0], slots[1], (1, 2, 2, 2), (4, 2, 1), (4, 2, 1), (4, 2, 1))
    with pytest.raises(ValueError, match="memory of another device than the CPU"):
        _native.PlanProgram(w.plan(("const", None)))


def test_a_real_driver_is_given_its_own_memory_only(driver: FakeDriver) -> None:
    plan = axpy_plan(driver)
    _native.use_driver(None)
    with pytest.raises(ValueError, match="memory of another device than the kernel's"):
        _native.PlanProgram(plan)


# ---- contexts, streams, threads ----


def test_the_device_is_made_current_for_the_launch(driver: FakeDriver) -> None:
    program = _native.PlanProgram(axpy_plan(driver, device=1))
    x = torch.randn(8)
    for current, pushes in ((-1, 1), (0, 1), (1, 0)):
        driver.library.fake_make_current(current)
        before = driver.pushed
        program.run((x, x), (8,))
        assert driver.launches[-1].device == 1 and driver.pushed - before == pushes
        assert driver.library.fake_current() == current
    assert driver.pushed == driver.popped
    assert list((ctypes.c_int * 2).in_dll(driver.library, "fake_retained")) == [1, 1]


def test_launches_go_to_the_current_stream_of_their_device(driver: FakeDriver, streams: dict[int, int]) -> None:
    program = _native.PlanProgram(axpy_plan(driver, device=1))
    x = torch.randn(8)
    for value in (0x1230, 0, 0x7FFF00001230):
        streams[0], streams[1] = 0x4560, value
        program.run((x, x), (8,))
        assert (driver.launches[-1].stream or 0) == value


def test_a_stream_that_cannot_be_read_declines(driver: FakeDriver) -> None:
    def broken(device: int) -> int:
        raise ValueError

    abi.FALLBACKS["stream"] = broken
    abi.initialise(without=("stream",))
    x = torch.randn(8)
    with pytest.raises(_native.Declined):
        _native.PlanProgram(axpy_plan(driver)).run((x, x), (8,))
    assert driver.launch_count == 0


def test_threads_launch_at_the_same_time(driver: FakeDriver) -> None:
    program = _native.PlanProgram(axpy_plan(driver))
    wrong: list[Any] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(300):
            x = torch.randn(64, generator=generator)
            result = program.run((x, x), (64,))
            if not torch.equal(result, 3 * x):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and driver.launch_count > 0 and driver.pushed == driver.popped > 0


# ---- memory ----


def through_an_arena(driver: FakeDriver, place: Callable[[Writer, int], int]) -> Any:
    """``4 * x``, with ``2 * x`` in memory of ``place``."""
    w = Writer(bound=1)
    x = w.input(0, (0,))
    middle = place(w, 0)
    out = w.fresh((0,))
    function, one = driver.function("axpy"), w.real(1.0)
    for source, target in ((x, middle), (middle, out)):
        arguments = [("pointer", source), ("pointer", source), ("pointer", target), ("real32", one), ("int32", 0)]
        w.launch(function, arguments, 0)
    return w.plan(("tensor", out))


def test_temporaries_in_the_arena_of_the_cpu_and_in_fresh_tensors(driver: FakeDriver) -> None:
    def arena(w: Writer, size: int) -> int:
        w.arena = w.number("mul", size, w.const(4))
        return w.slot("arena", (size,), base=w.const(0))

    for place in (arena, lambda w, size: w.fresh((size,))):
        program = _native.PlanProgram(through_an_arena(driver, place))
        for size in (4, 1000, 16):
            x = torch.randn(size)
            assert torch.equal(program.run((x,), (size,)), 4 * x)


def test_a_released_slot_lets_go_of_its_tensor_at_once(driver: FakeDriver) -> None:
    """Whatever comes next on the stream may have its memory: the launched kernel is done with it by then."""
    w = Writer()
    four = w.const(4)
    x = w.input(0, (four,))
    middle = w.slot("call", (four,))
    out = w.fresh((four,))
    seen: list[Any] = []

    def make(tensor: torch.Tensor) -> torch.Tensor:
        made = tensor * 2
        seen.append(weakref.ref(made))
        return made

    w.call(make, (("tensor", x),), middle)
    arguments = [("pointer", middle), ("pointer", x), ("pointer", out), ("real32", w.real(1.0)), ("int32", four)]
    w.launch(driver.function("axpy"), arguments, four)
    w.steps.append(ReleaseStep((middle,)))
    w.call(lambda: seen.append(seen[0]()), (), outs=())
    given = torch.randn(4)
    assert torch.equal(_native.PlanProgram(w.plan(("tensor", out))).run((given,), ()), 3 * given)
    assert seen[1] is None


def test_an_arena_belongs_to_a_device(driver: FakeDriver) -> None:
    w = Writer()
    four = w.const(4)
    w.slots.clear()
    for device, arenas, arena in (("cuda:0", [], 0), ("cuda:1", [("cuda:0", 0)], -1), ("cpu", [("cuda:0", 0)], -1)):
        w = Writer()
        four = w.const(4)
        w.arenas, w.arena = arenas, arena
        w.slot("arena", (four,), base=w.const(0), device=device)
        with pytest.raises(ValueError, match="no arena of the device"):
            _native.PlanProgram(w.plan(("const", None)))
    for arenas in ([("cpu", 0)], [("cuda:0", 99)], [("nowhere", 0)], [("cuda:0",)]):
        w = Writer(bound=1)
        w.arenas = arenas  # type: ignore[assignment]
        with pytest.raises((ValueError, TypeError)):
            _native.PlanProgram(w.plan(("const", None)))


@pytest.fixture
def made(driver: FakeDriver) -> Iterator[list[tuple[int, int, Any]]]:
    """Memory of a GPU is the CPU's here: by device type and index, a weak reference to each tensor that a run makes."""
    found: list[tuple[int, int, Any]] = []
    python = dict(abi.FALLBACKS)

    def empty(sizes: tuple[int, ...], strides: tuple[int, ...], rest: tuple[int, int, int]) -> torch.Tensor:
        tensor = python["empty"](sizes, strides, (rest[0], 0, -1))
        found.append((rest[1], rest[2], weakref.ref(tensor)))
        return tensor.fill_(77)

    abi.FALLBACKS["empty"] = empty
    abi.initialise(without=("wrap", "stream"))
    yield found
    abi.FALLBACKS.update(python)


def test_fresh_tensors_are_made_on_the_device_of_their_slot(
    driver: FakeDriver, made: list[tuple[int, int, Any]]
) -> None:
    w = Writer()
    four = w.const(4)
    x = w.input(0, (four,), device="cuda:1")
    out = w.fresh((four,), device="cuda:1")
    arguments = [("pointer", x), ("pointer", x), ("pointer", out), ("real32", w.real(1.0)), ("int32", four)]
    w.launch(driver.function("axpy", device=1), arguments, four, device=1)
    given = torch.randn(4)
    assert torch.equal(_native.PlanProgram(w.plan(("tensor", out))).run((given,), ()), 2 * given)
    assert [entry[:2] for entry in made] == [(1, 1)]


def test_each_run_takes_an_arena_from_the_allocator_of_the_device(
    driver: FakeDriver, made: list[tuple[int, int, Any]]
) -> None:
    w = Writer(bound=1)
    bytes_ = w.number("mul", 0, w.const(4))
    w.arena = w.number("mul", bytes_, w.const(2))
    w.arenas = [("cuda:0", w.number("add", bytes_, w.const(64))), ("cuda:1", bytes_)]
    x = w.input(0, (0,))
    places = [("cuda:1", w.const(0)), ("cuda:0", w.const(64)), ("cpu", bytes_), ("cpu", w.const(0))]
    chain = [x, *(w.slot("arena", (0,), base=base, device=device) for device, base in places)]
    chain.append(w.fresh((0,)))
    function, one = driver.function("axpy"), w.real(1.0)
    for source, target in itertools.pairwise(chain):
        arguments = [("pointer", source), ("pointer", source), ("pointer", target), ("real32", one), ("int32", 0)]
        w.launch(function, arguments, 0, lambda: (function, 0))
    program = _native.PlanProgram(w.plan(("tensor", chain[-1])))
    for size in (16, 256, 4):
        x_given = torch.randn(size)
        made.clear()
        result = program.run((x_given,), (size,))
        assert torch.equal(result, 32 * x_given)
        assert [entry[:2] for entry in made] == [(1, 0), (1, 1), (0, -1)]
        assert [entry[2]() is None for entry in made] == [True, True, False]
    assert program.arena_bytes == 256 * 8 + (256 * 4 + 64) + 256 * 4


def test_an_arena_that_grows_keeps_what_is_in_it(driver: FakeDriver, made: list[tuple[int, int, Any]]) -> None:
    w = Writer(bound=1)
    late = w.free()
    w.arenas = [("cuda:0", w.number("mul", late, w.const(16)))]
    x = w.input(0, (0,))
    first = w.slot("arena", (0,), base=w.const(0), device="cuda:0")
    second = w.slot("arena", (late,), base=w.number("mul", 0, w.const(4)), device="cuda:0")
    found = w.slot("call", (late,))
    both = w.fresh((0,))
    out = w.slot("fresh", (late,))
    function, one = driver.function("axpy"), w.real(1.0)

    def launch(left: int, right: int, target: int, size: int) -> None:
        arguments = [("pointer", left), ("pointer", right), ("pointer", target), ("real32", one), ("int32", size)]
        w.launch(function, arguments, size, lambda: (function, 0))

    launch(x, x, first, 0)
    w.call(lambda tensor: tensor.repeat(3), (("tensor", x),), found, binds=((found, 0, late),))
    launch(found, found, second, late)
    launch(first, first, both, 0)
    w.steps.append(AllocStep(out))
    launch(second, second, out, late)
    program = _native.PlanProgram(w.plan(("tuple", ("tensor", both), ("tensor", out))))
    for size in (16, 8, 64):
        x_given = torch.randn(size)
        made.clear()
        left, right = program.run((x_given,), (size,))
        assert torch.equal(left, 4 * x_given) and torch.equal(right, 4 * x_given.repeat(3))
        assert [entry[:2] for entry in made].count((1, 0)) == 2
        assert all(reference() is None for kind, _, reference in made if kind)


def test_a_device_without_memory_declines(driver: FakeDriver, made: list[tuple[int, int, Any]]) -> None:
    def full(*arguments: Any) -> torch.Tensor:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    abi.FALLBACKS["empty"] = full
    abi.initialise(without=("wrap", "stream"))

    def arena(w: Writer, size: int) -> int:
        w.arenas = [("cuda:0", w.number("mul", size, w.const(4)))]
        return w.slot("arena", (size,), base=w.const(0), device="cuda:0")

    program = _native.PlanProgram(through_an_arena(driver, arena))
    with pytest.raises(_native.Declined):
        program.run((torch.randn(4),), (4,))
    assert driver.launch_count == 0


def test_nothing_leaks(driver: FakeDriver) -> None:
    plan = axpy_plan(driver, lambda aligned: (driver.function("axpy_unaligned"), 0))
    x = torch.randn(8)
    shifted = unaligned_like(x)

    def once() -> None:
        program = _native.PlanProgram(plan)
        program.run((shifted, x), (8,))
        program.run((x, x), (8,))

    once()
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(50):
        once()
    gc.collect()
    assert len(gc.get_objects()) - before < 20


def test_a_launch_prints_as_one_line(driver: FakeDriver) -> None:
    text = plan_text(axpy_plan(driver))
    assert "launch  launch(t0, t1, t2, n2, n0)  4 of n0 a program, 128 threads" in text
