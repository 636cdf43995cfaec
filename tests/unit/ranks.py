"""Runs the programs of a module on two processes that talk over gloo, and gives the error of each program on each rank.

A module of programs ends with ``if __name__ == "__main__": ranks.main(PROGRAMS)``; its programs take the rank.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import torch.distributed as dist

WORLD = 2
ROOT = Path(__file__).parents[2]
SECONDS = 240  # more than a loaded machine needs by far


def outcomes(module: str, folder: Path) -> list[dict[str, str]]:
    """For each rank the error of each program, empty where it passed; under ``log`` what the process printed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), "OMP_NUM_THREADS": "1"}
    processes = []
    with contextlib.ExitStack() as files:
        for rank in range(WORLD):
            log = files.enter_context(open(folder / f"log{rank}", "w"))
            command = [sys.executable, "-m", module, str(rank), str(folder / "store"), str(folder / f"{rank}")]
            processes.append(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log))
        try:
            for process in processes:
                process.wait(SECONDS)
        finally:
            for process in processes:
                process.kill()
                process.wait()
    found = []
    for rank in range(WORLD):
        path = folder / f"{rank}"
        found.append(json.loads(path.read_text()) if path.exists() else {})
        found[-1]["log"] = (folder / f"log{rank}").read_text()
    return found


def assert_passed(found: list[dict[str, str]], name: str) -> None:
    """Fails with what a rank raised in this program."""
    for rank, of_rank in enumerate(found):
        error = of_rank.get(name, f"did not run: {of_rank['log'][-2000:]}")
        assert error == "", f"rank {rank}:\n{error}"


def main(programs: Mapping[str, Callable[[int], None]]) -> None:
    """Runs all programs as the rank that the command line names."""
    rank, store, results = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=30)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD, timeout=timeout)
    found = {}
    for name, function in programs.items():
        try:
            function(rank)
            found[name] = ""
        except BaseException:
            found[name] = traceback.format_exc()
        results.write_text(json.dumps(found))
