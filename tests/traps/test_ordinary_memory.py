"""Writes, views, layouts and gradients of tensors in ordinary programs: compiled code leaves what eager leaves."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import torch
from tests.traps.trap import Table, Trap, hold, outcome
from torch import nn
from torch.utils.checkpoint import checkpoint

TABLE = Table()
trap = TABLE.trap
TRAINING = "gradient training S021 autograd"


def steps(*sizes: int) -> torch.Tensor:
    return torch.arange(float(torch.Size(sizes).numel())).reshape(sizes)


@trap(traces=1, hits=3)
def a_write_to_an_input(compiled):
    @compiled
    def f(x):
        x.mul_(2)
        return x + 1

    for k in range(4):
        x = steps(3) + k
        yield f(x), x


@trap(traces=1, hits=3)
def inputs_that_are_overlapping_views(compiled):
    f = compiled(lambda a, b: a * 2 + b)
    for _ in range(4):
        base = steps(6)
        yield f(base[:4], base[2:]), f(base[:4], base[:4])


@trap(traces=1, hits=3)
def a_returned_view_of_an_input_knows_its_base(compiled):
    f = compiled(lambda x: x.view(-1)[1:])
    for _ in range(4):
        x = steps(2, 3)
        y = f(x)
        yield y, y._base is x, y._is_view(), y.storage_offset()
        y.add_(1)
        yield x


@trap(traces=1, hits=3)
def an_input_returned_is_the_same_object(compiled):
    f = compiled(lambda x, y: (x, y + 1, x))
    for _ in range(4):
        x = steps(3)
        out = f(x, x)
        yield out[0] is x, out[2] is x, out[1]


@trap(traces=1, hits=3)
def two_results_share_storage(compiled):
    @compiled
    def f(x):
        y = x + 1
        return y, y[1:], y.t()

    for _ in range(4):
        a, b, c = f(steps(3, 3))
        a.zero_()
        yield a, b, c, b._base is a, c._base is a


@trap(traces=1, hits=3)
def a_result_returned_twice_is_one_object(compiled):
    @compiled
    def f(x):
        y = x + 1
        return [y, (y, {"y": y})]

    for _ in range(4):
        out = f(steps(3))
        yield out[0] is out[1][0], out[1][0] is out[1][1]["y"], out[0]


@trap(traces=1, hits=3)
def a_result_written_through_out(compiled):
    @compiled
    def f(x, out):
        torch.add(x, 1, out=out)
        return out * 2

    for _ in range(4):
        out = torch.empty(3)
        yield f(steps(3), out), out


@trap(traces=1, hits=0, waits=TRAINING)
def a_write_to_a_view_under_autograd(compiled):
    @compiled
    def f(x):
        y = x * 2
        y[0].mul_(3)
        return y.sum()

    for _ in range(4):
        x = steps(2, 2).requires_grad_()
        f(x).backward()
        yield x.grad


@trap(traces=0, hits=0, waits=TRAINING + " raises")
def a_write_to_a_leaf_is_an_error(compiled):
    f = compiled(lambda x: x.add_(1))
    for _ in range(3):
        x = steps(2).requires_grad_()
        yield outcome(f, x), x


@trap(traces=0, hits=0, waits="raises")
def a_write_to_an_expanded_tensor_is_an_error(compiled):
    f = compiled(lambda x: x.add_(1))
    for _ in range(3):
        x = steps(1)
        yield outcome(f, x.expand(3)), x


@trap(traces=1, hits=1, waits="raises alias")
def a_write_to_an_expanded_tensor_after_a_plain_one(compiled):
    f = compiled(lambda x: x.add_(1) * 2)
    for _ in range(2):
        x = steps(3)
        yield f(x), x
    for _ in range(2):
        x = steps(1)
        yield outcome(f, x.expand(3)), x


@trap(traces=1, hits=0, waits=TRAINING)
def a_stale_saved_tensor_is_an_error(compiled):
    @compiled
    def f(x):
        y = x.exp()
        z = y * 2
        y.add_(1)
        return z.sum()

    for _ in range(3):
        x = steps(2).requires_grad_()
        yield outcome(lambda x=x: f(x).backward()), x.grad is None


@trap(traces=1, hits=3)
def a_write_through_detach_is_seen(compiled):
    @compiled
    def f(x):
        x.detach().add_(1)
        return x * 2

    for _ in range(4):
        x = steps(3)
        before = x._version
        yield f(x), x, x._version - before


@trap(traces=1, hits=2)
def a_write_through_data_is_seen(compiled):
    @compiled
    def f(x):
        x.data.add_(1)
        return x * 2

    for _ in range(4):
        x = steps(3)
        yield f(x), x


@trap(traces=2, hits=2)
def a_gradient_read_and_later_none(compiled):
    w = steps(3).requires_grad_()

    @compiled
    def f(x):
        return x + 1 if w.grad is None else x + w.grad

    for gradient in (None, torch.ones(3), torch.ones(3) * 2, None, torch.ones(3)):
        w.grad = gradient
        yield f(steps(3))


@trap(traces=1, hits=2)
def a_gradient_mode_left_by_the_call(compiled):
    @compiled
    def f(x):
        torch.set_grad_enabled(False)
        return x + 1

    for _ in range(3):
        with torch.enable_grad():
            yield f(steps(3)), torch.is_grad_enabled()


@trap(traces=4, hits=4)
def inference_mode_and_its_tensors(compiled):
    f = compiled(lambda x: (x + 1, x.is_inference()))
    plain = steps(3)
    with torch.inference_mode():
        special = steps(3)
    for _ in range(2):
        for x in (plain, special):
            made, told = f(x)
            yield made, told, made.is_inference()
        with torch.inference_mode():
            for x in (plain, special):
                made, told = f(x)
                yield made, told, made.is_inference()


@trap(traces=3, hits=3)
def expanded_and_self_overlapping_inputs(compiled):
    f = compiled(lambda x: x * 2 + x.sum())
    for _ in range(2):
        yield f(steps(1, 3).expand(4, 3))
        yield f(torch.as_strided(steps(5), (3, 3), (1, 1)))
        yield f(steps(3, 3))


@trap(traces=2, hits=3)
def channels_last_in_gives_channels_last_out(compiled):
    f = compiled(lambda x: torch.relu(x * 2 + 1))
    for size in (4, 5):
        yield f(steps(2, 3, size, size))
        yield f(steps(2, 3, size, size).contiguous(memory_format=torch.channels_last))
        yield f(steps(2, 3, size, size).permute(0, 3, 1, 2))


@trap(traces=4, hits=2, waits="numpy unknown-tensor argument native-call")
def numpy_arrays_go_in_and_out(compiled):
    @compiled
    def f(x, a):
        y = x + torch.from_numpy(a)
        return y.numpy() * 2, y

    for k in range(4):
        array, tensor = f(steps(3), np.arange(3, dtype=np.float32) + k)
        yield array.tolist(), tensor


@trap(traces=1, hits=2)
def an_input_that_shares_memory_with_numpy(compiled):
    @compiled
    def f(x):
        x.add_(1)
        return x * 2

    for _ in range(3):
        array = np.zeros(3, dtype=np.float32)
        yield f(torch.from_numpy(array)), array.tolist()


# Gradients around the call -------------------------------------------------------------------------------------------


@trap(traces=1, hits=0, waits=TRAINING)
def an_unused_input_gets_no_gradient(compiled):
    f = compiled(lambda x, y: (x * 2).sum())
    for _ in range(3):
        x, y = steps(2).requires_grad_(), steps(2).requires_grad_()
        f(x, y).backward()
        yield x.grad, y.grad is None


@trap(traces=1, hits=0, waits=TRAINING)
def results_that_require_no_gradient_say_so(compiled):
    f = compiled(lambda x, y: (x * 2, y * 2, x.detach() + 1, x.argmax()))
    for _ in range(3):
        yield [made.requires_grad for made in f(steps(2).requires_grad_(), steps(2))]


@trap(traces=1, hits=0, waits=TRAINING)
def gradients_accumulate(compiled):
    model = nn.Linear(2, 2)
    nn.init.ones_(model.weight)
    nn.init.ones_(model.bias)
    f = compiled(model)
    for k in range(3):
        f(steps(1, 2) + k).sum().backward()
        yield model.weight.grad, model.bias.grad


@trap(traces=1, hits=0, waits=TRAINING)
def an_optimizer_steps_between_calls(compiled):
    model = nn.Linear(2, 1)
    nn.init.ones_(model.weight)
    nn.init.ones_(model.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    f = compiled(model)
    for k in range(4):
        optimizer.zero_grad()
        loss = (f(steps(2, 2)) - k).square().mean()
        loss.backward()
        optimizer.step()
        yield loss, model.weight


@trap(traces=1, hits=3)
def parameters_updated_in_place_between_calls(compiled):
    model = nn.Linear(2, 1).requires_grad_(False)
    nn.init.ones_(model.weight)
    nn.init.ones_(model.bias)
    f = compiled(model)
    for k in range(4):
        yield f(steps(2, 2))
        model.weight.sub_(0.1 * k)
        model.bias.fill_(k)


@trap(traces=2, hits=0, waits=TRAINING)
def tensor_hooks_run(compiled):
    f = compiled(lambda x: (x * 3).sum())
    for factor in (1, 2, 3):
        x = steps(2).requires_grad_()
        x.register_hook(lambda gradient, factor=factor: gradient * factor)
        f(x).backward()
        yield x.grad


@trap(traces=2, hits=0, waits=TRAINING)
def a_tensor_hook_registered_inside(compiled):
    @compiled
    def f(x):
        y = x * 3
        y.register_hook(lambda gradient: gradient * 2)
        return y.sum()

    for _ in range(3):
        x = steps(2).requires_grad_()
        f(x).backward()
        yield x.grad


@trap(traces=5, hits=4)
def a_tensor_hook_registered_and_removed_inside(compiled):
    @compiled
    def f(x):
        heard = []
        y = x * 3
        handle = y.register_hook(lambda gradient: heard.append(gradient.sum()))
        y.sum().backward()
        handle.remove()
        return heard

    for _ in range(7):
        x = steps(2).requires_grad_()
        yield f(x), x.grad


@trap(traces=2, hits=0, waits=TRAINING)
def post_accumulate_hooks_run(compiled):
    f = compiled(lambda x: (x * 3).sum())
    for _ in range(3):
        x = steps(2).requires_grad_()
        told: list[float] = []
        x.register_post_accumulate_grad_hook(lambda t, told=told: told.append(t.grad.sum().item()))
        f(x).backward()
        yield x.grad, told


@trap(traces=2, hits=0, waits=TRAINING)
def hooks_on_saved_tensors_run(compiled):
    f = compiled(lambda x: (x.exp() * x).sum())
    packed: list[int] = []

    def pack(x: torch.Tensor) -> torch.Tensor:
        packed.append(x.numel())
        return x

    for _ in range(3):
        x = steps(2).requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            y = f(x)
        y.backward()
        yield x.grad, len(packed)


@trap(traces=2, hits=0, waits=TRAINING + " transform")
def a_checkpoint_inside(compiled):
    runs: list[int] = []

    def block(x):
        runs.append(1)
        return x.exp() * 2

    f = compiled(lambda x: checkpoint(block, x, use_reentrant=False).sum())
    for _ in range(3):
        x = steps(2).requires_grad_()
        f(x).backward()
        yield x.grad, len(runs)


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 20


@trap(traces=3, hits=4)
def a_custom_autograd_function(compiled):
    f = compiled(lambda x: Twice.apply(x + 1).sum())
    for _ in range(3):
        x = steps(2).requires_grad_()
        y = f(x)
        y.backward()
        yield y, x.grad
        yield f(steps(2))


@trap(traces=2, hits=2)
def a_vmap_of_a_gradient(compiled):
    f = compiled(lambda x: torch.func.vmap(torch.func.grad(lambda v: (v**2).sum()))(x))
    for k in range(3):
        yield f(steps(3, 2) + k)


@trap(traces=2, hits=0, waits="torch-mode transform")
def a_compiled_function_under_vmap(compiled):
    f = compiled(lambda x: x * 2 + 1)
    for k in range(3):
        yield f(steps(3)), torch.func.vmap(f)(steps(3, 2) + k), torch.func.grad(lambda v: f(v).sum())(steps(3))


# Lifetime ------------------------------------------------------------------------------------------------------------


@trap(traces=1, hits=2)
def inputs_are_freed_after_the_call(compiled):
    f = compiled(lambda x: x * 2)
    for _ in range(3):
        x = steps(3)
        there = weakref.ref(x)
        f(x)
        del x
        yield there() is None


@trap(traces=1, hits=1)
def a_module_is_freed_after_use(compiled):
    model = nn.Linear(2, 2).requires_grad_(False)
    there = weakref.ref(model.weight)
    f = compiled(model)
    yield f(steps(1, 2)).shape, f(steps(1, 2)).shape
    del f, model
    gc.collect()
    yield there() is None


@trap(traces=2, hits=1)
def a_weak_reference_alive_and_dead(compiled):
    f = compiled(lambda x, there: x * 2 if there() is None else x * there())
    kept = torch.full((2,), 3.0)
    there = weakref.ref(kept)
    for _ in range(3):
        yield f(steps(2), there)
    del kept
    yield f(steps(2), there), f(steps(2), there)


@trap(traces=1, hits=3)
def a_tensor_turned_in_place_beside_its_data_is_no_view(compiled):
    @compiled
    def f(x):
        y = x.contiguous()
        plain = y.data
        y.t_()
        y.unsqueeze_(0)
        return plain, y

    for k in range(4):
        plain, y = f((steps(3, 2) + k).t())
        yield plain, y, y._is_view(), y._version, plain._version
        y.add_(1)
        yield plain, y, y.requires_grad_().requires_grad


@trap(traces=4, hits=12)
def copies_of_random_numbers_were_not_written(compiled):
    def filled(x):
        x.normal_()
        return x.clone(memory_format=torch.contiguous_format)

    def made(x):
        y = torch.empty_like(x).uniform_()
        return y.clone(), y

    for function in (filled, made, lambda x: torch.empty_like(x).normal_().clone(), lambda x: x.exponential_().add(1)):
        f = compiled(function)
        for k in range(4):
            found = f(steps(2, 3 + k))
            yield found, [each._version for each in (found if isinstance(found, tuple) else (found,))]


@trap(traces=8, hits=24)
def strides_of_layers_at_batch_1_and_over_one_step(compiled):
    for grad in (False, True):
        for kind in (nn.LSTM, nn.GRU):
            for batch, length in ((1, 5), (3, 1)):
                torch.manual_seed(0)
                layer = kind(4, 6, batch_first=True)
                fast = compiled(layer)
                for k in range(4):
                    with torch.set_grad_enabled(grad):
                        found = fast(steps(batch, length, 4) + k)[0]
                    yield found, found.stride(), found._is_view()


@TABLE.parametrize()
def test_memory_is_as_eager_leaves_it(trap: Trap) -> None:
    hold(trap)
