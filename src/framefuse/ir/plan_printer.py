"""Prints a plan as numbered steps over slots and numbers."""

from __future__ import annotations

from framefuse.ir.plan import (
    AllocStep,
    CallStep,
    KernelStep,
    LaunchStep,
    MatmulStep,
    NumbersStep,
    Plan,
    ReleaseStep,
    Step,
)


def plan_text(plan: Plan) -> str:
    """One line for each number instruction, slot and step, and the template of the result."""
    lines = [f"# plan of {plan.name}: {len(plan.steps)} steps, {plan.count} numbers, {len(plan.slots)} slots"]
    lines += [f"n{slot} = {op}({left}, {right})" for op, slot, left, right in plan.numbers]
    for index, slot in enumerate(plan.slots):
        sizes = ", ".join(f"n{number}" for number in slot.sizes)
        device = "" if slot.device == "cpu" else f" {slot.device}"
        lines.append(f"t{index}: {slot.dtype}[{sizes}] {slot.place}{device}")
    lines += [f"{index:3} {_step(step)}" for index, step in enumerate(plan.steps)]
    lines.append(f"return {plan.result}")
    return "\n".join(lines)


def _step(step: Step) -> str:
    if isinstance(step, KernelStep):
        buffers = ", ".join(f"t{slot}" for slot in step.buffers)
        return f"kernel  {step.name}({buffers})" + ("  in threads above the break-even" if step.parallel else "")
    if isinstance(step, LaunchStep):
        arguments = ", ".join(f"{'t' if kind == 'pointer' else 'n'}{place}" for kind, place in step.arguments)
        text = f"launch  {step.name}({arguments})  {step.blocks} of n{step.extent} a program, {step.threads} threads"
        fits = " and ".join(_fit(*fit) for fit in step.fits)
        return f"{text}, for {fits}" if fits else text
    if isinstance(step, MatmulStep):
        return f"matmul  t{step.out} = t{step.a} @ t{step.c}"
    if isinstance(step, CallStep):
        outs = ", ".join(f"t{slot}" for _, slot in step.outs)
        return f"call    {outs} = {step.name}(...)"
    if isinstance(step, AllocStep):
        return f"alloc   t{step.slot}"
    if isinstance(step, ReleaseStep):
        return f"release {', '.join(f't{slot}' for slot in step.slots)}"
    assert isinstance(step, NumbersStep)
    return "numbers " + "; ".join(f"n{slot} = {op}({left}, {right})" for op, slot, left, right in step.numbers)


def _fit(number: int, multiple: int, low: int, high: int) -> str:
    if multiple > 1:
        return f"n{number} % {multiple} == 0"
    return f"n{number} == {low}" if low == high else f"n{number} <= {high}"
