"""Serving a model, for those who come from torch.compile: batches and lengths that change, and no later compile.

Run it: each part asserts what its comment says.
"""

import torch

import framefuse

torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()

# torch.compile(model) becomes framefuse.compile(model). The module that you get shares parameters, buffers and hooks
# with the one you gave; state_dict() has the same keys, without a prefix.
fast = framefuse.compile(model)
assert list(fast.state_dict()) == list(model.state_dict())

with torch.inference_mode():
    # The first call gives eager's result while it is recorded; there is no minute of compiling before it.
    x = torch.randn(2, 10, 32)
    torch.testing.assert_close(fast(x), model(x))

    # Sizes are run-time values from the first call on: dynamic=True and mark_dynamic are not needed. Batches of one
    # are a case of their own, since sizes of 1 broadcast.
    fast(torch.randn(1, 12, 32))
    with framefuse.assert_compiles(0, fast):
        for batch in (1, 2, 3, 8):
            for length in (5, 17, 64):
                x = torch.randn(batch, length, 32)
                torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)

# dynamic=False makes sizes constants, as torch.compile's does: one compilation for each shape.
static = framefuse.compile(model, dynamic=False)
with torch.inference_mode(), framefuse.assert_compiles(2, static):
    for length in (5, 6, 5, 6):
        static(torch.randn(2, length, 32))

# fullgraph=True turns the first thing that would break the graph into an error that names its line.


def clip(x):
    return x / x.norm() if x.norm() > 1 else x


try:
    framefuse.compile(clip, fullgraph=True)(torch.ones(3))
except framefuse.UserError as error:
    assert "serve.py" in str(error) and "torch.where" in str(error)
else:
    raise AssertionError("a branch on a tensor is no whole graph")

# Without it the branch costs one step: both ways are compiled, and the call works as under eager.
clipped = framefuse.compile(clip)
for scale in (0.1, 10.0, 0.2, 20.0):
    x = torch.full((3,), scale)
    torch.testing.assert_close(clipped(x), clip(x))

print(framefuse.explain(fast))
print("served without a later compile")
