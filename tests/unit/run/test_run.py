"""`framefuse run` runs a script as `python` does, with its models and the named functions compiled."""

import os
import re
import runpy
import subprocess
import sys
import textwrap

import pytest
import torch

from benchmarks.harness.processes import ROOT
from benchmarks.zoo.zoo import optional
from framefuse import _native
from framefuse.capture.program.versions import CURRENT
from framefuse.cli import main
from framefuse.runtime.function import compiled_function

captures = pytest.mark.skipif(CURRENT is None, reason="this CPython has no tables of capture yet")


@pytest.fixture(autouse=True)
def process(monkeypatch):
    """What a script takes over is given back after the test."""
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])


def script(folder, text, name="script.py"):
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return str(path)


def rows(summary):
    """Calls, hits and traces by the name of each row of the table."""
    found = re.findall(r"^ +([\d,]+) +([\d,]+) +(\d+) +\d+ ms  (\S+) ", summary, re.MULTILINE)
    return {name: (int(calls), int(hits), int(traces)) for calls, hits, traces, name in found}


MODELS = """
    import functools, sys
    import torch
    from torch import nn
    from torch.utils.data import DataLoader
    import beside

    def scale(x, by=2):
        return torch.tanh(x) * by

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            return torch.relu(self.inner(x)) + 1

    def collate(items):
        return torch.stack(items) * 2

    def main(count):
        net = Net()
        data = [torch.full((4,), float(i)) for i in range(count)]
        with torch.no_grad():
            for x in DataLoader(data, batch_size=1, collate_fn=collate):
                y = scale(net(x))
                y = nn.ReLU()(y)
            y = functools.reduce(lambda a, b: a + scale(b), map(beside.halve, data), y)
        print(sorted(net.state_dict()), type(net), sys.argv[1:])
        return y

    if __name__ == "__main__":
        torch.manual_seed(0)
        result = main(int(sys.argv[1]))
        print([round(v, 3) for v in result.flatten().tolist()])
"""
BESIDE = "import torch\ndef halve(x):\n    return torch.sin(x) / 2\n"


@captures
def test_models_and_named_functions_are_compiled(tmp_path, capsys):
    path = script(tmp_path, MODELS)
    script(tmp_path, BESIDE, "beside.py")
    plain = subprocess.run([sys.executable, path, "12"], capture_output=True, text=True, check=True)
    names = ["scale", "collate", "beside:halve"]
    assert main(["run", *[f"--function={name}" for name in names], path, "12"]) == 0
    sys.modules.pop("beside")
    out, summary = capsys.readouterr()
    assert out == plain.stdout
    assert len(summary.splitlines()) <= 24 and max(map(len, summary.splitlines())) <= 100
    found = rows(summary)
    assert found["Net"] == (12, 11, 1)
    assert found["scale"] == (24, 22, 2)  # two ranks
    assert found["halve"] == (12, 11, 1)
    assert found["collate"][0] == 12 and found["collate"][1] >= 9
    assert found["ReLU"] == (1, 0, 1)  # the other instances were called once
    assert "Linear" not in found  # inside of Net


BREAKS = """
    import torch
    class Net(torch.nn.Module):
        def forward(self, x):
            if x.sum().item() > 0:
                return torch.sin(x)
            return torch.cos(x) * 2
    class Stops(torch.nn.Module):
        def forward(self, x):
            return torch.autograd.grad(x.sum(), x)[0]
    net, stops = Net(), Stops()
    with torch.no_grad():
        for i in range(20):
            net(torch.full((3,), float(i % 3 - 1)))
    stops(torch.ones(3, requires_grad=True))
"""


@captures
def test_the_summary_names_breaks_and_stops_with_their_lines(tmp_path, capsys):
    path = script(tmp_path, BREAKS)
    assert main(["run", path]) == 0
    summary = capsys.readouterr().err
    assert rows(summary)["Net"][1] >= 17
    assert "break: script.py:5  " in summary and "break: script.py:10  " in summary


def test_nothing_is_left_behind(tmp_path, capsys):
    path = script(tmp_path, "import torch\nnet = torch.nn.Linear(2, 2)\nnet(torch.ones(1, 2))\n")
    assert main(["run", path]) == 0
    summary = capsys.readouterr().err
    assert rows(summary)["Linear"][0] == 1
    net = torch.nn.Linear(2, 2)
    net(torch.ones(1, 2))
    assert compiled_function(net) is None
    if sys.version_info >= (3, 12):
        _native.watch_calls(torch.nn.Module.__call__, None)


def test_arguments_paths_and_main_are_those_of_python(tmp_path, capsys):
    text = """
        import sys, os, pickle, __main__
        class Here: pass
        print(__name__, __file__, sys.argv, sys.path[0], __main__.Here is Here, __spec__, __package__, __doc__)
        print(type(pickle.loads(pickle.dumps(Here()))) is Here, sorted(globals()), __builtins__)
        sys.exit({code})
    """
    folder = tmp_path / "sub"
    folder.mkdir()
    for code, want in (("", 0), ("3", 3), ("None", 0), ("'wrong'", 1), ("-1", 255)):
        path = script(folder, text.format(code=code))
        for where in (path, os.path.relpath(path)):
            command = [sys.executable, where, "--report", "-x", "run"]
            plain = subprocess.run(command, capture_output=True, text=True) if code in ("", "'wrong'") else None
            assert main(["run", "--quiet", where, "--report", "-x", "run"]) == want
            out, err = capsys.readouterr()
            if plain is not None:
                assert (out, err, want) == (plain.stdout, plain.stderr, plain.returncode)


def places(text):
    """A traceback without torch's own entries."""
    kept, skip = [], False
    for line in text.splitlines():
        if line.startswith("  File"):
            skip = "/torch/nn/" in line
        if not skip:
            kept.append(line)
    return kept


FAILS = """
    import torch
    class Net(torch.nn.Module):
        def forward(self, x):
            return self.inner(x)
        def inner(self, x):
            return torch.cat([x, missing])
    def f(net):
        try:
            {}["key"]
        except KeyError as error:
            with torch.no_grad():
                net(torch.ones(2))
    f(Net())
"""


@pytest.mark.parametrize("text", [FAILS, "x = (1,\n", "import nowhere_at_all\n", "raise KeyboardInterrupt\n"])
def test_exceptions_look_as_those_of_python(text, tmp_path, capsys):
    path = script(tmp_path, text)
    plain = subprocess.run([sys.executable, path], capture_output=True, text=True)
    assert main(["run", "--quiet", path]) == (130 if "Keyboard" in text else 1)
    assert places(capsys.readouterr().err) == places(plain.stderr) and plain.returncode


def test_wrong_names_are_said_before_the_script_runs(tmp_path, capsys):
    path = script(tmp_path, "def f(): pass\ndef g(): yield\nprint('ran')\n")
    for name, said in (
        ("h", "no function h. It has: f, g"),
        ("g", "generator"),
        ("math:sin", "builtin"),
        ("os:nope", "no nope"),
    ):
        assert main(["run", "--function", name, path]) == 2
        out, err = capsys.readouterr()
        assert said in err and "ran" not in out


BERT = """
    import torch
    from benchmarks.zoo.zoo import optional
    transformers = optional("transformers")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=50)
    model = transformers.BertModel(transformers.BertConfig(**sizes)).eval()
    with torch.no_grad():
        for length in (5, 6, 7, 8):
            y = model(input_ids=torch.arange(length)[None], attention_mask=torch.ones(1, length)).last_hidden_state
            print([round(v, 3) for v in y.mean(1)[0, :8].tolist()])
"""


@captures
def test_a_model_of_transformers(tmp_path, capsys):
    try:
        optional("transformers")
    except ImportError as error:
        pytest.skip(str(error))
    path = script(tmp_path, BERT)
    runpy.run_path(path)
    command = [sys.executable, "-m", "framefuse.cli", "run", path]
    path_of_modules = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path_of_modules}
    ours = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert ours.returncode == 0, ours.stderr
    assert ours.stdout == capsys.readouterr().out
    assert rows(ours.stderr)["BertModel"] == (4, 3, 1)
