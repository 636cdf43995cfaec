"""Generated programs that are given sizes, dimensions and numbers in sequences follow them from call to call."""

from collections import Counter

import pytest
from tests.fuzz.choice import Choice
from tests.fuzz.oracle import run
from tests.fuzz.sequences import sequenced

PARTS, PROGRAMS = 4, 30


@pytest.mark.parametrize("part", range(PARTS))
def test_programs_follow_the_sequences_that_they_are_given(part: int) -> None:
    total: Counter[str] = Counter()
    for seed in range(part * PROGRAMS, (part + 1) * PROGRAMS):
        tally = run(sequenced(Choice(seed)))
        total.update(hit=tally.hits > 0, hits=tally.hits, errors=tally.errors > 0)
    assert total["hit"] > PROGRAMS // 2 and total["errors"] < PROGRAMS // 2, total
