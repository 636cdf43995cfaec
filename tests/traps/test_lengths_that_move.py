"""Lists, deques and dicts that have another length at each call: what goes through them costs no trace for each."""

from __future__ import annotations

import sys
from collections import deque

import torch
from tests.traps.trap import Table, Trap, hold

TABLE = Table()
trap = TABLE.trap
CALLS = 40


def inputs(calls: int = CALLS):
    return (torch.full((3,), 1.0 + number) for number in range(calls))


@trap(traces=6, hits=30)
def mean_of_a_history_that_grows(compiled):
    losses = []

    @compiled
    def f(x):
        losses.append(x.sum().item())
        return x * (sum(losses) / len(losses))

    for x in inputs():
        yield f(x), len(losses), losses[-1]


@trap(traces=6, hits=30)
def mean_of_the_last_losses(compiled):
    losses = deque(maxlen=10)

    @compiled
    def f(x):
        losses.append(x.sum().item())
        return x * (sum(losses) / len(losses))

    for x in inputs():
        yield f(x), list(losses)


@trap(traces=20, hits=30)
def returns_of_episodes(compiled):
    rewards = []

    @compiled
    def f(x, gamma):
        total, found = 0.0, deque()
        for reward in rewards[::-1]:
            total = reward + gamma * total
            found.appendleft(total)
        returns = torch.tensor(list(found))
        del rewards[:]
        return x * (returns - returns.mean()).abs().sum(), returns

    for number, x in enumerate(inputs()):
        rewards.extend(0.25 * (number + place) for place in range(2 + number * 7 % 23))
        yield f(x, 0.5), list(rewards)


@trap(traces=6, hits=30)
def counters_in_a_list(compiled):
    seen = []

    @compiled
    def f(x):
        seen.append(len(seen))
        return x * sum(seen)

    for x in inputs():
        yield f(x), list(seen)


@trap(traces=4, hits=30)
def rewards_of_episodes_of_three_lengths(compiled):
    rewards = []

    @compiled
    def f(x):
        x = x * sum(rewards)
        rewards.clear()
        return x

    for number, x in enumerate(inputs()):
        rewards.extend(0.25 * (number + place) for place in range(5 + number % 3))
        yield f(x), list(rewards)


# CPython 3.12 runs the comprehension in the frame around it.
@trap(traces=7 if sys.version_info < (3, 12) else 8, hits=28)
def memories_picked_by_their_places(compiled):
    memory = [torch.full((3,), float(place)) for place in range(50)]

    @compiled
    def f(x, places):
        return x + torch.stack([memory[place] for place in places]).sum(0)

    for number, x in enumerate(inputs()):
        yield f(x, [number * 7 % 50, number * 11 % 50, number * 13 % 50])


@trap(traces=7, hits=28)
def rates_picked_by_their_places(compiled):
    rates = [0.5 * place for place in range(50)]

    @compiled
    def f(x, place):
        return x * rates[place] + 1

    for number, x in enumerate(inputs()):
        yield f(x, number * 7 % 50)


@trap(traces=12, hits=24)
def layers_picked_by_their_places(compiled):
    layers = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(6))

    @compiled
    def f(x, place):
        return layers[place](x)

    for number, x in enumerate(inputs()):
        yield f(x, number % 6)


@trap(traces=9, hits=26)
def pictures_in_lists_of_some_lengths(compiled):
    @compiled
    def f(pictures):
        return sum(picture.relu() for picture in pictures)

    for number, x in enumerate(inputs()):
        yield f([x - place for place in range(1 + number % 6)])


@trap(traces=4, hits=8)
def three_lengths_of_numbers(compiled):
    @compiled
    def f(x, numbers):
        return x * sum(numbers)

    for number, x in enumerate(inputs(12)):
        yield f(x, [0.5 * number] * (1 + number % 3))


@trap(traces=10, hits=0, fullgraph=True)
def many_lengths_of_a_whole_graph(compiled):
    @compiled
    def f(x, numbers):
        return x * sum(numbers)

    for number, x in enumerate(inputs(10)):
        yield f(x, [0.5] * (1 + number))


@trap(traces=30, hits=0)
def a_memory_of_pairs_that_grows(compiled):
    memory = deque(maxlen=4)

    @compiled
    def f(x):
        memory.append((x.mean(), x.shape[0]))
        return torch.stack([pair[0] for pair in memory]).mean(), sum(pair[1] for pair in memory)

    for size in (3, 3, 5, 2, 3, 5, 1, 7, 1, 4, 3, 3):
        yield f(torch.randn(size, 2)), len(memory)


@trap(traces=4, hits=30)
def the_last_of_a_history(compiled):
    calls = []

    @compiled
    def f(x, number):
        calls.append(f"call {number}")
        return x * len(calls), calls[-2:], calls[-1]

    for number, x in enumerate(inputs()):
        yield f(x, number), list(calls)


@trap(traces=6, hits=30)
def both_ends_of_a_history(compiled):
    losses = []

    @compiled
    def f(x):
        before = losses[-3:-1]
        losses.append(x.sum())
        return torch.stack(losses[-2:]).mean(), losses[:1], losses[1:2], sum(before)

    for x in inputs():
        yield f(x), list(losses)


@trap(traces=9, hits=4)
def the_end_of_a_list_that_shrinks(compiled):
    @compiled
    def f(x, parts):
        first = parts[-2:]
        parts.pop()
        return x * sum(first), parts[-1:], parts[:3], parts[1:-1]

    for number, x in enumerate(inputs(10)):
        parts = [float(number + place) for place in range(6 - number % 5)]
        yield f(x, parts), parts


@trap(traces=3, hits=30)
def a_bar_of_ever_another_length(compiled):
    done = [0]

    @compiled
    def f(x, width):
        done[0] += 1
        bar = "#" * (done[0] // 2) + width * "-"
        bar *= 2
        return x * 2, f"[{bar}]", done[0] * "="

    for number, x in enumerate(inputs()):
        yield f(x, 9 - number % 12)


@trap(traces=4, hits=30)
def texts_that_the_program_keeps(compiled):
    kept = {"name": "", "mode": "double"}

    @compiled
    def f(x, number):
        before = kept["name"]
        kept["name"] = f"run {number}"
        return x * (2 if kept["mode"] == "double" else 3), before, before.startswith("run")

    for number, x in enumerate(inputs()):
        kept["mode"] = "triple" if number % 7 == 3 else "double"
        yield f(x, number), dict(kept)


@TABLE.parametrize()
def test_programs_match_eager(trap: Trap) -> None:
    hold(trap)
