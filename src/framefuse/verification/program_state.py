"""Finds what a program computes with beside its arguments (modules, tensors, optimizers), keeps it and puts it back."""

from __future__ import annotations

import copy
import functools
import inspect
import random
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from framefuse.ir.program_names import LIBRARIES, globals_of, is_library
from framefuse.ir.values import Function, Value
from framefuse.runtime.function import compiled_function

LISTED = 1000  # elements of a list that are compared: longer ones are data
DEPTH = 6  # containers, objects and functions inside each other that are looked at
PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


@dataclass(frozen=True, slots=True)
class Place:
    """An attribute, a global variable, a variable of an enclosing function or a list that a program may write."""

    text: str
    holder: Value  # a dict, a cell or the list itself
    key: str = ""

    @property
    def value(self) -> Value:
        """What it holds now; of a list its elements."""
        if isinstance(self.holder, types.CellType):
            return self.holder.cell_contents
        return self.holder.get(self.key) if isinstance(self.holder, dict) else list(self.holder)

    def holds(self, value: Value) -> bool:
        """Whether the very value is there, or the very elements."""
        now = self.value
        if isinstance(now, list) and isinstance(value, list) and isinstance(self.holder, list):
            return len(now) == len(value) and all(mine is other for mine, other in zip(now, value, strict=True))
        return now is value

    def put(self, value: Value) -> None:
        if isinstance(self.holder, types.CellType):
            self.holder.cell_contents = value
        elif isinstance(self.holder, dict):
            self.holder[self.key] = value
        else:
            self.holder[:] = value


@dataclass(slots=True)
class State:
    """What a program owns, each once, in the order in which it was found."""

    modules: list[torch.nn.Module] = field(default_factory=list)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    places: list[Place] = field(default_factory=list)
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)
    kept: Kept | None = None  # what it was before the first run

    def add(self, value: Value, name: str, depth: int = DEPTH) -> None:
        """Looks for state in a value that the program reaches by ``name``."""
        if depth < 0 or id(value) in self.seen:
            return
        if isinstance(value, torch.Tensor):
            self.seen.add(id(value))
            self.tensors[name] = value
        elif isinstance(value, torch.nn.Module):
            self._add_module(value, name)
        elif isinstance(value, torch.optim.Optimizer):
            self.seen.add(id(value))
            self.optimizers.append(value)
            self.add([group["params"] for group in value.param_groups], f"{name}.params", depth - 1)
        elif isinstance(value, (list, tuple, dict)):
            self.seen.add(id(value))
            if type(value) is list and len(value) <= LISTED:
                self.places.append(Place(name, value))
            items = value.items() if isinstance(value, dict) else enumerate(value)
            for key, part in items:
                self.add(part, f"{name}[{key!r}]", depth - 1)
        elif callable(value):
            self._add_callable(value, name, depth)
        elif not is_library(type(value).__module__) and hasattr(value, "__dict__"):
            self.seen.add(id(value))
            self._add_plain(vars(value), name)
            self._add_parts(vars(value), name, depth - 1)

    def _add_module(self, module: torch.nn.Module, name: str) -> None:
        self.seen.add(id(module))
        known = set(map(id, self.modules))
        self.modules.extend(part for part in module.modules() if id(part) not in known)
        for key, tensor in (*module.named_parameters(), *module.named_buffers()):
            self.add(tensor, f"{name}.{key}" if name else key)

        for key, part in module.named_modules(prefix=name):
            if id(part) not in known and not is_library(type(part).__module__):
                own = {each: value for each, value in vars(part).items() if not each.startswith("_")}
                self._add_plain(vars(part), key)
                self._add_parts(own, key, DEPTH - 1)

    def _add_plain(self, holder: Mapping[str, Value], name: str) -> None:
        """Attributes that are numbers, texts and the like."""
        for key, value in holder.items():
            if isinstance(value, PLAIN) and not key.startswith("_") and key != "training":
                self.places.append(Place(f"{name}.{key}".lstrip("."), holder, key))

    def _add_parts(self, holder: Mapping[str, Value], name: str, depth: int) -> None:
        for key, part in holder.items():
            self.add(part, f"{name}.{key}".lstrip("."), depth)

    def _add_callable(self, function: Value, name: str, depth: int) -> None:
        state = compiled_function(function)
        if state is not None:
            self.add(state.owner if state.owner is not None else state.function, name, depth)
            return
        if isinstance(function, functools.partial):
            self.add([function.func, function.args, function.keywords], name, depth - 1)
        elif isinstance(function, types.MethodType):
            self.add(function.__self__, name, depth)
            self.add(function.__func__, name, depth)
        elif isinstance(function, types.FunctionType):
            if function.__module__ is None or function.__module__.partition(".")[0] in LIBRARIES:
                return
            self.seen.add(id(function))
            reached = inspect.getclosurevars(function)
            for key, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
                if isinstance(reached.nonlocals.get(key), PLAIN):
                    self.places.append(Place(key, cell))
            named = dict.fromkeys(name for name in globals_of(function.__code__) if name in function.__globals__)
            read = {name: function.__globals__[name] for name in named}
            for key, value in read.items():
                if isinstance(value, PLAIN):
                    self.places.append(Place(key, function.__globals__, key))
            for found in (reached.nonlocals, read):
                self._add_parts(found, "", depth - 1)
            self.add(function.__defaults__ or (), f"{function.__name__}.defaults", depth - 1)
        elif not isinstance(function, type) and hasattr(function, "__dict__"):
            self.seen.add(id(function))
            self._add_plain(vars(function), name)
            self._add_parts(vars(function), name, depth - 1)
            self.add(vars(type(function)).get("__call__"), name, depth - 1)


@dataclass(frozen=True, slots=True)
class _Tensor:
    tensor: torch.Tensor
    memory: torch.Tensor  # the tensor's own
    value: torch.Tensor
    grad: torch.Tensor | None
    requires_grad: bool

    def now(self) -> torch.Tensor:
        """A copy of the tensor, or what was kept of it where that is the same."""
        here = self.tensor.detach()
        same = here.dtype is self.value.dtype and here.shape == self.value.shape and torch.equal(here, self.value)
        found = self.value.detach() if same else here.clone()
        return found.requires_grad_(self.tensor.requires_grad)

    def put_back(self) -> None:
        if not self.tensor.is_leaf:
            return
        self.tensor.grad = None
        if self.tensor.dtype is not self.memory.dtype or self.tensor.data_ptr() != self.memory.data_ptr():
            self.tensor.data = self.memory
        with torch.no_grad():
            self.memory.copy_(self.value)
        self.tensor.requires_grad_(self.requires_grad)
        self.tensor.grad = None if self.grad is None else self.grad.clone()


def _kept(tensor: torch.Tensor) -> _Tensor:
    grad = tensor.grad if tensor.is_leaf else None
    kept = None if grad is None else grad.detach().clone()
    return _Tensor(tensor, tensor.detach(), tensor.detach().clone(), kept, tensor.requires_grad)


class Kept:
    """What a state is now, to be put back any number of times: values, gradients, ``training`` of modules, the state of
    optimizers, that of random generators, and numbers, texts and lists. What else a program changes stays changed.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self.tensors = [_kept(tensor) for tensor in state.tensors.values()]
        self.places = [place.value for place in state.places]
        self.training = [module.training for module in state.modules]
        self.optimizers = [copy.deepcopy(optimizer.state_dict()) for optimizer in state.optimizers]
        self.seeds = (torch.get_rng_state(), random.getstate())

    def put_back(self) -> None:
        for kept in self.tensors:
            kept.put_back()
        for place, value in zip(self.state.places, self.places, strict=True):
            if not place.holds(value):
                place.put(value)
        for module, training in zip(self.state.modules, self.training, strict=True):
            module.training = training
        for optimizer, saved in zip(self.state.optimizers, self.optimizers, strict=True):
            optimizer.state.clear()
            optimizer.load_state_dict(copy.deepcopy(saved))
        torch.set_rng_state(self.seeds[0])
        random.setstate(self.seeds[1])


@contextmanager
def as_it_was(state: State) -> Iterator[Kept]:
    """Puts the state back at the end to what it was before the first run, whatever happened within."""
    if state.kept is None:
        state.kept = Kept(state)
    try:
        yield state.kept
    finally:
        state.kept.put_back()


def state_of(function: Function, arguments: Sequence[Value]) -> State:
    """The state of a program that calls ``function`` on ``arguments``, whose own tensors are none of it."""
    state = State()
    state.add(function, "")
    for number, argument in enumerate(arguments):
        if isinstance(argument, (torch.nn.Module, torch.optim.Optimizer)):
            state.add(argument, f"args[{number}]")
    return state
