"""Training, for those who come from torch.compile: the model alone, then the whole step; mixed precision; checkpoints.

Run it: each part asserts what its comment says.
"""

import copy
import io

import torch
from torch.nn import functional as F

import framefuse


def made():
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.LayerNorm(32), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(32, 4)
    )
    return net, torch.optim.AdamW(net.parameters(), lr=1e-2)


def batches(count):
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        yield torch.randn(8, 16, generator=generator), torch.randint(0, 4, (8,), generator=generator)


def losses(model, optimizer, step):
    torch.manual_seed(2)  # dropout draws eager's numbers, compiled or not
    return [step(model, optimizer, x, y).item() for x, y in batches(12)]


def one_step(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


eager = losses(*made(), one_step)

# 1. The model alone, as with torch.compile: loss, backward and optimizer stay where they are in your loop.
net, optimizer = made()
torch.testing.assert_close(losses(framefuse.compile(net), optimizer, one_step), eager)

# 2. The whole step: backward() and the optimizer inside the compiled function, which torch.compile would break at or
# refuse. Gradients need no memory of their own between the two, and the optimizer's loop over parameters is compiled.
net, optimizer = made()
torch.testing.assert_close(losses(net, optimizer, framefuse.compile(one_step)), eager)


# 3. Mixed precision, clipping and accumulation are the same lines as under eager.
def mixed(model, optimizer, x, y):
    for part, target in zip(x.chunk(2), y.chunk(2), strict=True):
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(part), target) / 2
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


want = losses(*made(), mixed)
net, optimizer = made()
torch.testing.assert_close(losses(framefuse.compile(net), optimizer, mixed), want, rtol=2e-2, atol=2e-2)

# 4. A checkpoint of the compiled module is one of the module: no `_orig_mod.` in its keys, and it loads into either.
file = io.BytesIO()
compiled = framefuse.compile(net)
torch.save(compiled.state_dict(), file)
file.seek(0)
fresh = copy.deepcopy(net)
fresh.load_state_dict(torch.load(file))
x = torch.randn(3, 16)
compiled.eval(), fresh.eval()
torch.testing.assert_close(compiled(x), fresh(x))

# 5. Derivatives of any order go through compiled code: a gradient penalty, say, which torch.compile refuses.
x = torch.randn(5, 16, requires_grad=True)
for model in (net, compiled):
    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    model.zero_grad()
    slope.pow(2).sum().backward()
    found = torch.stack([parameter.grad.norm() for parameter in model.parameters() if parameter.grad is not None])
    print(f"gradient penalty: {found.norm():.6f}")

print("trained as under eager")
