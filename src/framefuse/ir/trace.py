"""What one recorded call of the user's function left: torch calls in program order, facts, effects and a recipe of the
result.
"""

from __future__ import annotations

from dataclasses import field

import torch

from framefuse.ir.facts import Assumptions, Casts, Input
from framefuse.ir.frozen_classes import dataclass
from framefuse.ir.numbers import Expr, Real, Symbol
from framefuse.ir.source import Line
from framefuse.ir.values import Value


@dataclass(frozen=True, slots=True)
class Ref:
    """A tensor of the trace, by number. Inputs and results of calls share one numbering; an in-place call's result has
    its operand's number.
    """

    value: int


# A recording makes many of these and of the calls below: a frozen class would take three times as long to make one.
@dataclass(slots=True, unsafe_hash=True)
class TensorMeta:
    """What eager really produced for a tensor while recording; never changed.

    ``storage`` numbers the storages met, so equal numbers mean shared memory. Within it ``family`` numbers the tensor
    whose history autograd keeps for the value: its own, or that of its base (``_base``) where it is a ``view``. What
    ``detach()`` and ``.data`` give is a family of its own. ``sizes`` and ``strides`` are the recorded ints.
    """

    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    device: str
    requires_grad: bool
    offset: int
    storage: int
    plain: bool  # strided, not conj/neg/quantised/subclass/functional/meta: kernels may read it
    type: type = torch.Tensor
    view: bool = False  # of another tensor, which may be one that torch keeps to itself
    family: int = -1
    bare: bool = False  # made in inference mode: autograd keeps neither bases nor counts of writes


@dataclass(slots=True, unsafe_hash=True)
class Call:
    """One torch call: ``target`` is the callable that torch's function mode reported (function, method descriptor,
    property getter, or ``"setitem"``).

    ``args``/``kwargs`` are nested tuples, lists, dicts and slices holding :class:`Ref`, :class:`Expr`, :class:`Real`
    and constants. ``result`` has the structure of the real result with tensors replaced by :class:`Ref` and other
    leaves by their recorded constants; None when the result holds no tensor. ``name`` is the plain name (``add``,
    ``linear``, ``__getitem__``). ``written`` lists the values whose memory the call changed (by version counter or
    known semantics). ``random`` is true if the call advanced a generator. ``unreached`` are operands that require grad
    and get none: eager's autograd does not lead to them. ``reshapes``: the program called the in-place form, so the
    result is the operand's own object in new sizes. ``warns``: it warned, which is an effect of the trace.
    ``counts`` are how often each of ``written`` counted a version, where the table of torch's functions has no say.
    ``region`` numbers the checkpoint it was made in, 0 for none: what it gives is computed again for gradients,
    or saved where the number is below zero. ``inference``: a view of a tensor that autograd knows, made in an inference
    mode of the program's own.
    """

    target: Value
    name: str
    args: tuple[Value, ...]
    kwargs: dict[str, Value]
    result: Value
    line: Line | None
    written: tuple[int, ...] = ()
    random: bool = False
    grad_enabled: bool = False
    autocast: Casts = ()  # where autocast was on, with its dtype
    unreached: tuple[int, ...] = ()
    reshapes: bool = False
    warns: bool = False
    region: int = 0
    counts: tuple[int, ...] = ()
    inference: bool = False

    @property
    def assigns(self) -> bool:
        """Whether the call writes items (``x[i] = y``)."""
        return self.target == "setitem" or self.name in ("__setitem__", "setitem")

    @property
    def function(self) -> Value:
        """What runs: the ``target``, or the method that ``"setitem"`` stands for."""
        return torch.Tensor.__setitem__ if self.target == "setitem" else self.target

    @property
    def reads_tensors(self) -> bool:
        """Whether an argument is a value of the trace."""
        return bool(refs((self.args, self.kwargs)))


@dataclass(frozen=True, slots=True)
class Build:
    """A recipe for an object of the result or of an effect. ``kind`` is a row below; parts are recipes, :class:`Ref`,
    Expr, Real or constants.

    ``const`` value; ``source`` Source re-read at run time; ``tuple list set frozenset`` parts; ``dict`` parts are
    (key, part) pairs in order; ``slice`` three parts; ``namedtuple`` value is the class; ``object`` value is the
    class, parts are (attribute, part) pairs put into ``__dict__`` of an instance made by ``cls.__new__`` (``base``
    rebuilds the dict/list/OrderedDict content of a subclass first); ``same`` value is the index of a Build made
    before, so that identity is kept. ``range`` and ``method`` (function, receiver) have their parts; ``partial`` has
    function, arguments, keywords and attributes; ``cell`` its content or nothing; ``function`` value is what lasts of
    it (code, globals, names, text) and parts are defaults, keyword defaults, closure, annotations and attributes;
    ``class`` value is (name, namespace of what is read when it is made), parts are metaclass, bases and a ``dict`` of
    what is filled in; ``instance`` is as ``object``, with parts class and ``dict`` of attributes; ``kind of tuple``
    parts are class and elements; ``call`` the result of calling the value with the parts,
    ``called`` that of calling the first part with a tuple and a dict;
    ``format`` value is (conversion, format specification) of an f-string's one part, ``join`` the text of its parts.
    """

    kind: str
    value: Value = None
    parts: tuple[Value, ...] = ()
    base: Value = None
    number: int = -1


@dataclass(frozen=True, slots=True)
class Effect:
    """A write of the user's program to an object that outlives the call, replayed after the trace in program order.

    ``kind``: ``attr`` (object.__setattr__), ``delattr``, ``setattr`` (through setattr), ``item``, ``delitem``, ``call``
    (method ``key`` of the builtin base class with ``value`` a Build of the argument tuple), ``content`` (a container
    takes the elements of the list or dict ``value``), ``cell``, ``global``, ``invoke`` (calls
    the target with the elements of ``value``). No method of the user's class runs: what
    such a method did are effects of its own.
    """

    kind: str
    target: Value  # Source or Build with number (an object made before)
    key: Value
    value: Value
    line: Line | None


@dataclass(frozen=True, slots=True)
class Holder:
    """One node of eager's autograd graph. Its gradients go to the nodes number ``onto``, which stand before it, and to
    the ``inputs`` of the trace. It saved the memory of ``storages``; of the inputs among them ``selves`` as the tensors
    that they are, and with ``more`` memory that no value of the trace has. ``frees``: a second walk through it is an
    error, unless the graph was retained. ``again`` is memory of inputs that a checkpoint reads again in a walk, as it
    is by then. Walks come to nodes with a higher ``age`` first; ``forms`` are the storages that the node saved, in its
    order, with the sizes that it saw, and whether that tensor requires grad. A write to a view that saved what it wrote
    has that memory as ``written``.
    """

    onto: tuple[int, ...]
    inputs: tuple[int, ...]
    storages: frozenset[int]
    selves: frozenset[int]
    frees: bool
    more: bool = False
    again: frozenset[int] = frozenset()
    age: int = 0
    forms: tuple[tuple[int, tuple[int, ...], bool], ...] = ()
    written: int = -1


@dataclass(frozen=True, slots=True)
class Autograd:
    """The nodes of eager's autograd graph that lead from what left the recorded call to its inputs; ``made`` gives the
    node of each value that left, ``shown`` the name of that and which of its results the value is, ``along`` the nodes
    of the values on the way. ``bytes`` is the size of all saved memory that is no input's.
    """

    holders: tuple[Holder, ...]
    made: dict[int, int]
    bytes: int
    along: dict[int, int] = field(default_factory=dict)
    shown: dict[int, tuple[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Trace:
    """The whole record. ``metas[v]`` describes value ``v`` as first produced; ``size_symbols[(v, d)]`` is the symbol
    that stands for size ``d`` of value ``v`` in Exprs of this trace (inputs' free sizes are also in their TensorSpec),
    or for the one element of an int64 tensor where ``d`` is ELEMENT; ``hints`` gives each symbol's recorded value.
    ``autograd`` is what eager's graph of gradients held (None: not known), ``versions`` are the version counters that
    values had at the end, those of 0 left out. ``asks``: the step at which it ends asks for gradients of tensors.
    ``tied``: the program looked at what is another thing in each process, an address or the order of a set, and no
    other process may use the trace. ``ranges`` are names that the program gives parts of itself, for a profiler.
    """

    name: str
    line: Line
    assumptions: Assumptions
    calls: tuple[Call, ...]
    metas: tuple[TensorMeta, ...]
    size_symbols: dict[tuple[int, int], Symbol]
    hints: dict[Symbol, int]
    real_hints: dict[str, float]
    result: Value  # Ref, Expr, Real, Build or constant
    effects: tuple[Effect, ...]
    opcodes: int = 0
    inlined: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    autograd: Autograd | None = None
    versions: dict[int, int] = field(default_factory=dict)
    asks: bool = False
    tied: bool = False
    ranges: tuple[str, ...] = ()

    @property
    def written_inputs(self) -> tuple[Input, ...]:
        """The inputs whose memory the calls write."""
        storages = {self.metas[value].storage for call in self.calls for value in call.written}
        return tuple(entry for entry in self.assumptions.inputs if self.metas[entry.value].storage in storages)


LEAVES = frozenset((int, float, bool, str, type(None), Expr, Real))  # arguments that hold no other
CONVERSIONS: tuple[Value, ...] = (None, str, repr, ascii)


def formatted(value: Value, conversion: int, spec: str) -> str:
    """What an f-string makes of a value: ``conversion`` is 1 for ``!s``, 2 for ``!r``, 3 for ``!a``, else 0."""
    return format(CONVERSIONS[conversion](value) if conversion else value, spec)


def refs(value: Value) -> list[int]:
    """The values named anywhere in nested arguments or in a recipe, in order."""
    numbers: list[int] = []
    waiting = [value]
    while waiting:
        part = waiting.pop()
        kind = type(part)
        if kind is Ref:
            numbers.append(part.value)
        elif kind in LEAVES:
            continue
        elif isinstance(part, (tuple, list)):
            waiting.extend(reversed(part))
        elif isinstance(part, dict):
            waiting.extend(reversed(part.values()))
        elif isinstance(part, slice):
            waiting += (part.step, part.stop, part.start)
        elif hasattr(part, "parts"):
            waiting += (part.base, *reversed(part.parts))
    return numbers


def outside(result: Value, effects: tuple[Effect, ...]) -> tuple[int, ...]:
    """The values that a result and effects name, each once, in order."""
    numbers = dict.fromkeys(refs(result))
    for effect in effects:
        numbers.update(dict.fromkeys(refs((effect.target, effect.key, effect.value))))
    return tuple(numbers)
