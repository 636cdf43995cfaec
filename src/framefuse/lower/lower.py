"""Turns a trace of torch calls into a graph of primitives, checking each call against what eager produced."""

from __future__ import annotations

from collections.abc import Sequence

from framefuse.errors import Pinned, Stop
from framefuse.ir.builder import ONE, Shape
from framefuse.ir.comparisons import RealRelation, Relation
from framefuse.ir.custom_calls import CustomCall
from framefuse.ir.dtypes import BY_NAME, BY_TORCH
from framefuse.ir.elements import ELEMENT
from framefuse.ir.graph import Graph, Late, Node, Output, Write
from framefuse.ir.nested import mapped, numbers_in, symbols_in
from framefuse.ir.numbers import Expr, Real, Symbol, Whole, expr
from framefuse.ir.stops import reason
from framefuse.ir.strides import irregular
from framefuse.ir.target import Targets, on_cpu
from framefuse.ir.torch_calls import TABLE
from framefuse.ir.trace import Call, Ref, TensorMeta, Trace, outside, refs
from framefuse.ir.values import Value
from framefuse.ir.wrapped_calls import commits
from framefuse.lower.argument_strides import argument_strides
from framefuse.lower.autocast import Autocast, is_composed
from framefuse.lower.checkpointed import regions
from framefuse.lower.context import Lowering
from framefuse.lower.dimensions import with_dimensions
from framefuse.lower.equal_sizes import fixed_sizes, with_equal_sizes
from framefuse.lower.failing import failing
from framefuse.lower.foreach import each
from framefuse.lower.gradients import Gradients
from framefuse.lower.kept_layouts import settle
from framefuse.lower.lasting import Lasting
from framefuse.lower.library_calls import Fresh, LibraryCalls
from framefuse.lower.outputs import Definition, Outputs
from framefuse.lower.own_gradients import with_own_gradient
from framefuse.lower.own_memory import computed, copying
from framefuse.lower.rule_calls import RuleCalls
from framefuse.lower.rules import Shapes, follow, only_shapes
from framefuse.lower.values import KEPT, Values
from framefuse.lower.written_contents import InPlace


def lower(
    trace: Trace,
    *,
    notes: list[tuple[str, str]] | None = None,
    exact: bool = False,
    targets: Targets = on_cpu,
) -> Graph:
    """The graph of ``trace``; with eager's roundings where it is ``exact`` (option ``numerics``). ``targets`` knows the
    devices whose kernels add atomically.

    Sizes of the graph are expressions over the symbols of inputs and, for results of library calls whose sizes no
    rule gives, over symbols bound at run time. ``notes`` receives (call name, reason) for each call that became a
    library call. Raises :class:`Stop` where no graph says what the program did.
    """
    graph = _Lowerer(trace, notes if notes is not None else [], exact, targets).graph()
    return with_equal_sizes(graph, trace.assumptions.relations)


class _Lowerer:
    def __init__(self, trace: Trace, notes: list[tuple[str, str]], exact: bool, targets: Targets) -> None:
        self.trace = trace = each(trace)
        default = BY_NAME[trace.assumptions.state.default_dtype.removeprefix("torch.")]
        ordered = trace.assumptions.state.deterministic  # then eager adds in order as well

        self.builder = Lowering(trace.hints, default, exact, targets, ordered)
        self.builder.casts = dict(trace.assumptions.state.casts)
        self.values = Values(self.builder, trace)
        self.symbols: dict[Symbol, Expr] = {}
        self.fixed = fixed_sizes(trace.assumptions)
        self.gradients = gradients = Gradients(self.builder, trace, self.values)
        self.calls = LibraryCalls(self.builder, trace, self.values, gradients, self._number, notes)
        self.rules = RuleCalls(self.calls)
        self.autocast = Autocast(self.builder, self.values.contents, trace.metas)
        self.builder.differentiable = self.gradients.on
        self.lasting = Lasting(self.builder, trace, self.values)
        self.taken: set[Node] = set()
        self.leaving = set(outside(trace.result, trace.effects))
        self.computed: list[Node] = []  # what the program's calls gave and wrote
        self.definer: dict[int, Definition] = {}
        self.index = 0  # of the call at hand
        self.in_place = InPlace(
            self.rules,
            self.calls,
            self.autocast,
            gradients,
            self.lasting,
            self.leaving,
            self.computed,
            self._define,
        )

    def graph(self) -> Graph:
        inputs = tuple(self._input(place) for place in range(len(self.trace.assumptions.inputs)))
        for index, call in enumerate(self.trace.calls):
            self.builder.line = call.line
            self.lasting.begin()
            try:
                self._call(index, call)
            except Stop:
                raise
            except Exception as error:
                raise Pinned(call.line) from error
        self.builder.line = None
        self.gradients.asked()
        settle(self.builder, self.trace, self.values)
        library, saved = self.calls.library, self.lasting.kept
        leaving = Outputs(
            self.builder, self.trace, self.values, self.definer, library, self.gradients, self._late_argument, saved
        )
        outputs = leaving.outputs(outside(self.trace.result, self.trace.effects))
        writes = leaving.writes()
        self._check_relations()
        kept = self._kept(outputs, writes)
        live = self._live(inputs, outputs, writes, kept, leaving.late)
        lasting, results = self.lasting.nodes(live, self.leaving)
        return Graph(
            name=self.trace.name,
            inputs=inputs,
            nodes=live,
            outputs=outputs,
            writes=writes,
            relations=tuple(self.builder.relations),
            values={symbol: size for symbol, size in self.symbols.items() if symbol not in self.fixed},
            bound=tuple(self.calls.bound),
            hints=self.builder.hints,
            differentiable=self.gradients.differentiable,
            late=tuple(leaving.late),
            kept=kept,
            lasting=lasting,
            results=results,
            regions=regions(self.trace, self.lasting.by_call(), live),
        )

    # ---- inputs ------------------------------------------------------------------------------------------------------

    def _input(self, place: int) -> Node:
        entry = self.trace.assumptions.inputs[place]
        meta = self._meta(entry.value)
        shape = tuple(expr(self.fixed.get(size, size)) for size in entry.spec.sizes)
        self.builder.extents.update(size for size in entry.spec.sizes if isinstance(size, Symbol))
        for axis in irregular(meta.sizes, meta.strides):
            self.builder.require("==", shape[axis], ONE, "the order of dimensions in memory")
        self.builder.settle_ties(meta, shape)
        dtype, strides = BY_TORCH[meta.dtype], argument_strides(self.builder, entry.spec, meta, shape)
        node = self.builder.opaque("input", (), (("index", place),), dtype, shape, strides, meta.device)
        self.values.define(entry.value, node, node)
        self._bind_symbols(entry.value, shape)
        return node

    def _meta(self, value: int) -> TensorMeta:
        meta = self.trace.metas[value]
        if meta.dtype not in BY_TORCH:
            raise Stop(reason("tensor-kind", f"A tensor of {meta.dtype}", self.builder.line))
        return meta

    def _bind_symbols(self, value: int, shape: Shape) -> None:
        symbols = self.trace.size_symbols
        for dimension, size in enumerate(shape):
            symbol = symbols.get((value, dimension))
            if symbol is not None and size is not symbol.expr:
                self.symbols[symbol] = size
        element = symbols.get((value, ELEMENT))
        if element is not None:
            self.symbols[element] = self.calls.element(self.values.contents[value], self.trace.hints[element]).expr

    # ---- calls -------------------------------------------------------------------------------------------------------

    def _call(self, index: int, call: Call) -> None:
        self.index = index
        results = tuple(_paths(call.result))
        fresh = [(path, value) for path, value in results if value not in self.values.contents]
        for _, value in fresh:
            self._meta(value)
        self.gradients.reads(call)
        written = _written(call, results)
        if TABLE[call.name].stop and not TABLE[call.name].generator:
            raise Stop(reason(TABLE[call.name].stop, call.name, call.line))
        if not results and not written:
            self._without_result(call)
            return
        if written:
            self.in_place.write(index, call, written, fresh)
            return
        self.rules.casts = self.autocast.casts(call, [self._meta(value) for _, value in fresh])
        call = with_dimensions(self.builder, call, self._number)
        nodes = self._tracked(call) if isinstance(call.target, CustomCall) else self._by_rule(call, fresh)
        if nodes is None:
            nodes = self.calls.given(call, fresh, self.rules.casts)
        elif self.gradients.on and len(fresh) == 1 and self._is_copy(call, fresh[0][1], nodes[0]):
            (copy,) = self.calls.given(copying(call), fresh, self.rules.casts, [nodes[0].shape])
            nodes = (self.builder.derived(self.builder.detach(copy), KEPT, nodes),)
        for (path, value), node in zip(fresh, nodes, strict=True):
            self._define(call, path, value, node)

    def _tracked(self, call: Call) -> tuple[Node, ...]:
        """The results of a custom autograd function: what its forward gave."""
        raw, operands, leaves = mapped(call.args, self.rules.argument)
        paths = [path for path, _ in _paths(call.result)]
        return with_own_gradient(self.builder, call.target, raw, operands, leaves, paths)

    def _is_copy(self, call: Call, value: int, node: Node) -> bool:
        """Whether a call copied what requires grad into a tensor that leaves, of which the program may ask the gradient
        of what it computes from that.
        """
        meta = self.trace.metas[value]
        if not meta.requires_grad or meta.view or call.reshapes or value not in self.leaving or not call.grad_enabled:
            return False
        return node.dtype.is_float and any(self.values.contents[operand] is node for operand in refs(call.args))

    def _define(self, call: Call, path: tuple[int, ...], value: int, node: Node) -> None:
        contents = node = self.lasting.made(call, value, node)
        plain = computed(node)
        own = plain if plain.op == "result" and plain not in self.taken and self.calls.lies_as(plain, value) else None
        self.taken.add(plain)
        node = self.gradients.shown(call, value, node, self.leaving)
        self.computed.append(node)
        self.definer[value] = Definition(call, path, own, self.index)
        self.values.define(value, contents, self.gradients.made(call, value, node))
        self.calls.made(value)
        self._bind_symbols(value, node.shape)

    def _by_rule(self, call: Call, fresh: Fresh) -> tuple[Node, ...] | None:
        """The nodes of the call's new values by its rule, or None when there is none, it refuses or it is wrong."""
        metas = [self.trace.metas[value] for _, value in fresh]
        self.builder.place = metas[0].device if metas else "cpu"
        composed = is_composed(call)
        result = None if composed else self.rules.on_parts(self.index, call, metas)
        if result is None and not composed:
            result = self.rules.result(call)
            if result is not None and self.rules.is_complex(call, metas):  # kernels only move them
                result = only_shapes(result, [path for path, _ in fresh])
        if result is None:
            return None
        if isinstance(result, Shapes):
            shapes = self.calls.opened(call, result, metas)
            return None if shapes is None else self.calls.given(call, fresh, self.rules.casts, shapes)
        nodes = []
        for (path, _), meta in zip(fresh, metas, strict=True):
            node = follow(result, path)
            if not isinstance(node, Node) or not self.rules.agrees(node, meta):
                eager = f"{meta.dtype}{list(meta.sizes)}"
                self.rules.notes.append((call.name, f"rule gave {_describe(node)}, eager {eager}"))
                return None
            nodes.append(node)
        self.calls.kept += self.builder.drawn
        return tuple(nodes)

    def _number(self, value: Expr | Real) -> Value:
        known = value.substitute(self.symbols)
        if isinstance(known, Expr) and known.constant is not None:
            return known.constant
        return known

    def _without_result(self, call: Call) -> None:
        """A call for its effect on a generator, or for its check, stays."""
        self.rules.casts = {}
        check = self.rules.result(call) if TABLE[call.name].checks else None
        if isinstance(check, Node):
            self.computed.append(check)
        elif call.random or TABLE[call.name].checks or commits(call.target):
            self.calls.library(call, call.target, (), ())
        else:
            fact = f"{call.name} gives no tensor."
            raise Stop(reason("no-tensor", fact, call.line))

    # ---- the end -----------------------------------------------------------------------------------------------------

    def _late_argument(self, value: Value) -> Value:
        """An argument of a call that runs after everything else: its tensors stay values of the trace."""
        return mapped(value, lambda part: self._number(part) if isinstance(part, (Expr, Real)) else part)

    def _check_relations(self) -> None:
        assumed = self.trace.assumptions
        relations: tuple[Relation | RealRelation, ...] = (*assumed.relations, *assumed.comparisons)
        for symbol, value in assumed.definitions:
            if not self.builder.bound.isdisjoint(value.substitute(self.symbols).symbols):
                fact = f"The program computes with a size that is known only while it runs ({symbol} = {value})."
                line = value.line if isinstance(value, Whole) else None
                raise Stop(reason("run-time-size", fact, line, "Compute with the size of an argument instead."))
        for relation in relations:
            known = relation.substitute(self.symbols)
            if isinstance(known, Relation) and known.constant is True:
                continue
            if not self.builder.bound.isdisjoint(known.left.symbols | known.right.symbols):
                fact = f"The program branches on a size that is known only while it runs ({relation})."
                raise Stop(reason("run-time-size", fact, relation.line))

    def _kept(self, outputs: Sequence[Output], writes: Sequence[Write]) -> tuple[Node, ...]:
        """What runs for the error that it may raise."""
        roots = [*(output.node for output in outputs), *(write.node for write in writes), *self.calls.kept]
        return (*self.calls.kept, *failing(self.builder, self.computed, roots))

    def _live(
        self,
        inputs: Sequence[Node],
        outputs: Sequence[Output],
        writes: Sequence[Write],
        kept: Sequence[Node],
        late: Sequence[Late],
    ) -> tuple[Node, ...]:
        """The nodes that something outside needs, and those that run for their error, in program order."""
        marked: set[Node] = set(inputs)
        waiting = [*(output.node for output in outputs), *(write.node for write in writes), *kept]
        binder = {symbol: node for symbol, node, _ in self.calls.bound}
        if binder:  # numbers that leave the call may be run-time sizes of tensors that do not
            effects = [(effect.key, effect.value) for effect in self.trace.effects]
            shown = [number.substitute(self.symbols) for number in numbers_in((self.trace.result, effects))]
            late_arguments = [(each.args, each.kwargs) for each in late]
            waiting += {binder[symbol] for symbol in symbols_in((shown, late_arguments)) if symbol in binder}
        while waiting:
            node = waiting.pop()
            if node not in marked:
                marked.add(node)
                waiting += node.inputs
                if binder:  # who uses a run-time size needs the call that sets it
                    waiting += {binder[symbol] for symbol in symbols_in(node) if symbol in binder}
        self.calls.bound = [entry for entry in self.calls.bound if entry[1] in marked]
        return tuple(node for node in self.builder.nodes if node in marked)


def _written(call: Call, results: Sequence[tuple[tuple[int, ...], int]]) -> tuple[int, ...]:
    """The values that the call wrote; an in-place name counts as well where the version counter said nothing."""
    if call.written or not call.name.endswith("_") or call.name.endswith("__") or call.name == "requires_grad_":
        return call.written
    first = call.args[0] if call.args else None
    if isinstance(first, Ref) and any(value == first.value for _, value in results):
        return (first.value,)
    return ()


def _paths(result: Value, path: tuple[int, ...] = ()) -> Value:
    """(path, value) of each tensor in a call's result."""
    if isinstance(result, Ref):
        yield path, result.value
    elif isinstance(result, (tuple, list)):
        for place, part in enumerate(result):
            yield from _paths(part, (*path, place))
    elif isinstance(result, dict):
        for key, part in result.items():
            yield from _paths(part, (*path, key))


def _describe(node: Value) -> str:
    return f"{node.dtype}{list(node.shape)} on {node.device}" if isinstance(node, Node) else type(node).__name__
