"""Values of the compiler's types are read back as they were written, and nothing else is written or made."""

import functools
import marshal
import math
import sys

import pytest
import torch

from framefuse.driver.programs.functions import described, function, known, named
from framefuse.driver.programs.records import STRANGER, Unstorable, Writer, read, written
from framefuse.ir.dtypes import BFLOAT16
from framefuse.ir.graph import Node
from framefuse.ir.loops.nodes import LoopKind
from framefuse.ir.numbers import Real, Symbol, maximum
from framefuse.ir.printer import graph_text
from framefuse.ir.wrapped_calls import Draw


def refuse(value):
    raise Unstorable(repr(value))


def again(value):
    return read(written(value, refuse), refuse)


S = Symbol("s0").expr
VALUES = [
    None, True, 1, 1.0, -0.0, 2**80, -(2**63), math.inf, 1 - 2j, ..., "s\x00é\ud800", b"\xff", (), [], {},
    (1, True, 1.0, "1"), [[], [1]], {"a": 1, 2: (None,)}, frozenset((3, 1)), slice(0, S, None), range(1, 9, 3),
    torch.Size((2, 3)), torch.float16, torch.device("cpu"), torch.strided, torch.channels_last, BFLOAT16,
    LoopKind.PARALLEL_VECTOR, S, (S * 3 + 1) // (S + 2) % 7, maximum(S, 4), Real("add", (Real("symbol", ("f0",)),) * 2),
    torch.ops.aten.add.Tensor, Draw("uniform_", (1, 0), torch.float32, "cpu"),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_is_read_back(value):
    found = again(value)
    assert type(found) is type(value) and repr(found) == repr(value)
    assert found == value


def test_floats_keep_their_bits():
    found = again((0.0, -0.0, math.nan, [0.0]))
    assert [math.copysign(1, each) for each in found[:2]] == [1, -1] and math.isnan(found[2])
    assert math.copysign(1, found[3][0]) == 1


def test_objects_that_are_one_stay_one_and_others_stay_others():
    node = Node("iota", (), (), BFLOAT16, (S,))
    other = Node("iota", (), (), BFLOAT16, (S,))
    first, second, third = again((node, other, (node,)))
    assert first is third[0] and first is not second
    one = [1]
    left, right, alike = again((one, one, [1]))
    assert left is right and left is not alike


def test_long_chains_are_no_recursion():
    value = Node("iota", (), (), BFLOAT16, (S,))
    for _ in range(20_000):
        value = Node("neg", (value,), (), BFLOAT16, (S,))
    found, count = again((value,))[0], 0
    while found.inputs:
        found, count = found.inputs[0], count + 1
    assert count == 20_000


def test_equal_values_give_equal_bytes():
    def made(order):
        names = frozenset(order)
        return ("a" * 30, names, {"x": Symbol("s1").expr + 1}, 2.5)

    assert written(made(("p", "q", "r")), refuse) == written(made(("r", "q", "p")), refuse)
    assert written((1, 1.0), refuse) != written((1, 1), refuse) != written((1, True), refuse)


class Mine:
    pass


class Number(int):
    pass


@pytest.mark.parametrize(
    "value", [Mine(), Mine, Number(3), torch.ones(1), torch.Generator(), lambda: 0, {1, 2}, object()]
)
def test_what_is_not_known_is_not_written(value):
    for held in (value, (1, [value]), {"a": value}):
        with pytest.raises(Unstorable):
            written(held, refuse)


def test_operators_that_others_define_are_not_written():
    with torch.library._scoped_library("records_test", "DEF") as library:
        library.define("same(Tensor x) -> Tensor")
        with pytest.raises(Unstorable):
            written(torch.ops.records_test.same.default, refuse)


@pytest.mark.parametrize("data", [b"", b"(", marshal.dumps(1), marshal.dumps((0, [], [(STRANGER + 9, 0)]))])
def test_bytes_of_something_else_are_an_error(data):
    with pytest.raises((ValueError, TypeError, EOFError, IndexError)):
        read(data, refuse)


FUNCTIONS = [
    torch.relu, torch.Tensor.add_, torch.nn.functional.layer_norm, torch.nn.functional.gelu, torch.tanh,
    torch.Tensor.__getitem__,
]  # fmt: skip


@pytest.mark.parametrize("value", FUNCTIONS, ids=lambda function: function.__name__)
def test_a_function_of_torch_has_a_name(value):
    assert function(*named(value)) is value
    assert function(*known(value)) is value


def test_functions_of_the_program_have_none():
    for value in (lambda x: x, Mine, [].append, torch.randn(2).add, torch.Generator().seed):
        with pytest.raises(Unstorable):
            named(value)
    with pytest.raises(Unstorable):
        function("os", "system")
    with pytest.raises(Unstorable):
        function("subprocess", "run")


def test_a_function_is_described_by_what_it_is_and_not_by_what_it_is_called():
    def relu(x):
        return x

    relu.__module__, relu.__qualname__ = "torch.nn.functional", "relu"
    with pytest.raises(Unstorable):
        described(relu)
    assert described(torch.nn.functional.relu) != described(torch.nn.functional.relu6)
    assert described(torch.Tensor.add) != described(torch.add)
    assert described(torch.Tensor.T.__get__) != described(torch.Tensor.mT.__get__)
    assert described(torch.Tensor.T.__get__) == described(torch.Tensor.T.__get__)
    with pytest.raises(Unstorable):
        described(torch.ones(2).add)


@pytest.mark.parametrize("trains", [False, True])
def test_what_the_stages_make_is_read_back(trains, shelf):
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Flatten()
    )
    with torch.set_grad_enabled(trains):
        shelf.compile(model, cache=False)(torch.randn(2, 3, 8, 8))
    stages = shelf.made[0].stages
    assert (stages.halves is not None) is trains
    strangers = Writer(lambda value: ())
    value = (stages.lowered, stages.halves, stages.graph, stages.planned)
    strangers.write(value)
    numbers = {id(each): number for number, each in enumerate(strangers.strangers)}
    data = written(value, lambda each: (numbers[id(each)],))
    lowered, halves, graph, planned = found = read(data, lambda parts: strangers.strangers[parts[0]])
    assert graph_text(lowered) == graph_text(stages.lowered) and graph_text(graph) == graph_text(stages.graph)
    assert planned.items and len(planned.graph.nodes) == len(stages.planned.graph.nodes)
    assert halves is None or (halves.forward is graph) is (stages.halves.forward is stages.graph)
    assert written(found, lambda each: (numbers[id(each)],)) == data


def test_what_holds_itself_cannot_be_written():
    """The variables of a module may hold the dict that they are."""
    variables: dict[str, object] = {"shared": [1, 2]}
    variables |= {"again": variables["shared"], "own": [variables]}
    with pytest.raises(Unstorable, match="holds itself"):
        Writer(lambda value: ()).write(variables)


@pytest.mark.parametrize("value", [torch.conv2d, torch.nn.functional.layer_norm], ids=["native", "python"])
def test_what_a_process_has_set_in_place_of_a_function_is_not_found(value, monkeypatch):
    kept = known(value)
    holder = sys.modules[kept[0]]
    with monkeypatch.context() as patch:
        patch.setattr(holder, kept[1], functools.wraps(value)(lambda *args: value(*args)))
        with pytest.raises(Unstorable):
            function(*kept)
    with monkeypatch.context() as patch:
        patch.setattr(holder, kept[1], torch.relu)
        with pytest.raises(Unstorable):
            function(*kept)
    assert function(*kept) is value
