"""Wraps library calls into what plans call: pure ones of those that write, autocast's, inference mode's, random."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from framefuse.ir.facts import Casts
from framefuse.ir.values import Value


def commits(target: Value) -> bool:
    """Whether other processes take part in a call of ``target``, as in a collective: it stays where the program has it,
    is made once, and nobody asks for it again.
    """
    return bool(getattr(target, "commits", False))


@dataclass(frozen=True, slots=True)
class OnCopies:
    """Runs an in-place call on copies of the operands that it writes: returns its result, then each copy.

    ``places`` are the written operands: a position in ``args``, or a name in ``kwargs``. Strides are kept. Those
    ``spared`` are written themselves: nobody else has them. ``counts`` says where the counts of writes begin, if not
    at none: what the call saves of its result for autograd remembers eager's count.
    """

    target: Callable[..., Value]
    places: tuple[int | str, ...]
    spared: tuple[int | str, ...] = ()
    counts: tuple[int, ...] = ()
    writes: ClassVar[bool] = True  # its results count writes

    def __call__(self, *args: Value, **kwargs: Value) -> tuple[Value, ...]:
        positional, named, copies = list(args), dict(kwargs), []
        for place in self.places:
            holder: Value = named if isinstance(place, str) else positional
            value = holder[place] if place in self.spared else holder[place].clone()
            copies.append(value)
            holder[place] = value
        if self.counts and not torch.is_inference_mode_enabled():
            torch._C._autograd._unsafe_set_version_counter(tuple(copies), self.counts)
        result = self.target(*positional, **named)
        return (result, *copies)

    @property
    def commits(self) -> bool:
        """As that of the call inside."""
        return commits(self.target)

    @property
    def __name__(self) -> str:
        return f"{getattr(self.target, '__name__', 'call')}_on_copies"


@dataclass(frozen=True, slots=True)
class BeforeWrite:
    """Makes a view as if it had been made before its memory was written last: autograd remembers at which count of
    writes that was, and refuses to say what made a view where gradients were off once there are more. Of the view that
    was itself ``written`` it asked at the write, and so it stays, whatever the base's data become later.
    """

    target: Callable[..., Value]
    written: bool = False

    def __call__(self, base: torch.Tensor, *args: Value, **kwargs: Value) -> Value:
        made = self._made(base, *args, **kwargs)
        if self.written and isinstance(made, torch.Tensor):
            with contextlib.suppress(RuntimeError):  # it is refused where gradients were off: nothing may fail here
                _ = made.grad_fn
        return made

    def _made(self, base: torch.Tensor, *args: Value, **kwargs: Value) -> Value:
        count, put = 0 if base.is_inference() else base._version, torch._C._autograd._unsafe_set_version_counter
        if not count:
            return self.target(base, *args, **kwargs)
        put((base,), (count - 1,))
        try:
            return self.target(base, *args, **kwargs)
        finally:
            put((base,), (count,))


@dataclass(frozen=True, slots=True)
class InInference:
    """A call in inference mode, which autograd keeps of the views that it makes."""

    target: Callable[..., Value]

    def __call__(self, *args: Value, **kwargs: Value) -> Value:
        guard = torch._C._InferenceMode(True)
        guard.__enter__()
        try:
            return self.target(*args, **kwargs)
        finally:
            guard.__exit__(None, None, None)


def bare(tensor: torch.Tensor) -> Value:
    """In inference mode: a tensor of that in the memory of one that autograd knows."""
    made: Value = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return made.set_(tensor)


@dataclass(frozen=True, slots=True)
class Named:
    """A view of a whole tensor that torch keeps to itself, made by the function whose node eager shows."""

    node: str

    def __call__(self, tensor: torch.Tensor, *_: Value) -> torch.Tensor:
        if self.node == "SqueezeBackward1":
            return tensor.unsqueeze(0).squeeze(0)
        if self.node == "SqueezeBackward0" and 1 not in tensor.shape:
            return tensor.squeeze()
        made = tensor.view_as(tensor)  # which gives dimensions of one element other strides
        return made if made.stride() == tensor.stride() else tensor.expand_as(tensor)


@dataclass(frozen=True, slots=True)
class ThroughView:
    """Writes to a tensor as if through a view of it: autograd makes the node of a tensor that is a view itself anew at
    once where that is written, but only for whoever asks where another view is.
    """

    target: Callable[..., Value]

    def __call__(self, tensor: torch.Tensor, *args: Value) -> Value:
        return self.target(tensor.view_as(tensor) if tensor._is_view() else tensor, *args)


@dataclass(frozen=True, slots=True)
class Turned:
    """Turns a tensor that the program has turned in place (``t_``, ``unsqueeze_``): views made before stay views of it.
    Its count of writes has this one already.
    """

    target: Callable[..., Value]

    def __call__(self, tensor: torch.Tensor, *args: Value) -> Value:
        count = None if tensor.is_inference() else tensor._version
        self.target(tensor, *args)
        if count is not None:
            torch._C._autograd._unsafe_set_version_counter((tensor,), (count,))
        return tensor


@dataclass(frozen=True, slots=True)
class Silent:
    """Runs a Python function of torch's whose warnings are an effect of the trace."""

    target: Callable[..., Value]

    def __call__(self, *args: Value, **kwargs: Value) -> Value:
        warn, thread = warnings.warn, threading.get_ident()

        def tell(*args: Value, **kwargs: Value) -> None:
            if threading.get_ident() != thread:
                warn(*args, **kwargs)

        warnings.warn = tell
        try:
            return self.target(*args, **kwargs)
        finally:
            warnings.warn = warn

    @property
    def __name__(self) -> str:
        return getattr(self.target, "__name__", "call")


@dataclass(frozen=True, slots=True)
class Plainly:
    """Runs a call whose operands have a class that would say otherwise what it does: the trace has what that said."""

    target: Callable[..., Value]

    def __call__(self, *args: Value, **kwargs: Value) -> Value:
        with torch._C.DisableTorchFunctionSubclass():
            return self.target(*args, **kwargs)

    @property
    def __name__(self) -> str:
        return getattr(self.target, "__name__", "call")


@dataclass(frozen=True, slots=True)
class WithKernels:
    """Runs attention with those of torch's kernels that the program allowed where it stands: by name whether each is;
    ``order`` is that in which torch tries them (None: as it is).
    """

    target: Callable[..., Value]
    allowed: tuple[tuple[str, bool], ...]
    order: tuple[int, ...] | None = None

    def __call__(self, *args: Value, **kwargs: Value) -> Value:
        allowed = tuple([(name, kernel_allowed(name)) for name, _ in self.allowed])
        order = None if self.order is None else torch._C._get_sdp_priority_order()
        choose_kernels(self.allowed, self.order)
        try:
            return self.target(*args, **kwargs)
        finally:
            choose_kernels(allowed, order)

    @property
    def __name__(self) -> str:
        return getattr(self.target, "__name__", "call")


def kernel_allowed(name: str) -> bool:
    """Whether torch may take one of its kernels of attention: ``flash``, ``math``."""
    found: bool = getattr(torch._C, f"_get_{name}_sdp_enabled")()
    return found


def choose_kernels(allowed: Sequence[tuple[str, bool]], order: Sequence[int] | None) -> None:
    """Says which of its kernels of attention torch may take, and in which order it tries them."""
    for name, may in allowed:
        getattr(torch._C, f"_set_sdp_use_{name}")(may)
    if order is not None:
        torch._C._set_sdp_priority_order(list(order))


@dataclass(frozen=True, slots=True)
class Parts:
    """Runs a call that gives a sequence, of as many parts as it gave when recorded; raises ValueError otherwise."""

    target: Callable[..., Value]
    count: int

    def __call__(self, *args: Value, **kwargs: Value) -> Value:
        results = self.target(*args, **kwargs)
        if len(results) != self.count:
            raise ValueError(f"{len(results)} results, where {self.count} were recorded")
        return results

    @property
    def __name__(self) -> str:
        return getattr(self.target, "__name__", "call")


@dataclass(frozen=True, slots=True)
class Draw:
    """Makes a tensor of given sizes whose dimensions lie in ``order``, outermost first, and fills it by the in-place
    method ``fill`` with random numbers: ``draw(sizes, *parameters)``.
    """

    fill: str
    order: tuple[int, ...]
    dtype: torch.dtype
    device: str
    writes: ClassVar[bool] = True  # its result counts the fill

    def __call__(self, sizes: tuple[int, ...], *numbers: float) -> torch.Tensor:
        tensor = torch.empty_permuted(sizes, self.order, dtype=self.dtype, device=self.device)
        filled: torch.Tensor = getattr(tensor, self.fill)(*numbers)
        return filled

    @property
    def __name__(self) -> str:
        return f"draw_{self.fill.rstrip('_')}"


def element_on(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """The one element of a tensor of the CPU in a tensor on ``device``; nothing waits for that device."""
    return torch.full((), tensor.item(), dtype=tensor.dtype, device=device)


def part_of(base: torch.Tensor, sizes: Sequence[int], strides: Sequence[int], offset: int) -> torch.Tensor:
    """A view of a tensor's memory from an ``offset`` on, which counts from where the tensor begins."""
    return base.as_strided(sizes, strides, base.storage_offset() + offset)


def product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """``torch.matmul`` of matrices as they are: the graph says what autocast casts. The quick question comes first: the
    other one alone cost each product 0.9 us, both 0.25 where autocast is off.
    """
    if not torch._C._is_any_autocast_enabled() or not torch.is_autocast_enabled(left.device.type):
        return torch.matmul(left, right)
    kind = left.device.type
    with torch.autocast(kind, enabled=False):
        return torch.matmul(left, right)


KINDS = ("cpu", "cuda")  # the device types whose autocast calls tell

# Calls that give a tuple of named parts, always the same number of them.
_NAMED = [name.rstrip("_") for name in dir(torch.return_types)]
NAMED_PARTS = frozenset((*_NAMED, *(name.removeprefix("linalg_") for name in _NAMED)))


@dataclass(frozen=True, slots=True)
class UnderAutocast:
    """Runs a call under autocast for the device types of ``casts``, to their dtypes, and for no other."""

    target: Callable[..., Value]
    casts: Casts

    def __call__(self, *args: Value, **kwargs: Value) -> Value:
        wanted = dict(self.casts)
        states = [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in KINDS]
        cache = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)  # what it kept here would have no gradient
        try:
            for kind in KINDS:
                torch.set_autocast_enabled(kind, kind in wanted)
                if kind in wanted:
                    torch.set_autocast_dtype(kind, getattr(torch, wanted[kind]))
            return self.target(*args, **kwargs)
        finally:
            for kind, enabled, dtype in states:
                torch.set_autocast_enabled(kind, enabled)
                torch.set_autocast_dtype(kind, dtype)
            torch.set_autocast_cache_enabled(cache)

    @property
    def __name__(self) -> str:
        return f"{getattr(self.target, '__name__', 'call')}_autocast"
