"""Builds graphs of primitives by hand, evaluates them with torch, and runs schedules step by step in Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from framefuse.codegen.interpreter import interpret
from framefuse.codegen.optimise import optimised
from framefuse.fuse.verify import problems
from framefuse.ir.dtypes import BOOL, BY_TORCH, FLOAT32, INT64, DType
from framefuse.ir.graph import Arg, Graph, Node, Output, Write
from framefuse.ir.loops import Kernel, verify
from framefuse.ir.loops.key import key_of
from framefuse.ir.numbers import Expr, Real, Symbol, expr
from framefuse.ir.ops import TABLE
from framefuse.ir.schedule import Allocate, Release, RunCall, RunKernel, RunMatmul, Schedule

Size = int | Expr


def symbol(name: str) -> Expr:
    return Symbol(name).expr


class Builder:
    """A graph under construction; methods return nodes."""

    def __init__(self, **hints: int) -> None:
        self.nodes: list[Node] = []
        self.inputs: list[Node] = []
        self.hints = {Symbol(name): value for name, value in hints.items()}

    def node(self, op: str, inputs: Sequence[Node], shape: Sequence[Size], kind: DType, **attrs: Any) -> Node:
        node = Node(op, tuple(inputs), tuple(attrs.items()), kind, tuple(map(expr, shape)))
        self.nodes.append(node)
        return node

    def input(self, shape: Sequence[Size], dtype: DType = FLOAT32, strides: Sequence[Size] | None = None) -> Node:
        sizes = tuple(map(expr, shape))
        if strides is None:
            step = expr(1)
            found = []
            for size in reversed(sizes):
                found.append(step)
                step = step * size
            strides = tuple(reversed(found))
        attrs = (("index", len(self.inputs)),)
        node = Node("input", (), attrs, dtype, sizes, tuple(map(expr, strides)))
        self.nodes.append(node)
        self.inputs.append(node)
        return node

    def full(self, like: Node, value: Any, dtype: DType | None = None) -> Node:
        return self.node("full", (), like.shape, dtype or like.dtype, value=value)

    def __getattr__(self, name: str) -> Any:
        """``b.exp(x)``, ``b.add2(x, y)``: a pointwise primitive; operands are broadcast, numbers become ``full``."""
        op = TABLE[name.removeprefix("_")]
        assert op.kind == "pointwise", name

        def build(*operands: Any, dtype: DType | None = None) -> Node:
            nodes = [operand for operand in operands if isinstance(operand, Node)]
            shape = max((node.shape for node in nodes), key=len)
            for node in nodes:
                if len(node.shape) == len(shape):
                    pairs = zip(shape, node.shape, strict=True)
                    shape = tuple(b if a.constant == 1 else a for a, b in pairs)
            kind = nodes[-1].dtype if op.name == "where" else nodes[0].dtype
            given = [
                self.expand(o, shape) if isinstance(o, Node) else self.node("full", (), shape, kind, value=o)
                for o in operands
            ]
            result = BOOL if op.dtype == "bool" else dtype or given[-1].dtype
            attrs = {"dtype": result, "loose": False} if op.name == "cast" else {}
            return self.node(op.name, given, shape, result, **attrs)

        return build

    def expand(self, a: Node, shape: Sequence[Size]) -> Node:
        sizes = tuple(map(expr, shape))
        return a if a.shape == sizes else self.node("expand", (a,), sizes, a.dtype)

    def reshape(self, a: Node, *shape: Size) -> Node:
        return self.node("reshape", (a,), shape, a.dtype)

    def permute(self, a: Node, *axes: int) -> Node:
        return self.node("permute", (a,), [a.shape[axis] for axis in axes], a.dtype, axes=axes)

    def slice(self, a: Node, starts: Sequence[Size], sizes: Sequence[Size], steps: Sequence[int] | None = None) -> Node:
        steps = tuple(steps or [1] * len(sizes))
        return self.node("slice", (a,), sizes, a.dtype, starts=tuple(map(expr, starts)), steps=steps)

    def pad(self, a: Node, before: Sequence[Size], shape: Sequence[Size], value: float = 0.0) -> Node:
        return self.node("pad", (a,), shape, a.dtype, before=tuple(map(expr, before)), value=value)

    def cat(self, operands: Sequence[Node], axis: int) -> Node:
        shape = list(operands[0].shape)
        shape[axis] = sum((operand.shape[axis] for operand in operands[1:]), operands[0].shape[axis])
        return self.node("cat", operands, shape, operands[0].dtype, axis=axis)

    def take(self, a: Node, index: Node, axis: int = 0, wrap: bool = False) -> Node:
        shape = (*a.shape[:axis], *index.shape, *a.shape[axis + 1 :])
        return self.node("take", (a, index), shape, a.dtype, axis=axis, wrap=wrap)

    def gather(self, a: Node, index: Node, axis: int) -> Node:
        return self.node("gather", (a, index), index.shape, a.dtype, axis=axis)

    def scatter_add(self, a: Node, index: Node, source: Node, axis: int) -> Node:
        index = self.expand(index, source.shape)
        return self.node("scatter_add", (a, index, source), a.shape, a.dtype, axis=axis)

    def reduce(self, op: str, a: Node, *axes: int, keep: bool = False) -> Node:
        reduced = {axis % len(a.shape) for axis in axes}
        shape = [size for axis, size in enumerate(a.shape) if axis not in reduced]
        dtype = {"any": BOOL, "all": BOOL, "argmax": INT64, "argmin": INT64}.get(op, a.dtype)
        node = self.node(op, (a,), shape, dtype, axes=tuple(sorted(reduced)))
        kept = [expr(1) if axis in reduced else size for axis, size in enumerate(a.shape)]
        return self.reshape(node, *kept) if keep else node

    def matmul(self, a: Node, b: Node) -> Node:
        return self.node("matmul", (a, b), (*a.shape[:-1], b.shape[-1]), a.dtype)

    def library(self, target: Any, operands: Sequence[Node], shape: Sequence[Size], dtype: DType, **more: Any) -> Node:
        args = (*(Arg(i) for i in range(len(operands))), *more.get("args", ()))
        attrs = (
            ("target", target),
            ("name", target.__name__),
            ("args", args),
            ("kwargs", {}),
            ("random", more.get("random", False)),
            ("orders", more.get("orders", (None,) * len(operands))),
            ("views", more.get("views", ())),
        )
        call = Node("library", tuple(operands), attrs, dtype, tuple(map(expr, shape)))
        strides = more.get("strides") or self.input_strides(shape)
        result = Node("result", (call,), (("path", ()),), dtype, call.shape, strides)
        self.nodes += [call, result]
        return result

    def input_strides(self, shape: Sequence[Size]) -> tuple[Expr, ...]:
        step, found = expr(1), []
        for size in reversed(tuple(map(expr, shape))):
            found.append(step)
            step = step * size
        return tuple(reversed(found))

    def sizes(self, values: Sequence[Size]) -> tuple[Expr, ...]:
        return tuple(map(expr, values))

    def graph(self, *outputs: Node, writes: Sequence[tuple[int, Node]] = (), bound: Any = ()) -> Graph:
        results = tuple(
            Output(n, node, tuple(range(len(node.shape)))) if isinstance(node, Node) else node
            for n, node in enumerate(outputs)
        )
        effects = tuple(Write(number, node, 1) for number, node in writes)
        return Graph("f", tuple(self.inputs), tuple(self.nodes), results, effects, (), {}, tuple(bound), self.hints)


def text_of(graph: Graph) -> str:
    """One line for each node, to find a failure by."""
    names = {node: f"v{number}" for number, node in enumerate(graph.nodes)}
    lines = [
        f"{names[n]} = {n.op}({', '.join(names[i] for i in n.inputs)}) {list(n.shape)} "
        + str({key: value for key, value in n.attrs if key != "target"})
        for n in graph.nodes
    ]
    return "\n".join([*lines, "return " + ", ".join(names[output.node] for output in graph.outputs)])


# ---- the reference


def bind(graph: Graph, tensors: Sequence[torch.Tensor]) -> dict[Symbol, int]:
    """The symbols' values, from sizes and strides that are plain symbols."""
    values: dict[Symbol, int] = {}
    for node, tensor in zip(graph.inputs, tensors, strict=True):
        for form, value in zip((*node.shape, *(node.strides or ())), (*tensor.shape, *tensor.stride()), strict=True):
            symbols = tuple(form.symbols)
            if len(symbols) == 1 and form is symbols[0].expr:
                values.setdefault(symbols[0], value)
    return values


def number(value: Any, ints: dict[Symbol, int]) -> Any:
    if isinstance(value, Expr):
        return value.evaluate(ints)
    if isinstance(value, Real):
        return value.evaluate(ints, {})
    return value


def numbers(value: Any, ints: dict[Symbol, int]) -> Any:
    """The same of nested tuples."""
    return tuple(numbers(part, ints) for part in value) if isinstance(value, tuple) else number(value, ints)


def evaluate(graph: Graph, tensors: Sequence[torch.Tensor]) -> dict[Node, torch.Tensor]:
    """Every node's value, each operation by torch's own function."""
    ints = bind(graph, tensors)
    values: dict[Node, Any] = {}
    for node in graph.nodes:
        operands = [values[operand] for operand in node.inputs]
        shape = () if node.op == "library" else tuple(size.evaluate(ints) for size in node.shape)
        values[node] = _evaluate(node, operands, shape, tensors, ints)
    return values


def _evaluate(node: Node, operands: list[Any], shape: tuple[int, ...], tensors: Any, ints: dict[Symbol, int]) -> Any:
    a = operands[0] if operands else None
    match node.op:
        case "input":
            return tensors[node.attr("index")]
        case "full":
            return torch.full(shape, number(node.attr("value"), ints), dtype=node.dtype.torch)
        case "iota":
            start, step = number(node.attr("start"), ints), number(node.attr("step"), ints)
            return (start + step * torch.arange(shape[0])).to(node.dtype.torch)
        case "expand":
            return a.expand(shape)
        case "reshape":
            return a.reshape(shape)
        case "permute":
            return a.permute(node.attr("axes"))
        case "slice":
            for axis, (start, step) in enumerate(zip(node.attr("starts"), node.attr("steps"), strict=True)):
                index = number(start, ints) + step * torch.arange(shape[axis])
                a = a.index_select(axis, index)
            return a
        case "pad":
            result = torch.full(shape, node.attr("value"), dtype=node.dtype.torch)
            starts = [number(before, ints) for before in node.attr("before")]
            result[tuple(slice(s, s + n) for s, n in zip(starts, a.shape, strict=True))] = a
            return result
        case "cat":
            return torch.cat(operands, node.attr("axis"))
        case "take":
            index = operands[1].long()
            axis = node.attr("axis")
            index = torch.where(index < 0, index + a.shape[axis], index) if node.attr("wrap") else index
            return a[(slice(None),) * axis + (index,)]
        case "gather":
            return torch.gather(a, node.attr("axis"), operands[1])
        case "scatter_add":
            return torch.scatter_add(a, node.attr("axis"), operands[1], operands[2])
        case "any" | "all" | "amax" | "amin" if node.attr("axes"):
            return getattr(torch, node.op)(a, node.attr("axes"))
        case "sum":
            return a.sum(node.attr("axes"), dtype=node.dtype.torch) if node.attr("axes") else a.to(node.dtype.torch)
        case "prod":
            for axis in sorted((axis % a.dim() for axis in node.attr("axes")), reverse=True):
                a = a.prod(axis, dtype=node.dtype.torch)
            return a
        case "argmax" | "argmin":
            axes = node.attr("axes")
            return getattr(torch, node.op)(a, axes[0]) if len(axes) == 1 else getattr(torch, node.op)(a)
        case "matmul":
            return torch.matmul(a, operands[1])
        case "library":
            args = [operands[part.index] if isinstance(part, Arg) else part for part in node.attr("args")]
            return node.attr("target")(*args, **node.attr("kwargs"))
        case "result":
            for step in node.attr("path"):
                a = a[step]
            return a
        case "cast":
            return a.to(node.dtype.torch)
        case _:
            scope = dict(zip("abc", operands, strict=False), torch=torch, **dict(node.attrs))
            return eval(TABLE[node.op].formula, scope)


# ---- the executor


class Failed(Exception):
    """A kernel reported an error in the user's data."""


class Machine:
    """Runs a schedule over byte memory filled with rubbish, so that a read before the write shows."""

    def __init__(self, schedule: Schedule, tensors: Sequence[torch.Tensor]) -> None:
        self.schedule = schedule
        self.ints = bind(schedule.graph, tensors)
        for largest, values in schedule.largest:
            self.ints[largest] = max(value.evaluate(self.ints) for value in values)
        self.inputs = tensors
        self.arena = torch.full((schedule.arena.evaluate(self.ints),), 0xF7, dtype=torch.uint8)
        self.live: dict[int, torch.Tensor] = {}
        for index, memory in enumerate(schedule.memories):
            if memory.place == "input":
                self.live[index] = tensors[memory.input]

    def run(self) -> list[torch.Tensor]:
        for item in self.schedule.items:
            self.item(item)
        for target, source, _ in self.schedule.writes:
            self.tensor(target).copy_(self.tensor(source))
        return [self.tensor(index) for index in self.schedule.outputs]

    def item(self, item: Any) -> None:
        match item:
            case Allocate(index):
                memory = self.schedule.memories[index]
                sizes = [size.evaluate(self.ints) for size in memory.sizes]
                strides = [stride.evaluate(self.ints) for stride in memory.strides]
                tensor = torch.empty_strided(sizes, strides, dtype=memory.dtype.torch)
                tensor.untyped_storage().fill_(0xF7)
                self.live[index] = tensor
            case Release(indices):
                for index in indices:
                    del self.live[index]
            case RunKernel():
                self.kernel(item)
            case RunMatmul():
                self.matmul(item)
            case RunCall():
                self.call(item)

    def tensor(self, index: int) -> torch.Tensor:
        if index in self.live:
            return self.live[index]
        memory = self.schedule.memories[index]
        sizes = [size.evaluate(self.ints) for size in memory.sizes]
        strides = [stride.evaluate(self.ints) for stride in memory.strides]
        offset = memory.offset.evaluate(self.ints) if memory.offset is not None else 0
        if memory.place == "arena":
            flat = self.arena[offset:].view(torch.uint8)
            flat = flat[: len(flat) // memory.dtype.size * memory.dtype.size].view(memory.dtype.torch)
            return flat.as_strided(sizes, strides)
        assert memory.place == "view", memory.place
        base = self.tensor(memory.base)
        return base.as_strided(sizes, strides, base.storage_offset() + offset)

    def flat(self, index: int) -> torch.Tensor:
        tensor = self.tensor(index)
        if tensor.numel() == 0:
            return tensor.new_empty(0)
        span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        return tensor.as_strided((span,), (1,))

    def kernel(self, item: RunKernel) -> None:
        assert key_of(item.kernel) is not None
        assert not verify.problems(item.kernel) and not verify.problems(optimised(item.kernel).kernel)
        numbers = [number(value, self.ints) for value in item.numbers]
        if interpret(item.kernel, [self.flat(index) for index in item.buffers], numbers):
            raise Failed(item.kernel.title)

    def matmul(self, item: RunMatmul) -> None:
        batch, m, n, k = (size.evaluate(self.ints) for size in item.sizes)

        def operand(index: int, sizes: Any, strides: Any) -> torch.Tensor:
            tensor = self.tensor(index)
            steps = [stride.evaluate(self.ints) for stride in strides]
            assert 1 in steps[1:] or 1 in sizes[1:] or 0 in sizes
            return tensor.as_strided(sizes, steps, tensor.storage_offset())

        a = operand(item.a, (batch, m, k), item.a_strides)
        c = operand(item.c, (batch, k, n), item.c_strides)
        operand(item.out, (batch, m, n), item.out_strides).copy_(a @ c)

    def call(self, item: RunCall) -> None:
        for index in item.operands:
            assert item.inside or self.schedule.memories[index].place in ("input", "fresh", "call")
        operands = [self.tensor(index) for index in item.operands]
        attrs = item.node.attr
        args = [operands[part.index] if isinstance(part, Arg) else numbers(part, self.ints) for part in attrs("args")]
        result = attrs("target")(*args, **attrs("kwargs"))
        for path, index in item.outs:
            value = result
            for step in path:
                value = value[step]
            memory = self.schedule.memories[index]
            self.live[index] = value
            for buffer, dim, bound in item.binds:
                if buffer == index:
                    self.ints[bound] = value.shape[dim]
            if index in item.normal:
                sizes = [size.evaluate(self.ints) for size in memory.sizes]
                strides = [stride.evaluate(self.ints) for stride in memory.strides]
                copy = torch.empty_strided(sizes, strides, dtype=value.dtype)
                self.live[index] = copy.copy_(value)


def run(schedule: Schedule, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return Machine(schedule, tensors).run()


def kernels(schedule: Schedule) -> list[Kernel]:
    return [item.kernel for item in schedule.items if isinstance(item, RunKernel)]


def check(graph: Graph, schedule: Schedule, *tensors: torch.Tensor, **tolerance: float) -> None:
    """The schedule's results equal torch's, within the defaults of assert_close."""
    assert not problems(schedule)
    wanted = evaluate(graph, tensors)
    results = run(schedule, tensors)
    for output, result in zip(graph.outputs, results, strict=True):
        torch.testing.assert_close(result, wanted[output.node], equal_nan=True, **tolerance)


__all__ = ["BY_TORCH", "Builder", "Failed", "Machine", "check", "evaluate", "kernels", "run", "symbol", "text_of"]
