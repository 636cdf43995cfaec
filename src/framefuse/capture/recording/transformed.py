"""Records what a function transform (``torch.func.vmap``, ``grad``, ``jvp``) comes down to: the operators on plain
tensors below its levels, as a dispatch mode sees them.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from framefuse.capture.facts.atoms import ATOMS, CONTAINERS
from framefuse.capture.facts.nested_numbers import pin_nested, strip
from framefuse.capture.recording.call_names import call_name
from framefuse.capture.recording.recorder import Recorder
from framefuse.capture.recording.saved import unreached_by_call
from framefuse.capture.recording.tensors import describe, special, stands_for_another
from framefuse.ir.classes import PLAIN_TENSORS
from framefuse.ir.containers import elements
from framefuse.ir.own_class import is_a
from framefuse.ir.torch_calls import TABLE
from framefuse.ir.trace import refs
from framefuse.ir.values import Arguments, Function, Keywords, Value

# Torch's own Python code of the transforms calls them; where the program does, they end the recording before.
OF_TRANSFORMS = frozenset(("grad", "requires_grad_"))
TELLING = frozenset(("is_same_size", "_has_same_storage_numel"))  # of sizes and strides alone, which are fixed
LARGEST_CONSTANT = 64  # elements of a tensor that is written in the program
Place = tuple[int, int, tuple[int, ...], tuple[int, ...], torch.dtype]


class Transformed(TorchDispatchMode):
    """A call of a transform that is under way. The program's own code in it is interpreted, on tensors that only stand
    for others; what runs below all levels is recorded as calls. Sizes are fixed: the levels read them.
    """

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder
        self.seen = self.first = len(recorder.metas)
        self.first_call = len(recorder.calls)
        self.others: list[torch.Tensor] = []  # further objects for values of the trace
        self.places: dict[Place, int] = {}
        self.materialised: dict[int, int] = {}  # copies that torch makes below autograd, by number, and of what

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: torch would wrap the mode by what imports torch.compile, which nothing here needs."""
        return False

    # ---- above the levels --------------------------------------------------------------------------------------------

    def call(self, function: Function, args: Arguments, kwargs: Keywords) -> Value:
        """A call of torch by the program or by the transform's own code: what it is made of comes below."""
        recorder, name = self.recorder, call_name(function)
        stop = TABLE[name].stop
        if stop and name not in OF_TRANSFORMS:
            recorder.kill(stop, name)
        for value in (*args, *kwargs.values()):
            self.take(value)
        return function(*strip(args), **strip(kwargs))

    def take(self, value: Value, depth: int = 0) -> None:
        """States what native code finds in something that it is given."""
        if type(value) in ATOMS or depth > 6 or not self.recorder.alive:
            return
        if is_a(value, torch.Tensor):
            if not stands_for_another(value) and self.recorder.sources.source_of(value) is not None:
                self.recorder.number(value)
        elif is_a(value, CONTAINERS):
            self.recorder.contents.guard_shallow_contents(value)
            for part in value.values() if is_a(value, dict) else elements(value):
                self.take(part, depth + 1)
        else:
            pin_nested(value)

    # ---- below the levels --------------------------------------------------------------------------------------------

    def __torch_dispatch__(
        self, func: Function, types: object, args: Arguments = (), kwargs: Keywords | None = None
    ) -> Value:
        recorder, kwargs = self.recorder, kwargs or {}
        if not recorder.alive or recorder.paused:
            return func(*args, **kwargs)
        with torch._C.DisableTorchFunction(), torch._C._PreserveDispatchKeyGuard():
            # Below a mode torch leaves out what resolves lazy conjugates, also those that an operator makes inside:
            # linalg.pinv of complex matrices gives other numbers there.
            for key in (torch._C.DispatchKey.Conjugate, torch._C.DispatchKey.Negative):
                torch._C._dispatch_tls_set_dispatch_key_excluded(key, False)
            return self._operator(func, args, kwargs)

    def _operator(self, function: Function, args: Arguments, kwargs: Keywords) -> Value:
        recorder, name = self.recorder, call_name(function)
        if name in TELLING or _is_meta((args, kwargs)) or kwargs.get("device") == META:
            return function(*args, **kwargs)
        if TABLE[name].resizes and self._is_own(args[0]):
            return recorder.reshaped(function, name, args, kwargs)
        if TABLE[name].stop:
            recorder.kill(TABLE[name].stop, name)
        elif name == "_efficientzerotensor" or any(tensor._is_zerotensor() for tensor in _tensors((args, kwargs))):
            out = function(*args, **kwargs)
            if all(tensor._is_zerotensor() for tensor in _tensors(out)):
                for tensor in _tensors(out):
                    self._zeros(tensor)
                return out
        elif name == "lift_fresh":
            self._constant(args[0])
        elif recorder.ambient.nested or any(on for on, _ in recorder.ambient.rows.values()):
            recorder.kill("autocast", "A function transform")
        for tensor in _tensors((args, kwargs)):
            self.find(tensor)
            if type(tensor) not in PLAIN_TENSORS:  # a class of its own, whose functions ran above the levels
                recorder.kill("tensor-kind", f"A {type(tensor).__name__}")
        turned = name == "clone" and torch.is_grad_enabled() and (args[0].is_conj() or args[0].is_neg())
        value = recorder.run(function, name, args, kwargs)
        if turned and id(value) in recorder.numbers and id(args[0]) in recorder.numbers:
            self.materialised[recorder.numbers[id(value)]] = recorder.numbers[id(args[0])]
        return value

    def _is_own(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor was made below the levels, in memory of its own."""
        recorder = self.recorder
        number = recorder.numbers.get(id(tensor), -1)
        if number < self.first:
            return False
        memory = recorder.metas[number].storage
        return all(memory != meta.storage for meta in recorder.metas[: self.first])

    def find(self, tensor: torch.Tensor) -> None:
        """Looks whether another object for a tensor is known: autograd gives the program one of its own."""
        recorder = self.recorder
        if id(tensor) in recorder.numbers or recorder.sources.source_of(tensor) is not None or _has_no_memory(tensor):
            return
        known = recorder.tensors
        for number in range(self.seen, len(known)):
            if not _has_no_memory(known[number]) and not self._turned(number):
                self.places.setdefault(_place(known[number]), number)
        self.seen = len(known)
        number = self.places.get(_place(tensor), -1)
        if number >= 0:
            self._note(tensor, number)

    def _turned(self, number: int) -> bool:
        """Whether the tensor of this number was turned in place: it is another value of the trace by now."""
        recorder = self.recorder
        return recorder.numbers.get(id(recorder.tensors[number])) != number

    def _note(self, tensor: torch.Tensor, number: int) -> None:
        self.recorder.numbers[id(tensor)] = number
        self.others.append(tensor)

    def _zeros(self, tensor: torch.Tensor) -> None:
        """Zeros without memory, as derivatives of constants are: in the trace they have some."""
        recorder = self.recorder
        kind = {"dtype": tensor.dtype, "device": tensor.device}
        made = recorder.run(torch.zeros, "zeros", (tuple(tensor.shape),), kind)
        number = recorder.number(made)
        if number is not None:
            self._note(tensor, number)

    def _constant(self, tensor: torch.Tensor) -> None:
        """A tensor that torch made of numbers: these stand in the program, or guards hold them."""
        recorder = self.recorder
        if id(tensor) in recorder.numbers or recorder.sources.source_of(tensor) is not None:
            return
        made = None
        if tensor.device.type == "cpu" and special(tensor) is None:
            made = self._written(tensor) if tensor.numel() <= LARGEST_CONSTANT else self._large(tensor)
        if made is None:
            recorder.kill("native-call", "torch.tensor in a function transform")
            return
        number = recorder.number(made)
        if number is not None:
            self._note(tensor, number)

    def _written(self, tensor: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.recorder.run(torch.tensor, "tensor", (tensor.tolist(),), {"dtype": tensor.dtype})
        return made

    def _large(self, tensor: torch.Tensor) -> torch.Tensor:
        """A constant that no program says: few numbers beside zeros, as the first state of a circuit is, or a copy."""
        run = self.recorder.run
        with _disable_current_modes():
            kept = tensor.detach().clone(memory_format=torch.contiguous_format)
            flat = kept.reshape(-1)
            bits = flat.view(torch.uint8).reshape(len(flat), -1)  # as zeros may have a sign
            places = bits.any(1).nonzero().reshape(-1)
            values = flat[places]
        shaped: torch.Tensor
        if len(places) > LARGEST_CONSTANT:
            self.recorder.sources.tie()
            self.recorder.sources.root(kept)
            shaped = run(torch.clone, "clone", (kept,), {})
            return shaped
        zeros = run(torch.zeros, "zeros", (tensor.numel(),), {"dtype": tensor.dtype})
        if len(places):
            zeros = run(torch.scatter, "scatter", (zeros, 0, self._written(places), self._written(values)), {})
        shaped = run(torch.reshape, "reshape", (zeros, tuple(tensor.shape)), {})
        return shaped

    # ---- the end -----------------------------------------------------------------------------------------------------

    def end(self, value: Value) -> None:
        """The levels are left with this value: what eager's autograd knows of the results is what it is now."""
        recorder = self.recorder
        if not recorder.alive:
            return
        recorder.relations.pin_sizes()
        for tensor in _tensors(value):
            self.find(tensor)
        with torch._C.DisableTorchFunction():
            for number in range(self.first, len(recorder.metas)):
                tensor = recorder.tensors[number]
                if self._turned(number):
                    recorder.metas[number] = replace(recorder.metas[number], requires_grad=tensor.requires_grad)
                elif number not in recorder.inputs:
                    recorder.metas[number] = describe(tensor, recorder.storages, recorder.families)
            for index in reversed(range(self.first_call, len(recorder.calls))):
                self._lead(index)
        recorder.keep(self.others)

    def _lead(self, index: int) -> None:
        """Says to which operands of a call gradients flow. Where eager's autograd saw a call that is made of several,
        what these hand to each other requires grad as their result does; so does what it copied of a lazy conjugate.
        """
        recorder = self.recorder
        call, metas = recorder.calls[index], recorder.metas
        results, operands = refs(call.result), refs((call.args, call.kwargs))
        if not any(metas[number].requires_grad for number in results):
            return
        for number in operands:
            if metas[self.materialised.get(number, number)].requires_grad and number in self.materialised:
                metas[number] = replace(metas[number], requires_grad=True)
        if any(number in self.materialised for number in results):
            return
        if any(metas[number].requires_grad for number in operands):
            known = [recorder.tensors[number] for number in operands if recorder.tensors[number].requires_grad]
            missed = unreached_by_call([recorder.tensors[number] for number in results], known)
            unreached = [number for number in operands if any(recorder.tensors[number] is part for part in missed)]
            recorder.calls[index] = replace(call, unreached=tuple(unreached))
            return
        for number in operands:
            if number >= self.first and number not in recorder.inputs and metas[number].dtype.is_floating_point:
                metas[number] = replace(metas[number], requires_grad=True)


META = torch.device("meta")


def _has_no_memory(tensor: torch.Tensor) -> bool:
    return stands_for_another(tensor) or special(tensor) is not None


def _is_meta(value: Value) -> bool:
    return any(tensor.is_meta for tensor in _tensors(value))


def _tensors(value: Value) -> list[torch.Tensor]:
    """The tensors in nested containers."""
    if is_a(value, torch.Tensor):
        return [value]
    if is_a(value, dict):
        return [tensor for part in value.values() for tensor in _tensors(part)]
    return [tensor for part in value for tensor in _tensors(part)] if is_a(value, (tuple, list)) else []


def _place(tensor: torch.Tensor) -> Place:
    """Where a tensor lies, by which two objects for one value are known."""
    return (
        tensor.untyped_storage()._cdata, int(tensor.storage_offset()), tuple(tensor.shape), tensor.stride(),
        tensor.dtype,
    )  # fmt: skip
