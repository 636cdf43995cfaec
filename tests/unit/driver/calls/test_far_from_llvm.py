"""A process that finds what it calls in the cache needs torch and the C extension: no LLVM, not even installed."""

import os
import subprocess
import sys

PROGRAM = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("llvmlite", "platformdirs"):
            raise ModuleNotFoundError(name)

if sys.argv[1:]:
    sys.meta_path.insert(0, Missing())
    from importlib import metadata
    metadata.version = lambda name, version=metadata.version: version("no " * (name == "llvmlite") + name)
import torch, framefuse
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Softmax(-1))
f = framefuse.compile(lambda x: torch.cos(model(x)).cumsum(0))
for training in (False, True):
    torch.set_grad_enabled(training)
    for size in (3, 5):
        x = torch.randn(size, 8)
        torch.testing.assert_close(f(x), model(x).cos().cumsum(0))
        if training:
            f(x).sum().backward()
report = framefuse.explain(f)
assert report.hits, report
found = all("found" in graph.seconds for graph in report.graphs)
print(found, "llvmlite" in sys.modules, "platformdirs" in sys.modules)
"""


def run(folder, *arguments):
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder), "FRAMEFUSE_CACHE": "1", "FRAMEFUSE_CHECK": "0"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_what_an_earlier_process_kept_runs_where_llvm_is_missing(tmp_path):
    assert run(tmp_path) == ["False", "True", "False"]
    assert run(tmp_path) == ["True", "False", "False"]
    assert run(tmp_path, "missing") == ["True", "False", "False"]
