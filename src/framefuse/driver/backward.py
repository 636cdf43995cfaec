"""The stages of backward passes: turns the halves of a graph into its place in autograd, and each case into a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from framefuse import _native
from framefuse.capture.recording.mode_stack import outside_modes
from framefuse.capture.recording.saved import unreached
from framefuse.capture.recording.state import global_state
from framefuse.capture.recording.tensors import keys_of
from framefuse.driver import behind
from framefuse.driver.ambient import as_recorded
from framefuse.driver.programs.backwards import Place
from framefuse.errors import CompilerBug, Reason, Stop, UserError
from framefuse.ir.builder import Shape
from framefuse.ir.collector import collector_paused
from framefuse.ir.custom_calls import custom_call
from framefuse.ir.custom_runs import Ran
from framefuse.ir.derivative import Backward, Case, Halves, Holder, Piece, Saved
from framefuse.ir.dtypes import BY_TORCH
from framefuse.ir.facts import Assumptions, Fact, Input, Source, TensorSpec
from framefuse.ir.graph import Graph, Node, Output
from framefuse.ir.late_imports import later
from framefuse.ir.numbers import Symbol, expr
from framefuse.ir.rename import rebuilt
from framefuse.ir.strides import dense_order, dense_strides
from framefuse.ir.trace import Build, Ref, Trace
from framefuse.ir.values import Value
from framefuse.runtime.derivative import LIMIT, Compiled, Derivative, Form, Gradients, Values
from framefuse.runtime.recorded_call import Pending, Product

if TYPE_CHECKING:
    from framefuse.autodiff import (
        asked,
        backward_graph,
        carrying,
        differentiable_graph,
        on_torch,
        reads,
        undefined,
    )
    from framefuse.codegen.python import compile_graph
    from framefuse.ir.taped_calls import is_taped, is_vjp, unheard
else:  # a backward that an earlier process kept needs none of them
    asked = later("framefuse.autodiff", "asked")
    backward_graph = later("framefuse.autodiff", "backward_graph")
    carrying = later("framefuse.autodiff", "carrying")
    differentiable_graph = later("framefuse.autodiff", "differentiable_graph")
    on_torch = later("framefuse.autodiff", "on_torch")
    reads = later("framefuse.autodiff", "reads")
    undefined = later("framefuse.autodiff", "undefined")
    compile_graph = later("framefuse.codegen.python", "compile_graph")
    is_taped = later("framefuse.ir.taped_calls", "is_taped")
    is_vjp = later("framefuse.ir.taped_calls", "is_vjp")
    unheard = later("framefuse.ir.taped_calls", "unheard")

SAVED, TANGENTS, NUMBERS, WANTED = (Source("arg", None, place) for place in range(4))

Reference = Callable[..., tuple[torch.Tensor, ...]]  # tensors, numbers by their names, whether in grad mode

# (graph, its trace) -> the native entry and what the stages made; raises what they raise
Compile = Callable[[Graph, Trace], tuple[_native.Compiled, Product]]


def unwritten(graph: Graph, trace: Trace) -> frozenset[int]:
    """The numbers of the inputs that the call does not write."""
    written = {write.input for write in graph.writes}
    places = {entry.value: place for place, entry in enumerate(trace.assumptions.inputs)}
    written |= {places[late.args[0].value] for late in graph.late if late.name == "copy_"}
    return frozenset(range(len(graph.inputs))) - written


def carried(graph: Graph, trace: Trace) -> dict[int, int]:
    """The inputs that outputs are written to under their histories, by the places of both."""
    written, places = _written(graph), {entry.value: place for place, entry in enumerate(trace.assumptions.inputs)}
    here = ((place, written.get(output.value)) for place, output in enumerate(graph.outputs))
    return {place: places[value] for place, value in here if value is not None}


def holders(graph: Graph, trace: Trace) -> tuple[Holder, ...] | None:
    """The nodes of eager's autograd graph in terms of the lowered graph; None where they are not known."""
    if trace.autograd is None:
        return None
    places = {entry.value: place for place, entry in enumerate(trace.assumptions.inputs)}
    inputs = [(place, trace.metas[value].storage) for value, place in places.items()]
    written = _written(graph)
    outputs = [
        (place, value)
        for place, value in enumerate(_shown_values(graph))
        if graph.outputs[place].input is None
    ]
    outputs_of: dict[int, list[int]] = {}
    for place, value in outputs:
        value = written.get(value, value)
        number = trace.autograd.made.get(value, trace.autograd.along.get(value))
        if number is not None and graph.outputs[place].requires_grad:
            outputs_of.setdefault(number, []).append(place)
    of_inputs = _by_storage(inputs)
    of_outputs = _by_storage((place, trace.metas[value].storage) for place, value in outputs if value >= 0)
    return tuple(
        Holder(
            tuple(outputs_of.get(number, ())),
            holder.onto,
            tuple(places[value] for value in holder.inputs if value in places),
            frozenset(place for storage in holder.storages for place in _saved(of_inputs.get(storage, ()), selves)),
            selves,
            frozenset(place for storage in holder.storages for place in of_outputs.get(storage, ())),
            holder.frees,
            frozenset(place for storage in holder.again for place in of_inputs.get(storage, ())),
        )
        for number, holder in enumerate(trace.autograd.holders)
        for selves in (frozenset(places[value] for value in holder.selves if value in places),)
    )


def _shown_values(graph: Graph) -> list[int]:
    """The value that each output is under eager: a result that is a view of a tensor that torch keeps to itself is one
    of an output that nobody sees.
    """
    hidden = [late for late in graph.late if late.name == "view_as" and late.results and late.args[0].value < 0]
    shown = {late.args[0].value: late.results[0][0] for late in hidden}
    return [shown.get(output.value, output.value) for output in graph.outputs]


def _written(graph: Graph) -> dict[int, int]:
    """The inputs that outputs are written to: contents that require grad are an output that nobody sees until then."""
    return {late.args[1].value: late.args[0].value for late in graph.late if late.name == "copy_"}


def _node_names(piece: Piece, graph: Graph, trace: Trace) -> tuple[tuple[str, int] | None, ...]:
    """What eager's node of each output of a piece is called, and which of its results that is; None where not known."""
    if trace.autograd is None:
        return ()
    values, written, known = _shown_values(graph), _written(graph), trace.autograd.shown
    return tuple(known.get(written.get(values[place], values[place])) for place in piece.outputs)


def _met(piece: Piece, graph: Graph, trace: Trace) -> tuple[tuple[int, Form | None], ...]:
    """The watched tensors of a piece in the order in which a walk over eager's nodes meets them. Where a node holds a
    view of an input: the recorded sizes of this and of the view, and whether that has a node of its own.
    """
    if trace.autograd is None:
        return ()
    metas, number_of = trace.metas, {(entry.kind, entry.place): n for n, entry in enumerate(piece.watched)}
    entries = trace.assumptions.inputs
    inputs = _by_storage((place, metas[entry.value].storage) for place, entry in enumerate(entries))
    shown = [(place, value) for place, value in enumerate(_shown_values(graph)) if graph.outputs[place].input is None]
    outputs = _by_storage((place, metas[value].storage) for place, value in shown if value >= 0)
    results = {output.node for output in piece.primal.outputs}
    own = {entry.place for entry in piece.watched if entry.settles and entry.node in results}  # what a node wrote
    met: list[tuple[int, Form | None]] = []
    for holder in sorted(trace.autograd.holders, key=lambda holder: -holder.age):
        for storage, sizes, has_node in holder.forms:
            for place in inputs.get(storage, ()):
                whole = metas[entries[place].value].sizes
                itself = place in own or entries[place].value in holder.selves
                form = None if itself else (whole, sizes, has_node)
                met.append((number_of.get(("input", place), -1), form))
            met += [(number_of.get(("output", place), -1), None) for place in outputs.get(storage, ())]
    return tuple(entry for entry in met if entry[0] >= 0)


def _saved(sharing: Sequence[int], selves: frozenset[int]) -> Sequence[int]:
    """Of inputs that share memory those that a node saved: others may count their writes apart, as ``x.data`` does."""
    return [place for place in sharing if place in selves] or sharing


def _by_storage(entries: Iterable[tuple[int, int]]) -> dict[int, list[int]]:
    places: dict[int, list[int]] = {}
    for place, storage in entries:
        places.setdefault(storage, []).append(place)
    return places


def derivatives(
    halves: Halves, trace: Trace, key: str | None, compile: Compile, report: Callable[[Exception], Reason],
    patience: float | None,
) -> tuple[Derivative, ...]:  # fmt: skip
    """The places in autograd of the graph that was cut in ``halves``, and is kept on disk under ``key``; ``report``
    gets the compiler's own faults. Calls wait for their code, or for so many seconds of ``patience``.
    """
    cases = [
        _Cases(piece, trace, compile, report, None if key is None else Place(key, number, piece))
        for number, piece in enumerate(halves.pieces)
    ]
    return tuple(
        Derivative(
            each.piece, trace.line, each.compile, each.reference, each.reads,
            _node_names(each.piece, halves.forward, trace), _met(each.piece, halves.forward, trace),
            None if patience is None else each.hand_over, patience or 0.0,
            each.undefined if any(custom_call(node) is not None for node in each.piece.primal.nodes) else None,
            each.asked,
        )
        for each in cases
    )  # fmt: skip


@dataclass(frozen=True)
class _Cases:
    """Compiles the cases of one piece's backward."""

    piece: Piece
    trace: Trace
    stages: Compile
    report: Callable[[Exception], Reason]
    place: Place | None  # where their graphs are kept
    names: set[str] = field(default_factory=set)  # of those that were asked for there
    plain: dict[Value, tuple[Backward, Reference]] = field(default_factory=dict)  # by how the values lie, uncompiled

    def compile(self, values: Values, again: bool) -> Compiled:
        """The native entry for these values, with what the stages made; the reason where none can be made."""
        try:
            with collector_paused():
                return self._compiled(values, again)
        except Stop as stop:
            return stop.reason
        except UserError:  # a pass of the user's raised, or what it gave does not hold
            raise
        except Exception as error:
            return self.report(error)

    def _compiled(self, values: Values, again: bool) -> tuple[_native.Compiled, Product]:
        backward = self.graph(values, again)
        entry, product = self.stages(self.here(backward.graph, values), self.recorded(backward, values, again))
        checked = entry.guards.check(values)
        if not isinstance(checked, tuple):  # what the case assumes of its own values
            text = product.stages.guards.program.texts[checked] if checked >= 0 else "torch's global state"
            raise CompilerBug(f"the backward of {self.piece.primal.name} does not hold for its own values: {text}")
        return entry, product

    def hand_over(self, values: Values, again: bool, deliver: Callable[[Compiled | None], None]) -> Pending | None:
        """Has another thread compile the case of these values, of which it holds none, and hand it to ``deliver``; None
        where no thread can be had, and where the compiler fails on what the thread would get.
        """
        try:
            backward, _ = self.uncompiled(values, again)
            graph, case = self.here(backward.graph, values), self.recorded(backward, values, again)
        except Exception:  # this call meets it again, and reports it
            return None
        pending = Pending()
        device = torch.cuda.current_device() if torch.cuda.is_initialized() else None

        def work() -> None:
            try:
                with as_recorded(case.assumptions.state, device) as same:
                    deliver(self.made(graph, case) if same else None)
            except Exception as error:  # a fault under the option check, or a mistake of the user's: the next call's
                pending.error = error
            finally:
                pending.done.set()

        return pending if behind.PROCESS.put(work) else None

    def made(self, graph: Graph, case: Trace) -> Compiled:
        """What the stages make of a case, or why they make nothing."""
        try:
            return self.stages(graph, case)
        except Stop as stop:
            return stop.reason
        except UserError:
            raise
        except Exception as error:
            if behind.PROCESS.ending:
                raise behind.Ended from error
            return self.report(error)

    def reference(self, values: Values, again: bool) -> Gradients:
        """The gradients, computed primitive by primitive."""
        backward, run = self.uncompiled(values, again)
        saved, tangents, numbers, _ = values
        given = [*(saved[place] for place in backward.saved), *(tangents[place] for place in backward.tangents)]
        names = {str(name): value for name, value in zip(self.piece.numbers, numbers, strict=True)}
        with outside_modes():
            results = run(given, names, grad=again)
        return tuple(None if place is None else results[place] for place in backward.results)

    def uncompiled(self, values: Values, again: bool) -> tuple[Backward, Reference]:
        """The graph of the case at hand, and what computes it primitive by primitive."""
        saved, tangents, _, mask = values
        lies = tuple(None if t is None else (tuple(t.shape), t.stride()) for t in (*saved, *tangents))
        known = None if again else self.plain.get((lies, mask))  # what is differentiated again depends on more
        if known is None:
            backward = self.graph(values, again)
            known = backward, compile_graph(on_torch(backward.graph)[0] if again else backward.graph)
            if not again and len(self.plain) < LIMIT:
                self.plain[lies, mask] = known
        return known

    def reads(self, wanted: int) -> frozenset[int]:
        """Which saved values are read for these gradients."""
        return reads(self.piece, [bool(wanted >> place & 1) for place in range(len(self.piece.inputs))])

    def undefined(self, tangents: Sequence[torch.Tensor | None], ran: Iterable[Ran]) -> Sequence[int]:
        """Which inputs get no gradient, when users' backwards have given None."""
        return undefined(self.piece, [tangent is not None for tangent in tangents], ran)

    def asked(self, written: int) -> bool:
        """Whether gradients of gradients read elements of these roots."""
        try:
            return asked(self.piece, {place for place in range(len(self.piece.roots)) if written >> place & 1})
        except Exception as error:
            self.report(error)
            return True

    def kept(self, again: bool) -> tuple[Saved, ...]:
        """What a walk gets: what was saved, and for gradients that are differentiated the roots behind it."""
        return (*self.piece.saved, *self.piece.roots) if again else self.piece.saved

    # ---- the graph of a case -----------------------------------------------------------------------------------------

    def graph(self, values: Values, again: bool) -> Backward:
        """The graph of the case at hand."""
        piece = self.piece
        given, tangents, _, mask = values
        shapes = [output.node.shape for output in piece.primal.outputs]
        case = Case(
            tuple(None if t is None else _strides(t, shape) for t, shape in zip(tangents, shapes, strict=True)),
            tuple(bool(mask >> place & 1) for place in range(len(piece.inputs))),
        )
        if not again:
            return self.differentiated(case, list(map(_lies, piece.saved, given)))
        kept = self.kept(again)
        strides = [None if t is None else _lies(entry, t) for entry, t in zip(kept, given, strict=True)]
        backward = differentiable_graph(piece, case, strides)
        tensors = [*(given[place] for place in backward.saved), *(tangents[place] for place in backward.tangents)]
        needing = [place for place, tensor in enumerate(tensors) if tensor.requires_grad]
        graph = backward.graph
        if needing:
            names = {str(name): value for name, value in zip(piece.numbers, values[2], strict=True)}
            taped = _taped(kept, backward)
            tried = [t if tape or not t.requires_grad else unheard(t) for t, tape in zip(tensors, taped, strict=True)]
            graph = with_cuts(graph, tried, names)
        return replace(backward, graph=carrying(graph, needing))

    def differentiated(self, case: Case, strides: list[Shape]) -> Backward:
        """The graph of a case whose gradients are not differentiated, from disk where it is: one of the first, since
        what comes to lie in ever other ways is computed uncompiled.
        """
        name = None if self.place is None else self.place.name(case, strides)
        if self.place is None or name is None or (name not in self.names and len(self.names) >= LIMIT):
            return backward_graph(self.piece, case, strides)
        self.names.add(name)
        backward = self.place.found(name)
        if backward is None:
            backward = backward_graph(self.piece, case, strides)
            self.place.keep(name, backward)
        return backward

    def here(self, graph: Graph, values: Values) -> Graph:
        """The graph with the numbers of these values as hints: kernels take their signs, say of where padding begins,
        and nothing records a backward pass anew for others.
        """
        numbers = zip(self.piece.numbers, values[2], strict=True)
        mine = {name: value for name, value in numbers if isinstance(name, Symbol) and name in graph.hints}
        return replace(graph, hints={**graph.hints, **mine})

    # ---- the trace of a case -----------------------------------------------------------------------------------------

    def recorded(self, backward: Backward, values: Values, again: bool) -> Trace:
        """What a recording of the case would have left."""
        graph = backward.graph
        given, tangents, _, mask = values
        places = [Source("item", SAVED, place) for place in backward.saved]
        places += [Source("item", TANGENTS, place) for place in backward.tangents]
        tensors = [*(given[place] for place in backward.saved), *(tangents[place] for place in backward.tangents)]
        taped = _taped(self.kept(again), backward)
        inputs = tuple(
            Input(number, source, self.spec(number, tensor, graph, again, taped[number]))
            for number, (source, tensor) in enumerate(zip(places, tensors, strict=True))
        )
        facts = [Fact(SAVED, "type", list), Fact(SAVED, "length", len(given)), Fact(WANTED, "int", mask)]
        facts += [
            Fact(Source("item", TANGENTS, place), "is", None) for place, came in enumerate(tangents) if came is None
        ]
        gone = [place for place, tensor in enumerate(given) if again and tensor is None]
        facts += [Fact(Source("item", SAVED, place), "is", None) for place in gone]
        for place, name in enumerate(self.piece.numbers):
            kind = "integer" if isinstance(name, Symbol) else "real"
            facts.append(Fact(Source("item", NUMBERS, place), kind, name))
        parts = tuple(None if place is None else Ref(graph.outputs[place].value) for place in backward.results)
        return Trace(
            name=graph.name,
            line=self.trace.line,
            assumptions=Assumptions(global_state(), tuple(facts), inputs, ()),
            calls=(),
            metas=(),
            size_symbols={},
            hints=self.here(graph, values).hints,
            real_hints=dict(self.trace.real_hints),
            result=Build("tuple", None, parts),
            effects=(),
        )

    def spec(self, number: int, tensor: torch.Tensor, graph: Graph, again: bool, taped: bool) -> TensorSpec:
        """What is checked of a tensor that comes to backward: its sizes follow from the numbers. One that is ``taped``
        goes to torch's autograd as it is, however it lies.
        """
        node = graph.inputs[number]
        assert node.strides is not None, "inputs have strides"
        order = None if taped else self.order(node, tensor, {**self.trace.hints, **graph.hints})
        loose: tuple[Symbol | int, ...] | None = None
        if order is None:
            loose = tuple(
                Symbol(f"t{number}_{axis}") if taped or stride.constant is None else stride.constant
                for axis, stride in enumerate(node.strides)
            )
        return TensorSpec(
            type(tensor),
            keys_of(tensor),
            BY_TORCH[tensor.dtype],
            str(tensor.device),
            tuple(Symbol(f"d{number}_{axis}") for axis in range(len(node.shape))),
            order,
            loose,
            tensor.requires_grad if again else None,
        )


    def order(self, node: Node, tensor: torch.Tensor, hints: dict[Symbol, int]) -> tuple[int, ...] | None:
        """The order of dimensions of which the strides of the graph's node are; that of the recorded sizes and that of
        these are others where a size is 1.
        """
        strides = node.strides or ()
        recorded = [size.evaluate(hints) for size in node.shape], [stride.evaluate(hints) for stride in strides]
        for sizes, places in (recorded, (tensor.shape, tensor.stride())):
            order = dense_order(tuple(sizes), tuple(places))
            if order is not None and dense_strides(node.shape, order) == strides:
                return order
        return None


def _taped(kept: Sequence[Saved], backward: Backward) -> list[bool]:
    """Which inputs of a case's graph are parts of tapes."""
    nodes = [kept[place].node for place in backward.saved]
    return [*(node.op == "result" and is_taped(node) for node in nodes), *(False for _ in backward.tangents)]


def _lies(entry: Saved, tensor: torch.Tensor | None) -> Shape:
    """The strides of a saved value: what forward guarded of an input; how a view or result lies only the tensor
    tells. One that an earlier pass has freed is not read: of how it lay nothing depends.
    """
    if entry.kind == "input" and entry.node.strides is not None:
        return entry.node.strides
    if tensor is None:
        return dense_strides(entry.node.shape, tuple(range(len(entry.node.shape))))
    return _strides(tensor, entry.node.shape)


def _strides(tensor: torch.Tensor, shape: Shape) -> Shape:
    """The strides of a tensor, over the symbols of its shape."""
    order = dense_order(tuple(tensor.shape), tensor.stride())
    if order is not None:
        return dense_strides(shape, order)
    return tuple(expr(stride) for stride in tensor.stride())


def with_cuts(graph: Graph, tensors: Sequence[torch.Tensor], numbers: Mapping[str, float]) -> Graph:
    """The graph in which gradients that torch computes are cut off from those operands to which none flows back from
    them: only torch knows which, so it makes these calls once.
    """
    results: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        if is_vjp(node):
            results.setdefault(node.inputs[0], []).append(node)
    if not results:
        return graph
    asked = list(dict.fromkeys(node for call, parts in results.items() for node in (*call.inputs, *parts)))
    run, images = on_torch(graph)
    outputs = tuple(Output(place, images[node], None) for place, node in enumerate(asked))
    try:
        values = compile_graph(replace(run, outputs=outputs))(tensors, numbers, grad=True)
    except Exception:  # what torch raises here is the program's, and is raised where it asks for the gradients
        return graph
    tensor_of = dict(zip(asked, values, strict=True))

    def change(node: Node, inputs: tuple[Node, ...]) -> Sequence[Node]:
        if node.op == "result" and node in tensor_of and not tensor_of[node].requires_grad:
            kept = node.over(inputs)
            return (kept, detached(kept))
        cut = []
        if node in results:
            gradients = [tensor_of[part] for part in results[node]]
            operands = [tensor_of[operand] for operand in node.inputs]
            lost = {id(tensor) for tensor in (*unreached(gradients, operands), *given_none(gradients, operands))}
            cut = [place for place, operand in enumerate(node.inputs) if id(tensor_of[operand]) in lost]
        changed = tuple(detached(operand) if place in cut else operand for place, operand in enumerate(inputs))
        fresh = [new for new, old in zip(changed, inputs, strict=True) if new is not old]
        same = all(new is old for new, old in zip(changed, node.inputs, strict=True))
        return (*fresh, node if same else node.over(changed))

    return rebuilt(graph, change)


def given_none(results: Sequence[torch.Tensor], operands: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The operands to which a way leads from the results, and for which torch's formula at its end gives nothing."""
    asking = [operand for operand in operands if operand.requires_grad]
    roots = [result for result in results if result.requires_grad]
    if not asking or not roots:
        return []
    try:
        seeds = [torch.ones_like(root) for root in roots]
        gradients = torch.autograd.grad(roots, asking, seeds, retain_graph=True, allow_unused=True)
    except RuntimeError:  # a derivative that torch lacks is an error where the program asks for it
        return []
    return [operand for operand, gradient in zip(asking, gradients, strict=True) if gradient is None]


def detached(node: Node) -> Node:
    """The node itself, to which no gradient flows."""
    return replace(node, op="detach", inputs=(node,), attrs=(), strides=None)
