"""Turns a graph into a Python program over torch that computes it, with the user's lines above each operation."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from framefuse.ir.elements import ELEMENT
from framefuse.ir.graph import Arg, Graph, Node, Part, Write
from framefuse.ir.nested import numbers_in
from framefuse.ir.numbers import Expr, Real, Symbol
from framefuse.ir.ops import TABLE
from framefuse.ir.source import Line
from framefuse.ir.values import Value

HOMES: tuple[tuple[str, Value], ...] = (
    ("torch", torch),
    ("torch.nn.functional", torch.nn.functional),
    ("torch.Tensor", torch.Tensor),
    ("torch._C._nn", torch._C._nn),
    ("torch.special", torch.special),
    ("torch.linalg", torch.linalg),
    ("torch.fft", torch.fft),
)


@dataclass(frozen=True, slots=True)
class Program:
    """The text of one function ``name`` whose parameters are the graph's inputs and, by keyword, ``numbers`` (sizes,
    strides and floats that no input's shape gives). It returns a tuple of the outputs. ``constants`` are the objects
    that have no name in torch; the text reads them from a global tuple of that name.
    """

    name: str
    text: str
    numbers: tuple[str, ...]
    constants: tuple[Value, ...]


def free_symbols(graph: Graph) -> dict[str, Value]:
    """The symbols of sizes and the names of floats that nodes of a graph are over, by their text."""
    by_node = (_symbols((node.shape, node.attrs if node.op != "cast" else ())) for node in graph.nodes)
    return {str(symbol): symbol for symbols in by_node for symbol in symbols}


def node_names(graph: Graph) -> dict[Node, str]:
    """What each node is called in the graph's text."""
    names: dict[Node, str] = {}
    for node in graph.nodes:
        names[node] = _name(node, len(names) - len(graph.inputs))
    return names


def _name(node: Node, number: int) -> str:
    return f"x{node.attr('index')}" if node.op == "input" else f"t{number}"


def graph_text(graph: Graph) -> str:
    """The graph as Python; executed with ``torch`` (and ``constants``) as globals it defines a function."""
    return program(graph).text


def program(graph: Graph) -> Program:
    """The graph as a function over torch tensors."""
    return _Printer(graph).program()


class _Printer:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.names: dict[Node, str] = {}
        self.constants: list[Value] = []
        self.lines: list[str] = []
        self.bound = {(node, dimension): symbol for symbol, node, dimension in graph.bound}
        outside = [output.node for output in graph.outputs] + [write.node for write in graph.writes]
        called = [operand for node in graph.nodes if node.op == "library" for operand in node.inputs]
        self.in_memory = {node for node in (*outside, *called) if node.op not in ("input", "result")}

    def program(self) -> Program:
        name = self.graph.name if self.graph.name.isidentifier() else "graph"
        parameters = [f"x{place}" for place in range(len(self.graph.inputs))]
        sizes = self._input_sizes()
        numbers = self._free_numbers(sizes)
        given = parameters + (["*", *numbers] if numbers else [])
        self.lines += [f"    {symbol} = {text}" for symbol, text in sizes.items()]
        last: Line | None = None
        for node in self.graph.nodes:
            if node.op != "input" and node.line is not None and node.line != last:
                last = node.line
                self.lines.append(f"    # {last.file.rpartition('/')[2]}:{last.line}  {last.text}")
            self._node(node)
        for write in self.graph.writes:
            target = f"x{write.input}" if write.part is None else _part(write, write.part)
            self.lines.append(f"    {target}.copy_({self.names[write.node]})")
        results = "".join(f"{self.names[output.node]}, " for output in self.graph.outputs)
        self.lines.append(f"    return ({results.rstrip()})" if results else "    return ()")
        header = [f"# requires {relation}" for relation in self.graph.relations]
        text = "\n".join([*header, f"def {name}({', '.join(given)}):", *self.lines]) + "\n"
        return Program(name, text, tuple(numbers), tuple(self.constants))

    def _input_sizes(self) -> dict[Symbol, str]:
        """How each symbol is read off an input: a size where one is that symbol, else a stride."""
        read_as: dict[Symbol, str] = {}
        for what in ("shape[{}]", "stride({})"):
            for place, node in enumerate(self.graph.inputs):
                for axis, size in enumerate((node.shape if "shape" in what else node.strides) or ()):
                    symbol = next(iter(size.symbols), None)
                    if symbol is not None and size is symbol.expr:
                        read_as.setdefault(symbol, f"x{place}.{what.format(axis)}")
        return read_as

    def _free_numbers(self, sizes: Mapping[Symbol, str]) -> list[str]:
        known = set(sizes) | {symbol for symbol, _, _ in self.graph.bound}
        names: dict[str, None] = {}
        for node in self.graph.nodes:
            for value in (node.shape, node.attrs if node.op != "cast" else ()):
                for symbol in _symbols(value):
                    if symbol not in known:
                        names[str(symbol)] = None
        return list(names)

    # ---- nodes -------------------------------------------------------------------------------------------------------

    def _node(self, node: Node) -> None:
        if node.op == "input":
            self.names[node] = _name(node, 0)
            return
        name = self.names[node] = _name(node, len(self.names) - len(self.graph.inputs))
        text = self._text(node)
        if node in self.in_memory:
            kind = TABLE[node.op].kind
            text += ".clone(memory_format=torch.contiguous_format)" if kind == "view" else ".contiguous()"
        comment = "" if node.op == "library" else f"  # {node.dtype}[{', '.join(map(str, node.shape))}]"
        self.lines.append(f"    {name} = {text}{comment}")
        for axis in range(len(node.shape)):
            symbol = self.bound.get((node, axis))
            if symbol is not None:
                self.lines.append(f"    {symbol} = {name}.shape[{axis}]")
        if (node, ELEMENT) in self.bound:
            self.lines.append(f"    {self.bound[node, ELEMENT]} = {name}.item()")

    def _text(self, node: Node) -> str:
        operands = [self.names[operand] for operand in node.inputs]
        special = SPECIAL.get(node.op)
        if special is not None:
            return special(self, node, operands)
        words = dict(zip("abc", operands, strict=False))
        words["shape"], words["dtype"] = self.value(node.shape), str(node.dtype.torch)
        words.update((name, self.value(value)) for name, value in node.attrs if name != "dtype")
        return _filled(TABLE[node.op].formula, tuple(words.items()))

    def value(self, value: Value, operands: Sequence[str] = ()) -> str:
        """A constant, number or argument template as Python text."""
        if isinstance(value, Arg):
            return operands[value.index]
        if isinstance(value, Real):
            return real_text(value)
        if isinstance(value, Expr) or value is None or value is ... or isinstance(value, (bool, int, str)):
            return "..." if value is ... else repr(value) if not isinstance(value, Expr) else str(value)
        if isinstance(value, float):
            return repr(value) if math.isfinite(value) else f'float("{value}")'
        if isinstance(value, slice):
            return f"slice({', '.join(self.value(part, operands) for part in (value.start, value.stop, value.step))})"
        if type(value) in (tuple, list, torch.Size):
            parts = [self.value(part, operands) for part in value]
            if type(value) is list:
                return f"[{', '.join(parts)}]"
            return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"
        if type(value) is dict:
            return f"{{{', '.join(f'{key!r}: {self.value(part, operands)}' for key, part in value.items())}}}"
        if isinstance(value, torch.device):
            return f"torch.device({str(value)!r})"
        if isinstance(value, (torch.dtype, torch.memory_format, torch.layout)):
            return str(value)
        return self.constant(value)

    def constant(self, value: Value) -> str:
        """A name of torch, or a place in the tuple of constants."""
        for home, holder in HOMES:
            name = getattr(value, "__name__", None)
            if isinstance(name, str) and name.isidentifier() and getattr(holder, name, None) is value:
                return f"{home}.{name}"
        self.constants.append(value)
        return f"constants[{len(self.constants) - 1}]"


# ---- rows whose text is more than their formula ----------------------------------------------------------------------


def _part(write: Write, part: Part) -> str:
    """A part of an input, as a view of it."""
    sizes, strides = (", ".join(map(str, values)) for values in (write.node.shape, part.strides))
    name = f"x{write.input}"
    return f"{name}.as_strided(({sizes},), ({strides},), {name}.storage_offset() + {part.offset})"


def _slice(printer: _Printer, node: Node, operands: list[str]) -> str:
    parts, flipped = [], []
    columns = zip(node.attr("starts"), node.attr("steps"), node.shape, node.inputs[0].shape, strict=True)
    for axis, (start, step, length, size) in enumerate(columns):
        if step < 0:  # torch slices forwards only
            flipped.append(axis)
            start, step = start + (length - 1) * step, -step
        end = start + length * step
        whole = start.constant == 0 and step == 1 and length is size
        parts.append(":" if whole else f"{start}:{end}" + (f":{step}" if step != 1 else ""))
    text = f"{operands[0]}[{', '.join(parts)}]"
    if flipped and set(parts) == {":"}:
        text = operands[0]
    return f"{text}.flip({tuple(flipped)!r})" if flipped else text


def _pad(printer: _Printer, node: Node, operands: list[str]) -> str:
    amounts: list[Expr] = []
    for size, inner, before in zip(node.shape, node.inputs[0].shape, node.attr("before"), strict=True):
        amounts = [before, size - inner - before, *amounts]
    value = printer.value(node.attr("value"))
    if node.dtype.kind == "bool":
        value = str(float(node.attr("value")))
    return f"torch.nn.functional.pad({operands[0]}, {printer.value(tuple(amounts))}, value={value})"


def _iota(printer: _Printer, node: Node, operands: list[str]) -> str:
    wide = "torch.float64" if node.dtype.is_float else "torch.int64"
    wide += _where(node)
    start, step = printer.value(node.attr("start")), printer.value(node.attr("step"))
    return f"({start} + {step} * torch.arange({node.shape[0]}, dtype={wide})).to({node.dtype.torch})"


def _prod(printer: _Printer, node: Node, operands: list[str]) -> str:
    steps = "".join(f".prod({axis}, dtype={node.dtype.torch})" for axis in reversed(node.attr("axes")))
    return f"{operands[0]}{steps}"


def _sum(printer: _Printer, node: Node, operands: list[str]) -> str:
    return f"{operands[0]}.sum({node.attr('axes')!r}, dtype={node.dtype.torch})"


def _position(printer: _Printer, node: Node, operands: list[str]) -> str:
    axes, rank = node.attr("axes"), len(node.inputs[0].shape)
    return f"{operands[0]}.{node.op}({axes[0] if len(axes) == 1 and rank > 1 else ''})"


def _cat(printer: _Printer, node: Node, operands: list[str]) -> str:
    return f"torch.cat([{', '.join(operands)}], {node.attr('axis')})"


def _full(printer: _Printer, node: Node, operands: list[str]) -> str:
    value, shape = printer.value(node.attr("value")), printer.value(node.shape)
    return f"torch.full({shape}, {value}, dtype={node.dtype.torch}{_where(node)})"


def _where(node: Node) -> str:
    return "" if node.device == "cpu" else f", device={node.device!r}"


def _library(printer: _Printer, node: Node, operands: list[str]) -> str:
    parts = [printer.value(value, operands) for value in node.attr("args")]
    parts += [f"{name}={printer.value(value, operands)}" for name, value in node.attr("kwargs").items()]
    return f"{printer.constant(node.attr('target'))}({', '.join(parts)})"


def _result(printer: _Printer, node: Node, operands: list[str]) -> str:
    return operands[0] + "".join(f"[{step!r}]" for step in node.attr("path"))


SPECIAL: dict[str, Callable[[_Printer, Node, list[str]], str]] = {
    "slice": _slice, "pad": _pad, "iota": _iota, "prod": _prod, "sum": _sum, "argmax": _position,
    "argmin": _position, "cat": _cat, "grown": _cat, "full": _full, "library": _library, "result": _result,
}  # fmt: skip

REAL_TEXT = {
    "add": "({} + {})", "sub": "({} - {})", "mul": "({} * {})", "div": "({} / {})", "neg": "(-{})", "abs": "abs({})",
    "min": "min({}, {})", "max": "max({}, {})", "pow": "({} ** {})", "sqrt": "({} ** 0.5)", "floor": "({} // 1)",
    "floordiv": "({} // {})", "mod": "({} % {})",
    "float32": "torch.tensor({}, dtype=torch.float32).item()",
}  # fmt: skip


def real_text(value: Real) -> str:
    """A run-time float as Python."""
    if value.op == "symbol":
        return str(value.args[0])
    if value.op == "const":
        number = float(value.args[0])
        return repr(number) if math.isfinite(number) else f'float("{number}")'
    if value.op == "int":
        return f"float({value.args[0]})"
    if value.op == "bits":
        return f"torch.tensor({value.args[0]}).view(torch.float64).item()"
    parts = [real_text(arg) for arg in value.args]
    text = REAL_TEXT.get(value.op)
    return text.format(*parts) if text is not None else f"math.{value.op}({', '.join(parts)})"


def _symbols(value: Value) -> list[Value]:
    """The integer symbols and the names of floats anywhere in nested values."""
    found: list[Value] = []
    for number in numbers_in(value):
        if isinstance(number, Expr):
            found += sorted(number.symbols, key=str)
        elif number.op == "symbol":
            found.append(number.args[0])
        elif number.op != "const":
            found += _symbols(number.args)
    return found


class _Fill(ast.NodeTransformer):
    def __init__(self, words: dict[str, str]) -> None:
        self.words = words

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self.words.get(node.id, node.id))


@lru_cache(maxsize=4096)
def _filled(formula: str, words: tuple[tuple[str, str], ...]) -> str:
    """The formula with its operand and attribute names replaced by what they stand for here."""
    return ast.unparse(_Fill(dict(words)).visit(ast.parse(formula, mode="eval")))
