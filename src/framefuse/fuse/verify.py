"""Says what is wrong with groups, drafts and schedules: nodes in no memory, reads before writes, overlaps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from framefuse.errors import CompilerBug
from framefuse.fuse.addressing.layout import estimate
from framefuse.fuse.grouping.cells import Group
from framefuse.fuse.grouping.groups import Groups
from framefuse.fuse.memory.draft import Draft, Value
from framefuse.ir import costs
from framefuse.ir.graph import Node
from framefuse.ir.loops.key import key_of
from framefuse.ir.loops.verify import problems as kernel_problems
from framefuse.ir.numbers import Expr, Real, Symbol
from framefuse.ir.schedule import Allocate, Commit, Item, Memory, Release, RunCall, RunKernel, RunMatmul, Schedule


def verify_groups(groups: Groups, after: str) -> None:
    """Raises CompilerBug for groups that break a rule, naming the pass ``after`` which they do."""
    _refuse(_undecided(groups), after)


def verify_draft(draft: Draft, after: str) -> None:
    """The same for a draft and the loop nests in it."""
    _refuse((*_unmade(draft), *_numbers(draft.items, draft.values), *_nests(draft)), after)


def verify_schedule(schedule: Schedule, after: str) -> None:
    """The same for a schedule."""
    _refuse(problems(schedule), after)


def _refuse(wrong: Iterable[str], after: str) -> None:
    complaints = "; ".join(wrong)
    if complaints:
        raise CompilerBug(f"after {after}: {complaints}")


def problems(schedule: Schedule) -> list[str]:
    """One sentence for each broken rule; empty for a schedule that may run."""
    return [*_order(schedule), *_overlaps(schedule), *_numbers(schedule.items, schedule.memories)]


def reads_and_writes(item: Item) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The buffers that an item reads and those that it writes."""
    match item:
        case RunKernel():
            named = list(zip(item.kernel.buffers, item.buffers, strict=True))
            return tuple(n for b, n in named if not b.written), tuple(n for b, n in named if b.written)
        case RunMatmul():
            return (item.a, item.c), (item.out,)
        case RunCall():
            return item.operands, (*(number for _, number in item.outs), *item.over)
        case _:
            return (), ()


def _root(schedule: Schedule, number: int) -> int:
    while schedule.memories[number].place == "view":
        number = schedule.memories[number].base
    return number


def _order(schedule: Schedule) -> Iterator[str]:
    memories = schedule.memories
    ready = {number for number, memory in enumerate(memories) if memory.place == "input"}
    allocated: set[int] = set()
    gone: set[int] = set()
    owned: set[int] = set()  # inputs that may be written
    for position, item in enumerate(schedule.items):
        if isinstance(item, Allocate):
            allocated.add(item.memory)
        if isinstance(item, Commit):
            owned.update(memories[number].input for number, _ in item.inputs)
        if isinstance(item, Release):
            gone.update(item.memories)
        reads, writes = reads_and_writes(item)
        for number in reads:
            root = _root(schedule, number)
            if root not in ready or root in gone:
                yield f"item {position} reads buffer {number}, which holds nothing"
        for number in writes:
            root = _root(schedule, number)
            if memories[root].place == "fresh" and root not in allocated:
                yield f"item {position} writes buffer {number} before it is allocated"
            place = memories[root].place
            if (number != root and place not in ("fresh", "input", "arena")) or (
                place == "input" and memories[root].input not in owned and not _is_over(item, number)
            ):
                yield f"item {position} writes buffer {number}, an {memories[number].place}"
            ready.add(root)
        if isinstance(item, RunCall) and not item.inside:
            for number in item.operands:
                if memories[number].place in ("arena", "view"):
                    yield f"item {position} shows buffer {number} of the {memories[number].place} to a call"
    for number in (*schedule.outputs, *(write[1] for write in schedule.writes)):
        if number not in ready or number in gone:
            yield f"result {number} holds nothing"
        if memories[number].place in ("arena", "view"):
            yield f"result {number} is in the {memories[number].place}"


def _is_over(item: Item, number: int) -> bool:
    """Whether a call of torch writes an input itself: where that fails, eager makes it again."""
    return isinstance(item, RunCall) and number in item.over


def _overlaps(schedule: Schedule) -> Iterator[str]:
    """Arena buffers that are alive together must be apart, and inside the arena, at the recorded sizes."""
    hints = dict(schedule.graph.hints)
    for symbol, values in schedule.largest:
        hints[symbol] = max(estimate(value, hints) for value in values)
    lives: dict[int, tuple[int, int]] = {}
    for position, item in enumerate(schedule.items):
        for number in (n for numbers in reads_and_writes(item) for n in numbers):
            root = _root(schedule, number)
            if schedule.memories[root].place == "arena":
                lives[root] = (lives.get(root, (position, 0))[0], position)
    shared = _shared(schedule)
    spans = {number: _span(schedule, number, hints) for number in lives}
    arenas = {"cpu": schedule.arena, **dict(schedule.arenas)}
    sizes = {device: estimate(size, hints) for device, size in arenas.items()}
    device = {number: schedule.memories[number].device for number in lives}
    numbers = sorted(lives)
    for place, a in enumerate(numbers):
        size = sizes.get(device[a], 0)
        if spans[a][1] > size or spans[a][0] % costs.ALIGN:
            yield f"buffer {a} lies at {spans[a]} of an arena of {size} bytes"
        for b in numbers[place + 1 :]:
            together = lives[a][0] <= lives[b][1] and lives[b][0] <= lives[a][1] and device[a] == device[b]
            if together and (a, b) not in shared and spans[a][0] < spans[b][1] and spans[b][0] < spans[a][1]:
                yield f"buffers {a} and {b} share the arena at the same time"


def _shared(schedule: Schedule) -> set[tuple[int, int]]:
    """Pairs of buffers of which a kernel writes one over the other, where that ends the life of the other."""
    last = {}
    for position, item in enumerate(schedule.items):
        for number in reads_and_writes(item)[0]:
            last[_root(schedule, number)] = position
    pairs: set[tuple[int, int]] = set()
    for position, item in enumerate(schedule.items):
        if isinstance(item, RunKernel):
            numbers = {b.name: n for b, n in zip(item.kernel.buffers, item.buffers, strict=True)}
            for buffer in item.kernel.buffers:
                if buffer.aliases and last.get(numbers[buffer.aliases]) == position:
                    a, b = sorted((numbers[buffer.name], numbers[buffer.aliases]))
                    pairs.add((a, b))
    return pairs


def _span(schedule: Schedule, number: int, hints: Mapping[Symbol, int]) -> tuple[int, int]:
    memory = schedule.memories[number]
    count = memory.dtype.size
    for size in memory.sizes:
        count *= estimate(size, hints)
    start = estimate(memory.offset, hints) if memory.offset is not None else 0
    return start, start + count


def _numbers(items: Sequence[Item], buffers: Sequence[Memory | Value]) -> Iterator[str]:
    """A kernel is called with as many buffers and numbers as it has, of its kinds."""
    for position, item in enumerate(items):
        if not isinstance(item, RunKernel):
            continue
        kernel = item.kernel
        if len(item.buffers) != len(kernel.buffers) or len(item.numbers) != len(kernel.numbers):
            yield f"item {position} calls {kernel.title} with a wrong number of operands"
        for number, value in zip(kernel.numbers, item.numbers, strict=False):
            if number.real != isinstance(value, Real) or not isinstance(value, (Real, Expr)):
                yield f"item {position} gives {kernel.title} {value} for {number.symbol}"
        for buffer, where in zip(kernel.buffers, item.buffers, strict=False):
            if buffers[where].device != item.device:
                yield f"item {position} gives {kernel.title} on {item.device} buffer {where} of another device"
            if buffer.dtype is not buffers[where].dtype:
                yield f"item {position} gives {kernel.title} buffer {where} for {buffer.name} of another dtype"


def _undecided(groups: Groups) -> Iterator[str]:
    """Every cell has a kind, and what is loaded, read or required is left in memory by a group that runs before."""
    place = {group: number for number, group in enumerate(groups.order)}

    def kept(node: Node, user: Group | None) -> bool:
        if node.op == "input":
            return True
        home = groups.home.get(node)
        return home in place and (user is None or place[home] < place[user])

    for group in groups.order:
        for cell in group.cells.values():
            if not cell.kind:
                yield f"group {group.number} does not say how it gets {cell.node}"
            elif cell.kind == "load" and not kept(cell.node, group):
                yield f"group {group.number} loads {cell.node}, which no group before it keeps"
    for (caller, number), view in groups.views.items():
        user = next((group for group in groups.readers[view.base] if caller in (group.node, *group.roots)), None)
        if user is None or not kept(view.base, user):
            yield f"operand {number} of {caller} is not in memory"
    yield from (f"{node} is required and in no memory" for node in groups.required if not _stays(node, groups))


def _stays(node: Node, groups: Groups) -> bool:
    """Whether a node is in memory at the end; a library call is required for what it does."""
    return node.op == "input" or node in groups.home or any(group.node is node for group in groups.order)


def _nests(draft: Draft) -> Iterator[str]:
    """Every kernel is one that an emitter may take."""
    kernels = {key_of(item.kernel): item.kernel for item in draft.items if isinstance(item, RunKernel)}
    for kernel in kernels.values():
        yield from (f"{kernel.title}: {wrong}" for wrong in kernel_problems(kernel))


def _unmade(draft: Draft) -> Iterator[str]:
    """No item reads a buffer that no item before it writes, and results are written."""
    values = draft.values
    written = {number for number, value in enumerate(values) if value.place == "input" and value.taken < 0}

    def root(number: int) -> int:
        while values[number].base >= 0:
            number = values[number].base
        return number

    for position, item in enumerate(draft.items):
        reads, writes = reads_and_writes(item)
        for number in reads:
            if root(number) not in written and number not in written:
                yield f"item {position} reads buffer {number}, which nothing has written"
        written.update(writes)
        written.update(root(number) for number in writes)
    for number in (*draft.outputs, *(write[1] for write in draft.writes)):
        if root(number) not in written:
            yield f"result {number} is not written"
