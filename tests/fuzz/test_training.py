"""Generated programs that train get eager's gradients, errors, hooks and counts, over changing calls and passes."""

from collections import Counter

import pytest
from tests.fuzz.choice import Choice
from tests.fuzz.oracle import run
from tests.fuzz.training import training

PARTS, PROGRAMS = 4, 40


@pytest.mark.parametrize("part", range(PARTS))
def test_training_programs_compiled_are_those_of_eager(part: int) -> None:
    total: Counter[str] = Counter()
    for seed in range(part * PROGRAMS, (part + 1) * PROGRAMS):
        tally = run(training(Choice(seed)))
        total.update(hit=tally.hits > 0, hits=tally.hits, errors=tally.errors > 0)
    assert total["hit"] > PROGRAMS // 2 and total["errors"] < PROGRAMS // 2, total
