"""Turns an FX graph that came in the place of a trace's own into a trace of the same inputs, results and effects."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
import torch.fx

from framefuse.capture.record import record
from framefuse.driver.ambient import as_recorded
from framefuse.errors import Stop, UserError
from framefuse.ir.comparisons import RealRelation, Relation
from framefuse.ir.facts import Fact, Source, TensorSpec
from framefuse.ir.nested import mapped, symbols_in
from framefuse.ir.numbers import Expr, Real, Symbol, Whole, expr
from framefuse.ir.source import Line
from framefuse.ir.stops import reason
from framefuse.ir.trace import Build, Call, Effect, Ref, TensorMeta, Trace
from framefuse.ir.values import Arguments, Value
from framefuse.lower import lower
from framefuse.runtime.fx_graph import Captured

WHY = "the graph that a pass gave"
ASSIGNED = re.compile(r"\s*(\w+)")  # the node that a line of an FX module's code computes
FRESH = "_of_pass"  # ends the names of the numbers of such a graph


def trace_of(module: torch.fx.GraphModule, captured: Captured, trace: Trace, examples: Arguments) -> Trace:
    """The trace of ``module``, which came in the place of ``captured.module``: recorded on ``examples``, which it may
    write. Raises UserError for a graph that cannot be recorded whole, and Stop where none can stand in the trace.
    """
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else None
    feeds = enumerate(captured.feeds, 1)  # the first argument is the module
    moving = frozenset(Source("arg", key=place) for place, feed in feeds if not isinstance(feed, Ref))
    with (
        torch.random.fork_rng(devices=[] if device is None else [device]),
        as_recorded(trace.assumptions.state, device),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        recording = record(module.forward, examples, {}, moving=moving)
    if recording.exception is not None:
        raise recording.exception
    if recording.trace is None:
        why = recording.reason.fact if recording.reason is not None else "it is no one stretch"
        raise UserError(f"{WHY} cannot be compiled whole: {why} Write it with torch's functions alone")
    return _Transplant(module, captured, trace, recording.trace).trace()


class _Transplant:
    """Puts the calls of ``new`` in the place of those of ``old``, whose inputs and numbers are its arguments."""

    def __init__(self, module: torch.fx.GraphModule, captured: Captured, old: Trace, new: Trace) -> None:
        self.captured, self.old, self.new = captured, old, new
        self.lines = _lines(module, old.line)
        self.ints: dict[Symbol, Expr] = {}  # what the new trace's numbers are in the old one
        self.reals: dict[str, Real] = {}
        self.relations: dict[Relation, None] = {}
        self.sources = {entry.value: entry.source for entry in old.assumptions.inputs}
        self.specs = {entry.value: entry.spec for entry in old.assumptions.inputs}
        self.values: dict[int, int] = {}  # the old trace's inputs and results by the new one's numbers

    def trace(self) -> Trace:
        old, new = self.old, self.new
        for entry in new.assumptions.inputs:
            feed = self._feed(entry.source)
            assert isinstance(feed, Ref), "a tensor"
            self.values[feed.value] = entry.value
            self._sizes(entry.spec, self.specs[feed.value])
        facts = [fact for fact in map(self._fact, new.assumptions.facts) if fact is not None]
        derived = [(self._fresh(name), self._number(value)) for name, value in new.assumptions.definitions]
        self._name_others()
        results = new.result.parts
        self.values.update((value, part.value) for value, part in zip(self.captured.outputs, results, strict=True))
        metas = self._metas()
        known = self._known()
        relations = (*self.relations, *map(self._number, new.assumptions.relations))
        assumed = old.assumptions.with_relations(relations, known)
        symbols = {
            (self.values[value], size): symbol
            for (value, size), symbol in old.size_symbols.items()
            if value in self.specs
        }
        inner = {place: self._symbol(symbol) for place, symbol in new.size_symbols.items() if place not in symbols}
        hints = {self._symbol(symbol): hint for symbol, hint in new.hints.items()}
        floats = ((self.reals[name], hint) for name, hint in new.real_hints.items())
        real_hints = {known.args[0]: hint for known, hint in floats if known.op == "symbol"}
        seen = {self.values[value]: old.versions[value] for value in self.captured.outputs if value in old.versions}
        return replace(
            old,
            assumptions=replace(
                assumed,
                facts=(*assumed.facts, *(fact for fact in facts if fact not in assumed.facts)),
                inputs=tuple(replace(entry, value=self.values[entry.value]) for entry in assumed.inputs),
                definitions=(*assumed.definitions, *derived),
                comparisons=(*assumed.comparisons, *map(self._number, new.assumptions.comparisons)),
            ),
            calls=tuple(map(self._call, new.calls)),
            metas=metas,
            size_symbols={**{place: symbol for place, symbol in inner.items() if symbol is not None}, **symbols},
            hints={**{symbol: hint for symbol, hint in hints.items() if symbol is not None}, **old.hints},
            real_hints={**real_hints, **old.real_hints},
            result=_mapped(old.result, lambda value: self._outside(value, known)),
            effects=_mapped(old.effects, lambda value: self._outside(value, known)),
            autograd=None,
            versions={**new.versions, **seen},
        )

    # ---- what the new trace's arguments are --------------------------------------------------------------------------

    def _feed(self, source: Source) -> Value:
        """What stands in the old trace for an argument of the graph, whole."""
        if source.kind != "arg" or source.key == 0:
            raise UserError(f"{WHY} reads {source}, which is no input of it. Compute it from the inputs, or of numbers")
        return self.captured.feeds[source.key - 1]

    def _sizes(self, spec: TensorSpec, theirs: TensorSpec) -> None:
        """The sizes and strides of an input by what they are in the old trace."""
        pairs = [*zip(spec.sizes, theirs.sizes, strict=True)]
        if spec.strides is not None and theirs.strides is not None:
            pairs += zip(spec.strides, theirs.strides, strict=True)
        for mine, known in pairs:
            if isinstance(mine, Symbol):
                self.ints[mine] = expr(known)
            elif isinstance(known, Symbol):
                self.relations[Relation("==", known.expr, expr(mine), WHY)] = None

    def _fact(self, fact: Fact) -> Fact | None:
        """What a fact of the new trace says of the old one's inputs, where that is more than what is known."""
        root = fact.source.root
        if root.kind != "arg" or root.key == 0 or fact.kind == "tensor":
            return None  # of the graph's own code, and of the library: neither changes
        feed = self.captured.feeds[root.key - 1]
        if isinstance(feed, Ref):
            value = fact.value
            if fact.kind == "scalar" and isinstance(value, str):
                self.reals[value] = Real("symbol", (value + FRESH,))
                value += FRESH
            return Fact(self._source(fact.source), fact.kind, _mapped(value, self._source_in), self._line(fact.line))
        if fact.kind == "integer" and isinstance(feed, Expr):
            self.ints[fact.value] = feed
        elif fact.kind == "real" and isinstance(feed, Real):
            self.reals[fact.value] = feed
        elif fact.kind == "int" and isinstance(feed, Expr):
            self.relations[Relation("==", feed, expr(fact.value), WHY)] = None
        else:
            raise Stop(reason("no-fx-form", f"A pass makes code that depends on: {fact}.", self.old.line))
        return None

    def _source(self, source: Source) -> Source:
        if source.base is not None:
            return Source(source.kind, self._source(source.base), _mapped(source.key, self._source_in))
        return self.sources[self._feed(source).value]

    def _source_in(self, value: Value) -> Value:
        return self._source(value) if isinstance(value, Source) else value

    # ---- numbers -----------------------------------------------------------------------------------------------------

    def _fresh(self, name: Symbol | str) -> Symbol | str:
        """The new name of a number that is none of an argument."""
        if isinstance(name, Symbol):
            symbol = Symbol(name.name + FRESH)
            self.ints[name] = symbol.expr
            return symbol
        self.reals[name] = Real("symbol", (name + FRESH,))
        return name + FRESH

    def _name_others(self) -> None:
        for symbol in self.new.hints:
            if symbol not in self.ints:
                self._fresh(symbol)
        for name in self.new.real_hints:
            if name not in self.reals:
                self._fresh(name)

    def _symbol(self, symbol: Symbol) -> Symbol | None:
        """What a symbol of the new trace is; None where that is no one symbol."""
        whole = self.ints[symbol]
        return next(iter(whole.symbols)) if whole in {each.expr for each in whole.symbols} else None

    def _number(self, value: Value) -> Value:
        """A number, or a relation of numbers, of the new trace in the old one."""
        if isinstance(value, Expr):
            return value.substitute(self.ints)
        if isinstance(value, Real):
            if value.op == "symbol":
                return self.reals.get(value.args[0], value)
            return value if value.op == "const" else Real(value.op, tuple(map(self._number, value.args)))
        if isinstance(value, Whole):
            return Whole(value.op, tuple(map(self._number, value.args)), self._line(value.line))
        if isinstance(value, Relation):
            left, right = self._number(value.left), self._number(value.right)
            return replace(value, left=left, right=right, line=self._line(value.line))
        if isinstance(value, RealRelation):
            left, right = self._number(value.left), self._number(value.right)
            return replace(value, left=left, right=right, line=self._line(value.line))
        return value

    def _known(self) -> Mapping[Symbol, Expr]:
        """The sizes inside the old trace that something outside of its calls names, by the sizes of inputs."""
        old = self.old
        inner = {symbol for (value, _), symbol in old.size_symbols.items() if value not in self.specs}
        used = symbols_in((old.result, *[(effect.target, effect.key, effect.value) for effect in old.effects]))
        for relation in old.assumptions.relations:
            used |= symbols_in((relation.left, relation.right))
        for comparison in old.assumptions.comparisons:
            used |= symbols_in((comparison.left, comparison.right))
        for _, value in old.assumptions.definitions:
            used |= symbols_in(value.args if isinstance(value, Whole) else value)
        if used.isdisjoint(inner):
            return {}
        values = lower(old).values
        for symbol in used & inner:
            if symbol not in values:
                raise Stop(reason("no-fx-form", f"{symbol} is a size of a tensor inside the graph.", old.line))
        return values

    # ---- tensors and calls -------------------------------------------------------------------------------------------

    def _metas(self) -> tuple[TensorMeta, ...]:
        """Those of the new trace, and of the inputs that it does not read."""
        metas = list(self.new.metas)
        storages = {self.old.metas[mine].storage: metas[theirs].storage for mine, theirs in self.values.items()}
        families = {self.old.metas[mine].family: metas[theirs].family for mine, theirs in self.values.items()}
        for entry in self.old.assumptions.inputs:
            if entry.value not in self.values:
                meta = self.old.metas[entry.value]
                storage = storages.setdefault(meta.storage, 1 + max((each.storage for each in metas), default=0))
                family = families.setdefault(meta.family, 1 + max((each.family for each in metas), default=0))
                self.values[entry.value] = len(metas)
                metas.append(replace(meta, storage=storage, family=family))
        return tuple(metas)

    def _call(self, call: Call) -> Call:
        region = self.lines.get(call.line.line, (None, 0))[1] if call.line is not None else 0
        args, kwargs = _mapped((call.args, call.kwargs), self._number)
        return replace(call, args=args, kwargs=kwargs, line=self._line(call.line), region=region)

    def _line(self, line: Line | None) -> Line | None:
        """The user's line behind one of the graph's code."""
        if line is None or not line.file.startswith("<eval_with_key>"):
            return line
        return self.lines.get(line.line, (self.old.line, 0))[0]

    def _outside(self, value: Value, known: Mapping[Symbol, Expr]) -> Value:
        if isinstance(value, Ref):
            return Ref(self.values[value.value])
        return value.substitute(known) if isinstance(value, (Expr, Real)) else value


def _lines(module: torch.fx.GraphModule, first: Line) -> dict[int, tuple[Line, int]]:
    """The user's line, and the checkpoint, of each line of the module's ``forward``: those of its node, or of the one
    before it.
    """
    nodes = {node.name: node for node in module.graph.nodes}
    found: dict[int, tuple[Line, int]] = {}
    latest = (first, 0)
    for number, text in enumerate(module.code.splitlines(), 1):
        match = ASSIGNED.match(text)
        node = nodes.get(match[1]) if match else None
        if node is not None and node.meta.get("line") is not None:
            latest = node.meta["line"], node.meta.get("region", 0)
        found[number] = latest
    return found


def _mapped(value: Value, change: Callable[[Value], Value]) -> Value:
    """Nested arguments or a recipe with other leaves."""

    def leaf(part: Value) -> Value:
        if isinstance(part, Build):
            return replace(part, parts=_mapped(part.parts, change), base=_mapped(part.base, change))
        if isinstance(part, Effect):
            target, key, content = _mapped((part.target, part.key, part.value), change)
            return replace(part, target=target, key=key, value=content)
        return change(part)

    return mapped(value, leaf)
