"""Makes a case smaller that shows a fault: fewer calls, fewer inputs, smaller sizes (delta debugging, Zeller 1999)."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import torch
import torch.fx

from framefuse.ir.values import Value
from framefuse.verification.case import Case
from framefuse.verification.runs import copied, mapped

Shows = Callable[[Case], bool]
SECONDS = 60.0  # how long a case may be made smaller
SIZES = (1, 2, 3, 5, 8, 16, 32)  # that are tried in place of larger ones


class Shrinker:
    """Tries smaller cases while ``shows`` says that they still show the fault, for some seconds."""

    def __init__(self, shows: Shows, seconds: float = SECONDS) -> None:
        self.shows = shows
        self.end = time.monotonic() + seconds
        self.tried = 0
        self.calls = 0  # of the smallest case that shows it
        # What becomes of a warning in smaller cases: one that is new says that it is about something else.
        self.warned: Literal["ignore", "error"] = "ignore"

    def still(self, case: Case | None) -> bool:
        """Whether a smaller case shows the fault; one that cannot be made or run does not."""
        if case is None or time.monotonic() > self.end:
            return False
        self.tried += 1
        try:
            with warnings.catch_warnings():
                warnings.simplefilter(self.warned)
                shown = self.shows(case)
        except Exception:
            return False
        if shown:
            self.calls = sum(node.op not in ("placeholder", "output") for node in case.graph.nodes)
        return shown

    def state(self) -> str:
        """How far it has come, for who waits."""
        left = f", {self.calls} {'call' if self.calls == 1 else 'calls'} left" if self.calls else ""
        return f"{self.tried} smaller programs tried{left}"

    def shrunk(self, case: Case) -> Case:
        """The smallest case that was found, which shows the fault as ``case`` does."""
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            self.still(case)
        self.warned = "ignore" if seen else "error"
        case = self.first_output(self.shortest_start(case))
        case = self.latest_beginning(case)
        while True:
            smaller = self.without_calls(case)
            if len(smaller.graph.nodes) >= len(case.graph.nodes):
                break
            case = smaller
        return named(self.drawn(self.smaller_sizes(self.without_inputs(case))))

    def shortest_start(self, case: Case) -> Case:
        """The case up to the first call whose value shows it."""
        nodes = [node for node in case.graph.nodes if node.op not in ("placeholder", "output")]
        low, high, best = 0, len(nodes) - 1, case
        while low < high:  # what is wrong at a call mostly stays wrong behind it
            middle = (low + high) // 2
            found = prefix(case, nodes[middle])
            if self.still(found):
                assert found is not None
                best, high = found, middle
            else:
                low = middle + 1
        return best

    def first_output(self, case: Case) -> Case:
        """The case with one of its results."""
        output = next(node for node in case.graph.nodes if node.op == "output")
        if not isinstance(output.args[0], (tuple, list)) or len(output.args[0]) < 2:
            return case
        for part in output.args[0]:
            found = prefix(case, part) if isinstance(part, torch.fx.Node) else None
            if self.still(found):
                assert found is not None
                return found
        return case

    def latest_beginning(self, case: Case) -> Case:
        """The case whose first calls are given as their values, as many as show it all the same."""
        values = computed(case)
        nodes = [node for node in case.graph.nodes if node.op not in ("placeholder", "output")]
        low, high, best = 0, len(nodes) - 1, case
        while low < high:
            middle = (low + high + 1) // 2
            found = given(case, nodes[:middle], values)
            if self.still(found):
                assert found is not None
                best, low = found, middle
            else:
                high = middle - 1
        return best

    def without_calls(self, case: Case) -> Case:
        """The case with single calls given as their values."""
        for node in [node for node in case.graph.nodes if node.op not in ("placeholder", "output")][:-1]:
            names = {found.name: found for found in case.graph.nodes}
            if node.name in names:
                found = given(case, [names[node.name]], computed(case))
                if self.still(found):
                    assert found is not None
                    case = found
        return case

    def without_inputs(self, case: Case) -> Case:
        """The case without gradients of inputs that show nothing."""
        for place, value in enumerate(case.inputs):
            if isinstance(value, torch.Tensor) and value.requires_grad:
                found = Case(case.graph, replaced(case.inputs, place, value.detach()), case.training)
                if self.still(found):
                    case = found
        return case

    def smaller_sizes(self, case: Case) -> Case:
        """The case with smaller sizes, the same wherever a size occurs."""
        for size in sorted({size for value in case.inputs if isinstance(value, torch.Tensor) for size in value.shape}):
            for smaller in SIZES:
                if smaller >= size:
                    break
                found = Case(case.graph, tuple(cut(value, size, smaller) for value in case.inputs), case.training)
                if self.still(found):
                    case = found
                    break
        return case

    def drawn(self, case: Case) -> Case:
        """The case on random floats, row-major where that shows it too, else in the order of dimensions that was."""
        for place, value in enumerate(case.inputs):
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                generator = torch.Generator().manual_seed(place)
                drawn = torch.randn(value.shape, generator=generator).to(value.dtype)
                for lying in (drawn, in_order(drawn, value)):
                    found = Case(case.graph, replaced(case.inputs, place, like(lying, value)), case.training)
                    if self.still(found):
                        case = found
                        break
        return case


def in_order(tensor: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """The elements of a tensor, with the dimensions in memory in the order of those of ``value``."""
    order = outermost_first(value)
    return tensor.permute(order).contiguous().permute([order.index(axis) for axis in range(tensor.ndim)])


def outermost_first(value: torch.Tensor) -> list[int]:
    """The dimensions of a tensor as they lie in memory."""
    strides = value.stride()
    return sorted(range(value.ndim), key=lambda axis: -strides[axis])


def like(drawn: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return drawn.to(value.device).requires_grad_(value.requires_grad)


def replaced(inputs: Sequence[Value], place: int, value: Value) -> tuple[Value, ...]:
    return (*inputs[:place], value, *inputs[place + 1 :])


def cut(value: Value, size: int, smaller: int) -> Value:
    """A tensor with ``smaller`` in place of each dimension of ``size``, of a number the same; others as they are."""
    if type(value) is int:
        return smaller if value == size else value
    if not isinstance(value, torch.Tensor) or size not in value.shape:
        return value
    part = value.detach()[tuple(slice(0, smaller) if each == size else slice(None) for each in value.shape)]
    return copied(in_order(part, value).requires_grad_(value.requires_grad))


def behind_view(case: Case, still: Callable[[Case], bool]) -> tuple[Case, torch.fx.Node | None]:
    """The call to blame where a view of an input shows the fault through any call that reads it, and the case with a
    copy in place of that; else the case as it is. A view alone shows none, as its memory is the input's.
    """
    last = [node for node in case.graph.nodes if node.op not in ("placeholder", "output")][-1:]
    for operand in last[0].all_input_nodes if last else ():
        found = prefix(case, operand) if operand.op != "placeholder" else None
        if found is None:
            continue
        output = next(node for node in found.graph.nodes if node.op == "output")
        view = output.all_input_nodes[0]
        with found.graph.inserting_before(output):
            output.replace_input_with(view, found.graph.call_method("clone", (view,)))
        if still(found):
            return found, view
    return case, None


# ---- parts of graphs -------------------------------------------------------------------------------------------------


def _copy(case: Case, place: torch.fx.Node, known: Sequence[torch.fx.Node], values: dict[str, Value]) -> Case | None:
    """The calls that ``place`` needs, with those in ``known`` as inputs."""
    needed: set[torch.fx.Node] = set()
    stack = [place]
    while stack:
        node = stack.pop()
        if node not in needed:
            needed.add(node)
            stack.extend(() if node in known else node.all_input_nodes)
    writes = [node for node in case.graph.nodes if is_write(node) and node not in known]
    for node in _before(case, place):
        if node in writes and any(part in needed for part in node.all_input_nodes):
            needed.update({node, *node.all_input_nodes})
    if any(part not in needed for node in needed if node not in known for part in node.all_input_nodes):
        return None
    graph, table, inputs = torch.fx.Graph(), {}, []
    given_inputs = dict(zip((node for node in case.graph.nodes if node.op == "placeholder"), case.inputs, strict=True))
    for node in case.graph.nodes:
        if node not in needed:
            continue
        if node in given_inputs or node in known:
            if node in known and not isinstance(values[node.name], (torch.Tensor, int, float)):
                return None
            table[node] = graph.placeholder(node.name)
            inputs.append(given_inputs[node] if node in given_inputs else values[node.name])
            table[node].meta = dict(node.meta)
    for node in case.graph.nodes:
        if node in needed and node not in table:
            table[node] = graph.node_copy(node, lambda part: table[part])
    graph.output((table[place],))
    return Case(graph, tuple(inputs), case.training)


def named(case: Case) -> Case:
    """The case with short names of its inputs."""
    graph = torch.fx.Graph()
    table: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in case.graph.nodes:
        if node.op == "placeholder":
            table[node] = graph.placeholder(f"x{len(table)}")
    for node in case.graph.nodes:
        if node.op != "placeholder":
            table[node] = graph.node_copy(node, lambda part: table[part])
    return Case(graph, case.inputs, case.training)


def _before(case: Case, place: torch.fx.Node) -> Iterator[torch.fx.Node]:
    for node in case.graph.nodes:
        if node is place:
            return
        yield node


def is_write(node: torch.fx.Node) -> bool:
    """Whether a call writes in place, or sets a mode that holds for those behind it."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return (name.endswith("_") and not name.endswith("__")) or name in ("setitem", "iadd", "imul", "isub", "itruediv")


def prefix(case: Case, place: torch.fx.Node) -> Case | None:
    """What gives the value of one call, without what stands behind it."""
    return _copy(case, place, (), {})


def given(case: Case, known: Sequence[torch.fx.Node], values: dict[str, Value]) -> Case | None:
    """The case with some calls given as their values; None where one of these cannot be an argument."""
    output = next(node for node in case.graph.nodes if node.op == "output")
    parts = output.args[0]
    place = parts[0] if isinstance(parts, (tuple, list)) and len(parts) == 1 else None
    if not isinstance(place, torch.fx.Node) or place in known:
        return None
    return _copy(case, place, tuple(known), values)


class _Values(torch.fx.Interpreter):
    """Keeps a copy of what each call gives."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.kept: dict[str, Value] = {}

    def run_node(self, n: torch.fx.Node) -> Value:
        found = super().run_node(n)
        self.kept[n.name] = mapped(found, copied)
        return found


def computed(case: Case) -> dict[str, Value]:
    """The value of each call under eager, by its name."""
    runner = _Values(torch.fx.GraphModule(torch.nn.Module(), case.graph))
    with torch.set_grad_enabled(case.training):
        runner.run(*mapped(case.inputs, copied))
    return runner.kept
