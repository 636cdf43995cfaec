"""An exported program takes its arguments as the example had them: structures, names, defaults; others are errors."""

import shutil
from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch

import framefuse

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="export needs a C compiler")
Pair = namedtuple("Pair", "left right")


@dataclass
class Boxes:
    corners: torch.Tensor
    scale: float = 2.0


def attend(batch, pair, boxes, window=4, *, mode="mean", bias=None):
    x = batch["x"] * boxes.scale + boxes.corners
    windows = (x + pair.left @ pair.right).reshape(-1, window)
    pooled = windows.mean(-1) if mode == "mean" else windows.amax(-1)
    return {"pooled": pooled if bias is None else pooled + bias, "kept": (batch["more"][0] * 0.5,)}


def arguments(rows):
    batch = {"x": torch.randn(rows, 8), "more": [torch.randn(3)]}
    return batch, Pair(torch.randn(rows, 2), torch.randn(2, 8)), Boxes(torch.randn(rows, 8))


def test_structures_names_and_defaults_are_as_in_the_example(tmp_path):
    path, bias = tmp_path / "attend.so", torch.randn(1)
    written = framefuse.export(attend, arguments(4), path, kwargs={"mode": "max", "bias": bias})
    assert len(written.inputs) == 6 and written.outputs == 2
    program = framefuse.load(path)
    for rows in (4, 1, 7):
        given = batch, pair, boxes = arguments(rows)
        expected = attend(*given, mode="max", bias=bias)
        for args, kwargs in (
            (given, {"mode": "max", "bias": bias}),
            ((batch,), {"bias": bias, "boxes": {"corners": boxes.corners, "scale": 2.0}, "pair": pair}),
        ):
            torch.testing.assert_close(program(*args, **kwargs), expected)
    batch, pair, boxes = arguments(4)
    for args, kwargs, kind, text in (
        ((batch, pair, boxes), {"bias": bias, "mode": "mean"}, ValueError, "mode is 'mean'.*exported for 'max'"),
        ((batch, pair, Boxes(boxes.corners, 3.0)), {"bias": bias}, ValueError, r"boxes.scale is 3.0"),
        ((batch, pair, boxes), {}, TypeError, "bias is missing"),
        ((batch, pair, boxes, 4), {"bias": bias}, TypeError, "3 arguments by position"),
        ((batch, pair, boxes), {"bias": bias, "window": 4}, TypeError, "no argument window"),
        ((batch, pair[:1], boxes), {"bias": bias}, TypeError, "pair is to be a tuple of 2"),
        (({"x": batch["x"]}, pair, boxes), {"bias": bias}, TypeError, "batch is to have the keys x, more"),
    ):
        with pytest.raises(kind, match=text):
            program(*args, **kwargs)


def windowed(x, window=4, rate=0.5):
    return x.reshape(-1, window).sum(0) * rate


def test_defaults_hold_and_sizes_are_named_by_parameters(tmp_path):
    path = tmp_path / "windowed.so"
    framefuse.export(windowed, (torch.randn(4, 8),), path, dynamic={"x": {0: "rows"}})
    program, x = framefuse.load(path), torch.randn(6, 8)
    torch.testing.assert_close(program(x=x), windowed(x))
    with pytest.raises(ValueError, match="size 9 in dimension 1, not 8"):
        program(torch.randn(4, 9))
    for refused, text in (({"y": {0: "rows"}}, "which the examples have not"), ({1: {0: "rows"}}, "have not")):
        with pytest.raises(framefuse.UserError, match=text):
            framefuse.export(windowed, (torch.randn(4, 8),), path, dynamic=refused)
    with pytest.raises(framefuse.UserError, match=r"input 1\[0\] is a set"):
        framefuse.export(windowed, (torch.randn(4, 8), [{1}]), path)
