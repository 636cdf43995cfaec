"""Programs of TorchScript and of torch.export are exported as Python is; they run where torch is not installed."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch

import framefuse

pytestmark = [
    pytest.mark.skipif(shutil.which("cc") is None, reason="export needs a C compiler"),
    pytest.mark.filterwarnings("ignore"),  # torch.jit is deprecated, and a trace warns of what it bakes in
]


class Net(torch.nn.Module):
    """What TorchScript keeps: branches on sizes and settings, a loop, containers, and a convolution."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(2))
        self.register_buffer("shift", torch.randn(8))
        self.deep = 2

    def forward(self, x: torch.Tensor, scale: float = 3.0) -> tuple[torch.Tensor, torch.Tensor]:
        if x.dim() != 4:
            raise RuntimeError(f"a picture has 4 dimensions, not {x.dim()}")
        y = torch.relu(self.norm(self.conv(x)))
        y = torch.nn.functional.max_pool2d(y, 2).mean(dim=(2, 3))
        for layer in self.layers:
            y = torch.nn.functional.gelu(layer(y)) + self.shift
        parts: list[torch.Tensor] = []
        for k in range(self.deep):
            y = y * (k + 1.5)
            parts.append(y)
        y = y + parts[0]
        z = y[:, 1:5] if y.shape[0] > 1 else y[:, :4] * scale
        return y, torch.cat([z, -z], 1)


def other_form(form, model, x):
    if form == "exported program":
        return torch.export.export(model, (x,), dynamic_shapes=[{0: torch.export.Dim("rows", min=2)}])
    return torch.jit.script(model) if form == "script" else torch.jit.trace(model, (x,))


@pytest.mark.parametrize("form", ["script", "trace", "exported program"])
def test_other_forms_of_a_module_are_written_with_the_names_of_its_weights(form, tmp_path):
    torch.manual_seed(0)
    model, path = Net().eval(), tmp_path / "net.so"
    x = torch.randn(2, 3, 8, 8)
    written = framefuse.export(other_form(form, model, x), (x,), path)
    assert {"conv.weight", "layers.0.bias", "shift"} <= set(written.weights)
    program = framefuse.load(path)
    for rows in (3, 5):
        x = torch.randn(rows, 3, 8, 8)
        for result, expected in zip(program(x), model(x), strict=True):
            torch.testing.assert_close(result, expected.detach())


class Many(torch.nn.Module):
    """Functions that exports make of simpler ones, or have code for, and what TorchScript has numbers for."""

    def __init__(self):
        super().__init__()
        self.bag, self.volume = torch.nn.EmbeddingBag(20, 6, mode="mean"), torch.nn.Conv3d(1, 2, 3, padding=1)
        self.lines = torch.nn.Bilinear(6, 6, 3)
        self.register_buffer("window", torch.hann_window(8))

    def forward(this, x: torch.Tensor, ids: torch.Tensor, lift: float = 0.5):
        e = torch.nn.functional.normalize(this.bag(ids), dim=-1) + lift
        best, places = torch.einsum("bd,bd->bd", e, e).topk(3, dim=1)
        spread = torch.zeros_like(x).scatter(1, places, best).index_add(0, torch.arange(x.shape[0]), x)
        grid = torch.stack(torch.meshgrid(torch.arange(3), torch.arange(2), indexing="ij"), -1).to(x.dtype)
        waves = torch.stft(spread.repeat(1, 4), 8, 4, window=this.window, return_complex=True).abs()
        if x.dtype == torch.float32:
            spread = spread * 2
        pooled = torch.nn.functional.adaptive_avg_pool3d(this.volume(x.view(-1, 1, 2, 3, 4)), (1, 2, 2)).flatten(1)
        large = torch.nn.functional.interpolate(x[:, None, None], scale_factor=2.0, mode="bilinear")
        lines = this.lines(x[:, :6], torch.nn.functional.elu(x[:, 6:12]) + 1)
        return spread[:, 1:], places, grid, waves.mT, pooled, large, lines, torch.cdist(x, x), x.sort(1)[0][:, -2:]


@pytest.mark.parametrize("form", ["script", "trace", "exported program"])
def test_operators_are_the_functions_that_exports_know(form, tmp_path):
    torch.manual_seed(0)
    model, path = Many().eval(), tmp_path / "many.so"
    x, ids = torch.randn(4, 24), torch.randint(0, 20, (4, 5))
    if form == "exported program":
        program = torch.export.export(model, (x, ids))
    else:
        program = torch.jit.script(model) if form == "script" else torch.jit.trace(model, (x, ids))
    framefuse.export(program, (x, ids), path)
    loaded, x, ids = framefuse.load(path), torch.randn(4, 24), torch.randint(0, 20, (4, 5))
    for result, expected in zip(loaded(x, ids), model(x, ids), strict=True):
        torch.testing.assert_close(result, expected.detach(), rtol=1e-5, atol=1e-5)


def test_a_script_takes_inputs_by_name(tmp_path):
    @torch.jit.script
    def f(x, v1: float = 2.0, other: torch.Tensor | None = None):
        y = x * v1
        return {"y": y if other is None else y + other}

    x, other = torch.randn(3), torch.randn(3)
    framefuse.export(f, (x,), tmp_path / "named.so", kwargs={"other": other})
    torch.testing.assert_close(framefuse.load(tmp_path / "named.so")(other, other=x)["y"], other * 2 + x)
    with pytest.raises(framefuse.UserError, match="the input x is missing"):
        framefuse.export(f, (), tmp_path / "missing.so", kwargs={"other": other})


def test_a_script_with_a_branch_on_values_is_refused(tmp_path):
    @torch.jit.script
    def f(x):
        if bool(x.sum() > 0):
            return x * 2
        return x

    with pytest.raises(framefuse.UserError):
        framefuse.export(f, (torch.randn(3),), tmp_path / "refused.so")


WITHOUT_TORCH = """
import json, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "llvmlite"):
            raise ModuleNotFoundError(name)

import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "torch" else real(name, package)
sys.meta_path.insert(0, Missing())
import numpy, framefuse
from framefuse import load
program = load(sys.argv[1], threads=2)
print(json.dumps([program(numpy.arange(32, dtype=numpy.float32).reshape(2, 16)).tolist(), framefuse.__all__]))
try:
    load(sys.argv[0])
except framefuse.UserError as error:
    assert "is no exported program" in str(error)
else:
    raise AssertionError
assert "torch" not in sys.modules
"""


def test_arrays_go_in_and_out_without_torch(tmp_path):
    model, path, script = torch.nn.Linear(16, 4).eval(), tmp_path / "linear.so", tmp_path / "script.py"
    framefuse.export(model, (torch.randn(8, 16),), path)
    script.write_text(WITHOUT_TORCH)
    done = subprocess.run([sys.executable, script, path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result, names = json.loads(done.stdout)
    expected = model(torch.arange(32.0).reshape(2, 16)).detach().numpy()
    np.testing.assert_allclose(np.array(result), expected, rtol=1e-5, atol=1e-5)
    assert names == ["load", "UserError"]
