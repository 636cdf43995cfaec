"""Exports programs for a GPU and runs the libraries on one that is not there: its driver hands each launch to Triton's
interpreter. A program of its own, since Triton reads TRITON_INTERPRET when it is imported; its tests are in this file.
"""

import ctypes
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.unit.codegen import launched_programs as interpreted

import framefuse
from framefuse.aot import loader, recording
from framefuse.aot.forms import products as multiplied
from framefuse.codegen import targets
from framefuse.codegen.specialisation import at_once
from framefuse.fuse.addressing import product_layouts
from framefuse.ir.code import LaunchedCode
from framefuse.lower import attention, products
from framefuse.native import abi
from framefuse.runtime.item_steps import Items

CODES = {"f": 2, "i": 0, "u": 1, "b": 6}


class Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class DType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device", Device), ("ndim", ctypes.c_int32), ("dtype", DType),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


class Managed(ctypes.Structure):
    pass


Managed._fields_ = [
    ("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.CFUNCTYPE(None, ctypes.POINTER(Managed)))
]  # fmt: skip


def driver(name):
    """Compiles the driver under the name by which programs open it, and opens it first."""
    path = f"{tempfile.mkdtemp(prefix='fake_gpu')}/{name}"
    flags = ["-std=gnu11", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", f"-Wl,-soname,{name}"]
    source = Path(__file__).with_name("fake_gpu.c")
    subprocess.run([os.environ.get("CC", "cc"), *flags, str(source), "-o", path], check=True)
    return path


def by_library(items, item, made=Items._matmul):
    """The step of a product on a GPU."""
    items.steps.slot(item.out)
    memories = items.steps.schedule.memories
    there = tuple(replace(each, device="cuda") if k == item.out else each for k, each in enumerate(memories))
    items.steps.schedule = replace(items.steps.schedule, memories=there)
    step = made(items, item)
    items.steps.schedule = replace(items.steps.schedule, memories=memories)
    return step


def compiled(kernel, special, place):
    """What the driver launches of a kernel: its images are numbers."""

    def one(aligned, fitted=False):
        wanted = replace(special, aligned=aligned, fitted=fitted)
        made = interpreted.triton.by_interpreter(kernel, wanted, replace(place, load=None))
        interpreted.KERNELS.append((kernel, made))
        return replace(made.code, function=1, binary=str(len(interpreted.KERNELS) - 1).encode() + b"\0")

    code = one(True, True)
    return LaunchedCode(code, lambda aligned: (0, 0), 32 * code.warps, one)


class Loaded:
    """A library on the GPU: arrays of numpy lie there."""

    def __init__(self, path, device=0):
        self.library = ctypes.CDLL(path)
        loader._declared(self.library)
        word, count = ctypes.c_void_p, ctypes.c_int
        self.library.framefuse_run_on.argtypes = [word, word, word, count, word, count]
        error = ctypes.create_string_buffer(512)
        self.device = device
        self.model = self.library.framefuse_load_on(device, None, error, len(error))
        self.error = error.value.decode()

    def tensor(self, array, kind=2):
        shape = (ctypes.c_int64 * max(1, array.ndim))(*array.shape)
        strides = (ctypes.c_int64 * max(1, array.ndim))(*(step // array.itemsize for step in array.strides))
        dtype = DType(CODES[array.dtype.kind], 8 * array.itemsize, 1)
        where = Device(kind, self.device)
        made = Tensor(array.ctypes.data, where, array.ndim, dtype, shape, strides, 0)
        made.held = array
        return made

    def __call__(self, *arrays, stream=None, count=1):
        tensors = [self.tensor(array) for array in arrays]
        given = (ctypes.c_void_p * max(1, len(tensors)))(*(ctypes.addressof(tensor) for tensor in tensors))
        outputs = (ctypes.c_void_p * count)()
        if self.library.framefuse_run_on(self.model, stream, given, len(tensors), outputs, count):
            raise ValueError(self.library.framefuse_error(self.model).decode())
        results = []
        for address in outputs:
            managed = ctypes.cast(address, ctypes.POINTER(Managed))
            made = managed.contents.tensor
            assert (made.device.type, made.device.id) == (2, self.device)
            kind = next(k for k, code in CODES.items() if code == made.dtype.code)
            size = made.dtype.bits // 8
            shape = tuple(made.shape[: made.ndim])
            steps = tuple(step * size for step in made.strides[: made.ndim])
            raw = (ctypes.c_char * (1 << 20)).from_address(made.data + made.byte_offset)
            view = np.ndarray(shape, f"{kind}{size}" if kind != "b" else "?", raw, strides=steps)
            results.append(view.copy())
            managed.contents.deleter(managed)
        return results[0] if count == 1 else results

    def update(self, name, array, kind):
        tensor = self.tensor(array, kind)
        names = (ctypes.c_char_p * 1)(name.encode())
        values = (ctypes.c_void_p * 1)(ctypes.addressof(tensor))
        if self.library.framefuse_update_constants(self.model, names, values, 1):
            raise ValueError(self.library.framefuse_error(self.model).decode())

    def close(self):
        self.library.framefuse_free(self.model)


def counted(name):
    return ctypes.c_int.in_dll(ctypes.CDLL("libcuda.so.1"), f"fake_{name}")


def exported(f, *examples, **more):
    path = f"{tempfile.mkdtemp(prefix='gpu_export')}/program.so"
    written = framefuse.export(f, examples, path, **more)
    return written, Loaded(path)


def chain(x, y):
    return torch.relu(x * 2 + y).sin() + y


def softmax(x):
    return (x * 3).softmax(-1)


def norm(x):
    return F.layer_norm(x, (x.shape[-1],)), x.amax(0)


def views(x, y):
    return torch.cat([x, y], 1)[:, 1:-1] * 2, x.mT, y


@pytest.mark.parametrize(
    ("f", "shapes"),
    [(chain, [(6, 16), (6, 16)]), (softmax, [(5, 33)]), (norm, [(7, 40)]), (views, [(4, 6), (4, 6)])],
)
def test_a_program_gives_eagers_results_at_other_sizes(f, shapes):
    written, program = exported(f, *(torch.randn(shape) for shape in shapes))
    for more in (0, 1, 10):
        tensors = [torch.randn(shape[0] + more, *shape[1:]) for shape in shapes]
        expected = f(*tensors)
        expected = expected if isinstance(expected, tuple) else (expected,)
        results = program(*(tensor.numpy() for tensor in tensors), count=written.outputs)
        for result, right in zip([results] if written.outputs == 1 else results, expected, strict=True):
            torch.testing.assert_close(torch.from_numpy(result), right)
    program.close()


def test_tensors_may_begin_anywhere_and_lie_in_any_order():
    _, program = exported(chain, torch.randn(6, 16), torch.randn(6, 16))
    before = counted("copies").value
    wide = torch.randn(9, 40)
    for x, y in ((wide[:6, 1:17], wide[1:7, 3:19]), (torch.randn(16, 6).T, torch.randn(6, 16)),
                 (wide[::2, ::2][:4, :16], torch.randn(1, 16).expand(4, 16))):  # fmt: skip
        torch.testing.assert_close(torch.from_numpy(program(x.numpy(), y.numpy())), chain(x, y))
    flat = torch.randn(6 * 16 + 1)[1:].view(6, 16)
    torch.testing.assert_close(torch.from_numpy(program(flat.numpy(), flat.numpy())), chain(flat, flat))
    assert counted("copies").value > before
    program.close()


@pytest.mark.parametrize("rows", [1, 5, 24])
def test_a_network_multiplies_by_the_library(rows):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 24), torch.nn.GELU(), torch.nn.Linear(24, 3)).eval()
    _, program = exported(model, torch.randn(8, 16))
    x = torch.randn(rows, 16)
    torch.testing.assert_close(torch.from_numpy(program(x.numpy())), model(x).detach())
    new = np.random.default_rng(0).standard_normal((24, 16), np.float32)
    program.update("0.weight", new, 1)
    model[0].weight.data = torch.from_numpy(new)
    torch.testing.assert_close(torch.from_numpy(program(x.numpy())), model(x).detach())
    program.update("2.bias", np.ones(3, np.float32), 2)
    model[2].bias.data = torch.ones(3)
    torch.testing.assert_close(torch.from_numpy(program(x.numpy())), model(x).detach())
    with pytest.raises(ValueError, match="size 2 in dimension 0, not 3"):
        program.update("2.bias", np.ones(2, np.float32), 2)
    program.close()


@pytest.mark.parametrize("told", ["new", "old"])
def test_products_round_as_torch_was_told(told):
    matmul = torch.backends.cuda.matmul
    model, x = torch.nn.Sequential(torch.nn.Linear(16, 24), torch.nn.ReLU()).eval(), torch.randn(8, 16)
    _, exact = exported(model, x)
    if told == "new":
        matmul.fp32_precision = "tf32"
    else:
        torch.set_float32_matmul_precision("high")
    try:
        _, rounded = exported(model, x)
    finally:
        matmul.fp32_precision = "ieee"
        torch.set_float32_matmul_precision("highest")
    for program, computed in ((exact, 68), (rounded, 77)):
        torch.testing.assert_close(torch.from_numpy(program(x.numpy())), model(x).detach())
        assert ctypes.c_int.in_dll(ctypes.CDLL("libcublas.so.12"), "fake_compute").value == computed
        program.close()


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = torch.nn.LayerNorm(32), torch.nn.Linear(32, 96), torch.nn.Linear(32, 32)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (each.view(b, t, 4, 8).transpose(1, 2) for each in self.qkv(self.norm(x)).split(32, 2))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(mixed.transpose(1, 2).reshape(b, t, c))


def test_a_block_in_16_bits():
    """numpy has no bfloat16: what goes in and comes out is float32."""
    torch.manual_seed(0)
    model, narrow = Block().eval(), Block().bfloat16().eval()
    narrow.load_state_dict(model.state_dict())

    def f(x):
        return narrow(x.bfloat16()).float()

    _, program = exported(f, torch.randn(2, 10, 32))
    for shape in ((2, 10, 32), (3, 7, 32)):
        x = torch.randn(shape)
        right = model(x)
        error, eagers = ((result - right).abs().max() for result in (torch.from_numpy(program(x.numpy())), f(x)))
        assert error <= 2 * eagers
    program.close()


def test_a_block_of_a_transformer():
    torch.manual_seed(0)
    model = Block().eval()
    _, program = exported(model, torch.randn(2, 10, 32))
    for shape in ((2, 10, 32), (3, 7, 32), (1, 12, 32)):
        x = torch.randn(shape)
        torch.testing.assert_close(torch.from_numpy(program(x.numpy())), model(x).detach(), atol=2e-5, rtol=1e-4)
    program.close()


@pytest.mark.parametrize("lead", [(), (3,)])
def test_products_of_matrices_in_any_order(lead):
    def product(a, b):
        return (a @ b.mT).mT @ (a * 0.5)

    a, b = torch.randn(*lead, 5, 7), torch.randn(*lead, 6, 7)
    _, program = exported(product, a, b, dynamic=True)
    for m, k, n in ((5, 7, 6), (1, 7, 6), (5, 1, 6), (5, 7, 1), (1, 1, 1), (4, 2, 3)):
        a, b = torch.randn(*lead, m, k), torch.randn(*lead, n, k)
        torch.testing.assert_close(torch.from_numpy(program(a.numpy(), b.numpy())), product(a, b))
    program.close()


@pytest.mark.parametrize(
    "options",
    [
        {}, {"stride": 2, "padding": 1}, {"padding": "same", "dilation": 2}, {"groups": 2, "bias": False},
        {"groups": 4, "stride": (2, 1), "padding": (0, 1)},
    ],
    ids=str,
)  # fmt: skip
def test_convolutions_are_products_with_windows(options):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(4, 4, 3, **options), torch.nn.ReLU()).eval()
    _, program = exported(model, torch.randn(2, 4, 9, 8))
    for shape in ((2, 4, 9, 8), (1, 4, 5, 7)):
        x = torch.randn(shape)
        torch.testing.assert_close(torch.from_numpy(program(x.numpy())), model(x).detach())
    program.close()


def test_heads_share_keys():
    def attention(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True) * 2

    tensors = [torch.randn(2, heads, 5, 8) for heads in (6, 2, 2)]
    _, program = exported(attention, *tensors)
    result = program(*(tensor.numpy() for tensor in tensors))
    torch.testing.assert_close(torch.from_numpy(result), attention(*tensors))
    program.close()


def test_what_does_not_fit_is_an_error():
    _, program = exported(softmax, torch.randn(5, 33))
    x = np.zeros((5, 33), np.float32)
    with pytest.raises(ValueError, match="dtype"):
        program(x.astype(np.float64))
    program.device = 1
    with pytest.raises(ValueError, match="type 2, number 1: this model runs on the GPU number 0"):
        program(x)
    program.device = 0
    counted("limit").value = 100
    with pytest.raises(ValueError, match="no memory"):
        program(np.zeros((50, 33), np.float32))
    counted("limit").value = 0
    assert program(np.zeros((50, 33), np.float32)).shape == (50, 33)
    program.close()


def test_streams_follow_each_other_and_memory_is_given_back():
    x, y = torch.randn(6, 16), torch.randn(6, 16)
    _, program = exported(chain, x, y)
    memories, waits = counted("memories").value, counted("waits").value
    for stream in (None, 4, 4, 5):
        program(x.numpy(), y.numpy(), stream=stream)
        assert (ctypes.c_void_p.in_dll(ctypes.CDLL("libcuda.so.1"), "fake_stream").value) == stream
    assert counted("waits").value == waits + 3
    assert counted("memories").value > memories
    program.close()
    for name in ("memories", "modules", "events", "contexts"):
        assert counted(name).value == 0, name


def test_memory_of_many_streams_is_taken_again():
    x, y = torch.randn(6, 16), torch.randn(6, 16)
    _, program = exported(chain, x, y)
    for stream in range(1, 500):
        program(x.numpy(), y.numpy(), stream=stream)
    assert counted("memories").value < 100
    program.close()


def test_a_gpu_of_another_kind_is_an_error():
    path = f"{tempfile.mkdtemp(prefix='gpu_export')}/program.so"
    framefuse.export(softmax, (torch.randn(5, 33),), path)
    counted("minor").value = 1
    assert "exported for GPUs of compute capability 9.0, and number 0 has 9.1" in Loaded(path).error
    counted("minor").value = 0
    assert "no GPU has the number 99" in Loaded(path, 99).error
    assert "the GPU number 5 cannot be had: what the driver says" in Loaded(path, 5).error


@pytest.mark.parametrize(
    ("f", "text"),
    [
        (lambda x: torch.linalg.inv(x * 2), "has no code for GPUs"),
        (lambda x: x.sort().values * 2, "sort has no code for GPUs"),
        (lambda x: (x * 2)[x > 0], "__getitem__ has no code for GPUs"),
    ],
)
def test_what_has_no_code_is_refused(f, text):
    with pytest.raises(framefuse.UserError, match=text):
        framefuse.export(f, (torch.randn(4, 4),), f"{tempfile.mkdtemp()}/program.so")


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[3])
    launched = interpreted.driver()
    fake, blas = (ctypes.CDLL(driver(name)) for name in ("libcuda.so.1", "libcublas.so.12"))
    ctypes.c_void_p.in_dll(fake, "fake_callback").value = ctypes.cast(launched[1], ctypes.c_void_p).value
    abi.FALLBACKS["stream"] = lambda device: 0
    abi.initialise(without=("stream",))
    recording.is_on_gpu = lambda examples: True
    products.multiplied = attention.multiplied = lambda lo, device: (*products.BLAS, *products.NARROW)
    product_layouts.BLAS_TYPES = product_layouts.GPU_TYPES
    multiplied.NARROW = ()
    Items._matmul = by_library
    target = replace(targets.BACKENDS["cpu by triton"].target, library=False, products=True)
    targets.BACKENDS["cpu alone"] = replace(
        targets.BACKENDS["cuda"], target=target, compile=at_once(compiled), lacks=lambda: None, choices=None
    )
    sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", __file__, *sys.argv[1:]]))
