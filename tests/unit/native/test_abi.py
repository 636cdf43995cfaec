"""What the probe learnt agrees with torch, and each fact can be missing."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import framefuse
from framefuse import _native
from framefuse.guards.check import Hit, Miss, check
from framefuse.ir import dtypes
from framefuse.ir.facts import GlobalState, TensorSpec
from framefuse.ir.numbers import Symbol
from framefuse.ir.plan import GuardProgram
from framefuse.native import abi, autograd_nodes, libraries


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    abi.initialise()


def tensors() -> list[torch.Tensor]:
    with torch.inference_mode():
        inference = torch.randn(3)
    with torch.enable_grad():
        derived = torch.randn(3, requires_grad=True) * 2
    flipped = torch.nn.Parameter(torch.randn(2, 2)).requires_grad_(False)
    return [
        torch.randn(3, 4), torch.randn(3, 4).t(), torch.randn(()), torch.randn(0, 3), torch.randn((2,) * 7),
        torch.randn(9)[2:5],
        torch.randn(1, 3).expand(2, 3), torch.nn.Parameter(torch.randn(2)), torch.randn(2, requires_grad=True),
        derived, inference,
        flipped, torch.randn(2).add_(1).add_(1), *(torch.zeros(2, dtype=row.torch) for row in dtypes.ROWS),
    ]  # fmt: skip


@pytest.mark.parametrize("without", [(), *((name,) for name in abi.FACTS)], ids=lambda names: "-".join(names) or "all")
def test_tensors_read_the_same_without_any_fact(without: tuple[str, ...]) -> None:
    known = abi.initialise(without)
    assert not known & set(without)
    codes = {row: _native.tensor_facts(torch.zeros(1, dtype=row.torch))["dtype"] for row in dtypes.ROWS}
    assert len(set(codes.values())) == len(dtypes.ROWS)
    for tensor in tensors():
        facts = _native.tensor_facts(tensor)
        assert facts == {
            "keys": abi.keys_of(tensor), "dtype": codes[dtypes.BY_TORCH[tensor.dtype]], "device_type": 0,
            "device_index": -1,
            "sizes": tuple(tensor.shape), "strides": tensor.stride(), "data": tensor.data_ptr(),
            "requires_grad": tensor.requires_grad, "version": -1 if tensor.is_inference() else tensor._version,
        }  # fmt: skip


@pytest.mark.parametrize("without", [(), ("version",), ("handle",)])
def test_versions_rise_without_any_fact(without: tuple[str, ...]) -> None:
    abi.initialise(without)
    first, second = torch.zeros(2), torch.nn.Parameter(torch.zeros(3))
    with torch.inference_mode():
        inference = torch.zeros(2)
    view = first[:1]
    _native.raise_versions(first, second, inference, first)
    assert (first._version, view._version, second._version) == (2, 2, 1)
    with pytest.raises(TypeError):
        _native.raise_versions(first, 3)  # type: ignore[arg-type]


def read_state() -> GlobalState:
    return GlobalState(
        torch.is_grad_enabled(), torch.is_inference_mode_enabled(),
        (("cpu", torch.is_autocast_enabled("cpu"), str(torch.get_autocast_dtype("cpu"))),),
        str(torch.get_default_dtype()), "cpu",
        torch.are_deterministic_algorithms_enabled(), torch._C._len_torch_function_stack(), abi.thread_keys(),
    )  # fmt: skip


MODES: dict[str, Any] = {
    "nothing": torch.enable_grad, "no_grad": torch.no_grad, "inference": torch.inference_mode,
    "device": lambda: torch.device("cpu"),
    "autocast": lambda: torch.autocast("cpu", dtype=torch.float16), "dual": torch.autograd.forward_ad.dual_level,
}  # fmt: skip


@pytest.mark.parametrize("without", [(), *((name,) for name in abi.FACTS)], ids=lambda names: "-".join(names) or "all")
def test_guards_decide_the_same_without_any_fact(without: tuple[str, ...]) -> None:
    """Programs are made under each mode and checked under each, on tensors of every kind."""
    abi.initialise(without)
    made = []
    for mode in MODES:
        with MODES[mode]():
            example = torch.randn(4, 3)
            spec = TensorSpec(
                torch.Tensor, abi.keys_of(example), dtypes.FLOAT32, "cpu", (Symbol("s0"), 3), (0, 1), None, False
            )
            instructions = (("arg", 0, 0), ("tensor", 0, spec, (("size", 0, 0),)))
            program = GuardProgram(read_state(), instructions, 1, 1, ("", ""))
            made.append((program, _native.GuardSet(program), GuardProgram(None, instructions, 1, 1, ("", ""))))
    arguments: list[Any] = [torch.randn(4, 3), torch.randn(7, 3), torch.randn(3, 4).t(), torch.randn(4, 3, 1), 3, None]
    arguments += [
        torch.randn(4, 3, dtype=torch.float64),
        torch.randn(0, 3),
        torch.randn(1, 3),
        torch.randn(4, 3, requires_grad=True),
    ]
    arguments += [
        torch.nn.Parameter(torch.randn(4, 3)),
        torch._neg_view(torch.randn(4, 3)),
        torch.empty(4, 3, device="meta"),
    ]
    hits = 0
    for mode in MODES:
        with MODES[mode]():
            for argument in [*arguments, torch.randn(4, 3)]:
                for program, guards, bare in made:
                    expected, found = check(program, (argument,)), guards.check((argument,))
                    assert (found if isinstance(found, int) else -2) == (
                        expected.index if isinstance(expected, Miss) else -2
                    )
                    hits += isinstance(expected, Hit)
                    stateless, alone = check(bare, (argument,)), _native.GuardSet(bare).check((argument,))
                    assert isinstance(alone, int) is isinstance(stateless, Miss)
    assert hits > 20


@pytest.mark.skipif(torch.version.cuda is None, reason="a build of torch whose default device cannot move")
@pytest.mark.parametrize("without", [(), ("default_device",)])
@pytest.mark.filterwarnings("ignore:.*set_default_tensor_type")
def test_a_moved_default_device_never_passes(without: tuple[str, ...]) -> None:
    abi.initialise(without)
    guards = _native.GuardSet(GuardProgram(read_state(), (("arg", 0, 0),), 1, 0, ("",)))
    try:
        for _ in range(2):
            assert isinstance(guards.check((1,)), tuple)
            torch._C._set_default_tensor_type(torch.cuda.FloatTensor)
            assert guards.check((1,)) == -1
            torch._C._set_default_tensor_type(torch.FloatTensor)
    finally:
        torch._C._set_default_tensor_type(torch.FloatTensor)


@pytest.mark.parametrize("without", [(), ("dtype",), ("key_set",), ("sizes",), ("getters",), ("handle",)])
def test_tensors_of_another_device_are_told_apart(without: tuple[str, ...]) -> None:
    """What their bytes say is learnt from the first that passes; every later one meets the same checks."""
    abi.initialise(without)
    for shape in ((4, 3), (2, 3, 4)):
        example = torch.empty(shape, device="meta")
        order = tuple(range(len(shape)))
        spec = TensorSpec(torch.Tensor, abi.keys_of(example), dtypes.FLOAT32, "meta", shape, order, None, None)
        guards = _native.GuardSet(GuardProgram(None, (("arg", 0, 0), ("tensor", 0, spec, ())), 1, 0, ("", "")))
        others = [
            torch.empty(shape), torch.empty(shape, device="meta", dtype=torch.float64),
            torch.empty(shape, device="meta", dtype=torch.int32), torch.empty((5, *shape[1:]), device="meta"),
            torch.empty(shape[::-1], device="meta").permute(order[::-1]),
        ]  # fmt: skip
        for other in others:
            assert guards.check((other,)) == 1
        for _ in range(3):
            assert isinstance(guards.check((example,)), tuple)
            assert isinstance(guards.check((torch.empty(shape, device="meta"),)), tuple)
            for other in others:
                assert guards.check((other,)) == 1


def test_dual_tensors_never_pass() -> None:
    forward_ad = torch.autograd.forward_ad
    abi.initialise()
    example = torch.randn(4)
    spec = TensorSpec(torch.Tensor, abi.keys_of(example), dtypes.FLOAT32, "cpu", (4,), (0,), None, None)
    guards = _native.GuardSet(GuardProgram(read_state(), (("arg", 0, 0), ("tensor", 0, spec, ())), 1, 0, ("", "")))
    assert isinstance(guards.check((example,)), tuple)
    with forward_ad.dual_level():
        assert guards.check((forward_ad.make_dual(example, torch.ones(4)),)) == -1
    assert isinstance(guards.check((example,)), tuple)


def test_transforms_never_pass() -> None:
    example = torch.randn(4, 3)
    spec = TensorSpec(torch.Tensor, abi.keys_of(example), dtypes.FLOAT32, "cpu", (3,), (0,), None, None)
    guards = _native.GuardSet(GuardProgram(read_state(), (("arg", 0, 0), ("tensor", 0, spec, ())), 1, 0, ("", "")))
    seen: list[Any] = []

    def look(x: torch.Tensor) -> torch.Tensor:
        seen.append(guards.check((x,)))
        return x.sum()

    assert isinstance(guards.check((example[0],)), tuple)
    torch.vmap(look)(example)
    torch.func.grad(look)(example[0])
    torch.func.functionalize(look)(example[0])
    assert seen == [-1, -1, -1]


def test_the_state_of_each_thread_is_its_own() -> None:
    guards = _native.GuardSet(GuardProgram(read_state(), (), 0, 0, ()))
    answers: list[Any] = []

    def work() -> None:
        answers.append(isinstance(guards.check(()), tuple))
        with torch.inference_mode():
            answers.append(guards.check(()))

    with torch.enable_grad():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert answers == [True, -1]


def test_all_facts_are_known_on_this_torch() -> None:
    abi.initialise()
    missing = set(abi.FACTS) - abi.known
    assert not missing & {"handle", "getters", "wrap", "grad_mode"}, abi.unknown


def test_the_probe_may_look_at_any_address() -> None:
    tensor = torch.tensor([77, -1], dtype=torch.int32)
    with libraries.Peek() as peek:
        assert [peek(address, 4) for address in (8, 0xDEAD_BEEF_000, 1 << 46)] == [None, None, None]
        assert peek(tensor.data_ptr(), 4) == (77).to_bytes(4, sys.byteorder)
        assert peek(tensor.data_ptr() + 4, 4) == b"\xff\xff\xff\xff"


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match="no such fact: nonsense; there are handle"):
        abi.initialise(("nonsense",))


def test_the_probe_leaves_torch_as_it_was() -> None:
    def everything() -> tuple[Any, ...]:
        state = (
            torch.get_default_dtype(),
            torch.is_grad_enabled(),
            torch.are_deterministic_algorithms_enabled(),
            abi.thread_keys(),
        )
        return (
            *state,
            torch._C._len_torch_function_stack(),
            torch.random.get_rng_state().tolist(),
            torch.get_num_threads(),
        )

    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad():
            before = everything()
            abi.initialise()
            assert everything() == before
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_extension_imports_without_torch() -> None:
    code = (
        "import importlib.util as u, sys\n"
        f"s = u.spec_from_file_location('framefuse._native', {_native.__file__!r})\n"
        "m = u.module_from_spec(s); s.loader.exec_module(m)\n"
        "assert 'torch' not in sys.modules\n"
        "d = m.Dispatch(lambda a, b=2: a + b, None)\n"
        "assert d(1) == 3 and d.bind(1) == (1, 2)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_word_beside_the_node_is_told_apart(monkeypatch, nodes):
    """What lies on the heap may make several words of a node point near its C++ node; those of other nodes do not."""
    real, asked = autograd_nodes._places, []

    def places(node, mark):
        asked.append(mark)
        return real(node, mark) | ({24, 32} if len(asked) <= nodes else set())

    monkeypatch.setattr(autograd_nodes, "_places", places)
    assert "edges" in abi.initialise()
    assert len(asked) == nodes + 1 == len(set(asked))


def test_words_that_stay_candidates_are_not_trusted(monkeypatch):
    real = autograd_nodes._places
    monkeypatch.setattr(autograd_nodes, "_places", lambda node, mark: real(node, mark) | {24})
    try:
        assert "edges" not in abi.initialise()
    finally:
        monkeypatch.undo()
        assert "edges" in abi.initialise()


def walks(count: int, *asked: str) -> None:
    """Compares gradients of a compiled product with eager's, in so many walks that ask for some of them."""
    function = framefuse.compile(lambda x, w: (x * w).sin())
    values = {"x": torch.randn(3, requires_grad=True), "w": torch.randn(3, requires_grad=True)}
    wanted = [values[name] for name in asked]
    function(*values.values())
    for _ in range(count):
        gradients = torch.autograd.grad(function(*values.values()).sum(), wanted)
        eager = torch.autograd.grad((values["x"] * values["w"]).sin().sum(), wanted)
        torch.testing.assert_close(gradients, eager)


@pytest.mark.parametrize("asked", [("x", "w"), ("x",), ("w",)])
def test_what_the_engine_wants_is_read_natively_once_python_has_seen_the_same(monkeypatch, asked):
    seen = []

    def compared(node, count):
        seen.append(autograd_nodes.compared_wanted(node, count))
        return seen[-1]

    monkeypatch.setitem(abi.FALLBACKS, "compared_wanted", compared)
    assert "edges" in abi.initialise()
    walks(20, *asked)
    proof = autograd_nodes.PROOF
    assert [each for _, each in seen] == ([1] * proof if len(asked) == 2 else [proof])
    walks(3, "x"), walks(3, "w"), walks(3, "x", "w")
    assert len(seen) in (1, proof)


def test_a_table_that_reads_otherwise_is_not_read_natively(monkeypatch):
    asked = []

    def wanted(node, count):
        asked.append(count)
        return autograd_nodes.wanted(node, count)

    monkeypatch.setattr(autograd_nodes, "read_wanted", lambda node, count, facts: None)
    monkeypatch.setitem(abi.FALLBACKS, "wanted", wanted)
    abi.initialise()
    walks(4, "w")
    assert len(asked) == 3
