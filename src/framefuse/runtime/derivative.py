"""The place of a compiled graph in autograd: its node's bodies, which compile each case of a backward once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from framefuse import _native
from framefuse.errors import Reason
from framefuse.ir.custom_runs import RUN, Ran
from framefuse.ir.plain import is_batched, plain
from framefuse.ir.source import Line
from framefuse.ir.stops import reason
from framefuse.ir.values import Arguments, Keywords, Value
from framefuse.runtime.recorded_call import Pending, Product

if TYPE_CHECKING:
    from framefuse.ir.derivative import Piece

Verdict = tuple[tuple[int, ...], int, tuple[int, ...]]  # what to check, what is gone then, saved values to drop
Form = tuple[tuple[int, ...], tuple[int, ...], bool]  # recorded sizes of an input and of a view, which has a node
Gradients = tuple[torch.Tensor | None, ...]
Values = Arguments  # list of saved values or roots, tuple of tangents, tuple of numbers, mask of wanted inputs
Compiled = tuple[_native.Compiled, Product] | Reason


class Derivative:
    """``attach`` hangs the outputs of the forward plan into autograd. The first ``through`` saved values are watched.

    ``compile(values, again)`` gives the native entry of the case at hand, whose guards hold for it, and what the stages
    made of it, or the reason why there is none; ``reference(values, again)`` its gradients without compiled code;
    ``again`` is True for gradients that are to be differentiated. ``reads(wanted)`` says which saved values are read
    for the gradients at these bits. ``names`` are those of eager's nodes, ``met`` what these find written, in their
    order. ``behind(values, again, deliver)``, where no
    call is to wait for code, has another thread make it and hand it to ``deliver``; it gives what is known of that,
    None where no thread can be had, and a call waits for at most ``patience`` seconds. ``undefined(tangents, ran)``,
    for a piece with backwards of users, says which gradients are None after these ran. ``asked(written)`` says whether
    gradients of gradients read elements of the roots at these bits. ``cases`` are what the stages
    made, in order, and ``reasons`` why calls had no compiled code, with how often.
    """

    def __init__(
        self,
        piece: Piece,
        line: Line,
        compile: Callable[[Values, bool], Compiled],
        reference: Callable[[Values, bool], Gradients],
        reads: Callable[[int], frozenset[int]],
        names: tuple[tuple[str, int] | None, ...] = (),
        met: tuple[tuple[int, Form | None], ...] = (),
        behind: Callable[[Values, bool, Callable[[Compiled | None], None]], Pending | None] | None = None,
        patience: float = 0.0,
        undefined: Callable[[Sequence[torch.Tensor | None], Sequence[Ran]], Sequence[int]] | None = None,
        asked: Callable[[int], bool] | None = None,
    ) -> None:
        self.piece = piece
        self.line = line
        self.compile = compile
        self.reference = reference
        self.reads = reads
        self.behind = behind
        self.patience = patience
        self.lock = threading.RLock()
        self.cases: list[Product] = []
        self.reasons: dict[Reason, int] = {}
        self.backward = _Side(self, False)
        self.differentiable = _Side(self, True)
        self.through = sum(entry.kind != "own" for entry in piece.saved)
        only = len(piece.watched) - self.through
        sides = self.backward.dispatch, self.differentiable.dispatch
        self.attach = _native.Attach(
            *(side if undefined is None else _Undefined(side, undefined) for side in sides),
            inputs=len(piece.inputs),
            outputs=len(piece.outputs),
            watched=only,
            through=self.through,
            own=len(piece.saved) - self.through,
            roots=len(piece.roots),
            numbers=len(piece.numbers),
            frees=any(hold.frees for hold in piece.holds),
            memory=_memory(piece),
            part=self.part,
            name=piece.primal.name.rpartition(".")[2],
            names=names,
            met=met,
            asked=asked,
        )

    def settle(self) -> None:
        """Waits until no other thread makes a case."""
        self.backward.settle()
        self.differentiable.settle()

    def alone(self) -> None:
        """Forgets other threads: a forked child has none that would make code or release a lock."""
        self.backward.pending = self.differentiable.pending = None
        if not self.lock._is_owned():  # type: ignore[attr-defined]
            self.lock = threading.RLock()

    def part(self, wanted: int, gone: int) -> Verdict | None:
        """What a walk checks and frees that wants some gradients, after others: what eager's nodes on its way hold.

        ``gone`` are the numbers of what was freed, as bits, -1 for all. None says that some of it is needed.
        """
        holds = self.piece.holds
        gone &= (1 << len(holds)) - 1
        walked = [number for number, hold in enumerate(holds) if hold.wanted & wanted]
        freed = sum(1 << number for number in walked if holds[number].frees)
        if freed & gone:
            return None
        gone |= freed
        checks = sorted({place for number in walked for place in holds[number].checks})
        left = (1 << len(self.piece.inputs)) - 1
        for number, hold in enumerate(holds):
            if gone >> number & 1:
                left &= ~hold.wanted
        unread = set(range(len(self.piece.saved))) - (self.reads(left) if left else frozenset())
        return tuple(checks), gone, tuple(sorted(unread))


class _Undefined:
    """Computes gradients as ``gradients`` does, and gives None for those that ``undefined`` names, where backwards of
    users gave None.
    """

    def __init__(self, gradients: Callable[..., Gradients], undefined: Callable[..., Sequence[int]]) -> None:
        self.gradients = gradients
        self.undefined = undefined

    def __call__(self, *values: Value) -> Gradients:
        ran: list[Ran] = []
        before, RUN.calls = RUN.calls, ran
        try:
            found = self.gradients(*values)
            if not any(places for _, places in ran):
                return found
            none = self.undefined(values[1], ran)
            return tuple(None if place in none else gradient for place, gradient in enumerate(found))
        finally:
            RUN.calls = before


class _Side:
    """One of the two ways backward is asked, with its compiled cases."""

    def __init__(self, derivative: Derivative, again: bool) -> None:
        self.derivative = derivative
        self.again = again
        self.tries = 0
        self.pending: Pending | None = None
        self.dispatch = _native.Dispatch(self.run, self.miss, point=4)

    def run(self, *values: Value) -> Gradients:
        """Computes the gradients without compiled code."""
        return self.derivative.reference(values, self.again)

    def miss(self, values: Values, kwargs: Keywords) -> Gradients:
        """A case that was not met yet, or gradients that kernels could not read."""
        casts = [kind for kind in AUTOCAST if torch.is_autocast_enabled(kind)]
        if casts:  # the forward said what is cast; backward runs in those dtypes
            for kind in casts:
                torch.set_autocast_enabled(kind, False)
            try:
                gradients: Gradients = self.dispatch(*values)
                return gradients
            finally:
                for kind in casts:
                    torch.set_autocast_enabled(kind, True)
        if any(g is not None and is_batched(g) for g in values[1]):  # many gradients at once: torch maps each operation
            return self.run(*values)
        held = tuple(None if g is None else plain(g) for g in values[1])
        if any(now is not before for now, before in zip(held, values[1], strict=True)):
            saved, _, numbers, wanted = values
            gradients = self.dispatch(saved, held, numbers, wanted)
            return gradients
        with self.derivative.lock:
            self.tell()
            met = self.met(values)
            pending = None if met else self.pending or self.hand_over(values)
            if not met and pending is None and not self.add(self.compile(values)):
                return self.run(*values)
        if pending is not None:  # another thread makes this case, or one of other values
            pending.done.wait(min(self.derivative.patience, threading.TIMEOUT_MAX))
            if not self.met(values):
                return self.run(*values)
        result: Gradients = self.dispatch(*values)
        return result

    def met(self, values: Values) -> bool:
        """Whether there is code for these values."""
        return any(type(known.guards.check(values)) is tuple for known in self.dispatch.entries)

    def add(self, compiled: Compiled) -> bool:
        """Has later calls run what was compiled, or notes why there is nothing."""
        if not isinstance(compiled, Reason):
            entry, case = compiled
            self.derivative.cases.append(case)
            self.dispatch.add(entry)
            return True
        if compiled.code == "fault":  # the next case would meet it too
            self.tries = LIMIT
        self.derivative.reasons[compiled] = self.derivative.reasons.get(compiled, 0) + 1
        return False

    def hand_over(self, values: Values) -> Pending | None:
        """Has another thread compile this case, where calls do not wait for code; None where this call has to."""
        if self.derivative.behind is None or self.tries == LIMIT:
            return None
        self.tries += 1
        self.pending = self.derivative.behind(values, self.again, self.deliver)
        if self.pending is None:
            self.tries -= 1
        return self.pending

    def deliver(self, compiled: Compiled | None) -> None:
        """Takes what another thread has made; None where it had to give up."""
        if compiled is not None:
            self.add(compiled)

    def tell(self) -> None:
        """Forgets a thread that is done, and raises what it has raised."""
        pending = self.pending
        if pending is not None and pending.done.is_set():
            self.pending = None
            if pending.error is not None:
                raise pending.error

    def settle(self) -> None:
        """Waits until no other thread makes a case."""
        pending = self.pending
        if pending is not None:
            pending.done.wait()

    def compile(self, values: Values) -> Compiled:
        """One more case, up to the limit."""
        if self.tries == LIMIT:
            fact = f"{LIMIT} cases of one backward pass were met, the limit: this one is computed call by call."
            return reason("limit", fact, self.derivative.line, "Ask for the same gradients in each step.")
        self.tries += 1
        return self.derivative.compile(values, self.again)


def _memory(piece: Piece) -> dict[int, int | None]:
    """The watched tensors that are kept as their memory, with the piece's outputs that they are, and READ_AGAIN for
    those that may be written.
    """
    places = {place: number for number, place in enumerate(piece.outputs)}
    nodes = {output.node: number for number, output in enumerate(piece.primal.outputs)}
    again = {number: READ_AGAIN for number, entry in enumerate(piece.watched) if entry.again}
    kept = [(number, entry) for number, entry in enumerate(piece.watched) if entry.memory]
    outputs = {number: places[entry.place] for number, entry in kept if entry.kind == "output"}
    written = {number: nodes.get(entry.node) for number, entry in kept if entry.settles}
    return again | dict.fromkeys(number for number, _ in kept) | written | outputs


READ_AGAIN = -3  # as native/autograd.c has it
AUTOCAST = ("cpu", "cuda")  # the device types for which it may be on
LIMIT = 32  # cases of one backward: which gradients came, how they lie, which are wanted
