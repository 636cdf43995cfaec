"""The catalogue of what breaks or ends a recording: a row a cause, with what happened, what was done, what to write."""

from __future__ import annotations

from dataclasses import dataclass

from framefuse.errors import Reason
from framefuse.ir.source import Line

STEP = (
    "The step ran as it is, and runs at each call. The code before and after it is compiled; where that cannot be, the "
    "whole call runs eagerly."
)
CUT = "The graph ends before that line and another one begins. The first call that met it ran eagerly."
EAGER = "The call ran eagerly, as without framefuse. It is tried again ever more rarely."
WAIT = "What is compiled stays in use. New cases run eagerly, and one is compiled now and then, ever more rarely."
REST = "Calls run eagerly for some time; compiled code is then weighed against eager again, ever more rarely."
FAULT = "The call ran eagerly and gave what eager gives. The fault was logged once, with a folder that tells all."


@dataclass(frozen=True, slots=True)
class Row:
    """A cause: ``what`` happened (with a ``{detail}`` of the program), what framefuse ``did``, and what to ``write``.

    ``before`` and ``after`` show that in code, where it can be shown. ``meant`` says that nothing is lost by it.
    """

    code: str
    title: str
    what: str
    write: str
    did: str
    before: str = ""
    after: str = ""
    meant: bool = False


ROWS = (
    Row(
        "item",
        "a tensor's value is read",
        "{detail} reads the value of a tensor, and the program does more with it than compute.",
        "Keep the value in a tensor (torch.where, masking), or read it outside the compiled function.",
        STEP,
        "scale = x.abs().max().item()\nreturn x / scale if scale > 1 else x",
        "scale = x.abs().max()\nreturn torch.where(scale > 1, x / scale, x)",
    ),
    Row(
        "value",
        "a number that comes from a tensor is looked at",
        "{detail} looks at the value of a number that comes out of an earlier step.",
        "Let it only compute and compare, or look at it outside the compiled function.",
        STEP,
        "n = int(x.max().item())\nreturn table[n] * x",
        "return table.index_select(0, x.max().long()) * x  # a tensor, in place of a list",
    ),
    Row(
        "length",
        "a container of ever another length is walked",
        "The program goes through {detail} that has had another length in many calls.",
        "Nothing: a trace for each length would cost more. Else keep what it holds in a tensor.",
        STEP,
        "losses.append(loss.item())\nreturn sum(losses) / len(losses)",
        "total += loss.item()\nreturn total / count",
    ),
    Row(
        "branch",
        "a branch on a tensor",
        "The branch depends on the value of a tensor ({detail}).",
        "Compute both sides and choose with torch.where, or branch outside the compiled function.",
        STEP,
        "if x.sum() > 0:\n    return x + 1\nreturn x - 1",
        "return torch.where(x.sum() > 0, x + 1, x - 1)",
    ),
    Row(
        "data-size",
        "a size that depends on data",
        "A size that depends on the values of a tensor decides {detail}.",
        "Use a form with a fixed size, such as a mask in place of indices.",
        CUT,
        "found = x[x > 0]\nreturn found.sum() if len(found) else x.sum()",
        "return torch.where(x > 0, x, 0).sum()",
    ),
    Row(
        "native-call",
        "a call that cannot be recorded",
        "{detail} cannot be looked into, and may have effects.",
        "Call it outside the compiled function.",
        STEP,
        "write_row(file, x.sum())\nreturn x * 2",
        "return x * 2, x.sum()  # and write the row outside",
    ),
    Row(
        "stack",
        "a look at the calling frames",
        "{detail} looks at the frames of the functions that called it.",
        "Ask outside the compiled function, or for the name and line only (sys._getframe().f_code.co_name).",
        STEP,
        "return helper(x), inspect.stack()[1].function",
        "return helper(x), sys._getframe(1).f_code.co_name",
    ),
    Row(
        "numpy",
        "a tensor becomes an array",
        "{detail} leaves torch.",
        "Write it with torch, or convert outside the compiled function.",
        STEP,
        "return torch.from_numpy(np.sort(x.numpy()))",
        "return torch.sort(x).values",
    ),
    Row(
        "unknown-tensor",
        "a tensor of unknown origin",
        "A tensor enters that was not made by a recorded call ({detail}).",
        "Make it with a torch function such as torch.tensor, or pass it as an argument.",
        STEP,
    ),
    Row(
        "tensor-kind",
        "a special kind of tensor",
        "{detail} is not a plain strided tensor.",
        "Pass plain tensors to the compiled function.",
        STEP,
    ),
    Row(
        "tensor-attribute",
        "an attribute of a tensor",
        "{detail} of a tensor cannot be recorded.",
        "Do it outside the compiled function.",
        STEP,
    ),
    Row(
        "saved",
        "what a node of autograd saved is read",
        "{detail} of a node of autograd is what only eager's own nodes have.",
        "Look into nodes outside the compiled function, and make their tensors there.",
        EAGER,
    ),
    Row(
        "write",
        "a write that cannot be replayed",
        "{detail} is written during the call.",
        "Return the new value and store it outside the compiled function.",
        EAGER,
    ),
    Row(
        "finalizer",
        "an object whose end runs code",
        "{detail} runs as soon as nobody holds its object any longer; compiled code would hold it longer.",
        "Make and drop such objects outside the compiled function, or let a with statement end them.",
        EAGER,
    ),
    Row(
        "first-use",
        "state that is made at its first use",
        "{detail} gets its first entry for a tensor, as optimizers do at their first step.",
        "Nothing: the next call is recorded.",
        EAGER,
    ),
    Row(
        "read-after-write",
        "a container read after it was changed",
        "{detail} is changed and then read in the same call.",
        "Read it first, or change a copy.",
        CUT,
    ),
    Row(
        "result",
        "a result that cannot be rebuilt",
        "The call returns {detail}.",
        "Return tensors, numbers, and containers or plain objects of them.",
        EAGER,
        "return (part for part in parts)",
        "return [part for part in parts]",
    ),
    Row(
        "argument",
        "an argument that cannot be checked",
        "{detail} is read, and whether it stays the same cannot be checked.",
        "Pass tensors, numbers, strings and containers of them.",
        EAGER,
    ),
    Row(
        "opcode",
        "Python code that is not interpreted",
        "{detail} is not known to the interpreter.",
        "Move it out of the compiled function.",
        EAGER,
    ),
    Row(
        "coroutine",
        "asynchronous code",
        "{detail} is a coroutine or generator function.",
        "Compile the functions that it calls.",
        EAGER,
    ),
    Row(
        "not-python",
        "not a Python function",
        "{detail} is not written in Python.",
        "Compile a Python function that calls it.",
        EAGER,
    ),
    Row(
        "snapshot",
        "an object that cannot be carried over a break",
        "{detail} lives across a step that runs eagerly.",
        "Let it end before the step, or move the step out of the compiled function.",
        EAGER,
        "scales = itertools.accumulate(rates)\nprint(x.sum())\nreturn [x * scale for scale in scales]",
        "scales = list(itertools.accumulate(rates))\nprint(x.sum())\nreturn [x * scale for scale in scales]",
    ),
    Row(
        "graph-break",
        "a break that was asked for",
        "{detail}() ends the graph.",
        "Nothing: it was asked for.",
        STEP,
    ),
    Row(
        "disabled",
        "a function that is kept from the compiler",
        "{detail} runs eagerly: it is marked so, or is torch.compile's.",
        "Nothing if that was asked for; else take the mark away (framefuse.disable, torch.compiler.disable).",
        STEP,
    ),
    Row(
        "cut",
        "a break before a line",
        "What an earlier line changed is read again ({detail}).",
        "Read it first.",
        CUT,
    ),
    Row(
        "bucket",
        "a bucket of gradients ends",
        "The gradients from {detail} on fill a bucket of DistributedDataParallel, sent while backward goes on.",
        "Nothing: it is as it should be. Larger buckets (bucket_cap_mb) make fewer graphs.",
        "The graph ends before that module and another one begins, with a backward of its own.",
    ),
    Row(
        "raises",
        "the call raises",
        "{detail} was raised.",
        "A call in which nothing is raised is recorded: check beforehand what raises.",
        EAGER,
    ),
    Row(
        "torch-mode",
        "a mode of torch is active",
        "{detail} is active.",
        "Call the compiled function outside of it. Of a function transform compile what it gives, or what calls it.",
        EAGER,
        "fast = framefuse.compile(loss)\ngradients = vmap(grad(fast))(x)  # eager: it is around compiled code",
        "fast = framefuse.compile(vmap(grad(loss)))\ngradients = fast(x)",
    ),
    Row(
        "autograd",
        "gradients inside the call",
        "{detail} computes gradients inside the call.",
        "Leave it there: what backward runs is compiled too, and so is the code before and after it.",
        STEP,
        meant=True,
    ),
    Row(
        "gradient",
        "a gradient that is not followed",
        "{detail}.",
        "Compute a new tensor in place of the write, or keep that line outside the compiled function.",
        STEP,
        "with torch.no_grad():\n    hidden.mul_(0.5)\nloss = hidden.sum()",
        "hidden = hidden + (hidden * 0.5 - hidden).detach()\nloss = hidden.sum()",
    ),
    Row(
        "custom-function",
        "a custom autograd function",
        "{detail} keeps or gives what no graph can hold.",
        "Keep tensors, numbers and containers of them in ctx, and return new tensors: no argument that is written, no "
        "view of one.",
        STEP,
    ),
    Row(
        "transform",
        "a function transform",
        "{detail} transforms a function.",
        "Branch on no value in the function that it transforms. Compile what the transform gives, or what calls it: "
        "one that is put around a compiled function runs that eagerly.",
        STEP,
    ),
    Row(
        "autocast",
        "autocast is entered",
        "{detail} changes autocast inside the call.",
        "Enter autocast around the compiled function.",
        STEP,
    ),
    Row(
        "autocast-cache",
        "a weight is written while autocast keeps its casts",
        "{detail}",
        "Leave autocast before the write.",
        EAGER,
    ),
    Row(
        "random-state",
        "random state is set",
        "{detail} changes or reads a random generator.",
        "Do it outside the compiled function.",
        STEP,
    ),
    Row(
        "alias",
        "arguments share memory",
        "{detail} share memory, and one is written.",
        "Pass tensors that do not overlap.",
        STEP,
        "step(buffer, buffer[1:])",
        "step(buffer, buffer[1:].clone())",
    ),
    Row(
        "too-long",
        "a long recording",
        "The call ran more than {detail} instructions.",
        "Compile the functions that it calls.",
        EAGER,
    ),
    Row(
        "debugger",
        "the program stops in a debugger",
        "{detail} calls breakpoint(), or sets a tracer or profiler.",
        "Take the call out when you are done.",
        EAGER,
        "y = x * 2\nbreakpoint()\nreturn y.sin()",
        "y = x * 2\nreturn y.sin()",
    ),
    Row(
        "frame",
        "the program looks at its own frame",
        "{detail} reads the names of the code that calls it.",
        "Pass what is needed as an argument, or call it outside the compiled function.",
        EAGER,
        "return x * eval('scale')",
        "return x * scale",
    ),
    Row(
        "recursion",
        "deep recursion",
        "Calls are nested deeper than {detail}.",
        "Compile the functions that it calls.",
        EAGER,
    ),
    Row(
        "python",
        "another version of Python",
        "The interpreter has no tables for {detail}.",
        "Run CPython 3.11, 3.12 or 3.13.",
        EAGER,
    ),
    Row(
        "in-place",
        "a change in place that has no other form",
        "{detail}",
        "Use the form that returns a new tensor.",
        STEP,
        "x.resize_(4)",
        "x = x.reshape(4)",
    ),
    Row(
        "memory-order",
        "an order in memory that a kernel cannot follow",
        "{detail}",
        "Call .contiguous() on it first.",
        STEP,
    ),
    Row(
        "no-tensor",
        "a call of torch that gives no tensor",
        "{detail}",
        "Call it outside the compiled function.",
        STEP,
    ),
    Row(
        "run-time-size",
        "a size known only at run time decides",
        "{detail}",
        "Branch on the size of an argument instead.",
        CUT,
    ),
    Row(
        "shared-memory",
        "results that share memory in a new way",
        "{detail}",
        "Return one of them, or a clone.",
        STEP,
        "y = x + 1\nreturn y, y[::2]",
        "y = x + 1\nreturn y, y[::2].clone()",
    ),
    Row(
        "limit",
        "a limit is reached",
        "{detail}",
        "Raise the option, or change fewer things that decide control flow.",
        WAIT,
        "@framefuse.compile(dynamic=False)\ndef f(x): ...  # and many sizes",
        "@framefuse.compile\ndef f(x): ...",
    ),
    Row(
        "slower",
        "compiled code that is slower than eager",
        "{detail}",
        "Mend the breaks that explain() lists, or compile what is between. A small call of torch alone gains nothing.",
        REST,
        "@framefuse.compile\ndef step(state): ...  # hundreds of short stretches between breaks",
        "@framefuse.compile\ndef inner(x): ...  # what computes, called by step",
    ),
    Row(
        "no-fx-form",
        "a graph that torch.fx cannot hold",
        "{detail}",
        "Use the native backend.",
        EAGER,
    ),
    Row(
        "changed-itself",
        "a call that changes what it depends on",
        "{detail}",
        'Use backend="native".',
        EAGER,
    ),
    Row(
        "fault",
        "a fault of framefuse",
        "framefuse itself failed: {detail}.",
        "Report it with the program; the call was right all the same.",
        FAULT,
    ),
)

CATALOGUE = {row.code: row for row in ROWS}


def reason(code: str, detail: str, line: Line | None, advice: str | None = None) -> Reason:
    """The reason of row ``code`` with what was met filled in; ``advice`` in place of the row's where more is known."""
    row = CATALOGUE[code]
    return Reason(code, row.what.format(detail=detail), advice or row.write, line)


def detail(reason: Reason) -> str:
    """What was filled into the row of a reason."""
    before, _, after = CATALOGUE[reason.code].what.partition("{detail}")
    whole = reason.fact.startswith(before) and reason.fact.endswith(after)
    return reason.fact[len(before) : len(reason.fact) - len(after)] if whole else reason.fact


def page(row: Row) -> str:
    """The row as a page in Markdown."""
    what = (
        row.what.format(detail="*Something in the program*") if row.what != "{detail}" else f"{row.title.capitalize()}."
    )
    parts = [f"# {row.title.capitalize()}", f"Code `{row.code}`.", f"**What happened.** {what}"]
    parts += [f"**What framefuse did.** {row.did}", f"**What to write.** {row.write}"]
    if row.before:
        parts += ["In place of", f"```python\n{row.before}\n```", "write", f"```python\n{row.after}\n```"]
    return "\n\n".join(parts) + "\n"


def index() -> str:
    """The list of all pages in Markdown."""
    lines = [f"- [`{row.code}`]({row.code}.md): {row.title}" for row in ROWS]
    head = (
        "# Why code breaks or stays eager\n\n`framefuse.explain` names the code and the line. Each code has a page.\n\n"
    )
    return head + "\n".join(lines) + "\n"
