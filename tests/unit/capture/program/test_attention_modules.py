"""``nn.MultiheadAttention`` in all its forms is one graph of what it is made of, forward and backward."""

import pytest
import torch
from torch import nn

import framefuse
from framefuse.api import compiled_function
from framefuse.ir.schedule import RunCall


class Attends(nn.Module):
    def __init__(self, call, **options):
        super().__init__()
        self.inner, self.call = nn.MultiheadAttention(8, 2, **{"batch_first": True, **options}), call

    def forward(self, x):
        return self.call(self.inner, x)


def causal(x):
    return torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)


FORMS = {
    "plain": (lambda m, x: m(x, x, x)[0], {}),
    "with its weights": (lambda m, x: m(x, x, x), {}),
    "causal": (lambda m, x: m(x, x, x, attn_mask=causal(x), is_causal=True, need_weights=False)[0], {}),
    "a mask": (lambda m, x: m(x, x, x, attn_mask=causal(x)), {}),
    "padding": (lambda m, x: m(x, x, x, key_padding_mask=x[..., 0] > 9)[0], {}),
    "other keys": (lambda m, x: m(x, x[:, :2] + 1, x[:, :2] * 2)[0], {}),
    "other sizes": (lambda m, x: m(x, x[..., :4], x[..., :6])[0], {"kdim": 4, "vdim": 6}),
    "more keys": (lambda m, x: m(x, x, x)[0], {"add_bias_kv": True, "add_zero_attn": True}),
    "sequence first": (lambda m, x: m(x, x, x)[0], {"batch_first": False}),
    "dropout": (lambda m, x: m(x, x, x)[0], {"dropout": 0.5}),
}


def flat(result):
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("name", FORMS)
def test_it_is_one_graph_of_its_parts(name):
    call, options = FORMS[name]
    torch.manual_seed(0)
    module = Attends(call, **options)
    fast = framefuse.compile(module, fullgraph=True)
    for turn, batch in enumerate((3, 3, 4)):
        x = torch.randn(batch, 5, 8)
        results = []
        for function in (fast, module):
            torch.manual_seed(turn)
            module.zero_grad()
            given = flat(function(x))
            sum(part.square().sum() for part in given).backward()
            results.append((given, [p.grad for p in module.parameters()]))
        (mine, gradients), (other, wanted) = results
        torch.testing.assert_close(mine, other)
        torch.testing.assert_close(gradients, wanted)
    assert compiled_function(fast).dispatch.hits >= 1
    for product in compiled_function(fast).products:
        items = product.stages.code.schedule.items
        names = {item.node.attr("name") for item in items if isinstance(item, RunCall)}
        assert "multi_head_attention_forward" not in names


def test_its_errors_are_eager_s():
    module = nn.MultiheadAttention(8, 2, batch_first=True)
    fast = framefuse.compile(module)
    for _ in range(3):
        x = torch.randn(3, 5, 8)
        with pytest.raises(AssertionError, match="was expecting embedding dimension of 8"):
            fast(x[..., :4], x[..., :4], x[..., :4])
        torch.testing.assert_close(fast(x, x, x), module(x, x, x))
