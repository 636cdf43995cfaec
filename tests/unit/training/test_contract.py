"""Gradients of compiled functions keep eager's contract: what accumulates, what is None, what raises, any order."""

import weakref

import pytest
import torch
from tests.unit.training.side_by_side import backwards, compare, leaf, state
from torch import nn
from torch.utils.checkpoint import checkpoint

import framefuse


def square():
    return leaf(3, 3), leaf(3, 3)


def pair():
    return leaf(3), leaf(3)


# ---- which gradients come --------------------------------------------------------------------------------------------


def test_an_input_that_is_not_used_has_no_gradient():
    assert backwards(compare(lambda x, w, u: x * w, lambda: (leaf(3), leaf(3), leaf(3)))) >= 2


def test_only_one_of_two_results_is_used():
    found = compare(lambda x, w: (x * 2, w.sin()), pair, lambda out, args: out[0].sum().backward())
    assert backwards(found) >= 2


def test_gradients_accumulate_over_a_kept_graph():
    def after(out, args):
        out.sum().backward(retain_graph=True)
        out.sum().backward()

    compare(lambda x, w: torch.tanh(x @ w), square, after)


def test_a_freed_graph_raises_eagers_error():
    def after(out, args):
        out.sum().backward()
        out.sum().backward()

    compare(lambda x, w: torch.tanh(x @ w), square, after)


def test_gradients_of_some_inputs_only():
    compare(lambda x, w: torch.tanh(x @ w), square, lambda out, args: torch.autograd.grad(out.sum(), [args[1]]))
    compare(
        lambda x, w, u: torch.tanh(x @ w),
        lambda: (*square(), leaf(2)),
        lambda out, args: torch.autograd.grad(out.sum(), args, allow_unused=True),
    )


def test_flags_that_change_are_followed():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    compiled = framefuse.compile(model)
    for _ in range(3):
        compiled(torch.randn(2, 3)).sum().backward()
    assert model[0].weight.grad is None and model[2].weight.grad is not None
    model[0].requires_grad_(True)
    model[2].requires_grad_(False)
    model.zero_grad()
    for _ in range(2):
        compiled(torch.randn(2, 3)).sum().backward()
    assert model[0].weight.grad is not None and model[2].weight.grad is None
    assert state(compiled).dispatch.hits >= 3


def test_gradient_mode_outside_decides():
    compiled = framefuse.compile(lambda x, w: x * w + 1)
    for turn in range(6):
        with torch.set_grad_enabled(turn % 2 == 0):
            assert compiled(leaf(3), leaf(3)).requires_grad == (turn % 2 == 0)
    assert state(compiled).dispatch.hits == 4
    with torch.inference_mode():
        assert compiled(leaf(3), leaf(3)).is_inference()


def test_a_view_made_without_gradients_is_a_leaf_of_its_own():
    def returned(x):
        with torch.no_grad():
            return x.unsqueeze(0)

    def read(x):
        with torch.no_grad():
            y = x.unsqueeze(0)
        return y * 2

    def within(x):
        with torch.no_grad():
            y = x.unsqueeze(0) + 1
        return y * x

    for function, compiles in ((returned, True), (read, False), (within, True)):
        compiled = framefuse.compile(function)
        for _ in range(3):
            x = torch.randn(3, requires_grad=True)
            results = [f(x) for f in (function, compiled)]
            assert [(r.requires_grad, r.is_leaf, r.grad_fn is None) for r in results[:1]] == [
                (r.requires_grad, r.is_leaf, r.grad_fn is None) for r in results[1:]
            ]
            found = [torch.autograd.grad(r.sum(), x, allow_unused=True)[0] for r in results]
            assert (found[0] is None) == (found[1] is None)
            if found[0] is not None:
                torch.testing.assert_close(*found)
        assert (state(compiled).dispatch.hits == 2) is compiles


@pytest.mark.parametrize("leaves", [False, True])
def test_a_view_whose_memory_was_written_behind_it_is_given_up_as_under_eager(leaves):
    def function(x):
        first, *_ = x.unbind(0)
        with torch.no_grad():
            x.add_(1)
        return x, first if leaves else first.shape

    compiled = framefuse.compile(function)
    for _ in range(3):
        x = torch.randn(2, 3, requires_grad=True)
        before = x.detach().clone()
        found, first = compiled(x)
        assert found is x
        torch.testing.assert_close(x.detach(), before + 1)
        if leaves:
            with pytest.raises(RuntimeError, match="its base or another view of its base has been modified"):
                first.grad_fn
    assert state(compiled).dispatch.hits == 2


@pytest.mark.parametrize("inside", [torch.no_grad, torch.enable_grad])
def test_gradient_mode_inside_decides(inside):
    def function(x, w):
        with inside():
            mean = (x * w).mean()
        return x * w - mean, mean

    compare(function, pair, lambda out, args: out[0].sum().backward())


def test_gradients_enabled_inside_a_function_without():
    @torch.no_grad()
    def function(x, w):
        doubled = x * 2
        with torch.enable_grad():
            product = x * w
        return doubled, product

    compare(function, pair, lambda out, args: out[1].sum().backward())


def test_detach_cuts_the_gradient():
    compare(lambda x, w: (x * w).detach() * x + w, pair)


def test_sizes_that_change_compile_nothing():
    compiled = framefuse.compile(lambda x, w: torch.tanh(x @ w).mean(0))
    for rows in (3, 5, 7, 9):
        x, w = leaf(rows, 4), leaf(4, 2)
        compiled(x, w).sum().backward()
        other, weight = x.detach().requires_grad_(), w.detach().requires_grad_()
        torch.tanh(other @ weight).mean(0).sum().backward()
        torch.testing.assert_close(x.grad, other.grad)
        torch.testing.assert_close(w.grad, weight.grad)
    (product,) = state(compiled).products
    (derivative,) = product.stages.derivatives
    assert len(derivative.backward.dispatch.entries) == 1


# ---- any order -------------------------------------------------------------------------------------------------------


def test_a_gradient_penalty():
    def after(out, args):
        (gradient,) = torch.autograd.grad(out.sum(), [args[0]], create_graph=True)
        (gradient**2).sum().backward()
        return gradient.detach()

    assert backwards(compare(lambda x, w: torch.tanh(x @ w).pow(2), square, after)) >= 2


def test_a_third_derivative():
    def after(out, args):
        found = [out]
        for _ in range(3):
            found += torch.autograd.grad(found[-1].sum(), args, create_graph=True)
        return found

    compare(lambda x: torch.sin(x) * x**3, lambda: (leaf(5),), after)


def test_a_hessian_vector_product():
    def after(out, args):
        gradients = torch.autograd.grad(out, args, create_graph=True)
        return torch.autograd.grad(gradients, args, [torch.ones_like(arg) for arg in args])

    compare(lambda x, w: nn.functional.gelu(x @ w).sum(), square, after)


def test_an_inner_loop_that_is_differentiated():
    def function(x, w):
        for _ in range(2):
            loss = (x @ w).tanh().pow(2).sum()
            (gradient,) = torch.autograd.grad(loss, [w], create_graph=True)
            w = w - 0.1 * gradient
        return (x @ w).sum()

    compare(function, square)


def test_results_that_lead_to_results():
    def function(x, w):
        hidden = torch.tanh(x @ w)
        top = hidden.sin() * w
        return hidden, top, (top * hidden).sum()

    def after(out, args):
        inner = torch.autograd.grad(out[2], [out[0], out[1], args[0]], retain_graph=True)
        out[0].retain_grad()
        (out[2] + out[1].sum()).backward()
        return *inner, out[0].grad

    assert backwards(compare(function, square, after)) >= 8

    def again(out, args):
        (gradient,) = torch.autograd.grad(out[2], [out[0]], create_graph=True)
        (gradient.pow(2).sum() + out[1].sum()).backward()

    compare(function, square, again)


def test_gradients_asked_for_inside():
    def function(x, w):
        loss = (x * w).pow(2).sum()
        (gradient,) = torch.autograd.grad(loss, [x], create_graph=True)
        return loss + gradient.pow(2).sum()

    compare(function, pair)


def test_transforms_over_a_compiled_function():
    compiled = framefuse.compile(lambda x: (x.sin() * x).sum())
    x = torch.randn(3)
    for _ in range(3):
        compiled(x)
        torch.testing.assert_close(torch.func.grad(compiled)(x), x.cos() * x + x.sin())
        assert torch.func.vmap(compiled)(torch.randn(4, 3)).shape == (4,)
        _, tangent = torch.func.jvp(compiled, (x,), (torch.ones(3),))
        torch.testing.assert_close(tangent, (x.cos() * x + x.sin()).sum())


def test_a_dual_number():
    compiled = framefuse.compile(lambda x: x.sin() * 2)
    x = torch.randn(3)
    for _ in range(3):
        compiled(x)
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, torch.ones(3))
            tangent = torch.autograd.forward_ad.unpack_dual(compiled(dual)).tangent
        torch.testing.assert_close(tangent, x.cos() * 2)


# ---- memory that is shared or written --------------------------------------------------------------------------------


def test_writing_to_what_eager_saved_is_eagers_error():
    def write_input(out, args):
        with torch.no_grad():
            args[1].mul_(2)
        out.sum().backward()

    def write_output(out, args):
        out.mul_(2)
        out.sum().backward()

    compare(lambda x, w: torch.tanh(x * w), pair, write_input)
    compare(lambda x: torch.exp(x), lambda: (leaf(3),), write_output)


def test_writing_to_what_eager_did_not_save_is_allowed():
    def after(out, args):
        with torch.no_grad():
            args[1].mul_(2)
        out.mul_(2)
        out.sum().backward()

    compare(lambda x, w: x + w, pair, after)
    compare(lambda x, w: torch.sigmoid(x) + w, pair, after)


def test_views_that_are_returned():
    compare(lambda x: x.t(), square_one)

    def function(x):
        doubled = x * 2
        return doubled, doubled[0], doubled.detach()

    def write(out, args):
        out[1].mul_(3)
        (out[0] ** 2).sum().backward()

    compare(function, square_one, lambda out, args: (out[0].sum() + out[1].sum()).backward())
    compare(function, square_one, write)


def square_one():
    return (leaf(3, 3),)


def test_inputs_that_are_written():
    def whole(x, w):
        x.mul_(w)
        return x + 1

    def part(x, w):
        x[0].mul_(w)
        return x.sum()

    def after(out, args):
        (out.sum() + args[0].sum()).backward()

    compare(whole, lambda: (leaf(3) * 1, leaf(3)), after)
    compare(whole, lambda: (torch.randn(3), leaf(3)), after)
    compare(part, lambda: (leaf(3, 4) * 1, leaf(4)), after)


# ---- hooks and other ways in -----------------------------------------------------------------------------------------


def test_hooks_on_tensors():
    def inside(x, w):
        product = x * w
        product.register_hook(lambda gradient: gradient * 3)
        return product.sum()

    def on_result(out, args):
        out.register_hook(lambda gradient: gradient * 3)
        out.sum().backward()

    def on_input(out, args):
        args[1].register_hook(lambda gradient: gradient * 5)
        out.sum().backward()

    compare(inside, pair)
    compare(lambda x, w: x * w, pair, on_result)
    compare(lambda x, w: x @ w, square, on_input)


def test_hooks_on_modules():
    model, seen = nn.Sequential(nn.Linear(3, 4), nn.ReLU()), []
    model[0].register_full_backward_hook(lambda module, inner, outer: seen.append(outer[0].shape))
    compiled = framefuse.compile(model)
    for _ in range(6):
        compiled(leaf(2, 3)).sum().backward()
    assert seen == [(2, 4)] * 6


def test_gradients_of_intermediate_values():
    def function(x, w):
        product = x * w
        product.retain_grad()
        return product, product.sum()

    def after(out, args):
        out[1].backward()
        return out[0].grad

    compare(function, pair, after)


def test_hooks_on_saved_tensors_see_all_of_them():
    compiled, seen = framefuse.compile(lambda x, w: torch.tanh(x @ w)), []
    for _ in range(3):
        before = len(seen)
        x, w = square()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: seen.append(t) or t.clone(), lambda t: t):
            out = compiled(x, w)
        assert len(seen) >= before + 3
        out.sum().backward()
        other, weight = x.detach().requires_grad_(), w.detach().requires_grad_()
        torch.tanh(other @ weight).sum().backward()
        torch.testing.assert_close(x.grad, other.grad)
    assert state(compiled).dispatch.declines == 2  # hooks see eager's nodes
    compiled(*square())
    assert state(compiled).dispatch.declines == 2


# A checkpoint that keeps no tensors hooks into what is saved: calls within run eagerly.
ALL_EAGER = pytest.param(False, False, marks=pytest.mark.first_call)


@pytest.mark.parametrize(("warm", "reentrant"), [ALL_EAGER, (False, True), (True, False), (True, True)])
def test_a_compiled_model_in_a_checkpoint(reentrant, warm):
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.GELU(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2))
    compiled = framefuse.compile(model)
    for _ in range(3):
        if warm:
            compiled(square()[0]).sum().backward()
        x = square()[0]
        checkpoint(compiled, x, use_reentrant=reentrant).sum().backward()
        other = x.detach().requires_grad_()
        model(other).sum().backward()
        torch.testing.assert_close(x.grad, other.grad)


def test_anomaly_mode_runs_eagerly():
    compiled = framefuse.compile(lambda x, w: torch.sqrt(x * w).sum())
    for _ in range(2):
        compiled(torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True))
    with torch.autograd.set_detect_anomaly(True), pytest.raises(RuntimeError, match="MulBackward0"):
        compiled(torch.zeros(3, requires_grad=True), torch.zeros(3, requires_grad=True)).backward()


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_regions(reentrant):
    def function(x, w):
        return checkpoint(lambda a: torch.tanh(a @ w).sin(), x, use_reentrant=reentrant).sum()

    compare(function, square)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x.sin() * factor

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * x.cos() * ctx.factor * 7, None  # as nobody else would have it


def test_custom_functions_have_their_own_backward():
    def function(x, w):
        return Scaled.apply((x * w).exp(), 3).tanh().sum()

    found = compare(function, pair)
    assert len(found.products) == 1 and not found.eager_calls


# ---- between breaks --------------------------------------------------------------------------------------------------


def test_gradients_flow_through_breaks():
    def branch(x, w):
        product = torch.tanh(x * w)
        if product.sum() > 0:
            product = product * 2
        return product.sum()

    def loop(x, w):
        while x.norm() > 1:
            x = x * w
        return x.sum()

    compare(branch, pair, calls=8)
    compare(loop, lambda: (leaf(3) * 4, (torch.rand(3) * 0.5).requires_grad_()), calls=6)


def test_backward_inside():
    def function(x, w):
        loss = (x * w).pow(2).sum()
        loss.backward()
        return loss.detach() * 2

    compare(function, pair, lambda out, args: None)


def test_nothing_lives_longer_than_eagers():
    compiled = framefuse.compile(lambda x, w: torch.tanh(x @ w))
    for turn in range(4):
        x, w = square()
        out = compiled(x, w)
        if turn % 2:
            out.sum().backward()
        held = weakref.ref(x), weakref.ref(out)
        del x, w, out
        assert [ref() for ref in held] == [None, None], turn


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("tracked", [False, True])
def test_batch_norm_is_differentiated_twice(affine, tracked):
    norm = torch.nn.BatchNorm1d(4, affine=affine, track_running_stats=tracked).double()
    compiled = framefuse.compile(lambda x: torch.tanh(norm(x)))
    for _ in range(3):
        x = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
        found = []
        for function in (compiled, lambda x: torch.tanh(norm(x))):
            (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
            found.append(torch.autograd.grad((first * first).sum(), (x, *norm.parameters()), allow_unused=True))
        torch.testing.assert_close(*found)
    assert state(compiled).dispatch.hits == 2


def test_writing_inside_to_what_eager_saved_is_eagers_error():
    def function(x):
        hidden = x.exp()
        doubled = hidden * 2
        hidden.add_(1)
        return doubled.sum()

    compiled = framefuse.compile(function, options={"check": True})
    for _ in range(4):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            compiled(leaf(3)).backward()


def test_gradients_flow_behind_a_step_where_they_are_off():
    """The second stretch begins with gradients off; what it computes after they are on again requires grad."""

    def run(x):
        with torch.no_grad():
            scale = x.sum().item()
        return (x * scale).sin().sum()

    fast = framefuse.compile(run)
    for number in range(4):
        torch.manual_seed(number)
        x = torch.randn(3, requires_grad=True)
        found, expected = fast(x), run(x)
        assert found.requires_grad
        torch.testing.assert_close(torch.autograd.grad(found, x), torch.autograd.grad(expected, x))
        assert torch.is_grad_enabled()


def test_a_node_has_the_name_of_eagers():
    def run(x):
        return x.sin().sum()

    fast = framefuse.compile(run)
    found = [fast(torch.randn(3, requires_grad=True)) for _ in range(2)][1]
    assert found.grad_fn.name() == run(torch.randn(3, requires_grad=True)).grad_fn.name() == "SumBackward0"


def test_a_node_of_several_has_the_name_of_the_function_alone():
    def run(x):
        y = x.exp()
        return y, y.sin()

    fast = framefuse.compile(run)
    found = [fast(torch.randn(3, requires_grad=True)) for _ in range(2)][1]
    assert {each.grad_fn.name() for each in found} <= {"runBackward", "ExpBackward0", "SinBackward0"}


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_written_result_is_told_by_the_name_of_eagers_node(place: int):
    def run(x):
        return x.exp(), x.sigmoid(), x.max(1).values

    def told(function, number):
        results = function(torch.randn(3, 4, generator=torch.Generator().manual_seed(number)).requires_grad_())
        with torch.no_grad():
            results[place].add_(1)
        try:
            return torch.autograd.backward([each.sum() for each in results])
        except RuntimeError as error:
            return str(error)

    fast = framefuse.compile(run)
    assert [told(fast, number) for number in range(3)] == [told(run, number) for number in range(3)]
