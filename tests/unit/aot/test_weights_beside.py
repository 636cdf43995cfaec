"""Weights that lie beside a library, in a file of safetensors: what is loaded with them, and what is refused."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import torch
from tests.unit.aot.test_export import HERE, compiled, rows

import framefuse

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="export needs a C compiler")


class Rows(torch.nn.Module):
    """Rows of 16 numbers as pictures of 4 by 4."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.features = torch.nn.Sequential(torch.nn.Conv2d(1, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU())
        self.head = torch.nn.Linear(32, 3)

    def forward(self, x):
        return self.head(self.features(x.reshape(-1, 1, 4, 4)).flatten(1))


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    path = tmp_path_factory.mktemp("beside") / "rows.so"
    model = Rows().eval()
    framefuse.export(model, (torch.randn(8, 16),), path, weights="beside")
    return path, model


def test_the_file_has_all_weights_and_the_library_none(exported):
    path, model = exported
    data = path.with_suffix(".safetensors").read_bytes()
    head = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    assert head.pop("__metadata__").keys() == {"crc32"}
    state = {name: list(tensor.shape) for name, tensor in model.state_dict().items() if tensor.is_floating_point()}
    assert {name: entry["shape"] for name, entry in head.items()} == state
    weight = model.head.weight.detach().numpy().tobytes()
    assert weight in data and weight not in path.read_bytes()


@pytest.mark.parametrize("threads", [1, 2])
def test_results_are_eagers(exported, threads):
    path, model = exported
    program, x = framefuse.load(path, threads=threads), torch.randn(5, 16)
    torch.testing.assert_close(program(x), model(x).detach())
    program.update_constants({"head.bias": torch.ones(3)})
    torch.testing.assert_close(program(x), model(x).detach() - model.head.bias.detach() + 1)
    torch.testing.assert_close(framefuse.load(path)(x), model(x).detach())


def test_other_weights_have_panels_of_their_own(exported, tmp_path):
    path, model = exported
    other = Rows(seed=1).eval()
    framefuse.export(other, (torch.randn(8, 16),), tmp_path / "other.so", weights="beside")
    moved = tmp_path / "elsewhere.safetensors"
    os.rename(tmp_path / "other.safetensors", moved)
    x = torch.randn(5, 16)
    first, second = framefuse.load(path), framefuse.load(path, weights=moved)
    for _ in range(2):
        torch.testing.assert_close(first(x), model(x).detach())
        torch.testing.assert_close(second(x), other(x).detach())
    del first
    torch.testing.assert_close(second(x), other(x).detach())
    with pytest.raises(FileNotFoundError, match=r"other\.safetensors"):
        framefuse.load(tmp_path / "other.so")


def test_a_damaged_file_is_refused(exported, tmp_path):
    path, _ = exported
    shutil.copy(path, tmp_path / "rows.so")
    whole, place = path.with_suffix(".safetensors").read_bytes(), tmp_path / "rows.safetensors"
    places = range(0, len(whole), len(whole) // 40)
    damaged = [bytes((*whole[:at], whole[at] ^ 1 << at % 8, *whole[at + 1 :])) for at in places]
    for data in [*damaged, *(whole[:at] for at in places), whole + b"\0"]:
        place.write_bytes(data)
        with pytest.raises(framefuse.UserError, match="damaged"):
            framefuse.load(tmp_path / "rows.so")
    place.write_bytes(whole)
    assert framefuse.load(tmp_path / "rows.so")(torch.randn(2, 16)).shape == (2, 3)


def test_a_damaged_file_in_another_place_is_refused(exported, tmp_path):
    path, model = exported
    whole, place = path.with_suffix(".safetensors").read_bytes(), tmp_path / "given.safetensors"
    program = compiled(HERE / "program.c", tmp_path)
    shutil.copy(path, tmp_path / "rows.so")
    for at in range(0, len(whole), len(whole) // 40):
        flipped = bytes((*whole[:at], whole[at] ^ 1 << at % 8, *whole[at + 1 :]))
        for data in (whole[:at] + whole[at + 1 :] + b"0", flipped):
            place.write_bytes(data)
            with pytest.raises(framefuse.UserError, match="damaged"):
                framefuse.load(path, weights=place)
        shutil.copy(place, tmp_path / "rows.safetensors")
        done = subprocess.run([program, tmp_path / "rows.so", "5", "16", "3"], capture_output=True, text=True)
        assert done.returncode == 1 and "damaged" in done.stderr, done
    place.write_bytes(whole)
    x = torch.randn(5, 16)
    torch.testing.assert_close(framefuse.load(path, weights=place)(x), model(x).detach())


def test_another_exports_file_beside_a_library_is_told(exported, tmp_path):
    path, _ = exported
    framefuse.export(Rows(seed=1).eval(), (torch.randn(8, 16),), tmp_path / "rows.so", weights="beside")
    shutil.copy(path, tmp_path / "rows.so")
    with pytest.raises(framefuse.UserError, match="of another export"):
        framefuse.load(tmp_path / "rows.so")
    program = compiled(HERE / "program.c", tmp_path)
    done = subprocess.run([program, tmp_path / "rows.so", "5", "16", "3"], capture_output=True, text=True)
    assert done.returncode == 1 and "of another export" in done.stderr, done


def test_a_file_for_another_program_is_refused(exported, tmp_path):
    path, _ = exported
    whole, given = path.with_suffix(".safetensors").read_bytes(), tmp_path / "given.safetensors"
    renamed = whole.replace(b"head.bias", b"head.bibs")
    for data in (b"", whole[:-1], whole + b"\0", renamed):
        given.write_bytes(data)
        with pytest.raises(framefuse.UserError, match="does not hold the weights of this program"):
            framefuse.load(path, weights=given)
    for missing in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(framefuse.UserError, match=r"does not hold|cannot be read"):
            framefuse.load(path, weights=missing)


def test_a_program_in_c_finds_the_file_beside_the_library(exported, tmp_path):
    path, model = exported
    program = compiled(HERE / "program.c", tmp_path)
    os.symlink(path, tmp_path / "linked.so")
    for library in (path, tmp_path / "linked.so"):
        done = subprocess.run([program, library, "5", "16", "3"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        *values, _ = map(float, done.stdout.split())
        torch.testing.assert_close(torch.tensor(values).reshape(5, 3), model(rows(5, 16)).detach())
    shutil.copy(path, tmp_path / "alone.so")
    done = subprocess.run([program, tmp_path / "alone.so", "5", "16", "1"], capture_output=True, text=True)
    assert done.returncode == 1 and "rows.safetensors: No such file" in done.stderr


def test_it_loads_where_torch_is_not_installed(exported):
    code = (
        "import sys; sys.modules['torch'] = None; import numpy, framefuse\n"
        "print(framefuse.load(sys.argv[1])(numpy.ones((2, 16), dtype=numpy.float32)).shape)"
    )
    done = subprocess.run([sys.executable, "-c", code, exported[0]], capture_output=True, text=True)
    assert done.stdout.strip() == "(2, 3)", done.stderr


def test_what_does_not_go_together_is_told(tmp_path):
    x = torch.randn(3)
    with pytest.raises(framefuse.UserError, match="'inside'"):
        framefuse.export(torch.sin, (x,), tmp_path / "f.so", weights="near")
    with pytest.raises(framefuse.UserError, match="another suffix"):
        framefuse.export(torch.sin, (x,), tmp_path / "f.safetensors", weights="beside")
    framefuse.export(lambda x: x * 2, (x,), tmp_path / "f.so")
    with pytest.raises(framefuse.UserError, match="holds its weights"):
        framefuse.load(tmp_path / "f.so", weights=tmp_path / "f.safetensors")
    framefuse.export(lambda x: x * 2, (x,), tmp_path / "none.so", weights="beside")
    assert torch.equal(framefuse.load(tmp_path / "none.so")(x), x * 2)
