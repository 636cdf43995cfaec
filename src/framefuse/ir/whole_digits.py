"""The question whether a device's library multiplies float32 of a convolution with all digits, or rounds to TF32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

ITSELF, OF_PICTURE, OF_WEIGHT = range(3)  # the convolution, and its gradients


@dataclass(frozen=True, slots=True)
class SizedConvolution:
    """One convolution of the recorded sizes, as ``aten.convolution`` takes it, or the gradient that ``part`` says; with
    all of it contiguous, or ``last``: channels-last.
    """

    device: str
    picture: tuple[int, ...]
    weight: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    extra: tuple[int, ...]  # behind the result of a transposed one
    groups: int
    part: int
    last: bool = False

    def turned(self) -> SizedConvolution:
        """The same, asked of channels-last memory."""
        return replace(self, last=True)


# Says of each whether all digits are multiplied; None where that is not known.
Asks = Callable[[Sequence[SizedConvolution]], Sequence[bool | None]]
