"""Products of matrices of 16-bit floats by those of 32 bits, distances, and attention layers as torch writes them."""

from __future__ import annotations

import math
import operator

import torch
import torch.nn.functional as F
from torch import Tensor

from framefuse.aot.forms.registry import Given, form, walked
from framefuse.ir.values import Function, Value

NARROW = (torch.bfloat16, torch.float16)

walked(F.multi_head_attention_forward, F.local_response_norm)


def _is_narrow(given: Given) -> bool:
    return isinstance(given["input"], Tensor) and given["input"].dtype in NARROW and given["input"].is_cpu


def _is_multiplied(given: Given) -> bool:
    left, right = given["input"], given["other"]
    if not isinstance(left, Tensor) or not isinstance(right, Tensor):
        return False
    whole = not left.dtype.is_floating_point and not left.dtype.is_complex
    narrow = left.dtype in NARROW and left.is_cpu
    return narrow or left.dtype.is_complex or (whole and left.dim() > 1 and right.dim() > 1)


def _widened(function: Function) -> Function:
    """``function`` with tensors of 16-bit floats as 32-bit ones, and its result as theirs."""

    def widened(input: Tensor, *args: Value, **kwargs: Value) -> Tensor:
        wide = [part.to(torch.float32) if isinstance(part, Tensor) and part.dtype in NARROW else part for part in args]
        named = {
            name: part.to(torch.float32) if isinstance(part, Tensor) and part.dtype in NARROW else part
            for name, part in kwargs.items()
        }
        result: Tensor = function(input.to(torch.float32), *wide, **named)
        return result.to(input.dtype)

    return widened


def _by_parts(function: Function, input: Tensor, other: Tensor) -> Tensor:
    """A product of complex numbers by those of their parts."""
    a, b, c, d = (part.contiguous() for part in (input.real, input.imag, other.real, other.imag))
    return torch.complex(function(a, c) - function(b, d), function(a, d) + function(b, c))


def _multiplied(function: Function) -> Function:
    """A product of 16-bit floats, one of complex numbers by their parts, or one of integers, which wrap as in torch."""
    widened = _widened(function)

    def multiplied(input: Tensor, other: Tensor) -> Tensor:
        if input.dtype in NARROW:
            result: Tensor = widened(input, other)
            return result
        if input.is_complex():
            return _by_parts(function, input, other)
        return (input.unsqueeze(-1) * other.unsqueeze(-3)).sum(-2).to(input.dtype)

    return multiplied


PRODUCTS: tuple[Function, ...] = (
    operator.matmul, torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.mm, torch.Tensor.mm,
    torch.bmm, torch.Tensor.bmm,
)  # fmt: skip
LIKE_PRODUCTS: tuple[Function, ...] = (
    torch.mv, torch.Tensor.mv, torch.dot, torch.Tensor.dot, F.linear, torch.addmm, torch.Tensor.addmm, torch.baddbmm,
    F.conv1d, F.conv2d, F.scaled_dot_product_attention,
)  # fmt: skip
for _product in PRODUCTS:
    form(_product, where=_is_multiplied)(_multiplied(_product))
for _product in LIKE_PRODUCTS:
    form(_product, where=_is_narrow)(_widened(_product))


@form(torch.addbmm, torch.Tensor.addbmm)
def addbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Value = 1, alpha: Value = 1) -> Tensor:
    total: Tensor = torch.bmm(batch1, batch2).sum(0) * alpha
    return total if beta == 0 else torch.add(total, input * beta)


@form(torch.addr, torch.Tensor.addr)
def addr(input: Tensor, vec1: Tensor, vec2: Tensor, *, beta: Value = 1, alpha: Value = 1) -> Tensor:
    product: Tensor = vec1.unsqueeze(-1) * vec2 * alpha
    return product if beta == 0 else torch.add(product, input * beta)


@form(torch.Tensor.baddbmm, where=lambda given: given["input"].dtype not in NARROW)
def baddbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Value = 1, alpha: Value = 1) -> Tensor:
    product: Tensor = torch.bmm(batch1, batch2) * alpha
    return product if beta == 0 else torch.add(product, input * beta)


@form(torch.tensordot)
def tensordot(a: Tensor, b: Tensor, dims: Value = 2, out: Value = None) -> Tensor:
    if isinstance(dims, int):
        left, right = list(range(a.dim() - dims, a.dim())), list(range(dims))
    else:
        left, right = ([dims] if isinstance(dims, int) else [*dims] for dims in dims)
        left, right = [dim % a.dim() for dim in left], [dim % b.dim() for dim in right]
    rows, columns = [d for d in range(a.dim()) if d not in left], [d for d in range(b.dim()) if d not in right]
    shape = [a.shape[d] for d in rows] + [b.shape[d] for d in columns]
    inner = math.prod(a.shape[d] for d in left)
    return torch.mm(
        a.permute(rows + left).reshape(-1, inner), b.permute(right + columns).reshape(inner, -1)
    ).reshape(shape)  # fmt: skip


@form(torch.linalg.multi_dot, torch.chain_matmul)
def multi_dot(*tensors: Value) -> Tensor:
    factors = tensors[0] if len(tensors) == 1 and not isinstance(tensors[0], Tensor) else tensors
    product: Tensor = factors[0]
    for factor in factors[1:]:
        product = torch.matmul(product, factor)
    return product


def _is_pairwise(given: Given) -> bool:
    """Whether pairs of operands, one after the other, give the result: each letter once in a word, no ellipsis; or two
    are complex.
    """
    equation, operands = given["equation"], given["operands"]
    if len(operands) == 2 and all(isinstance(operand, Tensor) and operand.is_complex() for operand in operands):
        return isinstance(equation, str)
    if not isinstance(equation, str) or len(operands) < 3 or "." in equation:
        return False
    words = equation.replace(" ", "").replace("->", ",").split(",")
    return all(len(set(word)) == len(word) for word in words)


@form(torch.einsum, where=_is_pairwise)
def einsum(equation: str, *operands: Tensor) -> Tensor:
    """Of three operands and more, or of the parts of two."""
    if len(operands) == 2:
        return _by_parts(lambda left, right: torch.einsum(equation, left, right), *operands)
    given, arrow, output = equation.replace(" ", "").partition("->")
    words = given.split(",")
    if not arrow:
        output = "".join(letter for letter in sorted(set(given) - {","}) if given.count(letter) == 1)
    word, result = words[0], operands[0]
    for number in range(1, len(words)):
        wanted = output + "".join(words[number + 1 :])
        last = number == len(words) - 1
        kept = output if last else "".join(letter for letter in dict.fromkeys(word + words[number]) if letter in wanted)
        result = torch.einsum(f"{word},{words[number]}->{kept}", result, operands[number])
        word = kept
    return result


@form(F.bilinear)
def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Value = None) -> Tensor:
    wide = torch.matmul(input1, weight.permute(1, 0, 2).flatten(1)).unflatten(-1, [weight.shape[0], weight.shape[2]])
    result = (wide * input2.unsqueeze(-2)).sum(-1)
    return result if bias is None else torch.add(result, bias)


@form(torch.linalg.matrix_power, torch.matrix_power, torch.Tensor.matrix_power)
def matrix_power(A: Tensor, n: int) -> Tensor:
    """Of any whole number, by squares."""
    if n == 0:
        return torch.eye(A.shape[-1], dtype=A.dtype).expand(A.shape).clone()
    base = A if n > 0 else torch.linalg.inv(A)
    left, product = abs(n), None
    while left:
        if left % 2:
            product = base if product is None else torch.matmul(product, base)
        left //= 2
        base = torch.matmul(base, base) if left else base
    assert product is not None
    return product.clone() if n == 1 else product


@form(F.pdist)
def pdist(input: Tensor, p: float = 2.0) -> Tensor:
    """Of so many rows as were recorded."""
    return torch.cat([cdist(input[k : k + 1], input[k + 1 :], p).reshape(-1) for k in range(input.shape[0])])


@form(torch.cdist)
def cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: Value = None) -> Tensor:
    apart = (x1.unsqueeze(-2) - x2.unsqueeze(-3)).abs()
    if p == 2.0:
        return (apart * apart).sum(-1).sqrt()
    if p == 1.0:
        return apart.sum(-1)
    if p == float("inf"):
        return apart.amax(-1)
    return (apart != 0).to(x1.dtype).sum(-1) if p == 0 else apart.pow(p).sum(-1).pow(1.0 / p)


@form(torch.kron, torch.Tensor.kron)
def kron(input: Tensor, other: Tensor) -> Tensor:
    rank = max(input.dim(), other.dim())
    left = input.reshape([1] * (rank - input.dim()) + list(input.shape))
    right = other.reshape([1] * (rank - other.dim()) + list(other.shape))
    for dim in range(rank):
        left, right = left.unsqueeze(2 * dim + 1), right.unsqueeze(2 * dim)
    product = left * right
    for dim in range(rank):
        product = product.flatten(dim, dim + 1)
    return product


def _hidden(mask: Tensor, mask_type: int) -> Tensor:
    """What a mask hides of (batch, head, row, column): those places of it that are no zero."""
    away = mask if mask.dtype is torch.bool else mask != 0
    return away[:, None, None, :] if mask_type == 1 else away[None, None] if mask_type == 0 else away


@form(torch._native_multi_head_attention, where=lambda given: not given["query"].is_nested)
def attention(
    query: Tensor, key: Tensor, value: Tensor, embed_dim: int, num_head: int, qkv_weight: Tensor, qkv_bias: Value,
    proj_weight: Tensor, proj_bias: Value, mask: Value = None, need_weights: bool = True,
    average_attn_weights: bool = True, mask_type: Value = None,
) -> tuple[Tensor, Value]:  # fmt: skip
    """Of several heads; rows of a batch come first."""
    heads = []
    for number, part in enumerate((query, key, value)):
        weight = qkv_weight.narrow(0, number * embed_dim, embed_dim)
        bias = None if qkv_bias is None else qkv_bias.narrow(0, number * embed_dim, embed_dim)
        rows = F.linear(part, weight, bias)
        heads.append(rows.unflatten(-1, (num_head, embed_dim // num_head)).transpose(1, 2))
    weights: Value = None
    if mask is None and not need_weights:
        mixed = F.scaled_dot_product_attention(heads[0], heads[1], heads[2])
    else:
        scores = torch.matmul(heads[0], heads[1].transpose(-2, -1)) / math.sqrt(embed_dim // num_head)
        if mask is not None:
            scores = scores.masked_fill(_hidden(mask, mask_type), -torch.inf)
        weights = scores.softmax(-1)
        mixed = torch.matmul(weights, heads[2])
    result = F.linear(mixed.transpose(1, 2).flatten(2), proj_weight, proj_bias)
    if not need_weights:
        return result, None
    return result, weights.mean(1) if average_attn_weights else weights


@form(torch._transformer_encoder_layer_fwd, where=lambda given: not given["src"].is_nested)
def encoder_layer(
    src: Tensor, embed_dim: int, num_heads: int, qkv_weight: Tensor, qkv_bias: Value, proj_weight: Tensor,
    proj_bias: Value, use_gelu: bool, norm_first: bool, eps: float, norm_weight_1: Tensor, norm_bias_1: Value,
    norm_weight_2: Tensor, norm_bias_2: Value, ffn_weight_1: Tensor, ffn_bias_1: Value, ffn_weight_2: Tensor,
    ffn_bias_2: Value, mask: Value = None, mask_type: Value = None,
) -> Tensor:  # fmt: skip
    """A layer in evaluation, as torch's own fast path has it."""
    size = (embed_dim,)
    read = F.layer_norm(src, size, norm_weight_1, norm_bias_1, eps) if norm_first else src
    src = src + attention(
        read, read, read, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, False,
        mask_type=mask_type,
    )[0]  # fmt: skip
    src = src if norm_first else F.layer_norm(src, size, norm_weight_1, norm_bias_1, eps)
    read = F.layer_norm(src, size, norm_weight_2, norm_bias_2, eps) if norm_first else src
    hidden = F.linear(read, ffn_weight_1, ffn_bias_1)
    hidden = F.gelu(hidden) if use_gelu else F.relu(hidden)
    src = src + F.linear(hidden, ffn_weight_2, ffn_bias_2)
    return src if norm_first else F.layer_norm(src, size, norm_weight_2, norm_bias_2, eps)
