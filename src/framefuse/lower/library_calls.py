"""Turns a torch call that no rule expresses into a library node with result nodes of known or run-time sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from framefuse.errors import Stop
from framefuse.ir.builder import ONE, ZERO, Shape, Unprovable
from framefuse.ir.classes import PLAIN_TENSORS
from framefuse.ir.dtypes import BOOL, BY_TORCH
from framefuse.ir.elements import ELEMENT
from framefuse.ir.graph import Arg, Node, call_attrs
from framefuse.ir.nested import mapped, numbers_in
from framefuse.ir.numbers import Expr, Real, Symbol, expr
from framefuse.ir.stops import reason
from framefuse.ir.strides import ambiguous, dense_order, dense_strides, order_like, shown_order
from framefuse.ir.torch_calls import TABLE
from framefuse.ir.trace import Call, Ref, TensorMeta, Trace, refs
from framefuse.ir.values import Value
from framefuse.ir.wrapped_calls import (
    NAMED_PARTS,
    Parts,
    Plainly,
    Silent,
    UnderAutocast,
    commits,
)
from framefuse.lower.aliases import VIEWS
from framefuse.lower.autocast import policy
from framefuse.lower.context import Lowering
from framefuse.lower.gradients import Gradients
from framefuse.lower.library import of_torch, sized_by_data, sized_by_shapes
from framefuse.lower.own_memory import computed
from framefuse.lower.probed_shapes import Probes, probed
from framefuse.lower.rules import OVERLOADS, Counted, Shapes
from framefuse.lower.values import Values

Fresh = Sequence[tuple[tuple[int, ...], int]]  # (path, value) of each tensor that a call gives and nobody knew


class LibraryCalls:
    """Makes library nodes. ``bound`` are the sizes that their results set at run time, ``kept`` the calls that run
    even when nothing reads them; ``number`` brings a recorded number over the graph's symbols. ``notes`` receives
    (call name, why) where a rule does not say what a call gives.
    """

    def __init__(
        self,
        builder: Lowering,
        trace: Trace,
        values: Values,
        gradients: Gradients,
        number: Callable[[Expr | Real], Value],
        notes: list[tuple[str, str]],
    ) -> None:
        self.builder, self.trace, self.values, self.gradients = builder, trace, values, gradients
        self.number, self.notes = number, notes
        self.probes: Probes = {}
        self.bound: list[tuple[Symbol, Node, int]] = []
        self.kept: list[Node] = []
        self.copies: dict[tuple[Node, tuple[int, ...]], Node] = {}
        self.lies: dict[Node, tuple[int, ...] | None] = {}  # computed nodes, as the first value does that has them
        self.unset: set[Symbol] = set()  # sizes that no result has told yet
        self.counts: dict[Node, Symbol] = {}  # how many elements are not zero, where a call has told

    def library(
        self,
        call: Call,
        target: Value,
        paths: Sequence[tuple[int, ...]],
        metas: Sequence[TensorMeta],
        shapes: Sequence[Shape | None] | None = None,
        replaced: dict[int, Node] | None = None,
        casts: dict[int, Node] | None = None,
    ) -> tuple[Node, ...]:
        """The call as a library node; its results at ``paths``. Operands named in ``replaced`` are those nodes. A call
        without results is made for its effect, so it keeps its place among the random ones. ``casts`` are the operands
        that autocast casts; where it is None, the call runs under the autocast of its recording.
        """
        replaced = {**(casts or {}), **(replaced or {})}
        for value in call.unreached:
            replaced[value] = self.builder.detach(replaced.get(value) or self._as_it_lies(value))
        operands: list[Node] = []
        template, named = mapped((call.args, call.kwargs), lambda part: self._template(part, operands, replaced))
        numbered = next(numbers_in((template, named)), None) is not None
        if target == "setitem":
            target = call.function
        if type(call.result) in (list, tuple) and target is call.target and call.name not in NAMED_PARTS:
            target = Parts(target, len(call.result))
        around = self.trace.assumptions.state.casts
        sent = commits(target)
        if sent:
            pass  # what is sent is not computed
        elif call.autocast and casts is None:
            target = UnderAutocast(target, call.autocast)
        elif around not in ((), call.autocast) and any(policy(call.name, kind) != "alone" for kind, _ in around):
            target = UnderAutocast(target, ())  # an equal one casts nothing more
        if call.warns:
            target = Silent(target)
        if any(self.trace.metas[value].type not in PLAIN_TENSORS for value in refs((call.args, call.kwargs))):
            target = Plainly(target)
        known = _constant(operands) and not sized_by_data(call, self.trace.metas)
        if shapes is None and known and of_torch(call.target) and not call.random and not numbered:
            shapes = [tuple(map(expr, meta.sizes)) for meta in metas]
        random = call.random or sent or not metas
        orders = self._orders(call, operands, replaced)
        views = () if sent else self._views(call, operands, replaced)
        attrs = call_attrs(target, template, orders, name=call.name, kwargs=named, random=random, views=views)
        dtype, device = (BY_TORCH[metas[0].dtype], metas[0].device) if metas else (BOOL, "cpu")
        node = self.builder.opaque("library", tuple(operands), attrs, dtype, (), None, device)
        self.builder.lying[node] = self._open(call, operands, replaced)
        # What eager raises for some contents, sizes or numbers is raised also where nobody reads the result.
        if random or not TABLE[call.name].total or numbered:
            self.kept.append(node)
        results = []
        for place, (path, meta) in enumerate(zip(paths, metas, strict=True)):
            results.append(self._result(node, path, meta, shapes[place] if shapes is not None else None))
        return tuple(results)

    def given(
        self,
        call: Call,
        fresh: Fresh,
        casts: dict[int, Node] | None,
        shapes: Sequence[Shape] | None = None,
    ) -> tuple[Node, ...]:
        """What is ``fresh`` of the call as torch gives it; of these ``shapes``, where a rule knows them."""
        if TABLE[call.name].lies:
            self._check_layout(call)
        metas = [self.trace.metas[value] for _, value in fresh]
        paths = [path for path, _ in fresh]
        single = all(len(meta.sizes) == 0 for meta in metas)
        if shapes is None:
            self._require_elements(call, single)
            self._require_parts(call, paths)
        if shapes is None and single:
            shapes = [()] * len(metas)
        if shapes is None:
            shapes = self.probed_shapes(call, metas)
        return self.library(call, call.target, paths, metas, shapes, casts=casts)

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

    def _require_parts(self, call: Call, paths: Sequence[tuple[int, ...]]) -> None:
        """A call without a rule that gives a list among its results (histogramdd) may give one of another length where
        its operands are larger: their sizes are held.
        """
        if any(len(path) > 1 for path in paths):
            for value in refs((call.args, call.kwargs)):
                for size in self.values.contents[value].shape:
                    self.builder.fixed(size, "the number of its results")

    def probed_shapes(self, call: Call, metas: Sequence[TensorMeta]) -> tuple[Shape, ...] | None:
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
        return probed(call, operands, metas, known, self.builder.hints, relations, self.number, self.probes)

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

    def _result(self, call: Node, path: tuple[int, ...], meta: TensorMeta, shape: Shape | None) -> Node:
        if shape is None:
            shape = tuple(self._unset(size).expr for size in meta.sizes)
        try:
            self.builder.settle_ties(meta, shape)
        except Unprovable as error:
            fact = f"Sizes that are known only while it runs decide how a result lies in memory ({error})."
            raise Stop(reason("memory-order", fact, self.builder.line)) from error
        order = shown_order(meta.sizes, meta.strides) or tuple(range(len(meta.sizes)))
        strides = dense_strides(shape, order)
        dtype = BY_TORCH[meta.dtype]
        node = self.builder.opaque("result", (call,), (("path", path),), dtype, shape, strides, meta.device)
        for dimension, size in enumerate(shape):
            symbol = next(iter(size.symbols), None)
            if symbol in self.unset:
                self.unset.remove(symbol)
                self.bound.append((symbol, node, dimension))
        return node

    def _unset(self, hint: int) -> Symbol:
        """A symbol for a size that the next result with it tells."""
        symbol = Symbol(f"u{len(self.builder.bound)}")
        self.builder.bound.add(symbol)
        self.builder.extents.add(symbol)
        self.builder.hints[symbol] = hint
        self.unset.add(symbol)
        return symbol

    def opened(self, call: Call, given: Shapes, metas: Sequence[TensorMeta]) -> Sequence[Shape] | None:
        """The shapes that a rule gives, with a symbol for each size that only the call tells; None where they are not
        those that eager gave.
        """
        if [len(shape) for shape in given.shapes] == [len(meta.sizes) for meta in metas]:
            shapes = [
                tuple(
                    self._counted(size.of, hint).expr if isinstance(size, Counted) else size
                    for size, hint in zip(shape, meta.sizes, strict=True)
                )
                for shape, meta in zip(given.shapes, metas, strict=True)
            ]
            if [self.builder.sizes(shape) for shape in shapes] == [meta.sizes for meta in metas]:
                return shapes
            self._forget_unset()
        self.notes.append((call.name, "the shape rule disagrees with eager"))
        return None

    def _forget_unset(self) -> None:
        """No result will tell the sizes that a rule asked for last."""
        self.counts = {of: symbol for of, symbol in self.counts.items() if symbol not in self.unset}
        self.unset.clear()

    def _counted(self, of: Node | None, hint: int) -> Symbol:
        if of is None:
            return self._unset(hint)
        symbol = self.counts.get(of)
        if symbol is None:
            symbol = self.counts[of] = self._unset(hint)
        return symbol

    def element(self, result: Node, hint: int) -> Symbol:
        """The symbol for the one element of a library call's result."""
        symbol = Symbol(f"m{len(self.builder.bound)}_element")
        self.builder.bound.add(symbol)
        self.builder.hints[symbol] = hint
        self.bound.append((symbol, result, ELEMENT))
        return symbol

    def _orders(
        self, call: Call, operands: Sequence[Node], replaced: dict[int, Node]
    ) -> tuple[tuple[int, ...] | None, ...]:
        """How eager's own operands lay in memory: the library is as fast on ours only if they lie the same way, and
        draws the same random numbers for each element. An operand of a call that we made up lies row-major.
        """
        orders: dict[Node, tuple[int, ...] | None] = {}
        for value in refs((call.args, call.kwargs)):
            if value < 0:
                orders[replaced[value]] = tuple(range(len(replaced[value].shape)))
                continue
            meta, node = self.trace.metas[value], replaced.get(value) or self._as_it_lies(value)
            if call.random:
                self._settle_order(call, node, meta)
            orders.setdefault(node, order_like(meta) if call.random else dense_order(meta.sizes, meta.strides))
        return tuple(orders[node] for node in operands)

    def _views(
        self, call: Call, operands: Sequence[Node], replaced: dict[int, Node]
    ) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """The operands that were views of a value of the program, by number, with their strides: what eager gave the
        library it may be given again, in the same memory. Not where one node has the contents of two storages.
        """
        found: dict[Node, tuple[int, ...] | None] = {}
        for value in refs((call.args, call.kwargs)):
            node = replaced.get(value) or self._as_it_lies(value)
            meta = None if value in replaced else self.trace.metas[value]
            lies = meta.strides if meta is not None and self._is_view(call, value, node) else None
            found[node] = lies if found.get(node, lies) == lies else None
        views = ((number, found[node]) for number, node in enumerate(operands))
        return tuple((number, strides) for number, strides in views if strides is not None)

    def _is_view(self, call: Call, value: int, node: Node) -> bool:
        """Whether a value shows the memory of an earlier one, whose contents are the node's own source: an input, or,
        where a call of torch's keeps nothing of it, what was computed.
        """
        shared = self.values.sets[self.trace.metas[value].storage]
        if shared.root == value or shared.paths[value] is None or node is not self.values.contents[value]:
            return False
        while node.op in (*VIEWS, "detach", "derived"):
            node = node.inputs[0]
        if node.op == "input":
            place: int = node.attr("index")
            return self.values.inputs.get(shared.root) == place
        return of_torch(call.target) and shared.root not in self.values.inputs

    def _open(self, call: Call, operands: Sequence[Node], replaced: dict[int, Node]) -> tuple[Expr, ...]:
        """The sizes of 1 of computed operands, in eager's memory, that do not tell how larger ones would lie there: so
        would the results of the call.
        """
        if TABLE[call.name].row_major:
            return ()
        unclear_sizes: list[Expr] = []
        for value in refs((call.args, call.kwargs)):
            node = replaced[value] if value in replaced else self._as_it_lies(value)
            if value >= 0 and node.strides is None:  # what a call that we made up reads lies row-major
                unclear_sizes += (node.shape[axis] for axis in ambiguous(self.trace.metas[value]))
        for node in operands:
            unclear_sizes += self.builder.lying.get(node.inputs[0], ()) if node.op == "result" else ()
        return tuple(dict.fromkeys(unclear_sizes))

    def _settle_order(self, call: Call, node: Node, meta: TensorMeta) -> None:
        """Requires that sizes are 1 where they leave open in which order the operand of a random call lies."""
        try:
            for axis in ambiguous(meta):
                self.builder.require("==", node.shape[axis], ONE, "the order of dimensions in memory")
        except Unprovable as error:
            fact = f"Sizes that are known only while it runs decide which element gets which random number ({error})."
            raise Stop(reason("memory-order", fact, call.line)) from error

    def lies_as(self, result: Node, value: int) -> bool:
        """Whether a library's result lies as a value does: a rule may give that of an earlier call again."""
        meta, strides = self.trace.metas[value], self.builder.sizes(result.strides or ())
        return dense_order(meta.sizes, strides) == dense_order(meta.sizes, meta.strides)

    def made(self, value: int) -> None:
        """A value has new contents."""
        node, meta = computed(self.values.contents[value]), self.trace.metas[value]
        if node.strides is None:
            self.lies.setdefault(node, dense_order(meta.sizes, meta.strides))

    def _as_it_lies(self, value: int) -> Node:
        """The value's node; where that is another tensor, whose dimensions lie in another order than eager's own do, a
        copy: torch's results lie as its operands do.
        """
        node, meta = self.values.contents[value], self.trace.metas[value]
        order = dense_order(meta.sizes, meta.strides)
        if order is None or (node.op not in ("input", "result") and node.strides is not None):
            return node
        if node.strides is None:
            lies = self.lies.get(computed(node), order)
        else:
            lies = dense_order(meta.sizes, self.builder.sizes(node.strides))
        if lies == order or (node.strides is None and lies is None):
            return node
        copy = self.copies.get((node, order))
        if copy is None:
            copy = self.builder.opaque("expand", (node,), (), node.dtype, node.shape, None, node.device)
            self.copies[node, order] = copy
        return copy

    def _template(self, value: Value, operands: list[Node], replaced: dict[int, Node]) -> Value:
        if isinstance(value, Ref):
            node = replaced.get(value.value) or self._as_it_lies(value.value)
            if node not in operands:
                operands.append(node)
            return Arg(operands.index(node))
        if isinstance(value, (Expr, Real)):
            return self.number(value)
        if isinstance(value, torch.Tensor):
            raise Stop(reason("unknown-tensor", "an operand of a call", self.builder.line))
        return value


def _constant(nodes: Sequence[Node]) -> bool:
    return all(size.constant is not None for node in nodes for size in node.shape)
