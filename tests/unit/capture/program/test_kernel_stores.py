"""The parameters through which a Triton kernel writes are those that its source stores to."""

import importlib.util

import pytest

from framefuse.capture.program.kernel_stores import Unread, stored_to

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed", allow_module_level=True)

import triton
import triton.language as tl


def plain(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + places, mask=places < n)
    tl.store(out_ptr + places, x, mask=places < n)


@triton.jit
def put(pointer, values, places):
    tl.store(pointer + places, values)


def by_a_function_of_the_device(x_ptr, out_ptr, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    put(out_ptr, values=tl.load(x_ptr + places), places=places)


def scattered(index_ptr, x_ptr, out_ptr, count_ptr, BLOCK: tl.constexpr):
    places = tl.load(index_ptr + tl.arange(0, BLOCK))
    tl.atomic_add(count_ptr, 1)
    pointer = out_ptr
    for _ in range(3):
        tl.store(pointer + places, tl.load(x_ptr + places))
        pointer += BLOCK


def by_blocks(a_ptr, out_ptr):
    a = tl.make_block_ptr(a_ptr, (8, 8), (8, 1), (0, 0), (8, 8), (1, 0))
    sizes = {"shape": (8, 8), "strides": (8, 1), "block_shape": (8, 8)}
    out = tl.make_block_ptr(base=out_ptr, offsets=(0, 0), order=(1, 0), **sizes)
    tl.store(out, tl.load(a).to(out.dtype.element_ty))


def by_descriptors(a_ptr, out_ptr):
    a = tl.make_tensor_descriptor(a_ptr, [8, 8], [8, 1], [8, 8])
    out = tl.make_tensor_descriptor(out_ptr, [8, 8], [8, 1], [8, 8])
    out.store([0, 0], a.load([0, 0]))


def exchanged(a_ptr, b_ptr, x_ptr):
    for _ in range(3):
        a_ptr, b_ptr = b_ptr, a_ptr
    tl.store(a_ptr, tl.load(x_ptr))


def handed_to_what_is_not_known(a_ptr, b_ptr, f: tl.constexpr):
    f(a_ptr, tl.load(b_ptr))


@pytest.mark.parametrize(
    ("kernel", "written"),
    [
        (plain, "out_ptr"),
        (by_a_function_of_the_device, "out_ptr"),
        (scattered, "count_ptr out_ptr"),
        (by_blocks, "out_ptr"),
        (by_descriptors, "out_ptr"),
        (exchanged, "a_ptr b_ptr"),
        (handed_to_what_is_not_known, "a_ptr"),
    ],
)
def test_what_is_stored_to(kernel, written):
    assert {name for name in stored_to(kernel) if name.endswith("ptr")} == set(written.split())


def addresses(table_ptr):
    pointer = tl.load(table_ptr).to(tl.pointer_type(tl.float32))
    tl.store(pointer, 1.0)


def test_memory_that_no_parameter_points_to():
    with pytest.raises(Unread):
        stored_to(addresses)
    space = {}
    exec("def f(a): pass", space)
    with pytest.raises(Unread):
        stored_to(space["f"])
