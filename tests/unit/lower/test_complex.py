"""Complex numbers by their parts: values, conjugate bits, strides and two orders of gradients, against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import framefuse
from framefuse.api import compiled_function
from framefuse.ir import costs

Program = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]
COMPLEX_CASES: dict[str, Program] = {
    "product": lambda z, w, x: z * w,
    "product with a row": lambda z, w, x: (z * w[:1], w[:, :1].conj() * z.tan()),
    "with reals": lambda z, w, x: z * x + x - 2j * w,
    "from numbers": lambda z, w, x: 2j - z * (1 + 2j) + 1,
    "quotient": lambda z, w, x: z / w,
    "quotient of numbers": lambda z, w, x: x / (z * 2),
    "square": lambda z, w, x: z.square() + w**2,
    "conjugate": lambda z, w, x: (z * w).conj(),
    "view of a conjugate": lambda z, w, x: (z * w).conj()[0],
    "adjoint": lambda z, w, x: (z * w).mH,
    "copy of an adjoint": lambda z, w, x: z.mH * 2,
    "contiguous adjoint": lambda z, w, x: (z * w).mH.contiguous(),
    "resolved": lambda z, w, x: ((z * 2).conj().resolve_conj(), (z * w).resolve_conj(), torch.conj_physical(z * w)),
    "clone of a conjugate": lambda z, w, x: (z * 2).conj().clone(),
    "asked for the bit": lambda z, w, x: z * 2 if z.conj().is_conj() else z,
    "parts": lambda z, w, x: ((z * w).real, (z + w).imag, (z - w).conj().imag),
    "parts of an input": lambda z, w, x: (z.real * 2, z.conj().imag * 3),
    "results that share memory": lambda z, w, x: (lambda y: (y, y.conj(), y.real))(z * w),
    "a conjugate alone": lambda z, w, x: (lambda y: (y.conj(), y.abs()))(z * w),
    "inputs and views of them": lambda z, w, x: (z, z.conj(), z.conj().imag),
    "imaginary part of reals": lambda z, w, x: (x.to(z.dtype) * 1).imag,
    "given to as_tensor": lambda z, w, x: torch.stack(
        [torch.as_tensor(each, device=torch.device("cpu")) for each in (z * w, x.to(z.dtype, copy=False) * w)]
    ) * torch.as_tensor(x, dtype=z.dtype).to("cpu"),
    "magnitude": lambda z, w, x: (z * w).abs() ** 2,
    "angle": lambda z, w, x: (z * w).angle(),
    "exponential": lambda z, w, x: torch.exp(1j * x) * torch.exp(z * 1j),
    "polar": lambda z, w, x: torch.polar(x.abs(), x) * z,
    "one tensor for both parts": lambda z, w, x: torch.complex(x, x) * w,
    "as reals": lambda z, w, x: torch.view_as_real(z * w),
    "as complex": lambda z, w, x: torch.view_as_complex(torch.stack([x, x * 2], -1)) * z,
    "rotary": lambda z, w, x: torch.view_as_real(torch.view_as_complex(torch.view_as_real(z) * 2) * w).flatten(1),
    "stacked": lambda z, w, x: torch.stack([z.conj(), w, x]).permute(1, 0, 2),
    "joined": lambda z, w, x: torch.cat([z.conj(), x], 1).flip(0).roll(1, 0),
    "chosen": lambda z, w, x: torch.where(x > 0, z * 2, w) + torch.where(x > 0, z, 0),
    "sums": lambda z, w, x: ((z * w).sum(), (z * w).mean(1, keepdim=True)),
    "inner product": lambda z, w, x: torch.vdot(z.reshape(-1), w.reshape(-1)),
    "gate": lambda z, w, x: torch.einsum("ab,bc->ac", z[:, :2], w.conj()[:, 1:]),
    "gate by tensordot": lambda z, w, x: torch.tensordot(z[:, :2], w, dims=([1], [0])),
    "product of matrices": lambda z, w, x: (z * 2) @ w.mH,
    "products of the library": lambda z, w, x: torch.kron(z, w) @ torch.kron(w, z).mH,
    "many products of the library": lambda z, w, x: (lambda y: torch.stack([y, y * 2]) @ torch.stack([y.mH, y.mT]))(
        torch.kron(z, w)
    ),
    "linear": lambda z, w, x: torch.nn.functional.linear(torch.kron(z, w), torch.kron(z, z), w.new_ones(4)),
    "linear without a bias": lambda z, w, x: torch.nn.functional.linear(z, w),
    "linear over more dimensions": lambda z, w, x: torch.nn.functional.linear(
        torch.stack([torch.kron(z, w), torch.kron(w, w)]), torch.kron(z, z), w.new_ones(4)
    ),
    "one matrix for many": lambda z, w, x: torch.stack([torch.kron(z, w), torch.kron(w, w)]) @ torch.kron(z, z).mH,
    "Kronecker products": lambda z, w, x: (torch.kron(z * 2, x), torch.kron(z[0], w.conj())),
    "constants": lambda z, w, x: torch.eye(3, dtype=z.dtype) * 2 + torch.ones_like(z)[0] + z.new_zeros(3) + z[0],
    "transposed": lambda z, w, x: z.t() * 2,
    "Fourier": lambda z, w, x: torch.fft.irfft(torch.fft.rfft(x * 2) * 1j, n=3).sin() + torch.fft.fftn(z * w).abs(),
    "library between": lambda z, w, x: (z * w).sqrt() * 2 + torch.sin(z) / w,
    "sections of a conjugate": lambda z, w, x: (z * w).conj().tensor_split(2, 1),
    "detached": lambda z, w, x: (z * w).detach() * w,
}


def written(z: torch.Tensor, w: torch.Tensor, x: torch.Tensor) -> Any:
    state = torch.zeros(3, dtype=z.dtype)
    state[0] = 1
    state = state + z
    state[:, 1:] = w[:, 1:].conj()
    state.mul_(w)
    state += 1j
    return state.abs(), state


COMPLEX_CASES["written"] = written


def look(program: Program, operands: list[torch.Tensor]) -> tuple[Any, list[torch.Tensor | None]]:
    """How the results lie and what they share; their values, gradients and second gradients."""
    results = program(*operands)
    results = results if isinstance(results, tuple) else (results,)
    places = [each.untyped_storage()._cdata for each in (*results, *operands)]
    lies = [
        (each.dtype, each.shape, each.stride(), each.is_conj(), each.is_neg(), each.requires_grad, each._is_view(),
         [each.untyped_storage()._cdata == place for place in places])
        for each in results
    ]  # fmt: skip
    found: list[torch.Tensor | None] = [each.detach().clone() for each in results]
    losses = [(each * (1 - 0.5j)).real.sum() + (each.abs() ** 2).sum() for each in results if each.requires_grad]
    if losses:
        total = torch.stack(losses).sum()
        first = torch.autograd.grad(total, operands, allow_unused=True, create_graph=True)
        again = [(each.abs() ** 2).sum() for each in first if each is not None and each.requires_grad]
        second = torch.autograd.grad(sum(again), operands, allow_unused=True) if again else ()
        found += [each if each is None else each.detach().clone() for each in (*first, *second)]
    return lies, found


@pytest.mark.parametrize("gradients", [False, True], ids=["values", "gradients"])
@pytest.mark.parametrize("factor", [None, -100], ids=["as chosen", "by parts"])
@pytest.mark.parametrize("name", COMPLEX_CASES)
def test_it_is_eager(name: str, factor: int | None, gradients: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    program, dtype = COMPLEX_CASES[name], torch.complex64 if factor is None else torch.complex128
    if factor is not None:
        monkeypatch.setattr(costs, "COMPLEX_SAVED", (factor, factor))
    compiled = framefuse.compile(program)
    for seed in range(3):
        torch.manual_seed(seed)
        operands = [torch.randn(2, 3, dtype=kind) for kind in (dtype, dtype, dtype.to_real())]
        operands = [each.requires_grad_(gradients) for each in operands]
        (eager_lies, eager), (lies, found) = look(program, operands), look(compiled, operands)
        assert lies == eager_lies
        for mine, other in zip(found, eager, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)
    assert compiled_function(compiled).dispatch.hits >= 2


def test_a_lone_product_is_torchs_own() -> None:
    product = framefuse.compile(lambda z, w: z * w)
    operands = [torch.randn(3, dtype=torch.complex64) for _ in range(2)]
    for _ in range(3):
        product(*operands)
    text = str(framefuse.explain(product, *operands))
    assert "mul" in text and "kernel  x" not in text


def test_products_of_matrices_are_trained_without_a_tape() -> None:
    def program(angle: torch.Tensor) -> torch.Tensor:
        turned = torch.exp(1j * angle)[:, None] * torch.eye(6)
        turned = torch.view_as_complex(torch.view_as_real(turned @ turned.mH @ (turned + 1)).sin()) * turned
        return torch.nn.functional.linear(turned, turned * 2, turned[0]).abs().sum()

    compiled = framefuse.compile(program)
    for _ in range(3):
        angle = torch.randn(6, requires_grad=True)
        expected = torch.autograd.grad(program(angle), angle)
        torch.testing.assert_close(torch.autograd.grad(compiled(angle), angle), expected, rtol=1e-4, atol=1e-4)
    (product,) = compiled_function(compiled).products
    names = {getattr(target, "__name__", "") for target in product.stages.library_targets}
    assert "matmul" in names and not any(name.endswith("_taped") for name in names)


def test_a_circuit_is_kernels() -> None:
    @framefuse.compile
    def circuit(angle: torch.Tensor) -> torch.Tensor:
        turn = torch.exp(0.5j * angle)
        gate = torch.stack([torch.stack([turn, turn * 0]), torch.stack([turn * 0, turn.conj()])])
        state = torch.stack([angle.cos(), angle.sin()]).to(torch.complex64)
        state = torch.einsum("ab,b->a", gate, state)
        return (state.conj() * state).real.sum() + state.imag.sum()

    for turn in (0.3, 0.7, 1.1):
        angle = torch.tensor(turn, requires_grad=True)
        circuit(angle).backward()
    text = str(framefuse.explain(circuit, angle))
    assert "1 graph" in text and " calls" not in text and "einsum" not in text


def test_a_magnitude_has_no_slope_at_zero() -> None:
    magnitude = framefuse.compile(lambda z, w: ((z * w).abs() * (z + w).abs()).sum())
    for values in ([1 + 1j, 2j], [0j, 1j], [0j, 0j]):
        z = torch.tensor(values, dtype=torch.complex64, requires_grad=True)
        w = torch.tensor([0j, 1], requires_grad=True)
        mine, = torch.autograd.grad(magnitude(z, w), z)
        eager, = torch.autograd.grad(((z * w).abs() * (z + w).abs()).sum(), z)
        assert torch.equal(mine.isnan(), eager.isnan())
        torch.testing.assert_close(mine, eager)
    assert compiled_function(magnitude).dispatch.hits >= 2


SPECIAL = (0.0, -0.0, 1.0, -2.0, float("inf"), float("-inf"), float("nan"), 1e30)
ARITHMETIC: dict[str, Program] = {
    "product": lambda z, w, x: z * w,
    "product with reals": lambda z, w, x: z * x,
    "sum": lambda z, w, x: z + w,
    "sum with reals": lambda z, w, x: z + x,
    "difference": lambda z, w, x: z - w,
    "quotient": lambda z, w, x: z / w,
    "quotient by reals": lambda z, w, x: z / x,
    "quotient of reals": lambda z, w, x: x / z,
    "magnitude": lambda z, w, x: z.abs(),
    "angle": lambda z, w, x: z.angle(),
    "exponential": lambda z, w, x: z.exp(),
}


@pytest.mark.parametrize("name", ARITHMETIC)
def test_special_values_are_eagers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "COMPLEX_SAVED", (-100, -100))
    program = ARITHMETIC[name]
    compiled = framefuse.compile(program)
    values = torch.tensor([complex(a, b) for a in SPECIAL for b in SPECIAL], dtype=torch.complex128)
    z, w = (each.reshape(-1).contiguous() for each in torch.meshgrid(values, values, indexing="ij"))
    for turned in range(3):
        first, second = z.roll(turned), w.roll(turned)
        operands = first, second, second.real.contiguous()
        mine, eager = compiled(*operands), program(*operands)
        if eager.is_complex():
            mine, eager = torch.view_as_real(mine), torch.view_as_real(eager)
        torch.testing.assert_close(mine, eager, equal_nan=True)
    assert compiled_function(compiled).dispatch.hits >= 2


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_what_lies_otherwise_is_moved_by_kernels(dtype: torch.dtype) -> None:
    def program(z: torch.Tensor) -> torch.Tensor:
        square = z.square()
        with torch.no_grad():
            square.add_(1)
        return square

    fast = framefuse.compile(program)
    for columns in (2, 3, 40, 41, 64):
        z = torch.randint(-4, 4, (columns, columns + 7, 2)).to(dtype.to_real())
        z = torch.view_as_complex(z).t().requires_grad_()
        mine, eager = fast(z), program(z)
        assert torch.equal(mine, eager) and mine.stride() == eager.stride()
    assert fast.hits >= 4


def test_pairs_of_parts_in_another_shape_fix_no_sizes():
    """Where they lie follows from where the complex numbers do, whoever sees the result."""

    def rotated(x, turns):
        numbers = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * turns
        return torch.view_as_real(numbers).flatten(3), torch.view_as_real(turns * 2).reshape(*turns.shape[:-1], -1)

    fast = framefuse.compile(rotated)
    for batch, length in ((2, 16), (2, 16), (2, 17), (3, 5), (4, 40)):
        x, turns = torch.randn(batch, length, 4, 32), torch.randn(length, 1, 16, dtype=torch.complex64)
        for mine, other in zip(fast(x, turns), rotated(x, turns), strict=True):
            assert mine.stride() == other.stride()
            torch.testing.assert_close(mine, other)
    assert fast.hits == 4
    crossed = framefuse.compile(lambda x: torch.view_as_real(x.mT).flatten(0, 1))
    for sizes in ((4, 6), (4, 6), (5, 7), (1, 6), (4, 1)):
        x = torch.randn(sizes, dtype=torch.complex64)
        mine, other = crossed(x), torch.view_as_real(x.mT).flatten(0, 1)
        assert mine.stride() == other.stride() and torch.equal(mine, other)
        assert (mine.data_ptr() == x.data_ptr()) is (other.data_ptr() == x.data_ptr())


LAYOUTS = {
    "expanded": lambda: torch.randn(3, 5, 1, dtype=torch.complex64).expand(3, 5, 7),
    "expanded rows": lambda: torch.randn(1, 5, 7, dtype=torch.complex64).expand(3, 5, 7),
    "every other": lambda: torch.randn(3, 5, 14, dtype=torch.complex64)[..., ::2],
    "rows apart": lambda: torch.randn(3, 10, 7, dtype=torch.complex64)[:, ::2],
    "part": lambda: torch.randn(3, 5, 9, dtype=torch.complex64)[..., 1:8].transpose(0, 1),
    "expanded and apart": lambda: torch.randn(3, 10, 1, dtype=torch.complex64)[:, ::2].expand(3, 5, 7),
}


@pytest.mark.parametrize("conjugate", [False, True])
@pytest.mark.parametrize("name", LAYOUTS)
def test_parts_of_numbers_with_gaps_or_expanded_are_views_of_them(name, conjugate):
    def function(x):
        return (x * 2).sum(1), (x.conj() * x).real.mean(0), x.sum(0, keepdim=True).sum(2), x.abs() + 1

    fast = framefuse.compile(function)
    for turn in range(4):
        torch.manual_seed(turn)
        x = LAYOUTS[name]()
        x = x.conj() if conjugate else x
        for found, expected in zip(fast(x), function(x), strict=True):
            assert found.stride() == expected.stride()
            torch.testing.assert_close(found, expected)
    assert conjugate or framefuse.explain(fast).hits == 3
