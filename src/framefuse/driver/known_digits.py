"""Keeps what a GPU's library said of the digits of convolutions, in this process and on disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import torch

from framefuse.driver import winners
from framefuse.ir.whole_digits import SizedConvolution
from framefuse.runtime.convolution_digits import with_all_digits

Settings = tuple[object, ...]
_known: dict[tuple[SizedConvolution, Settings], bool] = {}


def asked(questions: Sequence[SizedConvolution], keep: bool) -> list[bool | None]:
    """Whether all digits are multiplied, by question; to ``keep`` on disk, by device and version of the library."""
    if not questions or not torch.cuda.is_available():
        return [None] * len(questions)
    settings = _settings()
    new = [question for question in questions if (question, settings) not in _known]
    if new:
        key = _key(new, settings)
        answers = _read(key, len(new)) if keep else None
        if answers is None:
            answers = with_all_digits(new)
            if keep and None not in answers:
                winners.PROCESS.disk.write(key, json.dumps(answers).encode())
        pairs = zip(new, answers, strict=True)
        _known.update({(question, settings): answer for question, answer in pairs if answer is not None})
    return [_known.get((question, settings)) for question in questions]


def _settings() -> Settings:
    """What the library chooses by beside sizes."""
    return (
        torch._C._get_cudnn_enabled(), torch._C._get_cudnn_benchmark(), torch._C._get_cudnn_deterministic(),
        torch.are_deterministic_algorithms_enabled(),
    )  # fmt: skip


def _key(questions: Sequence[SizedConvolution], settings: Settings) -> str:
    names = {question.device: torch.cuda.get_device_name(question.device) for question in questions}
    parts = (torch.__version__, torch.backends.cudnn.version(), sorted(names.items()), settings, tuple(questions))
    return hashlib.sha256(repr(("digits of convolutions", *parts)).encode()).hexdigest()


def _read(key: str, count: int) -> list[bool | None] | None:
    try:
        answers = json.loads(winners.PROCESS.disk.read(key) or b"null")
    except ValueError:
        return None
    if not isinstance(answers, list) or len(answers) != count or not all(isinstance(each, bool) for each in answers):
        return None
    return list(answers)
