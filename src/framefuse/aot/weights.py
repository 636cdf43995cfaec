"""Writes the weights of an exported program in the format safetensors, and says where each lies in it."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import IO

import torch

ALIGNMENT = 64
# How a file begins, and where in it the checksum of what lies behind the head has its eight digits.
BEGIN = '{"__metadata__": {"crc32": "'
CHECKSUM_AT = 8 + len(BEGIN)
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
        return laid.view(torch.uint8).cpu().numpy().tobytes() if laid.numel() else b""

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


@dataclass(frozen=True, slots=True)
class Laid:
    """The file of some weights: its ``head``, the place of each weight in it, and the ``order`` in which they lie."""

    head: bytes
    places: tuple[int, ...]
    order: tuple[int, ...]
    size: int

    @property
    def checksum(self) -> str:
        """That of what lies behind the head, as the head says."""
        return self.head[CHECKSUM_AT : CHECKSUM_AT + 8].decode()


def laid(weights: Sequence[Weight]) -> Laid:
    """How weights lie in their file. Wide elements come first, so that all lie on their own multiples; a weight whose
    dimensions lie in another order is written with its sizes in that order.
    """
    order = sorted(range(len(weights)), key=lambda k: -weights[k].tensor.element_size())
    header: dict[str, object] = {"__metadata__": {"crc32": "0" * 8}}
    begins, end = [0] * len(weights), 0
    for k in order:
        begins[k] = end
        end += weights[k].tensor.numel() * weights[k].tensor.element_size()
        header[weights[k].name] = {
            "dtype": NAMES[weights[k].tensor.dtype],
            "shape": weights[k].laid_sizes,
            "data_offsets": [begins[k], end],
        }
    text = json.dumps(header).encode()
    assert text.startswith(BEGIN.encode())
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    head = len(text).to_bytes(8, "little") + text
    return Laid(head, tuple(len(head) + begin for begin in begins), tuple(order), len(head) + end)


def write(weights: Sequence[Weight], as_laid: Laid, file: IO[bytes]) -> Laid:
    """Writes the file, one weight after the other; gives it with the checksum in its head."""
    checksum = 0
    file.write(as_laid.head)
    for k in as_laid.order:
        part = weights[k].bytes
        file.write(part)
        checksum = zlib.crc32(part, checksum)
    head = as_laid.head[:CHECKSUM_AT] + f"{checksum:08x}".encode() + as_laid.head[CHECKSUM_AT + 8 :]
    file.seek(0)
    file.write(head)
    return replace(as_laid, head=head)
