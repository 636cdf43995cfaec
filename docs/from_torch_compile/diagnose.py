"""Finding out what happened, for those who come from torch.compile: breaks, recompilations, bisecting, own backends.

Run it: each part asserts what its comment says.

    torch.compile                                   framefuse
    torch._dynamo.explain(f)(x)                     framefuse.explain(f); explain(f, x, time=True) times it
    TORCH_LOGS="graph_breaks"                       the breaks of explain; docs/stops has a page for each reason
    TORCH_LOGS="recompiles"                         "compiled because" of explain; the logger "framefuse" at level INFO
    TORCH_LOGS="output_code"                        options={"report": "folder"}, or options={"log": "kernels"}
    torch.compiler.disable, allow_in_graph, ...     framefuse.disable, allow_in_graph, assume_constant_result
    torch._dynamo.reset()                           framefuse.reset()
    backend="eager", "aot_eager" to bisect          the same, and "python"; framefuse.graphs(f) gives the graphs
    torch.compiler.is_compiling()                   the same function: True in your code. Installed libraries hear
                                                    False, as some compute something else or fail when they hear True
                                                    (PaliGemma and LongT5 in transformers); a look at values behind
                                                    it is a break. They hear True under fullgraph=True, in exports,
                                                    and where transformers only spares itself a mask of ones
                                                    or marks for other compilers
"""

import logging
import tempfile
from pathlib import Path

import torch

import framefuse

told = []
handler = logging.Handler()
handler.emit = lambda record: told.append(record.getMessage())
logging.getLogger("framefuse").addHandler(handler)
logging.getLogger("framefuse").setLevel(logging.INFO)


class Settings:
    scale = 2.0


settings = Settings()
settings.scale = 3.0


@framefuse.compile
def forward(x, training):
    if training:
        x = x * settings.scale
    print("mean", f"{x.mean():.1f}")  # a break: it runs as it is, and what is before and after it is compiled
    return x.softmax(-1)


x = torch.ones(2, 3)
forward(x, True), forward(x, True)
explanation = framefuse.explain(forward)
assert any("diagnose.py" in str(reason.line) for reason in explanation.breaks)

# A recompilation names the place, both values and the line that asked: in explain, and in Python's logging.
forward(x, False)
settings.scale = 4.0
forward(x, True)
assert any("training was True, is False" in text for text in told)
assert any("settings.scale was 3.0, is 4.0" in text and "any value from now on" in text for text in told)
settings.scale = 5.0
with framefuse.assert_compiles(0, forward):
    forward(x, True)

# explain runs nothing. With arguments it says which graph would take such a call; time=True times it beside eager, with
# what each break takes. It says so where that would change something which cannot be put back; what is printed here is
# held back, and framefuse.profile makes any call.
report = framefuse.explain(forward, x, True, time=True)
assert report.prices and "of a call's" in str(report)


def quiet(x):
    return (x * 2).softmax(-1)


# Where a result looks wrong, each of these backends leaves out a stage more: "python" runs the kernels element by
# element, "aot_eager" has torch run the lowered and differentiated graphs, "eager" the captured graph. The first that
# is right names the stage before it: code generation, fusion, lowering and derivatives, else capture. They train too.
# disable=True gives the function back as it was.
for backend in ("eager", "aot_eager", "python", "native"):
    compiled = framefuse.compile(quiet, backend=backend)
    compiled(x)
    torch.testing.assert_close(compiled(x), quiet(x))
assert framefuse.compile(quiet, disable=True) is quiet

# A backend of your own is torch.compile's contract: it gets a torch.fx.GraphModule and example inputs.
seen = []


def mine(graph, inputs):
    seen.append(graph.code)
    return graph.forward


compiled = framefuse.compile(quiet, backend=mine)
compiled(x), compiled(x)
assert "softmax" in seen[0]

# In training it takes part in torch's autograd, as aot_autograd(fw_compiler=..., bw_compiler=...) makes a backend do.
# The graphs of framefuse's own ways print, run, and are FX modules: captured, forward, and backward once it was asked.
weight = torch.randn(3, requires_grad=True)
trained = framefuse.compile(lambda x: quiet(x * weight))
for _ in range(2):
    trained(x).sum().backward()
graphs = framefuse.graphs(trained)[0]
assert "softmax" in str(graphs.captured) and len(graphs.backward) == 1
torch.testing.assert_close(graphs.forward(x, weight.detach())[0], quiet(x * weight).detach())

# Every stage's product as text, each operation under the line of the program that it came from.
with tempfile.TemporaryDirectory() as folder:
    compiled = framefuse.compile(quiet, options={"report": folder})
    compiled(x), compiled(x)
    assert any("softmax" in path.read_text() for path in Path(folder).rglob("*.txt"))

print("diagnosed")
