"""Numbers that an exported program computes of sizes are Python's, to the last bit, or an error."""

import math
import shutil

import pytest
import torch

import framefuse

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="export needs a C compiler")


def loaded(f, example, folder):
    framefuse.export(f, (example,), folder / "program.so", dynamic=True)
    return framefuse.load(folder / "program.so")


def test_a_product_within_a_sum_is_rounded_by_itself(tmp_path):
    def f(x):
        return x[: int(x.shape[0] * 0.7 + 0.1)] * 2

    program = loaded(f, torch.randn(11), tmp_path)
    for rows in (7, 17, 33, 30):  # the first two are one less where both are rounded as one
        x = torch.randn(rows)
        torch.testing.assert_close(program(x), f(x))


def test_powers_and_functions_of_sizes(tmp_path):
    def f(x):
        side = int(x.shape[0] ** 0.5)
        return x.reshape(side, -1) * math.log(x.shape[0]) + math.exp(-x.shape[0]), x * (x.shape[0] & 6 | 1)

    program = loaded(f, torch.randn(64), tmp_path)
    for rows in (9, 16, 25, 1):
        x = torch.randn(rows)
        torch.testing.assert_close(program(x), f(x))


def test_what_python_raises_for_is_an_error(tmp_path):
    def f(x):
        return x * math.sqrt(x.shape[0] - 2) / (1.0 / (x.shape[0] - 3))

    program = loaded(f, torch.randn(9), tmp_path)
    x = torch.randn(5)
    torch.testing.assert_close(program(x), f(x))
    for rows in (1, 3):
        with pytest.raises((ValueError, ZeroDivisionError)):
            f(torch.randn(rows))
        with pytest.raises(ValueError, match=r"not defined for these sizes|do not fit together"):
            program(torch.randn(rows))


def test_a_number_that_other_sizes_divide_by_zero_for_is_no_error_of_the_export(tmp_path):
    def f(x):
        rows = x.shape[0]
        return x * 2 if rows // (rows // 4) == 5 else x

    program = loaded(f, torch.randn(11), tmp_path)
    for rows in (11, 10, 5):
        x = torch.randn(rows)
        torch.testing.assert_close(program(x), f(x))
    for rows in (8, 3):
        with pytest.raises(ValueError, match="do not fit together"):
            program(torch.randn(rows))
