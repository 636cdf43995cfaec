"""Calls without a rule are differentiated by torch as eager would have been."""

import pytest
import torch
from torch.nn import functional as F

import framefuse
from framefuse.ir import taped_calls
from framefuse.runtime.function import compiled_function


def test_gradients_reach_a_tape_as_eagers_result_lay(monkeypatch):
    """cuDNN's attention remembers a kernel without how the gradient lay for which it was made."""
    projection = torch.nn.Linear(16, 32)
    given = []

    def spy(results, leaves, gradients, **how):
        given.extend(gradients)
        return of_tape(results, leaves, gradients, **how)

    of_tape = taped_calls._gradients
    monkeypatch.setattr(taped_calls, "_gradients", spy)

    def attention(x):
        parts = projection(x)
        query = parts[..., :16].unflatten(-1, (4, 4)).transpose(1, 2)
        key, value = (parts[..., at : at + 8].unflatten(-1, (2, 4)).transpose(1, 2) for at in (16, 24))
        return F.scaled_dot_product_attention(query, key, value, enable_gqa=True)

    def run(x):
        return attention(x).transpose(1, 2).reshape(x.shape).exp()

    fast = framefuse.compile(run)
    for number in range(3):
        torch.manual_seed(number)
        x = torch.randn(2, 5, 16, requires_grad=True)
        (ours,) = torch.autograd.grad(fast(x).sin().sum(), x)
        (theirs,) = torch.autograd.grad(run(x).sin().sum(), x)
        torch.testing.assert_close(ours, theirs)
    assert len(given) == 2
    assert all(gradient.stride() == attention(x).stride() for gradient in given)


class Recurrent(torch.nn.Module):
    """An LSTM, which torch differentiates, and a layer on top; gives what both say."""

    def __init__(self):
        super().__init__()
        self.lstm, self.head = torch.nn.LSTM(6, 5, batch_first=True), torch.nn.Linear(5, 3)

    def forward(self, x):
        hidden, _ = self.lstm(x)
        return hidden, self.head(hidden).tanh()


def test_what_a_tape_saved_goes_in_the_last_pass_over_it(monkeypatch):
    """A pass that keeps its graph keeps the tape too; the next lets the tape go as it reads it, and a third one raises
    as under eager.
    """
    torch.manual_seed(0)
    model = Recurrent()
    fast = framefuse.compile(model)
    kept = []

    def spy(results, leaves, gradients, retain_graph):
        kept.append(retain_graph)
        return of_tape(results, leaves, gradients, retain_graph=retain_graph)

    of_tape = taped_calls._gradients
    monkeypatch.setattr(taped_calls, "_gradients", spy)
    weights = list(model.parameters())

    def gradients(of, wanted):
        torch.manual_seed(1)
        hidden, top = of(torch.randn(2, 4, 6, requires_grad=True))
        loss = top.square().mean() + hidden.sin().mean()
        passes = (True, True, False)
        found = [torch.autograd.grad(loss, wanted, retain_graph=more, allow_unused=True) for more in passes]
        with pytest.raises(RuntimeError, match="second time"):
            torch.autograd.grad(loss, wanted)
        return found

    for wanted in (weights, weights[:1], weights[1:]):
        gradients(fast, wanted)  # records, compiles
        kept.clear()
        ours = gradients(fast, wanted)
        assert kept == [True, True, False]
        torch.testing.assert_close(ours, gradients(model, wanted))
    assert len(framefuse.explain(fast).graphs) == 1


@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.parametrize("again", [False, True])
def test_gradients_of_groups_lie_as_their_operands(turned, again, tmp_path):
    """Experts of transformers keep their weights turned: a gradient that lies otherwise is copied twice, each time as
    much as all of them.
    """
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(3, 12, 8) if turned else torch.randn(3, 8, 12))

    def experts(x, ends):
        return torch._grouped_mm(x, weight.transpose(-2, -1) if turned else weight, offs=ends).tanh()

    fast = framefuse.compile(experts, options={"report": str(tmp_path)})
    for rows in (6, 6, 9, 7):
        x = torch.randn(rows, 8, requires_grad=True)
        ends = torch.tensor([2, 3, rows], dtype=torch.int32)
        found = []
        for function in (fast, experts):
            gradients = torch.autograd.grad(function(x, ends).square().sum(), [x, weight], create_graph=again)
            if again:
                gradients += torch.autograd.grad(gradients[0].square().sum(), [x, weight])
            found.append(gradients)
        torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)
        assert [part.stride() for part in found[0]] == [part.stride() for part in found[1]]
    assert compiled_function(fast).dispatch.hits >= 2
    plans = [path.read_text() for path in tmp_path.glob("*_backward_*/5_plan.txt")]
    assert plans and (again or not any("copy(" in plan for plan in plans))
