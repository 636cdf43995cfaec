"""The program that native code runs for one compiled trace: numbers, tensor slots, steps and a template of the result.

Numbers live in one array of 8-byte words per call: int64 or IEEE double bits. The guard program binds the first of
them (sizes, strides, int and float arguments); ``numbers`` computes the rest in order. Tensor slots hold what a step
reads or writes. Templates describe Python values over slots, numbers, guard registers and constants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from framefuse.ir.frozen_classes import dataclass
from framefuse.ir.numbers import C_FUNCTIONS

# Number instructions: (op, destination, left, right); ``const`` holds its int or float in ``left``; unary ones leave
# ``right`` 0. Integer instructions wrap in no case: on overflow, division by zero or an invalid real the call declines
# and runs eagerly.
NumberInstruction: TypeAlias = tuple[str, int, int | float, int]
NUMBER_OPS = (
    "const", "add", "sub", "mul", "floordiv", "mod", "min", "max", "and", "or", "xor", "lshift", "rshift", "power",
    "trunc", "floor", "ceil", "round",  # of a real
    "real_const", "real_of_int",
    "real_add", "real_sub", "real_mul", "real_div", "real_neg", "real_abs", "real_min", "real_max",
    "real_pow", "real_sqrt", "real_floor", "real_float32", "real_floordiv", "real_mod", "real_fmod", "real_atan2",
    "real_copysign", *(f"real_{name}" for name in C_FUNCTIONS),
)  # fmt: skip

# Where a slot's memory comes from:
#   input   bound by the guard program (tensor register); borrowed for the call
#   arena   ``base`` is the number slot of its byte offset into the plan's arena for its device (64-byte aligned); no
#           user ever sees it
#   fresh   a new tensor made by its ``alloc`` step (torch's own allocator), released after its last use or returned
# view    another slot's memory (``base`` is that slot) with other sizes and strides and an element ``offset`` number:
# never visible to users
#   call    the result of a ``call`` step
PLACES = ("input", "arena", "fresh", "view", "call")


@dataclass(frozen=True, slots=True)
class Slot:
    """A tensor of the plan. ``sizes`` and ``strides`` are number slots (strides in elements); ``offset`` a number slot
    or -1 for zero.
    """

    place: str
    dtype: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    base: int = -1
    offset: int = -1
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class KernelStep:
    """Calls compiled code ``int64_t kernel(char **buffers, const int64_t *numbers, int64_t begin, int64_t end)``.

    ``buffers`` are slots (their data pointers are passed), ``numbers`` number slots (copied in order; reals as double
    bits). ``extent`` is the number slot of the parallel axis' length; the range [0, extent) is split over threads when
    the number ``work`` (estimated nanoseconds of the whole on one thread) is above the break-even and ``parallel`` is
    true. A non-zero return value means an error in the user's data (an index out of bounds, an integer division by
    zero): the call is run again eagerly, which raises eager's exception. ``keep`` holds the Python object that owns
    the code at ``address``.
    """

    name: str
    address: int
    buffers: tuple[int, ...]
    numbers: tuple[int, ...]
    extent: int
    work: int
    parallel: bool
    keep: object


# The kinds of a kernel's arguments on a GPU: a slot, or a number and how it is handed over.
LAUNCH_ARGUMENTS = ("pointer", "int64", "int32", "real64", "real32")


@dataclass(frozen=True, slots=True)
class LaunchStep:
    """Launches a kernel of a GPU on torch's current stream of ``device`` (its index), with ceil(extent / ``blocks``)
    programs of ``threads`` threads and ``shared`` bytes of dynamic shared memory; nothing where the number ``extent``
    is 0.

    ``function`` is the driver's handle of the kernel (see ``_native.load_module``) for pointers that are all multiples
    of 16, and numbers that fit: each of ``fits``, (number, multiple, low, high), is such a multiple from low to high.
    ``variant(aligned)`` compiles the code for any numbers, and for such or (not ``aligned``) any pointers, when it is
    first asked for, and gives its handle and its own bytes of shared memory; where it is None or raises, such a run
    declines. ``arguments`` are ("pointer", slot of that device), ("int64", number), ("int32", number), ("real64",
    number) or ("real32", number), in the kernel's order; a number that 32 bits do not hold makes the run decline. So
    that no run declines behind a call step that ``commits``, what can be known of the launches behind it is looked at
    before it. A launch that fails is a RuntimeError with the driver's text.
    ``keep`` holds what the kernel lives in.
    """

    name: str
    function: int
    variant: Callable[[bool], tuple[int, int]] | None
    arguments: tuple[tuple[str, int], ...]
    extent: int
    blocks: int
    threads: int
    shared: int
    device: int
    keep: object
    fits: tuple[tuple[int, int, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class AllocStep:
    """Makes the memory of a ``fresh`` slot: an uninitialised tensor with the slot's sizes, strides and dtype."""

    slot: int


@dataclass(frozen=True, slots=True)
class MatmulStep:
    """``out[b, m, n] = sum_k a[b, m, k] * c[b, k, n] (+ out if accumulate)`` by the BLAS that libtorch
    carries; float32 or float64.

    ``m n k batch`` are number slots. ``a``, ``c`` and ``out`` are slots; ``a_strides`` are three number slots (batch,
    m, k), ``c_strides`` (batch, k, n), ``out_strides`` (batch, m, n) in elements. In each operand one of the last two
    strides is 1 (else the step may not be emitted).
    """

    out: int
    a: int
    c: int
    batch: int
    m: int
    n: int
    k: int
    a_strides: tuple[int, int, int]
    c_strides: tuple[int, int, int]
    out_strides: tuple[int, int, int]
    accumulate: bool = False


@dataclass(frozen=True, slots=True)
class CallStep:
    """Calls a Python callable (usually torch's own builtin) with gradient mode on or off as ``grad`` says, or left as
    it is (``keeps_mode``): ``outs`` are (path of indices into the result, slot).

    ``args`` are templates, ``kwargs`` pairs of name and template. ``binds`` are (slot, dimension, number) to be set
    from a result's real sizes, or for the dimension -1 from its one element, which has 64 bits. A slot in ``normal``
    must have the sizes and strides that its Slot says (kernels read it so): if torch returned other strides it is
    copied into that layout. ``inside`` is True when the callable may see arena or view slots (it neither keeps nor
    returns its operands' memory); otherwise operands are input, fresh or call slots. ``commits`` is True for a call
    that cannot run twice (other processes take part in it, or it lets go of an input): the plan does not decline after
    it. A call of an operator that the program has defined is not made again after it raised: ``once`` gives, of the
    calls of this kind that were made and the error, the context under which the program runs if the plan declines.
    ``name`` is for printing.
    """

    name: str
    function: Callable[..., object]
    args: tuple[Template, ...]
    kwargs: tuple[tuple[str, Template], ...]
    outs: tuple[tuple[tuple[int, ...], int], ...]
    binds: tuple[tuple[int, int, int], ...] = ()
    normal: tuple[int, ...] = ()
    inside: bool = False
    grad: bool = False
    keeps_mode: bool = False
    commits: bool = False
    once: Callable[..., object] | None = None


@dataclass(frozen=True, slots=True)
class ReleaseStep:
    """Drops the tensors of slots that no later step reads; of an input, the reference that the run holds."""

    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NumbersStep:
    """Computes further number instructions, those that depend on sizes bound by the results of earlier steps."""

    numbers: tuple[NumberInstruction, ...]


Step = KernelStep | LaunchStep | AllocStep | MatmulStep | CallStep | ReleaseStep | NumbersStep

# Templates of Python values, as nested tuples with a tag first:
#   ("tensor", slot)      the slot as a torch.Tensor
#   ("int", number)       a Python int
#   ("real", number)      a Python float
#   ("const", object)
#   ("register", index)   the object that the guard program read into that register
# ("tuple"|"list"|"set"|"frozenset", parts...)   ("dict", (key template, value template)...)   ("slice", start, stop,
# step)
#   ("namedtuple", class, builtin, parts...)   as builtin.__new__(class, parts) makes it; builtin is its class in C,
#   whose fields the parts are
#   ("object", class, builtin, ((key template, value template)...), ((name template, value template)...))   an instance
#   as builtin.__new__(class) makes it, with those entries (of a kind of dict) and attributes; builtin is its class in C
#   ("build", callable, parts...)   callable(*parts): anything else; a Python callable of the runtime stage
Template: TypeAlias = tuple[Any, ...]  # one of these: a tag, then what the tag asks for
TEMPLATES = (
    "tensor",
    "int",
    "real",
    "const",
    "register",
    "tuple",
    "list",
    "set",
    "frozenset",
    "dict",
    "slice",
    "namedtuple",
    "object",
    "build",
)


class Captures(Protocol):
    """What is captured of one region, and what that took. It is called where nothing that was captured fits a run, and
    gives the outs, None to have the steps run, or False to be asked no more; see
    :class:`framefuse.runtime.captures.Captures`.
    """

    count: int
    bytes: int
    seconds: float
    copied: int
    outs: int
    why: str

    def __call__(self, program: Any, inputs: tuple[Any, ...], key: Any, addresses: Any, state: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class Region:
    """The first ``steps`` of a plan but for its ``lead``, the very first, which run in each call: a device can be asked
    to repeat the others at once, as all they do happens on it.

    ``host`` are those among them that a repetition leaves out: they let go of tensors and count versions, on each call.
    ``inputs`` are the slots that the others read, inputs of the plan or what the lead gives, ``written`` those of them
    that they write, ``outs`` the slots that later steps and the result read, ``numbers`` the number slots that a
    repetition takes as they were. ``captures`` is asked where nothing that was captured fits a run.
    """

    lead: int
    steps: int
    host: tuple[int, ...]
    inputs: tuple[int, ...]
    written: tuple[int, ...]
    outs: tuple[int, ...]
    numbers: tuple[int, ...]
    captures: Captures


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a call does after its guards held.

    ``bound`` numbers are set by the guard program, ``count`` is the size of the number array. ``arena`` is the number
    slot of the size in bytes of the arena on the CPU (-1 for none); ``arenas`` are those of other devices, (device,
    number slot) each: a tensor from torch's allocator for each run. ``inputs`` maps guard tensor slots to plan slots by
    position: plan slot i < len(inputs) takes its tensor from guard register ``inputs[i]``. ``steps`` run in order;
    ``finish`` are Python callables with templates run after all steps (effects in program order); then ``result`` is
    built.
    ``generators`` are templates of the random number generators that a step advances before another may decline: a run
    that declines puts their states back.
    The first ``body`` steps compute; those behind them hang results into autograd, write inputs and make views.
    ``written`` are the input slots that kernels write in place. ``region`` is set where the mode asks for captured
    graphs; a text says why there is none. ``labels`` gives what a profiler calls each step, "" for none, and behind
    them the name of the whole.
    """

    name: str
    bound: int
    count: int
    numbers: tuple[NumberInstruction, ...]
    slots: tuple[Slot, ...]
    inputs: tuple[int, ...]
    steps: tuple[Step, ...]
    arena: int
    finish: tuple[tuple[Callable[..., object], tuple[Template, ...]], ...]
    result: Template
    generators: tuple[Template, ...] = ()
    arenas: tuple[tuple[str, int], ...] = ()
    body: int = 0
    written: tuple[int, ...] = ()
    region: Region | str | None = None
    labels: Callable[[], tuple[str, ...]] | None = None


# Guard instructions, tuples with the name first. Registers hold borrowed Python objects; ``d`` is a destination
# register, ``r`` a source register.
GUARD_OPS: dict[str, str] = {
    "arg": "d, index: bound argument",
    "object": "d, object: long-lived object held by the program",
    "dict": "d, r: the instance dict of r",
    "item_dict": "d, r, key: entry of an exact or subclassed dict (read with dict's own lookup)",
    "item_seq": "d, r, index: element of a list or tuple",
    "entry": "d, r, r: entry of a dict for a tensor as key, which is found by identity",
    "global": "d, r, name: of the function r, its globals then builtins",
    "cell": "d, r, index: of the function r",
    "type": "d, r",
    "type_attr": "d, r, name: along the MRO of the type r, raw",
    "getattr": "d, r, name: plain getattr",
    "context": "d, r: what the context variable r was set to",
    "func": "d, r: bound method's function",
    "self": "d, r: bound method's receiver",
    "is": "r, object",
    "type_is": "r, type",
    "int_eq": "r, int: exact int or bool",
    "float_eq": "r, float: exact float, equal bits",
    "str_eq": "r, str, bytes or complex: exact type and equal",
    "answer": "r, (function, arguments before, arguments behind, answer): what the function gives for an exact str",
    "length": "r, n",
    "keys": "r, tuple of keys in order",
    "absent": "r, key: dict r lacks key",
    "present": "r, key",
    "type_absent": "r, name",
    "bare": "r, names, names: dict r lacks the first names, and the others are those of empty dicts of C code",
    "unset": "r, kind, key: cell or attribute not there",
    "tensor": "r, TensorSpec, numbers: tuple per free size and stride of (kind 'size'|'stride', dimension, number)",
    "integer": "r, number: exact int that fits 64 bits",
    "real": "r, number: exact float",
    "scalar": "r, number: the element of a tensor of the CPU without dimensions: float32, float64, int64",
    "count": "r, number: the length of a list, tuple, dict, set, deque or str",
    "address": "r, number: the id of the object",
    "code": "r, code, defaults, kwdefaults: of a Python function, by identity",
    "same": "r, r",
    "different": "r, r",
    "disjoint": "r, r: the memory between the first and last element of two tensors does not overlap",
    "apart": "registers, count, bytes: the memory of the first count tensors overlaps no other one's; "
    "bytes are those between the first and the last element, -1 where only the tensor tells",
    "distinct": "registers: they hold as many objects as there are registers",
    "version": "r, tag: nothing on the MRO of the type r was assigned since it had this version tag",
    "watch": "dict, count: the next count instructions read this long-lived dict only; skipped while it is unchanged",
    "relation": "op, left number, right number (== != < <=) over numbers computed so far",
    "real_relation": "op, left number, right number, bool: this is how the comparison of two floats comes out",
    "number": "a number instruction (see NUMBER_OPS) as a nested tuple",
}
RELATIONS = ("==", "!=", "<", "<=")  # of a relation and a real relation
UNSET_KINDS = ("cell", "getattr", "context", "attr", "item", "global")  # of the instruction unset


@dataclass(frozen=True, slots=True)
class GuardProgram:
    """Checks that a trace may run and binds its numbers: ``state`` first, then ``instructions`` in order; the first
    failure ends it.

    ``registers`` is the size of the register file, ``numbers`` how many numbers the program sets. ``texts[i]``
    explains instruction i to a person.
    """

    state: Any
    instructions: tuple[tuple[Any, ...], ...]
    registers: int
    numbers: int
    texts: Sequence[str]
