"""Exported programs may call operators of torch where there is no code for them, and say so."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import framefuse
from framefuse.aot import loader

HERE = Path(__file__).parent
RUNTIME = Path(loader.__file__).parent
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="export needs a C compiler")


def values(x):
    found, vectors = torch.linalg.eig(x * 2)
    return found.abs().sort().values + 1, (vectors @ (found[..., None] * torch.linalg.inv(vectors))).real


def factors(x):
    p, low, up = torch.linalg.lu(x + 1)
    factored, order, _ = torch.linalg.ldl_factor_ex(x + x.mT)
    return [p @ low @ up, torch.linalg.ldl_solve(factored, order, torch.ones_like(x)).relu(), x.mH.geqrf()[1] * 2]


def along(x):
    return torch.fft.rfft(F.pad(x, (0, 9001)) * 1.5).abs().sum(-1), torch.fft.ifft(x, 5003, norm="ortho").real.sum(-1)


def by_values(x):
    low, high = (x * 2).histogram(5)
    return low * 2, high.exp(), torch.linalg.tensorinv((x + 9 * torch.eye(5)).reshape(5, 1, 5), ind=1)


PROGRAMS = {
    values: ("aten::linalg_eig", "aten::linalg_solve"),
    factors: ("aten::linalg_lu", "aten::linalg_ldl_factor_ex", "aten::linalg_ldl_solve", "aten::geqrf"),
    along: ("aten::fft_rfft", "aten::fft_ifft"),
    by_values: ("aten::histogram.bin_ct", "aten::linalg_tensorinv"),
}


@pytest.mark.parametrize("f", PROGRAMS)
def test_operators_without_code_are_torchs(f, tmp_path):
    """A mark beside complex numbers, results that nobody reads, options, texts and lists: results are eager's."""
    path = tmp_path / "program.so"
    with pytest.raises(framefuse.UserError, match="torch's library, which is not there"):
        framefuse.export(f, (torch.randn(5, 5),), path)
    written = framefuse.export(f, (torch.randn(5, 5),), path, libtorch=True)
    program = framefuse.load(path)
    assert set(written.libtorch) <= set(PROGRAMS[f]) and written.libtorch
    assert tuple(program.description["libtorch"]) == written.libtorch
    for seed in range(4):
        torch.manual_seed(seed)
        x = torch.randn(5, 5) if seed < 3 else torch.randn(5, 5).T
        for result, wanted in zip(program(x), f(x), strict=True):
            torch.testing.assert_close(result, wanted, rtol=1e-3, atol=1e-4)


def test_functions_in_python_are_walked(tmp_path):
    def f(x, targets):
        logs = x.log_softmax(-1)
        kept, places = F.max_pool2d(x[None], 2, return_indices=True)
        lengths = torch.full((3,), 6), torch.full((3,), 2)
        return F.ctc_loss(logs, targets, *lengths), F.ctc_loss(logs, targets, *lengths, reduction="none") + 1, (
            F.max_unpool2d(kept, places, 2)
        )

    path = tmp_path / "f.so"
    written = framefuse.export(f, (torch.randn(6, 3, 8), torch.ones(3, 2, dtype=torch.long)), path, libtorch=True)
    assert set(written.libtorch) == {"aten::ctc_loss.Tensor", "aten::max_unpool2d"}
    program = framefuse.load(path)
    for seed in range(3):
        torch.manual_seed(seed)
        given = torch.randn(6, 3, 8), torch.randint(1, 8, (3, 2))
        for result, wanted in zip(program(*given), f(*given), strict=True):
            torch.testing.assert_close(result, wanted)


class Roots(torch.nn.Module):
    def forward(self, x):
        return torch.linalg.eigvals(x * 2).abs().sort().values


@pytest.mark.parametrize("way", [torch.jit.script, torch.export.export])
def test_programs_of_torch_call_it_too(way, tmp_path):
    model, x = Roots(), torch.randn(4, 4)
    given = way(model) if way is torch.jit.script else way(model, (x,))
    written = framefuse.export(given, (x,), tmp_path / "f.so", libtorch=True)
    assert written.libtorch == ("aten::linalg_eigvals",)
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(4, 4)
        torch.testing.assert_close(framefuse.load(tmp_path / "f.so")(x), model(x), rtol=1e-4, atol=1e-4)


def test_sizes_may_change_and_depend_on_values(tmp_path):
    def f(x):
        batch, rows = torch.linalg.eigvals(x).abs().sum(-1), torch.linalg.lu_factor(x)
        return batch, rows.LU * 2, rows.pivots + 1

    framefuse.export(f, (torch.randn(3, 4, 4),), tmp_path / "f.so", libtorch=True)
    program = framefuse.load(tmp_path / "f.so")
    for sizes in ((3, 4, 4), (7, 4, 4), (2, 9, 9)):
        x = torch.randn(sizes)
        for result, wanted in zip(program(x), f(x), strict=True):
            torch.testing.assert_close(result, wanted, rtol=1e-3, atol=1e-4)


def test_what_torch_raises_is_an_error_and_the_program_goes_on(tmp_path):
    def f(x):
        return torch.linalg.tensorinv(x * 2, ind=1)

    framefuse.export(f, (torch.eye(4),), tmp_path / "f.so", libtorch=True)
    program = framefuse.load(tmp_path / "f.so")
    for _ in range(3):
        with pytest.raises(ValueError, match="torch fails in aten::linalg_tensorinv"):
            program(torch.zeros(4, 4))
        torch.testing.assert_close(program(torch.eye(4)), torch.eye(4) / 2)


def test_what_the_interface_does_not_take_is_refused(tmp_path):
    for f, text in ((torch.rand_like, "random numbers"), (lambda x: torch.histc(x, 4), "does not take")):
        with pytest.raises(framefuse.UserError, match=text):
            framefuse.export(f, (torch.randn(3),), tmp_path / "f.so", libtorch=True)
    assert framefuse.export(torch.sin, (torch.randn(3),), tmp_path / "f.so", libtorch=True).libtorch == ()


def test_a_program_in_c_opens_the_library_or_says_what_it_needs(tmp_path):
    def f(x):
        return (torch.linalg.lu_factor(x + 20 * torch.eye(12))[0] * 2).contiguous()

    framefuse.export(f, (torch.randn(12, 12),), tmp_path / "f.so", libtorch=True)
    command = ["cc", "-O2", f"-I{RUNTIME}", HERE / "program.c", "-o", tmp_path / "program", "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    run = [tmp_path / "program", tmp_path / "f.so", "12", "12", "2"]
    there = {**os.environ, "LD_LIBRARY_PATH": str(Path(torch.__file__).parent / "lib")}
    done = subprocess.run(run, capture_output=True, text=True, env=there)
    assert done.returncode == 0, done.stderr
    *numbers, _ = map(float, done.stdout.split())
    x = (torch.arange(144) % 17 / 8 - 1).reshape(12, 12)
    torch.testing.assert_close(torch.tensor(numbers).reshape(12, 12), f(x))
    done = subprocess.run(run, capture_output=True, text=True, env={**os.environ, "LD_LIBRARY_PATH": ""})
    assert done.returncode == 1 and "aten::linalg_lu_factor" in done.stderr and "libtorch_cpu.so" in done.stderr
