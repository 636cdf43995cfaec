"""Generated programs of views, aliases and writes leave memory, history and counters as eager's leave them."""

from collections import Counter

import pytest
from tests.fuzz.choice import Choice
from tests.fuzz.oracle import run
from tests.fuzz.writes import writing

PARTS, PROGRAMS = 4, 50


@pytest.mark.parametrize("part", range(PARTS))
def test_writes_compiled_are_those_of_eager(part: int) -> None:
    total: Counter[str] = Counter()
    for seed in range(part * PROGRAMS, (part + 1) * PROGRAMS):
        tally = run(writing(Choice(seed)))
        total.update(hit=tally.hits > 0, hits=tally.hits, errors=tally.errors > 0)
    assert total["hit"] > PROGRAMS // 3 and total["errors"] < PROGRAMS // 2, total
