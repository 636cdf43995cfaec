import itertools
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

import framefuse
from framefuse import cache, cli, demo
from framefuse.codegen.disk_cache import DiskCache


def test_help_fits_one_screen(capsys):
    for arguments in (["--help"], *([command.name, "--help"] for command in cli.COMMANDS)):
        with pytest.raises(SystemExit) as stopped:
            cli.main(arguments)
        text = capsys.readouterr().out
        assert stopped.value.code == 0 and len(text.splitlines()) <= 24


def test_an_unknown_command_names_the_choices(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["nonsense"])
    assert stopped.value.code == 2 and "explain" in capsys.readouterr().err


def test_the_demo_shows_each_program_and_what_became_of_the_first(monkeypatch, capsys):
    monkeypatch.setattr(demo, "PASSES", 1)
    assert cli.main(["demo"]) == 0
    shown = capsys.readouterr().out.splitlines()
    lines = [next(line for line in shown if line.startswith(program.name)) for program in demo.PROGRAMS]
    assert all(line.endswith("  yes") for line in lines)
    assert any(line.startswith("score (demo.py:") and "1 graph, 1 kernel" in line for line in shown)


def test_the_demo_compiles_every_program(monkeypatch):
    monkeypatch.setattr(demo, "PASSES", 1)
    for program in demo.PROGRAMS:
        figures, fast = demo.measure(program)
        state = fast.__framefuse__
        assert figures.equal == "yes" and state.dispatch.hits >= 2 * demo.CALLS - 2, program.name


def test_the_demo_fails_where_a_result_is_not_eagers(monkeypatch, capsys):
    def unlike() -> Callable[[torch.Tensor, float], torch.Tensor]:
        turn = next(turns)
        return lambda x, scale: x + turn

    turns = itertools.count()
    monkeypatch.setattr(demo, "PASSES", 1)
    monkeypatch.setattr(demo, "PROGRAMS", (demo.Program("unlike", unlike, demo.PROGRAMS[0].inputs),))
    assert cli.main(["demo"]) == 1
    assert "no: Tensor-likes are not close!" in capsys.readouterr().out


def test_the_cache_is_shown_verified_and_pruned(monkeypatch, capsys, tmp_path):
    kept = DiskCache(tmp_path / "programs")
    monkeypatch.setattr(cache, "folders", lambda: {"programs": kept, "kernels": DiskCache(tmp_path / "none")})
    for name in ("a", "b", "c"):
        kept.write(name, bytes(1 << 19))
    assert cli.main(["cache"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[1].split()[:4] == ["programs", "3", "2", "MiB"] and shown[1].endswith(str(kept.folder))
    assert shown[2].split()[:3] == ["kernels", "0", "0"]
    assert cli.main(["cache", "verify"]) == 0
    assert capsys.readouterr().out.split()[:5] == ["programs", "3", "good", "0", "dropped"]
    (kept.folder / "b.o").write_bytes(b"damaged")
    assert cli.main(["cache", "verify"]) == 1
    assert capsys.readouterr().out.split()[:5] == ["programs", "2", "good", "1", "dropped"]
    assert kept.names() == ["a", "c"]
    assert cli.main(["cache", "prune", "--keep", "1"]) == 0
    assert kept.held().files == 1
    assert cli.main(["cache", "prune"]) == 0
    assert kept.names() == [] and kept.held().bytes == 0


def test_a_report_that_cannot_be_written_is_told_before_the_script_runs(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    script = tmp_path / "script.py"
    script.write_text("print('ran')")
    assert cli.main(["run", "--report", str(tmp_path / "out.html"), str(script)]) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.endswith("pip install jinja2\n")


WITHOUT_TORCH = """
import importlib.util, runpy, sys

real = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "torch" else real(name, package)
sys.argv = ["framefuse", *sys.argv[1:]]
runpy.run_module("framefuse", run_name="__main__")
"""


def test_without_torch_a_command_says_what_to_install():
    def run(*arguments):
        done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, *arguments], capture_output=True, text=True)
        assert "Traceback" not in done.stderr
        return done

    shown = run("--version")
    assert shown.returncode == 0 and f"framefuse {framefuse.__version__} (without torch" in shown.stdout
    refused = run("demo")
    assert refused.returncode == 2 and "pip install torch" in refused.stderr and not refused.stdout
