"""Programs on a GPU give eager's results over several calls, and what runs there are kernels of ours.

With FRAMEFUSE_TEST_DEVICE=cpu the same tests run on the CPU by Triton's interpreter: see
tests/unit/codegen/test_interpreted_programs.py.
"""

import copy
import os

import pytest
import torch
import torch.nn.functional as F
from tests.gpu.programs import FUNCTIONS, MODELS, loss_of

import framefuse
from framefuse.api import compiled_function
from framefuse.ir.code import LaunchedCode, PythonCode
from framefuse.ir.schedule import RunKernel

DEVICE = os.environ.get("FRAMEFUSE_TEST_DEVICE", "cuda")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICE == "cuda" and not torch.cuda.is_available(), reason="torch finds no GPU"),
    pytest.mark.filterwarnings("ignore::UserWarning"),  # of torch, about its own older settings
]
ROWS = (5, 5, 8, 3)  # the second call must hit


@pytest.fixture(autouse=True)
def all_digits():
    """Convolutions do not round their operands to TF32, where a last digit more or less becomes a thousandth."""
    # The operator database of torch forbids to set it in any other way.
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


def seed(number):
    torch.manual_seed(number)


def kernels(products):
    """How many kernels the plans launch on this device; what lies in the CPU's memory is computed there."""
    items = [item for product in products for item in product.stages.code.schedule.items if isinstance(item, RunKernel)]
    assert all(item.device.partition(":")[0] in (DEVICE, "cpu") for item in items)
    there = [item for item in items if item.device.partition(":")[0] == DEVICE]
    launched = [
        code
        for product in products
        for code in product.stages.code.kernels.values()
        if isinstance(code, (LaunchedCode, PythonCode))
    ]
    assert bool(launched) is bool(there)
    return len(there)


def checked(fast, hits):
    """The compiled code that ran: no reason to be eager, and ``hits`` calls by it."""
    state = compiled_function(fast)
    assert not state.reasons and not state.breaks, [str(reason) for reason in (*state.reasons, *state.breaks)]
    assert state.dispatch.hits >= hits
    return state.products


def close(found, expected, scale=1.0):
    """Equal types, dtypes and devices; values as near as two orders of the same sums are."""
    rows = {torch.bfloat16: (2e-2, 2e-2), torch.float16: (4e-3, 4e-3), torch.float64: (1e-9, 1e-9)}
    assert type(found) is type(expected)
    if isinstance(found, (tuple, list)):
        assert len(found) == len(expected)
        for part, other in zip(found, expected, strict=True):
            close(part, other, scale)
    elif isinstance(found, torch.Tensor):
        relative, absolute = rows.get(expected.dtype, (2e-5 * scale, 1e-5 * scale))
        assert found.stride() == expected.stride()
        torch.testing.assert_close(found, expected, rtol=relative, atol=absolute)
    else:
        assert found == expected


@pytest.mark.parametrize("program", FUNCTIONS, ids=lambda program: program.name)
def test_function(program):
    fast = framefuse.compile(program.function)
    with torch.no_grad():
        for number, rows in enumerate(ROWS):
            seed(number)
            ours = program.inputs(rows, DEVICE)
            seed(number)
            theirs = program.inputs(rows, DEVICE)
            seed(number)
            found = fast(*ours)
            seed(number)
            close(found, program.function(*theirs), program.scale)
            close(ours, theirs, program.scale)
    assert kernels(checked(fast, len(ROWS) - 2)) >= program.kernels


@pytest.mark.parametrize("name", MODELS)
def test_gradients(name):
    make, inputs = MODELS[name]
    seed(0)
    eager = make().to(DEVICE)
    model = copy.deepcopy(eager)
    fast = framefuse.compile(model)
    for number, rows in enumerate(ROWS):
        args = inputs(rows, DEVICE)
        for call, module in ((eager, eager), (fast, model)):
            module.zero_grad()
            seed(number)
            loss = loss_of(call(*args))
            loss.backward()
            if module is eager:
                expected = loss
        close(loss.detach(), expected.detach(), 4)
        for ours, theirs in zip(model.parameters(), eager.parameters(), strict=True):
            close(ours.grad, theirs.grad, 10)
        for ours, theirs in zip(model.buffers(), eager.buffers(), strict=True):
            close(ours, theirs, 4)
    products = checked(fast, len(ROWS) - 1)
    assert kernels(products) >= 1
    cases = [case for product in products for part in product.stages.derivatives for case in part.cases]
    assert cases and kernels(cases) >= 1


@pytest.mark.parametrize("way", ["foreach", "fused", "for-loop"])
@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "AdamW"])
def test_optimizer(optimizer, way):
    seed(0)
    first = [torch.randn(7, 3, device=DEVICE), torch.randn(5, device=DEVICE)]
    results = []
    for compiled in (False, True):
        parameters = [torch.nn.Parameter(value.clone()) for value in first]
        made = getattr(torch.optim, optimizer)(parameters, lr=0.05, foreach=way == "foreach", fused=way == "fused")
        step = framefuse.compile(made.step) if compiled else made.step
        for number in range(4):
            seed(number)
            for parameter in parameters:
                parameter.grad = torch.randn_like(parameter)
            step()
        results.append([parameter.detach() for parameter in parameters])
    close(results[1], results[0], 4)
    if DEVICE == "cuda" and way == "fused" and optimizer != "SGD":
        return  # its counts are on the device, so that eager's own kernel is called
    products = checked(step, 1)
    assert kernels(products) >= 1
    assert not products[-1].stages.code.schedule.writes, "kernels write parameters and state in place"


@pytest.mark.parametrize("name", ["perceptron", "block"])
@pytest.mark.parametrize("inside", [True, False])
def test_autocast(name, inside):
    make, inputs = MODELS[name]
    seed(0)
    eager = make().to(DEVICE).eval()
    model = copy.deepcopy(eager)

    def run(module, x):
        with torch.autocast(DEVICE, torch.bfloat16, enabled=inside):
            return module(x)

    fast = framefuse.compile(run)
    for number, rows in enumerate(ROWS):
        seed(number)
        args = inputs(rows, DEVICE)
        with torch.autocast(DEVICE, torch.bfloat16, enabled=not inside):
            found, expected = fast(model, *args), run(eager, *args)
        assert found.dtype is expected.dtype
        torch.testing.assert_close(found, expected, rtol=3e-2, atol=3e-2)
        pairs = ((found, model), (expected, eager))
        gradients = [torch.autograd.grad(loss_of(y), list(m.parameters())) for y, m in pairs]
        for ours, theirs in zip(*gradients, strict=True):
            assert ours.dtype is theirs.dtype
            torch.testing.assert_close(ours, theirs, rtol=5e-2, atol=2e-2)
    assert kernels(checked(fast, len(ROWS) - 1)) >= 1


@pytest.mark.parametrize(
    "how", [{"scale_factor": 2.0}, {"size": (7, 5), "mode": "bilinear"}, {"size": 3, "mode": "area"}]
)
def test_resizing_under_autocast(how):
    seed(0)
    first, last = (torch.nn.Conv2d(3, 3, 3, padding=1).to(DEVICE) for _ in range(2))

    def run(x):
        with torch.autocast(DEVICE, torch.bfloat16):
            return last(F.interpolate(first(x).sigmoid(), **how))

    fast = framefuse.compile(run)
    for rows in ROWS:
        x = torch.randn(rows, 3, 4, 6, device=DEVICE, requires_grad=True)
        results = [(y, *torch.autograd.grad(y.float().sum(), (x, first.weight))) for y in (fast(x), run(x))]
        torch.testing.assert_close(*results, rtol=6e-2, atol=6e-2)
    assert kernels(checked(fast, len(ROWS) - 1)) >= 1


def test_views_that_are_not_aligned():
    def f(x):
        return x * 2 + 1

    fast = framefuse.compile(f)
    base = torch.randn(101, device=DEVICE)
    for start in (0, 1, 2, 3, 4, 0):
        given = base[start : start + 80]
        close(fast(given), f(given))
    assert kernels(checked(fast, 4)) == 1
    said = str(framefuse.explain(fast, base[:80], time=True))
    assert "kernel  x1  " + DEVICE in said and "by Triton" in said and " us -> " in said


def test_no_elements_and_one():
    def f(x):
        return x * 2, x.sum(), torch.softmax(x, -1)

    fast = framefuse.compile(f)
    for sizes in ((4, 3), (0, 3), (1, 3), (4, 1), (1, 1), (4, 3)):
        given = torch.randn(sizes, device=DEVICE)
        close(fast(given), f(given))
    assert kernels(checked(fast, 1)) >= 1


def test_an_index_out_of_range_is_an_error():
    if DEVICE == "cuda":
        pytest.skip("eager's own error ends the use of the device")

    def f(x, i):
        return x[i] * 2

    fast = framefuse.compile(f)
    x = torch.randn(5, device=DEVICE)
    close(fast(x, torch.tensor([1, 2])), f(x, torch.tensor([1, 2])))
    with pytest.raises(IndexError):
        fast(x, torch.tensor([1, 9]))


@pytest.mark.parametrize("part", ["element", "slice"])
def test_the_gradient_of_a_part_that_begins_anywhere(part):
    """Padding of the gradient begins before it, but for the first place of all: a kernel cannot take it for 0."""

    def f(x, k):
        return (x * 2)[:, k if part == "element" else slice(k, k + 2)].sin().sum()

    fast = framefuse.compile(f)
    for k in (0, 1, 2, 0, 3):
        x, y = (torch.arange(10.0, device=DEVICE).reshape(2, 5).requires_grad_() for _ in range(2))
        fast(x, k).backward()
        f(y, k).backward()
        close(x.grad, y.grad)


ON_GPU = pytest.mark.skipif(DEVICE != "cuda", reason="of GPUs only")


@ON_GPU
def test_copies_between_devices():
    def f(x, y):
        there = x.to("cuda", non_blocking=True) * 2 + torch.ones(3, device="cuda")
        return there + y.cuda(), there.cpu() + 1, torch.arange(x.shape[0], device=there.device), there.to(x.device)

    fast = framefuse.compile(f)
    for rows in (4, 4, 6, 5):
        x, y = torch.randn(rows, 3), torch.randn(rows, 3).pin_memory()
        close(fast(x, y), f(x, y))
    products = checked(fast, 2)
    assert {item.device for product in products for item in product.stages.code.schedule.items
            if isinstance(item, RunKernel)} == {"cpu", "cuda:0"}  # fmt: skip


@ON_GPU
def test_settings_of_the_library_hold_when_it_is_called():
    def f(x, y):
        return (x @ y).relu()

    fast = framefuse.compile(f)
    x, y = torch.randn(256, 256, device="cuda"), torch.randn(256, 256, device="cuda")
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        for allowed in (False, True, False, True):
            torch.backends.cuda.matmul.allow_tf32 = allowed
            assert torch.equal(fast(x, y), f(x, y))
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    assert kernels(checked(fast, 3)) == 1


@ON_GPU
def test_questions_about_the_device():
    def f(x):
        if torch.cuda.is_available() and torch.cuda.get_device_capability()[0] >= 7 and x.is_cuda:
            return x * 2 + torch.cuda.current_device()
        return x

    fast = framefuse.compile(f)
    for _ in range(3):
        x = torch.randn(5, device="cuda")
        close(fast(x), f(x))
    assert kernels(checked(fast, 2)) == 1


@ON_GPU
def test_one_seed_gives_one_stream_of_numbers():
    """Between compiled and eager calls the generator of the device goes on where eager's own would."""

    def f(x):
        return F.dropout(x, 0.5) + torch.randn(7, device="cuda"), torch.bernoulli(x.sigmoid())

    fast = framefuse.compile(f)
    x = torch.randn(7, device="cuda")
    streams = []
    for function in (f, fast):
        seed(11)
        streams.append([part for call in (function, f, function, function, f) for part in call(x)])
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*streams, strict=True))
    assert checked(fast, 2)


def test_a_row_of_any_length():
    def f(x):
        return torch.softmax(x, -1)

    fast = framefuse.compile(f)
    for width in (30, 100, 64, 1, 300) if DEVICE == "cpu" else (30, 100, 1000, 5000, 20000, 64, 1):
        x = torch.randn(8, width, device=DEVICE)
        close(fast(x), f(x))
    assert len(checked(fast, 3)) <= 3
