"""One straight stretch of torch calls with the values that it was called on: what is compared, and made smaller."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.fx

from framefuse import api
from framefuse.ir.values import Function, Keywords, Value
from framefuse.verification.program_state import State
from framefuse.verification.runs import Program, copied, difference, mapped

LET_GO = re.compile(r";\s+(\w+ = )+None$")  # FX drops values after their last use
_files = (f"<case {number}>" for number in itertools.count())  # no two cases share what is known of a place


@dataclass(frozen=True)
class Case:
    """An FX graph and what its placeholders stand for."""

    graph: torch.fx.Graph
    inputs: tuple[Value, ...]
    training: bool

    @cached_property
    def body(self) -> tuple[str, dict[str, Value]]:
        """The source of a function ``f``, and the names that it needs."""
        code = self.graph.python_code("self")
        lines = code.src.strip().splitlines()
        start = next(number for number, line in enumerate(lines) if line.startswith("def "))
        kept = [LET_GO.sub("", line.split("  # ")[0].rstrip()) for line in lines[start + 1 :]]
        names = ", ".join(node.name for node in self.graph.nodes if node.op == "placeholder")
        text = "\n".join([f"def f({names}):", *(line for line in kept if line.strip())])
        known = {"torch": torch, "inf": math.inf, "nan": math.nan} | code.globals
        return text, {name: value for name, value in known.items() if re.search(rf"\b{re.escape(name)}\b", text)}

    def function(self) -> Function:
        """The stretch as a new Python function, of which nothing is compiled yet."""
        text, names = self.body
        space = dict(names)
        exec(compile(text, next(_files), "exec"), space)
        found: Function = space["f"]
        return found

    def program(self) -> Program:
        """The call of a new function of this case."""
        return Program(self.function(), self.inputs, {}, State(), self.training)

    def differs(self, options: Keywords, backend: str = "native") -> tuple[str, str]:
        """Where and how compiled code of a backend differs from eager; empty where it does not, or eager fails."""
        program = self.program()
        reference = program.reference()
        if reference.eager.error:
            return "", ""
        compiled = api.compile(program.function, backend=backend, options=options)
        program.run(compiled)  # eager's own call, recorded
        return difference(program.run(compiled), reference)


def cases(program: Program, options: Keywords) -> list[Case]:
    """The stretches that framefuse captures of a program, each on the values with which it was first called."""
    found: list[Case] = []

    def collect(module: torch.fx.GraphModule, examples: list[Value]) -> Function:
        found.append(Case(module.graph, tuple(mapped(examples, copied)), program.training))
        return module.forward

    compiled = api.compile(program.function, backend=collect, options=options)
    for _ in range(2):
        program.run(compiled)
    return found

