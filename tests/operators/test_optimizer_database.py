"""Optimizers of torch's own database, drawn from all that it holds: compiled steps of training leave what eager's
leave. What is drawn is the same in each run. With FRAMEFUSE_TEST_DEVICE=cuda they train on a GPU.
"""

import copy
import os
import random
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.common_optimizers import OptimizerInfo, optim_db

import framefuse
from framefuse.api import compiled_function
from framefuse.verification.nearness import unlike

DEVICE = os.environ.get("FRAMEFUSE_TEST_DEVICE", "cpu")
PART = 3  # of the settings of an optimizer
INFOS = [info for info in optim_db if info.optim_cls is not torch.optim.SparseAdam]  # its gradients are sparse
LOOPS = {"LBFGS"}  # whose steps ask for losses as often as these say


def left(info: OptimizerInfo, settings: dict[str, Any], whole: bool, compiled: bool) -> tuple[list[Any], int]:
    """What six steps leave of a net and an optimizer in two groups, by a closure or as a whole step; and how many ran
    compiled code.
    """
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).to(DEVICE, torch.float64)
    matrices = [parameter for parameter in net.parameters() if parameter.ndim == 2]
    parts = [[matrices[0]], [matrices[1]]] if info.optim_cls.__name__ == "Muon" else [matrices, [net[0].bias]]
    groups = [{"params": part} for part in parts]
    if info.optim_cls.__name__ in LOOPS:
        groups = [{"params": [*net.parameters()]}]
    optimizer = info.optim_cls(groups, **copy.deepcopy(settings))

    def closure(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        return loss

    def step(x: torch.Tensor, y: torch.Tensor) -> Any:
        if not whole:
            return optimizer.step(lambda: closure(x, y))
        loss = closure(x, y)
        optimizer.step()
        return loss

    call = framefuse.compile(step) if compiled else step
    found: list[Any] = []
    for number in range(6):
        seed = torch.Generator().manual_seed(number)
        rows = 4 + number // 4
        x, y = (torch.randn(rows, width, generator=seed, dtype=torch.float64).to(DEVICE) for width in (4, 3))
        if number == 3 and isinstance(optimizer.param_groups[0]["lr"], float):
            optimizer.param_groups[0]["lr"] *= 0.5
        found.append([call(x, y).detach().clone(), *(parameter.detach().clone() for parameter in net.parameters())])
    found.append(copy.deepcopy(optimizer.state_dict()))
    return found, compiled_function(call).dispatch.hits if compiled else 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("info", INFOS, ids=[info.optim_cls.__name__ for info in INFOS])
def test_steps_leave_what_eagers_leave(info: OptimizerInfo) -> None:
    draw = random.Random(info.optim_cls.__name__)
    known = [way for way in info.supported_impls if way != "fused" or DEVICE in info.supports_fused_on]
    ways = [{}, *({way: True} for way in ("foreach", "fused") if way in known)]
    settings = [given.kwargs for given in info.optim_inputs_func(device=DEVICE)]
    drawn = draw.sample(settings, min(PART, len(settings)))
    for place, given in enumerate(drawn):
        way, whole = ways[place % len(ways)], place % 2 == 0 and info.optim_cls.__name__ not in LOOPS
        eager, _ = left(info, {**given, **way}, whole, False)
        mine, hits = left(info, {**given, **way}, whole, True)
        held = 3 if info.optim_cls.__name__ in LOOPS else len(eager)  # searches along a line magnify roundings
        # These grow from step to step; on a GPU steps and powers may be float32, of parameters that are float64.
        factor = 1e9 if given.get("capturable") else 100
        text = unlike(mine[:held], eager[:held], None, factor=factor)
        assert not text, f"{given} {way} {whole=}: {text}"
        assert hits or info.optim_cls.__name__ in LOOPS, f"{given} {way} {whole=}: no compiled code ran"
