"""Function transforms of torch (``vmap``, ``grad``, ``jvp`` and their kin) inside compiled code are part of its graph,
with the values, the gradients and the random numbers of eager.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.traps.trap import Table, Trap, hold
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    stack_module_state,
    vjp,
    vmap,
)

TABLE = Table()
ROUNDS = range(4)
OUTSIDE = vmap(grad(lambda v: (v.sin() ** 2).sum()))
SCALE = [2.0]


def pair() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(4, 4), torch.randn(4, 4)


def network(*sizes: int) -> torch.nn.Sequential:
    torch.manual_seed(0)
    layers = [part for a, b in itertools.pairwise(sizes) for part in (torch.nn.Linear(a, b), torch.nn.Tanh())]
    return torch.nn.Sequential(*layers[:-1])


def each(compiled: Any, function: Any) -> Iterator[Any]:
    f = compiled(function)
    for _ in ROUNDS:
        yield f(*pair())


@TABLE.trap(traces=4, hits=4)
def masks_by_index_under_torchs_mode(compiled: Any) -> Iterator[Any]:
    index_mode = pytest.importorskip("torch._dynamo._trace_wrapped_higher_order_op").TransformGetItemToIndex

    @compiled
    def f(there, length):
        def mask(batch, query, key):
            near = query.new_ones((), dtype=torch.bool) & ((query - key).abs() < 3).to(query.device)
            return near & there[batch, key]

        for dims in ((None, None, 0), (None, 0, None), (0, None, None)):
            mask = vmap(mask, in_dims=dims)
        with index_mode():
            found = mask(torch.arange(there.shape[0]), torch.arange(length), torch.arange(there.shape[1]))
        return found.float() + 1

    for length in (*ROUNDS, *ROUNDS):
        yield f(torch.rand(2, 5) > 0.3, 3 + length)


@TABLE.trap(traces=1, hits=3)
def gradients_of_each_sample(compiled: Any) -> Iterator[Any]:
    net = network(4, 8, 3)
    weights = {name: value.detach() for name, value in net.named_parameters()}

    def loss(weights: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(functional_call(net, weights, (x[None],)), y[None])

    f = compiled(lambda weights, x, y: vmap(grad(loss), in_dims=(None, 0, 0))(weights, x, y))
    for _ in ROUNDS:
        yield f(weights, torch.randn(6, 4), torch.randint(0, 3, (6,)))


@TABLE.trap(traces=1, hits=3)
def gradients_of_each_sample_of_a_convolution(compiled: Any) -> Iterator[Any]:
    net = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.ReLU(), torch.nn.Flatten(0), torch.nn.Linear(27, 2))
    weights = {name: value.detach() for name, value in net.named_parameters()}
    f = compiled(lambda w, x: vmap(grad(lambda w, x: functional_call(net, w, (x,)).sum()), in_dims=(None, 0))(w, x))
    for _ in ROUNDS:
        yield f(weights, torch.randn(4, 2, 5, 5))


@TABLE.trap(traces=2, hits=6)
def another_number_of_samples_is_another_trace(compiled: Any) -> Iterator[Any]:
    f = compiled(lambda x: vmap(lambda v: (v * v.sum()).sin())(x))
    for size in (4, 4, 5, 5, 4, 5, 4, 5):
        yield f(torch.randn(size, 3))


@TABLE.trap(traces=1, hits=3)
def a_loss_of_second_derivatives_trains(compiled: Any) -> Iterator[Any]:
    net = network(2, 8, 1)

    def loss(points: torch.Tensor) -> torch.Tensor:
        def u(point: torch.Tensor) -> torch.Tensor:
            return net(point[None])[0, 0]

        laplacian = vmap(lambda point: torch.trace(hessian(u)(point)))(points)
        return (laplacian - vmap(u)(points)).pow(2).mean()

    f = compiled(loss)
    for _ in ROUNDS:
        net.zero_grad()
        value = f(torch.randn(5, 2))
        value.backward()
        yield value.detach(), [weight.grad for weight in net.parameters()]


@TABLE.trap(traces=1, hits=3)
def an_ensemble_trains(compiled: Any) -> Iterator[Any]:
    nets = [network(3, 4, 1) for _ in range(3)]
    weights, _ = stack_module_state(nets)  # type: ignore[arg-type]
    f = compiled(lambda w, x: vmap(lambda w, x: functional_call(nets[0], w, (x,)), in_dims=(0, None))(w, x))
    for _ in ROUNDS:
        loss = f(weights, torch.randn(5, 3)).pow(2).sum()
        yield [gradient.contiguous() for gradient in torch.autograd.grad(loss, list(weights.values()))]


@TABLE.trap(traces=1, hits=3)
def a_stop_of_gradients_inside_holds_outside_too(compiled: Any) -> Iterator[Any]:
    w = torch.nn.Parameter(torch.ones(4))
    f = compiled(lambda x: vmap(grad(lambda v: (v * w * (v * w).detach()).sum()))(x).sum())
    for _ in ROUNDS:
        yield torch.autograd.grad(f(torch.randn(3, 4)), w)


@TABLE.trap(traces=1, hits=3)
def no_gradients_outside_of_a_gradient_inside(compiled: Any) -> Iterator[Any]:
    w = torch.nn.Parameter(torch.ones(4))

    def f(x: torch.Tensor) -> Any:
        with torch.no_grad():
            y = grad(lambda v: (v * w).sin().sum())(x)
        return y, y.requires_grad

    fast = compiled(f)
    for _ in ROUNDS:
        yield fast(torch.randn(4))


@TABLE.trap(traces=1, hits=3)
def the_hessian_of_a_function_that_closes_over_an_argument(compiled: Any) -> Iterator[Any]:
    def f(a: torch.Tensor, b: torch.Tensor) -> Any:
        def loss(v: torch.Tensor) -> torch.Tensor:
            return (v * b[0]).tanh().sum()

        return torch.linalg.solve(hessian(loss)(a[0]) - 9 * torch.eye(4), grad(loss)(a[0]))

    yield from each(compiled, f)


@TABLE.trap(traces=1, hits=3)
def all_transforms(compiled: Any) -> Iterator[Any]:
    def f(a: torch.Tensor, b: torch.Tensor) -> Any:
        out, back = vjp(lambda v: (v * b).exp(), a)
        return (
            jacrev(lambda v: v.sin() * v.sum())(a[0]), jacfwd(lambda v: (v * b[0]).exp())(a[0]),
            hessian(lambda v: (v**3).sum())(a[0]), jvp(lambda v: (v * b).exp() + v.relu(), (a,), (b,)),
            grad(lambda v: ((v * b).sin().sum(), v * 2), has_aux=True)(a), grad_and_value(lambda v: v.cos().sum())(a),
            back(torch.ones_like(out)), vmap(vmap(lambda v: v.sin() * b.sum()))(a),
        )  # fmt: skip

    yield from each(compiled, f)


@TABLE.trap(traces=1, hits=3)
def dimensions_chunks_and_structures(compiled: Any) -> Iterator[Any]:
    def f(a: torch.Tensor, b: torch.Tensor) -> Any:
        return (
            vmap(lambda u, v: u @ v, in_dims=(1, 0), out_dims=0)(a, b),
            vmap(lambda v: v.cumsum(0), chunk_size=2)(a),
            vmap(lambda v: {"sum": v.sum(), "max": v.max()})(a),
            vmap(lambda v, i: v[i] + torch.tensor(2.0))(a, b.argmax(-1)),
            vmap(lambda v: v.clone().add_(1).mul_(b[0]))(a),
            vmap(torch.dot)(a, b),
        )

    yield from each(compiled, f)


@TABLE.trap(traces=1, hits=3)
def a_transform_made_elsewhere(compiled: Any) -> Iterator[Any]:
    yield from each(compiled, lambda a, b: OUTSIDE(a) * b)


@TABLE.trap(traces=2, hits=2)
def what_the_inner_function_reads_is_guarded(compiled: Any) -> Iterator[Any]:
    f = compiled(lambda x: vmap(lambda v: v * SCALE[0])(x))
    for scale in (2.0, 2.0, 3.0, 3.0):
        SCALE[0] = scale
        yield f(torch.randn(3, 2))
    SCALE[0] = 2.0


@TABLE.trap(traces=2, hits=2)
def what_the_function_of_a_transform_closes_over_is_guarded(compiled: Any) -> Iterator[Any]:
    f = compiled(lambda g, x: g(x))
    first, second = vmap(lambda v: v * 2), vmap(lambda v: v.sin())
    for g in (first, first, second, second):
        yield f(g, torch.randn(3, 2))


@TABLE.trap(traces=3, hits=1, waits="transform")
def a_branch_on_a_value_inside_stays_eager(compiled: Any) -> Iterator[Any]:
    def inner(v: torch.Tensor) -> torch.Tensor:
        return v.sum() if v.sum().item() > 0 else (v * 2).sum()

    f = compiled(lambda x: grad(inner)(x))
    for sign in (1, -1, 1, -1):
        yield f(torch.rand(3) * sign)


@TABLE.trap(traces=1, hits=3)
def random_numbers_for_each_sample(compiled: Any) -> Iterator[Any]:
    f = compiled(lambda x: vmap(lambda v: v + torch.rand(v.shape), randomness="different")(x))
    for seed in ROUNDS:
        torch.manual_seed(seed)
        yield f(torch.randn(3, 2)), torch.rand(1)


@TABLE.trap(traces=1, hits=3)
def a_number_that_moves_inside(compiled: Any) -> Iterator[Any]:
    f = compiled(lambda x: vmap(lambda v: v * 2.0)(x))
    for _ in ROUNDS:
        yield f(torch.randn(3, 2))


@TABLE.trap(traces=4, hits=12)
def what_is_turned_in_place_below_keeps_its_sizes(compiled: Any) -> Iterator[Any]:
    """A row by a matrix is a product of matrices that torch squeezes in place."""
    for function in (
        lambda x, w: vmap(lambda v: v @ w)(x),
        lambda x, w: vmap(lambda v: torch.matmul(v, w), in_dims=1)(x) + 1,
        lambda x, w: vmap(lambda v: v @ w, out_dims=1)(x.sin()) * 2,
        lambda x, w: grad(lambda v: vmap(lambda row: row @ w)(v).sin().sum())(x),
    ):
        yield from each(compiled, function)


@TABLE.trap(traces=4, hits=0)
def a_number_given_is_fixed(compiled: Any) -> Iterator[Any]:
    f = compiled(lambda x, s: vmap(lambda v: v * s)(x))
    for scale in (1.0, 2.0, 3.0, 4.0):
        yield f(torch.randn(3, 2), scale)


@TABLE.trap(traces=2, hits=2)
def an_error_inside_is_eagers(compiled: Any) -> Iterator[Any]:
    def f(x: torch.Tensor) -> torch.Tensor:
        return vmap(lambda v: v @ v)(x) if x.ndim == 2 else vmap(lambda v: v[:, 9])(x)

    fast = compiled(f)
    for shape in ((3, 2), (3, 2), (3, 2, 2), (3, 2)):
        try:
            yield fast(torch.randn(shape))
        except IndexError as error:
            yield str(error)


@TABLE.trap(traces=4, hits=4)
def what_transforms_of_transforms_give_is_compiled_itself(compiled: Any) -> Iterator[Any]:
    weight = torch.randn(3)

    def loss(w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return ((w * v).sin() ** 2).sum() * SCALE[0]

    samples, curved = compiled(vmap(grad(loss), in_dims=(None, 0))), compiled(hessian(loss, argnums=1))
    try:
        for scale in (2.0, 2.0, 5.0, 2.0):
            SCALE[0] = scale
            yield samples(weight, torch.randn(4, 3)), curved(weight, torch.randn(3))
    finally:
        SCALE[0] = 2.0


@TABLE.trap(traces=1, hits=3)
def a_transform_of_a_transform_with_an_outcome_beside(compiled: Any) -> Iterator[Any]:
    def loss(v: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return (v * v).sum(), {"sin": v.sin()}

    f = compiled(vmap(grad_and_value(loss, has_aux=True), chunk_size=2))
    for _ in ROUNDS:
        yield f(torch.randn(4, 3))


@TABLE.trap(traces=2, hits=0, waits="torch-mode")
def an_item_in_the_mode_of_items_is_no_view(compiled: Any) -> Iterator[Any]:
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    def change(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
        y = x * 2
        with TransformGetItemToIndex():
            row = y[0]
        row += 1
        return y, row, torch._C._len_torch_function_stack()

    f = compiled(change)
    for _ in ROUNDS:
        yield f(torch.randn(3, 4))


def _conjugate_taken(w: torch.Tensor) -> torch.Tensor:
    turn = torch.exp(1j * w)
    return vmap(lambda a: ((a * w) * turn.conj()).real.sum())(torch.arange(3.0)).sum()


def _conjugate_made_inside(w: torch.Tensor) -> torch.Tensor:
    return vmap(lambda a: ((a * w + 0j) * (w + 1j * w * w).conj()).imag.sum())(torch.arange(3.0)).sum()


def _conjugate_without_gradient(w: torch.Tensor) -> torch.Tensor:
    def one(a: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            kept = (w + 1j * w).conj().clone()
        return ((a * w) * kept).real.sum() + ((a * w) * (w * 1j).detach().conj()).imag.sum()

    return vmap(one)(torch.arange(3.0)).sum()


@TABLE.trap(traces=3, hits=9)
def gradients_flow_through_conjugates(compiled: Any) -> Iterator[Any]:
    for change in (_conjugate_taken, _conjugate_made_inside, _conjugate_without_gradient):
        f = compiled(change)
        for _ in ROUNDS:
            w = torch.randn(4, requires_grad=True)
            yield torch.autograd.grad(f(w), w)


@TABLE.trap(traces=1, hits=3)
def conjugates_inside_an_operator_are_resolved(compiled: Any) -> Iterator[Any]:
    """Below a dispatch mode torch leaves them as they are: the recorded call gave another pseudoinverse."""
    f = compiled(vmap(torch.linalg.pinv))
    for _ in ROUNDS:
        yield f(torch.randn(3, 4, 4, dtype=torch.complex128))


@TABLE.trap(traces=3, hits=3)
def the_mode_of_items_ends_with_its_block(compiled: Any) -> Iterator[Any]:
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    def change(x: torch.Tensor, way: str) -> tuple[Any, ...]:
        try:
            with TransformGetItemToIndex():
                y = x + 1
                if way == "raises":
                    raise ValueError(way)
                if way == "reads":
                    y = y + y.sum().item()
        except ValueError:
            y = x - 1
        return y * 2, y[0] * 3, torch._C._len_torch_function_stack()

    f = compiled(change)
    for way in ("", "raises", "reads", "", "raises", "reads"):
        yield f(torch.randn(3, 4), way)


@TABLE.trap(traces=8, hits=0, waits="branch")
def a_branch_in_the_mode_of_items_stays_eager(compiled: Any) -> Iterator[Any]:
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    def change(x: torch.Tensor) -> tuple[Any, ...]:
        with TransformGetItemToIndex():
            y = x + 1
            y = y * 2 if y.sum() > 0 else y - 2
            y[0] += 1
        return y * 2, y[0] * 3, torch._C._len_torch_function_stack()

    f = compiled(change)
    for sign in (1, -1, 1, -1):
        yield f(torch.rand(3, 4) * sign * 9)


@TABLE.trap(traces=2, hits=8)
def systems_of_equations_of_each_sample(compiled: Any) -> Iterator[Any]:
    inverses = compiled(vmap(torch.linalg.inv))
    slopes = compiled(vmap(grad(lambda a, b: torch.linalg.solve(a, b).sin().sum())))
    for step in range(6):
        matrices = torch.randn(3, 4, 4) + 5 * torch.eye(4)
        if step == 2:
            matrices[1] = 0
        for compute in (inverses, lambda a: slopes(a, a[:, 0])):
            try:
                yield compute(matrices)
            except torch.linalg.LinAlgError as error:  # at a value, which the compiled call looks at as eager's does
                yield str(error)


@TABLE.parametrize()
def test_row(trap: Trap) -> None:
    hold(trap)
