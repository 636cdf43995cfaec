"""Cross products are part of kernels, with gradients of two orders; what eager refuses or rounds apart is its call."""

import pytest
import torch

import framefuse
from framefuse.api import compiled_function
from framefuse.ir.plan import CallStep

PROGRAMS = {
    "of rows": (lambda x, y: torch.linalg.cross(x, y) + 1, (5, 3), (5, 3)),
    "along another dimension": (lambda x, y: torch.cross(x, y, dim=0) * x, (3, 7), (3, 7)),
    "broadcast": (lambda x, y: torch.cross(x, y, dim=-1).exp(), (6, 1, 3), (1, 4, 3)),
    "of a size 1": (lambda x, y: x.cross(y, dim=1) - y[..., :1], (2, 3, 5), (2, 3, 5)),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_with_gradients(name, dtype):
    program, left, right = PROGRAMS[name]

    def step(x, y):
        first = torch.autograd.grad(program(x, y).square().sum(), (x, y), create_graph=True)
        return *first, *torch.autograd.grad(first[0].square().sum(), (x, y))

    plain, fast = framefuse.compile(program), framefuse.compile(step)
    for _ in range(3):
        x, y = (torch.randn(shape, dtype=dtype).requires_grad_() for shape in (left, right))
        with torch.no_grad():
            torch.testing.assert_close(plain(x, y), program(x, y))
        torch.testing.assert_close(fast(x, y), step(x, y), rtol=1e-4, atol=1e-4)
    (product,) = compiled_function(plain).products
    assert not any(isinstance(step, CallStep) for step in product.stages.plan.steps)


def test_sizes_and_dtypes_that_change():
    fast = framefuse.compile(lambda x, y: torch.linalg.cross(x, y) * 2)
    for shape, dtype in (((4, 3), torch.float32), ((9, 3), torch.float32), ((2, 3), torch.int64),
                         ((5, 3), torch.bfloat16), ((3, 3), torch.complex64)):  # fmt: skip
        for _ in range(2):
            x, y = ((torch.randn(shape) * 9).to(dtype) for _ in range(2))
            torch.testing.assert_close(fast(x, y), torch.linalg.cross(x, y) * 2)
    with pytest.raises(RuntimeError, match="length 3"):
        fast(torch.randn(4, 2), torch.randn(4, 2))
    default = framefuse.compile(lambda x, y: torch.linalg.cross(x, y[:, :3]))
    for _ in range(3):
        x, y = torch.randn(4, 3), torch.randn(4, 5)
        torch.testing.assert_close(default(x, y), torch.linalg.cross(x, y[:, :3]))
