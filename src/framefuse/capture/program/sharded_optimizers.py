"""Steps of an optimizer whose parameters are sharded, as those of FSDP2 are: each rank's step over its own parts."""

from __future__ import annotations

import collections
import copy
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from framefuse.ir.classes import PLAIN_TENSORS
from framefuse.ir.custom_runs import compiled
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Value

optim = torch.optim
# What computes each element by itself, so that a part of a parameter is stepped as the whole is.
ELEMENTWISE = (
    optim.Adam, optim.AdamW, optim.SGD, optim.RMSprop, optim.Adagrad, optim.Adadelta, optim.NAdam, optim.RAdam,
    optim.Adamax, optim.ASGD,
)  # fmt: skip
WRAPPED = ("tensor-kind", "a parameter of the optimizer")


def wraps_tensors(optimizer: Value) -> bool:
    """Whether some parameter is no plain tensor."""
    if not is_a(optimizer, optim.Optimizer):
        return False
    groups = optimizer.__dict__.get("param_groups", ())
    return any(type(part) not in PLAIN_TENSORS for group in groups for part in group["params"])


def zero_grad(optimizer: optim.Optimizer, *args: Value, **kwargs: Value) -> Value:
    """The method as it is: what torch puts around it is found by no name."""
    return optimizer.zero_grad(*args, **kwargs)


def step(optimizer: optim.Optimizer, *args: Value, **kwargs: Value) -> Value:
    """A step of the parts on this rank, compiled, where that is the same as a step of the whole."""
    own = LocalStep.of(optimizer) if not args and not kwargs else None
    return optimizer.step(*args, **kwargs) if own is None else own.run(optimizer)


WHOLE: dict[str, Callable[..., Value]] = {"step": step, "zero_grad": zero_grad}


@dataclass(eq=False, slots=True)
class _Part:
    """A parameter that fits, with its part on this rank and its state: while all are these very objects it fits still.

    ``locals`` are what this rank has of the state, ``kept`` is the twin's state of the part.
    """

    parameter: Value
    spec: Value
    local: torch.Tensor
    state: dict[str, Value] | None
    names: tuple[str, ...]
    values: tuple[Value, ...]
    locals: tuple[Value, ...]
    kept: dict[str, Value] | None = None

    def stands(self, parameter: Value, state: dict[str, Value] | None) -> bool:
        """Whether nothing was put in the place of anything."""
        if parameter is not self.parameter or state is not self.state or parameter._spec is not self.spec:
            return False
        if parameter._local_tensor is not self.local:
            return False
        if state is None:
            return True
        if tuple(state) != self.names:
            return False
        for now, value, local in zip(state.values(), self.values, self.locals, strict=True):
            if now is not value or (local is not value and value._local_tensor is not local):
                return False
        return True

    def takes(self, gradient: Value) -> bool:
        """Whether a gradient lies by the very same description."""
        if type(gradient) is not type(self.parameter) or gradient._spec is not self.spec:
            return False
        own = gradient._local_tensor
        return type(own) is torch.Tensor and own.shape == self.local.shape

    def holds(self, made: dict[str, Value]) -> bool:
        """Whether a step left what it found, but for what it wrote into it."""
        if made is not self.kept or len(made) != len(self.names):
            return False
        return all(made.get(name) is local for name, local in zip(self.names, self.locals, strict=True))


@dataclass(eq=False, slots=True, weakref_slot=True)
class LocalStep:
    """An optimizer of the same class over the parts that this rank has, with the state of those; ``parts`` are what was
    looked at before a step, by the identity of the parameter, with the gradients that it takes.
    """

    twin: optim.Optimizer
    compiled: Callable[[optim.Optimizer], Value]
    parts: dict[int, _Part]
    gradients: list[Value]
    known: ClassVar[weakref.WeakKeyDictionary[optim.Optimizer, LocalStep]] = weakref.WeakKeyDictionary()

    @classmethod
    def of(cls, optimizer: optim.Optimizer) -> LocalStep | None:
        """That of an optimizer; None where its step may be more than those of its parts."""
        if type(optimizer) not in ELEMENTWISE or not _is_plain(optimizer):
            return None
        own = cls.known.get(optimizer)
        gradients: list[Value] = []
        parts = _parts(optimizer, {} if own is None else own.parts, gradients)
        if parts is None:
            return None
        if own is None:
            twin = copy.copy(optimizer)
            vars(twin).pop("step", None)
            own = cls.known[optimizer] = cls(twin, compiled("step", type(twin).step), parts, gradients)
        own.parts, own.gradients = parts, gradients
        return own

    def run(self, optimizer: optim.Optimizer) -> None:
        twin, parts, gradients = self.twin, list(self.parts.values()), self.gradients
        twin.defaults, before, twin.state = optimizer.defaults, twin.state, collections.defaultdict(dict)
        for number, group in enumerate(optimizer.param_groups):
            shards = [self.parts[id(parameter)].local for parameter in group["params"]]
            if number == len(twin.param_groups) or twin.param_groups[number] is group:
                twin.param_groups = [*twin.param_groups[:number], {}, *twin.param_groups[number + 1 :]]
            own = twin.param_groups[number]
            own.update({name: value for name, value in group.items() if name != "params"})
            if not _same(own.get("params", ()), shards):
                own["params"] = shards
        del twin.param_groups[len(optimizer.param_groups) :]
        for part, gradient in zip(parts, gradients, strict=True):
            part.local.grad = None if gradient is None else gradient._local_tensor
            if part.state:
                if part.kept is None:
                    part.kept = before.get(part.local, {})
                    part.kept.update(zip(part.names, part.locals, strict=True))
                    for name in part.kept.keys() - part.state.keys():
                        del part.kept[name]
                twin.state[part.local] = part.kept
        self.gradients = []
        try:
            self.compiled(self.twin)
        finally:
            self._hand_back(optimizer, parts)

    def _hand_back(self, optimizer: optim.Optimizer, parts: list[_Part]) -> None:
        """Gives the optimizer what a step of its own leaves behind."""
        stepped = []
        for part in parts:
            parameter, local = part.parameter, part.local
            if local.grad is not None:
                stepped.append(parameter)
                local.grad = None
            made = self.twin.state.get(local, {})
            if part.holds(made):
                continue
            state = optimizer.state[parameter] if made else {}
            for name, value in made.items():
                if name in state and _local(state[name]) is value:
                    continue
                whole = is_a(value, torch.Tensor) and value.ndim and value.shape == local.shape
                state[name] = type(parameter)(value, parameter._spec, requires_grad=False) if whole else value
        if stepped:
            torch.autograd.graph.increment_version(stepped)
        if "step" in vars(optimizer):  # a scheduler's, which asks whether steps are made before it
            vars(optimizer)["_opt_called"] = True


def _same(some: Value, others: list[torch.Tensor]) -> bool:
    return len(some) == len(others) and all(one is other for one, other in zip(some, others, strict=True))


def _local(value: Value) -> Value:
    return value._local_tensor if hasattr(value, "_local_tensor") else value


def _is_plain(optimizer: optim.Optimizer) -> bool:
    """Whether nothing of the user's runs in the step, and it is of the kind that is made of steps of parts."""
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return False
    hooks = (_global_optimizer_pre_hooks, _global_optimizer_post_hooks)
    patched = vars(optimizer).get("step")
    if any(hooks) or hasattr(optimizer, "grad_scale") or hasattr(optimizer, "found_inf"):
        return False
    if patched is not None and not hasattr(patched, "_wrapped_by_lr_sched"):
        return False
    return not any(group.get("differentiable") or group.get("fused") for group in optimizer.param_groups)


def _parts(optimizer: optim.Optimizer, known: dict[int, _Part], gradients: list[Value]) -> dict[int, _Part] | None:
    """The parameters, if all are equal shards or copies, and their state and gradients lie as they do; ``known`` were
    looked at before. Their gradients are added to ``gradients``.
    """
    module = sys.modules.get("torch.distributed.tensor")
    if module is None:
        return None
    kind, parts = module.DTensor, dict[int, _Part]()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state.get(parameter)
            part = known.get(id(parameter))
            if part is None or not part.stands(parameter, state):
                part = _looked_at(kind, parameter, state)
            if part is None:
                return None
            gradient = parameter.grad
            if gradient is not None and not part.takes(gradient) and not _fits(kind, parameter, gradient):
                return None
            parts[id(parameter)] = part
            gradients.append(gradient)
    return parts


def _looked_at(kind: Value, parameter: Value, state: dict[str, Value] | None) -> _Part | None:
    """A parameter with its state, if they fit each other."""
    if type(parameter) is not kind or not parameter.ndim:
        return None
    values = () if state is None else tuple(state.values())
    if not all(_fits(kind, parameter, tensor) for tensor in (parameter, *values) if is_a(tensor, torch.Tensor)):
        return None
    names = () if state is None else tuple(state)
    return _Part(parameter, parameter._spec, parameter._local_tensor, state, names, values, tuple(map(_local, values)))


def _fits(kind: Value, parameter: Value, tensor: Value) -> bool:
    """Whether a tensor lies as its parameter does; a plain one is a number of the whole."""
    if type(tensor) is not kind:
        return type(tensor) in PLAIN_TENSORS and tensor.ndim == 0
    spec, own = tensor._spec, parameter._spec
    if spec is not own and (spec.placements != own.placements or spec.mesh != own.mesh):
        return False
    if any(placement.is_partial() for placement in spec.placements):
        return False
    return type(tensor._local_tensor) is torch.Tensor and tensor._local_tensor.shape == parameter._local_tensor.shape
