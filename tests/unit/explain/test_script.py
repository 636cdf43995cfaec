"""framefuse explain runs a script and prints one screen for each compiled function."""

import sys
import textwrap

from framefuse.cli import main

SCRIPT = """
    import sys
    import torch, framefuse

    @framefuse.compile
    def fused(x):
        return torch.sin(x) + 1

    @framefuse.compile
    def stopped(x):
        return x.sum().item()

    with torch.no_grad():
        for _ in range(int(sys.argv[1])):
            fused(torch.ones(3))
        stopped(torch.ones(3))
"""


def test_explain_of_a_script(tmp_path, capsys):
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(SCRIPT))
    assert main(["explain", str(path), "3"]) == 0
    text = capsys.readouterr().out
    assert text.index("fused (script.py:5)") < text.index("stopped (script.py:9)")
    assert "1 graph, 1 kernel" in text
    assert "nothing is compiled" in text
    assert "return x.sum().item()" in text


def test_a_script_that_compiles_nothing(tmp_path, capsys, monkeypatch):
    path = tmp_path / "empty.py"
    path.write_text("x = 1\n")
    # Other tests' functions may be alive. The module is not reached by its name: framefuse.explain is the function.
    monkeypatch.setattr(sys.modules["framefuse.explain.script"], "live_functions", tuple)
    assert main(["explain", str(path)]) == 1
    assert "compiled nothing" in capsys.readouterr().out
