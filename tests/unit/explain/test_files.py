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


def test_report_shows_what_each_pass_changed(tmp_path):
    def halves(x):
        return torch.softmax(x * 2, -1), x[:0].sum()

    compiled = framefuse.compile(halves, options={"report": str(tmp_path)})
    with torch.no_grad():
        compiled(torch.randn(3, 4))
        assert torch.equal(compiled(x := torch.randn(5, 7))[1], torch.zeros(())) and len(x)
    (folder,) = tmp_path.iterdir()
    texts = {path.name.split("_", 3)[3]: path.read_text() for path in folder.glob("3_pass_*.txt")}
    assert {"empty_values.txt", "grouping.txt", "nests.txt", "lifetimes.txt"} <= set(texts)
    assert "single_copies.txt" not in texts, "a pass that changed nothing has no file"
    assert "# removed: sum f32[]" in texts["empty_values.txt"] and "# added: full f32[]" in texts["empty_values.txt"]
    assert "for i0 in" in texts["nests.txt"] and "allocate" in texts["lifetimes.txt"]
    (graph,) = framefuse.explain(compiled).graphs
    took = {step.name: step.seconds for step in graph.passes}
    assert took["grouping"] > 0 and sum(took.values()) <= graph.seconds["fuse"]
    assert "  fuse  " in str(framefuse.explain(compiled)) and "without effect" in str(framefuse.explain(compiled))


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
