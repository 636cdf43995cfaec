"""The library calls whose operands and results may lie contiguous or channels-last, with what they cost in each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from framefuse.fuse.addressing.layout import estimate
from framefuse.ir import costs
from framefuse.ir.dtypes import BFLOAT16, FLOAT16, FLOAT32
from framefuse.ir.graph import Arg, Node
from framefuse.ir.numbers import Symbol
from framefuse.ir.target import Target
from framefuse.ir.values import Value

FORWARD = ("conv2d", "conv3d", "conv_transpose2d", "conv_transpose3d")
BACKWARD = "convolution_backward"


def _callables(names: Sequence[str]) -> frozenset[int]:
    """By identity: a user's function of the same name is another object."""
    homes = (torch, torch.nn.functional, torch._C._nn)
    functions = [getattr(home, name) for name in names for home in homes if hasattr(home, name)]
    functions += [getattr(getattr(torch.ops.aten, name, None), "default", None) for name in names]
    return frozenset(id(function) for function in functions if function is not None)


NAMES = frozenset((*FORWARD, BACKWARD, *costs.WINDOWS))
KNOWN = _callables((*NAMES, "native_batch_norm"))


@dataclass(frozen=True, slots=True)
class Flexible:
    """What such a call costs with all that it reads and makes contiguous, and channels-last, in nanoseconds. What it
    are its ``weights`` it turns itself.
    """

    contiguous: float
    channels_last: float
    weights: tuple[Node, ...] = ()


def elements(node: Node, hints: Mapping[Symbol, int]) -> int:
    """How many there are at the recorded sizes."""
    return math.prod(estimate(size, hints) for size in node.shape)


def size_of(node: Node, hints: Mapping[Symbol, int]) -> int:
    """The bytes of a value at the recorded sizes."""
    return elements(node, hints) * node.dtype.size


def flexible(
    call: Node,
    results: Sequence[Node],
    target: Target | None,
    hints: Mapping[Symbol, int],
    trains: bool,
    kept: frozenset[Node] = frozenset(),
    stays: bool | None = None,
) -> Flexible | None:
    """What a library call costs in each layout; None where it has but one. ``trains`` where a backward pass will read
    what it reads in the same layout; what is ``kept`` between calls costs nothing to turn. ``stays`` says whether the
    digits that it has in eager need a contiguous one, where the library was asked.
    """
    function = call.attr("target")
    own = id(function) in KNOWN or id(getattr(function, "target", None)) in KNOWN  # under autocast, on copies
    if target is None or not own or not results or call.attr("random"):
        return None
    name = call.attr("name")
    if name in costs.WINDOWS:
        return _window(call, results, target, hints)
    return _convolution(call, results, target, hints, trains, kept, stays) if name in NAMES else None


def rate(table: tuple[float, float], target: Target | None) -> float:
    """The entry of a CPU, or that of GPUs."""
    return table[target is None or target.device != "cpu"]


def _window(call: Node, results: Sequence[Node], target: Target, hints: Mapping[Symbol, int]) -> Flexible | None:
    pictures = [node for node in (*call.inputs, *results) if len(node.shape) > 1]
    if any(len(node.shape) != 4 for node in pictures):
        return None
    moved = sum(size_of(node, hints) for node in pictures)
    price = moved * rate(costs.WINDOWS[call.attr("name")], target)
    if target.device == "cpu" and pictures:
        large, turned = costs.LARGE_NORM
        if call.attr("name") == "batch_norm" and pictures[0].dtype.size == 2:
            price = moved * costs.SHORT_NORM
        elif call.attr("name") == "batch_norm" and moved > large:
            price = moved * turned
        slow, even = costs.CPU_WINDOW_CHANNELS
        channels = estimate(pictures[0].shape[1], hints)
        price = -price if channels < slow else 0.0 if channels < even else price
    return Flexible(max(price, 0.0), max(-price, 0.0))


def _convolution(
    call: Node,
    results: Sequence[Node],
    target: Target,
    hints: Mapping[Symbol, int],
    trains: bool,
    kept: frozenset[Node],
    stays: bool | None,
) -> Flexible | None:
    backward = call.attr("name") == BACKWARD
    picture, weight, gradient = operands(call)
    output = gradient if backward else results[0]
    if picture is None or weight is None or output is None:
        return None
    size = len(weight.shape)
    if not target.library and size == 4 == len(picture.shape) == len(output.shape):
        return _own(picture, weight, output, hints)
    if size not in (4, 5) or len(picture.shape) != size or len(output.shape) != size:
        return None
    if picture.dtype not in (FLOAT32, FLOAT16, BFLOAT16) or picture.dtype is not weight.dtype:
        return None
    if target.device == "cpu" and size == 5 and picture.dtype is FLOAT32:
        return None  # it makes contiguous results of all
    if target.device == "cpu" and (backward or trains) and _writes_beyond(call, picture, weight, hints):
        return None
    exact = stays if stays is not None else _rounds_turned(call, picture, weight, hints)
    if (target.device != "cpu" and exact) or (target.device != "cpu" and _is_slow_turned(call, picture, trains, hints)):
        return None
    share = rate(costs.CONVOLUTION_BACKWARD, target)
    parts = sum(1 for result in results if len(result.shape) == size) if backward else 1
    calls = parts * share if backward else 1 + 2 * share * trains
    moved = size_of(picture, hints) + size_of(output, hints)
    decided = weight not in kept and _lies_channels_last(weight, hints)
    again = calls * moved * rate(costs.COPIED, target) if decided else 0.0  # torch turns a contiguous picture
    turned = rate(costs.WEIGHT_CALL, target) + size_of(weight, hints) * rate(costs.WEIGHT, target)
    turned = 0.0 if decided or weight in kept or not _has_layouts(weight, hints) else parts * turned
    if target.device == "cpu" and weight not in kept and _is_by_windows(call, picture, weight, hints):
        each, channel = (ns * calls * _copied(picture, output, weight, hints) for ns in costs.CPU_WINDOW_COPY)
        last = each + turned
        return Flexible(last + again if decided else channel * estimate(picture.shape[1], hints), last, (weight,))
    more = moved * rate(_kind(call, picture, weight, target, backward or trains, hints), target)
    if target.device == "cpu" and picture.dtype is FLOAT16:  # the library's kernels of its gradients are others
        calls, more = float(parts), moved * _of_float16(call, weight, backward, hints)
    each = rate(costs.CONVOLUTION_CALL, target) + max(more, 0.0)
    last = turned + calls * max(-more, 0.0) + _wait(call, weight, target, backward, trains, hints)
    return Flexible(last + again if decided else calls * each, last, (weight,))


def _lies_channels_last(weight: Node, hints: Mapping[Symbol, int]) -> bool:
    """Whether torch takes a weight that the program gives for channels-last: it makes the convolution so, and turns a
    contiguous picture first.
    """
    if weight.op != "input" or weight.strides is None:
        return False
    sizes, strides = ([estimate(each, hints) for each in every] for every in (weight.shape, weight.strides))
    least = 0
    for axis in (1, *range(len(sizes) - 1, 1, -1), 0):
        if not sizes[axis] or strides[axis] < least or (axis == 0 and least == strides[1]):
            return False
        least = strides[axis] * max(sizes[axis], 1)
    return True


def _own(picture: Node, weight: Node, output: Node, hints: Mapping[Symbol, int]) -> Flexible:
    """A convolution of an exported program, which copies pictures of few channels in any order with their borders."""
    moved = size_of(output, hints) + size_of(picture, hints)
    few = estimate(picture.shape[1], hints) < costs.FEW_CHANNELS and not _is_point(weight, hints)
    return Flexible(moved * costs.OWN_CONVOLUTION, 0.0, (weight, picture) if few else (weight,))


def _writes_beyond(call: Node, picture: Node, weight: Node, hints: Mapping[Symbol, int]) -> bool:
    """Whether torch's gradient of the weight may write beyond its memory where the picture lies channels-last: steps
    over points of fewer channels than it takes at once (seen in float32 with 2 to 7 of them).
    """
    channels = estimate(picture.shape[1], hints)
    steps = argument(call, 4 if call.attr("name") == BACKWARD else 3, "stride", 1)
    return _is_point(weight, hints) and channels < costs.FEW_CHANNELS and not _are_ones(steps)


def sizes_of(node: Node, hints: Mapping[Symbol, int]) -> list[int]:
    """Those of a value, as recorded: a weight that the program is given has no constant ones."""
    return [estimate(size, hints) for size in node.shape]


def _is_point(weight: Node, hints: Mapping[Symbol, int]) -> bool:
    """Whether a convolution is a product for each point."""
    return all(size == 1 for size in sizes_of(weight, hints)[2:])


def _is_by_windows(call: Node, picture: Node, weight: Node, hints: Mapping[Symbol, int]) -> bool:
    """Whether torch multiplies copies of all windows itself, as it does for a single small picture on a CPU."""
    if picture.dtype is not FLOAT32 or len(weight.shape) != 4 or groups_of(call) != 1 or _is_point(weight, hints):
        return False
    if is_transposed(call):
        return False
    window, single = sizes_of(weight, hints)[2:], estimate(picture.shape[0], hints) == 1
    small = single and elements(picture, hints) <= costs.CPU_SINGLE_PICTURE
    return small and min(window) <= costs.CPU_SINGLE_WINDOW


def _copied(picture: Node, output: Node, weight: Node, hints: Mapping[Symbol, int]) -> int:
    """The points of all windows."""
    return elements(output, hints) // max(1, estimate(output.shape[1], hints)) * elements(weight, hints) // max(
        1, estimate(weight.shape[0], hints) * estimate(picture.shape[1], hints)
    )


def _wait(
    call: Node, weight: Node, target: Target, backward: bool, trains: bool, hints: Mapping[Symbol, int]
) -> float:
    """What a step of training waits for a GPU's library to find a kernel of a depthwise convolution channels-last,
    where eager does not wait for the same.
    """
    depthwise = len(weight.shape) == 4 and groups_of(call) != 1 and sizes_of(weight, hints)[1] == 1
    if target.device == "cpu" or not depthwise or not (backward or trains):
        return 0.0
    if any(is_turned(node, order, hints) for node, order in zip(call.inputs, call.attr("orders"), strict=True)):
        return 0.0
    itself, of_picture, of_weight = costs.DEPTHWISE_WAIT[weight.dtype.size]
    asked = argument(call, 10, "output_mask", (True, True)) if backward else (True, True)
    first, second = asked[:2] if isinstance(asked, (tuple, list)) else (True, True)
    return itself * (not backward) + of_picture * bool(first) + of_weight * bool(second)


def _of_float16(call: Node, weight: Node, backward: bool, hints: Mapping[Symbol, int]) -> float:
    """What a convolution of float16 takes longer contiguous on a CPU, for each byte; below 0: channels-last."""
    channels, own = sizes_of(weight, hints)[1], groups_of(call) != 1
    if own and channels == 1:
        kind = "depthwise"
    else:
        kind = "product" if _is_point(weight, hints) or (own and channels < costs.GROUPED_FLOAT16) else "plain"
    return costs.CONVOLUTION_FLOAT16[kind][backward]


def _kind(
    call: Node, picture: Node, weight: Node, target: Target, trains: bool, hints: Mapping[Symbol, int]
) -> tuple[float, float]:
    """The row of a convolution in the table of costs."""
    if target.device != "cpu" and not _on_tensor_cores(picture):
        return costs.CONVOLUTION["exact"]
    if groups_of(call) != 1:
        return costs.CONVOLUTION[_grouped_kind(weight, sizes_of(weight, hints), trains)]
    if not _is_point(weight, hints):
        few = target.device != "cpu" and not trains and _has_few_channels(call, picture, sizes_of(weight, hints))
        return costs.CONVOLUTION["few channels" if few else "plain"]
    return costs.CONVOLUTION["product" if picture.dtype is FLOAT32 else "narrow product"]


def _grouped_kind(weight: Node, sizes: Sequence[int], trains: bool) -> str:
    points = sizes[2:]
    window = math.prod(points)
    if sizes[1] != 1:
        return "grouped in training" if trains else "grouped"
    square = len(points) == 2 and points[0] == points[1] and points[0] % 2 == 1
    if window > costs.LARGE_WINDOW or not square:
        return "large depthwise"
    wide = trains and weight.dtype is FLOAT32 and window > costs.WIDE_WINDOW
    return "wide depthwise" if wide else "depthwise"


def _has_few_channels(call: Node, picture: Node, sizes: Sequence[int]) -> bool:
    """Whether a GPU's library has no good kernel channels-last for so few channels of the picture, or of the result,
    by the ``sizes`` of the weight.
    """
    if picture.dtype is not FLOAT32 or "transpose" in call.attr("name"):
        return False
    made, channels = sizes[:2]
    few = costs.FEWEST_CHANNELS <= channels < costs.FEW_CHANNELS
    if len(sizes) == 5:
        return few and made > costs.FEW_CHANNELS
    return channels == 1 or (few and channels > costs.FEWEST_CHANNELS) or made < costs.FEWEST_CHANNELS


def groups_of(call: Node) -> Value:
    """Into how many parts a convolution divides its channels."""
    return argument(call, 9 if call.attr("name") == BACKWARD else 6, "groups", 1)


def _is_slow_turned(call: Node, picture: Node, trains: bool, hints: Mapping[Symbol, int]) -> bool:
    """Whether a GPU's library has no good kernel for it channels-last, whatever it reads: transposed convolutions in
    groups (H100: 2.6 ms contiguous and 2.9), windows with holes of gradients (0.27 and 1.19), of few channels, and of
    transposed ones.
    """
    backward, transposed = call.attr("name") == BACKWARD, is_transposed(call)
    spread = not _are_ones(argument(call, 6 if backward else 7 if transposed else 5, "dilation", 1))
    if not spread or transposed or backward or trains:
        return spread or (transposed and groups_of(call) != 1)
    plain = _are_ones(argument(call, 3, "stride", 1)) and groups_of(call) == 1 and picture.dtype is FLOAT32
    return not plain or estimate(picture.shape[1], hints) < costs.SPREAD_CHANNELS


def is_transposed(call: Node) -> bool:
    """Whether a convolution, or the one of a backward pass, is a transposed one."""
    if call.attr("name") == BACKWARD:
        return bool(argument(call, 7, "transposed", False))
    return "transpose" in call.attr("name")


def _rounds_turned(call: Node, picture: Node, weight: Node, hints: Mapping[Symbol, int]) -> bool:
    """Whether a GPU's library multiplies float32 of so few channels with all digits as it lies in eager, and rounds it
    to TF32 channels-last. Of a backward pass that is the gradient of the picture.
    """
    backward = call.attr("name") == BACKWARD
    if not may_round(picture) or is_transposed(call) or groups_of(call) != 1:
        return False
    channels = estimate(picture.shape[1], hints)
    return (not backward or _asks_for_the_pictures(call)) and channels < costs.EXACT_CHANNELS[len(weight.shape) - 4]


def _asks_for_the_pictures(call: Node) -> bool:
    """Whether a backward pass makes the gradient of the picture."""
    asked = argument(call, 10, "output_mask", (True,))
    return not isinstance(asked, (tuple, list)) or bool(asked[0])


def is_turned(node: Node, order: tuple[int, ...] | None, hints: Mapping[Symbol, int]) -> bool:
    """Whether eager's operand lies channels-last, and in no other way."""
    rank = len(node.shape)
    if rank < 4 or order != (0, *range(2, rank), 1):
        return False
    _, channels, *points = sizes_of(node, hints)
    return channels > 1 and any(size > 1 for size in points)


def _are_ones(given: Value) -> bool:
    """Whether a number, or each of several, is 1."""
    return all(each == 1 for each in (given if isinstance(given, (tuple, list)) else (given,)))


def _has_layouts(weight: Node, hints: Mapping[Symbol, int]) -> bool:
    """Whether the weight lies in another way channels-last."""
    _, channels, *points = sizes_of(weight, hints)
    return channels != 1 and any(size != 1 for size in points)


def may_round(picture: Node) -> bool:
    """Whether a GPU's library may round float32 to TF32, by the settings of now; False for other dtypes."""
    return picture.dtype is FLOAT32 and _rounds()


def _on_tensor_cores(picture: Node) -> bool:
    """Whether the library rounds operands as these units need it, by the settings of now."""
    return picture.dtype is not FLOAT32 or _rounds()


def _rounds() -> bool:
    try:
        return bool(torch.backends.cudnn.allow_tf32)
    except RuntimeError:  # of a program that uses both of torch's ways to set it
        return True


def argument(call: Node, place: int, name: str, default: Value = None) -> Value:
    """What a call is given, by place or by name."""
    args = call.attr("args")
    return args[place] if place < len(args) else call.attr("kwargs").get(name, default)


def operands(call: Node) -> tuple[Node | None, Node | None, Node | None]:
    """The picture of a convolution, its weight, and in a backward pass the gradient of its result."""
    place = 1 if call.attr("name") == BACKWARD else 0
    gradient = _operand(call, 0, "grad_output") if place else None
    return _operand(call, place, "input"), _operand(call, place + 1, "weight"), gradient


def _operand(call: Node, place: int, name: str) -> Node | None:
    given = argument(call, place, name)
    return call.inputs[given.index] if isinstance(given, Arg) else None
