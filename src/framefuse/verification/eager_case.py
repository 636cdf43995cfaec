"""Turns a program into the torch calls that eager makes of it, as a case: what was captured wrong is not in it."""

from __future__ import annotations

import operator
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.fx
from torch.overrides import TorchFunctionMode

from framefuse.ir.nested import mapped
from framefuse.ir.source import Line
from framefuse.ir.values import Arguments, Function, Keywords, Value
from framefuse.verification.case import Case
from framefuse.verification.runs import Program, copied, tensors

LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))  # whose lines are nobody's


def eager_case(program: Program) -> Case | None:
    """The calls of a program on the values that it meets; None where it makes none that gives a tensor."""
    calls = _Calls()

    def logged(*args: Value, **kwargs: Value) -> Value:
        with calls:
            result = program.function(*args, **kwargs)
        calls.end(result)
        return result

    program.run(logged)
    return Case(calls.graph, tuple(calls.inputs), program.training) if calls.inputs else None


class _Calls(TorchFunctionMode):
    """Writes each torch call that gives a tensor into a graph; tensors from elsewhere are its placeholders."""

    def __init__(self) -> None:
        super().__init__()
        self.graph = torch.fx.Graph()
        self.inputs: list[Value] = []
        self.nodes: dict[int, torch.fx.Node] = {}
        self.alive: list[torch.Tensor] = []  # no other tensor takes the address of one that was met
        self.last: torch.fx.Node | None = None

    def __torch_function__(
        self, func: Function, types: Sequence[type], args: Arguments = (), kwargs: Keywords | None = None
    ) -> Value:
        keywords = kwargs or {}
        arguments = mapped((args, keywords), self._argument)
        found = func(*args, **keywords)
        if any(True for _ in tensors(found)) or getattr(func, "__name__", "") == "__setitem__":
            self._result(found, self._node(func, *arguments))
        return found

    def end(self, result: Value) -> None:
        """Ends the graph with what the program gave, or its last call."""
        given = [self.nodes[id(tensor)] for tensor in tensors(result) if id(tensor) in self.nodes]
        self.graph.output(tuple(dict.fromkeys(given)) or (self.last,))

    def _argument(self, value: Value) -> Value:
        if isinstance(value, torch.Tensor):
            return self._known(value)
        # Sizes, and results with names.
        return mapped(tuple(value), self._argument) if isinstance(value, tuple) else value

    def _known(self, tensor: torch.Tensor) -> torch.fx.Node:
        if id(tensor) not in self.nodes:
            with torch._C.DisableTorchFunction():
                self.inputs.append(copied(tensor))
            calls = (node for node in self.graph.nodes if node.op != "placeholder")
            with self.graph.inserting_before(next(calls, self.graph._root)):
                self.nodes[id(tensor)] = self.graph.placeholder(f"given_{len(self.inputs)}")
            self.alive.append(tensor)
        return self.nodes[id(tensor)]

    def _node(self, func: Function, args: Value, kwargs: Value) -> torch.fx.Node:
        name = getattr(func, "__name__", "")
        if name == "__get__":  # of a property
            node = self.graph.call_function(getattr, (args[0], func.__self__.__name__))  # type: ignore[attr-defined]
        elif name == "__setitem__":
            node = self.graph.call_function(operator.setitem, args)
        elif name == "__getitem__":
            node = self.graph.call_function(operator.getitem, args)
        elif getattr(torch.Tensor, name, None) is func and args and isinstance(args[0], torch.fx.Node):
            node = self.graph.call_method(name, args, kwargs)
        else:
            node = self.graph.call_function(func, args, kwargs)
        node.meta["stack_trace"] = _line()
        self.last = node
        return node

    def _result(self, found: Value, node: torch.fx.Node) -> None:
        if isinstance(found, torch.Tensor):
            self.nodes[id(found)] = node
            self.alive.append(found)
        elif isinstance(found, (tuple, list)):
            for place, part in enumerate(found):
                if any(True for _ in tensors(part)):
                    self._result(part, self.graph.call_function(operator.getitem, (node, place)))


def _line() -> str:
    """The line of the program's own that makes the call at hand."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(LIBRARIES):
        if frame.f_back is None:
            break
        frame = frame.f_back
    return str(Line(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname))
