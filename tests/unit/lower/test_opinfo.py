"""Every operator of torch's own database, lowered and run by the reference, gives what eager gives."""

import itertools
import types
from collections import Counter

import pytest
import torch
from tests.unit.lower.recording import copy, run
from tests.unit.operator_database import OPERATORS

from framefuse.capture.record import record
from framefuse.errors import Stop
from framefuse.ir.verify import verify
from framefuse.lower import lower

WIDE = (torch.float32, torch.bfloat16, torch.int64, torch.bool)
OTHER = (torch.float64, torch.float16, torch.int32, torch.uint8)
SAMPLES = {**dict.fromkeys(WIDE, 3), **dict.fromkeys(OTHER, 1)}
# Results that are not determined by the arguments.
UNDETERMINED = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "empty_permuted")
FOLDERS = sorted({op.name[0] for op in OPERATORS})
TOTAL: Counter[str] = Counter()


def apart(value):
    """Copies of the tensors of a result, so that a view of an argument is computed and not only made."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    return [apart(part) for part in value] if isinstance(value, (list, tuple)) else value


def call(op, input, args, kwargs):
    return apart(op(input, *args, **kwargs))


def as_users(op):
    """The lambdas of the database, as functions of a user's module."""
    if type(op) is not types.FunctionType or not op.__module__.startswith("torch.testing"):
        return op
    space = {**op.__globals__, "__name__": "user"}
    function = types.FunctionType(op.__code__, space, op.__name__, op.__defaults__, op.__closure__)
    function.__kwdefaults__ = op.__kwdefaults__
    return function


def widened(value):
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value
    return type(value)(widened(part) for part in value) if isinstance(value, (list, tuple)) else value


def assert_equal(result, expected, exact):
    """assert_close; a 16-bit result may also be nearer to the result in double than eager's is."""
    if isinstance(expected, (list, tuple)):
        exact_parts = [lambda place=place: exact()[place] for place in range(len(expected))]
        for parts in zip(result, expected, exact_parts, strict=True):
            assert_equal(*parts)
        return
    if not isinstance(expected, torch.Tensor):
        return
    try:
        torch.testing.assert_close(result, expected, equal_nan=True)
    except AssertionError:
        if expected.dtype not in (torch.float16, torch.bfloat16):
            raise
        truth = exact()
        if (result.double() - truth).abs().max() > (expected.double() - truth).abs().max():
            raise
    strides = zip(result.stride(), expected.stride(), expected.shape, strict=True)
    assert not expected.numel() or all(a == b for a, b, size in strides if size > 1), "strides"


def check_sample(name, args):
    """What became of one sample: primitives, library, refused or skipped."""
    with torch.no_grad():
        recording = record(call, copy(args), {}, owner=None)
    if recording.trace is None:
        return "not recorded"
    try:
        graph = lower(recording.trace)
    except Stop:
        return "refused"
    verify(graph)
    if name in UNDETERMINED or any(made.random for made in recording.trace.calls):
        return "random"
    mine, eager = copy(args), copy(args)
    result = run(recording.trace, graph, mine)
    with torch.no_grad():
        expected = call(*eager)
        assert_equal(result, expected, lambda: call(*widened(copy(args))))
        assert_equal(mine[1:3], eager[1:3], lambda: eager[1:3])
    names = {node.attr("name") for node in graph.nodes if node.op == "library"} - {"clone", "contiguous"}
    return "library" if names else "primitives"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("letter", FOLDERS)
def test_operators_named_with(letter):
    wrong = []
    for op in (op for op in OPERATORS if op.name[0] == letter):
        for dtype, count in SAMPLES.items():
            if dtype not in op.supported_dtypes("cpu"):
                continue
            torch.manual_seed(0)
            # op.sample_inputs() walks the stack of the test runner for each sample; this is what it wraps.
            for sample in itertools.islice(op.sample_inputs_func(op, "cpu", dtype, False), count):
                try:
                    kind = check_sample(op.name, (as_users(op.op), sample.input, sample.args, sample.kwargs))
                except Exception as error:
                    wrong.append(f"{op.name} {dtype}: {type(error).__name__} {str(error)[:200]}")
                else:
                    TOTAL[kind] += 1
                    TOTAL[f"{op.name} {kind}"] += 1
    assert not wrong, "\n".join(wrong)


def test_most_of_the_database_is_expressed():
    """Runs last in this file: how many operators have a sample that became primitives only."""
    if not TOTAL:
        pytest.skip("the samples were not run")
    expressed = sum(TOTAL[f"{name} primitives"] > 0 for name in {op.name for op in OPERATORS})
    assert expressed >= 240, TOTAL
