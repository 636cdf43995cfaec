"""Data-parallel training on two processes: compiled code inside DistributedDataParallel, or around it, beside eager."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from tests.unit import ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import framefuse
from framefuse.capture.program.parallel import running
from framefuse.capture.program.sharded_optimizers import LocalStep
from framefuse.runtime.function import compiled_function

PROGRAMS: dict[str, Callable[[int], None]] = {}
WIDTH = 128
BUCKET = 0.1  # MB: the weight and bias of one inner layer, and some


def program(function: Callable[[int], None]) -> Callable[[int], None]:
    PROGRAMS[function.__name__] = function
    return function


def deep() -> nn.Module:
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())]
    return nn.Sequential(nn.Linear(8, WIDTH), *layers, nn.Linear(WIDTH, 4))


class Halved(nn.Module):
    """Uses only one of its two branches, so that the other's parameters get no gradient."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right, self.last = nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor, left: bool = True) -> torch.Tensor:
        return self.last(torch.tanh(self.left(x) if left else self.right(x)))


def batch(rank: int, turn: int, rows: int = 6) -> torch.Tensor:
    return torch.randn(rows, 8, generator=torch.Generator().manual_seed(10 * turn + rank))


def train(
    forward: Any, model: nn.Module, rank: int, steps: int = 5, rows: tuple[int, ...] = (6,), **options: Any
) -> list[Any]:
    """The gradients of each step, and the weights at the end."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found: list[Any] = []
    for turn in range(steps):
        optimizer.zero_grad()
        forward(batch(rank, turn, rows[turn % len(rows)]), **options).square().mean().backward()
        found.append([None if p.grad is None else p.grad.clone() for p in model.parameters()])
        optimizer.step()
    return [*found, [p.detach().clone() for p in model.parameters()]]


def wrapped(how: str, make: Callable[[], nn.Module], **options: Any) -> tuple[Any, nn.Module, Any, Any]:
    """The callable, the model, the DistributedDataParallel and the compiled function, which is None for eager."""
    model = make()
    if how == "inside":
        compiled = framefuse.compile(model)
        parallel = DistributedDataParallel(compiled, **options)
        return parallel, model, parallel, compiled
    parallel = DistributedDataParallel(model, **options)
    if how == "eager":
        return parallel, model, parallel, None
    compiled = framefuse.compile(parallel)
    return compiled, model, parallel, compiled


def graphs(compiled: Any) -> int:
    """How many compiled graphs compute something."""
    products = compiled_function(compiled).products
    return sum(1 for product in products if len(product.stages.code.schedule.items) > 0)


def follows(
    rank: int, make: Callable[[], nn.Module] = deep, calls: dict[str, Any] | None = None, **options: Any
) -> None:
    forward, model, _, _ = wrapped("eager", make, **options)
    expected = train(forward, model, rank, **(calls or {}))
    for how in ("inside", "around"):
        forward, model, _, compiled = wrapped(how, make, **options)
        torch.testing.assert_close(train(forward, model, rank, **(calls or {})), expected, rtol=1e-4, atol=1e-5)
        assert graphs(compiled) > 0, framefuse.explain(compiled)
        assert compiled_function(compiled).dispatch.hits >= 2, framefuse.explain(compiled)


@program
def gradients_are_eagers(rank: int) -> None:
    follows(rank)


@program
def buckets_are_views_of_gradients(rank: int) -> None:
    follows(rank, gradient_as_bucket_view=True, bucket_cap_mb=BUCKET)


@program
def the_graph_is_static(rank: int) -> None:
    follows(rank, static_graph=True)


@program
def some_parameters_are_unused(rank: int) -> None:
    follows(rank, Halved, find_unused_parameters=True)
    follows(rank, Halved, calls={"left": rank == 0}, find_unused_parameters=True)


@program
def batches_of_all_sizes_are_three_graphs(rank: int) -> None:
    rows = (8, 8, 5, 6, 7, 3, 9, 4)
    forward, model, _, _ = wrapped("eager", deep)
    expected = train(forward, model, rank, 8, rows)
    forward, model, _, compiled = wrapped("around", deep)
    torch.testing.assert_close(train(forward, model, rank, 8, rows), expected, rtol=1e-4, atol=1e-5)
    state = compiled_function(compiled)
    assert len(state.breaks) == 2 and len(state.products) <= 4, framefuse.explain(compiled)
    assert state.dispatch.hits >= 6, framefuse.explain(compiled)


@program
def a_pass_that_raises_leaves_nothing_behind(rank: int) -> None:
    class Strict(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.linear(x)
            if x.shape[0] == 5:
                raise ValueError("five rows")
            return y

    parallel = DistributedDataParallel(Strict())
    compiled = framefuse.compile(parallel)
    for rows in (4, 4, 5, 6, 5, 4):
        x = torch.randn(rows, 8)
        try:
            found = compiled(x)
        except ValueError as error:
            assert rows == 5 and str(error) == "five rows"
        else:
            assert rows != 5
            torch.testing.assert_close(found, parallel.module.linear(x))
            found.sum().backward()
        assert running() is None


@program
def statistics_are_sent_from_the_first_rank(rank: int) -> None:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.0), nn.Linear(16, 4))

    follows(rank, make)
    models = []
    for how in ("eager", "inside", "around"):
        forward, model, _, _ = wrapped(how, make)
        train(forward, model, rank)
        forward(batch(rank, 0))
        models.append(model[1])
    for other in models[1:]:
        torch.testing.assert_close(other.state_dict(), models[0].state_dict())


@program
def buckets_are_sent_while_backward_runs(rank: int) -> None:
    """The order of events tells: a bucket is sent before the gradients of the layers in front of it are there."""
    logs = {}
    for how in ("eager", "inside", "around"):
        forward, model, parallel, compiled = wrapped(how, deep, bucket_cap_mb=BUCKET)
        log: list[str] = []

        def sent(state, bucket, log=log):
            log.append(f"bucket {bucket.index()}")
            work = dist.all_reduce(bucket.buffer().div_(ranks.WORLD), async_op=True)
            return work.get_future().then(lambda future: future.value()[0])

        parallel.register_comm_hook(None, sent)
        for number in (0, 3, 5):
            model[number].weight.register_post_accumulate_grad_hook(
                lambda p, n=number, log=log: log.append(f"layer {n}")
            )
        train(forward, model, rank)
        logs[how] = log[-log[::-1].index("bucket 0") - 1 :]
        assert compiled is None or graphs(compiled) >= 3, framefuse.explain(compiled)
    for log in logs.values():
        assert log.index("bucket 0") < log.index("layer 3") < log.index("layer 0"), logs
        assert log.index("bucket 1") < log.index("layer 0"), logs
        assert log[-1].startswith("bucket"), logs


@program
def gradients_are_kept_back(rank: int) -> None:
    found = []
    for how in ("eager", "inside", "around"):
        forward, model, parallel, _ = wrapped(how, deep, bucket_cap_mb=BUCKET)
        gradients = []
        for turn in range(6):
            if turn % 3 != 2:
                with parallel.no_sync():
                    forward(batch(rank, turn)).square().mean().backward()
            else:
                forward(batch(rank, turn)).square().mean().backward()
            gradients.append([p.grad.clone() for p in model.parameters()])
            if turn % 3 == 2:
                model.zero_grad()
        found.append(gradients)
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found[2], found[0], rtol=1e-4, atol=1e-5)


@program
def one_rank_compiles(rank: int) -> None:
    forward, model, _, _ = wrapped("eager", deep)
    expected = train(forward, model, rank)
    for how in ("inside", "around"):
        forward, model, _, _ = wrapped(how if rank == 0 else "eager", deep)
        torch.testing.assert_close(train(forward, model, rank), expected, rtol=1e-4, atol=1e-5)


class Noisy(nn.Module):
    """A small conv net whose middle activations are summed over the ranks and added as noise."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.first(x.view(-1, 1, 2, 4)))
        with torch.no_grad():
            noise = h.detach().clone()
            dist.all_reduce(noise)
        return self.second(torch.nn.functional.pad(h + 0.1 * noise, (1, 1, 1, 1)))


@program
def noise_from_all_ranks_trains(rank: int) -> None:
    model = Noisy()
    expected = train(model, model, rank, 20)
    model = Noisy()
    compiled = framefuse.compile(model)
    torch.testing.assert_close(train(compiled, model, rank, 20), expected, rtol=1e-4, atol=1e-5)
    state = compiled_function(compiled)
    assert len(state.products) == 1, framefuse.explain(compiled)
    names = [node.attr("name") for node in state.products[0].stages.graph.nodes if node.op == "library"]
    assert names.count("all_reduce") == 1


@program
def sharded_models_run(rank: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (ranks.WORLD,))
    found = []
    for how in ("eager", "inside"):
        model = deep()
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        forward = framefuse.compile(model) if how == "inside" else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for turn in range(4):
            optimizer.zero_grad()
            loss = forward(batch(rank, turn)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        found.append((losses, [p.full_tensor().detach().clone() for p in model.parameters()]))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)
    assert 0 < graphs(forward) <= len(model), framefuse.explain(forward)  # and as many backward


@program
def whole_steps_of_sharded_models(rank: int) -> None:
    """Forward, backward and a step of the optimizer in one compiled function; a size leaves a rank fewer rows."""
    makers: list[tuple[Any, dict[str, Any]]] = [
        (torch.optim.AdamW, {"lr": 0.01, "foreach": True}),
        (torch.optim.Adam, {"lr": 0.01, "amsgrad": True, "weight_decay": 0.1}),
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "foreach": True}),
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
        (torch.optim.RMSprop, {"lr": 0.01, "centered": True, "momentum": 0.5}),
        (torch.optim.Adagrad, {"lr": 0.01}),
    ]
    for maker, settings in makers:
        found = []
        for how in ("eager", "compiled"):
            found.append(stepped(rank, maker, settings, how == "compiled"))
        torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


def stepped(rank: int, maker: Any, settings: dict[str, Any], compiles: bool) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 7), nn.GELU(), nn.Linear(7, 8), nn.Linear(8, 8))
    for layer in (model[0], model[2], model[3], model):
        fully_shard(layer, mesh=init_device_mesh("cpu", (ranks.WORLD,)))
    model[3].weight.requires_grad_(False)
    rest = [{"params": [*model[2].parameters(), *model[3].parameters()], "lr": 0.003}]
    optimizer = maker([{"params": list(model[0].parameters())}, *rest], **settings)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)

    def step(optimizer: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:  # named as the method is
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    whole = lambda x: step(optimizer, x)
    run = framefuse.compile(whole) if compiles else whole
    losses = []
    for turn in range(8):
        losses.append(run(batch(rank, turn)).detach())
        scheduler.step()
        if turn == 4:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        if turn == 5:  # others in the place of what was looked at
            kept = optimizer.state[model[0].weight]
            kept.update({name: part * 0.5 for name, part in kept.items() if isinstance(part, DTensor)})
    if compiles:
        assert framefuse.explain(run).hits >= 4, framefuse.explain(run)
        inner: Any = LocalStep.known[optimizer].compiled
        assert inner.hits >= 4 or settings.get("nesterov"), maker  # that writes to gradients, which share memory here
    state = [
        {name: part.full_tensor() if isinstance(part, DTensor) else part for name, part in optimizer.state[p].items()}
        for p in model.parameters()
    ]
    return losses, [p.full_tensor().detach().clone() for p in model.parameters()], state


@program
def tensor_parallel_models_run(rank: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (ranks.WORLD,))
    found = []
    for how in ("eager", "inside"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        forward = framefuse.compile(model) if how == "inside" else model
        results = []
        for turn in range(4):
            y = forward(batch(0, turn))
            y.square().sum().backward()
            results.append((y.detach() + 0, [p.grad.full_tensor() for p in model.parameters()]))
            model.zero_grad()
        found.append(results)
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


class Block(nn.Module):
    """A transformer block whose heads are those of its process."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(16), nn.LayerNorm(16)
        self.q, self.k, self.v, self.o = (nn.Linear(16, 16, bias=bias) for _ in range(4))
        self.up, self.down = nn.Linear(16, 32, bias=bias), nn.Linear(32, 16, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        q, k, v = (layer(h).view(*x.shape[:2], -1, 4).transpose(1, 2) for layer in (self.q, self.k, self.v))
        h = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.o(h)
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


def split_blocks(**options: Any) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (ranks.WORLD,))
    torch.manual_seed(0)
    columns = {name: ColwiseParallel() for name in ("q", "k", "v", "up")}
    plan = {**columns, "o": RowwiseParallel(), "down": RowwiseParallel()}
    return nn.Sequential(*(parallelize_module(Block(**options), mesh, plan) for _ in range(2)))


def sequences(turn: int) -> torch.Tensor:
    return torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(turn))


def train_split(forward: Any, model: nn.Module, first: int = 0, steps: int = 4) -> list[Any]:
    """Losses, gradients with how they lie, and the weights at the end."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found: list[Any] = []
    for turn in range(first, first + steps):
        loss = forward(sequences(turn)).square().mean()
        loss.backward()
        grads = [p.grad for p in model.parameters()]
        found.append(loss.detach())
        found.append([str(getattr(grad, "placements", None)) for grad in grads])
        found.append([None if grad is None else whole(grad) for grad in grads])
        optimizer.step()
        optimizer.zero_grad()
    return [*found, [whole(p) for p in model.parameters()]]


def whole(tensor: Any) -> torch.Tensor:
    tensor = tensor.detach()
    return tensor.full_tensor().clone() if hasattr(tensor, "full_tensor") else tensor.clone()


def assert_follows(found: list[Any], expected: list[Any]) -> None:
    def is_text(part: Any) -> bool:
        return isinstance(part, list) and isinstance(part[0], str)

    texts = [[part for part in each if is_text(part)] for each in (found, expected)]
    assert texts[0] == texts[1]
    numbers = [[part for part in each if not is_text(part)] for each in (found, expected)]
    torch.testing.assert_close(numbers[0], numbers[1], rtol=1e-4, atol=1e-5)


@program
def split_layers_are_part_of_one_graph(rank: int) -> None:
    for options in ({}, {"bias": False}):
        model = split_blocks(**options)
        expected = train_split(model, model)
        model = split_blocks(**options)
        compiled = framefuse.compile(model)
        assert_follows(train_split(compiled, model), expected)
        state = compiled_function(compiled)
        assert len(state.products) == 1, framefuse.explain(compiled)
        names = [node.attr("name") for node in state.products[0].stages.graph.nodes if node.op == "library"]
        assert names.count("all_reduce") == 4
        with torch.no_grad():
            torch.testing.assert_close(compiled(sequences(9)), model(sequences(9)) + 0, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(compiled(sequences(8)), model(sequences(8)) + 0, rtol=1e-4, atol=1e-5)


@program
def split_layers_read_an_embedding(rank: int) -> None:
    """Where nothing that is read asks for a gradient; what forward keeps is no sum of backward."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    def make() -> nn.Module:
        torch.manual_seed(0)
        mesh, plan = init_device_mesh("cpu", (ranks.WORLD,)), {"1": ColwiseParallel(), "3": RowwiseParallel()}
        layers = nn.Linear(16, 32, bias=False), nn.SiLU(), nn.Linear(32, 16, bias=False)
        return parallelize_module(nn.Sequential(nn.Embedding(9, 16), *layers), mesh, plan)

    def words(forward: Any) -> Any:
        return lambda x: forward((x[..., 0].abs() * 4).long() % 9)

    model = make()
    expected = train_split(words(model), model)
    model = make()
    compiled = framefuse.compile(model)
    assert_follows(train_split(words(compiled), model), expected)
    assert len(compiled_function(compiled).products) == 1, framefuse.explain(compiled)


@program
def one_rank_compiles_split_layers(rank: int) -> None:
    model = split_blocks()
    expected = train_split(model, model)
    for which in range(ranks.WORLD):
        model = split_blocks()
        compiled = framefuse.compile(model)
        assert_follows(train_split(compiled if rank == which else model, model), expected)
        assert rank != which or compiled_function(compiled).dispatch.hits >= 2, framefuse.explain(compiled)


@program
def split_layers_change(rank: int) -> None:
    def frozen(model: nn.Module) -> None:
        model[0].q.weight.requires_grad_(False)
        model[1].down.bias.requires_grad_(False)

    def doubled(model: nn.Module) -> None:
        model[0].up.register_forward_hook(lambda layer, args, out: out * 2)

    def replaced(model: nn.Module) -> None:
        model[0].k.weight = nn.Parameter(model[0].q.weight.detach().clone())

    def halved(model: nn.Module) -> None:
        model[1].up.register_forward_pre_hook(lambda layer, args: (args[0] / 2,), prepend=True)

    def written(model: nn.Module) -> None:
        with torch.no_grad():
            model[0].o.weight.mul_(0.5)
            model[0].o.bias.copy_(model[0].o.bias + 1)

    def tied(model: nn.Module) -> None:
        model[1].q.weight = model[0].q.weight

    for change in (frozen, doubled, replaced, halved, written, tied):
        found = []
        for how in ("eager", "compiled"):
            model = split_blocks()
            forward = framefuse.compile(model) if how == "compiled" else model
            before = train_split(forward, model)
            change(model)
            found.append([*before, *train_split(forward, model, 4)])
        assert_follows(found[1], found[0])


@program
def split_layers_written_before_backward(rank: int) -> None:
    """Eager keeps a split weight for backward, and no bias."""
    found = []
    for how in ("eager", "compiled"):
        model = split_blocks()
        forward = framefuse.compile(model) if how == "compiled" else model
        errors = []
        for name in ("q.weight", "up.weight", "o.weight", "up.bias", "down.bias", ""):
            loss = forward(sequences(len(errors))).square().mean()
            with torch.no_grad():
                if name:
                    model[0].get_parameter(name).mul_(2)
                model[0].q.weight.to_local().mul_(2)  # of which not even eager knows
            try:
                loss.backward()
                errors.append("")
            except RuntimeError as error:
                errors.append(str(error).partition(":")[0])
        found.append(errors)
    assert found[0] == found[1], found
    assert ["modified by an inplace" in error for error in found[0]] == [True] * 3 + [False] * 3, found
    assert compiled_function(forward).dispatch.hits >= 5, framefuse.explain(forward)


@program
def split_layers_in_checkpoints(rank: int) -> None:
    """A checkpoint compares what its second run, which is torch's own, saves with what the first one did."""

    def inside(model: nn.Module, compile: Callable[[Any], Any], reentrant: bool) -> Any:
        return compile(lambda x: checkpoint(model[1], checkpoint(model[0], x, use_reentrant=reentrant), **options))

    def around(model: nn.Module, compile: Callable[[Any], Any], reentrant: bool) -> Any:
        first, second = map(compile, model)
        return lambda x: checkpoint(second, checkpoint(first, x, use_reentrant=reentrant), **options)

    for arrange, reentrant in itertools.product((inside, around), (False, True)):
        options, found = {"use_reentrant": reentrant}, []
        for compile in (lambda function: function, framefuse.compile):
            model = split_blocks()
            forward = arrange(model, compile, reentrant)
            found.append(train_split(lambda x, forward=forward: forward(x.requires_grad_()), model))
        assert_follows(found[1], found[0])


@program
def hooks_of_all_modules_see_split_layers(rank: int) -> None:
    layer, seen = split_blocks()[0].up, []
    compiled = framefuse.compile(lambda x: layer(x) * 2)
    for turn in range(3):
        torch.testing.assert_close(compiled(sequences(turn)), layer(sequences(turn)) * 2)
    assert graphs(compiled) == 1, framefuse.explain(compiled)
    with nn.modules.module.register_module_forward_hook(lambda module, args, out: seen.append(type(module))):
        compiled(sequences(4))
    assert seen == [nn.Linear]


@program
def split_layers_under_autocast(rank: int) -> None:
    found = []
    for how in ("eager", "compiled"):
        model = split_blocks()
        forward = framefuse.compile(model) if how == "compiled" else model
        with torch.autocast("cpu", torch.bfloat16):
            results = [forward(sequences(turn)) + 0 for turn in range(4)]
            results[-1].float().square().mean().backward()
        found.append([*results, *(whole(p.grad) for p in model.parameters())])
    torch.testing.assert_close(found[1], found[0], rtol=2e-2, atol=2e-2)


if __name__ == "__main__":
    ranks.main(PROGRAMS)
