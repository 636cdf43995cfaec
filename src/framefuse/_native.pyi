"""Types of the C extension: guard sets, plans and the callable that dispatches between them.

Order of use: ``native.abi.initialise()`` once, ``GuardSet(program)`` and ``PlanProgram(plan)`` for each trace,
``Dispatch.add(Compiled(guards, plan))``. Everything here needs the GIL, which plans release in long steps only.
"""

from collections.abc import Callable, Mapping, Sequence
from types import CodeType, FrameType
from typing import Any, final

from framefuse.ir.plan import GuardProgram, Plan

@final
class GuardSet:
    """A guard program compiled into C. It holds the program's long-lived objects strongly and no argument between
    calls.
    """

    program: GuardProgram
    checks: int
    reruns: int
    words: int  # fields of long-lived objects that each check compares
    dicts: int  # dicts that each check knows to be unchanged, by their tags or because CPython reported nothing

    def __new__(cls, program: GuardProgram) -> GuardSet:
        """ValueError for an instruction that GUARD_OPS does not have or whose operands are out of range."""

    def check(self, arguments: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[int, ...]] | int:
        """``(registers, numbers)`` on a hit, else the index of the first instruction that failed (-1: the global
        state).

        Registers never loaded are None; numbers are raw 64-bit words read as signed ints (reals: the bits of the
        double).
        """

    def measure(self, arguments: tuple[Any, ...], count: int) -> float | int:
        """Seconds of one check, the mean over ``count`` in a row; the failing instruction where one does not hit."""

@final
class PlanProgram:
    """A plan compiled into C, with its own frame and arena; a second run at the same time gets a frame of its own."""

    plan: Plan
    runs: int
    declines: int
    declined: str | None  # the first error for which a run declined
    arena_bytes: int

    def __new__(cls, plan: Plan) -> PlanProgram:
        """ValueError for a plan that breaks the rules of framefuse.ir.plan."""

    def run(self, registers: tuple[Any, ...], numbers: tuple[int, ...]) -> Any:
        """Runs it without guards (for tests); raises :class:`Declined` when the call has to run eagerly."""

    def replace_kernel(self, old: int, better: int, holder: object) -> int:
        """How many steps that ran the code at address ``old`` run that at ``better`` from now on, which lives as long
        as ``holder``; that of ``old`` must live as long as the plan, since a run may be in it.
        """

    def steps(self, inputs: tuple[Any, ...], state: bytes) -> tuple[Any, ...]:
        """Runs the steps of the plan's region on these inputs, in a frame of their own, and gives its outs; ``state``
        are all numbers, as ``Region.captures`` was given them. Raises :class:`Declined`, or what a call raises.
        """

    def add(self, inputs: tuple[Any, ...], copied: tuple[int, ...], state: bytes, replay: Any) -> None:
        """From now on a run with these numbers, and with these inputs where they lie but for the places ``copied``,
        calls ``replay`` with what is at those places: it gives the outs, None to have the steps run, or NotImplemented
        where it does not fit any more.
        """

@final
class Compiled:
    """One entry of a Dispatch: guards and the plan that they protect.

    With ``follow``, the Dispatch of a point, the plan gives the tuple ``(target, args, kwargs, values...)``: then
    ``target(*args, **kwargs)`` runs (unless it is None) and the point goes on with its outcome and the values.
    ``vain`` is called with the entry, once, when its plan has declined often.
    """

    guards: GuardSet
    plan: PlanProgram
    follow: Dispatch | None
    hits: int

    def __new__(
        cls,
        guards: GuardSet,
        plan: PlanProgram,
        follow: Dispatch | None = None,
        vain: Callable[[Compiled], None] | None = None,
    ) -> Compiled: ...

@final
class Dispatch:
    """The compiled function: tries its entries and runs the plan of the first that hits.

    A call binds its arguments in the order of the function's locals (positional and keyword-only parameters with
    defaults filled in, then the ``*args`` tuple, then the ``**kwargs`` dict). What cannot be bound goes to
    ``function``, which raises Python's own error. When no entry hits, ``miss(args, kwargs)`` is called with the
    arguments as passed (the owner first, if there is one), so that ``function(*args, **kwargs)`` is the original
    call; its return value is the result, and where that is :class:`Declined`, ``function`` is called. A plan that
    declines leads to ``function``. A ``function`` that is not a Python function is simply called.

    With ``point`` it stands for a place in the middle of a function and takes that many values, by position;
    ``failed(exception, values)`` goes on from there after the opaque step before it raised.

    Each of its ``calls`` is one of ``hits``, which compiled code ran, ``declines`` or ``misses``.

    ``eager`` is the seconds of the calls for which nothing hit and ``function`` was called. While it is less than
    ``until``, such calls do not ask ``miss``; the first hit of an entry ends that.
    """

    door: CodeType | None
    function: Callable[..., Any]
    miss: Callable[[tuple[Any, ...], dict[str, Any]], Any]
    owner: Any
    entries: tuple[Compiled, ...]
    calls: int
    hits: int
    misses: int
    declines: int
    enabled: bool
    bypass: bool
    weighs: bool
    recorded: bool
    rest: int
    eager: float
    waited: int
    until: float
    __wrapped__: Any
    __framefuse__: Any  # the Python half, a CompiledFunction
    __name__: str
    __qualname__: str
    __doc__: str | None
    __module__: str

    def __new__(
        cls,
        function: Callable[..., Any],
        miss: Callable[[tuple[Any, ...], dict[str, Any]], Any],
        *,
        owner: Any = None,
        point: int = -1,
        failed: Callable[[BaseException, tuple[Any, ...]], Any] | None = None,
        weighed: Callable[[float, float, float, float], None] | None = None,
    ) -> Dispatch: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __get__(self, instance: Any, owner: type | None = None) -> Any: ...
    def __getattr__(self, name: str) -> Any: ...
    def add(self, entry: Compiled) -> None:
        """Puts an entry first."""

    def remove(self, entry: Compiled) -> None:
        """Drops one entry, if it is there."""

    def clear(self) -> None:
        """Drops all entries."""

    def weigh(self, until: int, rest: int) -> None:
        """So many of the next calls are eager; after ``until`` more that run compiled code, eight calls are weighed,
        four of each kind. ``weighed`` is then told the seconds of the eager ones, of the others, and the least of each.
        A call for which ``recorded`` is set says nothing.
        """

    def pause(self, calls: int) -> None:
        """So many of the next calls are eager, or more if they were to be; their seconds count as ``eager``."""

    def bind(self, *args: Any, **kwargs: Any) -> tuple[Any, ...] | None:
        """The bound arguments of such a call (with the owner), None when it cannot be bound."""

@final
class Attach:
    """Hangs outputs that are computed already into torch's autograd, as the results of one node.

    Called with ``inputs`` tensors that require grad, ``outputs`` fresh tensors, ``watched`` tensors that others see and
    backward does not read, ``through`` tensors that others see and backward reads, ``own`` private tensors, ``roots``
    (tensors that only a differentiable backward reads) and ``numbers``, all by position, it gives the tuple of the
    outputs, the same objects, now with a grad_fn printed as ``<name>Backward``, or as eager's nodes, where
    ``names`` says how these are called, and which of its results each output is, and all have one name. That a watched
    tensor, or one through, was changed in place is torch's error in backward: ``met`` has their numbers in the order in
    which eager's nodes would find it, with how these hold each (see ``modified``). Of those that ``memory`` names,
    which gives the number of an output and None for others, not the tensor is kept but another one of its memory;
    outputs have to be so. What it gives -3 for may be changed.

    The engine's call becomes ``backward(saved, tangents, numbers, wanted)`` -> a tuple of ``inputs`` gradients, each a
    tensor or None: ``saved`` is a fresh list of the through and own tensors, a tangent is None where none came, bit i
    of ``wanted`` says that input i wants a gradient. Where the graph is not kept that list holds the only references to
    the own tensors. In grad mode (create_graph) it is ``differentiable(saved, tangents, numbers, wanted)`` with the
    roots behind the saved tensors. Both may be called in any thread. No tensor is held between calls. Roots that were
    written are no error unless ``asked(written)`` says of them, by their bits, that gradients of gradients read them.

    A second walk is torch's error if the graph ``frees`` (by default: if it saved something). ``part(wanted, gone)``
    tells what a walk that wants some gradients, or comes after such a one, checks, what is gone after it, and which
    saved tensors nobody needs then; None: it needs what is gone. It is asked once for each case.
    """

    function: type
    calls: int
    backwards: int
    before_own: int
    own: int

    def __new__(
        cls,
        backward: Callable[[list[Any], tuple[Any, ...], tuple[Any, ...], int], tuple[Any, ...]],
        differentiable: Callable[[list[Any], tuple[Any, ...], tuple[Any, ...], int], tuple[Any, ...]],
        *,
        inputs: int,
        outputs: int,
        watched: int = 0,
        through: int = 0,
        own: int = 0,
        roots: int = 0,
        numbers: int = 0,
        name: str = "Compiled",
        names: tuple[tuple[str, int] | None, ...] = ...,
        met: tuple[tuple[int, tuple[tuple[int, ...], tuple[int, ...], bool] | None], ...] = ...,
        memory: Mapping[int, int | None] = ...,
        part: Callable[[int, int], tuple[tuple[int, ...], int, tuple[int, ...]] | None] = ...,
        frees: bool = ...,
        asked: Callable[[int], bool] | None = ...,
    ) -> Attach:
        """ValueError for a count below 0, for no input or output, or for a watched tensor that there is not."""

    def __call__(self, *values: Any) -> tuple[Any, ...]: ...
    def settle(self, tensor: Any) -> None:
        """Has the node that made a tensor of its outputs watch for writes from now on, instead of from the call on."""

class Declined(Exception):
    """A plan could not complete natively; the original function has to run. Seen from :meth:`PlanProgram.run` only."""

def abi_initialise(facts: Mapping[str, Any]) -> None:
    """Sets what is known of torch's binary interface, as framefuse.native.abi found it, replacing all set before."""

def abi_state() -> tuple[int, int, bool, int, int, bool, int]:
    """Torch's thread state as guards read it: included and excluded keys, grad mode, function modes, dtype code,
    determinism, dual level.
    """

def tensor_facts(tensor: Any) -> dict[str, Any]:
    """What native code reads of a tensor: keys, dtype (code), device, sizes, strides, data, requires_grad, version."""

def headroom(more: int) -> None: ...
def bypass(on: bool) -> bool:
    """While on, every Dispatch of this thread calls its original function; returns the former setting."""

def switch_off(off: bool = ...) -> bool:
    """Sets whether all calls of the process run as they would without framefuse; returns the former setting."""

def watch_switch(modules: dict[str, Any], tell: Callable[[], object]) -> None:
    """Sets where torch's compiler is looked for, for its stance, and what is called once when a tracer is met."""

def profile_with(
    variables: dict[str, Any], name: str, enter: Callable[[str], object], leave: Callable[[Any], object]
) -> None:
    """Sets the variable that says whether a profiler listens, and what opens and closes a range of it."""

def open_door(dispatch: Dispatch, first: Any = None) -> None:
    """From now on calls of ``dispatch.function`` itself, from Python or C, reach ``dispatch``, until that dies.

    With ``first`` only calls with that very object as first argument do; whoever opens such a door sees to it that
    :func:`forget_first` is called when the object dies. Raises TypeError for what has an owner, is no Python function,
    or is a generator or coroutine function.
    """

def forget_first(function: Callable[..., Any], address: int) -> None:
    """Calls of ``function`` whose first argument is at this address reach no Dispatch."""

def behind_door(function: Callable[..., Any], first: Any) -> Dispatch | None:
    """The Dispatch that a call of ``function`` with this first argument reaches."""

def at_frame(prepare: Callable[..., tuple[FrameType, Callable[[], Any]]], *args: Any) -> Any:
    """``prepare(*args)`` gives a frame that runs in this thread and a call, which is made as if that frame made it."""

def close_door(dispatch: Dispatch) -> None:
    """Undoes :func:`open_door`; nothing happens where no door is open."""

def watch_calls(
    target: CodeType | Callable[..., Any], watcher: Callable[[Any, Any], Any] | None, outermost: bool = False
) -> None:
    """``watcher(function, first argument)`` is called before calls of functions with this code and no open door.

    From 3.12 on these are the function that is given or, for a code object, those made later. With ``outermost`` calls
    inside another call of this code, in the same thread, are left out. What it raises is printed. None ends it.
    """

def bound_names(code: CodeType) -> tuple[str, ...]:
    """The names of the bound arguments, in their order."""

def instance_dict(instance: Any) -> dict[str, Any] | None:
    """The instance dict itself (made if it was not yet there), None for objects without."""

def type_lookup(type: type, name: str, default: Any = ..., /) -> Any:
    """The raw attribute found along the MRO, else the default; raises AttributeError where there is none."""

def dict_tag(mapping: dict[Any, Any]) -> int:
    """The dict's version tag."""

def type_tag(type: type) -> int:
    """The type's version tag, assigned if need be; 0 when it has none."""

def trust_tags(dicts: bool, types: bool) -> None:
    """Says which version tags a probe found to be sound; watch blocks without a trusted tag run on every check."""

def watch_open(trusted: bool) -> bool:
    """Says whether CPython's reports of changed dicts are sound; True where guard sets made from now on use them."""

def saved_drop(saved: list[Any], *indices: int) -> None:
    """Puts None in the places of saved tensors, which die if nobody else holds them."""

def raise_versions(*tensors: Any) -> None:
    """One write to each tensor, as autograd counts them; inference tensors count none."""

def marks_of(*tensors: Any) -> bytes:
    """Bytes that are equal for as long as these tensors live, lie where they lay and nobody wrote to them. TypeError
    for tensors that count no writes, as those of inference mode.
    """

def positions_within(positions: Any, size: int, wraps: bool) -> None:
    """Raises IndexError where an element of ``positions``, whole numbers in the CPU's memory, is no place of a
    dimension of that size; with ``wraps`` negative ones count from its end. TypeError for other tensors.
    """

def run_exported(
    run: int,
    leading: tuple[int, ...],
    tensors: Sequence[Any],
    count: int,
    torch: tuple[Any, Any, Callable[[Any], Any], Callable[[Any], Any]] | None,
    capsule_of: Callable[[Any], Any],
    taken_of: Callable[[Any], Any],
) -> list[Any] | None:
    """Calls the function at the address ``run`` of an exported library, with the addresses ``leading`` before the
    tensors; gives its ``count`` results, or None where it fails.

    ``torch``: its type of tensors, the layout of dense ones, what makes capsules of DLPack of them and they of
    capsules. ``capsule_of`` makes capsules of other tensors; ``taken_of`` makes results of capsules where no tensor is
    torch's.
    """

def load_module(image: bytes, name: str, shared: int, device: int = 0) -> int:
    """The driver's handle of the kernel ``name`` in a compiled module (cubin or PTX), for ``LaunchStep``.

    It may take ``shared`` bytes of dynamic shared memory, in the primary context of that GPU, and is never unloaded.
    RuntimeError with the driver's text, also where there is no driver. Without the GIL while the driver works.
    """

@final
class LoadedObjects:
    """Code that :func:`load_objects` mapped; it is unmapped when this object dies."""

    addresses: tuple[int, ...]

def load_objects(
    objects: tuple[tuple[str, bytes], ...], resolve: Callable[[str], int], machine: int = ...
) -> LoadedObjects:
    """The code of pairs of a function's name and the relocatable object that has it; ``resolve`` gives the addresses of
    what objects call. ValueError for an object that is damaged, or has what kernels do not have. Objects for another
    ``machine`` (of ELF) than this one can be looked at. NotImplementedError where there are no such objects.
    """

def processor() -> tuple[str, bytes] | None:
    """This processor's name, and bytes that are equal where the other runs the same code; None where that is not known.
    """

def use_driver(path: str | None) -> None:
    """The library to take for the GPU's driver from now on (a test's, which may be given memory of any device); None:
    the driver itself, ``libcuda.so.1`` or that of ROCm. It is opened at its first use.
    """

def spare_bytes() -> int:
    """The bytes that are kept for the temporaries of later runs, of whichever plans."""

def tables() -> dict[str, tuple[str, ...]]: ...
def read_records(
    rows: tuple[tuple[Callable[..., Any], bool | tuple[Any, ...] | None], ...],
    records: list[tuple[int, ...]],
    constants: list[Any],
    root: int,
) -> Any:
    """The object of a number: of a record, from 0 on, or of a constant, from -1 down.

    A record is the number of a row and the numbers of its parts. A row is what makes the object and how it takes the
    parts: None as one list, True one by one; of a class the slots that are filled, without a call. Raises ValueError
    for numbers that lead nowhere.
    """

def numbers_run(instructions: tuple[tuple[Any, ...], ...], numbers: tuple[int, ...]) -> tuple[int, ...] | None:
    """Runs number instructions over raw words; None when they decline."""
