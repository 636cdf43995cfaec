"""The peak of a call, measured in a process whose heap has no history: there it is what is alive at once."""

import json
import os
import subprocess
import sys

import pytest

from benchmarks.training.training_peak import ENVIRONMENT

MEGABYTE = 1_000_000
PROGRAM = """
import json, torch, framefuse
import framefuse.driver.tree  # all that compiling imports: the heap grows no more for it
from benchmarks.harness import peak

MEGABYTE, kept, found = 1_000_000, [], {}

def call():
    for _ in range(3):
        torch.ones(5 * MEGABYTE)
    return torch.ones(MEGABYTE)

found["alive"] = peak.peak_bytes(call, lambda: None)
found["prepared"] = peak.peak_bytes(lambda: None, lambda: kept.append(torch.ones(5 * MEGABYTE)))
found["times"] = len(kept)
function = framefuse.compile(lambda x: (x.flip(0).sin() @ x).softmax(-1).flip(0))

def compiled():
    with torch.no_grad():
        function(torch.ones(500, 500))

for _ in range(3):
    compiled()
found["kept"] = peak.kept_bytes()
found["plain"], found["whole"] = (
    peak.peak_bytes(compiled, lambda: None, kept=kept) for kept in (peak.nothing, peak.kept_bytes)
)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True
    )
    assert not done.returncode, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_the_peak_is_what_is_alive_at_once(found):
    assert 19 * MEGABYTE < found["alive"] < 26 * MEGABYTE


def test_what_is_prepared_is_not_counted(found):
    assert found["prepared"] < 10 * MEGABYTE and found["times"] == 3


def test_what_plans_keep_is_counted_where_asked(found):
    assert found["kept"] >= MEGABYTE
    assert found["whole"] - found["plain"] > 0.7 * found["kept"]
