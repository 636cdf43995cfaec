"""Strings within what a caller hands over, another one at each call: what is only handed on costs no trace for each."""

from __future__ import annotations

import copy
import dataclasses
import json

import torch
from tests.traps.trap import Table, Trap, hold

TABLE = Table()
trap = TABLE.trap
CALLS = 20
MODES = ("mean", "sum", "none")


@dataclasses.dataclass
class Request:
    name: str
    x: torch.Tensor
    mode: str = "mean"


def requests(calls: int = CALLS):
    for number in range(calls):
        yield {"id": f"r{number}", "x": torch.full((3,), 1.0 + number), "mode": MODES[number * number % 3]}


@trap(traces=2, hits=18)
def an_id_in_a_dict(compiled):
    f = compiled(lambda request: {"id": request["id"], "out": request["x"] * 2})
    for request in requests():
        yield f(request)


@trap(traces=2, hits=18)
def an_id_deep_within(compiled):
    f = compiled(lambda batch: [(part["id"], part["x"] * 2) for part in batch["parts"][0]])
    for request in requests():
        yield f({"parts": [[request, dict(request, id=request["id"] + "b")]]})


@trap(traces=2, hits=18)
def a_name_of_an_object(compiled):
    f = compiled(
        lambda request: (dataclasses.replace(request, x=request.x * 2).name, f"{request.name}:", request.x + 1)
    )
    for request in requests():
        yield f(Request(request["id"], request["x"]))


@trap(traces=2, hits=18)
def what_is_written_is_of_this_call(compiled):
    kept = []

    @compiled
    def f(request):
        request["seen"] = request["id"] + "!"
        request["id"] = request["mode"]
        kept.append(request["seen"])
        return request["x"] * 2

    for number, request in enumerate(requests()):
        request["mode"] = f"m{number}"
        yield f(request), request, list(kept), type(kept[-1]) is str, type(request["id"]) is str


@trap(traces=4, hits=16)
def what_decides_is_held_to_its_value(compiled):
    @compiled
    def f(request):
        loss = torch.nn.functional.mse_loss(request["x"], request["x"] * 2, reduction=request["mode"])
        return request["id"], loss if request["mode"] == "none" else loss * 3

    for request in requests():
        yield f(request)


@trap(traces=12, hits=0)
def what_is_read_is_held_to_its_value(compiled):
    @compiled
    def f(request):
        name = request["id"]
        return {name: request["x"] * 2}, sorted([name, "r3"]), int(name[1:]), name in ("r4", "r6"), copy.deepcopy(name)

    for request in requests():
        yield f(request)


@trap(traces=12, hits=8)
def over_a_break(compiled):
    @compiled
    def f(request):
        positive = request["x"].sum().item() > 20
        return request["id"], json.dumps(request["id"]), request["x"] * 2 if positive else request["x"]

    for request in requests():
        yield f(request)


@TABLE.parametrize()
def test_texts_of_requests(trap: Trap) -> None:
    hold(trap)
