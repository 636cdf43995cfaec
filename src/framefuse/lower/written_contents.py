"""Puts the new contents of what an in-place call writes in the place of the old ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from framefuse.errors import Stop
from framefuse.ir.builder import Shape, Unprovable
from framefuse.ir.graph import Node
from framefuse.ir.nested import mapped
from framefuse.ir.stops import reason
from framefuse.ir.strides import dense_order
from framefuse.ir.torch_calls import counts, norm
from framefuse.ir.trace import Call, Ref
from framefuse.ir.wrapped_calls import OnCopies, commits
from framefuse.lower.autocast import Autocast
from framefuse.lower.gradients import Gradients
from framefuse.lower.lasting import Lasting
from framefuse.lower.library_calls import Fresh, LibraryCalls
from framefuse.lower.overlaps import overlaps
from framefuse.lower.own_memory import computed
from framefuse.lower.rule_calls import RuleCalls
from framefuse.lower.rules import Shapes


class InPlace:
    """The writes of a trace. ``computed`` takes what they write, ``define`` what a call gives beside its writes, and
    ``leaving`` are the values that outlive the trace.
    """

    def __init__(
        self,
        rules: RuleCalls,
        calls: LibraryCalls,
        autocast: Autocast,
        gradients: Gradients,
        lasting: Lasting,
        leaving: set[int],
        computed: list[Node],
        define: Callable[[Call, tuple[int, ...], int, Node], None],
    ) -> None:
        self.rules, self.calls, self.autocast = rules, calls, autocast
        self.gradients, self.lasting, self.leaving = gradients, lasting, leaving
        self.builder, self.trace, self.values = rules.builder, rules.trace, rules.values
        self.computed, self.define = computed, define

    def write(self, index: int, call: Call, written: tuple[int, ...], fresh: Fresh) -> None:
        """The call ``index`` computes new contents of its ``written`` operands, and gives what is ``fresh``. Autocast
        casts for none.
        """
        self.rules.casts = {}
        if len(written) == 1 and not fresh:
            node = self._new_contents(index, call, written[0])
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
        target = call.function
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
            self.define(call, path, value, node)
        for value, node, count in zip(written, nodes[len(fresh) :], counted, strict=True):
            self._assign(call, value, node, index, count)

    def _separate(self, call: Call, written: tuple[int, ...], node: Node | None) -> None:
        """Raises Stop where a call reads memory that it writes at other places."""
        index = mapped(call.args[1], self.rules.argument) if call.assigns else None
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

    def _fresh_shapes(self, call: Call, fresh: Fresh) -> Sequence[Shape | None]:
        """The shapes of what an in-place call gives beside its writes, None where no rule knows them."""
        if not fresh:
            return ()
        result = self.rules.result(call)
        metas = [self.trace.metas[value] for _, value in fresh]
        shapes = self.calls.opened(call, result, metas) if isinstance(result, Shapes) else None
        return shapes or self.calls.probed_shapes(call, metas) or [None] * len(fresh)

    def _new_contents(self, index: int, call: Call, value: int) -> Node | None:
        """The written operand's contents by the rule of the call, in its own dtype and shape; None without one."""
        old = self.values.contents[value]
        if self.rules.is_complex(call, ()):
            return self._new_pair(index, call, value, old)
        written = self.rules.result(call)
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

    def _new_pair(self, index: int, call: Call, value: int, old: Node) -> Node | None:
        """The written complex operand's contents by its parts, where they have its shape; None without such a form."""
        written = self.rules.on_parts(index, call, [self.trace.metas[value]]) if old.dtype.kind == "complex" else None
        if not isinstance(written, Node) or written is old:
            return None
        return written if written.shape == old.shape and written.dtype is old.dtype else None

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
