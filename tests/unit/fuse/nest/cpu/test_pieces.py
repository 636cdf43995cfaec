"""A cat along an outer axis, or along a row that is reduced, is a loop for each piece: values are eager's at the ends
of pieces and for other sizes.
"""

import pytest
import torch

import framefuse
from framefuse.api import compiled_function
from framefuse.ir.loops import Apply, Load, Loop, LoopKind
from framefuse.ir.loops.print import kernel_text
from framefuse.ir.loops.walk import statements, values_of
from framefuse.ir.schedule import RunKernel


def with_block(x):
    y = x.clone()
    y[:, 1:3, 5:9] = 7
    return y


def bordered(x):
    y = x.clone()
    y[0], y[-1] = 0, 1
    y[:, 0], y[:, -1] = 2, 3
    return y


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
    "scanned": lambda x: torch.cat([x, x + 1], 0).cumsum(0),
    "scanned across": lambda x: torch.cat([x, x + 1], 1).cumsum(0),
    "rows that are summed": lambda x: torch.cat([x, x * 2, x[..., :1]], -1).sum(-1),
    "rows of few": lambda x: torch.stack([x * 2, x - 1, x.abs()], -1).amax(-1) + 1,
    "rows below each other": lambda x: torch.cat([x, x + 1], 1).sum(-1),
    "the first of the largest": lambda x: torch.cat([x, x], -1).argmax(-1).float(),
    "all that is joined": lambda x: torch.cat([x, x * 2], -1).sum(),
    "a product": lambda x: torch.cat([x.flatten() * 1e-9, x.flatten() * 1e9 + 1e9], 0).prod(),
    "a block in all": lambda x: with_block(x).sum(),
    "a block in rows": lambda x: (with_block(x) * 2, with_block(x).amin(-1))[1],
    "a border": lambda x: bordered(x) + 1,
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


def test_what_is_around_a_block_is_whole_rows():
    """A loop for rows without the block and three for those with it; sums of joined rows choose nothing."""
    loops = {"block": 4, "rows that are summed": 2}  # and a point alone
    for name, program in (("block", with_block), ("rows that are summed", PROGRAMS["rows that are summed"])):
        fast = framefuse.compile(program)
        for sizes in ((4, 6, 20), (4, 6, 20), (5, 7, 33)):
            x = torch.randint(-9, 9, sizes).float()
            assert torch.equal(fast(x), program(x))
        assert vector_loops(fast) == (loops[name], 0)


def vector_loops(fast):
    """The loops of the only kernel whose points are lanes, and how many of its statements choose between pieces."""
    (product,) = compiled_function(fast).products
    (kernel,) = (item.kernel for item in product.stages.code.schedule.items if isinstance(item, RunKernel))
    loops = [each for each in statements(kernel.body) if isinstance(each, Loop) and each.kind.vector]
    return len(loops), sum(isinstance(value, Apply) and value.op == "where" for value in values_of(kernel.body))


FLAT = {
    "roll": lambda x: torch.roll(x, 3),
    "roll back": lambda x: torch.roll(x, -5) * 2,
    "cat": lambda x: torch.cat([x.flatten(), x.flatten() + 1]),
    "a slice across the end": lambda x: torch.cat([x.flatten(), x.flatten() + 1])[4:-4],
}


@pytest.mark.parametrize("name", FLAT)
def test_pieces_of_a_line_in_tiles(name):
    fast = framefuse.compile(FLAT[name])
    for sizes in ((9, 211, 27), (2, 32, 32), (3, 5, 7), (4, 64, 16), (2, 2, 3), (4, 512, 5)):
        x = torch.randn(sizes)
        assert torch.equal(fast(x), FLAT[name](x))
    assert fast.hits >= 4 and vector_loops(fast) == (2, 0)


TURNED = {
    "cat in front": (lambda x: torch.cat([x, x * 2], 0), 2),
    "cat behind": (lambda x: torch.cat([x, x * 2], -1), 2),
    "cat of columns": (lambda x: torch.cat([x, x + 1, x], 1), 3),
    "roll": (lambda x: torch.roll(x, 5, 2), 2),
}


@pytest.mark.parametrize("name", TURNED)
def test_pieces_that_are_read_across_memory(name):
    program, count = TURNED[name]
    fast = framefuse.compile(program)
    for sizes in ((91, 7, 67), (130, 3, 64), (65, 9, 200), (5, 6, 7)):
        x = torch.randint(-9, 9, sizes).movedim(0, -1)
        mine, other = fast(x), program(x)
        assert mine.stride() == other.stride() and torch.equal(mine, other)
    assert fast.hits == 3 and vector_loops(fast) == (count, 0)


@pytest.mark.parametrize("shifts", [(1, -2), (-1, 3)])
def test_two_dimensions_that_are_rolled(shifts):
    """Each pair of pieces has a loop of its own, none of whose points asks where it is."""
    fast = framefuse.compile(lambda x: torch.roll(x, shifts, (0, -1)))
    for sizes in ((5, 4, 61, 71), (3, 2, 6, 7), (4, 3, 5, 100)):
        x = torch.randn(1, *sizes[1:]).expand(sizes)
        mine, other = fast(x), torch.roll(x, shifts, (0, -1))
        assert mine.stride() == other.stride() and torch.equal(mine, other)
    assert fast.hits == 2 and vector_loops(fast) == (4, 0)


APART = {
    "turned": lambda x: x.permute(2, 1, 0),
    "expanded": lambda x: x[:1].expand(x.shape),
    "cut": lambda x: x[:, 1:, :-1],
    "stepped": lambda x: x[..., ::2],
}


@pytest.mark.parametrize("name", APART)
@pytest.mark.parametrize("shift", [1, -2, 3])
def test_a_line_that_lies_apart_is_rolled_row_by_row(name, shift):
    """Also of rows no longer than the shift: these are another program."""
    fast = framefuse.compile(lambda x: torch.roll(x, shift))
    for sizes in ((5, 8, 17), (7, 9, 8), (16, 3, 11), (2, 2, 4), (9, 2, 21), (5, 1, 9), (3, 8, 7)):
        x = APART[name](torch.randn(sizes))
        mine, other = fast(x), torch.roll(x, shift)
        assert mine.stride() == other.stride() and torch.equal(mine, other)
    assert fast.hits >= 3


def test_one_number_of_an_input_is_rolled():
    fast = framefuse.compile(lambda x: torch.roll(x[1], 1))
    for _ in range(3):
        x = torch.randn(4)
        assert fast(x) == x[1]
    assert fast.hits >= 1


BELOW = {
    "rows": lambda x: torch.cat([x, x * 2, x[1:]], 0),
    "of three dimensions": lambda x: torch.cat([x[None, :2], x[None] + 1], 1) * 3,
    "stacked": lambda x: torch.stack([x, x - 1, x * 2]).neg(),
    "strided columns": lambda x: torch.cat([x[:, ::2], x[:, : (x.shape[1] + 1) // 2] * 2], 0),
    "a row over all": lambda x: torch.cat([x, x + 1], 0) * x[0],
    "a number for each row": lambda x: torch.cat([x, x + 1], 0) * torch.arange(2 * len(x))[:, None],
    "padded rows": lambda x: torch.cat([torch.nn.functional.pad(x, (0, 0, 1, 1)), x], 0),
    "constant pieces": lambda x: torch.cat([torch.zeros_like(x), torch.ones_like(x[1:])], 0),
    "both ways": lambda x: torch.cat([torch.cat([x, x + 1], 1), torch.cat([x - 1, x], 1)], 0),
}
ONE_LOOP = {"rows": 3, "of three dimensions": 2, "constant pieces": 2}  # what is along memory throughout


@pytest.mark.parametrize("name", BELOW)
def test_pieces_below_each_other_are_parts_of_one_loop_where_memory_is(name):
    program = BELOW[name]
    fast = framefuse.compile(program)
    for sizes in ((4, 20), (4, 20), (3, 70), (3, 17), (90, 33)):
        x = torch.randint(-9, 9, sizes).float()
        torch.testing.assert_close(fast(x), program(x))
    assert fast.hits >= 2
    product = compiled_function(fast).products[-1]
    (kernel,) = (item.kernel for item in product.stages.code.schedule.items if isinstance(item, RunKernel))
    (outer,) = (each for each in kernel.body if isinstance(each, Loop))
    parts = [each for each in outer.body if isinstance(each, Loop)]
    assert ("2048" in str(kernel)) is (name in ONE_LOOP), kernel
    if name in ONE_LOOP:
        assert len(parts) == ONE_LOOP[name]


REDUCED = {
    "sum": lambda x: (x - x.roll(1, 0)).abs().sum(),
    "mask": lambda x: ((x > 0) & ~(x > 0).roll(-2, 0)).sum(),
    "amax": lambda x: torch.cat([x[1:], x[:1] * 2]).amax(),
    "argmax": lambda x: (x - x.roll(1, 0)).argmax(),
    "argmin of three": lambda x: torch.cat([x[2:], x[:1] * 2, x[1:2]]).argmin(),
}


@pytest.mark.parametrize("name", REDUCED)
def test_short_rows_below_each_other_are_reduced_in_one_loop_for_each_piece(name):
    program = REDUCED[name]
    fast = framefuse.compile(program)
    for sizes in ((50, 3), (50, 3), (9, 7), (3, 1), (300, 2), (4, 33)):
        x = torch.randint(-99, 99, sizes).float()
        torch.testing.assert_close(fast(x), program(x))
    assert fast.hits >= 4
    (product,) = compiled_function(fast).products
    kernel = next(item.kernel for item in product.stages.code.schedule.items if isinstance(item, RunKernel))
    loads = [value for value in values_of(kernel.body) if isinstance(value, Load)]
    assert all(len(atoms) < 2 for load in loads for atoms, _ in load.index.terms), "no loop over rows"


def _cut_out(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[:, :, 4:9, 3:20] = 0.5
    return y


CHANNELS_LAST = {
    "a part written": _cut_out,
    "reflected": lambda x: torch.nn.functional.pad(x[..., 1:-1, 2:-2], (4, 3, 2, 5), mode="reflect"),
    "rolled": lambda x: x.roll((3, -5), (2, 3)),
    "joined rows": lambda x: torch.cat([x[..., 5:], x[..., :5] * 2], -1),
}


@pytest.mark.parametrize("name", CHANNELS_LAST)
@pytest.mark.parametrize("channels", [1, 3, 16])
def test_pieces_of_channels_last_pictures(name: str, channels: int) -> None:
    program = CHANNELS_LAST[name]
    fast = framefuse.compile(program)
    for count, height, width in ((channels, 16, 40), (channels, 16, 40), (channels, 23, 33), (4, 12, 64)):
        x = torch.randn(2, count, height, width).to(memory_format=torch.channels_last)
        found, expected = fast(x), program(x)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
        assert found.stride() == expected.stride()


def test_no_point_of_a_channels_last_picture_asks_in_which_piece_it_lies() -> None:
    for program in CHANNELS_LAST.values():
        fast = framefuse.compile(program)
        x = torch.randn(2, 3, 16, 40).to(memory_format=torch.channels_last)
        for _ in range(2):
            torch.testing.assert_close(fast(x), program(x))
        (product,) = compiled_function(fast).products
        texts = [kernel_text(item.kernel) for item in product.stages.code.schedule.items if isinstance(item, RunKernel)]
        last = [text.rpartition("in vector(")[2] for text in texts if "in vector(" in text]
        assert last and all("where(" not in text for text in last), texts
