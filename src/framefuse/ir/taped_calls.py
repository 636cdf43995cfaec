"""Makes the library calls that torch's autograd differentiates: on a tape that the forward keeps, or once more."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from framefuse.ir.graph import Node, Path
from framefuse.ir.plain import plain
from framefuse.ir.small_walks import chain_walked
from framefuse.ir.target import default_generator
from framefuse.ir.values import Value

keeps_graph: Callable[[], bool] = torch._C._autograd._get_current_graph_task_keep_graph  # True outside of a backward
# torch.autograd.grad without what Python looks at first, which takes longer than a small gradient; the engine looks
# at sizes and types again.
walked: Callable[..., Value] = torch.autograd.Variable._execution_engine.run_backward
set_grad_mode: Callable[[bool], None] = torch._C._set_grad_enabled


@dataclass(frozen=True, slots=True)
class Hole:
    """In the arguments of a call: operand ``index`` goes here. ``depth`` counts the calls around it that have holes of
    their own.
    """

    index: int
    depth: int = 0


HOLDERS = (Hole, tuple, list, dict, slice)  # the types of arguments that are holes, or may have some


def filled(value: Value, operands: Sequence[torch.Tensor]) -> Value:
    """Nested arguments with operands in their holes, in containers of their own: the call may write them."""
    kind = type(value)
    if kind is Hole:
        return operands[value.index] if value.depth == 0 else Hole(value.index, value.depth - 1)
    if kind is tuple or kind is list:
        return kind(filled(part, operands) for part in value)
    if kind is dict:
        return {name: filled(part, operands) for name, part in value.items()}
    if kind is slice:
        return slice(*(filled(part, operands) for part in (value.start, value.stop, value.step)))
    return value


def _run(
    target: Callable[..., Value], wanted: Sequence[int], operands: Sequence[torch.Tensor], args: Value, kwargs: Value
) -> tuple[Value, list[torch.Tensor]]:
    """The call's result in grad mode, and what stood for the wanted operands: leaves, but where grad mode is on and
    leads on from an operand, an alias of it: the program's hooks on the operand hear nothing of a walk that ends here.
    """
    values, on = list(operands), torch.is_grad_enabled()
    for index in wanted:
        value = operands[index]
        values[index] = unheard(value) if on and value.requires_grad else value.detach().requires_grad_()
    positional = [filled(arg, values) if type(arg) in HOLDERS else arg for arg in args]
    named = {name: filled(arg, values) for name, arg in kwargs.items()}
    if on:
        result = target(*positional, **named)
    else:
        set_grad_mode(True)  # without the object of torch.enable_grad, which takes as long as a small call
        try:
            result = target(*positional, **named)
        finally:
            set_grad_mode(False)
    return result, [values[index] for index in wanted]


def unheard(tensor: torch.Tensor) -> torch.Tensor:
    """An alias of the tensor that leads on to it and has none of its hooks: a walk asks for the alias's gradient."""
    return tensor.view_as(tensor)


def _at(result: Value, path: Path) -> Value:
    for step in path:
        result = result[step]
    return result


def _gradients(
    results: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor], given: Sequence[torch.Tensor],
    retain_graph: bool = False, create_graph: bool = False,
) -> tuple[torch.Tensor, ...]:
    """Gradients of the leaves; zeros where none flows."""
    pairs = [(result, g) for result, g in zip(results, given, strict=True) if result.requires_grad]
    if not pairs:
        return tuple(torch.zeros_like(leaf) for leaf in leaves)
    outputs, grads = (tuple(column) for column in zip(*pairs, strict=True))
    gradients = None if create_graph else chain_walked(outputs, leaves, grads)
    if gradients is None:
        gradients = walked(outputs, grads, retain_graph, create_graph, tuple(leaves), allow_unreachable=True)
    return tuple(torch.zeros_like(leaf) if g is None else plain(g) for leaf, g in zip(leaves, gradients, strict=True))


@dataclass(frozen=True, slots=True)
class Taped:
    """Runs a call in grad mode on leaves in place of the ``wanted`` operands.

    It takes (operands, args, kwargs), the last two with holes, and returns the results at ``paths`` without their graph
    (in grad mode with that of the operands), then with it, then the leaves; for a call that ``draws`` random numbers
    also the state in which the generator was, so that the call can be made again.
    """

    target: Callable[..., Value]
    wanted: tuple[int, ...]
    paths: tuple[Path, ...]
    draws: bool = False
    tape: ClassVar[str] = "made"  # in objects of torch's own

    def __call__(self, operands: Sequence[torch.Tensor], args: Value, kwargs: Value) -> tuple[Value, ...]:
        state = (_generator(operands).get_state(),) if self.draws else ()
        result, leaves = _run(self.target, self.wanted, operands, args, kwargs)
        results = [_at(result, path) for path in self.paths]
        plain = results if torch.is_grad_enabled() else [part.detach() for part in results]
        return tuple(plain), tuple(results), tuple(leaves), state

    @property
    def __name__(self) -> str:
        return f"{getattr(self.target, '__name__', 'call')}_taped"


def is_taped(node: Node) -> bool:
    """Whether the value is part of a tape: a result with its graph, or a leaf."""
    return node.op == "result" and isinstance(node.inputs[0].attr("target"), Taped) and node.attr("path")[0] != 0


def from_tape(
    results: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor], given: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """The gradients of a tape's leaves; the tape stays."""
    return _gradients(results, leaves, given, retain_graph=True)


def used_up(
    results: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor], given: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """The gradients of a tape's leaves. The tape lives on where the pass that asks keeps its graph; else what it saved
    goes as it is read, as under eager. A call that is captured to be replayed cannot do so.
    """
    return _gradients(results, leaves, given, retain_graph=keeps_graph())


vars(from_tape)["tape"] = "read"
vars(used_up).update(tape="read", commits=True)


@dataclass(frozen=True, slots=True)
class ByRow:
    """Reads gradients from a tape, each as the tensor that lies by row where the gradient lies in its order."""

    reads: Callable[..., tuple[torch.Tensor, ...]]
    orders: tuple[tuple[int, ...], ...]
    tape: ClassVar[str] = "read"

    def __call__(self, *args: Value) -> tuple[torch.Tensor, ...]:
        gradients = zip(self.reads(*args), self.orders, strict=True)
        return tuple([gradient.permute(order) for gradient, order in gradients])

    @property
    def commits(self) -> bool:
        """As that of what reads."""
        return bool(getattr(self.reads, "commits", False))


@contextlib.contextmanager
def _drawing_from(state: torch.Tensor | None, operands: Sequence[torch.Tensor]) -> Iterator[None]:
    """A call on ``operands`` draws its random numbers from this state of the generator, which is afterwards as it was;
    None changes nothing.
    """
    if state is None:
        yield
        return
    generator = _generator(operands)
    before = generator.get_state()
    generator.set_state(state)
    try:
        yield
    finally:
        generator.set_state(before)


def _generator(operands: Sequence[torch.Tensor]) -> torch.Generator:
    """The generator from which a call on these tensors draws."""
    generator = default_generator(drawn_on(str(operand.device) for operand in operands))
    return torch.default_generator if generator is None else generator


def drawn_on(devices: Iterable[str]) -> str:
    """The device whose generator a call on tensors of these devices advances."""
    return next((device for device in devices if device != "cpu"), "cpu")


@dataclass(frozen=True, slots=True)
class Vjp:
    """Makes a call again and gives the gradients of its ``wanted`` operands, as a function of all operands and of the
    gradients ``given`` for the results at ``paths``. In grad mode these can be differentiated again. With a ``state``
    of the generator the call draws from there, and leaves the generator as it was.
    """

    target: Callable[..., Value]
    wanted: tuple[int, ...]
    paths: tuple[Path, ...]

    def __call__(
        self,
        operands: Sequence[torch.Tensor],
        args: Value,
        kwargs: Value,
        given: Sequence[torch.Tensor],
        state: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, ...]:
        with _drawing_from(state, operands):
            result, leaves = _run(self.target, self.wanted, operands, args, kwargs)
        again = torch.is_grad_enabled()
        return _gradients([_at(result, path) for path in self.paths], leaves, given, again, again)

    @property
    def __name__(self) -> str:
        return f"{getattr(self.target, '__name__', 'call')}_vjp"


def is_vjp(node: Node) -> bool:
    """Whether the value is a gradient that torch computes by making a call again."""
    return node.op == "result" and isinstance(node.inputs[0].attr("target"), Vjp)


@dataclass(frozen=True, slots=True)
class Replay:
    """Makes a taped call again from the generator's ``state`` before it; gives the results at ``paths`` as a function
    of the operands.
    """

    target: Callable[..., Value]
    paths: tuple[Path, ...]

    def __call__(
        self, operands: Sequence[torch.Tensor], args: Value, kwargs: Value, state: torch.Tensor
    ) -> tuple[tuple[torch.Tensor, ...]]:
        with _drawing_from(state, operands):
            result = self.target(*filled(args, operands), **filled(kwargs, operands))
        return (tuple(_at(result, path) for path in self.paths),)

    @property
    def __name__(self) -> str:
        return f"{getattr(self.target, '__name__', 'call')}_again"


@dataclass(frozen=True, slots=True)
class Adjoint:
    """The gradient of operand ``index`` of a linear call, from its ``sizes``, the other operands (None in its place)
    and the gradients ``given`` for the results at ``paths``. The call runs on one element that is repeated.
    """

    target: Callable[..., Value]
    index: int
    paths: tuple[Path, ...]

    def __call__(
        self, operands: Sequence[torch.Tensor | None], sizes: Sequence[int], args: Value, kwargs: Value,
        given: Sequence[torch.Tensor],
    ) -> torch.Tensor:  # fmt: skip
        again = torch.is_grad_enabled()
        leaf = given[0].new_zeros(()).expand(sizes).requires_grad_()
        values: list[Value] = list(operands)
        values[self.index] = leaf
        with torch.enable_grad():
            result = self.target(*filled(args, values), **filled(kwargs, values))
        parts = []
        for path in self.paths:
            part = result
            for step in path:
                part = part[step]
            parts.append(part)
        return torch.autograd.grad(parts, leaf, list(given), create_graph=again)[0]

    @property
    def __name__(self) -> str:
        return f"{getattr(self.target, '__name__', 'call')}_adjoint"


@dataclass(frozen=True, slots=True)
class Others:
    """The gradient of a product over ``axes`` by torch's own formula, which holds for several zeros as well."""

    axes: tuple[int, ...]

    def __call__(self, source: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        leaf = unheard(source) if source.requires_grad else source.detach().requires_grad_()
        kept = [axis for axis in range(leaf.dim()) if axis not in self.axes]
        rows = leaf.permute(*kept, *self.axes).flatten(len(kept)) if self.axes else leaf.unsqueeze(-1)
        return torch.autograd.grad(rows.prod(-1), leaf, g, create_graph=True)[0]

    @property
    def __name__(self) -> str:
        return "product_of_others"
