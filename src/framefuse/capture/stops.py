"""The catalogue of what ends a recording: one row a cause, with what happened and what to write instead."""

from __future__ import annotations

from dataclasses import dataclass

from framefuse.errors import Reason
from framefuse.ir.source import Line


@dataclass(frozen=True, slots=True)
class Row:
    """A cause: ``what`` happened (with a ``{detail}`` of the program), ``write`` the one thing to do."""

    code: str
    title: str
    what: str
    write: str


ROWS = (
    Row(
        "item",
        "a tensor's value is read",
        "{detail} reads the value of a tensor, which Python then uses.",
        "Keep the value in a tensor (torch.where, masking), or read it outside the compiled function.",
    ),
    Row(
        "branch",
        "a branch on a tensor",
        "The branch depends on the value of a tensor ({detail}).",
        "Compute both sides and choose with torch.where, or branch outside the compiled function.",
    ),
    Row(
        "data-size",
        "a size that depends on data",
        "A size that depends on the values of a tensor decides {detail}.",
        "Use a form with a fixed size, such as a mask in place of indices.",
    ),
    Row(
        "native-call",
        "a call that cannot be recorded",
        "{detail} is not Python and may have effects.",
        "Call it outside the compiled function.",
    ),
    Row(
        "numpy",
        "a tensor becomes an array",
        "{detail} leaves torch.",
        "Write it with torch, or convert outside the compiled function.",
    ),
    Row(
        "unknown-tensor",
        "a tensor of unknown origin",
        "A tensor enters that was not made by a recorded call ({detail}).",
        "Make it with a torch function such as torch.tensor, or pass it as an argument.",
    ),
    Row(
        "tensor-kind",
        "a special kind of tensor",
        "{detail} is not a plain strided tensor.",
        "Pass plain tensors to the compiled function.",
    ),
    Row(
        "tensor-attribute",
        "an attribute of a tensor",
        "{detail} of a tensor cannot be recorded.",
        "Do it outside the compiled function.",
    ),
    Row(
        "write",
        "a write that cannot be replayed",
        "{detail} is written during the call.",
        "Return the new value and store it outside the compiled function.",
    ),
    Row(
        "read-after-write",
        "a container read after it was changed",
        "{detail} is changed and then read in the same call.",
        "Read it first, or change a copy.",
    ),
    Row(
        "result",
        "a result that cannot be rebuilt",
        "The call returns {detail}.",
        "Return tensors, numbers, and containers or plain objects of them.",
    ),
    Row(
        "argument",
        "an argument that cannot be checked",
        "{detail} is read, and whether it stays the same cannot be checked.",
        "Pass tensors, numbers, strings and containers of them.",
    ),
    Row(
        "opcode",
        "Python code that is not interpreted",
        "{detail} is not known to the interpreter.",
        "Move it out of the compiled function.",
    ),
    Row(
        "coroutine",
        "asynchronous code",
        "{detail} is a coroutine or generator function.",
        "Compile the functions that it calls.",
    ),
    Row(
        "not-python",
        "not a Python function",
        "{detail} is not written in Python.",
        "Compile a Python function that calls it.",
    ),
    Row(
        "snapshot",
        "an object that cannot be carried over a break",
        "{detail} lives across a step that runs eagerly.",
        "Let it end before the step, or move the step out of the compiled function.",
    ),
    Row("graph-break", "a break that was asked for", "{detail}() ends the graph.", "Nothing: it was asked for."),
    Row("cut", "a break before a line", "What an earlier line changed is read again ({detail}).", "Read it first."),
    Row("raises", "the call raises", "The call ended with {detail}.", "Calls that return are recorded."),
    Row(
        "grad-mode", "the gradient mode changes", "The call leaves another {detail} than it found.", "Use a with block."
    ),
    Row("torch-mode", "a mode of torch is active", "{detail} is active.", "Call the compiled function outside of it."),
    Row(
        "autograd",
        "gradients inside the call",
        "{detail} computes gradients inside the call.",
        "Call it outside the compiled function.",
    ),
    Row(
        "custom-function",
        "a custom autograd function",
        "{detail} has its own backward.",
        "Call it outside the compiled function.",
    ),
    Row(
        "transform",
        "a function transform",
        "{detail} transforms a function.",
        "Apply it outside the compiled function.",
    ),
    Row(
        "autocast",
        "autocast is entered",
        "{detail} changes autocast inside the call.",
        "Enter autocast around the compiled function.",
    ),
    Row(
        "random-state",
        "random state is set",
        "{detail} changes or reads a random generator.",
        "Do it outside the compiled function.",
    ),
    Row(
        "alias",
        "arguments share memory",
        "{detail} share memory, and one is written.",
        "Pass tensors that do not overlap.",
    ),
    Row(
        "too-long",
        "a long recording",
        "The call ran more than {detail} instructions.",
        "Compile the functions that it calls.",
    ),
    Row(
        "python",
        "another version of Python",
        "The interpreter has no tables for {detail}.",
        "Run CPython 3.11, 3.12 or 3.13.",
    ),
    Row(
        "fault",
        "a fault of framefuse",
        "framefuse itself failed: {detail}.",
        "Report it with the program; the call was right all the same.",
    ),
    Row(
        "recursion", "deep recursion", "Calls are nested deeper than {detail}.", "Compile the functions that it calls."
    ),
)

CATALOGUE = {row.code: row for row in ROWS}


def reason(code: str, detail: str, line: Line | None) -> Reason:
    """The reason of row ``code`` with what was met filled in."""
    row = CATALOGUE[code]
    return Reason(code, row.what.format(detail=detail), row.write, line)
