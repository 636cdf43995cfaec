"""Plans that launch real kernels on a GPU: streams, capture, memory, threads, errors and what a profiler sees."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.gpu.kernels import BLOCK, NEEDS_GPU, WARPS, compiled, loaded
from tests.unit.native.plans import Writer, word_of

from framefuse import _native
from framefuse.ir import dtypes
from framefuse.ir.facts import TensorSpec
from framefuse.ir.plan import AllocStep, GuardProgram, ReleaseStep
from framefuse.native import abi, devices

pytestmark = NEEDS_GPU
LONG = 100_000_000  # cycles: some 50 ms


@pytest.fixture(autouse=True)
def finished() -> Iterator[None]:
    """What a test left running on the GPU ends before the next, and its errors are its own."""
    yield
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class GpuWriter(Writer):
    """Plans whose slots lie on one GPU."""

    def __init__(self, bound: int = 0, device: int = 0) -> None:
        super().__init__(bound)
        self.device = device
        if not abi.known:
            abi.initialise()

    def slot(self, place: str, sizes: Any, **rest: Any) -> int:
        return super().slot(place, sizes, **{"device": f"cuda:{self.device}", **rest})

    def axpy_gpu(self, x: int, y: int, out: int, size: int, scale: float = 2.0, **rest: Any) -> None:
        """``out = scale * x + y``."""
        arguments = [("pointer", x), ("pointer", y), ("pointer", out), ("real32", self.real(scale)), ("int32", size)]
        function, shared = loaded("framefuse_test_axpy", True, self.device)
        shape = {"blocks": BLOCK, "threads": 32 * WARPS, "shared": shared, "device": self.device, **rest}

        def variant(aligned: bool) -> tuple[int, int]:
            return loaded("framefuse_test_axpy", aligned, self.device)

        self.launch(function, arguments, size, variant, **shape)

    def program(self, result: Any) -> Any:
        return _native.PlanProgram(self.plan(result))


def simple(device: int = 0, **rest: Any) -> Any:
    """``2 * x + y`` over the bound number of elements."""
    w = GpuWriter(1, device)
    x, y = w.input(0, (0,)), w.input(1, (0,))
    out = w.fresh((0,))
    w.axpy_gpu(x, y, out, 0, **rest)
    return w.program(("tensor", out))


def chain(length: int, temporary: str) -> Any:
    """``3 ** length * x``, each step in memory of its own: "arena" in two places by turns, "fresh" ones released."""
    w = GpuWriter(1)
    bytes_ = w.number("mul", 0, w.const(4))
    room = w.number("mul", w.number("floordiv", w.number("add", bytes_, w.const(63)), w.const(64)), w.const(64))
    if temporary == "arena":
        w.arenas = [("cuda:0", w.number("mul", room, w.const(2)))]
    last = w.input(0, (0,))
    for turn in range(length):
        end = turn == length - 1
        if temporary == "arena" and not end:
            out = w.slot("arena", (0,), base=room if turn % 2 else w.const(0))
        else:
            out = w.fresh((0,))
        w.axpy_gpu(last, last, out, 0)
        if temporary == "fresh" and turn:
            w.steps.append(ReleaseStep((last,)))
        last = out
    return w.program(("tensor", last))


def test_the_interface_of_torch_is_known_here() -> None:
    """Facts that only a build with GPUs shows."""
    abi.initialise()
    assert "stream" in abi.known, abi.unknown
    plain = devices.plain_keys([torch.empty(2)])[devices.TYPES["cuda"]]
    with torch.inference_mode():
        inference = torch.empty(2, device="cuda")
    for tensor in (torch.empty(2, device="cuda"), inference, torch.empty(2, device="cuda", dtype=torch.bfloat16)):
        assert abi.keys_of(tensor) & ~plain == 0
    assert abi.keys_of(torch.empty(2, device="cuda", dtype=torch.complex64).conj()) & ~plain
    tensor = torch.empty(3, 4, device="cuda").t()
    facts = _native.tensor_facts(tensor)
    assert (facts["device_type"], facts["device_index"], facts["data"]) == (1, 0, tensor.data_ptr())
    assert (facts["sizes"], facts["strides"], facts["keys"]) == ((4, 3), (1, 4), abi.keys_of(tensor))


def test_results_over_several_sizes() -> None:
    program = simple()
    for size in (1, 7, BLOCK, BLOCK + 1, 1 << 20, 0, 3):
        x, y = torch.randn(size, device="cuda"), torch.randn(size, device="cuda")
        result = program.run((x, y), (size,))
        assert type(result) is torch.Tensor and result.device == torch.device("cuda", 0)
        assert torch.equal(result, 2 * x + y)
    assert program.declines == 0
    result.resize_(100)
    result.record_stream(torch.cuda.Stream())


def test_every_kind_of_number() -> None:
    w = GpuWriter(3)
    out = w.fresh((w.const(4),), dtype="float64")
    arguments = [("pointer", out), ("int64", 0), ("int32", 1), ("real64", 2), ("real32", 2)]
    w.launch(loaded("framefuse_test_kinds")[0], arguments, w.const(1), threads=32 * WARPS)
    program = w.program(("tensor", out))
    for wide, narrow, real in ((1 << 40, -5, 0.1), (-(1 << 52), 2**31 - 1, -1e30)):
        single = torch.tensor(real, dtype=torch.float32).item()
        assert program.run((), (wide, narrow, word_of(real))).tolist() == [wide, narrow, real, single]


def test_pointers_that_are_not_aligned() -> None:
    program = simple()
    base, y = torch.randn(5001, device="cuda"), torch.randn(5000, device="cuda")
    for x in (base[:5000], base[1:], base[:5000]):
        assert torch.equal(program.run((x, y), (5000,)), 2 * x + y)
    assert program.declines == 0


def test_the_current_stream_is_used() -> None:
    """The side stream is busy when the launch comes: elsewhere the kernel would read what was there before."""
    program = simple()
    side = torch.cuda.Stream()
    x, y = torch.zeros(4096, device="cuda"), torch.zeros(4096, device="cuda")
    program.run((x, y), (4096,))
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(LONG)
        x.fill_(3.0)
        result = program.run((x, y), (4096,))
        done = side.record_event()
    assert not done.query(), "the launch waited for the device"
    elsewhere = program.run((y, y), (4096,))  # on the default stream, which is free
    torch.cuda.current_stream().synchronize()
    assert not done.query() and not elsewhere.any()
    side.synchronize()
    assert torch.equal(result, torch.full_like(result, 6.0))


@pytest.mark.parametrize("temporary", ["arena", "fresh"])
def test_capture_into_a_graph(temporary: str) -> None:
    program = chain(6, temporary)
    replays: list[tuple[Any, torch.Tensor, torch.Tensor]] = []
    for size in (1000, 70_000):
        x = torch.randn(size, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            program.run((x,), (size,))
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = program.run((x,), (size,))
        replays.append((graph, x, result))
    assert program.declines == 0
    for _ in range(3):
        for graph, x, result in replays:
            x.normal_()
            program.run((x,), (x.numel(),))  # between replays, in memory of its own
            graph.replay()
            expected = x * 3**6
            assert torch.allclose(result, expected, rtol=1e-5)


@pytest.mark.parametrize("temporary", ["arena", "fresh"])
def test_memory_that_is_given_back_at_once_may_be_taken_at_once(temporary: str) -> None:
    """The host runs ahead of the GPU: each run takes the memory that the one before let go of, before any has run."""
    program = chain(5, temporary)
    size = 1 << 18
    inputs = [torch.randn(size, device="cuda") for _ in range(20)]
    program.run((inputs[0],), (size,))
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    torch.cuda._sleep(LONG)
    results = [program.run((x,), (size,)) for x in inputs]
    peak = torch.cuda.max_memory_allocated() - before
    assert peak <= (len(inputs) + 3) * size * 4, "temporaries outlived their runs"
    for x, result in zip(inputs, results, strict=True):
        assert torch.allclose(result, x * 3**5, rtol=1e-5)
    del results, result
    assert torch.cuda.memory_allocated() == before


def test_an_arena_that_grows_keeps_what_is_in_it() -> None:
    w = GpuWriter(1)
    late = w.free()
    w.arenas = [("cuda:0", w.number("mul", late, w.const(16)))]
    x = w.input(0, (0,))
    first = w.slot("arena", (0,), base=w.const(0))
    second = w.slot("arena", (late,), base=w.number("mul", 0, w.const(4)))
    found = w.slot("call", (late,))
    both = w.fresh((0,))
    out = w.slot("fresh", (late,))
    w.axpy_gpu(x, x, first, 0)
    w.call(lambda tensor: tensor.repeat(3), (("tensor", x),), found, binds=((found, 0, late),))
    w.axpy_gpu(found, found, second, late)
    w.axpy_gpu(first, first, both, 0)
    w.steps.append(AllocStep(out))
    w.axpy_gpu(second, second, out, late)
    program = w.program(("tuple", ("tensor", both), ("tensor", out)))
    for size in (64, 1 << 16, 128):
        given = torch.randn(size, device="cuda")
        torch.cuda._sleep(LONG // 10)
        left, right = program.run((given,), (size,))
        assert torch.allclose(left, 9 * given) and torch.allclose(right, 9 * given.repeat(3))
    assert program.declines == 0


def test_library_calls_read_the_arena() -> None:
    """Also while a graph is captured; and what a call gives in another form is copied into the slot's layout."""
    w = GpuWriter()
    rows, columns = w.const(64), w.const(32)
    count = w.const(64 * 32)
    w.arenas = [("cuda:0", w.const(64 * 32 * 4))]
    x = w.input(0, (rows, columns))
    middle = w.slot("arena", (rows, columns), base=w.const(0))
    turned = w.slot("call", (columns, rows))
    out = w.fresh((columns, rows))
    w.axpy_gpu(x, x, middle, count)
    w.call(lambda tensor: tensor.t() + 1, (("tensor", middle),), turned, inside=True, normal=(turned,))
    w.axpy_gpu(turned, turned, out, count)
    program = w.program(("tensor", out))
    given = torch.randn(64, 32, device="cuda")
    expected = lambda: 3 * (3 * given.t() + 1)
    assert torch.allclose(program.run((given,), ()), expected())
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        program.run((given,), ())
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = program.run((given,), ())
    given.normal_()
    graph.replay()
    assert torch.allclose(result, expected()) and program.declines == 0


def test_a_thread_that_has_not_used_the_gpu() -> None:
    program = simple()
    x = torch.randn(5000, device="cuda")
    torch.cuda.synchronize()
    found: list[Any] = []

    def work() -> None:
        found.append(program.run((x, x), (5000,)))

    for _ in range(3):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    torch.cuda.synchronize()
    assert len(found) == 12 and all(torch.equal(result, 3 * x) for result in found) and program.declines == 0


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_another_device_than_the_current_one() -> None:
    program = simple(device=1)
    x = torch.randn(5000, device="cuda:1")
    for current in (0, 1):
        with torch.cuda.device(current):
            result = program.run((x, x), (5000,))
            assert torch.cuda.current_device() == current
            assert result.device == torch.device("cuda", 1) and torch.equal(result, 3 * x)


def test_errors_are_the_drivers_own_and_pass() -> None:
    with pytest.raises(RuntimeError, match="a kernel could not be loaded"):
        _native.load_module(b"no module", "framefuse_test_axpy", 0)
    with pytest.raises(RuntimeError, match="CUDA_ERROR_NOT_FOUND"):
        _native.load_module(compiled("framefuse_test_axpy").image, "another_name", 0)
    x = torch.randn(64, device="cuda")
    with pytest.raises(RuntimeError, match=r"a kernel could not be launched: .*CUDA_ERROR"):
        simple(shared=10 << 20).run((x, x), (64,))
    assert torch.equal(simple().run((x, x), (64,)), 3 * x)


def test_shared_memory_above_48_kib() -> None:
    large = 100 << 10
    w = GpuWriter()
    size = w.const(2000)
    x = w.input(0, (size,))
    out = w.fresh((size,))
    arguments = [("pointer", x), ("pointer", x), ("pointer", out), ("real32", w.real(2.0)), ("int32", size)]
    function = compiled("framefuse_test_axpy").load(large)
    w.launch(function, arguments, size, blocks=BLOCK, threads=32 * WARPS, shared=large)
    given = torch.randn(2000, device="cuda")
    assert torch.equal(w.program(("tensor", out)).run((given,), ()), 3 * given)


def test_a_guard_knows_the_device() -> None:
    abi.initialise()
    example = torch.randn(4, 3, device="cuda")
    spec = TensorSpec(torch.Tensor, abi.keys_of(example), dtypes.FLOAT32, "cuda:0", (4, 3), (0, 1), None, False)
    guards = _native.GuardSet(GuardProgram(None, (("arg", 0, 0), ("tensor", 0, spec, ())), 1, 0, ("", "")))
    others = [
        torch.randn(4, 3), torch.randn(4, 3, device="meta"), torch.randn(4, 3, device="cuda", dtype=torch.float64),
        torch.randn(3, 4, device="cuda"), torch.randn(3, 4, device="cuda").t(),
        torch.randn(4, 3, device="cuda", requires_grad=True), torch._neg_view(example),
        *(torch.randn(4, 3, device=f"cuda:{index}") for index in range(1, torch.cuda.device_count())),
    ]  # fmt: skip
    for _ in range(3):
        assert isinstance(guards.check((example,)), tuple)
        assert isinstance(guards.check((torch.randn(4, 3, device="cuda"),)), tuple)
        assert [guards.check((other,)) for other in others] == [1] * len(others)
    seconds = guards.measure((example,), 10_000)
    print(f"a guard of a tensor: {1e9 * seconds:.1f} ns")
    assert seconds < 1e-6


def test_a_profiler_sees_the_kernel_by_its_name() -> None:
    program = simple()
    x = torch.randn(4096, device="cuda")
    program.run((x, x), (4096,))
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        torch.sin(x)
        program.run((x, x), (4096,))
        torch.cuda.synchronize()
    names = {event.key for event in profile.key_averages()}
    if not any("sin" in name and "kernel" in name for name in names):
        pytest.skip("the profiler sees no kernel of torch's either")
    assert "framefuse_test_axpy" in names, sorted(names)


def test_what_a_launch_costs() -> None:
    """Mean over runs that the GPU keeps up with; of a plan of one kernel the rest is its output and the call itself."""
    x = torch.randn(1024, device="cuda")
    found = {}
    for length in (1, 11):
        program = chain(length, "arena")
        for _ in range(100):
            program.run((x,), (1024,))
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(300):
            program.run((x,), (1024,))
        found[length] = (time.perf_counter() - begin) / 300
        torch.cuda.synchronize()
    print(f"one run: {1e6 * found[1]:.2f} us; one more launch: {1e5 * (found[11] - found[1]):.2f} us")
    assert found[1] < 50e-6
