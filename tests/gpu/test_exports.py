"""An exported program gives eager's results on a GPU, by its own kernels and the vendor's products."""

import copy
import shutil
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from tests.gpu.kernels import NEEDS_GPU
from tests.gpu.test_programs import DEVICE

import framefuse

pytestmark = [
    *NEEDS_GPU,  # the interpreter runs tests/unit/aot/exported_for_gpu.py
    pytest.mark.skipif(shutil.which("cc") is None, reason="export needs a C compiler"),
]


def exported(f, examples, folder, **more):
    framefuse.export(f, examples, folder / "program.so", **more)
    return framefuse.load(folder / "program.so")


def check(program, f, *tensors):
    """Results are as near to exact ones as eager's."""
    made, eagers, exact = program(*tensors), f(*tensors), f(*(tensor.double() for tensor in tensors))
    for result, eager, right in zip(made, eagers, exact, strict=True):
        assert (result.shape, result.dtype) == (eager.shape, eager.dtype)
        if right.numel():
            error, eagers_error = ((each.double() - right).abs().max() for each in (result, eager))
            assert error <= 3 * eagers_error + 1e-6 * right.abs().max(), tensors[0].shape


def chain(x, y):
    return torch.relu(x * 2 + y).sin() + y, (x * y).sum(), x.amax(0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_kernels_at_other_sizes_and_places(dtype, tmp_path):
    def given(rows, columns=64):
        return torch.randn(2, rows, columns, device=DEVICE).to(dtype).unbind()

    program = exported(chain, given(32), tmp_path)
    wide = torch.randn(40, 201, device=DEVICE).to(dtype)
    for x, y in (given(32), given(1), given(300), (wide[:8, 1:65], wide[8:16, 3:67]), (wide[:, :64], wide[:, 64:128])):
        check(program, chain, x, y)
    x, y = given(64)
    check(program, lambda x, y: tuple(each.contiguous() for each in chain(x, y)), x.T, y.T)


def test_rows_of_other_lengths(tmp_path):
    def rows(x):
        return x.softmax(-1), F.layer_norm(x, x.shape[-1:]), x.cumsum(-1)

    program = exported(rows, (torch.randn(64, 1000, device=DEVICE),), tmp_path)
    for shape in ((64, 1000), (3, 1000), (64, 1024), (5, 7), (1, 5000), (0, 1000)):
        x = torch.randn(shape, device=DEVICE)
        check(program, rows, x)


class Block(torch.nn.Module):
    def __init__(self, width=128, heads=4):
        super().__init__()
        self.heads = heads
        self.first, self.second = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        wide = 4 * width
        self.mlp = torch.nn.Sequential(torch.nn.Linear(width, wide), torch.nn.GELU(), torch.nn.Linear(wide, width))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (each.view(b, t, self.heads, -1).transpose(1, 2) for each in self.qkv(self.first(x)).split(c, 2))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.second(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@torch.no_grad()
def test_a_block_of_a_transformer(dtype, tmp_path):
    torch.manual_seed(0)
    model = Block().to(DEVICE, dtype).eval()
    program = exported(model, (torch.randn(2, 32, 128, device=DEVICE, dtype=dtype),), tmp_path)
    exact = copy.deepcopy(model).double()
    for shape in ((2, 32, 128), (5, 17, 128), (1, 64, 128)):
        x = torch.randn(shape, device=DEVICE, dtype=dtype)
        right = exact(x.double())
        error, eagers = ((result.double() - right).abs().max() for result in (program(x), model(x)))
        assert error <= 3 * eagers + 1e-6


@torch.no_grad()
def test_products_of_any_order_and_size(tmp_path):
    def product(a, b):
        return (a @ b.mT).mT @ a

    def near(one, other):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)

    for lead in ((), (3,)):
        a, b = torch.randn(*lead, 5, 7, device=DEVICE), torch.randn(*lead, 6, 7, device=DEVICE)
        program = exported(product, (a, b), tmp_path, dynamic=True)
        for m, k, n in ((5, 7, 6), (1, 7, 6), (5, 1, 6), (5, 7, 1), (1, 1, 1), (64, 128, 32), (4, 0, 3), (0, 4, 3)):
            a, b = torch.randn(*lead, m, k, device=DEVICE), torch.randn(*lead, n, k, device=DEVICE)
            near(program(a, b), product(a, b))


def test_streams_weights_and_memory(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).to(DEVICE).eval()
    program = exported(model, (torch.randn(16, 64, device=DEVICE),), tmp_path)
    x = torch.randn(4096, 64, device=DEVICE)
    right = model(x).detach()
    torch.cuda.synchronize()
    held = []
    for stream in (torch.cuda.Stream(), torch.cuda.current_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            held += [program(x) for _ in range(3)]
    torch.cuda.synchronize()
    for result in held:
        torch.testing.assert_close(result, right)
    for weight in (torch.randn(64, 64), torch.randn(64, 64, device=DEVICE)):
        program.update_constants({"0.weight": weight})
        model[0].weight.data = weight.to(DEVICE)
        torch.testing.assert_close(program(x), model(x).detach())
    torch.testing.assert_close(framefuse.load(tmp_path / "program.so")(x), right)
    result = program(x)
    del program
    torch.testing.assert_close(result, model(x).detach())
    del result
    taken = []
    for _ in range(5):  # the memory is the whole device's: other tests that run beside take some, but not each time
        torch.cuda.synchronize()
        free = torch.cuda.mem_get_info()[0]
        for _ in range(20):
            again = framefuse.load(tmp_path / "program.so")
            again(x)
        del again
        torch.cuda.synchronize()
        taken.append(free - torch.cuda.mem_get_info()[0])
    assert min(taken) < 64 << 20


def test_embeddings_look_at_their_positions(tmp_path):
    model = torch.nn.Sequential(torch.nn.Embedding(50, 32), torch.nn.LayerNorm(32)).to(DEVICE).eval()
    program = exported(model, (torch.randint(0, 50, (4, 9), device=DEVICE),), tmp_path)
    x = torch.randint(0, 50, (7, 5), device=DEVICE)
    torch.testing.assert_close(program(x), model(x).detach())


def test_tensors_elsewhere_are_refused(tmp_path):
    program = exported(chain, tuple(torch.randn(2, 4, 8, device=DEVICE).unbind()), tmp_path)
    with pytest.raises(ValueError, match="runs on the GPU number 0"):
        program(torch.randn(4, 8), torch.randn(4, 8))
    with pytest.raises(framefuse.UserError, match="Give all of them on one device"):
        framefuse.export(chain, (torch.randn(3), torch.randn(3, device=DEVICE)), tmp_path / "never.so")


PROGRAM = """
import ctypes, sys
cuda, program = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(sys.argv[1])
program.framefuse_load_on.restype = ctypes.c_void_p
program.framefuse_error.restype = ctypes.c_char_p
error = ctypes.create_string_buffer(512)
model = program.framefuse_load_on(0, None, error, len(error))
assert model, error.value
program.framefuse_free(ctypes.c_void_p(model))
assert "torch" not in sys.modules
print("loaded")
"""


def test_a_library_of_kernels_alone_is_loaded_without_torch(tmp_path):
    exported(chain, tuple(torch.randn(2, 4, 8, device=DEVICE).unbind()), tmp_path)
    done = subprocess.run([sys.executable, "-c", PROGRAM, tmp_path / "program.so"], capture_output=True, text=True)
    assert done.stdout.strip() == "loaded", done.stderr


@pytest.mark.parametrize("options", [{}, {"groups": 2, "stride": 2}, {"groups": 8, "dilation": 2}], ids=str)
@torch.no_grad()
def test_convolutions_are_products_with_windows(options, tmp_path):
    layers = torch.nn.Conv2d(8, 8, 3, padding=1, **options), torch.nn.BatchNorm2d(8), torch.nn.ReLU()
    model = torch.nn.Sequential(*layers).to(DEVICE).eval()
    program = exported(model, (torch.randn(2, 8, 16, 16, device=DEVICE),), tmp_path)
    for shape in ((2, 8, 16, 16), (5, 8, 9, 14)):
        x = torch.randn(shape, device=DEVICE)
        with torch.backends.cudnn.flags(allow_tf32=False):
            torch.testing.assert_close(program(x), model(x), rtol=1e-4, atol=1e-4)


def test_heads_share_keys(tmp_path):
    def attention(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    def given(batch, rows):
        return [torch.randn(batch, heads, rows, 32, device=DEVICE) for heads in (8, 2, 2)]

    program = exported(attention, given(2, 16), tmp_path)
    for tensors in (given(2, 16), given(3, 40)):
        torch.testing.assert_close(program(*tensors), attention(*tensors), rtol=1e-4, atol=1e-4)
