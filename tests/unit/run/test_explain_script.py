"""framefuse explain runs a script and prints one screen for each compiled function."""

import sys
import textwrap

import pytest

from framefuse.cli import main


@pytest.fixture(autouse=True)
def process(monkeypatch):
    """What a script takes over is given back after the test."""
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])


SCRIPT = """
    import sys
    import torch, framefuse

    @framefuse.compile
    def fused(x):
        return torch.sin(x) + 1

    @framefuse.compile
    def stopped(x):
        return x.sum()

    @framefuse.compile
    def broken(x):
        return torch.sin(x) * 2 if x.sum() > 0 else x

    with torch.no_grad():
        for _ in range(int(sys.argv[1])):
            fused(torch.ones(3))
        with torch.overrides.BaseTorchFunctionMode():
            stopped(torch.ones(3))
        broken(torch.ones(3))
"""


def test_explain_of_a_script(tmp_path, capsys):
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(SCRIPT))
    assert main(["explain", str(path), "3"]) == 0
    text = capsys.readouterr().out
    assert text.index("fused (script.py:5)") < text.index("stopped (script.py:9)")
    assert "1 graph, 1 kernel" in text
    assert "nothing is compiled" in text
    assert "torch function mode is active" in text
    assert "break" in text
    assert "return torch.sin(x) * 2 if x.sum() > 0 else x   [branch]" in text


def test_what_dies_before_the_end_is_explained(tmp_path, capsys):
    path = tmp_path / "script.py"
    body = textwrap.indent(textwrap.dedent(SCRIPT), "    ")
    path.write_text(f"import gc\ndef main():\n{body}\nmain()\ngc.collect()\n")
    assert main(["explain", str(path), "3"]) == 0
    assert "fused (script.py:7)    1 graph, 1 kernel" in capsys.readouterr().out


def test_a_script_that_compiles_nothing(tmp_path, capsys):
    path = tmp_path / "empty.py"
    path.write_text("x = 1\n")
    assert main(["explain", str(path)]) == 1
    assert "compiled nothing" in capsys.readouterr().out


def test_a_script_that_fails(tmp_path, capsys):
    path = tmp_path / "fails.py"
    path.write_text("import sys\nsys.exit(3)\n")
    assert main(["explain", str(path)]) == 3
    assert main(["explain", str(tmp_path / "absent.py")]) == 2
    assert "can't open file" in capsys.readouterr().err
