"""Writes plans by hand: numbers, slots and steps are named by what they hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tests.unit.native import kernels
from tests.unit.native.python_plan import word_of

from framefuse.ir.plan import AllocStep, CallStep, KernelStep, LaunchStep, MatmulStep, Plan, Slot


class Writer:
    """A plan in the making; ``bound`` numbers come from the guards."""

    def __init__(self, bound: int = 0) -> None:
        self.bound = self.count = bound
        self.instructions: list[tuple[Any, ...]] = []
        self.slots: list[Slot] = []
        self.inputs: list[int] = []
        self.steps: list[Any] = []
        self.finish: list[Any] = []
        self.arena = -1
        self.arenas: list[tuple[str, int]] = []
        self.constants: dict[Any, int] = {}

    def number(self, op: str, left: Any, right: Any = 0) -> int:
        self.instructions.append((op, self.count, left, right))
        self.count += 1
        return self.count - 1

    def free(self) -> int:
        """A number that a step binds."""
        self.count += 1
        return self.count - 1

    def const(self, value: int) -> int:
        if value not in self.constants:
            self.constants[value] = self.number("const", value)
        return self.constants[value]

    def real(self, value: float) -> int:
        return self.number("real_const", value)

    def extents(self, numbers: Sequence[int]) -> tuple[int, ...]:
        """Contiguous strides of these sizes."""
        strides = [self.const(1)]
        for size in reversed(numbers[1:]):
            strides.append(self.number("mul", strides[-1], size))
        return tuple(reversed(strides))[: len(numbers)] if numbers else ()

    def slot(self, place: str, sizes: Sequence[int], *, dtype: str = "float32", **rest: Any) -> int:
        self.slots.append(Slot(place, dtype, tuple(sizes), self.extents(sizes), **rest))
        return len(self.slots) - 1

    def strided(
        self, place: str, sizes: Sequence[int], strides: Sequence[int], *, dtype: str = "float32", **rest: Any
    ) -> int:
        self.slots.append(Slot(place, dtype, tuple(map(self.const, sizes)), tuple(map(self.const, strides)), **rest))
        return len(self.slots) - 1

    def input(self, register: int, sizes: Sequence[int], **rest: Any) -> int:
        self.inputs.append(register)
        return self.slot("input", sizes, **rest)

    def fresh(self, sizes: Sequence[int], **rest: Any) -> int:
        slot = self.slot("fresh", sizes, **rest)
        self.steps.append(AllocStep(slot))
        return slot

    def axpy(
        self, x: int, y: int, out: int, extent: int, scale: float = 1.0, work: int = 100, parallel: bool = True
    ) -> None:
        step = KernelStep(
            "axpy",
            kernels.address("axpy"),
            (x, y, out),
            (self.real(scale),),
            extent,
            self.const(work),
            parallel,
            kernels,
        )
        self.steps.append(step)

    def negative(self, x: int, extent: int) -> None:
        address = kernels.address("negative")
        self.steps.append(KernelStep("negative", address, (x,), (), extent, self.const(100), False, kernels))

    def launch(
        self, function: int, arguments: Sequence[tuple[str, int]], extent: int, variant: Any = None, **rest: Any
    ) -> None:
        shape = {"blocks": 4, "threads": 128, "shared": 0, "device": 0, **rest}
        self.steps.append(LaunchStep("launch", function, variant, tuple(arguments), extent, keep=None, **shape))

    def call(self, function: Any, args: Sequence[Any], out: int | None = None, **rest: Any) -> None:
        outs = () if out is None else (((), out),)
        self.steps.append(
            CallStep(getattr(function, "__name__", "f"), function, tuple(args), (), rest.pop("outs", outs), **rest)
        )

    def matmul(
        self,
        out: int,
        a: int,
        c: int,
        sizes: tuple[int, int, int, int],
        *strides: tuple[int, ...],
        accumulate: bool = False,
    ) -> None:
        batch, m, n, k = map(self.const, sizes)
        three = [tuple(map(self.const, each)) for each in strides]
        self.steps.append(MatmulStep(out, a, c, batch, m, n, k, *three, accumulate))  # type: ignore[arg-type]

    def plan(self, result: Any) -> Plan:
        return Plan(
            "test", self.bound, self.count, tuple(self.instructions), tuple(self.slots), tuple(self.inputs),
            tuple(self.steps),
            self.arena, tuple(self.finish), result, arenas=tuple(self.arenas),
        )  # fmt: skip


def bits(tensor: torch.Tensor) -> bytes:
    """The memory of the elements, for exact comparison."""
    return tensor.detach().contiguous().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


__all__ = ["Writer", "bits", "word_of"]
