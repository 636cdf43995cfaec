"""Ends stretches of a recording: opaque steps, cuts and retreats, and what the next recording learns from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise

import torch

from framefuse.capture.exits.learnt import step
from framefuse.capture.exits.retreat import undone, untouched, watched
from framefuse.capture.facts.settle import settle
from framefuse.capture.interp.machine import Machine
from framefuse.capture.interp.registry import ENTERING
from framefuse.capture.program.breaks import CONTROL, Before, Break, divides
from framefuse.capture.program.decoded import Code
from framefuse.capture.program.frame import Frame, Pending
from framefuse.capture.program.leaves import is_installed, library_of, warns_above
from framefuse.capture.program.markers import Outcome
from framefuse.capture.program.services import Breaks, Place
from framefuse.capture.program.tracebacks import is_ours
from framefuse.ir.native_warnings import Telling
from framefuse.ir.values import Arguments, Keywords, Value

# Reasons for ending a recording that a break before the instruction heals: what was changed is real after it.
CUT_BEFORE = frozenset(("read-after-write", "data-size"))
# Reasons that are healed where the instruction runs as a step of its own.
STEPS = frozenset(
    ("item", "branch", "numpy", "tensor-attribute", "unknown-tensor", "random-state", "native-call", "autograd",
     "transform", "custom-function", "tensor-kind", "value", "argument", "write", "opcode", "autocast", "length")
)  # fmt: skip


REPLACED = "the data of a tensor"  # what is read after it was written: a tensor that was given other data
# Code that is a part of the line around it.
WITHIN = frozenset(("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"))
NO_LIBRARY = (None, "torch")  # torch calls the forward of modules, which is the program's own


class Exits:
    """The ends of a recording that one machine runs, and the breaks that earlier ones left in the program."""

    def __init__(self, machine: Machine, points: Breaks | None, divides: bool) -> None:
        self.machine = machine
        self.recorder = machine.recorder
        self.frames = machine.frames
        self.points = points
        self.divides = divides  # without points: by what torch has for control flow, and by nothing else
        self.sealed = 0  # what would follow an instruction now is lost by a break
        self.learnt = False
        self.boundaries: dict[int, dict[int, torch.nn.Module]] = {}
        self.before: Before | None = None
        self.watching = self.renewed = False
        self.reads_elements = points is None or not points.replayed
        self.skip: tuple[int, Code, int] | None = None  # depth, code and step: a frame would be held past its end

    def start(self, frame: Frame) -> None:
        """Puts the first frame in its place."""
        if self.points is not None and self.points.learnt:
            frame.code = self.points.cut(frame.code)
            self.watching = True
            frame.code = watched(frame.code)

    def resumed(self) -> None:
        """The frames were put together again: a cut at the instruction that comes next was made already."""
        if self.points is not None and self.points.learnt:
            for frame in self.frames:
                frame.code = self.points.cut(frame.code)
            self.watch()
        top = self.frames[-1]
        self.skip = (len(self.frames), top.code, top.step)

    def release(self) -> None:
        """The run is over here: what it worked on may go."""
        self.skip = None

    def breakable(self) -> bool:
        """Whether all frames between here and the caller can be taken apart at this instruction."""
        control = self.divides and self.frames[-1].code.code in CONTROL
        return (control or self.points is not None) and self._parts()

    def _parts(self) -> bool:
        return self.machine.depth == 1 and not self.sealed and self.recorder.alive

    def opaque(
        self,
        frame: Frame,
        target: Value,
        args: Arguments,
        kwargs: Keywords,
        continuation: Pending | None,
        code: str,
        detail: str,
    ) -> None:
        """Runs a call that cannot be recorded: as a step between two segments, else as the end of the recording."""
        if self.breakable() or (self.divides and divides(target) and self._parts()):
            if warns_above(target, args):
                target = Telling(target, self.recorder.place())
                self.recorder.sources.root(target)
            raise Break(target, args, kwargs, continuation, code, detail)
        memo = self.recorder.settled()
        self.recorder.kill(code, detail)
        args, kwargs = self.hand_over(args, kwargs, memo)
        self.machine.finish(frame, self.machine.natives.handling(target, args, kwargs), continuation)

    def hand_over(
        self, args: Arguments, kwargs: Keywords, memo: dict[int, Value]
    ) -> tuple[Arguments, Keywords]:
        """The arguments of native code after the recording ended: containers stay the very objects, as that may change
        them, and generators become real ones wherever the frames have them.
        """
        memo.update(self.recorder.stand_ins)
        args = settle(args, memo)
        kwargs = {key: settle(part, memo) for key, part in kwargs.items()}
        if self.recorder.generators:
            self.machine.settle(memo)
        return args, kwargs

    def cut(self, frame: Frame, handler: Callable[..., Outcome], argument: int) -> Outcome:
        """Breaks before an instruction at which an earlier recording ended, once for each time that it is met."""
        here = (len(self.frames), frame.code, frame.step - 1)
        if self.skip == here or not self.breakable():
            self.skip = None
            return handler(self.machine, frame, argument)
        frame.step -= 1
        raise Break(None, (), {}, None, "cut", frame.code.line(frame.step).text)

    def retreat(self, detail: str) -> None:
        """Ends the segment before the instruction at hand; returns where that cannot be."""
        before = self.before
        if before is None or not self.breakable() or not undone(self.machine, before):
            return
        before.restore()
        raise Break(None, (), {}, None, "item", detail)

    def refuse(self, code: str, detail: str) -> None:
        """The recording is about to end at this instruction: it breaks here instead, or the next one does."""
        if self.learn(code, detail):
            self._again(None if code in CUT_BEFORE else (code, detail))

    def leave(self, code: str, detail: str) -> bool:
        """As :meth:`refuse` for an instruction that could be recorded, or for what goes through a comprehension that it
        stands in; whether the next recording has a step there.
        """
        if self.points is None or self.sealed:
            return False
        place = len(self.frames) - 1
        while place and (self.frames[place].code.code.co_name in WITHIN or is_ours(self.frames[place].globals)):
            place -= 1
        if place < len(self.frames) - 1:
            return self.breakable() and self.learn_step(self.frames[place], code, detail)
        if not self.learn(code, detail):
            return False
        self._again((code, detail))
        return True

    def learn(self, code: str, detail: str) -> bool:
        """The next recording shall break at this instruction; False where that is known, or of no use."""
        if self.points is None:
            return False
        if not self.breakable():
            self._learn_around(code, detail)
            return False
        frame = self.frames[-1]
        if code in CUT_BEFORE:
            if detail == REPLACED and self._learn_cut_around(self.points):
                return False
            learnt = self.points.learn(frame.code.code, frame.step - 1, None)
            self.learnt |= learnt
            return learnt
        return code in STEPS and self.learn_step(frame, code, detail)

    def _learn_cut_around(self, points: Breaks) -> bool:
        """A library reads what was changed outside of it: the next recording breaks before the program's call into it,
        as other calls come through that instruction too. Whether it does.
        """
        if not is_installed(self.frames[-1].code.code):
            return False
        own = next((each for each in reversed(self.frames) if not is_installed(each.code.code)), None)
        if own is None or is_ours(own.globals) or not points.learn(own.code.code, own.step - 1, None):
            return False
        self.learnt = True
        return True

    def _again(self, why: tuple[str, str] | None) -> None:
        """Takes the instruction at hand back, which was just learnt, and breaks at it as the next recording does;
        returns where that cannot be.
        """
        before = self.before
        if before is None or not (undone if why is None else untouched)(self.machine, before):
            return
        frame = before.restore()
        if why is None:
            raise Break(None, (), {}, None, "cut", frame.code.line(frame.step).text)
        frame.step += 1
        step(self.machine, frame, before.handler, before.argument, why)

    def _learn_around(self, code: str, detail: str) -> None:
        """The recording ends in what native code called: the next one runs the instruction that led there as a step."""
        if self.sealed or self.machine.depth < 2 or code not in STEPS:
            return
        inner = next((place for place in range(1, len(self.frames)) if self.frames[place].bottom), 0)
        if inner:
            self.learn_step(self.frames[inner - 1], code, detail)

    def place(self) -> Place | None:
        """The instruction at hand, where it can be made a step of its own."""
        frame = self.frames[-1]
        return (frame.code.code, frame.step - 1) if self.breakable() else None

    def learn_step(self, frame: Frame, code: str, detail: str) -> bool:
        """The next recording runs the instruction at hand of this frame, where it could have broken, as a step; False
        where that is known, or where the call into its library had better be the step.
        """
        points = self.points
        if points is None:
            return False
        learnt = points.learn(frame.code.code, frame.step - 1, (code, detail))
        self.learnt |= learnt
        library = library_of(frame.code.code)
        if library is not None and points.crowded(library):
            self._learn_entry(points, library, code, detail)
            return False
        return learnt

    def _learn_entry(self, points: Breaks, library: str, code: str, detail: str) -> None:
        """Many recordings would have ended in a library: the next one runs the call that went into it as a step, the
        innermost that can be one.
        """
        for caller, called in reversed(list(pairwise(self.frames))):
            if library_of(caller.code.code) == library or library_of(called.code.code) != library:
                continue
            if called.generator is None and points.learn(caller.code.code, caller.step - 1, (code, detail)):
                self.learnt = True
                points.forget()
                return

    def note_library(self) -> None:
        """A segment ends here: counts the outermost call by which the program went into an installed library."""
        for caller, called in pairwise(self.frames):
            if library_of(called.code.code) not in NO_LIBRARY:
                if self.points is not None and called.generator is None and not is_installed(caller.code.code):
                    self.points.entries[caller.code.code, caller.step - 1] += 1
                return

    def learn_call(self, code: str, detail: str) -> None:
        """No break is possible here: the next recording runs the call that led here as a step. That is the call by
        which the program went into a library, or else the innermost that can be one.
        """
        points = self.points
        if points is None:
            return
        callers = [frame for frame, called in pairwise(self.frames) if called.generator is None]
        own = [frame for frame in callers if not is_installed(frame.code.code)]
        if own and is_installed(self.frames[-1].code.code):
            callers.append(own[-1])
        for frame in reversed(callers):
            if not is_ours(frame.globals) and points.learn(frame.code.code, frame.step - 1, (code, detail)):
                self.learnt = True
                points.forget()
                return

    def learn_places(self, places: Iterable[Place | None], code: str, detail: str) -> bool:
        """The next recording runs these instructions as steps, those that read numbers from tensors for instance; False
        where none can be.
        """
        if self.points is None:
            return False
        learnt = [self.points.learn(*place, (code, detail)) for place in places if place is not None]
        self.learnt |= any(learnt)
        return any(learnt)

    def watch(self) -> None:
        """A number was read from a tensor: from here on an instruction that looks at it can be taken back."""
        if not self.watching and self.points is not None:
            self.watching = self.renewed = True
            for frame in self.frames:
                frame.code = watched(frame.code)

    def later(self, detail: str) -> None:
        """The program makes what it needs from its second call on, as optimizers make their state: the next call is
        worth more than this one.
        """
        if self.points is not None and self.breakable() and self.points.waits(self.frames[-1].code.code):
            self.learnt = True
        self.recorder.kill("first-use", detail)

    def settle_outcome(self, outcome: Value, continuation: Pending | None) -> None:
        """The top frame takes the outcome of an opaque step."""
        if continuation is not None:  # it asks which object this is, and a tensor has only facts that were asked for
            self.recorder.sources.guard_type(outcome)
        try:
            self.machine.finish(self.frames[-1], outcome, continuation)
        except Break:
            raise
        except BaseException as error:
            self.machine.unwind(error, 0)

    def enter(self, frame: Frame) -> None:
        """Has a frame that is about to run, or to go on, break where earlier recordings learnt to."""
        if self.points is None:
            return
        if self.points.learnt:
            frame.code = self.points.cut(frame.code)
        for tell in ENTERING:
            tell(self.machine, frame)
        if self.watching:
            frame.code = watched(frame.code)
