"""What is handed on over a break: deleted variables, compiled callables, tensors that share memory."""

import functools
import logging

import pytest
import torch
from tests.unit.capture.replay import equal

import framefuse
from framefuse.api import compiled_function


def checked(function, calls, hits, grad=False):
    compiled = framefuse.compile(function)
    with torch.set_grad_enabled(grad):
        for call, args in enumerate(calls):
            assert equal(function(*args), compiled(*args), exact=False), call
    state = compiled_function(compiled)
    assert state.dispatch.hits >= hits, [str(reason) for reason in state.reasons]
    return state


def vectors(count):
    torch.manual_seed(0)
    return [(torch.randn(6),) for _ in range(count)]


def test_a_variable_of_a_closure_is_deleted_after_a_break():
    def f(x):
        total = 0
        for _ in range(3):
            held = x * 2

            def read():
                return held.sum()  # noqa: B023, F821

            total = total + x * x.max().item() + read()
            del held
        try:
            read()
        except NameError as error:
            return total, str(error)

    checked(f, vectors(6), 4)


def test_a_variable_of_a_closure_comes_back():
    def f(x):
        held = x

        def read():
            return held + 1

        first = read() * x.sum().item()
        del held
        held = x * 3
        return first + read()

    checked(f, vectors(6), 4)


class Holder:
    def __init__(self):
        self.module = framefuse.compile(torch.nn.Linear(6, 6))


def test_the_call_of_a_compiled_module_lives_across_a_break():
    holder = Holder()

    def f(x):
        forward = holder.module.__call__
        scale = x.sum().item()
        return forward(x) * scale

    checked(f, vectors(6), 4)


def test_a_message_said_once_before_a_break():
    logger = logging.getLogger("transformers.said")

    def say(self, text):
        self.said.append(text)

    logger.said = []
    say.__module__, say.__name__ = "transformers.utils.logging", "say_once"
    once = functools.lru_cache(None)(say)

    def f(x):
        once(logger, "only once")
        return x * x.sum().item()

    checked(f, vectors(6), 4)
    assert logger.said == ["only once"]


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("grad", [False, True])
def test_results_of_one_call_that_share_memory_are_handed_on(grad, written):
    def f(x):
        rows, columns = torch.where(x.reshape(2, 3) > 0)
        if rows.numel() == 0:
            return x.sum(), x
        if written:
            rows += 1
            columns *= 2
        return rows, columns

    eager = grad or written  # in-place writes to what shares memory run eagerly
    checked(f, vectors(8), 0 if eager else 5, grad)
    compiled = framefuse.compile(f)
    with torch.set_grad_enabled(grad):
        for (x,) in vectors(4):
            rows, columns = compiled(x)
            assert rows.untyped_storage().data_ptr() == columns.untyped_storage().data_ptr()


def test_experts_of_a_mixture_are_chosen_by_value():
    class Mixture(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = torch.nn.Linear(6, 3)
            self.experts = torch.nn.ModuleList(torch.nn.Linear(6, 6) for _ in range(3))

        def forward(self, x):
            weights, chosen = self.gate(x).softmax(-1).topk(2)
            out = torch.zeros_like(x)
            for number, expert in enumerate(self.experts):
                token, place = torch.where(chosen == number)
                if token.numel() == 0:
                    continue
                out.index_add_(0, token, expert(x[token]) * weights[token, place, None])
            return out

    torch.manual_seed(0)
    model = Mixture()
    compiled = framefuse.compile(model)
    with torch.no_grad():
        for _ in range(10):
            x = torch.randn(2, 6)
            assert equal(model(x), compiled(x), exact=False)
        made = len(compiled_function(compiled).products)
        for _ in range(4):
            x = torch.randn(2, 6)
            assert equal(model(x), compiled(x), exact=False)
    state = compiled_function(compiled)
    assert state.dispatch.hits >= 10, [str(reason) for reason in state.reasons]
    assert len(state.products) <= made + 2


class EarlyExit(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(6, 6) for _ in range(4))
        self.heads = torch.nn.ModuleList(torch.nn.Linear(6, 3) for _ in range(4))
        self.exits = [0] * 4

    def forward(self, x):
        for number, (layer, head) in enumerate(zip(self.layers, self.heads, strict=True)):
            x = torch.relu(layer(x)) + x
            chances = head(x).softmax(-1)
            if chances.max() > 0.6 or number == 3:
                self.exits[number] += 1
                return chances, number
        raise AssertionError("the last layer ends it")


def test_layers_and_heads_are_walked_side_by_side_over_breaks():
    torch.manual_seed(1)
    theirs = EarlyExit()
    torch.manual_seed(1)
    ours = EarlyExit()
    compiled = framefuse.compile(ours)
    with torch.no_grad():
        for _ in range(24):
            x = torch.randn(1, 6)
            assert equal(theirs(x), compiled(x), exact=False)
    assert theirs.exits == ours.exits
    assert sum(count > 0 for count in theirs.exits) > 2
    state = compiled_function(compiled)
    assert state.dispatch.hits >= 20, [str(reason) for reason in state.reasons]


def test_a_sequence_is_sampled_token_by_token():
    table = torch.randn(7, 7, generator=torch.Generator().manual_seed(0))

    def f(tokens):
        while tokens.shape[1] < 8:
            drawn = torch.multinomial(table[tokens[:, -1]].softmax(-1), num_samples=1)
            tokens = torch.cat([tokens, drawn], 1)
            if (drawn == 3).all():
                break
        return tokens

    compiled = framefuse.compile(f)
    with torch.no_grad():
        for seed in range(12):
            tokens = torch.full((1, 2), seed % 7)
            torch.manual_seed(seed)
            expected = f(tokens)
            torch.manual_seed(seed)
            assert equal(expected, compiled(tokens))
    state = compiled_function(compiled)
    assert state.dispatch.hits >= 6, [str(reason) for reason in state.reasons]


def test_a_generator_goes_on_where_no_break_is_possible():
    def each():
        yield 1
        yield 2

    @framefuse.compile
    def f(x, n):
        parts = each(), {x, x + n}
        return x * n, [len(list(part)) for part in parts]

    for n in range(4):
        assert f(torch.ones(2), n)[1] == [2, 2]
