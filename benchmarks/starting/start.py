"""Measures how a process starts: imports, first calls with empty caches and with those of an earlier process, exports.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.harness.processes import ROOT
from benchmarks.harness.report import Field, Row, Say, Value, number
from benchmarks.starting import shipped
from benchmarks.starting.first_call import in_fresh_process
from benchmarks.zoo.zoo import MODELS

TARGETS = ("chain:30", *MODELS)
USUAL = ("chain:30", "mlp", "bert", "gpt2", "vit", "resnet18", "mobilenetv3")
LIMIT = 50  # milliseconds above an eager call that a warm first call may take
TITLE = "First calls in fresh processes, milliseconds above an eager call; warm: an earlier process had compiled"
FIELDS = (
    Field("model", "model"),
    Field("eager_ms", "eager", "{:.1f}"),
    Field("framefuse_cold_ms", "framefuse cold", "{:.0f}"),
    Field("framefuse_warm_ms", "framefuse warm", "{:.0f}"),
    Field("torch_cold_ms", "torch cold", "{:.0f}"),
    Field("torch_warm_ms", "torch warm", "{:.0f}"),
    Field("times_torch", "warm, times torch", "{:.1f}"),
    Field("framefuse_mb", "framefuse MB", "{:.0f}"),
    Field("torch_mb", "torch MB", "{:.0f}"),
)
SHIPPED_TITLE = "Exported programs: size, milliseconds to load and of a call, beside the other ways to run them"
SHIPPED = (
    Field("model", "model"),
    Field("exported_mb", "file, MB", "{:.2f}"),
    Field("load_ms", "load", "{:.1f}"),
    Field("call_eager_ms", "eager", "{:.3f}"),
    Field("call_compiled_ms", "compiled", "{:.3f}"),
    Field("call_exported_ms", "exported", "{:.3f}"),
    Field("call_torch_ms", "torch.compile", "{:.3f}"),
    Field("call_inductor_ms", "AOTInductor", "{:.3f}"),
    Field("call_onnx_ms", "ONNX Runtime", "{:.3f}"),
)
# What a program that compiles imports beyond torch.
IMPORTS = {
    "framefuse": ("framefuse", "framefuse.driver.tree"),
    "torch": ("torch._dynamo", "torch._inductor.compile_fx"),
}
IMPORT = """
import importlib, json, sys, time
import torch

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

before, begun = resident(), time.perf_counter()
for name in sys.argv[1:]:
    importlib.import_module(name)
print(json.dumps({"seconds": time.perf_counter() - begun, "bytes": resident() - before}))
"""


def steps(targets: Sequence[str], compilers: Sequence[str]) -> int:
    """How many processes are started, but for those that import."""
    return len(targets) * (2 * len(compilers) + 1)


def start(say: Say, targets: Sequence[str], compilers: Sequence[str], threads: int) -> Iterator[Row]:
    """One row for each target, as it is measured."""
    for target in targets:
        yield {**measure(target, say, compilers, threads), **exports(target, say, compilers, threads)}


def exports(target: str, say: Say, compilers: Sequence[str], threads: int) -> Row:
    """What the exported program is and takes, beside the contestants that can be had."""
    others = ("torch", "inductor", "onnx") if "torch" in compilers else ()
    say(f"{target}, exported")
    found = shipped.in_fresh_process(target, ["exported", "compiled", *others], threads)
    row: dict[str, Value] = {
        f"call_{name}_ms": 1e3 * found[f"{name}_s"]
        for name in ("eager", *shipped.CONTESTANTS)
        if f"{name}_s" in found
    }
    if "bytes" in found:
        row |= {"exported_mb": found["bytes"] / 1e6, "load_ms": 1e3 * found["load_s"]}
    missing = [f"{name} ({why})" for name, why in found["missing"].items()]
    return {**row, "missing": "; ".join(missing) or None}


def measure(target: str, say: Say, compilers: Sequence[str], threads: int) -> Row:
    """A cold process and a warm one for each compiler, with caches that nothing else has filled."""
    title = target if target.startswith("chain:") else MODELS[target].title
    row: dict[str, Value] = {"model": title}
    for compiler in compilers:
        with tempfile.TemporaryDirectory(prefix="framefuse-bench-", ignore_cleanup_errors=True) as folder:
            for state in ("cold", "warm"):
                say(f"{title}, {compiler}, {state}")
                found = in_fresh_process(target, compiler, threads, caches_in(Path(folder)))
                row[f"{compiler}_{state}_ms"] = 1e3 * (found["first_s"] - found["eager_s"])
                row[f"{compiler}_mb"] = found["bytes"] / 1e6  # of the warm one, which is last
                row.setdefault("eager_ms", 1e3 * found["eager_s"])
    if "torch" in compilers:
        row["times_torch"] = number(row, "torch_warm_ms") / number(row, "framefuse_warm_ms")
    return row


def caches_in(folder: Path) -> Mapping[str, str]:
    """The variables by which both compilers keep what they have compiled in a folder."""
    return {
        "FRAMEFUSE_CACHE": "1",
        "FRAMEFUSE_CHECK": "0",  # under which no program is kept, whoever else asked for it
        "XDG_CACHE_HOME": str(folder),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
    }


def imported(compiler: str) -> dict[str, float]:
    """Seconds and bytes that the imports of a compiler cost beyond those of torch, in a process of its own."""
    command = [sys.executable, "-c", IMPORT, *IMPORTS[compiler]]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    measured: dict[str, float] = json.loads(answer.stdout.splitlines()[-1])
    return measured


def findings(rows: Sequence[Row]) -> list[str]:
    """What the rows show, and what imports cost."""
    said = []
    for compiler in IMPORTS:
        if f"{compiler}_warm_ms" in rows[0]:
            found = imported(compiler)
            what = " and ".join(IMPORTS[compiler])
            said.append(f"importing {what} beyond torch: {found['seconds']:.2f} s, {found['bytes'] / 1e6:.0f} MB")
    warm = {str(row["model"]): number(row, "framefuse_warm_ms") for row in rows}
    slow = [f"{model} {milliseconds:.0f}" for model, milliseconds in warm.items() if milliseconds > LIMIT]
    said += [f"{row['model']} without {row['missing']}" for row in rows if row.get("missing")]
    said.append(f"warm first calls more than {LIMIT} ms above eager's: {', '.join(slow) or 'none'}")
    return said
