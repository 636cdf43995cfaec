"""Collectives in compiled code, on two processes that talk over gloo: each program runs once on both."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist
from tests.unit.capture import collective_programs

ROOT = Path(__file__).parents[3]
SECONDS = 240  # more than a loaded machine needs by far

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="torch without gloo")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """For each rank the error of each program, empty where it passed."""
    folder = tmp_path_factory.mktemp("ranks")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), "OMP_NUM_THREADS": "1"}
    ranks = []
    with contextlib.ExitStack() as files:
        for rank in range(collective_programs.WORLD):
            log = files.enter_context(open(folder / f"log{rank}", "w"))
            command = [sys.executable, "-m", collective_programs.__name__, str(rank), str(folder / "store")]
            command.append(str(folder / f"{rank}"))
            ranks.append(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log))
        try:
            for process in ranks:
                process.wait(SECONDS)
        finally:
            for process in ranks:
                process.kill()
                process.wait()
    found = []
    for rank in range(len(ranks)):
        path = folder / f"{rank}"
        found.append(json.loads(path.read_text()) if path.exists() else {})
        found[-1]["log"] = (folder / f"log{rank}").read_text()
    return found


@pytest.mark.parametrize("name", collective_programs.PROGRAMS)
def test_program(outcomes, name):
    for rank, found in enumerate(outcomes):
        assert found.get(name, f"did not run: {found['log'][-2000:]}") == "", f"rank {rank}:\n{found.get(name)}"
