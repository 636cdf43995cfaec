"""The report folder and the log show what each stage made of a compile."""

import torch
from torch.overrides import BaseTorchFunctionMode

import framefuse


def f(x):
    return torch.softmax(x * 2, -1)


def test_report_has_one_file_for_each_product(tmp_path):
    with torch.no_grad():
        framefuse.compile(f, options={"report": str(tmp_path)})(torch.randn(3, 4))
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith("f_")
    texts = {path.name: path.read_text() for path in folder.iterdir()}
    assert {"1_captured.txt", "2_guards.txt", "3_graph.py", "5_plan.txt"} <= set(texts)
    assert "softmax(v1, -1)" in texts["1_captured.txt"]
    assert "torch.amax" in texts["3_graph.py"] or ".amax" in texts["3_graph.py"]
    kernels = [name for name in texts if name.startswith("4_")]
    assert len(kernels) == 2, "one kernel: its loop nest and its LLVM IR"
    assert any("define i64 @kernel" in texts[name] for name in kernels)


def test_report_of_another_backend_has_the_fx_graph(tmp_path):
    framefuse.compile(f, backend="eager", options={"report": str(tmp_path)})(torch.randn(3, 4))
    (folder,) = tmp_path.iterdir()
    assert "torch.softmax" in (folder / "3_fx.py").read_text()


def test_log_levels(capsys):
    x = torch.randn(3, 4)
    with torch.no_grad():
        framefuse.compile(f, options={"log": "calls"})(x)
        calls = capsys.readouterr().err
        framefuse.compile(f, options={"log": "kernels"})(x)
        kernels = capsys.readouterr().err

        def stopped(x):
            return x.sum()

        with BaseTorchFunctionMode():
            framefuse.compile(stopped, options={"log": "calls"})(x)
        eager = capsys.readouterr().err
    assert len(calls.splitlines()) == 1
    assert "2 calls compiled in" in calls
    assert "for i" in kernels
    assert "runs eagerly" in eager
    assert "def stopped" in eager
