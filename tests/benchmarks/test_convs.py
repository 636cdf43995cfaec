from pathlib import Path

import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.harness import compilers
from benchmarks.large import convs
from benchmarks.large.conv_programs import CONVOLUTIONS, TAILS, programs


@pytest.fixture
def plain(monkeypatch):
    """A framefuse that compiles nothing, so that only the harness is tested."""
    monkeypatch.setitem(compilers.COMPILERS, "framefuse", lambda module, dynamic, mode=None: module)


def chosen(*only, **more):
    return convs.Chosen(only=only, **more)


def test_the_cases_are_the_product_that_they_say():
    for device, count in (("cpu", 4), ("cuda", 18)):
        names = [case.name for case in convs.Chosen(device).cases()]
        assert len(set(names)) == len(names) == count * len(programs(device))
        assert len(names) > count * len(CONVOLUTIONS) * len(TAILS)
    assert {len(tail) for _, tail in TAILS} == {1, 2, 3, 4, 5, 6}
    parts = [case for part in ("1/3", "2/3", "3/3") for case in chosen(part=part).cases()]
    assert len(parts) == len(convs.Chosen().cases())


@pytest.mark.parametrize("program", [p for p in programs("cpu") if not p.net], ids=lambda program: program.name)
def test_each_chain_runs_both_ways(program):
    module, x = program.make(), torch.randn(program.shape(2, False), requires_grad=True)
    result = module(x)
    result.square().mean().backward()
    assert result.isfinite().all() and x.grad.isfinite().all()


@pytest.mark.parametrize("name", ["U-Net", "3-D U-Net"])
@pytest.mark.parametrize("way", convs.WAYS)
def test_a_row_of_a_net(name, way, plain):
    (case,) = chosen(name, ways=[way], precisions=["float32"]).cases()
    row = convs.measure(case, ["framefuse"], str, "cpu")
    assert row["equal"] == "yes" and row["times_eager"] > 0 and row["eager_ms"] > 0


@pytest.mark.parametrize("way", convs.WAYS)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_chain_is_compiled(way, precision):
    (case,) = chosen("conv2d, group norm", ways=[way], precisions=[precision]).cases()
    row = convs.measure(case, ["framefuse"], str, "cpu")
    assert row["equal"] == "yes" and row["first_s"] > 0


def test_another_result_is_said(monkeypatch):
    (case,) = chosen("grouped, relu", ways=["training"], precisions=["float32"]).cases()
    monkeypatch.setitem(compilers.COMPILERS, "framefuse", lambda module, dynamic, mode=None: lambda_of(module))

    class Wrong(torch.nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

        def forward(self, x):
            return self.module(x) * 1.01

    def lambda_of(module):
        return Wrong(module)

    row = convs.measure(case, ["framefuse"], str, "cpu")
    assert str(row["equal"]).startswith("no: the result")
    assert any("differs from eager" in line for line in convs.findings([row]))


def test_settings_of_precision_are_given_back():
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    with convs.rounding("tf32"):
        assert torch.backends.cudnn.allow_tf32 and torch.get_float32_matmul_precision() == "high"
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == before


def test_the_command_writes_table_and_map(plain, tmp_path, capsys):
    arguments = ["convs", "--no-torch", "--only", "depthwise, relu", "--ways", "inference", "--out", str(tmp_path)]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "geometric mean" in printed
    row, head = printed.find("depthwise, relu inference float32 2, eager 0."), printed.find(convs.TITLE)
    assert 0 <= row < head  # each row by itself, before the table of all
    assert {path.name for path in Path(tmp_path).iterdir()} == {"convs.csv", "convs.md", "convs.png"}


def test_rows_come_one_by_one(plain, monkeypatch):
    """All of them take hours."""
    measured = []
    monkeypatch.setattr(convs, "measure", lambda case, *_: measured.append(case) or {"kernel": case.name})
    first = next(convs.convs(str, ["framefuse"], convs.Chosen()))
    assert [first["kernel"]] == [case.name for case in measured]
