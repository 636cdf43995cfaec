"""Compiled steps of torch's optimizers leave what eager's leave: parameters, state and versions, by one trace."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

import framefuse
from framefuse.ir.schedule import RunCall
from framefuse.runtime.function import listeners
from framefuse.testing import assert_compiles

SIZES = [(8, 16), (16,), (5, 3, 2), (1, 7), ()]


class Twins:
    """Two equal sets of parameters, each with an optimizer: one stepped by eager, one by compiled code."""

    def __init__(self, make: Callable[[list[torch.nn.Parameter]], Any]) -> None:
        torch.manual_seed(0)
        self.eager = [torch.nn.Parameter(torch.randn(size)) for size in SIZES]
        self.ours = copy.deepcopy(self.eager)
        self.optimizers = make(self.eager), make(self.ours)
        self.step = framefuse.compile(self._steps(self.optimizers[1]))
        self.turn = 0

    @staticmethod
    def _steps(optimizer: Any) -> Callable[[], Any]:
        def step() -> Any:
            return optimizer.step()

        return step

    def gradients(self, without: tuple[int, ...] = ()) -> None:
        torch.manual_seed(self.turn)
        self.turn += 1
        for place, (a, b) in enumerate(zip(self.eager, self.ours, strict=True)):
            a.grad = None if place in without else torch.randn_like(a)
            b.grad = None if place in without else a.grad.clone()

    def run(self, without: tuple[int, ...] = ()) -> None:
        """One step of both, and what they left compared."""
        self.gradients(without)
        before = [p._version for p in (*self.eager, *self.ours)]
        self.optimizers[0].step()
        assert self.step() is None
        self.compare()
        bumps = [p._version - v for p, v in zip((*self.eager, *self.ours), before, strict=True)]
        assert bumps[: len(SIZES)] == bumps[len(SIZES) :]

    def compare(self) -> None:
        for a, b in zip(self.eager, self.ours, strict=True):
            torch.testing.assert_close(a, b, rtol=2e-6, atol=2e-7)
            assert b.requires_grad and b.is_leaf
        left, right = (optimizer.state_dict()["state"] for optimizer in self.optimizers)
        assert left.keys() == right.keys()
        for key in left:
            assert left[key].keys() == right[key].keys()
            for name, value in left[key].items():
                other = right[key][name]
                assert type(value) is type(other)
                if isinstance(value, torch.Tensor):
                    torch.testing.assert_close(value, other, rtol=2e-6, atol=2e-7)
                    assert value._version == other._version, (name, value._version, other._version)
                else:
                    assert value == other


OPTIMIZERS = [
    "SGD(p)", "SGD(p, momentum=0.9)", "SGD(p, momentum=0.9, nesterov=True, weight_decay=0.1, maximize=True)",
    "SGD(p, momentum=0.8, dampening=0.2)",
    "Adam(p)", "Adam(p, weight_decay=0.1, amsgrad=True, maximize=True)", "Adam(p, lr=torch.tensor(0.01))",
    "AdamW(p)", "AdamW(p, amsgrad=True)", "RMSprop(p, momentum=0.1, centered=True)", "RMSprop(p)", "Adagrad(p)",
    "NAdam(p)", "Adamax(p)", "Adadelta(p)", "Rprop(p)",
]  # fmt: skip
FOREACH = [
    text for text in OPTIMIZERS if "tensor" not in text and text not in ("Adagrad(p)", "RMSprop(p)", "Adadelta(p)")
]


def check(text: str) -> Twins:
    twins = Twins(lambda p: eval(f"torch.optim.{text}", {"torch": torch, "p": p}))
    twins.run()
    ready = (text.startswith("SGD") and "momentum" not in text) or text.startswith("Adagrad")
    with assert_compiles(0 if ready else 1, twins.step):  # others make their state in the first step
        twins.run()
    hits = twins.step.__framefuse__.dispatch.hits
    with assert_compiles(0, twins.step):
        for _ in range(4):
            twins.run()
    assert twins.step.__framefuse__.dispatch.hits == hits + 4
    return twins


@pytest.mark.parametrize("text", OPTIMIZERS)
def test_steps_are_eagers(text: str) -> None:
    check(text)


@pytest.mark.parametrize("text", FOREACH)
def test_steps_over_lists_are_eagers(text: str) -> None:
    check(text.replace("(p", "(p, foreach=True", 1))


@pytest.mark.parametrize(
    "text",
    ["Adam(p)", "Adam(p, weight_decay=0.1, amsgrad=True, maximize=True)", "AdamW(p)", "SGD(p, momentum=0.9)",
     "SGD(p, momentum=0.9, nesterov=True, weight_decay=0.1, maximize=True)", "SGD(p, momentum=0.8, dampening=0.2)"],
)  # fmt: skip
def test_fused_steps_are_eagers(text: str) -> None:
    twins = check(text.replace("(p", "(p, fused=True", 1))
    schedule = twins.step.__framefuse__.products[-1].stages.code.schedule
    assert not [item for item in schedule.items if isinstance(item, RunCall)]


def test_a_process_that_used_torch_compile_compiles_steps_too() -> None:
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))  # it puts wrappers around the optimizers' methods
    assert hasattr(torch.optim.Adam._init_group, "_torchdynamo_disable")
    for text in ("Adam(p)", "SGD(p, momentum=0.9, fused=True)"):
        check(text)


def test_memory_that_a_fused_step_writes_must_lie_apart() -> None:
    twins = Twins(lambda p: torch.optim.SGD(p, fused=True, momentum=0.9))
    for _ in range(3):
        twins.run()
    for optimizer, parameters in zip(twins.optimizers, (twins.eager, twins.ours), strict=True):
        state = optimizer.state[parameters[0]]
        state["momentum_buffer"] = parameters[0].detach()  # no longer memory of its own
    for _ in range(2):
        twins.run()


def test_a_parameter_without_gradient_is_another_case() -> None:
    twins = Twins(torch.optim.AdamW)
    for without in ((), (), (1,), (1,), (), (0, 2)):
        twins.run(without)
    with assert_compiles(0, twins.step):
        for without in ((), (1,), (0, 2)):
            twins.run(without)


@pytest.mark.parametrize("foreach", [False, True])
def test_groups_and_schedules_compile_nothing(foreach: bool) -> None:
    twins = Twins(
        lambda p: torch.optim.Adam(
            [{"params": p[:2], "lr": 0.1}, {"params": p[2:], "weight_decay": 0.1}], foreach=foreach
        )
    )
    schedules = [torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=40) for o in twins.optimizers]
    for turn in range(20):
        with assert_compiles(int(turn == 1), twins.step):
            twins.run()
        for schedule in schedules:
            schedule.step()
    assert twins.step.__framefuse__.dispatch.hits == 18


def test_a_schedule_of_momentum_compiles_nothing() -> None:
    twins = Twins(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))
    schedules = [torch.optim.lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=3) for o in twins.optimizers]
    for turn in range(10):
        with assert_compiles(int(turn == 1), twins.step):
            twins.run()
        for schedule in schedules:
            schedule.step()


def test_weight_decay_that_is_set_to_zero_is_another_case() -> None:
    twins = Twins(lambda p: torch.optim.AdamW(p, weight_decay=0.1))
    for decay in (0.1, 0.1, 0.2, 0.0, 0.0, 0.3):
        for optimizer in twins.optimizers:
            optimizer.param_groups[0]["weight_decay"] = decay
        twins.run()
    assert len(twins.step.__framefuse__.products) == 2


def test_hooks_run_in_compiled_steps() -> None:
    twins = Twins(torch.optim.Adam)
    seen: list[str] = []
    for _ in range(3):
        twins.run()
    for name, optimizer in zip(("eager", "ours"), twins.optimizers, strict=True):
        optimizer.register_step_pre_hook(lambda opt, args, kwargs, name=name: seen.append(f"before {name}"))
        handle = optimizer.register_step_post_hook(lambda opt, args, kwargs, name=name: seen.append(f"after {name}"))
    for _ in range(3):
        twins.run()
    assert seen == ["before eager", "after eager", "before ours", "after ours"] * 3
    handle.remove()
    twins.run()
    assert seen[-3:] == ["before eager", "after eager", "before ours"]


def test_a_closure_and_a_profiler() -> None:
    twins = Twins(torch.optim.SGD)
    for optimizer, parameters in zip(twins.optimizers, (twins.eager, twins.ours), strict=True):

        def closure(parameters: Any = parameters) -> Any:
            return sum(p.detach().square().sum() for p in parameters)

        optimizer.test_closure = closure

    def step() -> Any:
        return twins.optimizers[1].step(twins.optimizers[1].test_closure)

    compiled = framefuse.compile(step)
    for _ in range(4):
        twins.gradients()
        expected = twins.optimizers[0].step(twins.optimizers[0].test_closure)
        torch.testing.assert_close(compiled(), expected)
        twins.compare()
    with torch.profiler.profile() as profile:
        for _ in range(2):
            twins.run()
    assert any(event.key.startswith("Optimizer.step#SGD") for event in profile.key_averages())
    for _ in range(3):
        twins.run()


def test_state_that_is_loaded_is_used() -> None:
    twins = Twins(torch.optim.Adam)
    for _ in range(3):
        twins.run()
    saved = copy.deepcopy(twins.optimizers[0].state_dict())
    for _ in range(2):
        twins.run()
    for optimizer in twins.optimizers:
        optimizer.load_state_dict(copy.deepcopy(saved))
    for _ in range(4):
        twins.run()
    for optimizer in twins.optimizers:  # steps that are far on round as eager's do
        for state in optimizer.state.values():
            state["step"].fill_(2.0**24 - 2)
    for _ in range(4):
        twins.run()


def test_an_optimizer_as_argument() -> None:
    twins = Twins(torch.optim.AdamW)

    @framefuse.compile
    def step(optimizer: Any) -> None:
        optimizer.step()

    for _ in range(6):
        twins.gradients()
        twins.optimizers[0].step()
        step(twins.optimizers[1])
        twins.compare()
    assert len(step.__framefuse__.products) == 1
    assert step.__framefuse__.dispatch.hits == 4


def test_the_element_of_a_tensor_is_read_at_each_call() -> None:
    class Holder:
        def __init__(self) -> None:
            self.count = torch.tensor(1.0)

    holder = Holder()

    @framefuse.compile
    def scaled(x: torch.Tensor) -> torch.Tensor:
        holder.count *= 3
        return x * holder.count.item()

    x = torch.ones(3)
    for turn in range(5):
        expected = x * torch.tensor(3.0 * (turn + 1)).item()
        holder.count.fill_(turn + 1)
        torch.testing.assert_close(scaled(x), expected, rtol=0, atol=0)
    assert len(scaled.__framefuse__.products) == 1
    holder.count = torch.tensor(0.1, dtype=torch.float64)
    assert torch.equal(scaled(x), x * (torch.tensor(0.1, dtype=torch.float64) * 3).item())


class Training:
    """A small model with optimizer and schedule, and its step: gradients dropped, loss, backward, clipping, update."""

    def __init__(self, make: Callable[[list[torch.nn.Parameter]], Any], clip: str) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(6, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)
        )
        self.optimizer = make(list(self.model.parameters()))
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 50)
        self.clip = clip

    def __call__(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        if self.clip == "norm":
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        elif self.clip == "value":
            torch.nn.utils.clip_grad_value_(self.model.parameters(), 0.1)
        self.optimizer.step()
        return loss


@pytest.mark.parametrize(
    ("text", "clip"),
    [("AdamW(p, lr=0.01)", "norm"), ("SGD(p, lr=0.1, momentum=0.9)", "value"), ("Adam(p, foreach=True)", "")],
)
def test_whole_steps_follow_eagers_losses(text: str, clip: str) -> None:
    pair = [Training(lambda p: eval(f"torch.optim.{text}", {"torch": torch, "p": p}), clip) for _ in range(2)]
    eager = pair[0]
    ours = framefuse.compile(pair[1].__call__)
    compiled: list[str] = []
    listeners.append(lambda state, product: compiled.append(product.why or ""))
    for turn in range(50):
        torch.manual_seed(turn)
        x, y = torch.randn(8, 6), torch.randint(0, 4, (8,))
        torch.testing.assert_close(ours(x, y), eager(x, y), rtol=1e-4, atol=1e-5)
        for training in pair:
            training.schedule.step()
        if turn == 5:
            del compiled[:]
    listeners.pop()
    assert not compiled, compiled
    # All but the first calls, and those that are weighed against compiled ones, which run eagerly.
    assert ours.__framefuse__.dispatch.hits >= 44 and not ours.__framefuse__.reasons
    for left, right in zip(pair[0].model.parameters(), pair[1].model.parameters(), strict=True):
        torch.testing.assert_close(right, left, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("text", ["Adam(p)", "Adam(p, foreach=True)"])
def test_gradients_are_dropped_in_one_trace(text: str, to_none: bool) -> None:
    twins = Twins(lambda p: eval(f"torch.optim.{text}", {"torch": torch, "p": p}))

    def drop() -> None:
        twins.optimizers[1].zero_grad(set_to_none=to_none)

    compiled = framefuse.compile(drop)
    for _ in range(4):
        twins.gradients()
        held = [p.grad for p in twins.ours]
        twins.optimizers[0].zero_grad(set_to_none=to_none)
        compiled()
        for left, right, before in zip(twins.eager, twins.ours, held, strict=True):
            assert right.grad is (None if to_none else before)
            if not to_none:
                assert torch.equal(left.grad, right.grad) and left.grad._version == right.grad._version
    assert len(compiled.__framefuse__.products) == 1 and compiled.__framefuse__.dispatch.hits == 3


@pytest.mark.parametrize("kind", ["milestones", "sequence", "averages"])
def test_steps_with_schedules_and_averages_break_at_backward_and_branches_alone(kind: str) -> None:
    lr_scheduler = torch.optim.lr_scheduler

    def made() -> tuple[Callable[[torch.Tensor], torch.Tensor], torch.optim.Optimizer, Any]:
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn())
        if kind == "sequence":
            warm = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5)
            rest = lr_scheduler.ExponentialLR(optimizer, 0.9)
            schedule: Any = lr_scheduler.SequentialLR(optimizer, [warm, rest], [5])
        else:
            schedule = lr_scheduler.MultiStepLR(optimizer, [3, 9], 0.5)

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            schedule.step()
            if kind == "averages":
                average.update_parameters(model)
            return loss.detach()

        return step, optimizer, average

    (eager, theirs, expected), (step, ours, found) = made(), made()
    compiled = framefuse.compile(step)
    for turn in range(14):
        x = torch.randn(5, 4, generator=torch.Generator().manual_seed(turn))
        torch.testing.assert_close(compiled(x), eager(x))
        assert ours.param_groups[0]["lr"] == pytest.approx(theirs.param_groups[0]["lr"])
        torch.testing.assert_close(found.state_dict(), expected.state_dict())
    state = compiled.__framefuse__
    assert len(state.products) <= 10
    assert not {"native-call", "argument", "limit"} & {stop.code for stop in (*state.breaks, *state.reasons)}
