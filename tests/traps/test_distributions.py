"""Distributions of torch are walked as the program's own Python: their numbers are eager's, drawn in eager's order."""

from __future__ import annotations

import math

import pytest
import torch
from torch import distributions as d

import framefuse


def _read(made):
    return made.sample(), made.entropy(), made.mode


PROGRAMS = {
    "normal": lambda x, p, v: (d.Normal(x, p, v).log_prob(p), d.Normal(x, p, v).rsample(), d.Normal(x, p, v).entropy()),
    "divergence": lambda x, p, v: d.kl_divergence(d.Normal(x, p, v), d.Normal(torch.zeros_like(x), 1.0, v)),
    "gamma": lambda x, p, v: d.Gamma(p, p, v).log_prob(p),
    "beta": lambda x, p, v: d.Beta(p, p, validate_args=v).entropy(),
    "bernoulli": lambda x, p, v: d.Bernoulli(logits=x, validate_args=v).log_prob((x > 0).to(x.dtype)),
    "dirichlet": lambda x, p, v: d.Dirichlet(p, v).log_prob(p / p.sum(-1, keepdim=True)),
    "lognormal": lambda x, p, v: d.LogNormal(x, p, v).log_prob(p),
    "laplace": lambda x, p, v: d.Laplace(x, p, v).rsample((2,)),
    "independent": lambda x, p, v: d.Independent(d.Normal(x, p, v), 1, v).log_prob(x),
    "gaussian": lambda x, p, v: d.MultivariateNormal(x, torch.eye(8, dtype=x.dtype), validate_args=v).log_prob(x),
    "categorical": lambda x, p, v: _read(d.Categorical(logits=x, validate_args=v)),
    "tanh": lambda x, p, v: d.TransformedDistribution(
        d.Normal(x, p, v), [d.transforms.TanhTransform(cache_size=1)], v
    ).rsample(),
    "uniform": lambda x, p, v: d.Uniform(x, x + p, v).log_prob(x + p / 2),
}  # fmt: skip


@pytest.mark.parametrize("validate", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_distribution_gives_what_it_gives_under_eager(name: str, validate: bool) -> None:
    def program(x):
        return PROGRAMS[name](x, x.exp(), validate)

    compiled = framefuse.compile(program, fullgraph=not validate)
    hits = 0
    for rows in (4, 4, 4, 6, 5, 4 if name == "gaussian" else 7):  # whose checks compare the numbers of rows
        hits = framefuse.explain(compiled).hits
        x = torch.randn(rows, 8, dtype=torch.float64, requires_grad=True)
        torch.manual_seed(rows)
        ours = compiled(x)
        torch.manual_seed(rows)
        eagers = program(x)
        torch.testing.assert_close(ours, eagers)
        for mine, eager in zip(*([y] if isinstance(y, torch.Tensor) else y for y in (ours, eagers)), strict=True):
            assert mine.requires_grad == eager.requires_grad
            if eager.requires_grad:
                wanted = torch.autograd.grad(eager.sum(), x, retain_graph=True)
                torch.testing.assert_close(torch.autograd.grad(mine.sum(), x, retain_graph=True), wanted)
    assert framefuse.explain(compiled).hits == hits + 1


def test_arguments_are_validated_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(d.Distribution, "_validate_args", True)  # torch.compile in an earlier test turns that off
    compiled = framefuse.compile(lambda x, scale: d.Normal(x, scale).log_prob(x + 1))
    for _ in range(3):
        compiled(torch.randn(4), torch.rand(4) + 1)
    with pytest.raises(ValueError, match="Expected parameter scale"):
        compiled(torch.randn(4), torch.tensor([1.0, -1.0, 1.0, 1.0]))
    with pytest.raises(ValueError, match="Expected parameter loc"):
        compiled(torch.full((4,), math.nan), torch.ones(4))


def test_properties_of_a_subclass_are_read_as_properties_are() -> None:
    class Told(property):
        told = "more"

    class Holder:
        def __init__(self, factor):
            self.factor = factor

        @Told
        def twice(self):
            return self.factor * 2

    holder = Holder(1.5)
    compiled = framefuse.compile(lambda x: x * holder.twice, fullgraph=True)
    for factor in (1.5, 2.5, 2.5, 1.5):
        holder.factor = factor
        torch.testing.assert_close(compiled(torch.ones(2)), torch.full((2,), factor * 2))
