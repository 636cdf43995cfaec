"""Runs the passes that users registered for captured graphs, and puts what they gave in the place of the trace."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence

import torch
import torch.fx

from framefuse.driver.graph_as_trace import trace_of
from framefuse.errors import Stop, UserError, kind_of
from framefuse.ir import passes_in_force, registered
from framefuse.ir.custom_calls import CustomCall
from framefuse.ir.passes import Step
from framefuse.ir.trace import Trace
from framefuse.ir.values import Arguments, Value
from framefuse.runtime.fx_graph import Captured, fx_graph

STAGE = "captured"
Module = torch.fx.GraphModule
Ran = tuple[list[torch.Tensor], list[torch.Tensor]]  # results, and inputs behind the run


def with_captured_passes(
    trace: Trace, examples: Callable[[Captured], Arguments], *, dump: bool, check: bool
) -> tuple[Trace, tuple[Step, ...]]:
    """The trace behind the passes, and what each of them did; ``examples`` are the values of the call that was
    recorded, for the placeholders of its graph. A trace without an FX form, and one with calls of the user's own
    autograd functions, whose code no second run is to repeat, is left as it is.
    """
    rows = passes_in_force.passes_of(STAGE)
    if not rows or not trace.calls or any(isinstance(call.target, CustomCall) for call in trace.calls):
        return trace, ()
    try:
        captured = fx_graph(trace)
    except Stop:
        return trace, ()
    steps: list[Step] = []
    module, values = captured.module, None
    for row in rows:
        start = time.perf_counter()
        given = row.run(_copy(module), None)
        if isinstance(given, Module):
            given.recompile()
        changed = not _same(module, given)
        text = ""
        if changed:
            values = examples(captured) if values is None else values
            _fits(row.name, module, given)
            _compare(row.name, module, given, values, row.check or check)
            text = f"# before\n{module.code.strip()}\n\n# after\n{given.code.strip()}" if dump else ""
            module = given
        steps.append(Step(row.name, STAGE, time.perf_counter() - start, changed, text))
    if values is not None:
        trace = trace_of(module, captured, trace, _copies(values))
    return trace, tuple(steps)


def _copy(module: Module) -> Module:
    graph, seen = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node]()
    graph.output(graph.graph_copy(module.graph, seen))
    return Module(torch.nn.Module(), graph)


def _same(one: Module, other: Module) -> bool:
    if not isinstance(other, Module) or one.code != other.code:
        return False
    pairs = zip(one.graph.nodes, other.graph.nodes, strict=True)
    return all(mine.target is theirs.target or mine.target == theirs.target for mine, theirs in pairs)


def _fits(name: str, before: Module, after: Module) -> None:
    """Raises UserError for what cannot stand in the place of a graph."""
    if not isinstance(after, Module):
        raise UserError(f"the pass {name!r} gave {kind_of(after)}. Give a torch.fx.GraphModule, or None")
    try:
        after.graph.lint()
    except Exception as error:
        raise UserError(f"the pass {name!r} gave a broken graph: {error}. Mend the pass") from error
    names = [[node.name for node in module.graph.nodes if node.op == "placeholder"] for module in (before, after)]
    if names[0] != names[1]:
        raise UserError(f"the pass {name!r} gave other inputs. Keep {', '.join(names[0])}")
    own = next((node for node in after.graph.nodes if node.op in ("get_attr", "call_module")), None)
    if own is not None:
        text = f"the pass {name!r} gave a graph that reads {own.target!r} of its module"
        raise UserError(f"{text}. Compute it from the inputs, or make it there: torch.full(...)")


# ---- running both ----------------------------------------------------------------------------------------------------


def _compare(name: str, before: Module, after: Module, values: Sequence[Value], check: bool) -> None:
    """Raises UserError where the two give other tensors, or with ``check`` other numbers, gradients included."""
    old = _run(before, values)
    try:
        new = _run(after, values)
    except Exception as error:
        text = f"the graph that the pass {name!r} gave raised {type(error).__name__}: {error}"
        raise UserError(f"{text}. Mend the pass") from error
    what = [f"output {place}" for place in range(len(old[0]))] + [f"input {place}" for place in range(len(old[1]))]
    if len(new[0]) != len(old[0]):
        raise UserError(f"the pass {name!r} gave {len(new[0])} outputs, not {len(old[0])}. Keep them")
    if _shared(*old, values) != _shared(*new, values):
        raise UserError(f"the pass {name!r} gave outputs that share other memory. Clone, or view, what did before")
    for place, mine, theirs in zip(what, (*old[0], *old[1]), (*new[0], *new[1]), strict=True):
        if _kind(mine) != _kind(theirs):
            text = f"the pass {name!r} gave {place} as {_shown(theirs)}, which was {_shown(mine)}"
            raise UserError(f"{text}. Give results of the same dtype, sizes, strides and history")
    if not check:
        return
    moved = _run(before, values, nudged=True)
    sides = [
        [*(tensor.detach() for part in ran for tensor in part), *_gradients(ran)] for ran in (old, moved, new)
    ]
    what += [f"gradient {place}" for place in range(len(sides[0]) - len(what))]
    for place, mine, beside, theirs in zip(what, *sides, strict=True):
        registered.refuse_unlike(name, place, theirs, mine, beside)


def _run(module: Module, values: Sequence[Value], nudged: bool = False) -> Ran:
    """What the module gives for copies of the values, with ``nudged`` moved by a rounding, and these copies."""
    copies = _copies(values, nudged)
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(1)
        results = module(*copies)
    return list(results), [value for value in copies if isinstance(value, torch.Tensor)]


def _kind(tensor: torch.Tensor) -> tuple[object, ...]:
    strides = tuple(stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1)
    return tensor.dtype, tensor.shape, strides, tensor.device, tensor.requires_grad


def _shown(tensor: torch.Tensor) -> str:
    history = ", requires_grad" if tensor.requires_grad else ""
    return f"{tensor.dtype}{list(tensor.shape)} with strides {tensor.stride()} on {tensor.device}{history}"


def _shared(results: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], values: Sequence[Value]) -> list[int]:
    """For each result the first tensor with its memory."""
    first: dict[int, int] = {}
    for place, tensor in enumerate((*inputs, *results)):
        first.setdefault(tensor.untyped_storage()._cdata, place)
    return [first[tensor.untyped_storage()._cdata] for tensor in results]


def _gradients(ran: Ran) -> list[torch.Tensor]:
    """Those of a sum of the results, for the inputs that require grad and are reached."""
    results = [tensor for tensor in ran[0] if tensor.requires_grad]
    inputs = [tensor for tensor in ran[1] if tensor.requires_grad]
    if not results or not inputs:
        return []
    weights = [torch.linspace(-1, 1, max(tensor.numel(), 1)).to(tensor)[: tensor.numel()] for tensor in results]
    given = [weight.view(tensor.shape) for weight, tensor in zip(weights, results, strict=True)]
    found = torch.autograd.grad(results, inputs, given, allow_unused=True)
    return [torch.zeros(()) if gradient is None else gradient for gradient in found]


def _copies(values: Sequence[Value], nudged: bool = False) -> Arguments:
    """The values with tensors of their own, which share memory where they did."""
    storages: dict[int, torch.UntypedStorage] = {}
    return tuple(_own(value, storages, nudged) if isinstance(value, torch.Tensor) else value for value in values)


def _own(tensor: torch.Tensor, storages: dict[int, torch.UntypedStorage], nudged: bool) -> torch.Tensor:
    storage = tensor.untyped_storage()
    first = storage._cdata not in storages
    own = storages[storage._cdata] = storage.clone() if first else storages[storage._cdata]
    copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    copy.set_(own, tensor.storage_offset(), tensor.shape, tensor.stride())
    if nudged and first:
        copy.copy_(registered.nudged(tensor))
    if type(tensor) is torch.nn.Parameter:
        return torch.nn.Parameter(copy, tensor.requires_grad)
    copy.requires_grad_(tensor.requires_grad)
    return copy if tensor.is_leaf else copy.view_as(copy)
