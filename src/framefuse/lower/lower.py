"""Turns a trace of torch calls into a graph of primitives, checking each call against what eager produced."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from framefuse.errors import Pinned, Stop
from framefuse.ir.builder import ONE, ZERO, Shape, Unprovable
from framefuse.ir.comparisons import RealRelation, Relation
from framefuse.ir.custom_calls import CustomCall
from framefuse.ir.dtypes import BY_NAME, BY_TORCH
from framefuse.ir.elements import ELEMENT
from framefuse.ir.graph import Graph, Late, Node, Output, Write
from framefuse.ir.nested import mapped, numbers_in, symbols_in
from framefuse.ir.numbers import Expr, Real, Symbol, Whole, expr
from framefuse.ir.stops import reason
from framefuse.ir.strides import dense_order, irregular
from framefuse.ir.target import Targets, on_cpu
from framefuse.ir.torch_calls import TABLE, counts, norm
from framefuse.ir.trace import Call, Ref, TensorMeta, Trace, outside, refs
from framefuse.ir.values import Value
from framefuse.ir.wrapped_calls import OnCopies, commits
from framefuse.lower.argument_names import by_place
from framefuse.lower.argument_strides import argument_strides
from framefuse.lower.autocast import Autocast, is_composed
from framefuse.lower.checkpointed import regions
from framefuse.lower.complex_clusters import by_parts
from framefuse.lower.complex_numbers import Parts
from framefuse.lower.context import Lowering
from framefuse.lower.dimensions import with_dimensions
from framefuse.lower.equal_sizes import fixed_sizes, with_equal_sizes
from framefuse.lower.failing import failing
from framefuse.lower.foreach import each
from framefuse.lower.gradients import Gradients
from framefuse.lower.kept_layouts import settle
from framefuse.lower.lasting import Lasting
from framefuse.lower.library import sized_by_shapes
from framefuse.lower.library_calls import LibraryCalls
from framefuse.lower.outputs import Definition, Outputs
from framefuse.lower.overlaps import overlaps
from framefuse.lower.own_gradients import with_own_gradient
from framefuse.lower.own_memory import computed, copying
from framefuse.lower.probed_shapes import Probes, probed
from framefuse.lower.rules import OVERLOADS, Lowered, Shapes, Unsupported, find, follow, only_shapes, shapes_of
from framefuse.lower.values import KEPT, Values

# What a rule may raise when a call's arguments are not what it expresses: the call is then a library call. A wrong
# call of the rule (TypeError) or a wrong assumption in it is the same case, since the result is checked anyhow.
FALLBACK = (Unsupported, Unprovable, TypeError, ValueError, IndexError, KeyError, AttributeError, ZeroDivisionError)


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
        self.notes = notes
        self.probes: Probes = {}
        default = BY_NAME[trace.assumptions.state.default_dtype.removeprefix("torch.")]
        ordered = trace.assumptions.state.deterministic  # then eager adds in order as well

        self.builder = Lowering(trace.hints, default, exact, targets, ordered)
        self.builder.casts = dict(trace.assumptions.state.casts)
        self.values = Values(self.builder, trace)
        self.symbols: dict[Symbol, Expr] = {}
        self.fixed = fixed_sizes(trace.assumptions)
        self.calls = LibraryCalls(self.builder, trace, self.values, self._number)
        self.autocast = Autocast(self.builder, self.values.contents, trace.metas)
        self.casts: dict[int, Node] | None = {}  # by value the operands of the call at hand that autocast casts
        self.gradients = Gradients(self.builder, trace, self.values)
        self.builder.differentiable = self.gradients.on
        self.lasting = Lasting(self.builder, trace, self.values)
        self.taken: set[Node] = set()
        self.leaving = set(outside(trace.result, trace.effects))
        self.computed: list[Node] = []  # what the program's calls gave and wrote
        self.definer: dict[int, Definition] = {}
        self.index = 0  # of the call at hand
        cpu = targets("cpu")
        self.by_parts = by_parts(trace, cpu is None or cpu.library)

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
            lasting=self.lasting.nodes(live, self.leaving),
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
            self._write(index, call, written, fresh)
            return
        self.casts = self.autocast.casts(call, [self._meta(value) for _, value in fresh])
        call = with_dimensions(self.builder, call, self._number)
        nodes = self._tracked(call) if isinstance(call.target, CustomCall) else self._by_rule(call, fresh)
        if nodes is None:
            nodes = self._by_library(call, fresh)
        elif self.gradients.on and len(fresh) == 1 and self._is_copy(call, fresh[0][1], nodes[0]):
            (copy,) = self._by_library(copying(call), fresh, [nodes[0].shape])
            nodes = (self.builder.derived(self.builder.detach(copy), KEPT, nodes),)
        for (path, value), node in zip(fresh, nodes, strict=True):
            self._define(call, path, value, node)

    def _tracked(self, call: Call) -> tuple[Node, ...]:
        """The results of a custom autograd function: what its forward gave."""
        raw, operands, leaves = mapped(call.args, self._argument)
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
        plain = computed(node)
        own = plain if plain.op == "result" and plain not in self.taken and self.calls.lies_as(plain, value) else None
        self.taken.add(plain)
        contents = node = self.lasting.made(call, value, node)
        node = self.gradients.shown(call, value, node, self.leaving)
        self.computed.append(node)
        self.definer[value] = Definition(call, path, own, self.index)
        self.values.define(value, contents, self.gradients.made(call, value, node))
        self.calls.made(value)
        self._bind_symbols(value, node.shape)

    def _by_rule(self, call: Call, fresh: Sequence[tuple[tuple[int, ...], int]]) -> tuple[Node, ...] | None:
        """The nodes of the call's new values by its rule, or None when there is none, it refuses or it is wrong."""
        metas = [self.trace.metas[value] for _, value in fresh]
        self.builder.place = metas[0].device if metas else "cpu"
        composed = is_composed(call)
        result = None if composed else self._on_parts(call, metas)
        if result is None and not composed:
            result = self._rule_result(call)
            if result is not None and self._is_complex(call, metas):  # kernels only move them
                result = only_shapes(result, [path for path, _ in fresh])
        if result is None:
            return None
        if isinstance(result, Shapes):
            shapes = self._agreed(call, result, metas)
            return None if shapes is None else self._by_library(call, fresh, shapes)
        nodes = []
        for (path, _), meta in zip(fresh, metas, strict=True):
            node = follow(result, path)
            if not isinstance(node, Node) or not self._agrees(node, meta):
                self.notes.append((call.name, f"rule gave {_describe(node)}, eager {meta.dtype}{list(meta.sizes)}"))
                return None
            nodes.append(node)
        self.calls.kept += self.builder.drawn
        return tuple(nodes)

    def _on_parts(self, call: Call, metas: Sequence[TensorMeta]) -> Lowered | None:
        """What the call on complex numbers does with their parts; None where it has no such form."""
        if self.index not in self.by_parts or call.random or self.casts:
            return None
        return self._rule_result(call, Parts(self.builder, metas, self.gradients.carries))

    def _rule_result(self, call: Call, parts: Parts | None = None) -> Lowered | None:
        """What the rule of the call answers, or that for the ``parts`` of complex numbers; relations of a rule that
        failed are forgotten.
        """
        write = torch.Tensor.__setitem__ if parts is not None else None
        rule = find(call.target if call.target != "setitem" else write)
        if rule is None:
            self.notes.append((call.name, "no rule"))
            return None
        before = dict(self.builder.relations)
        operands = refs((call.args, call.kwargs))
        self.builder.memory = {self.values.contents[value]: self.trace.metas[value] for value in operands}
        self.builder.drawn, self.builder.writes = [], bool(call.written)
        try:
            args, kwargs = mapped((call.args, call.kwargs), self._argument)
            args, kwargs = by_place(rule, call.name, args, kwargs)
            result = rule(self.builder, *args, **kwargs) if parts is None else parts.lowered(rule, args, kwargs)
            if call.random != bool(self.builder.drawn) and not isinstance(result, Shapes):
                raise Unsupported("random")
            for shape in shapes_of(result):
                self.builder.exists(shape)
            return result
        except FALLBACK as error:
            self.builder.relations = before
            self.notes.append((call.name, f"{type(error).__name__}: {error}"))
            return None

    def _is_complex(self, call: Call, results: Sequence[TensorMeta]) -> bool:
        """Whether complex numbers go into a call or come out of it."""
        operands = (self.values.contents[value].dtype for value in refs((call.args, call.kwargs)))
        return any(meta.dtype.is_complex for meta in results) or any(dtype.kind == "complex" for dtype in operands)

    def _agrees(self, node: Node, meta: TensorMeta) -> bool:
        return (
            node.dtype.torch is meta.dtype
            and node.device == meta.device
            and len(node.shape) == len(meta.sizes)
            and self.builder.sizes(node.shape) == meta.sizes
        )

    def _agreed(self, call: Call, given: Shapes, metas: Sequence[TensorMeta]) -> Sequence[Shape] | None:
        """The shapes that a rule gives; None where they are not those that eager gave."""
        shapes = self.calls.opened(given, metas)
        if shapes is None or [self.builder.sizes(shape) for shape in shapes] != [meta.sizes for meta in metas]:
            self.calls.forget_unset()
            self.notes.append((call.name, "the shape rule disagrees with eager"))
            return None
        return shapes

    def _argument(self, value: Value) -> Value:
        if isinstance(value, Ref):
            cast = self.casts.get(value.value) if self.casts else None
            return cast if cast is not None else self.values.contents[value.value]
        if isinstance(value, (Expr, Real)):
            return self._number(value)
        return tuple(value) if type(value) is torch.Size else value

    def _number(self, value: Expr | Real) -> Value:
        known = value.substitute(self.symbols)
        if isinstance(known, Expr) and known.constant is not None:
            return known.constant
        return known

    # ---- library calls -----------------------------------------------------------------------------------------------

    def _by_library(
        self, call: Call, fresh: Sequence[tuple[tuple[int, ...], int]], shapes: Sequence[Shape] | None = None
    ) -> tuple[Node, ...]:
        if TABLE[call.name].lies:
            self._check_layout(call)
        metas = [self.trace.metas[value] for _, value in fresh]
        paths = [path for path, _ in fresh]
        single = all(len(meta.sizes) == 0 for meta in metas)
        if shapes is None:
            self._require_elements(call, single)
        if shapes is None and single:
            shapes = [()] * len(metas)
        if shapes is None:
            shapes = self._probed(call, metas)
        return self.calls.library(call, call.target, paths, metas, shapes, casts=self.casts)

    def _require_elements(self, call: Call, single: bool) -> None:
        """A call without a rule may do something of its own where a size is 0 (give what no gradient flows to, say) or
        1 (drop that dimension, so that its result is a ``single`` element).
        """
        lo = self.builder
        operands = [self.values.contents[value] for value in refs((call.args, call.kwargs))]
        for size in [size for node in operands for size in node.shape]:
            if lo.size(size) != 0 and lo.bound.isdisjoint(size.symbols):
                lo.require("!=", size, ZERO, "a call without a rule")
                if single and lo.size(size) == 1:
                    lo.require("==", size, ONE, "a call without a rule")
            elif lo.size(size) == 0 and call.grad_enabled and any(map(self.gradients.carries, operands)):
                text = f"{call.name} of no elements may give no gradient at all"
                raise Stop(reason("gradient", text, call.line))

    def _probed(self, call: Call, metas: Sequence[TensorMeta]) -> tuple[Shape, ...] | None:
        """The shapes that the call gives, from runs of it without data at several sizes."""
        contents = self.values.contents
        operands = {value: contents[value].shape for value in refs((call.args, call.kwargs))}
        if all(size.constant is not None for shape in operands.values() for size in shape):
            if next(numbers_in((call.args, call.kwargs)), None) is None and sized_by_shapes(call.target):
                return tuple(tuple(map(expr, meta.sizes)) for meta in metas)
            if not isinstance(call.target, OVERLOADS):
                return None
        known = {value: self.trace.metas[value] for value in operands}
        relations = (*self.trace.assumptions.relations, *self.builder.relations)
        return probed(call, operands, metas, known, self.builder.hints, relations, self._number, self.probes)

    def _check_layout(self, call: Call) -> None:
        """A call that reads memory order needs operands whose memory is eager's own or row-major; strides that the
        program gives need one without gaps, as the library's operands lie in eager's order.
        """
        offset = TABLE[call.name].offset
        if offset and call.kwargs.get("storage_offset", *call.args[offset : offset + 1]) is not None:
            raise Stop(reason("memory-order", f"{call.name} counts from where memory begins.", call.line))
        for value in refs(call.args):
            meta, node = self.trace.metas[value], self.values.contents[value]
            order = dense_order(meta.sizes, meta.strides)
            lies = order is not None if call.name == "as_strided" else order == tuple(range(len(meta.sizes)))
            if node.op != "input" and not lies:
                fact = f"{call.name} reads the memory order of a tensor."
                raise Stop(reason("memory-order", fact, call.line))

    def _without_result(self, call: Call) -> None:
        """A call for its effect on a generator, or for its check, stays."""
        self.casts = {}
        check = self._rule_result(call) if TABLE[call.name].checks else None
        if isinstance(check, Node):
            self.computed.append(check)
        elif call.random or TABLE[call.name].checks or commits(call.target):
            self.calls.library(call, call.target, (), ())
        else:
            fact = f"{call.name} gives no tensor."
            raise Stop(reason("no-tensor", fact, call.line))

    # ---- writes ------------------------------------------------------------------------------------------------------

    def _write(
        self, index: int, call: Call, written: tuple[int, ...], fresh: Sequence[tuple[tuple[int, ...], int]]
    ) -> None:
        """An in-place call: its operands' new contents are computed and put in their place. Autocast casts for none."""
        self.casts = {}
        if len(written) == 1 and not fresh:
            node = self._new_contents(call, written[0])
            self._separate(call, written, node)
            if node is not None:
                self.computed.append(self.lasting.made(call, written[0], node))
                self._assign(call, written[0], node, index, counts(call.target, call.name))
                return
        else:
            self._separate(call, written, None)
        if call.random and any(not self._is_dense(value) for value in written):
            fact = f"{call.name} fills memory with gaps, where eager draws in another order than on a copy."
            raise Stop(reason("memory-order", fact, call.line, "Fill a new tensor and copy it there."))
        target = torch.Tensor.__setitem__ if call.target == "setitem" else call.target
        if getattr(target, "finishes", False):
            self._finish(index, call, written)
            return
        copies = OnCopies(target, self._places(call, written), counts=self.values.counted_before(written))
        counted = call.counts or [getattr(target, "counts", counts(call.target, call.name))] * len(written)
        metas = [self.trace.metas[value] for value in (*(value for _, value in fresh), *written)]
        paths = [*((0, *path) for path, _ in fresh), *((1 + place,) for place in range(len(written)))]
        shapes = [*self._fresh_shapes(call, fresh), *(self.values.contents[value].shape for value in written)]
        alone = self.autocast.casts(call, metas) == {}  # autocast changes nothing of the call
        nodes = self.calls.library(call, copies, paths, metas, shapes, casts={} if alone else None)
        for (path, value), node in zip(fresh, nodes, strict=False):
            self._define(call, path, value, node)
        for value, node, count in zip(written, nodes[len(fresh) :], counted, strict=True):
            self._assign(call, value, node, index, count)

    def _separate(self, call: Call, written: tuple[int, ...], node: Node | None) -> None:
        """Raises Stop where a call reads memory that it writes at other places."""
        index = mapped(call.args[1], self._argument) if call.target == "setitem" or call.name == "__setitem__" else None
        if not commits(call.target) and overlaps(self.builder, self.values, call, written, index, node):
            fact = f"{call.name} reads memory that it writes, where the order of the elements decides."
            raise Stop(reason("in-place", fact, call.line, "Read a clone()."))

    def _assign(self, call: Call, value: int, node: Node, index: int, counted: int = 1) -> None:
        tracked = call.grad_enabled and norm(call.target, call.name) is None
        self.lasting.updated(call, value, index)
        unseen = self.lasting.unseen_write(value, index)
        if unseen is not None:
            fact = "A tensor that backward reads is written through .data."
            raise Stop(reason("in-place", fact, unseen.line, "Write a clone(), or compute a new tensor."))
        settle = self.lasting.settled(call, value, index, node, self.leaving)
        node = self.gradients.written(call, value, node) if tracked else node
        self.values.assign(value, node, index, call.line, tracked, self.gradients.keep, counted, settle)
        self.calls.made(value)

    def _finish(self, index: int, call: Call, written: tuple[int, ...]) -> None:
        """The end of a call that began to fill its operands: they are its results, in the same memory."""
        operands = [computed(self.values.contents[value]) for value in written]
        if any(node.op != "result" or not commits(node.inputs[0].attr("target")) for node in operands):
            fact = "A tensor is written while a collective fills it."
            raise Stop(reason("in-place", fact, call.line, "Write it after wait()."))
        metas = [self.trace.metas[value] for value in written]
        paths = [(place,) for place in range(len(written))]
        nodes = self.calls.library(call, call.target, paths, metas, [node.shape for node in operands])
        for value, node in zip(written, nodes, strict=True):
            self._assign(call, value, node, index, call.target.counts)

    def _is_dense(self, value: int) -> bool:
        return dense_order(self.trace.metas[value].sizes, self.trace.metas[value].strides) is not None

    def _fresh_shapes(self, call: Call, fresh: Sequence[tuple[tuple[int, ...], int]]) -> Sequence[Shape | None]:
        """The shapes of what an in-place call gives beside its writes, None where no rule knows them."""
        result = self._rule_result(call) if fresh else None
        metas = [self.trace.metas[value] for _, value in fresh]
        shapes = self._agreed(call, result, metas) if isinstance(result, Shapes) else None
        return shapes or (self._probed(call, metas) if fresh else None) or [None] * len(fresh)

    def _new_contents(self, call: Call, value: int) -> Node | None:
        """The written operand's contents by the rule of the call, in its own dtype and shape; None without one."""
        old = self.values.contents[value]
        if self._is_complex(call, ()):
            return self._new_pair(call, value, old)
        assigns = call.target == "setitem" or call.name in ("__setitem__", "setitem")
        written = self._setitem(call) if assigns else self._rule_result(call)
        if not isinstance(written, Node) or written.device != old.device:
            return None
        if len(written.shape) > len(old.shape):
            return None
        try:
            for size, own in zip(self.builder.broadcast(written.shape, old.shape), old.shape, strict=True):
                self.builder.require("==", size, own, "a write")
        except Unprovable:
            return None
        self.calls.kept += self.builder.drawn
        return self.builder.expand(self.builder.cast(written, old.dtype), old.shape)

    def _new_pair(self, call: Call, value: int, old: Node) -> Node | None:
        """The written complex operand's contents by its parts, where they have its shape; None without such a form."""
        written = self._on_parts(call, [self.trace.metas[value]]) if old.dtype.kind == "complex" else None
        if not isinstance(written, Node) or written is old:
            return None
        return written if written.shape == old.shape and written.dtype is old.dtype else None

    def _setitem(self, call: Call) -> Lowered | None:
        rule = find(torch.Tensor.__setitem__)
        self.builder.drawn = []
        before = dict(self.builder.relations)
        try:
            if rule is None or call.kwargs:
                raise Unsupported("no rule")
            return rule(self.builder, *mapped(call.args, self._argument))
        except FALLBACK as error:
            self.builder.relations = before
            self.notes.append((call.name, f"{type(error).__name__}: {error}"))
            return None

    def _places(self, call: Call, written: tuple[int, ...]) -> tuple[int | str, ...]:
        places: list[int | str] = []
        for value in written:
            arguments: list[int | str] = [place for place, arg in enumerate(call.args) if arg == Ref(value)]
            arguments += [name for name, arg in call.kwargs.items() if isinstance(arg, Ref) and arg.value == value]
            if len(arguments) != 1:
                fact = f"{call.name} writes memory that is not one of its direct operands."
                raise Stop(reason("in-place", fact, call.line, "Use the form that returns its result."))
            places.append(arguments[0])
        return tuple(places)

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
