"""Asks a GPU's library what float32 it multiplies with all digits, by convolutions of numbers that TF32 cannot hold."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from framefuse.ir.whole_digits import ITSELF, OF_PICTURE, OF_WEIGHT, SizedConvolution

# What both operands hold where they meet: its last digit is beyond those of TF32. The product of two is larger than
# ALL_DIGITS, that of one with a rounded one is smaller, and nothing else is added to it.
ELEMENT, ALL_DIGITS = 1 + 2.0**-12, 1 + 1.5 * 2.0**-12
SHARE = 4  # the operands may take one part in so many of what is free


def with_all_digits(questions: Sequence[SizedConvolution]) -> list[bool | None]:
    """The answer to each; None for those that cannot be asked now. Waits for the device once."""
    answers: list[bool | None] = [None] * len(questions)
    if not torch.cuda.is_available() or torch.cuda.is_current_stream_capturing():
        return answers
    room = {name: _room(name) for name in {question.device for question in questions}}
    with torch.no_grad(), torch.autocast("cuda", enabled=False):
        largest = [_largest(question, room[question.device]) for question in questions]
    for place, found in enumerate(largest):
        if found is not None:
            answers[place] = found.item() > ALL_DIGITS  # the first of them waits for all
    return answers


def _largest(question: SizedConvolution, room: int) -> torch.Tensor | None:
    """The largest element of what a convolution, or the gradient that is asked for, gives."""
    shapes = (question.picture, question.weight, _result(question))
    if min(map(min, shapes)) < 1 or 4 * sum(map(math.prod, shapes)) > room:
        return None
    with torch.cuda.device(question.device):
        try:
            return _made(question, shapes[-1]).amax()
        except (torch.OutOfMemoryError, RuntimeError):  # the call itself will raise it
            return None


def _room(name: str) -> int:
    """The bytes that operands may take on a device; none on one that is not asked."""
    device = torch.device(name)
    if device.type != "cuda":
        return 0
    free, _ = torch.cuda.mem_get_info(device)
    return (free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)) // SHARE


def _result(question: SizedConvolution) -> tuple[int, ...]:
    """The sizes of the convolution's result."""
    made = question.weight[1] * question.groups if question.transposed else question.weight[0]
    return (question.picture[0], made, *_points(question))


def _points(question: SizedConvolution) -> Iterator[int]:
    columns = zip(
        question.picture[2:], question.weight[2:], question.stride, question.padding, question.dilation,
        question.extra, strict=True,
    )  # fmt: skip
    for size, window, step, pad, hole, extra in columns:
        span = hole * (window - 1) + 1
        yield (size - 1) * step - 2 * pad + span + extra if question.transposed else (size + 2 * pad - span) // step + 1


def _made(question: SizedConvolution, result: tuple[int, ...]) -> torch.Tensor:
    """One element of one operand meets the other one, which is full of one number, so that a result is one product."""
    how = (question.stride, question.padding, question.dilation, question.transposed, question.extra, question.groups)
    rank, part = len(question.stride), question.part
    picture, weight = _memory(question, question.picture), _memory(question, question.weight)
    given = picture if part == ITSELF else _memory(question, result)
    if part == OF_WEIGHT:  # of each channel one point of the first picture
        single, full = (picture, given) if question.transposed else (given, picture)
        _middle(single.zero_()[0], rank).fill_(ELEMENT)
    else:  # of one window for each result, or of the windows of one result for each group
        full, of_one = given, (part == OF_PICTURE) != question.transposed
        weight.zero_()
        each = weight[:: max(1, weight.shape[0] // question.groups)] if of_one else weight[:, :1]
        _middle(each, rank).fill_(ELEMENT)
    full.fill_(ELEMENT)
    if part == ITSELF:
        return torch.convolution(picture, weight, None, *how)
    mask = [part == OF_PICTURE, part == OF_WEIGHT, False]
    gradients = torch.ops.aten.convolution_backward.default(given, picture, weight, None, *how, mask)
    found: torch.Tensor = gradients[mask.index(True)]
    return found


def _memory(question: SizedConvolution, shape: Sequence[int]) -> torch.Tensor:
    turned = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    how = turned if question.last else torch.contiguous_format
    return torch.empty(tuple(shape), dtype=torch.float32, device=question.device, memory_format=how)


def _middle(windows: torch.Tensor, rank: int) -> torch.Tensor:
    """The point in the middle of each, where the last dimensions are those of the points."""
    for size in windows.shape[-rank:]:
        windows = windows.select(-rank, size // 2)
        rank -= 1
    return windows
