import math
from pathlib import Path

import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.harness import compilers
from benchmarks.large import matrix
from benchmarks.large.matrix_cases import AXES, DTYPES, SIZES, cases, draw, maker, shape_of


@pytest.fixture
def plain(monkeypatch):
    """A framefuse that compiles nothing, so that only the harness is tested."""
    monkeypatch.setitem(compilers.COMPILERS, "framefuse", lambda function, dynamic, mode=None: function)


def small(case):
    """The case on a tensor of a few elements."""
    shapes = {1: (2, 4, 32), 2: (2, 4, 16, 16), 3: (1, 2, 8, 8, 8)}
    inputs = case.make("cpu", torch.Generator().manual_seed(0))
    if case.axis == "window":
        rank = inputs[0].dim() - 2
        rest = [(4, 1, 3, 3)] if len(inputs) == 2 else []
        return maker((shapes[rank], *rest), case.dtype)
    return case.make


def test_the_matrix_is_the_product_that_it_says():
    for device in ("cpu", "cuda"):
        every = cases(device)
        assert len({case.name for case in every}) == len(every)
        sums = {(case.axis, case.size, case.dtype) for case in every if case.operation == "sum"}
        assert sums == {
            (axis, size, dtype)
            for axis in AXES
            for size in SIZES
            for dtype in DTYPES
            if axis != "all" or size in ("even", "odd")
        }


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("size", SIZES)
def test_reduced_axes_have_the_length_that_they_shall(axis, size):
    factors = SIZES[size][1]
    shape = shape_of(axis, factors)
    reduced = math.prod(shape[place] for place in AXES[axis])
    assert math.prod(shape) == math.prod(factors[0]) * math.prod(factors[1])
    assert axis == "all" or reduced == math.prod(factors[0])


@pytest.mark.parametrize("case", [case for case in cases("cpu") if "window" in case.name], ids=lambda case: case.name)
def test_each_window_runs(case):
    inputs = small(case)("cpu", torch.Generator().manual_seed(0))
    assert case.function(*inputs).isfinite().all()


def test_a_row_and_its_loss(plain):
    (case,) = [case for case in cases("cpu") if case.name == "group_norm both ways rest odd float32"]
    said = []
    row = matrix.measure(case, ["framefuse"], said.append, "cpu")
    assert row["equal"] == "yes" and row["times_eager"] > 0 and row["of_copy"] > 0 and len(said) == 2
    slow = {**row, "times_eager": 0.5}
    assert matrix.findings([slow, {**row, "kernel": "fast", "times_eager": 2.0}]) == [
        "behind eager: 1 of 2; geometric mean 1.00",
        f"  0.50  {case.name}",
    ]


@pytest.mark.parametrize("name", ["sum middle odd float32", "sum middle odd int64", "argmax middle odd float32"])
def test_a_wrong_result_is_said(name):
    (case,) = [case for case in cases("cpu") if case.name == name]
    inputs = case.make("cpu", torch.Generator().manual_seed(0))
    right = case.function(*inputs)
    assert matrix.difference(case, right.clone(), right, inputs) is None
    wrong = (right + 1) % inputs[0].shape[1] if case.operation == "argmax" else right + right.abs().max() // 100 + 1
    assert matrix.difference(case, wrong, right, inputs)


def test_equal_values_may_be_named_by_any_of_their_positions():
    (case,) = [case for case in cases("cpu") if case.name == "argmax last even int64"]
    inputs = (torch.tensor([[[5, 1, 5]]]),)
    assert matrix.difference(case, torch.tensor([[2]]), torch.tensor([[0]]), inputs) is None
    assert matrix.difference(case, torch.tensor([[1]]), torch.tensor([[0]]), inputs)


def test_the_command_writes_table_and_map(plain, tmp_path, capsys):
    arguments = ["kernels", "--matrix", "--no-torch", "--only", "pad", "--part", "1/2", "--out", str(tmp_path)]
    assert main(arguments) == 0
    assert "geometric mean" in capsys.readouterr().out
    assert {path.name for path in Path(tmp_path).iterdir()} == {"matrix.csv", "matrix.md", "matrix.png"}


def test_drawn_integers_have_room_for_sums():
    assert draw((1000,), torch.int64, "cpu", torch.Generator()).abs().max() <= 1000


def test_an_interrupt_keeps_what_was_measured(monkeypatch):
    measured = iter([{"kernel": "first"}, KeyboardInterrupt()])

    def measure(*arguments):
        row = next(measured)
        if isinstance(row, BaseException):
            raise row
        return row

    monkeypatch.setattr(matrix, "measure", measure)
    assert matrix.matrix(str, ["framefuse"]) == [{"kernel": "first"}]
