"""Turns torch's fused optimizer steps into the calls that their CPU kernels amount to, for each parameter."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import torch

from framefuse.ir.numbers import Expr, Real, constant_real
from framefuse.ir.trace import Call, Ref, TensorMeta
from framefuse.ir.values import Value


class Steps:
    """Writes the calls of one fused call; ``metas`` takes the values between them."""

    def __init__(self, call: Call, metas: list[TensorMeta]) -> None:
        self.call = call
        self.metas = metas
        self.made: list[Call] = []

    def fresh(self, name: str, like: Ref, *args: Value, **kwargs: Value) -> Ref:
        """A new value, as large as ``like``."""
        storage = 1 + max(meta.storage for meta in self.metas)
        meta = dataclasses.replace(self.metas[like.value], requires_grad=False, storage=storage, type=torch.Tensor)
        self.metas.append(dataclasses.replace(meta, offset=0))
        result = Ref(len(self.metas) - 1)
        self._add(name, args, kwargs, result, ())
        return result

    def copy(self, target: Ref, source: Ref) -> None:
        """New contents; a fused step counts no version."""
        self._add("copy_", (target, source), {}, target, (target.value,))
        self.made[-1] = dataclasses.replace(self.made[-1], name="copy_uncounted")

    def _add(self, name: str, args: tuple[Value, ...], kwargs: dict[str, Value], result: Ref, written: Value) -> None:
        target = getattr(torch.Tensor, name, None) or getattr(torch, name)
        replaced = {"target": target, "name": name, "args": args, "kwargs": kwargs}
        self.made.append(dataclasses.replace(self.call, result=result, written=written, **replaced))


def adam(steps: Steps, decoupled: bool) -> None:
    """As FusedAdamKernel.cpp does it, in the same order of roundings."""
    params, grads, averages, squares, largest, counts = steps.call.args
    options = steps.call.kwargs
    rate, decay, beta1, beta2 = (options[name] for name in ("lr", "weight_decay", "beta1", "beta2"))
    one = constant_real(1.0)
    for place, (param, grad, average, square) in enumerate(zip(params, grads, averages, squares, strict=True)):
        count = _real(counts[place])
        first = Real("sub", (one, Real("pow", (_real(beta1), count))))
        second = Real("sub", (one, Real("pow", (_real(beta2), count))))
        size = Real("neg", (Real("div", (_real(rate), first)),))
        g, p = grad, param
        if options["maximize"]:
            g = steps.fresh("neg", param, g)
        if options["decays"] and decoupled:
            p = steps.fresh("mul", param, p, Real("sub", (one, Real("mul", (_real(rate), _real(decay))))))
        elif options["decays"]:
            g = steps.fresh("add", param, g, p, alpha=decay)
        m = steps.fresh("lerp", param, average, g, _less(beta1))
        scaled = steps.fresh("mul", param, g, _less(beta2))
        v = steps.fresh("add", param, steps.fresh("mul", param, scaled, g), square, alpha=beta2)
        steps.copy(average, m)
        steps.copy(square, v)
        if options["amsgrad"]:
            v = steps.fresh("maximum", param, largest[place], v)
            steps.copy(largest[place], v)
        root = steps.fresh("div", param, steps.fresh("sqrt", param, v), Real("sqrt", (second,)))
        below = steps.fresh("add", param, root, options["eps"])
        steps.copy(param, steps.fresh("addcdiv", param, p, m, below, value=size))


def sgd(steps: Steps) -> None:
    """As FusedSGDKernel.cpp does it."""
    params, grads, buffers, _ = steps.call.args
    options = steps.call.kwargs
    for place, (param, grad) in enumerate(zip(params, grads, strict=True)):
        g = steps.fresh("neg", param, grad) if options["maximize"] else grad
        if options["decays"]:
            g = steps.fresh("add", param, g, param, alpha=options["weight_decay"])
        if options["moves"]:
            kept = steps.fresh("mul", param, g, _less(options["dampening"]))
            b = steps.fresh("add", param, kept, buffers[place], alpha=options["momentum"])
            steps.copy(buffers[place], b)
            g = steps.fresh("add", param, g, b, alpha=options["momentum"]) if options["nesterov"] else b
        steps.copy(param, steps.fresh("add", param, param, g, alpha=Real("neg", (_real(options["lr"]),))))


FUSED: dict[str, Callable[[Steps], None]] = {
    "_fused_adam_": lambda steps: adam(steps, False),
    "_fused_adamw_": lambda steps: adam(steps, True),
    "_fused_sgd_": sgd,
}


def parts(call: Call, metas: list[TensorMeta]) -> Iterator[Call]:
    """The calls that a fused call stands for; itself where it was not recorded with its decisions."""
    if "decays" not in call.kwargs:
        yield call
        return
    steps = Steps(call, metas)
    FUSED[call.name](steps)
    yield from steps.made


def _real(value: Value) -> Real:
    if isinstance(value, Expr):
        return Real("int", (value,))
    return value if isinstance(value, Real) else constant_real(float(value))


def _less(value: Value) -> Value:
    """One less a factor, in doubles."""
    return 1.0 - value if isinstance(value, (int, float)) else Real("sub", (constant_real(1.0), _real(value)))
