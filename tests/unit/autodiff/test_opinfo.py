"""Every operator of torch's own database: the gradients of the lowered graph, run by the reference, are eager's."""

import itertools
from collections import Counter

import pytest
import torch
from tests.unit.autodiff.gradient_graphs import gradient_graph, lowered, numbers_of
from tests.unit.lower.recording import copy, read
from tests.unit.lower.test_opinfo import as_users, call
from tests.unit.operator_database import OPERATORS

from framefuse.capture.record import record
from framefuse.codegen.python import compile_graph
from framefuse.errors import Stop

SAMPLES = {torch.float64: 4, torch.float32: 1}
# Calls that autograd differentiates for us: where it gives nothing, we give zeros.
UNDEFINED = ("linalg.norm", "nn.functional.cosine_embedding_loss", "nn.functional.hinge_embedding_loss")
FOLDERS = sorted({op.name[0] for op in OPERATORS})
TOTAL: Counter[str] = Counter()


def tensors_of(value):
    """The tensors of nested arguments, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [tensor for part in value for tensor in tensors_of(part)] if isinstance(value, (list, tuple)) else []


def eager(args, leaves, needs):
    """Results that require grad by place, random tangents, and the gradients of the leaves; None where eager raises."""
    for leaf, need in zip(leaves, needs, strict=True):
        leaf.requires_grad_(need)
    results = dict(enumerate(tensors_of(call(*args))))
    torch.manual_seed(1)
    pairs = {place: (result, torch.randn_like(result)) for place, result in results.items() if result.requires_grad}
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    if not pairs or not wanted:
        return {}, [None] * len(leaves)
    given = [result for result, _ in pairs.values()], wanted, [tangent for _, tangent in pairs.values()]
    found = iter(torch.autograd.grad(*given, allow_unused=True))
    return {k: t for k, (_, t) in pairs.items()}, [next(found) if leaf.requires_grad else None for leaf in leaves]


def detached(value):
    """Nested arguments with each tensor as a leaf of its own."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {name: detached(part) for name, part in value.items()}
    return type(value)(detached(part) for part in value) if type(value) in (list, tuple) else value


def check_sample(op, sample, first):
    """What became of one sample; the ``first`` one is also called again in place of reading a tape."""
    args = (as_users(op.op), sample.input, sample.args, sample.kwargs)
    needs = [tensor.requires_grad for tensor in tensors_of(args[1:])]
    args = detached(args)
    leaves = copy(args)
    for leaf, need in zip(tensors_of(leaves[1:]), needs, strict=True):
        leaf.requires_grad_(need)
    recording = record(call, leaves, {}, owner=None)
    if recording.trace is None or any(made.random for made in recording.trace.calls):
        return "not recorded"
    trace = recording.trace
    try:
        graph = lowered(trace)
    except Stop as stop:
        TOTAL[f"not lowered: {op.name} {stop}"[:120]] += 1
        return "not lowered"
    mine, theirs = copy(args), copy(args)
    leaves = tensors_of(theirs[1:])
    try:
        tangents, expected = eager(theirs, leaves, needs)
    except (RuntimeError, NotImplementedError) as error:
        if any(text in str(error) for text in ("derivative for", "not implemented", "ill-defined")):
            return "eager has none"
        raise
    if not tangents:
        return "no gradient"
    places = {id(tensor): place for place, tensor in enumerate(tensors_of(mine[1:]))}
    inputs = [read(entry.source, mine) for entry in trace.assumptions.inputs]
    wanted = [n for n, tensor in enumerate(inputs) if needs[places[id(tensor)]]]
    outputs = {output.value: place for place, output in enumerate(graph.outputs)}
    values = [ref.value for ref in refs_of(trace.result)]
    by_output = {outputs[values[place]]: tangent for place, tangent in tangents.items()}
    given = [*inputs, *(by_output[place] for place in sorted(by_output))]
    targets = [expected[places[id(inputs[place])]] for place in wanted]
    for again in (False, True)[: 1 + first]:
        try:
            asked = [place in by_output for place in range(len(graph.outputs))]
            backward, exists = gradient_graph(graph, wanted, asked, again)
        except Stop as stop:
            TOTAL[f"refused: {stop}"] += 1
            return "refused"
        found = iter(compile_graph(backward)(given, numbers_of(trace, inputs, mine)))
        for place, there, target in zip(wanted, exists, targets, strict=True):
            result = next(found) if there else None
            if op.name in UNDEFINED and target is None and result is not None:
                assert not result.any()
                continue
            assert (result is None) == (target is None), f"input {place}: {result} for {target}"
            if target is not None:
                torch.testing.assert_close(result, target, equal_nan=True)
    return "checked"


def refs_of(recipe):
    """The tensors of a result's recipe, in order."""
    if hasattr(recipe, "value") and type(recipe).__name__ == "Ref":
        return [recipe]
    return [ref for part in getattr(recipe, "parts", None) or () for ref in refs_of(part)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("letter", FOLDERS)
def test_operators_named_with(letter):
    wrong = []
    for op in (op for op in OPERATORS if op.name[0] == letter and op.supports_autograd):
        for dtype, count in SAMPLES.items():
            if dtype not in op.supported_dtypes("cpu"):
                continue
            torch.manual_seed(0)
            samples = itertools.islice(op.sample_inputs_func(op, "cpu", dtype, True), count)
            for number, sample in enumerate(samples):
                try:
                    kind = check_sample(op, sample, number == 0)
                except Exception as error:
                    wrong.append(f"{op.name} {dtype}: {type(error).__name__} {str(error)[:300]}")
                else:
                    TOTAL[kind] += 1
                    TOTAL[f"{op.name} {kind}"] += 1
    assert not wrong, "\n".join(wrong)
