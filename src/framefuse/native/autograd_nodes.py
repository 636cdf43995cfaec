"""Makes the classes of an autograd node out of bodies in C, and finds out what C may ask torch about nodes."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from framefuse.native.libraries import Libraries, Peek, Unknown, word_at


class _NodeClass(type):
    """The class of classes of nodes that are named as torch's are; the nodes' ``name()`` has their namespace too."""

    @property
    def __name__(cls) -> str:  # type: ignore[override]
        whole: str = type.__dict__["__name__"].__get__(cls)
        return whole.rpartition("::")[2]

    def __repr__(cls) -> str:
        return f"<class '{cls.__name__}'>"


def _printed(node: Any) -> str:
    return f"<{type(node).__name__} object at {id(node):#x}>"


def node_classes(
    name: str,
    metaclass: type,
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    shown: tuple[tuple[str, int] | None, ...] = (),
) -> tuple[type, type]:
    """``(function, node)``: the function to apply, and the class of its nodes, printed as ``<name>Backward`` or as
    eager's nodes of the outputs, which are ``shown``, where all have one name.

    ``metaclass`` is a subclass of torch's. A node has a slot ``_held``, at an offset that C reads, in place of an
    attribute in a dict.
    """
    members = {"forward": staticmethod(forward), "backward": staticmethod(backward), "__module__": __name__}
    function: Any = metaclass(name, (torch.autograd.Function,), members)
    derived = function._backward_cls
    more = {"_forward_cls": function, "_autograd_function_id": derived._autograd_function_id, "__module__": __name__}
    eagers = {each and each[0] for each in shown}
    printed = (eagers.pop() if len(eagers) == 1 else None) or derived.__name__
    more |= {"__module__": "builtins", "__repr__": _printed} if printed != derived.__name__ else {}
    node = _NodeClass(printed, (BackwardCFunction,), {**more, "__slots__": ("_held",)})
    function._backward_cls = node
    return function, node


def hooks_active() -> bool:
    """Whether tensors saved now go through somebody's saved_tensors_hooks."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None


class _Saves(torch.autograd.Function):
    """Saves its first input."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return torch.zeros(())


Form = tuple[tuple[int, ...], tuple[int, ...], bool]
AFRESH = "AsStridedBackward0"  # the node that torch makes for a view whose memory was written


def modified(tensor: torch.Tensor, noted: tuple[int, tuple[str, int] | None], form: Form | None) -> None:
    """Raises what torch does for a saved tensor that was changed in place since it had a version. ``noted`` is that,
    and where the tensor stands for an output, of which node, and which one. ``form`` are the sizes that the tensor was
    recorded with, and those of the view of it that a node holds, and whether that has a node, which torch makes anew.

    Torch itself says it, of a tensor that is saved now and pretends to be as old as that.
    """
    expected, of_node = noted
    now = tensor._version
    torch._C._autograd._unsafe_set_version_counter((tensor,), (expected,))
    try:
        with torch.enable_grad():
            saving = _Saves.apply(tensor, torch.ones((), requires_grad=True))  # its node lives no longer than it
    finally:
        torch._C._autograd._unsafe_set_version_counter((tensor,), (now,))
    try:
        assert saving.grad_fn.saved_tensors is None, "torch says that the version is another"
    except RuntimeError as error:
        text = str(error)
    sizes = f"{list(tensor.shape)}"
    if form is not None and form[0] == tensor.shape:
        text = text.replace(f"{sizes}] is", f"{list(form[1])}] is", 1)
        of_node = (AFRESH, 0) if form[2] else None
    if of_node is not None:
        name, output = of_node
        text = text.replace("] is at version", f"], which is output {output} of {_told(name)}, is at version", 1)
    raise RuntimeError(text)  # behind the handler: torch's own has no context


@functools.lru_cache(1)
def _tells_whole_names() -> bool:
    """Whether this torch says ``ExpBackward0`` of a saved result, and not ``Exp``."""
    with torch.enable_grad():
        result = torch.ones((), requires_grad=True).exp()
    torch._C._autograd._unsafe_set_version_counter((result,), (1,))
    try:
        assert result.grad_fn._saved_result is None, "torch says that the version is another"  # type: ignore[union-attr]
    except RuntimeError as error:
        return "ExpBackward0" in str(error)
    return False


def _told(name: str) -> str:
    """A node's name as torch's errors have it."""
    return name if _tells_whole_names() else re.sub(r"Backward\d*$", "", name)


def first_only(
    gradients: tuple[torch.Tensor | None, ...], *rests_on: Iterable[torch.Tensor | None]
) -> tuple[torch.Tensor | None, ...]:
    """Gradients of which nobody can tell the derivatives: what they would be computed from was written since. To walk
    from them to what they rest on is an error.
    """
    text = "a tensor from which second gradients are computed has been modified by an inplace operation"
    there = [gradient for gradient in gradients if gradient is not None]
    behind = [part for parts in rests_on for part in parts if part is not None and part.requires_grad]
    if not there or not behind:
        return gradients
    refusing = torch._C._functions.DelayedError(text, len(there) + len(behind))
    tied = iter(refusing(*there, *behind))
    return tuple(None if gradient is None else next(tied) for gradient in gradients)


def wanted(node: Any, count: int) -> int:
    """Which of a node's first ``count`` inputs the engine wants a gradient of, as bits; all where no engine runs."""
    asked = [child is not None and _executes(child) for child, _ in node.next_functions[:count]]
    there = [child is not None for child, _ in node.next_functions[:count]]
    return (1 << count) - 1 if asked == there else sum(1 << place for place, want in enumerate(asked) if want)


def compared_wanted(node: Any, count: int) -> tuple[int, int]:
    """The same, and how well that shows that native code reads the engine's table rightly: 0 where it would read
    another answer, much where an input was not wanted.
    """
    found = wanted(node, count)
    there = sum(1 << place for place, (child, _) in enumerate(node.next_functions[:count]) if child is not None)
    same = read_wanted(node, count, EDGES) == found & there
    return found, 0 if not same else PROOF if there & ~found else 1


def _executes(node: Any) -> bool:
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:  # a leaf whose gradient is asked, or no engine runs
        return True


class _First(torch.autograd.Function):
    """What the probes apply: a function of two inputs that need not both require grad."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * 2


def _applied(apply: Callable[..., torch.Tensor] = _First.apply) -> torch.Tensor:
    with torch.enable_grad():  # no probe walks back: an engine that has run may stand in the way of a fork
        return apply(torch.ones(2, requires_grad=True), torch.ones(2))


def raw_apply() -> Any:
    """The descriptor of torch's own ``apply`` below that of autograd.Function."""
    descriptor: Any = vars(torch._C._FunctionBase).get("apply")
    try:
        result = _applied(descriptor.__get__(None, _First))
    except (AttributeError, TypeError, RuntimeError) as error:
        raise Unknown("torch applies a function in another way") from error
    if result.tolist() != [2, 2] or type(result.grad_fn) is not _First._backward_cls:
        raise Unknown("torch applies a function in another way")
    return descriptor


def hooks_state(libraries: Libraries) -> int:
    """Address of the function that gives this thread's saved_tensors_hooks, which begin with a deque of libstdc++.

    That is empty where the words 2 and 6, the places of its first element and behind its last, are equal.
    """
    function = Libraries.find(libraries.cpu, "_ZN2at23SavedTensorDefaultHooks13get_tls_stateEv")
    function.restype = ctypes.c_void_p
    for depth in (0, 1, 17, 0):
        with contextlib.ExitStack() as stack:
            for _ in range(depth):
                stack.enter_context(torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t))
            here = function()
            if (word_at(here + 16) != word_at(here + 48)) != hooks_active() or hooks_active() != (depth > 0):
                raise Unknown("the hooks do not show")
    return Libraries.address(function)


def keeps_graph(libraries: Libraries) -> int:
    """Address of the function that says whether the graph that is walked is kept; without one it says yes."""
    function = Libraries.find(libraries.cpu, "_ZN5torch8autograd33get_current_graph_task_keep_graphEv")
    function.restype = ctypes.c_bool
    if function() is not True:
        raise Unknown("the engine answers otherwise")
    return Libraries.address(function)


def anomaly_flag(libraries: Libraries) -> int:
    """Address of the byte that says whether torch looks for anomalies."""
    try:
        flag = ctypes.c_bool.in_dll(libraries.cpu, "_ZN5torch8autograd11AnomalyMode8_enabledE")  # type: ignore[arg-type]
    except (ValueError, TypeError) as error:
        raise Unknown("AnomalyMode") from error
    before = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    try:
        for on in (True, False):
            torch._C.set_anomaly_enabled(on, before[1])
            if flag.value is not on:
                raise Unknown("the flag disagrees")
    finally:
        torch._C.set_anomaly_enabled(*before)
    return ctypes.addressof(flag)


MARK = 0x5A17_0BAD_CAFE_2A3D
NODES = 8  # of one alone another word may point a little before its C++ node, where the heap happened to have room
NODE_BYTES = 512  # that a C++ node has at least, with its allocation: it is read up to there, where memory is
EDGE_BYTES = (16, 24)  # of a pointer to a node, in some versions what shares it, and the number of its input


def _places(node: Any, mark: int) -> set[int]:
    """Where a Python node has a pointer to what holds its number in the order of nodes, which is made ``mark``."""
    node._set_sequence_nr(mark)
    offsets = set()
    with Peek() as peek:
        for offset in range(16, type(node).__basicsize__ - 7, 8):
            pointer = word_at(id(node) + offset)
            seen = peek(pointer, 256) if 0x10000 < pointer < 1 << 47 and pointer % 8 == 0 else None
            if seen and mark.to_bytes(8, sys.byteorder) in (seen[i : i + 8] for i in range(0, 256, 8)):
                offsets.add(offset)
    return offsets


def _edge_places(offset: int) -> set[tuple[int, int]]:
    """Where a C++ node has the vector of its edges, and the bytes of each: of one with two, the vector begins with both
    nodes and ends behind.
    """
    with torch.enable_grad():
        ends = [_applied(), _applied()]
        between = _First.apply(*ends)
    targets = [word_at(id(end.grad_fn) + offset) for end in ends]
    here = word_at(id(between.grad_fn) + offset)
    places = set()
    with Peek() as peek:
        seen = next((found for size in range(NODE_BYTES, 0, -64) if (found := peek(here, size))), b"")
        words = [int.from_bytes(seen[i : i + 8], sys.byteorder) for i in range(0, len(seen), 8)]
        for place, (begin, end) in enumerate(itertools.pairwise(words)):
            size = (end - begin) // 2
            edges = peek(begin, 2 * size) if size in EDGE_BYTES and 0x10000 < begin < 1 << 47 else None
            if edges and [int.from_bytes(edges[i : i + 8], sys.byteorder) for i in (0, size)] == targets:
                places.add((8 * place, size))
    return places


def edges(libraries: Libraries) -> dict[str, int]:
    """Where a Python node has its C++ node, where that has its edges, the bytes of each, and the function that gives
    the table of what the engine runs.

    No probe could see that table, for which the engine has to run: ``compared_wanted`` reads it first.
    """
    task = Libraries.find(libraries.cpu, TABLE)
    task.restype = ctypes.c_void_p
    kept = [_applied()]  # some versions of torch free the C++ node with the tensor
    offsets = _places(kept[0].grad_fn, MARK)
    while len(offsets) > 1 and len(kept) < NODES:
        kept.append(_applied())
        offsets &= _places(kept[-1].grad_fn, MARK + len(kept))
    if len(offsets) != 1:
        raise Unknown(f"{len(offsets)} candidates")
    (offset,) = offsets
    places = _edge_places(offset)
    if len(places) != 1 or task() is not None:
        raise Unknown(f"{len(places)} candidates for the edges")
    ((place, size),) = places
    EDGES.update({"node": offset, "edges": place, "edge_bytes": size, "graph_task": Libraries.address(task)})
    return dict(EDGES)


EDGES: dict[str, int] = {}  # what the last probe found
TABLE = "_ZN5torch8autograd32get_current_graph_task_exec_infoEv"
PROOF = 8  # of equal answers, after which native code is trusted with them


def read_wanted(node: Any, count: int, facts: Mapping[str, int]) -> int | None:
    """What native code would read of the engine's table for ``wanted``, each word by way of the kernel; None where that
    refuses. The table is one of libstdc++: chains of buckets, how many, a link, a count; and its entries a link, the
    node, a byte that says yes, and a pointer that does.
    """
    table = ctypes.PYFUNCTYPE(ctypes.c_void_p)(facts["graph_task"])()
    with Peek() as peek:

        def words(address: int, number: int) -> list[int]:
            seen = peek(address, 8 * number) if 0x10000 < address < 1 << 47 else None
            if seen is None:
                raise Unknown("no memory")
            return [int.from_bytes(seen[i : i + 8], sys.byteorder) for i in range(0, len(seen), 8)]

        def runs(target: int, chains: int, number: int) -> bool:
            (before,) = words(chains + 8 * (target % number), 1)
            entry = words(before, 1)[0] if before else 0
            for _ in range(ENTRIES):
                if not entry:
                    return False
                entry, key, needed, captures = words(here := entry, 4)
                if key == target:
                    return bool(needed & 0xFF) or captures != 0
                if key % number != target % number:
                    return False
            raise Unknown(f"a chain without an end at {here:#x}")

        try:
            (begin,) = words(word_at(id(node) + facts["node"]) + facts["edges"], 1)
            chains, number, _, entries = words(table or 0, 4)
            if not 0 < entries < 1 << 32 or not 0 < number < 1 << 32:
                return None
            asked = [words(begin + facts["edge_bytes"] * place, 1)[0] for place in range(count)]
            return sum(1 << place for place, target in enumerate(asked) if target and runs(target, chains, number))
        except Unknown:
            return None


ENTRIES = 1 << 16  # of one chain
