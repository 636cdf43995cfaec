"""A cat along an outer axis is a loop for each piece: values are eager's at the ends of pieces and for other sizes."""

import pytest
import torch

import framefuse
from framefuse.api import compiled_function
from framefuse.ir.loops import Loop, LoopKind
from framefuse.ir.loops.walk import statements
from framefuse.ir.schedule import RunKernel

PROGRAMS = {
    "cat": lambda x: torch.cat([x, x * 2], 0),
    "three pieces": lambda x: torch.cat([x, x + 1, x[:, :1]], 1).neg(),
    "a slice across the end": lambda x: torch.cat([x, x + 1], 0)[1:] * 3,
    "a slice behind the end": lambda x: torch.cat([x, x + 1], 0)[x.shape[0] + 1 :] * 3,
    "stack": lambda x: torch.stack([x, x - 1], 1),
    "roll": lambda x: x.roll(1, 0),
    "roll of the middle": lambda x: x.roll(-2, 1),
    "two cats": lambda x: torch.cat([torch.cat([x, x + 1], 0), x + 2], 0),
    "what is empty": lambda x: torch.cat([x[:0], x, x[2:]], 0),
    "rows of one number": lambda x: torch.cat([(x[:2, :, :1] * 3).expand(x[:2].shape), x.sum(0, keepdim=True)], 0) * 2,
    "one number": lambda x: torch.cat([x.sum().expand(1, len(x)) * 3, x.sum().expand(4, len(x))], 0) * 2,
    "a column before rows": lambda x: torch.cat([x[:, 0, :1].expand(-1, x.shape[2]), x[:, 0] + 1], 0),
    "read twice": lambda x: torch.cat([x, x.flip(0)], 0) + torch.cat([x + 1, x], 0),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_pieces_of_an_outer_axis(name):
    program = PROGRAMS[name]
    fast = framefuse.compile(program)
    for sizes in ((4, 6, 20), (4, 6, 20), (3, 5, 70), (2, 3, 16), (9, 4, 33)):
        x = torch.randint(-9, 9, sizes).float()
        mine, other = fast(x), program(x)
        assert mine.stride() == other.stride()
        assert torch.equal(mine, other)
    assert fast.hits >= 3


def test_no_load_of_a_piece_asks_whether_it_is_there():
    fast = framefuse.compile(PROGRAMS["cat"])
    for sizes in ((4, 6, 20), (4, 6, 20), (5, 7, 33)):
        x = torch.randn(sizes)
        assert torch.equal(fast(x), PROGRAMS["cat"](x))
    assert fast.hits >= 1
    (product,) = compiled_function(fast).products
    (kernel,) = (item.kernel for item in product.stages.code.schedule.items if isinstance(item, RunKernel))
    loops = [each for each in statements(kernel.body) if isinstance(each, Loop) and each.kind is LoopKind.VECTOR]
    assert len(loops) == 2
    assert " if " not in str(kernel)
