"""Draws a random program: inputs of any size, dtype and layout, and a chain of operations that eager runs."""

from __future__ import annotations

import random
import string
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.drawn.random_table import TABLE

# Nothing that anybody tunes on, and some that everybody has.
SIZES = (
    1, 1, 2, 3, 4, 5, 6, 7, 8, 11, 13, 16, 17, 19, 29, 31, 32, 33, 47, 61, 64, 67, 97, 101, 128, 131, 257, 509, 1021,
)  # fmt: skip
COUNTS = (40, 400, 4_000, 40_000, 200_000)  # of elements: at most one of these, drawn for each program
DTYPES = (
    *[torch.float32] * 8, *[torch.float64] * 3, *[torch.bfloat16] * 3, torch.float16, *[torch.int64] * 2, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64,
)  # fmt: skip
CASTS = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8)
LAYOUTS = ("contiguous", "contiguous", "contiguous", "transposed", "permuted", "sliced", "shifted", "expanded", "last")
LEAST_RANK = {"transposed": 2, "permuted": 2, "sliced": 1, "shifted": 1, "expanded": 2, "last": 4}
LENGTHS = (1, 1, 1, 2, 2, 3, 4, 6, 9, 14)  # of a chain
LARGEST_MATRIX = 150  # rows or columns of what is multiplied: eager takes seconds for more, of integers
TRIES = 30  # draws of an operation before the chain ends where it is


@dataclass(frozen=True)
class Input:
    """How an argument is drawn; ``bound`` is one more than the largest position that it may hold, or 0."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    layout: str
    bound: int = 0

    def draw(self, generator: torch.Generator) -> Tensor:
        """A tensor of its own memory."""
        shape = list(self.shape)
        if self.layout == "transposed":
            shape[-1], shape[-2] = shape[-2], shape[-1]
            return self.values(shape, generator).transpose(-1, -2)
        if self.layout == "permuted":
            return self.values(shape[::-1], generator).permute(*range(len(shape))[::-1])
        if self.layout == "sliced":
            return self.values([*shape[:-1], shape[-1] * 2], generator)[..., ::2]
        if self.layout == "shifted":
            return self.values([*shape[:-1], shape[-1] + 3], generator)[..., 2:-1]
        if self.layout == "expanded":
            return self.values([1, *shape[1:]], generator).expand(shape)
        if self.layout == "last":
            return self.values(shape, generator).to(memory_format=torch.channels_last)
        return self.values(shape, generator)

    def values(self, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        """Numbers of every sign, small enough that integers do not overflow soon."""
        if self.bound:
            return torch.randint(self.bound, shape, generator=generator)
        if self.dtype is torch.bool:
            return torch.rand(shape, generator=generator) > 0.5
        if self.dtype.is_floating_point or self.dtype.is_complex:
            drawn = torch.complex64 if self.dtype.is_complex else torch.float32
            return torch.randn(shape, generator=generator, dtype=drawn).to(self.dtype)
        low = 0 if self.dtype is torch.uint8 else -9
        return torch.randint(low, 9, shape, generator=generator, dtype=self.dtype)


@dataclass(frozen=True)
class Program:
    """A function of tensors as text, its arguments, and whether it is called with its backward."""

    seed: int
    source: str
    inputs: tuple[Input, ...]
    families: tuple[str, ...]
    backward: bool

    @property
    def name(self) -> str:
        """What it does and to what, in one line."""
        statements = "; ".join(line.strip() for line in self.source.splitlines()[1:-1])
        given = ", ".join(
            f"{name}: {str(one.dtype).removeprefix('torch.')}{list(one.shape)}"
            + ("" if one.layout == "contiguous" else f" {one.layout}")
            for name, one in zip(string.ascii_lowercase, self.inputs, strict=False)
        )
        return f"{self.seed}{' both ways' if self.backward else ''}: {statements}  # {given}"

    def function(self) -> Callable[..., Any]:
        """A new function of this text."""
        space: dict[str, Any] = {"torch": torch, "F": F}
        exec(compile(self.source, f"<program {self.seed}>", "exec"), space)
        made: Callable[..., Any] = space["f"]
        return made

    def arguments(self, seed: int) -> tuple[Tensor, ...]:
        """Tensors to call it with; floating ones require grad where it is called with its backward."""
        generator = torch.Generator().manual_seed(seed)
        drawn = tuple(one.draw(generator) for one in self.inputs)
        if self.backward:
            drawn = tuple(one.detach().requires_grad_(one.dtype.is_floating_point) for one in drawn)
        return drawn


def parts_of(made: object) -> list[object]:
    """The results of an operation that may give several."""
    return list(made) if isinstance(made, (tuple, list)) else [made]


class Drawing:
    """A program while it is drawn: each statement is run, so that what eager refuses is drawn again."""

    def __init__(self, seed: int, families: Sequence[str]) -> None:
        self.chance = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.families = list(families)
        self.most = self.chance.choice(COUNTS)
        self.dtype = self.chance.choice(DTYPES)
        self.inputs: list[Input] = []
        self.space: dict[str, Any] = {"torch": torch, "F": F}
        self.statements: list[str] = []
        self.taken: list[str] = []
        self.value = self.add_input(self.shape(), self.dtype)

    def shape(self) -> tuple[int, ...]:
        """Up to four sizes that come to no more elements than this program shall have."""
        shape: list[int] = []
        left = self.most
        for _ in range(self.chance.choice((1, 2, 2, 3, 3, 4, 4))):
            size = self.chance.choice([size for size in SIZES if size <= left])
            shape.append(size)
            left //= size
        self.chance.shuffle(shape)
        return tuple(shape)

    def add_input(self, shape: Sequence[int], dtype: torch.dtype, bound: int = 0) -> str:
        """The name of one more argument."""
        layout = self.chance.choice(LAYOUTS)
        if bound or len(shape) < LEAST_RANK.get(layout, 0):
            layout = "contiguous"
        one = Input(tuple(shape), dtype, layout, bound)
        name = string.ascii_lowercase[len(self.inputs)]
        self.inputs.append(one)
        self.space[name] = one.draw(self.generator)
        return name

    def other(self, value: Tensor) -> str:
        """An operand that broadcasts with the value: an argument that there is, or one more."""
        names = [name for name in string.ascii_lowercase if name in self.space]
        alike = [name for name in names if self.space[name].shape == value.shape]
        if alike and self.chance.random() < 0.4:
            return self.chance.choice(alike)
        kept = [size if self.chance.random() < 0.7 else 1 for size in value.shape]
        if self.chance.random() < 0.3:
            kept = kept[self.chance.randint(0, len(kept)) :]
        mixed = self.chance.random() < 0.1
        return self.add_input(kept, self.chance.choice(DTYPES) if mixed else value.dtype)

    def filled(self, row: str, value: Tensor) -> str:
        """The row with its places filled; raises where the value has not what a place asks for."""
        chance, rank, shape = self.chance, value.dim(), value.shape
        d, e = (chance.sample(range(-rank, 0), 2) if rank > 1 else (-1, -1)) if rank else (0, 0)
        asked = {part for _, part, _, _ in string.Formatter().parse(row) if part}
        places: dict[str, Any] = {"x": self.value, "d": d, "e": e, "n": chance.choice((1, 2, 2, 3, 4, 5))}
        places |= {"m": chance.choice((1, 2, 3)), "f": round(chance.random() + 0.1, 2), "s": chance.randint(2, 9)}
        places["t"] = chance.choice(CASTS)
        made: dict[str, Callable[[], str]] = {
            "y": lambda: self.other(value),
            "z": lambda: self.other(value),
            "c": lambda: self.add_input(shape, torch.bool),
            "v": lambda: self.add_input(shape[-1:], value.dtype),
            "w": lambda: self.add_input(shape[1:2], value.dtype),
            "i": lambda: self.add_input(shape[d : d + 1 or None], torch.int64, shape[d]),
            "j": lambda: self.add_input(shape, torch.int64, shape[d]),
            "p": lambda: self.add_input(shape[:1], torch.int64, min(shape[0], shape[-1])),
        }
        return row.format(**places, **{place: make() for place, make in made.items() if place in asked})

    def is_large(self, text: str) -> bool:
        """Whether a result of this would be much larger than the program's inputs, as far as its shape tells."""
        space = {name: one.to("meta") if isinstance(one, Tensor) else one for name, one in self.space.items()}
        try:
            parts = parts_of(eval(text, space))
        except Exception:  # values decide the shape, or there is none
            return False
        return sum(part.numel() for part in parts if isinstance(part, Tensor)) > 8 * self.most

    def step(self) -> bool:
        """Adds a statement, and says whether the chain may go on behind it."""
        value = self.space[self.value]
        for _ in range(TRIES):
            family = self.chance.choice(self.families)
            row, count = self.chance.choice(TABLE[family]), len(self.inputs)
            name = f"v{len(self.statements)}"
            try:
                text = self.filled(row, value)
                if self.is_large(text) or (family == "linalg" and max(value.shape[-2:], default=0) > LARGEST_MATRIX):
                    raise ValueError("more elements than this program shall have")
                made = eval(text, self.space)
                if not all(isinstance(part, (Tensor, bool)) for part in parts_of(made)):
                    raise ValueError("nothing to go on with")
            except Exception:  # eager refuses it for this dtype or rank
                for lost in string.ascii_lowercase[count : len(self.inputs)]:
                    self.space.pop(lost, None)
                del self.inputs[count:]
                continue
            self.statements.append(f"{name} = {text}")
            self.taken.append(family)
            self.space[name], self.value = made, name
            return isinstance(made, Tensor)
        return False


def drawn(seed: int, families: Sequence[str] = tuple(TABLE)) -> Program:
    """The program of this seed; of some families of operations."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        drawing = Drawing(seed, families)
        length = drawing.chance.choice(LENGTHS)
        while len(drawing.statements) < length and drawing.step():
            pass
    names = ", ".join(string.ascii_lowercase[: len(drawing.inputs)])
    lines = [f"def f({names}):", *(f"    {line}" for line in drawing.statements), f"    return {drawing.value}"]
    made = drawing.space[drawing.value]
    trained = isinstance(made, Tensor) and made.dtype.is_floating_point and "writes" not in drawing.taken
    backward = trained and any(one.dtype.is_floating_point for one in drawing.inputs) and drawing.chance.random() < 0.4
    return Program(seed, "\n".join(lines) + "\n", tuple(drawing.inputs), tuple(drawing.taken), backward)
