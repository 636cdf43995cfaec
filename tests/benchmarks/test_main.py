import subprocess
import sys

import pytest

from benchmarks import __main__ as command
from benchmarks import run
from benchmarks.harness.processes import ROOT


def test_help_fits_one_screen(capsys):
    for arguments in (["--help"], *([bench.name, "--help"] for bench in run.BENCHES), ["demo", "--help"]):
        with pytest.raises(SystemExit) as stopped:
            command.main(arguments)
        text = capsys.readouterr().out
        assert stopped.value.code == 0 and len(text.splitlines()) <= 24


def test_every_benchmark_is_a_subcommand(monkeypatch):
    called = []
    monkeypatch.setattr(command, "run", lambda name, options: called.append((name, options)) or 0)
    for bench in run.BENCHES:
        assert command.main([bench.name, "--no-torch"]) == 0
    assert [name for name, _ in called] == [bench.name for bench in run.BENCHES]
    assert all(options.no_torch and options.threads == 1 for _, options in called)


def test_an_unknown_benchmark_names_the_choices(capsys):
    with pytest.raises(SystemExit) as stopped:
        command.main(["nonsense"])
    assert stopped.value.code == 2 and "curve" in capsys.readouterr().err


def test_it_runs_from_the_root_of_the_repository():
    ran = subprocess.run([sys.executable, "-m", "benchmarks", "--help"], capture_output=True, text=True, cwd=ROOT)
    assert ran.returncode == 0 and "usage: benchmarks" in ran.stdout, ran.stderr
