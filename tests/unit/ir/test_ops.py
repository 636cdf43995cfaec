"""The derivative column of the table is what torch's autograd computes, ties and zeros included."""

import pytest
import torch

from framefuse.ir.ops import POINTWISE, TABLE

POINTS = torch.tensor([-2.5, -1.0, -0.3, 0.0, 0.2, 0.7, 1.0, 1.6, 3.0], dtype=torch.float64)
INSIDE = {"acosh": POINTS.abs() + 1.5, "lgamma": POINTS.abs() + 0.4, "erfinv": POINTS / 4, "asin": POINTS / 4,
          "acos": POINTS / 4, "atanh": POINTS / 4}  # fmt: skip
EAGER = {"maximum": "torch.maximum(a, b)", "minimum": "torch.minimum(a, b)",
         "floordiv": 'torch.div(a, b, rounding_mode="floor")'}  # fmt: skip
POSITIVE = {"log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal"}


class Tracker(dict):
    """Names of primitives as functions of tensors, numbers and the letters a b c g r."""

    def __missing__(self, name):
        if name == "trigamma":
            return lambda a: torch.special.polygamma(1, a)
        row = TABLE[name]

        def apply(*operands):
            tensors = [torch.as_tensor(value, dtype=torch.float64) if isinstance(value, float) else value
                       for value in operands]  # fmt: skip
            return eval(row.formula, {"torch": torch, **dict(zip("abc", tensors, strict=False))})

        return apply


def operands(row):
    if row.name == "where":
        return [POINTS > 0, POINTS.clone(), POINTS.flip(0).clone()]
    if row.arity == 1:
        return [INSIDE.get(row.name, POINTS.abs() + 0.1 if row.name in POSITIVE else POINTS).clone()]
    pairs = torch.cartesian_prod(POINTS, POINTS)
    if row.name == "pow":
        pairs = pairs[(pairs[:, 0] > 0) | ((pairs[:, 0] == 0) & (pairs[:, 1] > 0))]
    elif row.name in ("div", "floordiv", "remainder", "fmod"):
        pairs = pairs[pairs[:, 1] != 0]
    elif row.name in ("hypot", "atan2"):
        pairs = pairs[(pairs != 0).any(1)]
    columns = list(pairs.unbind(1))
    return [column.clone() for column in columns + ([columns[0].flip(0)] if row.arity == 3 else [])]


FILLED = [row for row in TABLE.values() if row.kind == POINTWISE and row.derivative and row.domain not in ("integral",)]


@pytest.mark.parametrize(
    "row", [row for row in FILLED if any(row.derivative) and row.name != "cast"], ids=lambda r: r.name
)
def test_a_derivative_is_autograds(row):
    values = operands(row)
    leaves = [value.requires_grad_() if value.is_floating_point() else value for value in values]
    # The formula says which zero wins; eager's own function says how a tie is divided.
    formula = EAGER.get(row.name, row.formula)
    result = eval(formula, {"torch": torch, **dict(zip("abc", leaves, strict=False))})
    gradient = torch.linspace(0.5, 2.0, result.numel(), dtype=torch.float64)
    real = [leaf for leaf in leaves if leaf.requires_grad]
    try:
        expected = iter(torch.autograd.grad(result, real, gradient, allow_unused=True))
    except NotImplementedError as error:  # of an older torch
        pytest.skip(str(error))
    names = Tracker(zip("abc", [leaf.detach() for leaf in leaves], strict=False))
    names |= {"g": gradient, "r": result.detach(), "zero": torch.zeros_like(result)}
    names |= {"beside": lambda value, *others: value, **dict.fromkeys(("fixed", "anew"), lambda value: value)}
    for leaf, text in zip(leaves, row.derivative, strict=True):
        if leaf.requires_grad:
            wanted = next(expected)
            wanted = torch.zeros_like(leaf) if wanted is None else wanted
            torch.testing.assert_close(eval(text, {}, names), wanted, equal_nan=True)


def test_every_row_with_derivatives_names_one_for_each_operand():
    for row in TABLE.values():
        if row.derivative is not None and row.arity >= 0:
            assert len(row.derivative) == row.arity, row.name
