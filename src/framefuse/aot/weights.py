"""Writes the weights of an exported program in the format safetensors, and says where each lies in it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import torch

ALIGNMENT = 64
# Names of dtypes in safetensors, by torch's.
NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor that the program reads and no caller gives; it is dense in the ``order`` of its dimensions."""

    name: str
    tensor: torch.Tensor
    order: tuple[int, ...]

    @property
    def bytes(self) -> bytes:
        """The elements as they lie in memory."""
        laid = self.tensor.detach().permute(self.order).contiguous().reshape(-1)
        return laid.view(torch.uint8).numpy().tobytes() if laid.numel() else b""

    @property
    def laid_sizes(self) -> list[int]:
        """The sizes in the order in which the dimensions lie in memory."""
        return [self.tensor.shape[d] for d in self.order]

    @property
    def strides(self) -> list[int]:
        """The strides of the dense memory, in elements."""
        strides, step = [0] * len(self.order), 1
        for d in reversed(self.order):
            strides[d] = step
            step *= self.tensor.shape[d]
        return strides


def written(weights: Sequence[Weight]) -> tuple[bytes, list[int]]:
    """The file, and the place of each weight in it. Wide elements come first, so that all lie on their own multiples;
    a weight whose dimensions lie in another order is written with its sizes in that order.
    """
    ordered = sorted(range(len(weights)), key=lambda k: -weights[k].tensor.element_size())
    header: dict[str, object] = {}
    parts, begins, end = [], [0] * len(weights), 0
    for k in ordered:
        data = weights[k].bytes
        begins[k] = end
        end += len(data)
        parts.append(data)
        header[weights[k].name] = {
            "dtype": NAMES[weights[k].tensor.dtype],
            "shape": weights[k].laid_sizes,
            "data_offsets": [begins[k], end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    start = 8 + len(text)
    return b"".join((len(text).to_bytes(8, "little"), text, *parts)), [start + begin for begin in begins]
