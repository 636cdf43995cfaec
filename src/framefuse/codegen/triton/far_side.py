"""Runs as a process of its own: compiles the kernels that it is given, one after the other (``pool.py``).

It takes pickled jobs from its input and gives pickled answers, until its input ends. It imports neither torch nor the
rest of this package, which would take ten times as long as Triton.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import pickle
import signal
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType

PR_SET_PDEATHSIG = 1
ROOMS = ("framefuse", "framefuse.codegen", "framefuse.codegen.triton")


def serve() -> None:
    """Answers ``None`` when all is imported, then each job by a binary with its shared memory, or by why there is none:
    the text of what Triton refuses, or nothing where the other side had better see for itself.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is the program's
    jobs, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what compilers print goes elsewhere
    sys.path[:], nvidia, places = pickle.load(jobs)
    _without_torch(nvidia)
    stages = importlib.import_module("framefuse.codegen.triton.stages")
    unsupported = importlib.import_module("framefuse.codegen.unsupported").Unsupported
    importlib.import_module("framefuse.codegen.triton.device")
    importlib.import_module("triton.compiler.compiler")
    importlib.import_module("triton.compiler.code_generator")  # which the first compile would import in each fork
    mine = _forked(places)
    if mine is not None:
        jobs.close()
        answers.close()
        jobs, answers = os.fdopen(mine, "rb"), os.fdopen(os.dup(mine), "wb")
    answer: object = None
    while True:
        try:
            pickle.dump(answer, answers)
            answers.flush()
            job = pickle.load(jobs)
        except (EOFError, OSError):
            return
        try:
            binary = stages.run(stages.Job(*job))
            answer = binary.code, binary.shared
        except unsupported as error:
            answer = str(error)
        except Exception:
            answer = None


def _forked(places: list[int]) -> int | None:
    """Makes a process for each of the sockets in ``places``; gives each its own, and None to this one."""
    gc.freeze()  # a collection would write to pages that all share
    parent, mine = os.getpid(), None
    for place in places:
        if not os.fork():
            mine = place
            with suppress(OSError, AttributeError):
                ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(0)
            break
    for place in places:
        if place != mine:
            os.close(place)
    return mine


def _without_torch(nvidia: bool) -> None:
    """Packages that only find their files, and what would ask torch whose GPUs there are."""
    inside = Path(__file__).parents[2]
    for name in ROOMS:
        package = ModuleType(name)
        package.__path__ = [str(inside.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package
    vendor = ModuleType("framefuse.codegen.triton.vendor")
    vendor.__dict__["NVIDIA"] = nvidia
    sys.modules[vendor.__name__] = vendor


if __name__ == "__main__":
    serve()
