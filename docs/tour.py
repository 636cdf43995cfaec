"""One call from Python to machine code, step by step: run it, read what it prints.

Each step is the function of a pass (framefuse/driver/passes.py lists them in order), called by hand on one small
function.
"""

import inspect

import torch

import framefuse
from framefuse import _native
from framefuse.capture.record import record
from framefuse.codegen import llvm
from framefuse.fuse import fuse
from framefuse.guards.program import build
from framefuse.ir.loops.print import kernel_text
from framefuse.ir.plan_printer import plan_text
from framefuse.ir.printer import graph_text
from framefuse.ir.schedule import RunKernel
from framefuse.ir.trace_printer import trace_text
from framefuse.lower import lower
from framefuse.runtime.assemble import assemble


def step(number: int, title: str, text: object = "", lines: int = 30) -> None:
    """Prints one heading and at most ``lines`` lines below it."""
    print(f"\n--- {number}. {title}")
    shown = str(text).splitlines()
    print("\n".join(shown[:lines]) + (f"\n... {len(shown) - lines} more lines" if len(shown) > lines else ""))


def f(x, w):
    y = torch.nn.functional.gelu(x @ w)
    return y.mean()


torch.manual_seed(0)
x, w = torch.randn(6, 32), torch.randn(32, 16)

with torch.no_grad():
    step(1, "The user's function", inspect.getsource(f))

    recording = record(f, (x, w), {})
    assert recording.trace is not None, recording.reason
    torch.testing.assert_close(recording.value, f(x, w))
    step(2, "capture: the first call is eager's own call, recorded", trace_text(recording.trace))

    graph = lower(recording.trace)
    step(3, "lower: torch's functions become primitives over symbolic sizes", graph_text(graph))

    schedule = fuse(graph)
    kernels = [item.kernel for item in schedule.items if isinstance(item, RunKernel)]
    step(4, "fuse: what can share a loop does", "\n\n".join(kernel_text(kernel) for kernel in kernels), 40)

    step(5, "codegen: LLVM IR text for each loop nest", llvm.text(kernels[-1]), 24)
    items = enumerate(schedule.items)
    compiled = {i: llvm.compile_kernel(item.kernel) for i, item in items if isinstance(item, RunKernel)}
    sizes = [
        f"{code.name}: machine code at an address of {code.address.bit_length()} bits" for code in compiled.values()
    ]
    step(6, "codegen: machine code, made in this process without a compiler on the machine", "\n".join(sizes))

    assumptions = recording.trace.assumptions.with_relations(graph.relations, graph.values)
    guards = build(assumptions)
    inputs = [f"{entry.source} is {entry.spec}" for entry in assumptions.inputs]
    facts = [str(fact) for fact in (*inputs, *assumptions.relations, *assumptions.facts)]
    step(7, "guards: what must hold for the trace to be used, checked in C on each call", "\n".join(facts))

    numbers, registers = guards.number_of, guards.register_of
    plan = assemble(recording.trace, schedule, compiled, numbers, guards.program.numbers, registers)
    step(8, "runtime: the plan that native code runs on each call", plan_text(plan))

    entry = _native.Compiled(_native.GuardSet(guards.program), _native.PlanProgram(plan))
    dispatch = _native.Dispatch(f, lambda args, kwargs: f(*args, **kwargs))
    dispatch.add(entry)
    for rows in (6, 1, 100):
        x = torch.randn(rows, 32)
        torch.testing.assert_close(dispatch(x, w), f(x, w))
    step(
        9,
        "dispatch: other sizes, the same code",
        f"calls {dispatch.calls}, hits {dispatch.hits}, misses {dispatch.misses}",
    )

    fast = framefuse.compile(f)
    fast(x, w)
    step(10, "All of this is framefuse.compile; explain says what it did", framefuse.explain(fast, x, w))
