"""Which operands of a call eager's graph reaches, told from nodes whose Python objects come and go."""

import torch

from framefuse.capture.recording.saved import unreached


def test_parts_of_one_tensor_are_all_reached():
    for _ in range(50):  # nodes that nobody refers to get other addresses each time they are asked for
        x = torch.randn(2, 3, 5, 2, 4, requires_grad=True)
        q, k, v = (x * 2).unbind(1)
        garbage = [torch.randn(2, requires_grad=True).exp().grad_fn for _ in range(7)]
        del garbage[::2]
        assert unreached([torch.nn.functional.scaled_dot_product_attention(q, k, v)], [q, k, v]) == []


def test_what_gets_no_gradient_is_told():
    x, target = torch.randn(4, requires_grad=True) * 1, torch.randn(4, requires_grad=True) * 1
    assert unreached([x * target.detach()], [x, target]) == [target]
