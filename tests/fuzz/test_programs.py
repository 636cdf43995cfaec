"""Generated programs give the same results, effects and errors compiled as eagerly, over several changing calls."""

from collections import Counter

import pytest
from tests.fuzz.choice import Choice
from tests.fuzz.compare import Comparison
from tests.fuzz.definitions import HEAD
from tests.fuzz.oracle import Difference, Tally, World, difference, run
from tests.fuzz.program import Program, written
from tests.fuzz.shrink import Shrinker

PROGRAMS = 150


def test_programs_run_compiled_as_eagerly() -> None:
    total: Counter[str] = Counter()
    for seed in range(PROGRAMS):
        tally = run(written(Choice(seed)))
        total.update(programs=1, hit=tally.hits > 0, calls=tally.calls, hits=tally.hits, errors=tally.errors > 0)
    # A fuzzer whose programs all run eagerly, or all fail, tests nothing.
    assert total["hit"] > total["programs"] // 3, total
    assert total["hits"] > total["calls"] // 4, total
    assert total["errors"] < total["programs"] // 2, total


WRONG = {
    "value": "return x + 2",
    "dtype": "return (x + 1).double()",
    "shape": "return (x + 1)[None]",
    "strides": "return (x + 1).t().contiguous().t()",
    "identity": "STATE.append(9); return x + 1",
    "attribute": "BOX.n = 2; return x + 1",
    "write": "x.add_(0.5); return x + 0.5",
    "version": "x.add_(0); return x + 1",
    "memory": "KEPT[0] = x; return x + 1",
    "same object": "KEPT[0] = list(STATE); return x + 1",
    "printed": "print(1); return x + 1",
    "raised": "raise ValueError('no')",
    "gradient mode": "torch.set_grad_enabled(True); return x + 1",
}
SOURCE = """
class Box:
    n = 1

STATE, BOX = [1, 2], Box()
KEPT = [None]

def target(x):
    KEPT[0] = STATE
    return x + 1

def calls():
    yield call(data(1, 2, 3))
    yield call(data(2, 2, 3))
"""


@pytest.mark.parametrize("name", WRONG)
def test_every_kind_of_difference_is_seen(name: str) -> None:
    """A world whose function does something else differs, and one that does the same does not."""
    wrong = "\n    ".join(["KEPT[0] = STATE", *WRONG[name].split("; ")])
    program = Program(HEAD + SOURCE)
    same, other, eager = (World(program, lambda target: target) for _ in range(3))
    exec(f"def target(x):\n    {wrong}\n", other.space)
    other.target = other.space.pop("target")
    other.space["target"] = same.space["target"]
    for world in (same, other, eager):
        world.prepare(grad=False)
    assert difference(eager, same) == difference(eager, same) == ""
    assert difference(eager, other) == ""
    for world in (same, other, eager):
        world.step(grad=False)
    assert difference(eager, same) == ""
    assert difference(eager, other) != ""


def test_a_difference_comes_with_its_program() -> None:
    assert run(Program(HEAD + SOURCE)) == Tally(calls=2, hits=1, traces=1)
    counting = "import builtins, itertools\nbuiltins.fuzz = getattr(builtins, 'fuzz', itertools.count())\n"
    with pytest.raises(Difference, match="def target"):
        run(Program(HEAD + counting + SOURCE.replace("x + 1", "x + next(builtins.fuzz)")))


def test_aliasing_must_correspond() -> None:
    one, other = [1], [1]
    assert Comparison({}, {}).compare([one, one], [other, other]) == ""
    assert Comparison({}, {}).compare([one, one], [other, [1]]) != ""
    assert Comparison({}, {}).compare([one, [1]], [other, other]) != ""


def test_a_difference_is_cut_down() -> None:
    """Twelve numbers differ where one is over 10 and a later one over 3: two numbers are left."""

    def differs(numbers: list[int]) -> list[int] | None:
        first = next((place for place, number in enumerate(numbers) if number > 10), len(numbers))
        return numbers if any(number > 3 for number in numbers[first + 1 :]) else None

    assert Shrinker([5, 1, 40, 3, 9, 2, 8, 0, 7, 11, 5, 2], differs).shrink() == [11, 4]
