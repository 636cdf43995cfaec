"""A training step of a transformer's layers holds less memory at its peak than eager's."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import framefuse
from framefuse import _native

ROOT = Path(__file__).resolve().parents[3]
RESET = Path("/proc/self/clear_refs")

# Runs in a process of its own, whose heap gives large blocks back to the system at once.
PROGRAM = """
import ctypes, gc, json
from pathlib import Path
import torch
from torch import nn
from torch.nn import functional as F
import framefuse
from framefuse import _native

ctypes.CDLL(None).mallopt(-3, 1 << 16)  # M_MMAP_THRESHOLD
torch.set_num_threads(1)

class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.first(x)).view(batch, length, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
        probabilities = F.dropout((q @ k.transpose(-2, -1) * 0.1).softmax(-1), 0.1)
        x = x + F.dropout(self.out((probabilities @ v).transpose(1, 2).reshape(batch, length, width)), 0.1)
        return x + F.dropout(self.down(F.gelu(self.up(self.second(x)))), 0.1)

torch.manual_seed(0)
model = nn.Sequential(*(Layer(64) for _ in range(4)))
x = torch.randn(32, 64, 64)

def figure(name):
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024

def peak(module):
    def step():
        torch.manual_seed(1)
        loss = module(x).square().mean()
        loss.backward()
        return loss.item()
    for _ in range(2):
        step()
    found = []
    for _ in range(2):
        model.zero_grad()
        gc.collect()
        before = figure("VmRSS") - _native.spare_bytes()
        Path("/proc/self/clear_refs").write_text("5")
        loss = step()
        found.append(figure("VmHWM") - before)
    return min(found), loss

eager, eager_loss = peak(model)
compiled = framefuse.compile(model)
ours, our_loss = peak(compiled)
plans = [o.plan for o in gc.get_objects() if type(o) is _native.PlanProgram]
drops = sum(getattr(step, "name", "") == "drop" for plan in plans for step in plan.steps)
print(json.dumps([eager, ours, eager_loss, our_loss, drops, len(plans)]))
"""


@pytest.mark.skipif(not RESET.exists() or not os.access(RESET, os.W_OK), reason="no /proc/self/clear_refs")
def test_a_step_of_a_transformer():
    path = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert done.returncode == 0, done.stderr
    eager, ours, eager_loss, our_loss, drops, plans = json.loads(done.stdout.splitlines()[-1])
    assert plans == 2, "forward and backward are one plan each"
    assert drops >= 4 * 4, "what is saved goes while backward runs"
    assert abs(eager_loss - our_loss) < 1e-5
    assert ours <= 0.8 * eager, (ours / 1e6, eager / 1e6)


def plans() -> list[Any]:
    return [each for each in gc.get_objects() if type(each) is _native.PlanProgram]


@pytest.mark.parametrize(("width", "dropped"), [(64, 12), (8, 0)])
def test_saved_values_of_a_page_and_more_go_while_backward_runs(width: int, dropped: int) -> None:
    """Of each layer its result and what it reads; there may be hundreds of them, alive until the end together."""
    layers = [part for _ in range(6) for part in (nn.Linear(width, width), nn.Tanh())]
    model = nn.Sequential(*layers)
    x = torch.randn(32, width)
    there = plans()
    compiled = framefuse.compile(model)
    for _ in range(3):
        compiled(x).sum().backward()
    found = [each for each in plans() if not any(each is other for other in there)]
    assert len(found) == 2
    steps = [step for each in found for step in each.plan.steps if getattr(step, "name", "") == "drop"]
    assert sum(len(step.args) - 1 for step in steps) == dropped
