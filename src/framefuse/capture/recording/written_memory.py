"""Says which values a torch call has written, by the counts torch keeps and by what the call is, and from where."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch

from framefuse.capture.program.services import Interpreter, Place
from framefuse.capture.recording.tensors import versions_of
from framefuse.ir.own_class import is_a
from framefuse.ir.torch_calls import declared, is_in_place, uncounted
from framefuse.ir.trace import TensorMeta
from framefuse.ir.values import Arguments, Function, Keywords


class Prepared(NamedTuple):
    """A torch call about to run: its arguments as the trace holds them, and what may change by running it; whether its
    first operand ``required`` grad, where gradients are on.
    """

    recorded: tuple[object, ...]
    named: dict[str, object]
    operands: list[torch.Tensor]
    versions: list[int | None]
    random_state: tuple[torch.Tensor, ...] | None
    grad_enabled: bool
    required: bool


class Host(Protocol):
    """What this needs of the recorder: its values by number."""

    metas: list[TensorMeta]
    numbers: dict[int, int]
    tensors: list[torch.Tensor]

    machine: Interpreter | None

    def kill(self, code: str, detail: str) -> None: ...


class WrittenMemory:
    """The counts of writes of the values of a recording, and the instructions that wrote."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.versions: dict[int, dict[int, int | None]] = {}  # of the inputs: by storage, by number
        self.writers: dict[int, set[Place | None]] = {}  # by storage
        self.lasting = 0  # calls that ran, but for those which changed nothing and told nothing

    def about_to_run(self, prepared: Prepared) -> Prepared:
        """A call that may change something."""
        self.lasting += 1
        return prepared

    def ran(self, changed: bool) -> None:
        """It ran; where nothing was ``changed`` by that it can be made again."""
        self.lasting -= not changed

    def add_input(self, number: int, tensor: torch.Tensor) -> None:
        """Notes the count of a new input."""
        self.versions.setdefault(self.host.metas[number].storage, {})[number] = versions_of([tensor])[0]

    def written_by(
        self, function: Function, name: str, prepared: Prepared, args: Arguments, kwargs: Keywords
    ) -> tuple[int, ...]:
        """The values that a call which ran has written, by number."""
        numbers, metas = self.host.numbers, self.host.metas
        operands, before = prepared.operands, prepared.versions
        after, written = versions_of(operands), []
        if after != before:
            written = [
                numbers[id(tensor)]
                for tensor, version, now in zip(operands, before, after, strict=True)
                if version != now
            ]
        out = kwargs.get("out")
        outs = [tensor for tensor in (out if is_a(out, (tuple, list)) else (out,)) if tensor is not None]
        targets = [numbers[id(tensor)] for tensor in outs if is_a(tensor, torch.Tensor)]
        if is_in_place(name) and operands:
            targets.append(numbers[id(operands[0])])
        storages = {metas[target].storage for target in targets}  # other views of them count the write as well
        written = [*targets, *(number for number in written if metas[number].storage not in storages)]
        written += [numbers[id(tensor)] for tensor in uncounted(function, name, args, kwargs) if id(tensor) in numbers]
        if "::" in name:
            written += self._declared(function, args, kwargs, dict(zip(map(id, operands), after, strict=True)), written)
        return tuple(dict.fromkeys(written))

    def _declared(
        self, function: Function, args: Arguments, kwargs: Keywords, versions: dict[int, int | None], written: list[int]
    ) -> list[int]:
        """What the schema of a user's operator says that it writes. Where versions are kept and the write counted none,
        as by code that goes by addresses, the recording ends: compiled code would count one.
        """
        found = [tensor for tensor in declared(function, args, kwargs) if id(tensor) in versions]
        numbers = [self.host.numbers[id(tensor)] for tensor in found]
        for tensor, number in zip(found, numbers, strict=True):
            uncounted = number not in written and versions[id(tensor)] is not None
            if uncounted and getattr(function, "counts", True):
                self.host.kill("native-call", getattr(function, "__name__", "A call"))
        return numbers

    def counts(self, name: str, prepared: Prepared, written: tuple[int, ...]) -> tuple[int, ...]:
        """How often a user's operator counted a version of each value that it wrote: what is several writes inside is
        several versions. Of views of one memory the first has them all.
        """
        if "::" not in name or not written:
            return ()
        before = dict(zip(map(id, prepared.operands), prepared.versions, strict=True))
        seen: set[int] = set()
        counts = []
        for number in written:
            tensor, storage = self.host.tensors[number], self.host.metas[number].storage
            (now,), version = versions_of([tensor]), before.get(id(tensor))
            counts.append(0 if storage in seen else 1 if now is None or version is None else now - version)
            seen.add(storage)
        return tuple(counts)

    def count(self, written: tuple[int, ...], counted: bool = True) -> None:
        """Ends the recording after a write that an input's memory saw and its version did not, as through ``.data``;
        unless such a write is known not to be ``counted``.
        """
        machine = self.host.machine
        place = machine.exits.place() if machine is not None else None
        for storage in {self.host.metas[number].storage for number in written}:
            self.writers.setdefault(storage, set()).add(place)
            versions = self.versions.get(storage, {})
            for number, version in versions.items():
                now = versions_of([self.host.tensors[number]])[0]
                if counted and now == version and now is not None and number not in written:
                    self.host.kill("tensor-attribute", "data")
                    return
                versions[number] = now

    def versions_now(self) -> list[int | None]:
        """The counts of writes of all tensors of the trace."""
        with torch._C.DisableTorchFunction():
            return versions_of(self.host.tensors)
