"""Turns state that only a call can tell into facts: the question is asked again before the trace is used."""

from __future__ import annotations

import abc
import gc
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist

from framefuse.capture.facts.atoms import CARRIED
from framefuse.capture.facts.sources import Sources
from framefuse.ir.values import Value


class Question:
    """A call without arguments and effects; ``answer`` is what it gives now."""

    __slots__ = ("ask",)

    def __init__(self, ask: Callable[[], Value]) -> None:
        self.ask = ask

    @property
    def answer(self) -> Value:
        return self.ask()


# Changes when any class is registered with an abstract one.
REGISTRATIONS = Question(abc.get_cache_token)


def _profiled() -> bool:
    """Whether a profiler listens in this thread, or the monitor of CUDA's activity."""
    monitor = sys.modules.get("torch.profiler._cupti_monitor")
    return torch._C._autograd._profiler_enabled() or getattr(monitor, "_monitor_singleton", None) is not None


PROFILER = Question(_profiled)
# Whether the caller is handling no exception.
CALM = Question(lambda: sys.exc_info()[1] is None)
QUESTIONS: dict[Value, Question] = {
    ask: Question(ask)
    for ask in (
        sys.getrecursionlimit, gc.isenabled,
        torch.get_num_threads, torch.get_num_interop_threads, torch.get_float32_matmul_precision,
        torch.is_deterministic_algorithms_warn_only_enabled, torch.get_deterministic_debug_mode,
        torch.is_anomaly_enabled, torch.is_anomaly_check_nan_enabled,
        torch.cuda.current_device, torch.cuda.is_current_stream_capturing,
        torch._C._get_cudnn_enabled, torch._C._get_cudnn_benchmark, torch._C._get_cudnn_deterministic,
        torch._C._get_cudnn_allow_tf32, torch._C._get_cublas_allow_tf32, torch._C._get_mkldnn_enabled,
        torch._C._are_functorch_transforms_active, torch._C._get_qengine,
        *((torch._C._get_mkldnn_deterministic,) if hasattr(torch._C, "_get_mkldnn_deterministic") else ()),
        *(ask for name, ask in vars(torch.cpu).items() if name.startswith("_is_") and name.endswith("_supported")),
        *((torch.xpu.is_current_stream_capturing,) if torch.xpu._is_compiled() else ()),
        *((dist.is_initialized, dist.get_rank, dist.get_world_size, dist.get_backend) if dist.is_available() else ()),
    )
}  # fmt: skip


def answered(sources: Sources, question: Question) -> Value:
    """The answer now, with the fact that it is this one at later calls."""
    value = question.answer
    if not sources.host.alive:
        return value
    base, place = sources.root(question), (id(question), "getattr", "answer")
    return sources.read_at(base, place, "getattr", "answer", value, CARRIED)
