"""The wheel holds the compiler and nothing else, and works where nothing but what it requires is installed."""

import os
import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import sys
import torch, framefuse

def f(x, scale):
    return (torch.relu(x) * scale).softmax(-1).sum(0)

fast = framefuse.compile(f)
for size in (3, 5, 7):
    x = torch.randn(size, 16, requires_grad=True)
    gradients = []
    for g in (f, fast):
        out = g(x, 0.5)
        gradients.append(torch.autograd.grad((out * out).sum(), x)[0])
        gradients.append(out)
    torch.testing.assert_close(gradients[:2], gradients[2:])
print(fast.__framefuse__.dispatch.hits, framefuse.__file__)
sys.modules["jinja2"] = None
try:
    framefuse.report(fast, "page.html")
except framefuse.UserError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy: what a build leaves behind lies outside the tree."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info"))
    pip("wheel", "--no-deps", "--no-build-isolation", "-w", folder / "dist", folder)
    (built,) = (folder / "dist").glob("*.whl")
    return built


def run(*command, folder=None):
    """What it prints, where neither the tree nor a cache of compiled programs is found."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "FRAMEFUSE"))}
    environment["FRAMEFUSE_CACHE"] = "0"
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def pip(*arguments):
    run(sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments)


def test_it_holds_the_compiler_alone(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        metadata = next(name for name in archive.namelist() if name.endswith("METADATA"))
        required = Parser().parsestr(archive.read(metadata).decode()).get_all("Requires-Dist")
    package = ROOT / "src" / "framefuse"
    kept = {path for path in package.rglob("*") if path.suffix in (".py", ".pyi", ".html", ".typed")}
    for pattern in ("*.[ch]", "*.hpp", "*.ptx"):  # what exports are made from
        kept |= {*(package / "aot").glob(pattern)}
    native = {name for name in names if name.endswith(".so")}
    assert len(native) == 1 and names - native == {str(path.relative_to(ROOT / "src")) for path in kept}
    always = {line.split(">")[0] for line in required if "extra ==" not in line}
    assert always == {"torch", "numpy", "llvmlite"}


def test_it_works_in_an_empty_environment(wheel, tmp_path):
    home = tmp_path / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", home)
    python = home / "bin" / "python"
    pip("--python", python, "install", "--no-index", "--no-deps", wheel)
    # What the wheel requires is taken from here; a folder in a .pth file brings no editable install of framefuse.
    (site,) = home.glob("lib/python*/site-packages")
    (site / "required.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
    found, error = run(python, "-c", PROGRAM, folder=tmp_path).splitlines()
    hits, place = found.split(" ", 1)
    assert int(hits) >= 1 and Path(place).is_relative_to(home)
    assert error.endswith("pip install jinja2")
    version = run(home / "bin" / "framefuse", "--version", folder=tmp_path)
    assert version == run(python, "-m", "framefuse", "--version", folder=tmp_path)
    assert version.startswith("framefuse ") and f"torch {torch.__version__}" in version
