"""Exports a program, and times what was exported beside eager and the other ways to run it; prints one line of JSON.

Run as `python -m benchmarks.starting.shipped TARGET`, with TARGET as in `benchmarks.starting.first_call`: size
of the file, seconds to load it, and of a call of each contestant in turns. One whose library is not installed, or that
fails on the program, is left out with one line that says why.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import framefuse
from benchmarks.harness.compilers import cold_caches
from benchmarks.harness.processes import ROOT
from benchmarks.harness.timing import Arguments, Column, interleaved, timed
from benchmarks.starting.first_call import target

Function = Callable[..., Any]
Inputs = Sequence[Arguments]
PASSES = 15
REST = 0.1  # seconds, in which the threads of the contestant before fall asleep
CALLS = 4  # with inputs of their own, in each pass


def exported(function: Function, inputs: Inputs, folder: Path) -> Function:
    """The program as framefuse exports it."""
    framefuse.export(function, inputs[0], folder / "framefuse.so")
    loaded: Function = framefuse.load(folder / "framefuse.so", threads=torch.get_num_threads())
    return loaded


def compiled(function: Function, inputs: Inputs, folder: Path) -> Function:
    """As framefuse compiles it in this process."""
    fast: Function = framefuse.compile(function)
    return fast


def torch_compiled(function: Function, inputs: Inputs, folder: Path) -> Function:
    """As torch.compile does."""
    return torch.compile(function)


def aot_inductor(function: Function, inputs: Inputs, folder: Path) -> Function:
    """As AOTInductor packages it."""
    inductor = importlib.import_module("torch._inductor")
    program = torch.export.export(_module(function), inputs[0], dynamic_shapes=changing(inputs))
    loaded: Function = inductor.aoti_load_package(
        inductor.aoti_compile_and_package(program, package_path=str(folder / "inductor.pt2"))
    )
    return loaded


def onnx_runtime(function: Function, inputs: Inputs, folder: Path) -> Function:
    """As ONNX Runtime's CPU build runs it."""
    runtime = importlib.import_module("onnxruntime")
    path = str(folder / "program.onnx")
    torch.onnx.export(_module(function), inputs[0], path, dynamo=True, dynamic_shapes=changing(inputs))
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    return lambda *given: session.run(None, dict(zip(names, (each.numpy() for each in given), strict=True)))


def changing(inputs: Inputs) -> tuple[dict[int, Any], ...] | None:
    """The dimensions of each argument that calls give in several sizes, for those who must be told; None without any.
    """
    found = tuple(
        {d: torch.export.Dim.DYNAMIC for d, sizes in enumerate(zip(*(each.shape for each in given), strict=True))
         if len(set(sizes)) > 1}
        for given in zip(*inputs, strict=True)
    )  # fmt: skip
    return found if any(found) else None


CONTESTANTS = {
    "exported": exported,
    "compiled": compiled,
    "torch": torch_compiled,
    "inductor": aot_inductor,
    "onnx": onnx_runtime,
}


def shipped(name: str, contestants: list[str]) -> dict[str, Any]:
    """Seconds a call of each contestant and of eager, the file's `bytes` and the seconds to load it (`load_s`);
    under `missing` what was left out, and why.
    """
    function, inputs, _ = target(name)
    inputs = inputs[:CALLS]
    columns, missing, found = {"eager": Column(function, inputs)}, {}, {}
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        for each in contestants:
            try:
                made = CONTESTANTS[each](function, inputs, Path(folder))
                for arguments in inputs:
                    made(*arguments)
            except Exception as error:  # whatever another library raises, the others are still worth measuring
                missing[each] = f"{type(error).__name__}: {error}".partition("\n")[0][:160]
            else:
                columns[each] = Column(made, inputs)
        file = Path(folder) / "framefuse.so"
        if file.exists():
            found = {"bytes": float(file.stat().st_size), "load_s": timed(framefuse.load, (file,))}
        times = interleaved(columns, PASSES, rest=REST)
    return {**found, **{f"{each}_s": seconds for each, seconds in times.items()}, "missing": missing}


def in_fresh_process(name: str, contestants: list[str], threads: int) -> dict[str, Any]:
    """What `shipped` measures, taken in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.starting.shipped", name]
    command += ["--threads", str(threads), "--with", *contestants]
    answer = subprocess.run(command, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, check=False)
    if answer.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{answer.stderr}")
    measured: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return measured


def _module(function: Function) -> torch.nn.Module:
    if isinstance(function, torch.nn.Module):
        return function

    class Called(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return function(x)

    return Called()


def main() -> None:
    """Measures what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", help="a model of the zoo, or chain:N")
    parser.add_argument("--with", nargs="+", choices=list(CONTESTANTS), default=list(CONTESTANTS), dest="contestants")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (1)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with cold_caches():
        print(json.dumps(shipped(options.target, options.contestants)))


if __name__ == "__main__":
    main()
