"""Programs that choose among torch's kernels of attention, inside compiled code and around it."""

from __future__ import annotations

from typing import Any

import torch
from tests.traps.trap import Table, Trap, hold
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

TABLE = Table()
trap = TABLE.trap
ALLOWED = torch.backends.cuda


def choice() -> Any:
    """What torch is to choose from now."""
    return ALLOWED.flash_sdp_enabled(), ALLOWED.math_sdp_enabled(), torch._C._get_sdp_priority_order()


def queries(seed: int, rows: int = 5) -> torch.Tensor:
    return torch.randn(2, 3, rows, 8, generator=torch.Generator().manual_seed(seed))


def called(compiled: Any, function: Any, count: int = 5) -> Any:
    f = compiled(function)
    for seed in range(count):
        yield f(queries(seed, 5 + seed % 2)), choice()


@trap(traces=2, hits=3)
def a_kernel_for_one_call(compiled):
    def f(q):
        with sdpa_kernel(SDPBackend.MATH):
            y = F.scaled_dot_product_attention(q, q, q)
        return F.scaled_dot_product_attention(y, q, q) + 1

    yield from called(compiled, f)


@trap(traces=2, hits=4)
def second_gradients_which_only_one_kernel_has(compiled):
    def f(q):
        with sdpa_kernel(SDPBackend.MATH):
            return F.scaled_dot_product_attention(q, q, q).tanh()

    f = compiled(f)
    for seed in range(5):
        q = queries(seed).requires_grad_()
        (gradient,) = torch.autograd.grad(f(q).sum(), q, create_graph=True)
        yield torch.autograd.grad(gradient.square().sum(), q)[0].contiguous()


@trap(traces=3, hits=6)
def second_gradients_where_the_caller_chooses(compiled):
    f = compiled(lambda q: F.scaled_dot_product_attention(q, q, q).tanh())
    for seed in range(4):
        q = queries(seed).requires_grad_()
        yield torch.autograd.grad(f(q).sum(), q)[0].contiguous()
    with sdpa_kernel(SDPBackend.MATH):
        for seed in range(4):
            q = queries(seed).requires_grad_()
            (gradient,) = torch.autograd.grad(f(q).sum(), q, create_graph=True)
            yield torch.autograd.grad(gradient.square().sum(), q)[0].contiguous()


@trap(traces=4, hits=3)
def a_break_where_a_kernel_is_chosen(compiled):
    def f(q):
        with sdpa_kernel([SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION]):
            y = F.scaled_dot_product_attention(q, q, q)
            seen = choice(), y.sum().item() > 1e9
            return F.scaled_dot_product_attention(y, q, q), seen

    yield from called(compiled, f)


@trap(traces=2, hits=3)
def an_order_of_kernels(compiled):
    def f(q):
        with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], set_priority=True):
            return F.scaled_dot_product_attention(q, q, q) * 2, torch._C._get_sdp_priority_order()

    yield from called(compiled, f)


@trap(traces=2, hits=3)
def a_choice_that_stays(compiled):
    def f(q):
        ALLOWED.enable_flash_sdp(False)
        return F.scaled_dot_product_attention(q, q, q)

    try:
        yield from called(compiled, f)
    finally:
        ALLOWED.enable_flash_sdp(True)


@trap(traces=4, hits=4)
def a_choice_that_turns_at_each_call(compiled):
    def f(q):
        ALLOWED.enable_flash_sdp(not ALLOWED.flash_sdp_enabled())
        return F.scaled_dot_product_attention(q, q, q) + ALLOWED.flash_sdp_enabled()

    try:
        yield from called(compiled, f, 8)
    finally:
        ALLOWED.enable_flash_sdp(True)


@trap(traces=2, hits=3)
def one_inside_the_other(compiled):
    def f(q):
        with sdpa_kernel(SDPBackend.MATH):
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                y, inner = F.scaled_dot_product_attention(q, q, q), choice()
            return F.scaled_dot_product_attention(y, q, q), inner, choice()

    yield from called(compiled, f)


@trap(traces=2, hits=3)
def random_numbers_of_the_chosen_kernel(compiled):
    def f(q):
        with sdpa_kernel(SDPBackend.MATH):
            return F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)

    f = compiled(f)
    for seed in range(5):
        torch.manual_seed(seed)
        yield f(queries(seed)), torch.rand(3)


@TABLE.parametrize()
def test_kernels_of_attention(trap: Trap) -> None:
    hold(trap)
