"""Turns a trace into a torch.fx.GraphModule in torch's own vocabulary, and its callable into a plan."""

from __future__ import annotations

import logging
import math
import operator
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.fx

from framefuse.errors import Stop, kind_of
from framefuse.ir.dtypes import BY_TORCH
from framefuse.ir.elements import ELEMENT
from framefuse.ir.facts import Source
from framefuse.ir.nested import mapped, numbers_in
from framefuse.ir.numbers import (
    C_FUNCTIONS,
    Atom,
    Binary,
    Expr,
    Floordiv,
    Maximum,
    Minimum,
    Modulo,
    Real,
    Symbol,
    as_float32,
    float_of_bits,
)
from framefuse.ir.plan import CallStep, Plan, Slot, Template
from framefuse.ir.stops import reason
from framefuse.ir.target import default_generator
from framefuse.ir.trace import Build, Call, Effect, Ref, Trace, refs
from framefuse.ir.values import Arguments, Function, Value
from framefuse.runtime.float_inputs import as_tensors, scaled, takes_tensors
from framefuse.runtime.number_program import NumberProgram
from framefuse.runtime.templates import RunTime, result_template

logger = logging.getLogger("framefuse")
ATOM_FUNCTIONS: dict[type, Function] = {
    Floordiv: operator.floordiv, Modulo: operator.mod, Minimum: min, Maximum: max,
}  # fmt: skip
REAL_FUNCTIONS: dict[str, Function] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv, "neg": operator.neg,
    "abs": abs, "min": min, "max": max, "pow": operator.pow, "floordiv": operator.floordiv, "mod": operator.mod,
    "float32": as_float32,
    **{name: getattr(math, name) for name in ("sqrt", "fmod", "atan2", "copysign", *C_FUNCTIONS)},
}  # fmt: skip
# Tensor's operator methods as the operators that a reader of the graph knows; reflected ones swap their operands.
OPERATORS: dict[str, Function] = {
    f"__{name}__": getattr(operator, name if name not in ("and", "or") else f"{name}_")
    for name in (
        "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "neg", "invert",
        "eq", "ne", "lt", "le", "gt", "ge", "getitem", "lshift", "rshift",
        "iadd", "isub", "imul", "itruediv", "ipow",
    )
}  # fmt: skip
REFLECTED = {
    f"__r{name}__": OPERATORS[f"__{name}__"]
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul")
} | {"__rdiv__": operator.truediv}
# Methods as which torch reports operators, so that the graph says what the program most often does.
METHODS: dict[str, Function] = {
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "matmul", "neg", "ne", "lt", "le", "gt", "ge")},
    "div": operator.truediv,
    "remainder": operator.mod,
}


# How a module keeps its parts, which its paths have between the names of these.
WITHIN = re.compile(r"\b_(modules|parameters|buffers)\b")
Argument = torch.fx.node.Argument


@dataclass(frozen=True, slots=True)
class Captured:
    """The graph that a user's backend receives: ``module``, and for each placeholder what feeds it (a Ref or a Real).

    ``outputs`` are the values that the graph returns, in order; ``floats`` are the places of floats for which it takes
    tensors, or None where it takes them, and what is made of it must not hold those of the examples.
    """

    module: torch.fx.GraphModule
    feeds: tuple[Ref | Expr | Real, ...]
    outputs: tuple[int, ...]
    floats: tuple[int, ...] | None = ()


def fx_graph(trace: Trace, floats: bool = True, ints: bool = True) -> Captured:
    """The trace as an FX graph; raises Stop when a number of it cannot be written over the graph's inputs. Without
    ``floats`` it takes tensors for these, where its calls do; without ``ints`` what is made of it must hold none.
    """
    return _Writer(trace, floats, ints).write()


class _Writer:
    def __init__(self, trace: Trace, floats: bool, ints: bool) -> None:
        self.trace, self.ints = trace, ints
        self.as_tensors = not floats and all(takes_tensors(call, trace.metas) for call in trace.calls)
        self.told = not floats and not self.as_tensors
        self.graph = torch.fx.Graph()
        self.nodes: dict[int, torch.fx.Node] = {}
        self.numbers: dict[Expr | Real, Argument] = {}
        self.taken: set[str] = set()
        self.feeds: list[Ref | Expr | Real] = []
        self.size_of = {symbol: place for place, symbol in trace.size_symbols.items()}

    def write(self) -> Captured:
        for entry in self.trace.assumptions.inputs:
            self.nodes[entry.value] = self.graph.placeholder(_placeholder(entry.source, self.taken))
            self.feeds.append(Ref(entry.value))
        for number in _free_numbers(self.trace, self.size_of, whole=self.as_tensors):
            self.numbers[number] = self.graph.placeholder(_free(_number_name(number), self.taken))
            self.feeds.append(number)
        ambient, begun = self.trace.assumptions.state.casts, self.trace.assumptions.state.grad_enabled
        mode = begun
        for call in self.trace.calls:
            if call.grad_enabled != mode:
                mode = call.grad_enabled
                self.graph.call_function(torch._C._set_grad_enabled, (mode,))
            if call.autocast != ambient:
                raise Stop(reason("autocast", f"What calls {call.name}", call.line))
            self._call(call)
        if mode != begun:
            self.graph.call_function(torch._C._set_grad_enabled, (begun,))
        outputs = tuple(dict.fromkeys(_tensors(self.trace)))
        for call in self.trace.calls:
            made = outputs if not self.trace.assumptions.state.inference_mode else ()
            bare = any(self.trace.metas[value].bare and value in made for value in refs(call.result))
            if bare or call.inference:
                raise Stop(reason("no-fx-form", f"{call.name} gives a tensor of inference mode.", call.line))
        self.graph.output(tuple(self.nodes[value] for value in outputs))
        module = torch.fx.GraphModule(torch.nn.Module(), self.graph)
        floats = tuple(place for place, feed in enumerate(self.feeds) if isinstance(feed, Real))
        ints = not self.ints and any(isinstance(feed, Expr) for feed in self.feeds)  # of floats: sizes are constants
        held = (None if ints else floats) if self.as_tensors else None if self.told and (floats or ints) else ()
        return Captured(module, tuple(self.feeds), outputs, held)

    def _call(self, call: Call) -> None:
        args, kwargs = mapped((call.args, call.kwargs), self._argument)
        node = self._node(call, args, kwargs)
        node.meta["stack_trace"] = str(call.line) if call.line else None
        node.meta.update(line=call.line, region=call.region)
        self._results(call.result, node)

    def _node(self, call: Call, args: tuple[Argument, ...], kwargs: dict[str, Argument]) -> torch.fx.Node:
        if self.as_tensors and any(isinstance(value, Real) and value.op != "const" for value in call.kwargs.values()):
            args, name = scaled(self.graph, call, args, kwargs)
            return self.graph.call_method(name, args)
        if call.reshapes:  # a view would be another object, with a base and no count of this write
            return self.graph.call_method(f"{call.name}_", args, kwargs)
        if call.target == "setitem" or call.name == "__setitem__":
            return self.graph.call_function(operator.setitem, args)
        if call.name in OPERATORS and not kwargs:
            return self.graph.call_function(OPERATORS[call.name], args)
        if call.name in REFLECTED and len(args) == 2:
            return self.graph.call_function(REFLECTED[call.name], (args[1], args[0]))
        if call.name in METHODS and getattr(torch.Tensor, call.name) is call.target and not kwargs:
            if len(args) == 1 + (call.name != "neg"):
                return self.graph.call_function(METHODS[call.name], args)
        if type(call.target).__name__ == "method-wrapper":  # a property getter: the target is its __get__
            return self.graph.call_function(getattr, (args[0], call.name))
        if args and isinstance(args[0], torch.fx.Node) and getattr(torch.Tensor, call.name, None) is call.target:
            return self.graph.call_method(call.name, args, kwargs)
        return self.graph.call_function(call.target, args, kwargs)

    def _results(self, result: Value, node: torch.fx.Node) -> None:
        if isinstance(result, Ref):
            self.nodes[result.value] = node
        elif isinstance(result, (tuple, list)):
            for index, part in enumerate(result):
                if isinstance(part, (Ref, tuple, list)):
                    self._results(part, self.graph.call_function(operator.getitem, (node, index)))

    def _argument(self, value: Value) -> Argument:
        if isinstance(value, Ref):
            return self.nodes[value.value]
        if isinstance(value, Expr):
            return self._int(value)
        if isinstance(value, Real):
            return self._real(value)
        if isinstance(value, Source):
            raise Stop(reason("argument", f"the object {value}, in the graph of a backend", self.trace.line))
        constant: Argument = value
        return constant

    def _int(self, value: Expr) -> Argument:
        if value.constant is not None:
            return value.constant
        if value not in self.numbers:
            total: Argument = None
            for atoms, factor in value.terms:
                term: Argument = None
                for atom in atoms:
                    part = self._atom(atom)
                    term = part if term is None else self.graph.call_function(operator.mul, (term, part))
                if term is None:
                    term = factor
                elif factor != 1:
                    term = self.graph.call_function(operator.mul, (term, factor))
                total = term if total is None else self.graph.call_function(operator.add, (total, term))
            self.numbers[value] = total
        return self.numbers[value]

    def _atom(self, atom: Atom) -> Argument:
        if isinstance(atom, Symbol):
            if atom.expr not in self.numbers:
                value, dimension = self.size_of[atom]
                if dimension == ELEMENT:
                    self.numbers[atom.expr] = self.graph.call_method("item", (self.nodes[value],))
                    return self.numbers[atom.expr]
                self.numbers[atom.expr] = self.graph.call_method("size", (self.nodes[value], dimension))
            return self.numbers[atom.expr]
        assert isinstance(atom, Binary)
        parts = (self._int(atom.left), self._int(atom.right))
        return self.graph.call_function(ATOM_FUNCTIONS[type(atom)], parts)

    def _real(self, value: Real) -> Argument:
        if value.op == "const":
            constant: float = value.args[0]
            return constant
        if value in self.numbers:
            return self.numbers[value]
        if value.op == "int":
            return self.graph.call_function(float, (self._int(value.args[0]),))
        if value.op == "bits":
            return self.graph.call_function(float_of_bits, (self._int(value.args[0]),))
        if value.op not in REAL_FUNCTIONS:
            raise Stop(reason("no-fx-form", f"{value} has no FX form.", None))
        return self.graph.call_function(REAL_FUNCTIONS[value.op], tuple(self._real(arg) for arg in value.args))


def example_inputs(
    trace: Trace,
    captured: Captured,
    registers: Sequence[Value],
    numbers: Sequence[int],
    number_of: Mapping[Symbol | str, int],
    register_of: Mapping[Source, int],
) -> Arguments:
    """What the placeholders stand for, given the registers and raw numbers of a guard check that held."""
    sources = {entry.value: entry.source for entry in trace.assumptions.inputs}
    ints = {key: numbers[slot] for key, slot in number_of.items() if isinstance(key, Symbol)}
    words = {key: numbers[slot] for key, slot in number_of.items() if isinstance(key, str)}
    reals = {key: struct.unpack("<d", struct.pack("<q", word))[0] for key, word in words.items()}
    examples: list[Value] = []
    for feed in captured.feeds:
        if isinstance(feed, Ref):
            examples.append(registers[register_of[sources[feed.value]]])
        elif isinstance(feed, Real):
            examples.append(feed.evaluate(ints, reals))
        else:
            examples.append(feed.evaluate(ints))
    return tuple(examples)


def backend_plan(
    trace: Trace,
    captured: Captured,
    function: Function,
    number_of: Mapping[Symbol | str, int],
    number_count: int,
    register_of: Mapping[Source, int],
    known: Mapping[Symbol, Expr],
) -> Plan:
    """The plan that calls a backend's ``function`` on the graph's inputs and builds the result from what it returns.

    ``known`` gives sizes inside the graph in terms of the inputs' sizes.
    """
    inputs = trace.assumptions.inputs
    numbers = NumberProgram(number_of, number_count)
    slot_of = {entry.value: index for index, entry in enumerate(inputs)}
    slots = [Slot("input", BY_TORCH[trace.metas[entry.value].dtype].name, (), ()) for entry in inputs]
    outs = []
    for position, value in enumerate(captured.outputs):
        if value not in slot_of:  # an input that is returned stays that very tensor
            slot_of[value] = len(slots)
            slots.append(Slot("call", BY_TORCH[trace.metas[value].dtype].name, (), ()))
            outs.append(((position,), slot_of[value]))

    def leaf(value: RunTime) -> Template:
        if isinstance(value, Ref):
            return ("tensor", slot_of[value.value])
        if isinstance(value, Source):
            return ("register", register_of[value])
        assert isinstance(value, (Expr, Real)), "a number"
        given, value = value, value.substitute(known)
        if not value.symbols <= number_of.keys():
            _refuse_element(trace, given)
            raise Stop(reason("no-fx-form", f"{value} is a size of a tensor inside the graph.", None))
        if isinstance(value, Real):
            return ("real", numbers.slot_of(value))
        return ("const", value.constant) if value.constant is not None else ("int", numbers.slot_of(value))

    args = tuple(leaf(value) for value in captured.feeds)
    function = as_tensors(function, captured.floats or ())
    written = {entry.value for entry in trace.written_inputs}
    tensors = ((place, feed.value) for place, feed in enumerate(captured.feeds) if isinstance(feed, Ref))
    places = tuple(place for place, value in tensors if value in written)
    modes = {trace.assumptions.state.grad_enabled, *(call.grad_enabled for call in trace.calls)}
    whole = _in_its_mode(function) if len(modes) > 1 else function
    asking = tuple(
        place
        for place, value in enumerate(captured.outputs)
        if trace.metas[value].requires_grad and trace.assumptions.state.grad_enabled
    )
    whole = _with_gradients(whole, asking) if asking else whole
    whole = _undoing(whole, places) if places else whole
    commits = any(getattr(call.target, "commits", False) for call in trace.calls)
    step = CallStep("backend", whole, args, (), tuple(outs), keeps_mode=True, commits=commits)
    devices = dict.fromkeys(("cpu", *(meta.device for meta in trace.metas)))
    drawn_from = map(default_generator, devices) if any(call.random for call in trace.calls) else ()
    generators = tuple(("const", generator) for generator in drawn_from if generator is not None)
    result = result_template(trace.result, trace.effects, leaf)
    registers = tuple(register_of[entry.source] for entry in inputs)
    return Plan(
        trace.name, number_count, numbers.count, tuple(numbers.early), tuple(slots), registers, (step,), -1, (), result,
        generators,
    )  # fmt: skip


def telling(function: Function, name: str, count: int) -> Function:
    """The code of ``count`` results that a backend made, which says once if it fails: the call then runs eagerly."""
    told = False

    def call(*args: Value) -> Value:
        nonlocal told
        try:
            results = function(*args)
            if not isinstance(results, (tuple, list)) or len(results) != count:
                raise TypeError(f"it gave {kind_of(results)}, not a tuple of {count}")
        except Exception as error:
            if not told:
                what = f"{type(error).__name__}: {error}"
                logger.warning("The code of the backend %s failed, such calls run eagerly: %s. Mend it", name, what)
            told = True
            raise
        return results

    return call


def _in_its_mode(function: Function) -> Function:
    """The function, which changes the gradient mode, with the mode put back where it fails."""

    def call(*args: Value) -> Value:
        with torch.set_grad_enabled(torch.is_grad_enabled()):
            return function(*args)

    return call


def _with_gradients(function: Function, places: tuple[int, ...]) -> Function:
    """The function, which fails where a result has no gradient that has one under eager: the call then runs eagerly."""
    logged = False

    def call(*args: Value) -> Value:
        nonlocal logged
        results = function(*args)
        if not all(results[place].requires_grad for place in places):
            if not logged:
                logger.warning("A backend's result does not require grad where eager's does: such calls run eagerly")
            logged = True
            raise RuntimeError("a result of the backend does not require grad")
        return results

    return call


def _refuse_element(trace: Trace, value: Expr | Real) -> None:
    """A number that was read from a tensor, and leaves the call, is read in a step of its own."""
    for (number, dimension), symbol in trace.size_symbols.items():
        if dimension == ELEMENT and symbol in value.symbols:
            line = next((call.line for call in trace.calls if call.result == Ref(number)), None)
            raise Stop(reason("item", "Tensor.item", line))


def _undoing(function: Function, places: tuple[int, ...]) -> Function:
    """``function``, which leaves its arguments at ``places`` as they were when it fails: the call then runs eagerly."""

    def whole(*args: Value) -> Value:
        tensors = [args[place] for place in places]
        kept = [(tensor.detach().clone(), tensor._version) for tensor in tensors]
        try:
            return function(*args)
        except Exception:
            for tensor, (value, _) in zip(tensors, kept, strict=True):
                tensor.data.copy_(value)
            torch._C._autograd._unsafe_set_version_counter(tuple(tensors), tuple(version for _, version in kept))
            raise

    return whole


def _placeholder(source: Source, taken: set[str]) -> str:
    """The path of an input as a name that no other one has: of a module's parameter, that under which it is saved."""
    text = re.sub(r"\W+", "_", WITHIN.sub("", str(source))).strip("_").lower()
    return _free(text if text and not text[0].isdigit() else f"input_{text}", taken)


def _number_name(number: Expr | Real) -> str:
    """The name of the placeholder of a number: that of its symbol, if it is one."""
    text = f"s_{number}"
    return text if text.isidentifier() else "number"


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def _tensors(trace: Trace) -> list[int]:
    """The values that the result and the effects hold."""
    numbers: list[int] = []

    def visit(part: Value) -> None:
        if isinstance(part, Ref):
            numbers.append(part.value)
        elif isinstance(part, Build):
            for child in part.parts:
                visit(child)
            visit(part.base)
        elif isinstance(part, Effect):
            visit(part.target)
            visit(part.key)
            visit(part.value)
        elif isinstance(part, (tuple, list)):
            for child in part:
                visit(child)

    visit(trace.result)
    visit(trace.effects)
    return numbers


def _free_numbers(trace: Trace, size_of: Mapping[Symbol, tuple[int, int]], whole: bool) -> list[Expr | Real]:
    """Int and float arguments that the graph uses: they become placeholders; floats as they are used, if ``whole``."""
    numbers: dict[Expr | Real, None] = {}

    def visit(value: Value) -> None:
        if isinstance(value, Expr):
            for symbol in sorted(value.symbols, key=str):
                if symbol not in size_of:
                    numbers[symbol.expr] = None
        elif isinstance(value, Real):
            if value.op == "symbol" or (whole and value.op != "const"):
                numbers[value] = None
                return
            for arg in value.args:
                visit(arg)

    for call in trace.calls:
        for number in numbers_in((call.args, call.kwargs)):
            visit(number)
    return list(numbers)
