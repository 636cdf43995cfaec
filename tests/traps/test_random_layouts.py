"""Which element gets which random number depends on memory: a trace recorded on a size of 1 says nothing of others."""

import itertools

import pytest
import torch
from torch.nn import functional as F

import framefuse
from framefuse.runtime.function import compiled_function

attention = torch.nn.MultiheadAttention(4, 2, dropout=0.2, batch_first=True)
PROGRAMS = {
    "dropout of a transpose": lambda x: F.dropout(x.transpose(0, 1), 0.3),
    "dropout of what is computed of one": lambda x: F.dropout(x.transpose(0, 1) * 2, 0.3),
    "dropout of a view to the back": lambda x: F.dropout(x.movedim(0, -1), 0.3),
    "fill like a transpose": lambda x: torch.empty_like(x.transpose(0, 1)).exponential_() + x.transpose(0, 1),
    "a random call of the library": lambda x: torch.bernoulli(x.transpose(0, 1).sigmoid()),
    "attention": lambda x: F.dropout(attention(x, x, x, need_weights=False)[0], 0.3),
    "channels last": lambda x: F.dropout(x[..., None].permute(0, 3, 1, 2).relu(), 0.3),
}
SHAPES = [(1, 5, 4), (3, 1, 4), (1, 1, 4), (2, 5, 4)]


@pytest.mark.parametrize("first", SHAPES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_each_element_gets_eagers_number(name, first):
    program = PROGRAMS[name]
    compiled = framefuse.compile(program)
    for shape, grad in itertools.product([first, first, (3, 6, 4), (1, 6, 4), (3, 1, 4), (2, 7, 4)], (False, True)):
        x = torch.randn(shape, requires_grad=grad)
        torch.manual_seed(1)
        want = program(x)
        torch.manual_seed(1)
        torch.testing.assert_close(compiled(x), want, rtol=1e-4, atol=1e-5)
    assert compiled_function(compiled).dispatch.hits >= 4
