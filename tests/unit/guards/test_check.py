"""The guards in C and in Python agree, on programs and objects drawn at random and on every instruction."""

from __future__ import annotations

import contextvars
import math
from collections import OrderedDict, defaultdict, deque
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from framefuse import _native
from framefuse.guards.check import Hit, Miss, check, explain
from framefuse.guards.instructions import word_of
from framefuse.ir import dtypes
from framefuse.ir.facts import GlobalState, TensorSpec
from framefuse.ir.numbers import Symbol
from framefuse.ir.plan import GUARD_OPS, GuardProgram
from framefuse.native import abi


@pytest.fixture(scope="module", autouse=True)
def initialised() -> None:
    abi.initialise()


def program(*instructions: tuple[Any, ...], registers: int = 8, numbers: int = 8, state: Any = None) -> GuardProgram:
    return GuardProgram(state, instructions, registers, numbers, tuple(f"i{n}" for n in range(len(instructions))))


def agree(prog: GuardProgram, arguments: tuple[Any, ...]) -> Hit | Miss:
    """Both executors' answer, twice in C so that what it remembers is used."""
    expected = check(prog, arguments)
    guards = _native.GuardSet(prog)
    for _ in range(2):
        found = guards.check(arguments)
        if isinstance(expected, Miss):
            assert found == expected.index, (found, expected)
        else:
            assert isinstance(found, tuple), (prog.instructions[found], expected)
            assert all(map(same, found[0], expected.registers))
            assert found[1] == expected.numbers
    return expected


def same(left: Any, right: Any) -> bool:
    """Identity, except for what getattr makes anew."""
    return left is right or (type(left) in (type(Thing().method), type([].append), tuple, str) and left == right)


class Thing:
    shared = 5

    def __init__(self, **kwargs: Any) -> None:
        self.__dict__.update(kwargs)

    def method(self) -> None:
        pass


class Slotted:
    __slots__ = ("a",)


COUNTER = 0


def make_closure(value: Any) -> Any:
    def inner(a: int = 3, *, b: int = 4) -> Any:
        return value, a, b

    return inner


def empty_closure() -> Any:
    def inner() -> Any:
        return late

    if COUNTER:
        late = 1
    return inner


CLOSURE, OTHER_CLOSURE, EMPTY = make_closure(7), make_closure(7), empty_closure()
TENSOR = torch.zeros(4, 3)
NONE = type(None)

# Objects: atoms that are easily confused, containers, functions, classes and tensors.
SET_VARIABLE: contextvars.ContextVar[int] = contextvars.ContextVar("set")
UNSET_VARIABLE: contextvars.ContextVar[int] = contextvars.ContextVar("unset", default=3)
SET_VARIABLE.set(1)
OBJECTS: list[Any] = [
    0, 1, True, False, -1, 2**63 - 1, 2**63, -(2**63), 10**30, 0.0, -0.0, 1.0, math.nan, math.inf, "", "a", "b", b"a",
    None, 1j,
    -0.0 + 0j, (), (1,), (1.0,), (True, "a"), [], [1, 2], ["a", "b"], {}, {"a": 1}, {"b": 2, "a": 1}, {"a": 1, "b": 2},
    {1: 2},
    {True: 2}, {"a": {}}, {"a": OrderedDict()}, {"a": defaultdict(list)},
    OrderedDict(a=1, b=2), {1, 2}, {"a", "b"}, frozenset((1,)), deque([1, "a"]), deque(),
    SET_VARIABLE, UNSET_VARIABLE,
    Thing(), Thing(a=1), Thing(a=None, b="b"), Slotted(),
    Thing, Slotted,
    int, dict, CLOSURE, OTHER_CLOSURE, EMPTY, len, [].append, Thing().method, Thing(a=2).method, torch.float32, math,
    TENSOR, torch.zeros(3, 4).t(), torch.zeros(4, 3, dtype=torch.float64), torch.zeros(4), torch.zeros(0, 3),
    torch.zeros(1, 3),
    torch.nn.Parameter(torch.zeros(4, 3)), torch.zeros(4, 3, requires_grad=True), TENSOR[1:],
    torch.zeros(3).expand(4, 3),
    torch.zeros(4, 3).to_sparse(), torch.empty(4, 3, device="meta"), torch.tensor(2.5),
    torch.tensor(0.1, dtype=torch.float64), torch.tensor(3), {TENSOR: 1},
]  # fmt: skip
KEYS: list[Any] = ["a", "b", "shared", "method", 0, 1, True, None, -1, "COUNTER", "len", "nothing"]
NAMES = [key for key in KEYS if isinstance(key, str)]
INDICES = [0, 1, 2, -1, -3]
QUESTIONS = [
    (str.startswith, (), ("a",), True), (str.startswith, (), ("a",), False), (str.__eq__, (), ("",), True),
    (str.startswith, (), (1,), True),  # raises
    (str.find, (), ("a", 0, None), 0), (str.find, (), ("a",), False),  # 0 is not False
    (frozenset.__contains__, (frozenset(("a", "c")),), (), True),
]  # fmt: skip


def spec_of(tensor: torch.Tensor, free: bool = False) -> TensorSpec:
    row = dtypes.BY_TORCH[tensor.dtype]
    sizes = tuple(Symbol(f"s{i}") if free else n for i, n in enumerate(tensor.shape))
    order = tuple(range(tensor.dim())) if tensor.is_contiguous() else None
    device = str(tensor.device)
    return TensorSpec(
        type(tensor),
        abi.keys_of(tensor),
        row,
        device,
        sizes,
        order,
        None if order else tensor.stride(),
        tensor.requires_grad,
    )


SPECS = [
    spec_of(t, free)
    for t in OBJECTS
    if isinstance(t, torch.Tensor) and t.layout is torch.strided
    for free in (False, True)
]

picked = st.sampled_from(OBJECTS)


@st.composite
def programs(draw: Any) -> tuple[GuardProgram, tuple[Any, ...]]:
    """A few arguments and long-lived objects, loads from them, and checks that are true, nearly true or random."""
    arguments = tuple(draw(st.lists(picked, min_size=1, max_size=3)))
    instructions: list[tuple[Any, ...]] = []
    registers = numbers = 0
    for _ in range(draw(st.integers(1, 9))):
        op = draw(st.sampled_from(LOADS if registers == 0 else LOADS + CHECKS))
        if op in LOADS:
            instructions.append((op, registers, *draw_load(draw, op, registers, len(arguments))))
            registers += 1
            continue
        r = draw(st.integers(0, registers - 1))
        if op == "apart":
            chosen = tuple(draw(st.lists(st.integers(0, registers - 1), max_size=5)))
            instructions.append((op, chosen, draw(st.integers(0, len(chosen))), (-1,) * len(chosen)))
            continue
        if op == "distinct":
            instructions.append((op, tuple(draw(st.lists(st.integers(0, registers - 1), max_size=5)))))
            continue
        instructions.append((op, r, *draw_check(draw, op, registers, numbers)))
        if op == "tensor":
            free = instructions[-1][2].sizes
            binds = [("size", i, numbers + i) for i, size in enumerate(free) if not isinstance(size, int)]
            instructions[-1] = (op, r, instructions[-1][2], tuple(binds))
            numbers += len(binds)
        numbers += op in ("integer", "real", "scalar", "count", "address")
    return program(*instructions, registers=max(registers, 1), numbers=numbers), arguments


LOADS = [
    "arg",
    "object",
    "dict",
    "item_dict",
    "item_seq",
    "entry",
    "global",
    "cell",
    "type",
    "type_attr",
    "getattr",
    "context",
    "func",
    "self",
]
BARE: list[tuple[tuple[str, ...], tuple[str, ...]]] = [((), ()), (("a",), ()), ((), ("a",)), (("b",), ("a",))]
CHECKS = [
    "is", "type_is", "int_eq", "float_eq", "str_eq", "length", "keys", "absent", "present", "type_absent", "unset",
    "tensor", "integer", "real", "scalar", "count", "code", "same", "different", "disjoint", "apart",
    "distinct", "address", "answer", "bare",
]  # fmt: skip


def draw_load(draw: Any, op: str, registers: int, arguments: int) -> tuple[Any, ...]:
    if op == "arg" or (registers == 0 and op != "object"):
        return (draw(st.integers(0, arguments)),) if op == "arg" else ()
    if op == "object":
        return (draw(picked),)
    r = draw(st.integers(0, registers - 1))
    if op in ("dict", "type", "func", "self", "context"):
        return (r,)
    if op == "entry":
        return r, draw(st.integers(0, registers - 1))
    pool: list[Any] = INDICES if op in ("item_seq", "cell") else KEYS if op == "item_dict" else NAMES
    return r, draw(st.sampled_from(pool))


def draw_check(draw: Any, op: str, registers: int, numbers: int) -> tuple[Any, ...]:
    if op in ("is", "int_eq", "float_eq", "str_eq"):
        return (draw(picked),)
    if op == "answer":
        return (draw(st.sampled_from(QUESTIONS)),)
    if op == "type_is":
        return (type(draw(picked)),)
    if op == "length":
        return (draw(st.integers(0, 3)),)
    if op == "keys":
        return (draw(st.sampled_from([(), ("a",), ("a", "b"), ("b", "a"), (1,), (True,)])),)
    if op in ("absent", "present"):
        return (draw(st.sampled_from(KEYS)),)
    if op == "type_absent":
        return (draw(st.sampled_from(NAMES)),)
    if op == "bare":
        return draw(st.sampled_from(BARE))
    if op == "unset":
        kind = draw(st.sampled_from(["cell", "getattr", "attr", "item", "global", "context"]))
        return kind, draw(st.sampled_from([0, 1] if kind == "cell" else NAMES))
    if op == "tensor":
        return (draw(st.sampled_from(SPECS)), ())
    if op == "code":
        f = draw(st.sampled_from([CLOSURE, OTHER_CLOSURE, EMPTY]))
        return f.__code__, f.__defaults__, f.__kwdefaults__
    if op in ("integer", "real", "scalar", "count", "address"):
        return (numbers,)
    return (draw(st.integers(0, registers - 1)),)


@settings(max_examples=600, deadline=None)
@given(programs())
def test_random_programs(drawn: tuple[GuardProgram, tuple[Any, ...]]) -> None:
    prog, arguments = drawn
    if any(i[0] not in ("arg", "object", "distinct") and len(i) < 3 for i in prog.instructions):
        return
    agree(prog, arguments)


@pytest.mark.parametrize("instruction", sorted(set(LOADS + CHECKS)))
def test_each_instruction_on_each_object(instruction: str) -> None:
    """Every pair of object and operand, so that each instruction is seen to hold and to fail."""
    outcomes = set()
    for held in OBJECTS:
        for operands in operands_of(instruction, held):
            other = TENSOR if instruction == "entry" else OBJECTS[2]
            first = (("arg", 0, 0), ("object", 1, other), (instruction, *operands))
            outcomes.add(type(agree(program(*first), (held,))))
    assert outcomes == ({Hit} if instruction in ("object", "type", "address") else {Hit, Miss})


def operands_of(op: str, held: Any) -> list[tuple[Any, ...]]:
    if op == "arg":
        return [(2, 0), (2, 1)]
    if op == "object":
        return [(2, held)]
    if op in ("dict", "type", "func", "self", "context"):
        return [(2, 0)]
    if op == "entry":
        return [(2, 0, 0), (2, 0, 1), (2, 1, 0)]
    if op in ("item_seq", "cell"):
        return [(2, 0, index) for index in INDICES]
    if op in ("item_dict", "global", "type_attr", "getattr"):
        return [(2, 0, key) for key in (KEYS if op == "item_dict" else NAMES)]
    if op in ("is", "int_eq", "float_eq", "str_eq"):
        return [(0, value) for value in OBJECTS]
    if op == "answer":
        return [(0, question) for question in QUESTIONS]
    if op == "type_is":
        return [(0, kind) for kind in (int, bool, dict, OrderedDict, torch.Tensor, Thing)]
    if op == "length":
        return [(0, n) for n in range(3)]
    if op == "keys":
        return [(0, keys) for keys in ((), ("a",), ("a", "b"), ("b", "a"), (1,), (True,))]
    if op in ("absent", "present"):
        return [(0, key) for key in KEYS]
    if op == "type_absent":
        return [(0, name) for name in NAMES]
    if op == "bare":
        return [(0, *names) for names in BARE]
    if op == "unset":
        kinds = ("getattr", "attr", "item", "global")
        return [(0, "cell", 0), (0, "cell", 1), *((0, kind, name) for kind in kinds for name in NAMES)]
    if op == "tensor":
        return [
            (0, spec, tuple(("size", i, i) for i, s in enumerate(spec.sizes) if not isinstance(s, int)))
            for spec in SPECS
        ]
    if op == "code":
        return [(0, f.__code__, f.__defaults__, f.__kwdefaults__) for f in (CLOSURE, OTHER_CLOSURE, EMPTY)]
    if op in ("integer", "real", "scalar", "count", "address"):
        return [(0, 0)]
    if op == "disjoint":
        return [(0, 0), (0, 1)]
    if op == "apart":
        return [((0,), 1, (-1,)), ((0, 1), 1, (-1, -1)), ((0, 0), 1, (-1, -1)), ((0, 0), 0, (-1, -1))]
    if op == "distinct":
        return [((0,),), ((0, 1),), ((0, 1, 0),)]
    return [(0, 0), (0, 1)]


def test_every_instruction_is_covered() -> None:
    assert set(LOADS) | set(CHECKS) | {"watch", "relation", "real_relation", "number", "version"} == set(GUARD_OPS)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["add", "sub", "mul", "floordiv", "mod", "min", "max"]), st.data()), max_size=6),
    st.lists(st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-5, 5)), min_size=2, max_size=3),
    st.sampled_from(["==", "!=", "<", "<="]),
)
def test_numbers_and_relations(operations: list[Any], values: list[int], relation: str) -> None:
    instructions: list[tuple[Any, ...]] = []
    for index, _ in enumerate(values):
        instructions += [("arg", index, index), ("integer", index, index)]
    count = len(values)
    for op, data in operations:
        left, right = data.draw(st.integers(0, count - 1)), data.draw(st.integers(0, count - 1))
        instructions.append(("number", (op, count, left, right)))
        count += 1
    instructions.append(("relation", relation, count - 1, 0))
    agree(program(*instructions, registers=len(values), numbers=count), tuple(values))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "sub", "mul", "div", "neg", "abs", "min", "max"]), st.data()), max_size=5
    ),
    st.lists(st.one_of(st.floats(-8, 8), st.sampled_from([0.0, -0.0, math.nan, math.inf])), min_size=2, max_size=3),
    st.sampled_from(["==", "!=", "<", "<="]),
    st.booleans(),
)
def test_floats_and_their_comparisons(operations: list[Any], values: list[float], relation: str, holds: bool) -> None:
    instructions: list[tuple[Any, ...]] = []
    for index, _ in enumerate(values):
        instructions += [("arg", index, index), ("real", index, index)]
    count = len(values)
    instructions += [("number", ("const", count, 3, 0)), ("number", ("real_of_int", count + 1, count, 0))]
    instructions.append(("number", ("real_const", count + 2, 0.5, 0)))
    first = len(values)
    count += 3
    for op, data in operations:
        floats = st.integers(0, count - 1).filter(lambda number: number != first)  # that one is an int
        left, right = data.draw(floats), data.draw(floats)
        instructions.append(("number", (f"real_{op}", count, left, right)))
        count += 1
    instructions.append(("real_relation", relation, count - 1, 0, holds))
    agree(program(*instructions, registers=len(values), numbers=count), tuple(values))


def test_a_watch_block_runs_again_only_when_its_dict_changes() -> None:
    holder = Thing(a=1, b=[1, 2], c=TENSOR)
    content = holder.__dict__
    prog = program(
        ("object", 0, content),
        ("watch", content, 4), ("item_dict", 1, 0, "a"), ("integer", 1, 0), ("item_dict", 2, 0, "c"),
        ("absent", 0, "d"),
        ("tensor", 2, spec_of(TENSOR), ()),
    )  # fmt: skip
    guards = _native.GuardSet(prog)
    assert isinstance(guards.check(()), tuple) and isinstance(guards.check(()), tuple)
    assert guards.reruns == 1
    holder.a = 12
    found = guards.check(())
    assert isinstance(found, tuple) and found[1][0] == 12 and guards.reruns == 2
    other = torch.zeros(4, 3)
    holder.c = other
    found = guards.check(())
    assert isinstance(found, tuple) and found[0][2] is other
    holder.d = 1
    assert guards.check(()) == 5 and guards.check(()) == 5
    del holder.d
    assert isinstance(guards.check(()), tuple)
    holder.c = torch.zeros(4)
    assert guards.check(()) == 6


def test_a_watched_type() -> None:
    class Base:
        pass

    class Derived(Base):
        pass

    prog = program(("object", 0, Derived), ("watch", Derived, 1), ("type_absent", 0, "name"))
    guards = _native.GuardSet(prog)
    assert isinstance(guards.check(()), tuple) and isinstance(guards.check(()), tuple) and guards.reruns == 1
    Base.other = 1  # type: ignore[attr-defined]
    assert isinstance(guards.check(()), tuple) and guards.reruns == 2
    Base.name = 1  # type: ignore[attr-defined]
    assert guards.check(()) == 2 == check(prog, ()).index  # type: ignore[union-attr]


def test_the_version_of_a_type() -> None:
    class Kind:
        pass

    guards = _native.GuardSet(program(("object", 0, Kind), ("version", 0, _native.type_tag(Kind))))
    assert isinstance(guards.check(()), tuple)
    Kind.name = 1  # type: ignore[attr-defined]
    assert guards.check(()) == 1


def test_words_of_long_lived_objects() -> None:
    class Other(Thing):
        pass

    thing, values, f = Thing(a=1), [1, 2], make_closure([1])
    content = thing.__dict__
    prog = program(
        ("object", 0, thing), ("type_is", 0, Thing), ("dict", 1, 0), ("is", 1, content), ("object", 2, values),
        ("length", 2, 2),
        ("object", 3, f), ("code", 3, f.__code__, f.__defaults__, f.__kwdefaults__), ("cell", 4, 3, 0),
        ("is", 4, f.__closure__[0].cell_contents),
    )  # fmt: skip
    guards = _native.GuardSet(prog)

    def both() -> int:
        answer, found = check(prog, ()), guards.check(())
        assert (found if isinstance(found, int) else -2) == (answer.index if isinstance(answer, Miss) else -2)
        return found if isinstance(found, int) else -2

    assert both() == -2
    thing.__class__ = Other
    assert both() == 1
    thing.__class__ = Thing
    thing.__dict__ = dict(content)
    assert both() == 3
    thing.__dict__ = content
    values.append(3)
    assert both() == 5
    values.pop()
    before = f.__defaults__
    f.__defaults__ = (4,)
    assert both() == 7
    f.__defaults__ = before
    f.__closure__[0].cell_contents = [1]
    assert both() == 9


def state_now() -> GlobalState:
    return GlobalState(
        torch.is_grad_enabled(), torch.is_inference_mode_enabled(),
        tuple((k, torch.is_autocast_enabled(k), str(torch.get_autocast_dtype(k))) for k in ("cpu", "cuda")),
        str(torch.get_default_dtype()), "cpu", torch.are_deterministic_algorithms_enabled(), 0, abi.thread_keys(),
    )  # fmt: skip


class _Double:
    def __enter__(self) -> None:
        torch.set_default_dtype(torch.float64)

    def __exit__(self, *error: object) -> None:
        torch.set_default_dtype(torch.float32)


class _Deterministic:
    def __enter__(self) -> None:
        torch.use_deterministic_algorithms(True)

    def __exit__(self, *error: object) -> None:
        torch.use_deterministic_algorithms(False)


STATES = {
    "grad": torch.no_grad, "inference": torch.inference_mode, "autocast": lambda: torch.autocast("cpu"),
    "device": lambda: torch.device("meta"), "dtype": _Double, "deterministic": _Deterministic,
    "dual": torch.autograd.forward_ad.dual_level,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(STATES))
def test_the_global_state(name: str) -> None:
    here = program(("arg", 0, 0), registers=1, state=state_now())
    assert isinstance(agree(here, (1,)), Hit)
    with STATES[name]():
        assert isinstance(agree(here, (1,)), Miss)
        if name not in ("dual", "device"):
            inside = program(("arg", 0, 0), registers=1, state=state_now())
            assert isinstance(agree(inside, (1,)), Hit)
    assert isinstance(agree(here, (1,)), Hit)
    if name not in ("dual", "device"):
        assert isinstance(agree(inside, (1,)), Miss)


def test_the_dtype_of_autocast_counts_only_while_it_is_on() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = program(("arg", 0, 0), registers=1, state=state_now())
        assert isinstance(agree(inside, (1,)), Hit)
    with torch.autocast("cpu", dtype=torch.float16):
        assert isinstance(agree(inside, (1,)), Miss)


@pytest.mark.parametrize(
    "instructions",
    [
        (("nothing", 0),), (("is", 0, 1),), (("arg", 9, 0),), (("arg", 0, 0), ("arg", 0, 0)), (("arg", 0),), ("arg",),
        (("arg", 0, -1),),
        (("arg", 0, 0), ("integer", 0, 99)), (("arg", 0, 0), ("integer", 0, 0), ("integer", 0, 0)), (("watch", [], 0),),
        (("watch", {}, 3),), (("arg", 0, 0), ("keys", 0, ["a"])), (("arg", 0, 0), ("item_dict", 1, 0, [])),
        (("relation", ">", 0, 0),), (("number", ("pow", 0, 0, 0)),), (("arg", 0, 0), ("version", 0, 1)),
        (("arg", 0, 0), ("tensor", 0, None, ())),
    ],
)  # fmt: skip
def test_bad_programs_are_refused(instructions: Any) -> None:
    with pytest.raises((ValueError, AttributeError)):
        _native.GuardSet(program(*instructions))


def test_explanations() -> None:
    spec = spec_of(TENSOR)
    prog = GuardProgram(
        None,
        (("arg", 0, 0), ("tensor", 0, spec, ()), ("arg", 1, 1), ("int_eq", 1, 3)),
        2,
        0,
        ("x", "x", "n", "n"),
    )
    assert explain(prog, (TENSOR, 3)) is None
    assert explain(prog, (TENSOR, 4)) == "n: 3 -> 4"
    assert explain(prog, (torch.zeros(5, 3), 3)) == "x.shape[0]: 4 -> 5"
    assert explain(prog, (TENSOR,)) == "n: there -> nothing"


def test_reals_are_bound_by_their_bits() -> None:
    prog = program(("arg", 0, 0), ("real", 0, 0), registers=1, numbers=1)
    for value in (0.0, -0.0, math.nan, 1.5):
        assert agree(prog, (value,)) == Hit((value,), (word_of(value),))


def test_getattr_keeps_nothing_between_calls() -> None:
    class Maker:
        @property
        def fresh(self) -> object:
            return Thing()

    import gc
    import weakref

    prog = program(("arg", 0, 0), ("getattr", 1, 0, "fresh"))
    guards = _native.GuardSet(prog)
    found = guards.check((Maker(),))
    assert isinstance(found, tuple)
    ref = weakref.ref(found[0][1])
    del found
    gc.collect()
    assert ref() is None


def test_a_guard_set_in_a_cycle_is_collected() -> None:
    import gc
    import weakref

    holder = Thing()
    holder.guards = _native.GuardSet(program(("object", 0, holder), ("dict", 1, 0), ("is", 1, holder.__dict__)))  # type: ignore[attr-defined]
    ref = weakref.ref(holder)
    del holder
    gc.collect()
    assert ref() is None
