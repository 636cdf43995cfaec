"""Turns a TorchScript program into Python code with the same calls, so that it can be recorded as any other."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch

from framefuse.aot.aten_functions import as_function
from framefuse.errors import UserError

INDENT = "    "
# What values of Python do by their operators; of tensors the operation of torch does it.
BINARY = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "floor_divide": "//", "remainder": "%",
    "pow": "**", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "__and__": "and",
    "__or__": "or",
}  # fmt: skip
IDENTITY = ("__is__", "__isnot__")
CALLS = {
    "len": "len", "Int": "int", "Float": "float", "Bool": "bool", "__not__": "operator.not_", "neg": "operator.neg",
    "list": "list",
}  # fmt: skip
CONTAINERS = {"prim::TupleConstruct": "({})", "prim::ListConstruct": "[{}]"}
UNPACKED = ("prim::TupleUnpack", "prim::ListUnpack")
PLAIN = (type(None), bool, int, str)
SAME = ("prim::NumToTensor", "prim::unchecked_cast", "aten::ScalarImplicit", "aten::IntImplicit")
ATTRIBUTES = {"prim::dtype": "dtype", "prim::device": "device", "prim::shape": "shape", "prim::layout": "layout",
              "prim::is_nested": "is_nested", "prim::is_cuda": "is_cuda", "prim::type": "type"}  # fmt: skip

# What TorchScript has as numbers, by the numbers of C.
DTYPES = ("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex32", "complex64",
          "complex128", "bool")  # fmt: skip
NUMBERED: dict[str, tuple[tuple[int, Any], ...]] = {
    "ScalarType": (*enumerate(getattr(torch, name) for name in DTYPES), (15, torch.bfloat16)),
    "Layout": ((0, torch.strided), (1, torch.sparse_coo)),
    "MemoryFormat": tuple(enumerate(
        (torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d)
    )),
}  # fmt: skip
NUMBERS = {"prim::dtype": "ScalarType", "prim::layout": "Layout"}


def is_script(f: object) -> bool:
    """Whether ``f`` is a program of TorchScript."""
    return isinstance(f, (torch.jit.ScriptModule, torch.jit.ScriptFunction))


def as_python(f: Any, count: int, named: Collection[str] = ()) -> tuple[Callable[..., Any], dict[str, torch.Tensor]]:
    """A function of the first ``count`` inputs of the program and those that are ``named``, the others having their
    defaults, and the tensors that it reads by the names that the program has for them.
    """
    writer = _Writer(f)
    lines = writer.function(f.inlined_graph, count, named)
    name = str(getattr(f, "original_name", None) or getattr(f, "name", "script"))
    code = compile("\n".join(lines), f"<TorchScript {name}>", "exec")
    exec(code, writer.known)  # its text is made here of the names of values, and of nothing else
    function: Callable[..., Any] = writer.known["script"]
    return function, writer.weights


class _Writer:
    """Writes the graph of a program as the text of one function; what it reads of the program is ``known``."""

    def __init__(self, f: Any) -> None:
        self.root = f
        self.known: dict[str, Any] = {"torch": torch, "operator": operator}
        for kind, numbered in NUMBERED.items():
            self.known[f"of_number_{kind}"] = {None: None, **dict(numbered)}
            self.known[f"number_of_{kind}"] = {value: number for number, value in numbered}
        self.weights: dict[str, torch.Tensor] = {}
        self.names: dict[str, str] = {}
        self.numbers: set[str] = set()  # what a trace has tensors for
        self.taken: frozenset[str] = frozenset()  # the names of inputs
        self.objects: dict[str, tuple[str, Any]] = {}  # modules, by the names of their values: path and module

    def function(self, graph: Any, count: int, named: Collection[str]) -> list[str]:
        inputs = list(graph.inputs())
        if isinstance(self.root, torch.jit.ScriptModule):
            self.objects[inputs[0].debugName()] = ("", self.root)
            inputs = inputs[1:]
        arguments = getattr(self.root, "forward", self.root).schema.arguments
        arguments = arguments[len(arguments) - len(inputs) :]  # without the module, whatever its name is
        given = []
        for place, (value, argument) in enumerate(zip(inputs, arguments, strict=True)):
            if place < count or argument.name in named:
                given.append(argument.name)
                self.names[value.debugName()] = argument.name
            elif argument.has_default_value():
                self.constant(value, argument.default_value)
            else:
                raise UserError(f"the input {argument.name} is missing. Give it with example_inputs or kwargs")
        self.taken = frozenset(given)
        head = f"def script({', '.join(given)}):"
        body = [*self.block(graph, 1)]
        results = [self.name(value) for value in graph.outputs()]
        return [head, *body, f"{INDENT}return {results[0] if len(results) == 1 else ', '.join(results)}"]

    def name(self, value: Any) -> str:
        new = f"v{len(self.names)}"
        return self.names.setdefault(value.debugName(), f"{new}_" if new in self.taken else new)

    def block(self, block: Any, depth: int) -> Iterator[str]:
        for node in block.nodes():
            yield from (INDENT * depth + line for line in self.node(node))

    def node(self, node: Any) -> Iterator[str]:
        kind, inputs = node.kind(), list(node.inputs())
        outputs = [self.name(value) for value in node.outputs()]
        if kind == "prim::Constant":
            self.constant(node.output(), node.output().toIValue())
        elif kind == "prim::GetAttr":
            yield from self.attribute(node, inputs[0])
        elif kind == "prim::If":
            yield from self.branches(node, inputs[0], outputs)
        elif kind == "prim::Loop":
            yield from self.loop(node, inputs, outputs)
        elif kind == "prim::RaiseException":
            yield f"raise RuntimeError({self.name(inputs[0])})"
        elif kind in CONTAINERS:
            parts = "".join(f"{self.name(value)}, " for value in inputs)
            yield f"{outputs[0]} = {CONTAINERS[kind].format(parts)}"
        elif kind == "prim::DictConstruct":
            pairs = zip(inputs[::2], inputs[1::2], strict=True)
            yield f"{outputs[0]} = {{{', '.join(f'{self.name(k)}: {self.name(v)}' for k, v in pairs)}}}"
        elif kind in UNPACKED:
            yield f"{', '.join(outputs)}, = {self.name(inputs[0])}"
        elif kind in ("prim::TupleIndex", "aten::__getitem__"):
            yield f"{outputs[0]} = {self.name(inputs[0])}[{self.name(inputs[1])}]"
        elif kind in ("prim::min", "prim::max"):
            yield f"{outputs[0]} = {kind.removeprefix('prim::')}({', '.join(map(self.name, inputs))})"
        elif kind in SAME:
            if kind == "prim::NumToTensor":
                self.numbers.add(outputs[0])
            yield f"{outputs[0]} = {self.name(inputs[0])}"
        elif kind in ATTRIBUTES:
            attribute = f"{self.name(inputs[0])}.{ATTRIBUTES[kind]}"
            yield f"{outputs[0]} = " + (f"number_of_{NUMBERS[kind]}[{attribute}]" if kind in NUMBERS else attribute)
        elif kind == "aten::warn":
            yield "pass"
        elif kind == "prim::Uninitialized":  # of a branch that raises
            yield f"{outputs[0]} = None"
        elif kind == "aten::append":
            yield f"{self.name(inputs[0])}.append({self.name(inputs[1])})"
            yield f"{outputs[0]} = {self.name(inputs[0])}"
        elif kind == "aten::_set_item":
            yield "{}[{}] = {}".format(*map(self.name, inputs))
        elif kind.startswith("aten::"):
            yield f"{outputs[0] if len(outputs) == 1 else ', '.join(outputs)} = {self.operation(node, inputs)}"
        else:
            raise UserError(f"the TorchScript program has {kind}, which export does not know. Export its Python code")

    def constant(self, value: Any, content: Any) -> None:
        """What is short stands in the text; a tensor is a weight."""
        parts = content if isinstance(content, list) else [content]
        if all(type(part) in PLAIN for part in parts):
            self.names[value.debugName()] = f"({content!r})"
            return
        if isinstance(content, float) and math.isfinite(content):
            self.names[value.debugName()] = f"({content!r})"
            return
        if isinstance(content, torch.Tensor):
            self.weights[f"constant {len(self.weights)}"] = content
        self.known[self.name(value)] = content

    def attribute(self, node: Any, owner: Any) -> Iterator[str]:
        path, module = self.objects[owner.debugName()]
        name = f"{path}.{node.s('name')}" if path else node.s("name")
        value = getattr(module, node.s("name"))
        if isinstance(value, torch.Tensor):
            self.weights[name] = value
        if isinstance(value, torch.jit.ScriptModule):
            self.objects[node.output().debugName()] = (name, value)
        else:
            self.known[self.name(node.output())] = value
        yield from ()

    def branches(self, node: Any, condition: Any, outputs: list[str]) -> Iterator[str]:
        for head, block in zip((f"if {self.name(condition)}:", "else:"), node.blocks(), strict=True):
            yield head
            yield from self.block(block, 1)
            yield INDENT + "pass"
            for output, value in zip(outputs, block.outputs(), strict=True):
                yield f"{INDENT}{output} = {self.name(value)}"

    def loop(self, node: Any, inputs: list[Any], outputs: list[str]) -> Iterator[str]:
        (block,) = node.blocks()
        count, *carried = (self.name(value) for value in block.inputs())
        going = f"going_{count}"
        for target, value in zip((going, *carried), inputs[1:], strict=True):
            yield f"{target} = {self.name(value)}"
        yield f"{count} = 0"
        yield f"while {going} and {count} < {self.name(inputs[0])}:"
        yield from self.block(block, 1)
        for target, value in zip((going, *carried), block.outputs(), strict=True):
            yield f"{INDENT}next_{target} = {self.name(value)}"
        for target in (going, *carried):
            yield f"{INDENT}{target} = next_{target}"
        yield f"{INDENT}{count} += 1"
        for output, value in zip(outputs, carried, strict=True):
            yield f"{output} = {value}"

    def operation(self, node: Any, inputs: list[Any]) -> str:
        name = node.kind().removeprefix("aten::")
        given = [self.name(value) for value in inputs]
        if name in IDENTITY:
            return f"{given[0]} {'is' if name == '__is__' else 'is not'} {given[1]}"
        if not any(self.is_tensor(value) for value in inputs) or name in ("len", "Int"):
            if name in BINARY and (len(given) == 2 or given[2:] == ["(1)"]):  # the last: a factor
                self.numbers.update(self.name(value) for value in node.outputs())
                return f"{given[0]} {BINARY[name]} {given[1]}"
            if name == "slice":
                return f"{given[0]}[{given[1]}:{given[2]}:{given[3]}]"
            if name in CALLS:
                return f"{CALLS[name]}({', '.join(given)})"
        if name == "__contains__":
            return f"{given[1]} in {given[0]}"
        if name == "size":
            return f"{given[0]}.shape" + (f"[{given[1]}]" if len(given) > 1 else "")
        if name == "format":
            return f"{given[0]}.format({', '.join(given[1:])})"
        if name == "dim":
            return f"{given[0]}.ndim"
        if name == "_convolution":  # what tracing writes
            return self.convolution(inputs, given)
        function, _, overload = node.schema().partition("(")[0].removeprefix("aten::").partition(".")
        packet = getattr(torch.ops.aten, function, None)
        target = getattr(packet, overload or "default", None)
        if target is None:
            raise UserError(f"the TorchScript program has aten::{name}, which torch has not. Export its Python code")
        self.known[f"aten_{function}_{overload}"] = as_function(target)
        return f"aten_{function}_{overload}({', '.join(self.arguments(target, given))})"

    def arguments(self, target: Any, given: list[str]) -> Iterator[str]:
        arguments = target._schema.arguments
        for argument, value in zip(arguments, given, strict=True):
            kind = str(argument.real_type).removeprefix("Optional[").removesuffix("]")
            value = f"of_number_{kind}[{value}]" if kind in NUMBERED else value
            by_name = argument.kwarg_only or (argument.name == "alpha" and argument is arguments[-1])
            yield f"{argument.name}={value}" if by_name else value

    def convolution(self, inputs: list[Any], given: list[str]) -> str:
        rank, transposed = len(inputs[3].toIValue() or ()), inputs[6].toIValue()
        if rank not in (1, 2, 3):
            rank = len(list(inputs[3].node().inputs()))
        x, weight, bias, stride, padding, dilation, _, out, groups = given[:9]
        if transposed:
            more = f"{stride}, {padding}, {out}, {groups}, {dilation}"
            return f"torch.conv_transpose{rank}d({x}, {weight}, {bias}, {more})"
        return f"torch.conv{rank}d({x}, {weight}, {bias}, {stride}, {padding}, {dilation}, {groups})"

    def is_tensor(self, value: Any) -> bool:
        """Whether a value is a tensor here: numbers that a trace computes as tensors are numbers."""
        return str(value.type()) in ("Tensor", "Optional[Tensor]") and self.name(value) not in self.numbers
