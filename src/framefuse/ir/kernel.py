"""One compiled unit: its parameters, and the loop nest that is its body, which is read late where it was kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import TYPE_CHECKING, Any

from framefuse.ir.dtypes import DType
from framefuse.ir.frozen_classes import dataclass
from framefuse.ir.numbers import Expr, Symbol
from framefuse.ir.source import Line

if TYPE_CHECKING:
    from framefuse.ir.loops.nodes import Product, Statement


@dataclass(frozen=True, slots=True)
class Buffer:
    """A memory parameter of the kernel: elements of ``dtype``; ``written`` when the kernel stores or adds to it.
    Buffers of one kernel never overlap, except that a written buffer may be exactly one read buffer when ``aliases``
    names it and every load of an element comes before its store.
    """

    name: str
    dtype: DType
    written: bool
    aliases: str | None = None


@dataclass(frozen=True, slots=True)
class Number:
    """A number parameter: an int64 (``real`` False) or a double, passed in the numbers array in order; used by its
    ``symbol``'s name.
    """

    symbol: Symbol
    real: bool = False


@dataclass(frozen=True, slots=True)
class Kernel:
    """One compiled unit. ``body`` is a list of statements; if its only loop at top level is parallel, that loop's axis
    is split over threads.

    ``extent`` is that loop's extent (1 when there is none: the kernel is then called once with the range 0..1 and must
    not be split). ``lines`` are the user's lines that it computes and ``title`` a short name such as ``softmax_add``:
    both are for people and are not part of the kernel's identity. ``exact`` asks for the mathematical functions that
    eager's vectors call. An emitter for a GPU multiplies tiles where the kernel is a ``product``. ``ones`` are numbers
    that may well be 1, for which the kernel is much simpler then: an emitter may write it for that case, too. ``known``
    holds what was found out about the kernel, such as its key (:func:`framefuse.ir.loops.key.key_of`), by what it is
    called. That of a kernel :func:`kept_kernel` made holds how its body is ``read`` until somebody wants it.
    """

    title: str
    buffers: tuple[Buffer, ...]
    numbers: tuple[Number, ...]
    body: tuple[Statement, ...]
    extent: Expr
    lines: tuple[Line, ...] = ()
    exact: bool = False
    product: Product | None = None
    ones: tuple[Symbol, ...] = ()
    known: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __getattr__(self, name: str) -> Any:
        read: Callable[[], tuple[Statement, ...]] | None = self.known.get("read") if name == "body" else None
        if read is not None:
            object.__setattr__(self, "body", read())
            self.known.pop("read", None)
        return object.__getattribute__(self, name)  # another thread may have read it


def kept_kernel(
    title: str,
    buffers: tuple[Buffer, ...],
    numbers: tuple[Number, ...],
    read: Callable[[], tuple[Statement, ...]],
    *rest: Any,
) -> Kernel:
    """A kernel that an earlier process made, with the ``rest`` of the fields: who runs its code reads no body."""
    kernel = Kernel(title, buffers, numbers, (), *rest)
    object.__delattr__(kernel, "body")
    kernel.known["read"] = read
    return kernel
