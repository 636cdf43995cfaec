"""Asks torch for CUDA graphs, as nothing else does: captures what a function launches; knows streams and settings."""

from __future__ import annotations

import gc
import operator
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any, TypeVar

import torch

Handle = Any  # of a pool of memory: torch says nothing of its type
Settings = tuple[object, ...]
T = TypeVar("T")
Stream = tuple[int, int, int]  # stream_id, device_index, device_type

_C: Any = torch._C


class CudaGraphs:
    """Captured graphs of one CUDA device, for one thread at a time.

    A capture runs on a stream of its own and ends no other thread's work: only what this thread does is looked at.
    """

    kind = "cuda"

    def __init__(self, index: int) -> None:
        self.index = index
        self.device = torch.device("cuda", index)
        self.side: torch.cuda.Stream | None = None

    def here(self) -> bool:
        """Whether the device is the thread's current one: what is launched goes to its current stream."""
        return int(_C._cuda_getDevice()) == self.index

    def entered(self) -> AbstractContextManager[object]:
        """A context in which it is the current one."""
        return torch.cuda.device(self.index)

    def capturing(self) -> bool:
        """Whether the user captures a graph on the current stream."""
        return bool(_C._cuda_isCurrentStreamCapturing())

    def stream(self) -> Stream:
        """The current stream of the device."""
        stream: Stream = _C._cuda_getCurrentStream(self.index)
        return stream

    def follow(self, before: Stream) -> bool:
        """Makes the current stream wait for what another one was given; False where that one is being captured."""
        other = torch.cuda.Stream(stream_id=before[0], device_index=before[1], device_type=before[2])
        with torch.cuda.stream(other):
            if self.capturing():
                return False
        torch.cuda.current_stream(self.index).wait_stream(other)
        return True

    def used(self, tensors: list[torch.Tensor], stream: Stream) -> None:
        """The memory of tensors made on another stream is used on this one: it is given away when both are done."""
        now = torch.cuda.Stream(stream_id=stream[0], device_index=stream[1], device_type=stream[2])
        for tensor in tensors:
            tensor.record_stream(now)

    def settings(self) -> Settings:
        """The process's settings of torch's libraries, which a captured call has read once."""
        return tuple(map(operator.call, SETTINGS))

    def bytes(self) -> int:
        """The bytes that torch holds of the device's memory."""
        return torch.cuda.memory_reserved(self.index)

    def room(self) -> int:
        """The bytes that a run may still take."""
        unused = torch.cuda.memory_reserved(self.index) - torch.cuda.memory_allocated(self.index)
        return torch.cuda.mem_get_info(self.index)[0] + unused

    def trim(self) -> None:
        """Gives back what torch keeps of memory that nobody uses."""
        torch.cuda.empty_cache()

    def memory(self) -> int:
        """The bytes of memory that the device has."""
        return int(torch.cuda.get_device_properties(self.index).total_memory)

    def clocked(self, run: Callable[[], T]) -> tuple[T, Callable[[], tuple[float, float]]]:
        """What ``run`` gives, and a function of the seconds that it and the device took, to call later."""
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        start = time.perf_counter()
        result = run()
        host = time.perf_counter() - start
        last.record()

        def seconds() -> tuple[float, float]:
            last.synchronize()
            return host, first.elapsed_time(last) * 1e-3

        return result, seconds

    def handle(self) -> Handle:
        """A new pool of memory, for graphs that never run at the same time."""
        return torch.cuda.graph_pool_handle()

    def watched(self, run: Callable[[], T]) -> tuple[T, str]:
        """What ``run`` gives, and torch's words on an operation of it that waits for the device, "" for none."""
        if torch.cuda.get_sync_debug_mode():
            return run(), ""  # the user listens
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                result = run()
            finally:
                torch.cuda.set_sync_debug_mode("default")
        waits = ""
        for warning in caught:
            text = str(warning.message)
            if "synchroniz" in text.lower():
                waits = text if "prototype" not in text else waits
            else:
                warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        return result, waits

    def capture(self, pool: Handle, run: Callable[[], T]) -> tuple[Callable[[], None], T]:
        """What replays all that ``run`` launched, and what it gave; nothing was computed yet.

        The device is the current one. Raises what ``run`` raises, and torch's error for work that no graph can hold;
        then the stream, the allocator and the generator are as they were.
        """
        if self.side is None:
            self.side = torch.cuda.Stream(self.index)
        generator = torch.cuda.default_generators[self.index]
        state = generator.get_state()
        graph = torch.cuda.CUDAGraph()
        collecting = gc.isenabled()
        gc.disable()  # what dies now may ask something of the driver
        try:
            self.side.wait_stream(torch.cuda.current_stream(self.index))
            with torch.cuda.stream(self.side):
                graph.capture_begin(pool=pool, capture_error_mode="thread_local")
                try:
                    result = run()
                except BaseException:
                    with suppress(Exception):
                        graph.capture_end()
                    raise
                graph.capture_end()
        except BaseException:
            self._mend(graph, pool, generator, state)
            raise
        finally:
            if collecting:
                gc.enable()
        return graph.replay, result

    def _mend(self, graph: torch.cuda.CUDAGraph, pool: Handle, generator: torch.Generator, state: torch.Tensor) -> None:
        """After a capture that failed: torch leaves the pool open and the generator inside of the capture then.

        Ending a pool that is not open is an error, which is what is hoped for; a capture that succeeds closes the
        generator.
        """
        with suppress(Exception):
            _C._cuda_endAllocateToPool(self.index, pool)
            _C._cuda_releasePool(self.index, pool)
        with suppress(Exception):
            graph.reset()
        with suppress(Exception):
            other, scratch = torch.cuda.CUDAGraph(), torch.zeros(1, device=self.device)
            with torch.cuda.stream(self.side):
                other.capture_begin(capture_error_mode="thread_local")
                scratch.zero_()
                other.capture_end()
        with suppress(Exception):
            generator.set_state(state)


def _settings() -> tuple[Callable[[], object], ...]:
    """The readers of the settings; each torch has its own set of them."""
    names: tuple[str, ...] = (
        "_get_cublas_allow_fp16_reduced_precision_reduction", "_get_cublas_allow_bf16_reduced_precision_reduction",
        "_get_cublas_allow_fp16_accumulation", "_get_blas_preferred_backend", "_get_linalg_preferred_backend",
        "_get_cudnn_enabled", "_get_cudnn_benchmark", "_get_cudnn_deterministic",
        "_get_flash_sdp_enabled", "_get_mem_efficient_sdp_enabled", "_get_math_sdp_enabled", "_get_cudnn_sdp_enabled",
        "_get_math_sdp_allow_fp16_bf16_reduction", "_get_sm_carveout_experimental",
    )  # fmt: skip
    precision = getattr(_C, "_get_fp32_precision_getter", None)
    if precision is None:
        names = (*names, "_get_cublas_allow_tf32", "_get_cudnn_allow_tf32", "_get_float32_matmul_precision")
    readers = [getattr(_C, name) for name in names if hasattr(_C, name)]
    if precision is not None:
        readers += [lambda kind=kind: precision("cuda", kind) for kind in ("matmul", "conv", "rnn")]
    return tuple(readers)


SETTINGS = _settings()
