"""Library calls with rules of their own: which calls the gradients make, and that they are eager's."""

import pytest
import torch
from tests.unit.autodiff.gradient_graphs import check_lowered
from torch.nn import functional as F

import framefuse


def rand(*shape, dtype=torch.float64):
    torch.manual_seed(sum(shape))
    return torch.randn(shape, dtype=dtype)


def calls(backward):
    return [node.attr("name") for node in backward.nodes if node.op == "library"]


CONVOLUTIONS = {
    "conv1d": (F.conv1d, {"stride": 2, "padding": 1}, (2, 4, 9), (6, 4, 3)),
    "conv2d": (F.conv2d, {"padding": (1, 0), "dilation": 2}, (2, 4, 9, 8), (6, 4, 3, 3)),
    "groups": (F.conv2d, {"groups": 2}, (2, 4, 9, 8), (6, 2, 3, 3)),
    "depthwise": (F.conv2d, {"groups": 4, "padding": "same"}, (2, 4, 9, 8), (4, 1, 3, 3)),
    "valid": (F.conv2d, {"padding": "valid"}, (2, 4, 9, 8), (4, 4, 2, 2)),
    "one sample": (F.conv2d, {"stride": 2}, (4, 9, 8), (6, 4, 3, 3)),
    "conv3d": (F.conv3d, {}, (1, 2, 4, 5, 6), (3, 2, 2, 2, 2)),
    "transposed": (F.conv_transpose2d, {"stride": 2, "padding": 1, "output_padding": 1}, (2, 4, 5, 6), (4, 3, 3, 3)),
    "transposed groups": (F.conv_transpose1d, {"groups": 2, "dilation": 2}, (2, 4, 7), (4, 3, 3)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("last", [True, False])
def test_convolutions(name, last):
    function, options, shape, weight = CONVOLUTIONS[name]
    x, w = rand(*shape), rand(*weight)
    bias = rand(w.shape[1] * options.get("groups", 1) if "transposed" in name else w.shape[0])
    if last and len(shape) == 4:
        x = x.to(memory_format=torch.channels_last)
    backward = check_lowered(lambda x, w, b: function(x, w, b, **options).sin(), x, w, bias)
    assert calls(backward).count("convolution_backward") == 1
    check_lowered(lambda x, w: function(x, w, **options).sin(), x, w)


def test_the_gradient_of_what_a_convolution_reads_lies_as_its_result():
    """A picture in the memory of its tokens: the library takes it for row-major, and so does not copy its gradient."""
    x = rand(1, 12, 6).transpose(1, 2).view(1, 6, 3, 4)
    forward = F.conv2d(x, rand(6, 1, 3, 3), padding=1, groups=6)
    assert not x.is_contiguous() and forward.is_contiguous()
    backward = check_lowered(lambda x, w: F.conv2d(x, w, padding=1, groups=6).sin(), x, rand(6, 1, 3, 3))
    made = [n for n in backward.nodes if n.op == "result" and n.inputs[0].attr("name") == "convolution_backward"]
    (gradient,) = [node for node in made if node.attr("path") == (0,)]
    strides = tuple(size.evaluate(backward.hints) for size in gradient.strides)
    expected = torch.ops.aten.convolution_backward(
        forward, x, rand(6, 1, 3, 3), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 6, [True, True, False]
    )[0]
    assert strides == expected.stride()


def test_a_gradient_that_nobody_wants_is_not_computed():
    backward = check_lowered(lambda x, w: F.conv2d(x, w), rand(2, 4, 9, 8), rand(6, 4, 3, 3), frozen=(0,))
    (call,) = [node for node in backward.nodes if node.op == "library" and node.attr("name") == "convolution_backward"]
    assert call.attr("args")[-1] == [False, True, False]


@pytest.mark.filterwarnings("ignore:Using padding")
def test_padding_on_one_side_more_is_called_again():
    check_lowered(lambda x, w: F.conv2d(x, w, padding="same"), rand(2, 4, 9, 8), rand(6, 4, 2, 2))


SELECTIONS = {
    "topk": lambda x: x.topk(2, 1)[0],
    "smallest": lambda x: torch.topk(x, k=2, dim=-1, largest=False).values,
    "sort": lambda x: x.sort(0)[0],
    "descending": lambda x: torch.sort(x, dim=1, descending=True)[0],
    "stable": lambda x: x.sort(dim=1, stable=True)[0],
    "stable descending": lambda x: torch.sort(x, stable=True, dim=-1, descending=True).values,
    "kthvalue": lambda x: x.kthvalue(2, 1)[0],
    "median": lambda x: x.median(1, keepdim=True)[0],
    "nanmedian": lambda x: x.nanmedian(-1).values,
    "mode": lambda x: x.mode(1)[0],
}


@pytest.mark.parametrize("name", SELECTIONS)
@pytest.mark.parametrize("shape", [(4, 5, 6), (3, 5), (2, 5, 3, 4)])
def test_what_selects_elements_along_a_dimension(name, shape):
    x = rand(*shape)
    backward = check_lowered(lambda x: SELECTIONS[name](x * 2).sin(), x)
    several = name in ("topk", "smallest", "sort", "descending", "stable", "stable descending")
    assert ("selected_backward" in calls(backward)) is several and len(calls(backward)) <= 2


def test_positions_of_what_was_selected_have_no_gradient():
    backward = check_lowered(lambda x: (lambda top: top[0].sin() * top[1])(x.topk(2, 1)), rand(4, 5, 6))
    assert calls(backward)[-1] == "selected_backward" and len(calls(backward)) <= 2


POOLS = {
    "max": (lambda x: F.max_pool2d(x, 3, 2, 1, dilation=2), "max_pool2d_with_indices_backward"),
    "max cut": (lambda x: F.max_pool2d(x, (9, 8), 1, (4, 3), ceil_mode=True), "max_pool2d_with_indices_backward"),
    "max indices": (lambda x: F.max_pool2d(x, 2, 1, dilation=2, return_indices=True)[0],
                    "max_pool2d_with_indices_backward"),
    "adaptive max": (lambda x: F.adaptive_max_pool2d(x, (2, 3)), "adaptive_max_pool2d_backward"),
    "adaptive max square": (lambda x: F.adaptive_max_pool2d(x, 4, True)[0], "adaptive_max_pool2d_backward"),
    "average": (lambda x: F.avg_pool2d(x, (9, 8), 2, 3, count_include_pad=False), "avg_pool2d_backward"),
    "adaptive": (lambda x: F.adaptive_avg_pool2d(x, (2, 3)), "_adaptive_avg_pool2d_backward"),
    "nearest": (lambda x: F.interpolate(x, scale_factor=9), "upsample_nearest2d_backward"),
    "nearest size": (lambda x: F.interpolate(x, size=(5, 13)), "upsample_nearest2d_backward"),
    "bilinear": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), "upsample_bilinear2d_backward"),
    "corners": (
        lambda x: F.interpolate(x, size=(5, 13), mode="bilinear", align_corners=True),
        "upsample_bilinear2d_backward",
    ),
    "bicubic": (lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), "upsample_bicubic2d_backward"),
}


@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("last", [True, False])
def test_pools(name, last):
    function, call = POOLS[name]
    x = rand(2, 4, 9, 8)
    backward = check_lowered(lambda x: function(x * 2).sin(), x.to(memory_format=torch.channels_last) if last else x)
    assert call in calls(backward)


def test_ties_of_a_maximum_go_to_the_first():
    check_lowered(lambda x: F.max_pool2d(x, 3, 1), rand(2, 4, 9, 8).round())


ATTENTION = {
    "plain": ({}, None),
    "causal": ({"is_causal": True}, None),
    "scale": ({"scale": 0.3}, None),
    "mask": ({}, torch.rand(5, 7) > 0.3),
    "wide mask": ({}, torch.rand(2, 1, 5, 7) > 0.3),
    "added mask": ({}, torch.randn(5, 7, dtype=torch.float64)),
}


@pytest.mark.parametrize("name", ATTENTION)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_attention(name, dtype):
    options, mask = ATTENTION[name]
    if mask is not None and mask.dtype is not torch.bool:
        mask = mask.to(dtype)
    q, k, v = rand(2, 5, 3, 8, dtype=dtype), rand(2, 3, 7, 8, dtype=dtype), rand(2, 3, 7, 8, dtype=dtype)
    masks = () if mask is None else (mask,)

    def function(q, k, v, *masks):
        return F.scaled_dot_product_attention(q.transpose(1, 2), k, v, *masks, **options)

    backward = check_lowered(function, q, k, v, *masks, frozen=(3,), rtol=4e-2 if dtype is torch.bfloat16 else 1e-7,
                             atol=4e-2 if dtype is torch.bfloat16 else 1e-7)  # fmt: skip
    assert "flash_attention_backward" in calls(backward)


def test_attention_of_one_tensor():
    check_lowered(lambda x: F.scaled_dot_product_attention(x, x, x), rand(2, 3, 5, 8))


def test_attention_whose_mask_wants_a_gradient_is_taped():
    q, mask = rand(2, 3, 5, 8), rand(5, 5)
    backward = check_lowered(lambda q, m: F.scaled_dot_product_attention(q, q, q, m), q, mask)
    assert "flash_attention_backward" not in calls(backward)


@pytest.mark.parametrize("shape", [(5, 4), (2, 4, 6), (2, 4, 3, 5)])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("tracked", [True, False])
def test_batch_norm(shape, affine, tracked):
    x, weight, bias, mean, variance = rand(*shape), rand(4), rand(4) + 1, rand(4) + 2, rand(4).abs()

    def function(x, weight, bias, mean, variance):
        statistics = (mean, variance) if tracked else (None, None)
        result = F.batch_norm(x * 2, *statistics, *((weight, bias) if affine else ()), training=True)
        return result.sin(), weight * bias

    operands = (x, weight, bias, *((mean, variance) if tracked else ()))
    if not tracked:
        check_lowered(lambda x, w, b: function(x, w, b, None, None), *operands)
    else:
        check_lowered(function, *operands, frozen=(3, 4))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_of_16_bits_keeps_its_input_alone(dtype, affine):
    """Weights and statistics are float32, as under autocast; what the call gave is not kept."""
    x, one = rand(2, 4, 3, 5, dtype=dtype), rand(4, dtype=torch.float32)
    weight, bias, mean, variance = one, one + 1, one + 2, one.abs()

    def function(x, weight, bias, mean, variance):
        scale = (weight, bias) if affine else ()
        return F.batch_norm(x * 2, mean, variance, *scale, training=True).sin(), weight * bias

    backward = check_lowered(function, x, weight, bias, mean, variance, frozen=(3, 4), rtol=2e-2, atol=2e-2)
    (call,) = [node for node in backward.nodes if node.op == "library"]
    assert call.attr("name") == "batch_norm_kept"


def test_a_mean_behind_a_batch_norm_is_no_part_of_its_form():
    bn = torch.nn.BatchNorm1d(4).train()

    def f(x):
        y = bn(x).relu()
        return y.cos(), y.detach().mean(0)

    fast = framefuse.compile(f, options={"check": True})
    for rows in (8, 8, 5, 7):
        x = torch.randn(rows, 4)
        got, mean = fast(x)
        got.sum().backward()
        found, bn.weight.grad = bn.weight.grad, None
        want, exact = f(x)
        want.sum().backward()
        torch.testing.assert_close((got, mean, found), (want, exact, bn.weight.grad))
        bn.weight.grad = None
    assert len(framefuse.explain(fast).graphs) <= 2 and not framefuse.explain(fast).stops


def test_batch_norm_that_writes_its_statistics_under_autocast_has_no_tape():
    x, weight, scale, mean = (rand(*shape, dtype=torch.float32) for shape in ((2, 3, 5, 4), (4, 3, 3, 3), (4,), (4,)))

    def function(x, weight, scale, mean, variance):
        with torch.autocast("cpu", torch.bfloat16):
            return F.batch_norm(F.conv2d(x, weight), mean, variance, scale, training=True).relu() * 2

    backward = check_lowered(function, x, weight, scale, mean, mean.abs(), frozen=(3, 4), rtol=5e-2, atol=5e-2)
    assert sorted(calls(backward)) == ["batch_norm_kept", "conv2d", "convolution_backward"]


SIXTEEN = {
    "linear": (F.linear, (2, 3, 8), (5, 8)),
    "matmul": (lambda a, b: a @ b, (2, 3, 8), (2, 8, 5)),
    "shared": (lambda a, b: a @ b, (2, 3, 8), (8, 5)),
    "shared left": (lambda a, b: a @ b, (3, 8), (2, 8, 5)),
    "broadcast": (lambda a, b: a @ b, (2, 1, 3, 8), (4, 8, 5)),
    "mm": (torch.mm, (3, 8), (8, 5)),
    "bmm": (torch.bmm, (2, 3, 8), (2, 8, 5)),
    "vector": (lambda a, b: a @ b, (3, 8), (8,)),
    "vector of batches": (lambda a, b: a @ b, (2, 3, 8), (8,)),
    "vector left": (lambda a, b: a @ b, (8,), (8, 3)),
    "mv": (torch.mv, (3, 8), (8,)),
    "dot": (torch.dot, (8,), (8,)),
    "addmm": (lambda a, b: torch.addmm(a[:, :5], a, b), (3, 8), (8, 5)),
    "scaled": (lambda a, b: torch.addmm(a[:, :5], a, b, beta=2, alpha=0.5), (3, 8), (8, 5)),
}


@pytest.mark.parametrize("name", SIXTEEN)
def test_products_of_16_bits(name):
    function, left, right = SIXTEEN[name]
    a, b = rand(*left, dtype=torch.bfloat16), rand(*right, dtype=torch.bfloat16)
    backward = check_lowered(function, a, b, rtol=2e-2, atol=2e-2)
    if name != "scaled":
        assert not any("vjp" in call or "backward" in call for call in calls(backward))


MOVES = {
    "lists": lambda x: x[[0, 1], [2, 2]],
    "tensors": lambda x: x[torch.arange(3), x.detach().argmax(1)[:3]],
    "mask": lambda x: x[x.detach() > 0],
    "masked_select": lambda x: x.masked_select(x.detach() > 0),
    "roll": lambda x: x.roll(2, 1),
    "tril": torch.tril,
    "diagonal": lambda x: x.diagonal(1),
    "windows": lambda x: x.unfold(1, 3, 2),
    "blocks": lambda x: F.unfold(x[None, None], 2),
    "reflect": lambda x: F.pad(x[None], (2, 1), mode="reflect"),
    "take": lambda x: x.take(x.detach().argmax(1)),
}


@pytest.mark.parametrize("name", MOVES)
def test_a_call_that_moves_elements_does_not_keep_its_operand(name):
    """The operand is a value that nothing else of the backward pass reads."""
    backward = check_lowered(lambda x: MOVES[name](x * 2).sin(), rand(5, 6))
    assert not any(call.endswith(("_taped", "_vjp", "_backward")) for call in calls(backward)), calls(backward)
    values = {operand for node in backward.nodes if node.op == "library" and "adjoint" in node.attr("name")
              for operand in node.inputs}  # fmt: skip
    moved = {operand for node in backward.nodes if node.op == "library" and "adjoint" not in node.attr("name")
             for operand in node.inputs if operand.dtype.is_float}  # fmt: skip
    assert not values & moved
