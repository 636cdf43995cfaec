"""Keeps what calls of a plan derive from parameters and buffers, for as long as these are what they were."""

from __future__ import annotations

import functools
import itertools
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch._prims_common import suggest_memory_format

from framefuse import _native
from framefuse.ir.derivations import Derived, Packed, Window, counter_beside
from framefuse.ir.facts import Input, Source
from framefuse.ir.graph import Graph
from framefuse.ir.values import Function, Value

Tensors = tuple[torch.Tensor, ...]
Compute = Callable[[Graph], Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]]

MOST = 256  # families of parents whose values one call keeps: the layers of a model that share a compiled function
_kept: weakref.WeakSet[Kept] = weakref.WeakSet()


@functools.cache
def counts_writes() -> int:
    """The keys that a tensor has which counts its writes, and one that was made in inference mode lacks."""
    ordinary = torch.empty(0)
    with torch.inference_mode():
        uncounted = torch.empty(0)
    return int(_native.tensor_facts(ordinary)["keys"]) & ~int(_native.tensor_facts(uncounted)["keys"])


@dataclass(slots=True, eq=False)
class Family:
    """Values that were derived from one set of parents. The ``storages`` of these and of their witnesses are held, so
    that nothing else can come to lie where they lie; they are watched, and the values go when one of them dies.
    """

    marks: bytes
    values: Tensors
    storages: tuple[torch.UntypedStorage, ...]
    watched: tuple[weakref.ref[torch.Tensor], ...]


@dataclass(slots=True)
class Account:
    """``computed`` times in ``seconds`` altogether values were derived, ``spared`` times they were there."""

    computed: int = 0
    spared: int = 0
    seconds: float = 0.0


class Kept:
    """``values(parents)`` are what ``compute`` gives for them. They are computed again when a parent or one of the
    ``witnesses`` was written to, as versions count, or lies elsewhere; what no version counts is not seen. Those that
    lie ``still`` are written where they lay, as captured graphs read them there.
    """

    def __init__(
        self, compute: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]], still: bool = False
    ) -> None:
        self._compute, self._still = compute, still
        self._families: dict[tuple[int, int], Family] = {}  # by the first and the last parent
        self.account = Account()
        _kept.add(self)

    def values(self, parents: Tensors, witnesses: Tensors = ()) -> Tensors:
        """The values; callers must not write to them."""
        marks = _native.marks_of(*parents, *witnesses)
        family = self._families.get((id(parents[0]), id(parents[-1])))
        if family is not None and family.marks == marks:
            self.account.spared += 1
            return family.values
        return self._derived(parents, witnesses, marks)

    def _derived(self, parents: Tensors, witnesses: Tensors, marks: bytes) -> Tensors:
        start = time.perf_counter()
        ends, families = (id(parents[0]), id(parents[-1])), self._families
        on_gpu = any(parent.is_cuda for parent in parents)
        captured = on_gpu and torch.cuda.is_current_stream_capturing()
        with torch.inference_mode(False), torch.no_grad():
            values = tuple(self._compute(parents))
            if captured:
                return values  # nothing was computed yet
            if self._still and (before := families.get(ends)) is not None:
                values = _in_place(values, before, parents)
            if on_gpu:
                torch.cuda.current_stream().synchronize()  # another stream may read them next
        self.account.computed += 1
        self.account.seconds += time.perf_counter() - start
        forget = functools.partial(_forget, weakref.ref(self), ends)
        families.pop(ends, None)
        while len(families) >= MOST:
            families.pop(next(iter(families)), None)
        families[ends] = Family(
            marks,
            values,
            tuple(each.untyped_storage() for each in (*parents, *witnesses)),
            tuple(weakref.ref(each, forget) for each in (*parents, *witnesses)),
        )
        return values

    def forget(self, addresses: frozenset[int] | None = None) -> None:
        """Lets go of the values derived from tensors at these addresses of memory, or of all."""
        for ends, family in tuple(self._families.items()):
            if addresses is None or not addresses.isdisjoint(storage.data_ptr() for storage in family.storages):
                self._families.pop(ends, None)

    @property
    def bytes(self) -> int:
        """The memory of all values that are kept."""
        every = (value for family in tuple(self._families.values()) for value in family.values)
        return sum(value.numel() * value.element_size() for value in every)


def _in_place(values: Tensors, before: Family, parents: Tensors) -> Tensors:
    """The values in the memory of those ``before``, where these lie alike and in memory of their own."""
    others = {storage.data_ptr() for storage in before.storages} | {p.untyped_storage().data_ptr() for p in parents}
    for value, old in itertools.zip_longest(values, before.values):
        if value is None or old is None or old.untyped_storage().data_ptr() in others or not _lies_alike(value, old):
            return values
    for device in {value.device for value in values if value.is_cuda}:
        torch.cuda.synchronize(device)  # what runs on any stream has read them
    for value, old in zip(values, before.values, strict=True):
        old.copy_(value)
    return before.values


def _lies_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    alike = one.shape == other.shape and one.stride() == other.stride()
    dense = torch.ops.aten.is_non_overlapping_and_dense.default(other)
    return alike and dense and one.dtype is other.dtype and one.device == other.device


def _forget(owner: weakref.ref[Kept], ends: tuple[int, int], _: weakref.ref[torch.Tensor]) -> None:
    kept = owner()
    if kept is not None:
        kept._families.pop(ends, None)


class DerivedCall:
    """The call of a plan that gives what a ``target`` derives from its operands."""

    def __init__(self, target: Derived, compute: Compute, still: bool) -> None:
        self.kept = Kept(compute(target.graph), still)

    def __call__(self, parents: Tensors, witnesses: Tensors) -> Tensors:
        return self.kept.values(parents, witnesses)


class PackedCall:
    """The call of a plan of a convolution or product on the packed form of a weight."""

    def __init__(self, target: Packed, compute: Compute) -> None:
        derive, window, sizes = compute(target.graph), target.window, target.sizes
        self.biased = target.biased

        def packed(parents: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
            weight, *bias = derive(parents)
            return (_packed_weight(weight, window, sizes), *bias)

        self.kept = Kept(packed)
        self.call = _product if window is None else _convolution(window)

    def __call__(self, operand: torch.Tensor, parents: Tensors, witnesses: Tensors) -> torch.Tensor:
        values = self.kept.values(parents, witnesses)
        return self.call(operand, values[0], values[1] if self.biased else None)


def _packed_weight(weight: torch.Tensor, window: Window | None, sizes: tuple[int, ...]) -> torch.Tensor:
    packed: torch.Tensor
    if window is None:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.t().contiguous(), sizes[0])
    else:
        reorder: Function = torch._C._nn.mkldnn_reorder_conv2d_weight  # its stub lacks the sizes
        packed = reorder(weight.to_mkldnn(), *window, 1, sizes)
    return packed


def _product(rows: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    result: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(rows, packed, bias, "none", [], "")
    return result


def _convolution(window: Window) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]:
    padding, step, dilation = window
    call = torch.ops.mkldnn._convolution_pointwise.default

    def convolution(picture: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        result: torch.Tensor = call(picture, packed, bias, padding, step, dilation, 1, "none", [], "")
        if result.is_contiguous() and result.is_contiguous(memory_format=torch.channels_last):
            # It lies in both ways, of one point a channel or empty: torch says by the picture which strides it shows.
            return result.as_strided(result.shape, _shown_strides(picture, result.shape))
        return result

    return convolution


def _shown_strides(picture: torch.Tensor, sizes: Sequence[int]) -> tuple[int, ...]:
    layout = suggest_memory_format(picture)
    return torch.empty(sizes, device="meta", memory_format=layout).stride()


def keeping(
    target: Value, inputs: Sequence[Input], compute: Compute, still: bool = False
) -> tuple[Value, tuple[tuple[Source, ...], ...]]:
    """The target of a call of a plan, where it derives something as what keeps that (``still``: where it lies), and
    further arguments of such a call: the places of the counters beside those of the ``inputs`` that are its witnesses.
    """
    kept: DerivedCall | PackedCall
    if isinstance(target, Derived):
        kept = DerivedCall(target, compute, still)
    elif isinstance(target, Packed):
        kept = PackedCall(target, compute)
    else:
        return target, ()
    return kept, (tuple(dict.fromkeys(counter_beside(inputs[number].source) for number in target.witnesses)),)


def refresh(tensors: Iterable[torch.Tensor] | None = None) -> None:
    """Has values derived anew from these parameters and buffers, or from all, at the next calls."""
    addresses = None if tensors is None else frozenset(tensor.untyped_storage().data_ptr() for tensor in tensors)
    for kept in tuple(_kept):
        kept.forget(addresses)


def kept_by(functions: Iterable[object]) -> tuple[Kept, ...]:
    """What those of a plan's functions keep that derive something."""
    return tuple(function.kept for function in functions if isinstance(function, (DerivedCall, PackedCall)))
