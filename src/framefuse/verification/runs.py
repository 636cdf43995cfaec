"""Runs a program on copies of its arguments and says what came of it: results, gradients, writes, aliases, errors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property

import torch

from framefuse.ir.values import Arguments, Function, Keywords, Value
from framefuse.verification.nearness import unlike
from framefuse.verification.program_state import PLAIN, Kept, Place, State, as_it_was

WIDE = {
    torch.float16: torch.float64, torch.bfloat16: torch.float64, torch.float32: torch.float64,
    torch.complex64: torch.complex128, torch.complex32: torch.complex128,
}  # fmt: skip
SEED = 20_000  # of the gradients that flow into results
FREED = "Trying to backward through the graph a second time"  # a step whose own backward went through its result


def mapped(value: Value, change: Callable[[torch.Tensor], torch.Tensor]) -> Value:
    """Nested containers with each tensor changed; equal tensors stay one, other objects stay what they are."""
    done: dict[int, Value] = {}

    def visit(part: Value) -> Value:
        if isinstance(part, torch.Tensor):
            if id(part) not in done:
                done[id(part)] = change(part)
            return done[id(part)]
        if type(part) in (list, tuple):
            return type(part)(visit(each) for each in part)
        if isinstance(part, tuple) and hasattr(part, "_fields"):
            return type(part)(*(visit(each) for each in part))
        if type(part) is dict:
            return {key: visit(each) for key, each in part.items()}
        return part

    return visit(value)


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """A leaf of the same values, strides and ``requires_grad`` in memory of its own."""
    if 0 in tensor.stride() and tensor.numel():
        twin = tensor.detach().as_strided(tensor.size(), tensor.stride()) if tensor.numel() == 1 else tensor.detach()
        twin = twin.clone() if tensor.numel() == 1 else _expanded(twin)
    else:
        twin = tensor.detach().clone(memory_format=torch.preserve_format)
    return twin.requires_grad_(tensor.requires_grad)


def _expanded(tensor: torch.Tensor) -> torch.Tensor:
    rows = tensor[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in tensor.stride())]
    return rows.clone().expand(tensor.shape)


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with twice the digits or more."""
    wide = WIDE.get(tensor.dtype)
    return copied(tensor) if wide is None else tensor.detach().to(wide).requires_grad_(tensor.requires_grad)


def nudged(tensor: torch.Tensor) -> torch.Tensor:
    """A copy whose floats are one rounding away, up or down."""
    twin = copied(tensor)
    if tensor.is_floating_point() and 0 not in tensor.stride():
        with torch.no_grad():
            twin.copy_(nudge(twin.detach()))
    return twin


def nudge(tensor: torch.Tensor) -> torch.Tensor:
    """The floats one rounding away, up or down by chance."""
    ways = torch.randint(0, 2, tensor.shape, generator=torch.Generator().manual_seed(SEED)).mul_(2).sub_(1)
    eps = torch.finfo(tensor.dtype).eps
    return (tensor.double() * (1 + eps * ways.to(tensor.device))).to(tensor.dtype)


def tensors(value: Value) -> Iterator[torch.Tensor]:
    """The tensors in nested containers, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors(part)
    elif isinstance(value, (list, tuple, set)):
        for part in value:
            yield from tensors(part)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for row in dataclasses.fields(value):
            yield from tensors(getattr(value, row.name, None))


def shown(value: Value) -> Value:
    """What is compared of a value: tensors as copies, containers by their contents, other objects by their type."""
    if isinstance(value, torch.Tensor):
        twin = value.detach().clone()
        return twin.requires_grad_() if value.requires_grad else twin
    if isinstance(value, Mapping):
        return {str(key): shown(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [shown(part) for part in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {row.name: shown(getattr(value, row.name, None)) for row in dataclasses.fields(value)}
    return value if isinstance(value, PLAIN) else type(value).__name__


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run came to. ``aliases`` has for each tensor of the result which earlier one, or which argument or
    state, has its memory.
    """

    result: Value = None
    error: str = ""
    aliases: tuple[str, ...] = ()
    gradients: dict[str, Value] = dataclasses.field(default_factory=dict)
    arguments: Value = None
    state: dict[str, Value] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class Reference:
    """Eager's run, and what it comes to on twice the digits and on arguments one rounding away, None where that fails;
    each is run when it is first asked for.
    """

    eager: Outcome
    otherwise: Callable[[Callable[[torch.Tensor], torch.Tensor]], Outcome | None]

    @cached_property
    def exact(self) -> Outcome | None:
        return self.otherwise(widened)

    @cached_property
    def nudged(self) -> Outcome | None:
        return self.otherwise(nudged)


def difference(mine: Outcome, reference: Reference) -> tuple[str, str]:
    """Where a run differs from eager's (``result``, ``gradients``, ...) and how; empty texts where it is as near to the
    exact one as eager's is.
    """
    eager = reference.eager
    if mine.error != eager.error:
        return "error", f"{mine.error or 'no error'}, eager {eager.error or 'none'}"
    for part in ("result", "arguments", "state", "gradients"):
        here, theirs = getattr(mine, part), getattr(eager, part)
        if not unlike(here, theirs, None, factor=1.0):
            continue
        there = getattr(reference.exact or Outcome(), part)
        text = unlike(here, theirs, there)
        if text:
            text = unlike(here, theirs, there, nudged=getattr(reference.nudged or Outcome(), part))
        if text:
            return part, text
    if mine.aliases != eager.aliases:
        return "aliases", f"memory of results is that of {mine.aliases}, eager {eager.aliases}"
    return "", ""


@dataclass(frozen=True, slots=True)
class Program:
    """A call of ``function`` whose state is put back after each run. ``training`` asks for gradients of the result.
    ``other`` are the places of the state that hold another value in it.
    """

    function: Function
    args: Arguments
    kwargs: Keywords
    state: State
    training: bool
    other: tuple[tuple[Place, Value], ...] = ()

    def run(self, function: Function, change: Callable[[torch.Tensor], torch.Tensor] = copied) -> Outcome:
        """What ``function`` comes to in place of the program's, on arguments and state that were changed."""
        with as_it_was(self.state) as kept:
            for place, value in self.other:
                place.put(value)
            args, kwargs = mapped((self.args, self.kwargs), change)
            if change is not copied:
                for tensor in self.state.tensors.values():
                    if tensor.is_leaf and tensor.dtype in WIDE:
                        tensor.grad = None
                        tensor.data = change(tensor.detach())
                for own in (part for optimizer in self.state.optimizers for part in optimizer.state.values()):
                    own.update({key: change(part) for key, part in own.items() if isinstance(part, torch.Tensor)})
            return self._outcome(function, args, kwargs, kept)

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Takes what the program owns after a first step for its state, where optimizers have taken none: that one
        makes what they keep, and no other is like it. All is put back at the end.
        """
        if self.state.kept is not None or all(optimizer.state for optimizer in self.state.optimizers):
            yield
            return
        before = Kept(self.state)
        try:
            args, kwargs = mapped((self.args, self.kwargs), copied)
            with suppress(Exception), torch.set_grad_enabled(self.training and torch.is_grad_enabled()):
                self.function(*args, **kwargs)
            self.state.kept = Kept(self.state)
            yield
        finally:
            before.put_back()
            self.state.kept = None

    def reference(self) -> Reference:
        """What compiled code is compared with."""
        return Reference(self.run(self.function), self._otherwise)

    def _otherwise(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Outcome | None:
        try:
            found = self.run(self.function, change)
        except Exception:
            return None
        return None if found.error else found

    def _outcome(self, function: Function, args: Arguments, kwargs: Keywords, kept: Kept) -> Outcome:
        try:
            with torch.set_grad_enabled(self.training and torch.is_grad_enabled()):
                result = function(*args, **kwargs)
        except Exception as error:
            return Outcome(error=f"{type(error).__name__}: {error}")
        owned = {f"args[{place}]": tensor for place, tensor in enumerate(tensors((args, kwargs)))}
        aliases = _aliases(list(tensors(result)), owned | self.state.tensors)
        given, state = shown((args, kwargs)), self._state(kept)
        try:
            gradients = self._gradients(result, owned) if self.training else {}
        except Exception as error:
            if not str(error).startswith(FREED):
                return Outcome(shown(result), f"{type(error).__name__}: {error}", aliases)
            gradients = {"": FREED}
        return Outcome(shown(result), "", aliases, gradients, given, state)

    def _state(self, kept: Kept) -> dict[str, Value]:
        found = {}
        for (name, tensor), was in zip(self.state.tensors.items(), kept.tensors, strict=True):
            grad = tensor.grad if tensor.is_leaf else None
            found[name] = [was.now(), None if grad is None else shown(grad)]
        found.update((place.text, shown(place.value)) for place in self.state.places)
        return found

    def _gradients(self, result: Value, owned: dict[str, torch.Tensor]) -> dict[str, Value]:
        outputs = [tensor for tensor in tensors(result) if tensor.requires_grad]
        wanted = {name: tensor for name, tensor in (owned | self.state.tensors).items() if tensor.requires_grad}
        if not outputs or not wanted:
            return {}
        flows = _flows(outputs)
        found = torch.autograd.grad(outputs, list(wanted.values()), flows, allow_unused=True)
        return dict(zip(wanted, found, strict=True))


def _flows(outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Random gradients for outputs, the same in each run: numbers that all dtypes of the program have."""
    generator = torch.Generator().manual_seed(SEED)
    drawn = [torch.randn(output.shape, generator=generator).bfloat16() for output in outputs]
    return [flow.to(output.device, output.dtype) for flow, output in zip(drawn, outputs, strict=True)]


def _aliases(results: Sequence[torch.Tensor], owned: Mapping[str, torch.Tensor]) -> tuple[str, ...]:
    names: dict[int, str] = {}
    for name, tensor in owned.items():
        if tensor.layout is torch.strided and tensor.numel():
            names.setdefault(tensor.untyped_storage().data_ptr(), name)
    found = []
    for place, tensor in enumerate(results):
        if tensor.layout is not torch.strided or not tensor.numel():
            found.append("-")
            continue
        found.append(names.setdefault(tensor.untyped_storage().data_ptr(), f"result {place}"))
    return tuple(found)
