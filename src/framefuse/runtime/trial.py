"""Times launches on a GPU: kernels on scratch memory of their recorded sizes, or whatever else a callable launches."""

from __future__ import annotations

import functools
import math
import statistics
import struct
import time
from collections.abc import Callable, Mapping, Sequence

import torch

from framefuse import _native
from framefuse.ir.code import KernelCode, LaunchedCode
from framefuse.ir.graph import Arg
from framefuse.ir.loops import Kernel
from framefuse.ir.numbers import Expr, Real, Symbol
from framefuse.ir.plan import LaunchStep, Plan, Slot
from framefuse.ir.schedule import Offer, RunKernel, Schedule
from framefuse.runtime.device_steps import launch_extent

Run = Callable[[], object]
SHARE = 4  # scratch memory may take one part in so many of what is free
CLEARED = 1 << 28  # bytes that are written between two launches, so that none finds its operands in a cache
FIRST, ROUNDS = 3, 20  # launches of every candidate, and of those that are left after them
HOPELESS = 1.25  # times the best: not looked at again after the first rounds
SECONDS = 0.25  # that the rounds of one kernel may take, where nothing else is said


_bandwidths: dict[torch.device, float] = {}


class NotMeasured(Exception):
    """Why nothing is measured, in a few words."""


class Trial:
    """Measures on one device of torch, on its current stream. ``scratch`` is the most memory that it held, in bytes;
    the rounds of one kernel take about ``seconds``.
    """

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        self.scratch = 0
        self.seconds = SECONDS
        self.clear: torch.Tensor | None = None
        self.generator: torch.Generator | None = None

    def check(self, item: RunKernel, schedule: Schedule) -> None:
        """Raises NotMeasured where a kernel will not be measured: there is nothing to compute at the recorded sizes, no
        room for scratch memory, or the stream is being captured.
        """
        lengths = [elements(schedule, number) for number in item.buffers]
        if evaluated(item.extent, schedule.graph.hints) <= 0 or any(length <= 0 for length in lengths):
            raise NotMeasured("nothing to compute at the recorded sizes")
        self.reserve(_bytes(item.kernel, lengths))

    def kernel(self, item: RunKernel, schedule: Schedule, codes: Sequence[KernelCode]) -> list[float]:
        """Seconds of one launch by each of several codes of a kernel, infinite for one that cannot be launched.

        Raises NotMeasured where there is no room any more.
        """
        tensors = self.tensors(item.kernel, [elements(schedule, number) for number in item.buffers])
        return self.times([functools.partial(launcher(item, schedule, code), tensors) for code in codes])

    def product(
        self, offer: Offer, schedule: Schedule, parts: Sequence[KernelCode], codes: Sequence[KernelCode]
    ) -> list[float]:
        """Seconds of the library's call with the kernels before and behind it, whose codes are ``parts`` in that order,
        and then of several codes of the one kernel that does it all.

        Raises NotMeasured where there is no room any more.
        """
        item, call, (_, result) = offer.fused, offer.call, offer.call.outs[0]
        written = {n for b, n in zip(item.kernel.buffers, item.buffers, strict=True) if b.written}
        last = offer.kernel
        own = last.buffers if last is not None else ()
        wanted = [*item.buffers, *own, *(n for each in offer.before for n in each.buffers)]
        numbers = [number for number in dict.fromkeys(wanted) if number != result or number in item.buffers]
        lengths = [elements(schedule, number) for number in numbers]
        dtypes = [schedule.memories[number].dtype for number in numbers]
        self.reserve(sum(n * dtype.size for n, dtype in zip(lengths, dtypes, strict=True)))
        try:
            held = {
                number: self.filled((n,), dtype.torch, number not in written)
                for number, n, dtype in zip(numbers, lengths, dtypes, strict=True)
            }
        except torch.OutOfMemoryError as error:
            raise NotMeasured("no memory for it") from error
        operands = [_operand(schedule, number, held) for number in call.operands]
        target, args = call.node.attr("target"), call.node.attr("args")
        args = [operands[arg.index] if isinstance(arg, Arg) else arg for arg in args]
        kwargs = call.node.attr("kwargs")  # numbers
        first = [
            functools.partial(launcher(each, schedule, code), [held[number] for number in each.buffers])
            for each, code in zip(offer.before, parts, strict=False)
        ]
        behind = None if last is None else launcher(last, schedule, parts[-1])

        def library() -> None:
            for run in first:
                run()
            product = target(*args, **kwargs)
            if behind is not None:
                behind([product if number == result else held[number] for number in own])

        tensors = [held[number] for number in item.buffers]
        runs = [functools.partial(launcher(item, schedule, code), tensors) for code in codes]
        with torch.no_grad():
            return self.times([library, *runs])

    def tensors(self, kernel: Kernel, lengths: Sequence[int]) -> list[torch.Tensor]:
        """Memory of so many elements for each buffer; what a kernel overwrites is one memory with it."""
        self.reserve(_bytes(kernel, lengths))
        memory: dict[str, torch.Tensor] = {}
        try:
            for buffer, length in zip(kernel.buffers, lengths, strict=True):
                if buffer.aliases is None:
                    memory[buffer.name] = self.filled((length,), buffer.dtype.torch, not buffer.written)
        except torch.OutOfMemoryError as error:
            raise NotMeasured("no memory for it") from error
        return [memory[buffer.aliases or buffer.name] for buffer in kernel.buffers]

    def bandwidth(self) -> float:
        """Bytes a second, read and written, of a copy on the device; measured once a process.

        Raises NotMeasured where there is no room for it.
        """
        if self.device not in _bandwidths:
            self.reserve(0)
            assert self.clear is not None
            source, target = self.clear.chunk(2)
            (seconds,) = self.times([functools.partial(target.copy_, source)])
            _bandwidths[self.device] = CLEARED / seconds
        return _bandwidths[self.device]

    def reserve(self, size: int) -> None:
        """Raises NotMeasured where ``size`` bytes more than what is cleared between launches are too much."""
        if torch.cuda.is_current_stream_capturing():
            raise NotMeasured("a stream is being captured")
        room = self.room()
        if size + (CLEARED if self.clear is None else 0) > room:
            raise NotMeasured(f"{size >> 20} MiB of scratch memory are more than a part of what is free")
        if self.clear is None:
            self.clear = torch.empty(CLEARED, dtype=torch.int8, device=self.device)
            self.generator = torch.Generator(self.device).manual_seed(0)
        self.scratch = max(self.scratch, size + CLEARED)

    def room(self) -> int:
        """The bytes of scratch memory that may be taken: a part of what the device, or torch's cache, has free."""
        free, _ = torch.cuda.mem_get_info(self.device)
        cached = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return (free + cached) // SHARE

    def filled(self, shape: Sequence[int], dtype: torch.dtype, read: bool = True) -> torch.Tensor:
        """A tensor of random floats, or of zeros of another type: these may be positions. Nobody else's random numbers
        are used up.
        """
        if not read:
            return torch.empty(tuple(shape), dtype=dtype, device=self.device)
        if not dtype.is_floating_point:
            return torch.zeros(tuple(shape), dtype=dtype, device=self.device)
        return torch.randn(tuple(shape), dtype=dtype, device=self.device, generator=self.generator)

    def times(self, runs: Sequence[Run]) -> list[float]:
        """Median seconds of what each of ``runs`` launches on the current stream, in turn; infinite where it fails."""
        with torch.cuda.device(self.device):
            return self._times(runs)

    def _times(self, runs: Sequence[Run]) -> list[float]:
        seconds_of: list[list[float]] = [[] for _ in runs]
        alive = [place for place, run in enumerate(runs) if _works(run)]
        torch.cuda.current_stream(self.device).synchronize()
        end = time.perf_counter() + self.seconds
        self._rounds(runs, alive, seconds_of, FIRST)
        best = min((statistics.median(seconds_of[place]) for place in alive), default=math.inf)
        close = [place for place in alive if statistics.median(seconds_of[place]) <= HOPELESS * best]
        if len(alive) > 1:
            left = (end - time.perf_counter()) / max(1e-6, sum(statistics.median(seconds_of[place]) for place in close))
            self._rounds(runs, close, seconds_of, max(FIRST, min(ROUNDS, int(left))))
        return [statistics.median(seconds) if seconds else math.inf for seconds in seconds_of]

    def _rounds(self, runs: Sequence[Run], places: Sequence[int], seconds_of: list[list[float]], count: int) -> None:
        events: list[tuple[int, torch.cuda.Event, torch.cuda.Event]] = []
        for _ in range(count):
            for place in places:
                begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                if self.clear is not None:
                    self.clear.zero_()
                begun.record()
                runs[place]()
                ended.record()
                events.append((place, begun, ended))
        torch.cuda.current_stream(self.device).synchronize()
        for place, begun, ended in events:
            seconds_of[place].append(begun.elapsed_time(ended) / 1e3)


def trial(device: str) -> Trial | None:
    """What measures on a device; None where nothing can be measured."""
    return Trial(device) if torch.device(device).type == "cuda" and torch.cuda.is_available() else None


def elements(schedule: Schedule, number: int) -> int:
    """How many elements lie between the first and the last of a buffer, at the recorded sizes; 0 for an empty one."""
    memory, hints = schedule.memories[number], schedule.graph.hints
    sizes = [evaluated(size, hints) for size in memory.sizes]
    strides = [evaluated(stride, hints) for stride in memory.strides]
    if any(size <= 0 for size in sizes):
        return 0
    return 1 + int(sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True)))


def _bytes(kernel: Kernel, lengths: Sequence[int]) -> int:
    pairs = zip(kernel.buffers, lengths, strict=True)
    return sum(length * buffer.dtype.size for buffer, length in pairs if buffer.aliases is None)


def _operand(schedule: Schedule, number: int, held: Mapping[int, torch.Tensor]) -> torch.Tensor:
    """A buffer as the tensor that a call is given, over scratch memory of its own or of the buffer that it views."""
    memory, hints = schedule.memories[number], schedule.graph.hints
    sizes, strides = ([int(evaluated(n, hints)) for n in part] for part in (memory.sizes, memory.strides))
    offset = 0 if memory.offset is None or memory.place != "view" else int(evaluated(memory.offset, hints))
    return held[memory.base if memory.place == "view" else number].as_strided(sizes, strides, offset)


def evaluated(value: Expr | Real, hints: Mapping[Symbol, int]) -> int | float:
    """A number at the recorded sizes; a float that is not known counts as 1."""
    known = {symbol: hints.get(symbol, 64) for symbol in value.symbols}
    if isinstance(value, Expr):
        return value.evaluate(known)
    try:
        return value.evaluate(known, _Ones())
    except (ArithmeticError, ValueError):
        return 1.0


class _Ones(dict[str, float]):
    def __missing__(self, name: str) -> float:
        return 1.0


def _word(value: int | float) -> int:
    """The 64 bits of a number of a plan, as a signed integer."""
    if isinstance(value, float):
        return int(struct.unpack("q", struct.pack("d", value))[0])
    return value


def launcher(item: RunKernel, schedule: Schedule, code: KernelCode) -> Callable[[Sequence[torch.Tensor]], object]:
    """Launches one code of a kernel, at the recorded sizes, on memory for each of its buffers."""
    assert isinstance(code, LaunchedCode), "only what a driver launches has choices"
    compiled, count, hints = code.code, len(item.numbers), schedule.graph.hints
    lengths = [elements(schedule, number) for number in item.buffers]
    numbers = [evaluated(value, hints) for value in (*item.numbers, launch_extent(item, compiled))]
    words = (*map(_word, numbers), 1, *lengths)
    slots = tuple(
        Slot("input", buffer.dtype.name, (count + 2 + place,), (count + 1,), device=item.device)
        for place, buffer in enumerate(item.kernel.buffers)
    )
    step = LaunchStep(
        compiled.name, compiled.function, code.variant, compiled.arguments, count, compiled.blocks, code.threads,
        compiled.shared, int(item.device.partition(":")[2] or 0), compiled.keep,
    )  # fmt: skip
    plan = Plan(
        name=compiled.name, bound=len(words), count=len(words), numbers=(), slots=slots,
        inputs=tuple(range(len(slots))), steps=(step,), arena=-1, finish=(), result=("const", None),
    )  # fmt: skip
    program = _native.PlanProgram(plan)
    return lambda tensors: program.run(tuple(tensors), words)


def _works(run: Run) -> bool:
    try:
        run()
    except (RuntimeError, _native.Declined):  # it asks for more than the device has
        return False
    return True
