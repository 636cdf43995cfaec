"""The table of torch's functions: each row names a function that torch has and says what torch does, no function that
torch marks lacks its row, and no stage keeps a list of its own.
"""

import ast
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from framefuse.capture.recording import queries
from framefuse.ir import elements
from framefuse.ir.ops import TABLE as PRIMITIVES
from framefuse.ir.stops import CATALOGUE
from framefuse.ir.torch_calls import TABLE, TorchCall, is_in_place, statistics
from framefuse.ir.torch_calls.sizes import RULES

SOURCES = Path(queries.__file__).parents[1]
HOMES: tuple[Any, ...] = (
    torch, torch.Tensor, F, torch._C, torch._C._nn, torch.Generator, torch.cuda, torch.mps, torch.backends.cuda,
    torch.accelerator, torch.func, torch.autograd, torch.linalg, torch.special, torch._VF, torch.ops.aten,
    torch.nn.init, elements, torch.overrides, torch.utils.dlpack, torch._C._functorch,
)  # fmt: skip
NAMED_DIMENSIONS = (
    "has_names", "get names", "set names", "rename", "rename_", "refine_names", "align_to", "align_as",
    "unflatten_names",
)  # fmt: skip
NEWER = ("_flash_attention_forward_no_dropout_inplace",)  # than the oldest torch that is supported, 2.11
# Names that this build may lack: of other versions of torch, of builds for a device, of a library, or of our own.
ELSEWHERE = frozenset((
    *NAMED_DIMENSIONS, *NEWER, "get is_hpu", "get is_ort", "is_vulkan_available", "_cuda_getDeviceCount",
    "_cuda_is_available", "_cuda_isCurrentStreamCapturing", "torchvision::nms", "wait_tensor", "copy_uncounted",
))  # fmt: skip


def exists(name: str) -> bool:
    if name.startswith("F."):
        return hasattr(F, name[2:])
    if name.startswith(("get ", "set ")):
        return hasattr(torch.Tensor, name[4:])
    return any(hasattr(home, name) for home in HOMES)


def test_every_row_is_of_a_function_that_torch_has() -> None:
    assert [name for name in TABLE if not exists(name) and name not in ELSEWHERE] == []


def test_a_second_row_of_a_function_is_refused() -> None:
    with pytest.raises(ValueError, match="matmul has a row"):
        TABLE.line(TorchCall(draws=True), "matmul")


def test_no_row_says_nothing() -> None:
    assert [name for name, row in TABLE.items() if row == TorchCall()] == []


def test_every_answer_stop_and_rule_is_one_that_there_is_and_is_used() -> None:
    assert {row.answer for row in TABLE.values() if row.answer} == set(queries.ANSWERING)
    assert {row.data for row in TABLE.values() if row.data} == set(RULES)
    assert {row.stop for row in TABLE.values() if row.stop} <= set(CATALOGUE)
    assert [name for name, row in TABLE.items() if row.stop and row.answer] == []  # the answer would never be asked


def test_what_can_never_be_asked_stands_in_no_row() -> None:
    """A call that ends the recording reaches no later stage."""
    later = ("data", "total", "row_major", "no_gradient", "inside", "gradients", "sparse", "reshapes", "checks")
    wrong = [
        (name, column)
        for name, row in TABLE.items()
        for column in later
        if row.stop and not row.generator and getattr(row, column) != getattr(TorchCall(), column)
    ]
    assert wrong == []
    assert [
        name for name, row in TABLE.items() if row.writes_first and name.endswith("_") and is_in_place(name[:-2])
    ] == []


def _tagged(tag: torch.Tag) -> set[str]:
    """The operators that torch marks."""
    found = set()
    for full in torch._C._dispatch_get_all_op_names():
        space, _, name = full.partition("::")
        base, _, overload = name.partition(".")
        packet = getattr(torch.ops.aten, base, None) if space == "aten" else None
        operator = getattr(packet, overload or "default", None)
        if operator is not None and tag in operator.tags:
            found.add(base)
    return found


def test_what_torch_marks_as_sized_by_values_has_a_row_that_says_so() -> None:
    assert {name for name in _tagged(torch.Tag.dynamic_output_shape) if not TABLE[name].data} == set()


def test_what_torch_marks_as_drawing_has_a_row_that_says_so() -> None:
    assert {name for name in _tagged(torch.Tag.nondeterministic_seeded) if not TABLE[name].draws} == set()


def test_what_torch_marks_as_read_by_value_ends_the_recording() -> None:
    assert {name for name in _tagged(torch.Tag.data_dependent_output) if TABLE[name].stop != "item"} == set()


X, MEAN, VARIANCE, WEIGHT, BIAS = torch.randn(4, 3, 5), torch.zeros(3), torch.ones(3), torch.ones(3), torch.zeros(3)
BEHIND = (0.1, 1e-5)
NORMS: dict[str, tuple[Any, bool]] = {
    "F.batch_norm": (F.batch_norm, True),
    "F.instance_norm": (F.instance_norm, True),
    "batch_norm": (torch.batch_norm, False),
    "instance_norm": (torch.instance_norm, False),
    "native_batch_norm": (torch.native_batch_norm, False),
    "_native_batch_norm_legit": (torch._native_batch_norm_legit, False),
    "_batch_norm_impl_index": (torch._batch_norm_impl_index, False),
}


@pytest.mark.parametrize("flag", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("name", NORMS)
def test_the_statistics_that_torch_writes_are_those_of_the_row(name: str, flag: bool) -> None:
    function, of_python = NORMS[name]
    mean, variance = MEAN.clone(), VARIANCE.clone()
    args: tuple[Any, ...] = (
        (X, mean, variance, WEIGHT, BIAS, flag) if of_python else (X, WEIGHT, BIAS, mean, variance, flag)
    )
    if not of_python:
        args += (*BEHIND, True)[: 2 + (name in ("batch_norm", "instance_norm", "_batch_norm_impl_index"))]
    told = statistics(function, name.removeprefix("F."), args, {})
    before = [(value.clone(), value._version) for value in args[:5]]
    function(*args)
    changed = [value for value, (old, _) in zip(args[:5], before, strict=True) if not torch.equal(value, old)]
    assert [id(value) for value in told] == [id(value) for value in changed]
    row = TABLE[name].statistics
    assert row is not None
    counts = {value._version - version for value, (_, version) in zip(args[:5], before, strict=True)} - {0}
    assert counts == ({1} if row.counted and flag else set())


def test_statistics_by_name_and_by_default() -> None:
    given = {"running_mean": MEAN, "running_var": VARIANCE}
    assert statistics(F.batch_norm, "batch_norm", (X,), given) == []
    assert [id(v) for v in statistics(F.batch_norm, "batch_norm", (X,), {**given, "training": True})] == [
        id(MEAN),
        id(VARIANCE),
    ]
    assert [id(v) for v in statistics(F.instance_norm, "instance_norm", (X, MEAN, VARIANCE), {})] == [
        id(MEAN),
        id(VARIANCE),
    ]


def test_names_that_say_that_they_write() -> None:
    assert is_in_place("add_") and is_in_place("__iadd__") and is_in_place("__setitem__")
    assert not is_in_place("add") and not is_in_place("__add__")


# Lists of torch's functions that say which rule a stage has, or what another part of torch does: each is read by one
# module alone.
RULES_OF_A_STAGE = {
    "lower/autocast.py",  # torch's own lists, by its dispatcher's names
    "lower/known_shapes.py", "lower/pointwise.py", "lower/activations.py", "lower/reductions.py",
    "autodiff/rules/linear_calls.py", "autodiff/rules/composites.py",
    "capture/recording/scalars.py",  # what an in-place call does to a number
    "capture/recording/numpy_calls.py",  # NumPy's
    "runtime/fx_graph.py",  # math's and operator's
}  # fmt: skip
STAGES = ("capture", "lower", "autodiff", "fuse", "runtime")


def _names(node: ast.AST) -> list[str]:
    """The texts of a literal collection, or those that a text of words splits into."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "split":
        return node.func.value.value.split() if isinstance(node.func.value, ast.Constant) else []
    parts = node.elts if isinstance(node, (ast.Tuple, ast.List, ast.Set)) else []
    return [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]


def _is_torchs(name: str) -> bool:
    """Whether this is a method of tensors, and neither one of Python's containers and numbers nor a primitive."""
    of_python = any(hasattr(kind, name) for kind in (list, dict, set, str, float, int))
    return callable(getattr(torch.Tensor, name, None)) and name not in PRIMITIVES and not of_python


def test_no_stage_keeps_a_list_of_torchs_functions() -> None:
    """A list of four functions or more at the top of a module, most of which are torch's."""
    found = []
    for stage in STAGES:
        for path in sorted((SOURCES / stage).rglob("*.py")):
            place = str(path.relative_to(SOURCES))
            for statement in ast.parse(path.read_text()).body:
                if not isinstance(statement, (ast.Assign, ast.AnnAssign)) or place in RULES_OF_A_STAGE:
                    continue
                for node in ast.walk(statement):
                    names = _names(node)
                    torchs = [name for name in names if _is_torchs(name)]
                    if len(names) >= 4 and len(torchs) > len(names) / 2:
                        found.append((place, statement.lineno, torchs))
    assert found == []


def test_a_call_that_a_stage_treats_by_name_has_a_row() -> None:
    """``call.name == "x"`` in a stage: what is special about x is known in one place."""
    found = []
    for stage in STAGES:
        for path in sorted((SOURCES / stage).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Compare) and ast.unparse(node.left) == "call.name":
                    texts = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
                    place = str(path.relative_to(SOURCES))
                    found += [(place, node.lineno, text) for text in texts if text not in TABLE and text not in OURS]
    assert found == []


# The statement of Python's, and what makes a tensor of numbers.
OURS = frozenset(("setitem", "tensor"))
