"""The guided tour runs, and each of its steps prints something."""

import os
import subprocess
import sys
from pathlib import Path

TOUR = Path(__file__).parents[2] / "docs" / "tour.py"


def test_the_tour_runs_and_every_step_prints():
    environment = {**os.environ, "FRAMEFUSE_CHECK": "1"}
    done = subprocess.run([sys.executable, str(TOUR)], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    steps = done.stdout.split("\n--- ")[1:]
    assert [step.partition(".")[0] for step in steps] == [str(number) for number in range(1, 11)]
    assert all(len(step.splitlines()) > 1 for step in steps)
    assert "hits 3, misses 0" in done.stdout
