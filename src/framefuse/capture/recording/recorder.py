"""Turns the torch calls of a real run into numbered values and Calls, through a torch function mode."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

import torch
from torch.overrides import TorchFunctionMode

from framefuse.capture.facts.contents import Contents
from framefuse.capture.facts.effects import Journal
from framefuse.capture.facts.functions import Functions
from framefuse.capture.facts.nested_numbers import strip
from framefuse.capture.facts.relations import Relations
from framefuse.capture.facts.settle import HELD, ITSELF, settle
from framefuse.capture.facts.sources import Sources
from framefuse.capture.program.frame import InterpretedGenerator
from framefuse.capture.program.lookups import LOOKUPS, Lookup
from framefuse.capture.program.services import Interpreter, Memo, Place
from framefuse.capture.recording import attention_kernels, call_names, devices
from framefuse.capture.recording.call_arguments import CallArguments
from framefuse.capture.recording.number_checks import state_checks
from framefuse.capture.recording.run_time_sizes import Sizes
from framefuse.capture.recording.saved import Entrances, unreached_by_call
from framefuse.capture.recording.scalars import Scalars
from framefuse.capture.recording.state import Ambient, casts_now, global_state
from framefuse.capture.recording.tensors import (
    Entrance,
    describe,
    keys_of,
    lies_in_module,
    special,
    versions_of,
)
from framefuse.capture.recording.waits import Waits
from framefuse.capture.recording.warning_stretches import dropped, innermost
from framefuse.capture.recording.wrappers import Made
from framefuse.capture.recording.written_memory import Prepared, WrittenMemory
from framefuse.errors import Reason
from framefuse.ir import elements
from framefuse.ir.facts import Source, before_ones
from framefuse.ir.marks import DIMENSIONS
from framefuse.ir.native_warnings import NOWHERE, Hearing, Telling, WarningPlace
from framefuse.ir.nested import numbers_in
from framefuse.ir.numbers import Symbol
from framefuse.ir.own_class import is_a
from framefuse.ir.source import Line
from framefuse.ir.stops import reason
from framefuse.ir.torch_calls import TABLE
from framefuse.ir.trace import Call, Ref, TensorMeta
from framefuse.ir.values import Arguments, Function, Keywords, Value
from framefuse.options import FLOATS

T = TypeVar("T")
# Elements from which a tensor whose last sizes are 1 is compiled as the column it is until another one comes. Measured,
# 1,000 and 20,000 rows in the speed of eager: softmax 0.48, cummin 0.40 and 0.14, mean 0.26, pad 0.09 for any sizes;
# 1.5 and more as columns.
COLUMN = 128


class Levels(Protocol):
    """A function transform under way, of whose calls of torch the trace holds what they come down to."""

    def call(self, function: Function, args: Arguments, kwargs: Keywords) -> Value: ...
    def take(self, value: Value, depth: int = 0) -> None: ...


class Recorder:
    """What one run leaves behind; ``kill`` ends the recording, and the run goes on without it.

    Tensors are known by identity and held until the recording ends, so that numbers stay unique.
    """

    mode: TorchFunctionMode

    def __init__(self, dynamic: bool | str | None, moving: frozenset[Source] = frozenset()) -> None:
        self.alive = True
        self.moving = moving
        self.replaced: set[int] = set()  # tensors that were given other data: what reads them is behind a break
        self.carried: frozenset[int] = frozenset()  # the arguments of this point that the call made
        self.forget: Callable[[], None] | None = None  # lets go of what the run holds of earlier stretches
        self.looked_up: dict[type, Lookup] = {}
        LOOKUPS.types = self.looked_up
        self.reason: Reason | None = None
        self.bug: Exception | None = None
        self.symbolic = dynamic is None or dynamic is True
        self.moves_floats = dynamic == FLOATS
        self.holds_columns = dynamic is None  # that sizes of 1 behind all others stay 1 until they are seen to change
        self.machine: Interpreter | None = None
        self.relations = Relations(self)
        self.sources = Sources(self, self.relations)
        self.contents = Contents(self.sources)
        self.functions = Functions(self.sources)
        self.journal = Journal(self.sources, self.contents, self.functions)
        self.calls: list[Call] = []
        self.metas: list[TensorMeta] = []
        self.numbers: dict[int, int] = {}
        self.tensors: list[torch.Tensor] = []
        self.storages: dict[int, int] = {}
        self.families: dict[int, int] = {}
        self.inputs: dict[int, Entrance] = {}
        self.entrances = Entrances()
        self.exact_strides = False
        self.readers: dict[Symbol, Place | None] = {}  # what read the numbers
        self.gradients_matter = torch.is_grad_enabled()
        self.state = global_state()
        self.ambient = Ambient()
        self.generators = False
        self.stand_ins: Memo = {}  # the real generators that frames got as the recording ended, by id
        self.mode_calls = 0
        self.called: Function | None = None  # the Python function of torch that runs natively
        self.mode_arguments: tuple[int, ...] = ()  # the ids of what the last of them was given
        self.paused = False
        self.region = 0  # the checkpoint that the program is in
        self.reentrant = False  # and it is one whose function eager runs without gradients at first
        self.asked_reentrant = False  # whether that function asked
        self.first_module_call = True
        self.waits = Waits(self)
        self.wrappers: Made = {}  # tensors around others that the program made, with their sizes
        self.sizes = Sizes(self)
        self.scalars = Scalars(self)
        self.arguments = CallArguments(self)
        self.memory = WrittenMemory(self)
        # Results of custom autograd functions that show an argument's memory: place, value, memory, next call.
        self.views: list[tuple[Line | None, int, int, int]] = []
        self.transformed: Levels | None = None  # the call of a function transform that is under way
        self._kept: list[torch.Tensor] = []
        self._warned = False  # in the torch call under way
        self._told: WarningPlace | None = None  # where C code of it warned

    def attach(self, machine: Interpreter, mode: TorchFunctionMode) -> None:
        """Names the machine that runs the program, and the mode by which torch hands its calls over."""
        self.machine, self.mode = machine, mode

    def was_made(self, value: Value) -> bool:
        """Whether the call made this object, and a weak reference to it tells when the call lets go of it."""
        return type(value).__weakrefoffset__ != 0 and self.is_own(self.sources.source_of(value))

    def is_own(self, source: Source | None) -> bool:
        """Whether an object with this source was made by the call, in this recording or in one before a break."""
        return source is None or (source.root.kind == "arg" and source.root.key in self.carried)

    def note_mode_call(self, args: Arguments, kwargs: Keywords) -> None:
        """Counts a call that came by the mode."""
        self.mode_calls += 1
        self.mode_arguments = (*map(id, args), *map(id, kwargs.values()))

    def takes_module_call(self) -> bool:
        """Whether another module was called before: what the first call states, all have in common."""
        first, self.first_module_call = self.first_module_call, False
        return not first

    def detach(self) -> None:
        """The run is over: what the machine worked on may go."""
        self.machine = None
        self.forget = None

    def note_generator(self) -> None:
        """Notes that the interpreter made a generator of its own: an unstarted one becomes a real one as it leaves."""
        self.generators = True

    def note_warning(self) -> None:
        """Notes that torch's Python code warned, which later calls do as an effect."""
        self._warned, self.memory.lasting = True, self.memory.lasting + 1

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """Runs code whose calls are no part of the trace."""
        self.paused = True
        try:
            yield
        finally:
            self.paused = False

    def keep(self, tensors: list[torch.Tensor]) -> None:
        """Holds further objects for values of the trace, by whose identity these are known."""
        self._kept += tensors

    # Ending ---------------------------------------------------------------------------------------------------------

    def kill(self, code: str, detail: str) -> None:
        """Gives the recording up for the reason of this row; nothing of the program is held any longer."""
        if not self.alive:
            return
        if self.machine is not None:
            self.machine.exits.refuse(code, detail)
        self.end(code, detail)

    def leave(self, code: str, detail: str) -> bool:
        """Leaves the instruction at hand to a step, as recording it is in vain; False where that cannot be."""
        if not self.alive or self.machine is None or not self.machine.exits.leave(code, detail):
            return False
        self.end(code, detail)
        return True

    def refuse_write(self, detail: str, *values: Value) -> tuple[Value, ...]:
        """Gives the recording up for a write; the values, which no frame has any longer, as they may be written."""
        if not self.alive:
            return self.released(*values)
        memo = self.settled()
        self.kill("write", detail)
        return tuple([settle(value, memo) for value in values])

    def released(self, *values: Value) -> tuple[Value, ...]:
        """Values that an instruction took from its frame, as native code may have them: plain once it ended."""
        if self.alive:
            return values
        memo = dict(self.machine.unsettled or {}) if self.machine is not None else {}
        return tuple([settle(value, memo) for value in values])

    def end(self, code: str, detail: str) -> None:
        """Gives the recording up; what the next one does otherwise was learnt already."""
        self.alive = False
        self.reason = reason(code, detail, self.line())
        if self.relations.tracked:
            memo = self.settled()
            again = dict(memo)  # it may be needed later: what the program made is not held until then
            self.journal.settle(memo)
            if self.machine is not None:
                self.machine.settle(memo)
            self.stand_ins = {key: pair for key, pair in memo.items() if type(pair[0]) is InterpretedGenerator}
            if self.machine is not None:
                self.machine.unsettled = {**again, **self.stand_ins}
        self.drop()
        if self.forget is not None:
            self.forget()

    def settled(self) -> Memo:
        """The objects that hold no number of this recording, for ``settle``: those that existed before. What the
        program wrote to them is in the journal.
        """
        known = [entry for entry in self.sources.entries() if not self.is_own(entry[1])]
        return {**{id(value): ITSELF for value, _ in known}, HELD: (known, known)}

    def fault(self, error: Exception) -> None:
        """Something of our own failed: the recording ends, and the program goes on."""
        if is_a(error, (RecursionError, MemoryError)):  # the program's own depth or greed
            self.kill("recursion", str(sys.getrecursionlimit()))
            return
        self.blame(error)

    def blame(self, error: Exception) -> None:
        """Ends the recording for a fault of our own, of which the first is reported."""
        if self.bug is None:
            self.bug = error
        self.kill("fault", f"{type(error).__name__}: {error}")

    def attempt(self, work: Callable[[], T], otherwise: T) -> T:
        """The value of ``work``, a piece of our own; a fault in it ends the recording."""
        try:
            return work()
        except Exception as error:
            self.fault(error)
            return otherwise

    def guard_function(self, function: types.FunctionType) -> None:
        """A function among the arguments is made as it was."""
        self.functions.guard(function)

    def forget_readings(self) -> None:
        """Code ran out of sight: whatever is read from now on is a new reading with facts of its own."""
        self.sources.forget_readings()
        self.functions.forget_readings()

    def explain(self, why: Reason) -> None:
        """Gives the recording that ended a reason that says more."""
        self.reason = why

    def close(self) -> None:
        """Ends a recording that is complete."""
        self.alive = False
        self.drop()

    def drop(self) -> None:
        """Lets go of everything that the program made."""
        self.sources = Sources(self, self.relations)
        self.contents = Contents(self.sources)
        self.functions = Functions(self.sources)
        self.journal = Journal(self.sources, self.contents, self.functions)
        self.calls, self.tensors, self.numbers, self.inputs, self._kept = [], [], {}, {}, []
        self.arguments = CallArguments(self)
        self.waits.forget()
        self.wrappers = {}
        self.entrances = Entrances()
        self.scalars, self.memory = Scalars(self), WrittenMemory(self)
        self.looked_up.clear()

    def line(self) -> Line | None:
        """The user's line that runs now."""
        try:
            machine = self.machine
            if machine is None:
                return None
            if machine.frames:
                top = machine.frames[-1]
                shown = top.shown
                if shown is not None and shown[0] == top.step:  # one instruction states many facts
                    return shown[1]
            return machine.line()
        except Exception as fault:
            self.fault(fault)
            return None

    def placed(self) -> Line | None:
        """The user's line that runs now, with the instruction that does."""
        line, machine = self.line(), self.machine
        if line is None or machine is None or not machine.frames:
            return line
        return Line(line.file, line.line, line.function, machine.site())

    def fix_strides(self) -> None:
        """The program read strides, which the order of dimensions does not fix: guards hold them."""
        self.exact_strides = True

    def guard_gradients(self) -> None:
        """The program looked at what gradients are made of: guards hold which inputs require grad."""
        self.gradients_matter = True

    def asked_during_run(self, read: list[Symbol], detail: str) -> None:
        """The program looks at a number that is known only while the trace runs: the segment ends before that. Where it
        cannot, the next recording reads the number in a step; ``read`` are the symbols of elements of tensors.
        """
        machine = self.machine
        whole = machine is not None and machine.exits.points is None  # a graph of its own, or an error
        if read and machine is not None:
            machine.exits.retreat(detail)
            if machine.exits.learn_places([self.readers[symbol] for symbol in read], "item", detail):
                self.end("item", detail)
                return
        self.kill("item" if read and whole else "data-size", detail)

    def volatile_pinned(self) -> None:
        """The program looks at the value of a run-time number that comes out of a break."""
        if self.machine is not None:
            self.machine.exits.learn("value", "An instruction")

    def compared(self, *tensors: torch.Tensor) -> None:
        """The program asks whether a tensor that it made is another one: contiguous() gives its operand or a copy, as
        memory lies.
        """
        calls = [call for call in self.calls if call.name == "contiguous"]
        parts = {part.value for call in calls for part in (call.result, *call.args[:1]) if type(part) is Ref}
        if all(self.numbers.get(id(tensor)) in parts for tensor in tensors):
            self.relations.pin_sizes()
            self.fix_strides()

    # Values ---------------------------------------------------------------------------------------------------------

    def number(self, tensor: torch.Tensor) -> int | None:
        """The number of a tensor; a tensor met first becomes an input, and one without origin ends the recording."""
        try:
            number = self.numbers.get(id(tensor))
            if self.replaced and id(tensor) in self.replaced:
                self.kill("read-after-write", "the data of a tensor")
            if number is not None or not self.alive:
                return number
            source = self.sources.source_of(tensor)
            with torch._C.DisableTorchFunction():
                kind = special(tensor)  # first: a parameter that is not made yet has no sizes to speak of
                if kind is not None:
                    self.kill("tensor-kind", kind)
                    return None
                if source is None:
                    self.kill("unknown-tensor", f"a {type(tensor).__name__} of sizes {tuple(tensor.shape)}")
                    return None
                return self._add_input(tensor, source)
        except Exception as fault:
            self.fault(fault)
            return None

    def _add_input(self, tensor: torch.Tensor, source: Source) -> int:
        number = self.add(tensor)
        if self.gradients_matter:
            self.entrances.add(number, tensor)
        fixed = not self.symbolic or isinstance(tensor, torch.nn.Parameter) or lies_in_module(source)
        marked = tensor.__dict__.get(DIMENSIONS, {})
        holds = self.holds_columns and tensor.numel() >= COLUMN and source not in self.moving
        thin = before_ones(tensor.shape) if holds else tensor.ndim
        sizes: list[Symbol | int] = []
        for dim, size in enumerate(tensor.shape):
            if not marked.get(dim, not fixed and dim < thin):
                sizes.append(size)
                continue
            symbol = self.sizes.symbols[number, dim] = self.relations.new_symbol("s", size)
            sizes.append(symbol)
        self.inputs[number] = Entrance(source, keys_of(tensor), tuple(sizes), fixed and not marked)
        self.memory.add_input(number, tensor)
        self.scalars.meet(number, tensor)
        return number

    def add(self, tensor: torch.Tensor) -> int:
        """A number for a tensor as it is now; what it had before is another value of the trace."""
        number = len(self.metas)
        self.metas.append(describe(tensor, self.storages, self.families))
        self.numbers[id(tensor)] = number
        self.tensors.append(tensor)
        return number

    def requires_grad(self, tensor: torch.Tensor) -> bool | None:
        """Whether a tensor requires grad, which guards then hold; None for a tensor that is not known."""
        if self.number(tensor) is None:
            return None
        self.guard_gradients()
        requires: bool = tensor.requires_grad
        return requires

    # Calls ----------------------------------------------------------------------------------------------------------

    def run(self, function: Function, name: str, args: Arguments, kwargs: Keywords) -> Value:
        """Runs a torch call for real and records it."""
        args, kwargs = self.scalars.sized(name, args, kwargs)
        prepared = self._prepare(name, args, kwargs)
        if self.arguments.has_numbers:
            args, kwargs = strip(args), strip(kwargs)
        if prepared is None or not self.alive:
            return function(*args, **kwargs)
        try:
            with Hearing(self.tell):
                out = function(*args, **kwargs)
        except Exception as error:  # whether it fails, and its text, may depend on sizes and values
            self.kill("raises", type(error).__name__)
            raise
        if self.alive:
            self._note(function, name, args, kwargs, prepared, out)
        return out

    def tell(self, warning: Warning) -> None:
        """A warning of C, which the program gets as if it had made the call itself."""
        self._told = NOWHERE if dropped(self.ambient, str(warning), type(warning)) else self.place()
        if self._told is not NOWHERE and innermost(self.ambient) is not None:
            self.kill("native-call", "warnings.warn")
        self._told.tell(warning)

    def place(self) -> WarningPlace:
        """Where C puts a warning that it gives now."""
        frame = self.machine.frames[-1] if self.machine is not None else None
        line = frame.code.line(frame.step - 1) if frame is not None else Line("sys", 0, "")
        module = frame.globals.get("__name__", "") if frame is not None else "sys"
        return WarningPlace(module, line.file, line.line)

    def _prepare(self, name: str, args: Arguments, kwargs: Keywords) -> Prepared | None:
        """What is known of a torch call before it runs."""
        try:
            self._warned, self._told = False, None
            recorded, named, operands = self.arguments.of_call(args, kwargs)
            if call_names.makes_leaf(kwargs):
                self.kill("tensor-attribute", "requires_grad")
            if not self.alive:
                return None
            state = devices.random_states() if call_names.may_be_random(name, kwargs) else None
            # The inner mode may say otherwise.
            tracks = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
            required = tracks and bool(operands) and operands[0].requires_grad
            versions = versions_of(operands)
            return self.memory.about_to_run(Prepared(recorded, named, operands, versions, state, tracks, required))
        except Exception as fault:
            self.fault(fault)
            return None

    def _note(
        self, function: Function, name: str, args: Arguments, kwargs: Keywords, prepared: Prepared, out: Value
    ) -> None:
        """Records a torch call that gave ``out``."""
        try:
            operands, state = prepared.operands, prepared.random_state
            written = self.memory.written_by(function, name, prepared, args, kwargs)
            if "out" in kwargs and any(self.tensors[number].shape != self.metas[number].sizes for number in written):
                # Torch warns where there were elements: at the program's own line only as the call runs as it is.
                (self.kill if self._told is None else self.end)("tensor-attribute", "The resizing")
                return
            if written:
                self.memory.count(written, getattr(function, "counts", 1) > 0)
                if not self.alive:
                    return
                if self.gradients_matter and prepared.grad_enabled:
                    with torch._C.DisableTorchFunction():
                        tensors = [self.tensors[number] for number in written]
                        self.entrances.wrote(function, args, kwargs, prepared.required, tensors)
            advanced = (state is not None and devices.drew(state)) or TABLE[name].generator
            if prepared.named:
                # A generator that is an argument moves too.
                advanced = advanced or any(is_a(value, Source) for value in prepared.named.values())
            self.memory.ran(bool(written or advanced or self._told) or call_names.may_act(name))
            data = counts = call_names.sizes_from_data(name, args, kwargs)
            if self.sizes.from_data:
                data = data or any(self.numbers[id(tensor)] in self.sizes.from_data for tensor in operands)
            if self.readers and not data and call_names.sized_by_numbers(name):
                data = any(map(self.relations.is_from_data, numbers_in((prepared.recorded, prepared.named))))
            first = len(self.metas)
            result = self._result(out, data)
            if not self.alive:
                return
            if counts and TABLE[name].data in COUNTING:
                self.sizes.counting.update(range(first, len(self.metas)))
            if call_names.typed_by_numbers(name, args, kwargs):
                prepared.named["dtype"] = out.dtype
            places = [meta.device for meta in self.metas[first:]]
            devices.by_type(self.sources, name, (*args, *kwargs.values()), operands, places)
            if result is NO_TENSOR and not written and not (TABLE[name].generator or TABLE[name].checks):
                if name != "unbind" or len(out):  # of no rows it makes nothing; whoever asks for it fixes their number
                    self.kill("native-call", name)
                return
            called = attention_kernels.carried(self.ambient.kernels, self.sources, function, name, operands)
            self.calls.append(
                Call(
                    called if written or self._told is None else Telling(called, self._told),
                    name,
                    prepared.recorded,
                    call_names.by_torchs_names(function, prepared.named),
                    None if result is NO_TENSOR else result,
                    self.placed(),
                    written,
                    advanced,
                    prepared.grad_enabled,
                    casts_now(),
                    () if written or not prepared.grad_enabled else self._unreached(operands, first),
                    warns=self._warned,
                    region=self.region,
                    counts=self.memory.counts(name, prepared, written),
                )
            )
            if self.relations.tracked:
                made = self.metas[first:] or [self.metas[number] for number in written]
                found = state_checks(self.relations, self.calls[-1], made[0].dtype if made else None)
                if self.transformed is None and not self.region:
                    for limited in found:
                        self.run(elements.within, "within", limited, {})
        except Exception as fault:
            self.fault(fault)

    def _unreached(self, operands: list[torch.Tensor], first: int) -> tuple[int, ...]:
        """The operands of a call to which no gradient flows, though they require one."""
        if not any(meta.requires_grad for meta in self.metas[first:]):
            return ()
        return tuple([self.numbers[id(tensor)] for tensor in unreached_by_call(self.tensors[first:], operands)])

    def reshaped(self, function: Function, name: str, args: Arguments, kwargs: Keywords) -> Value:
        """Runs an in-place change of the sizes of a tensor that was made in this call: from now on the object is
        another value of the trace, a view of what it was.
        """
        prepared = self._prepare(name, args, kwargs)
        args, kwargs = (strip(args), strip(kwargs)) if self.arguments.has_numbers else (args, kwargs)
        try:
            out = function(*args, **kwargs)
        except Exception as error:
            self.kill("raises", type(error).__name__)
            raise
        if prepared is not None and self.alive:
            number = self.add(args[0])
            out_of_place = getattr(torch.Tensor, name.removesuffix("_"))
            self.calls.append(
                Call(
                    out_of_place, name.removesuffix("_"), prepared.recorded, prepared.named, Ref(number), self.placed(),
                    grad_enabled=prepared.grad_enabled, reshapes=True, region=self.region,
                )
            )  # fmt: skip
        return out

    def _result(self, out: Value, data: bool) -> object:
        if is_a(out, torch.Tensor):
            number = self.numbers.get(id(out))
            if number is None:
                kind = special(out, lazy=True)
                if kind is not None:
                    self.kill("tensor-kind", f"A result that is {kind}")
                    return NO_TENSOR
                source = self.sources.source_of(out)
                number = self._add_input(out, source) if source is not None else self.add(out)
                if data:
                    self.sizes.from_data.add(number)
            return Ref(number)
        if is_a(out, (tuple, list)):
            parts = [self._result(part, data) for part in out]
            if all(part is NO_TENSOR for part in parts):
                return NO_TENSOR
            parts = [value if part is NO_TENSOR else part for part, value in zip(parts, out, strict=True)]
            return parts if is_a(out, list) else tuple(parts)
        return NO_TENSOR


NO_TENSOR = object()
COUNTING = ("values", "alone")  # when values decide sizes, in calls that count by their first
