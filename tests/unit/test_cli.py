import pytest

from framefuse import cli
from framefuse.bench import run


def test_help_fits_one_screen(capsys):
    for arguments in (["--help"], ["bench", "--help"], *(["bench", bench.name, "--help"] for bench in run.BENCHES)):
        with pytest.raises(SystemExit) as stopped:
            cli.main(arguments)
        text = capsys.readouterr().out
        assert stopped.value.code == 0 and len(text.splitlines()) <= 24


def test_every_benchmark_is_a_subcommand(monkeypatch):
    called = []
    monkeypatch.setattr(run, "run", lambda name, options: called.append((name, options)) or 0)
    monkeypatch.setattr(cli, "run", run.run)
    for bench in run.BENCHES:
        assert cli.main(["bench", bench.name, "--no-torch"]) == 0
    assert [name for name, _ in called] == [bench.name for bench in run.BENCHES]
    assert all(options.no_torch and options.threads == 1 for _, options in called)


def test_an_unknown_command_names_the_choices(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["bench", "nonsense"])
    assert stopped.value.code == 2 and "curve" in capsys.readouterr().err
