"""What record() does at its borders: special tensors, modes, threads, recursion, memory, tracebacks."""

import functools
import gc
import threading
import traceback
import warnings
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import BaseTorchFunctionMode

from framefuse.capture.record import record
from framefuse.ir.stops import CATALOGUE


class Sub(torch.Tensor):
    pass


class Functional:
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return "handled"


def special(name: str) -> Any:
    x = torch.randn(3, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {
            "subclass": lambda: x.as_subclass(Sub),
            "sparse": lambda: x.to_sparse(),
            "csr": lambda: x.to_sparse_csr(),
            "complex": lambda: torch.randn(3, 3, dtype=torch.complex64),
            "conj": lambda: torch.randn(3, 3, dtype=torch.complex64).conj(),
            "meta": lambda: torch.empty(3, 3, device="meta"),
            "nested": lambda: torch.nested.nested_tensor([torch.randn(2), torch.randn(3)]),
            "parameter": lambda: nn.Parameter(x),
            "scalar": lambda: torch.tensor(2.0),
            "empty": lambda: torch.randn(0, 3),
            "expanded": lambda: torch.randn(1, 3).expand(3, 3),
            "float8": lambda: x.to(torch.float8_e4m3fn),
        }[name]()


def double(x: Any) -> Any:
    return x + x


@pytest.mark.parametrize(
    ("name", "recorded"),
    [
        ("subclass", True), ("sparse", False), ("csr", False), ("complex", True), ("conj", False), ("meta", False),
        ("nested", False), ("parameter", True), ("scalar", True), ("empty", True), ("expanded", True),
        ("float8", False),
    ],
)  # fmt: skip
def test_special_tensors(name: str, recorded: bool) -> None:
    x = special(name)
    try:
        expected, error = double(x), None
    except Exception as raised:
        expected, error = None, raised
    made = record(double, (x,), {})
    assert type(made.exception) is type(error) and str(made.exception) == str(error)
    if error is None:
        assert type(made.value) is type(expected) and made.value.layout == expected.layout
    assert (made.trace is not None) == recorded, str(made.reason)


def test_modes_are_refused() -> None:
    x = torch.randn(3)
    with BaseTorchFunctionMode():
        made = record(double, (x,), {})
    assert made.reason is not None and made.reason.code == "torch-mode" and torch.equal(made.value, x + x)
    with torch.device("meta"):
        made = record(double, (x,), {})
    assert made.reason is not None and made.reason.code == "torch-mode" and torch.equal(made.value, x + x)
    inside: list[Any] = []
    torch.func.vmap(lambda row: inside.append(record(double, (row,), {})) or row)(x)
    assert inside[0].reason.code == "torch-mode"


def test_the_mode_of_a_default_device_is_recorded_under() -> None:
    x = torch.randn(3)
    with torch.device("cpu"):
        made = record(double, (x,), {})
    assert made.trace is not None and torch.equal(made.value, x + x), str(made.reason)


def test_recording_inside_a_recording() -> None:
    inner: list[Any] = []

    def f(x: Any) -> Any:
        made = record(double, (x,), {})
        inner.append(made)
        return made.value + 1

    x = torch.randn(3)
    made = record(f, (x,), {})
    assert torch.equal(made.value, x + x + 1) and made.trace is None and inner[0].trace is None


def test_threads_record_apart() -> None:
    found: dict[int, Any] = {}

    def work(number: int) -> None:
        for _ in range(5):
            found[number] = record(lambda x: (x * number).sum(), (torch.ones(3),), {})

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(found[n].value == 3 * n and len(found[n].trace.calls) == 2 for n in range(4))


@pytest.mark.parametrize("kind", ["trace", "stop", "raise"])
def test_nothing_of_the_arguments_is_held(kind: str) -> None:
    class Thing:
        pass

    def f(x: Any, thing: Any) -> Any:
        y = x * 2
        thing.seen = True
        if kind == "stop":
            y.sum().item()
        if kind == "raise":
            raise ValueError("gone")
        return y + 1

    x, thing = torch.randn(3), Thing()
    refs = [weakref.ref(x), weakref.ref(thing)]
    made = record(f, (x, thing), {})
    made.exception = None
    result = weakref.ref(made.value) if made.value is not None else lambda: None
    made.value = None
    del x, thing
    gc.collect()
    assert [ref() for ref in refs] == [None, None] and result() is None


def test_deep_recursion_is_the_users_error() -> None:
    def f(x: Any, n: int) -> Any:
        return x if n == 0 else f(x, n - 1)

    made = record(f, (torch.ones(2), 10**6), {})
    assert isinstance(made.exception, RecursionError)


def test_lru_cache_runs_once() -> None:
    count = []

    @functools.lru_cache
    def slow() -> float:
        count.append(1)
        return 2.0

    for _ in range(2):
        made = record(lambda x: x * slow(), (torch.ones(2),), {})
        assert made.trace is not None, str(made.reason)
    assert len(count) == 1


def test_an_iterator_passed_in_moves_on() -> None:
    def f(x: Any, items: Any) -> Any:
        return x * next(items) + sum(list(items))

    items = iter([1, 2, 3])
    made = record(f, (torch.ones(1), items), {})
    assert made.value.item() == 6 and list(items) == [] and made.trace is None


def test_generator_passed_in() -> None:
    def f(x: Any, items: Any) -> Any:
        for item in items:
            x = x + item
        return x

    made = record(f, (torch.ones(1), (i for i in range(3))), {})
    assert made.value.item() == 4 and made.trace is None


def test_tracked_numbers_do_not_leak() -> None:
    kept: list[Any] = []

    class Box:
        pass

    def f(x: Any, n: int, box: Any) -> Any:
        box.size = x.shape[0]
        box.pair = (x.shape[0], [n + 1])
        kept.append({"n": n * 2.5})
        return x.shape, n + 1, (n, [n]), x.shape[0] / 2, {"k": (n,)}

    box = Box()
    made = record(f, (torch.ones(3), 4, box), {})
    assert made.trace is not None, str(made.reason)
    kinds: set[type] = set()

    def walk(value: Any) -> None:
        kinds.add(type(value))
        for part in value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ():
            walk(part)

    for value in (made.value, vars(box), kept):
        walk(value)
    assert kinds <= {int, float, list, tuple, dict, torch.Size}


def test_a_numbers_own_protocols() -> None:
    def f(x: Any, n: int) -> Any:
        items = ["a", "b", "c", "d"]
        return (
            items[n], "ab" * n, [0] * n, range(n)[-1], f"{n:03d}", "%d" % n, str(n), {n: 1}, n in (1, 2), hash(n),  # noqa: UP031
            n**2, 2**n, n & 1, -n, abs(-n), n // 2, n % 2, divmod(n, 2), round(n),  # noqa: RUF057
            float(n), bool(n), n == 2.0, n < 2.5,
            max(n, 3), min(n, 3.5), sorted([3, n, 1]), sum([n, n]), isinstance(n, int), type(n) is int, n.bit_length(),
            items[:n], slice(n).stop, complex(n), int(n), n.__class__, [n].index(2), "x".zfill(n), list(range(n)),
        )  # fmt: skip

    made = record(f, (torch.ones(1), 2), {})
    assert made.value == f(torch.ones(1), 2) and made.trace is not None, str(made.reason)
    assert any(r.op == "==" for r in made.trace.assumptions.relations)


def test_exceptions_show_the_users_frames() -> None:
    def inner(x: Any) -> Any:
        raise KeyError("deep")

    def outer(x: Any) -> Any:
        return inner(x)

    made = record(outer, (torch.ones(1),), {})
    assert isinstance(made.exception, KeyError)
    frames = traceback.extract_tb(made.exception.__traceback__)
    assert [frame.name for frame in frames] == ["outer", "inner"]
    assert [frame.line for frame in frames] == ["return inner(x)", 'raise KeyError("deep")']
    assert all(frame.filename == __file__ for frame in frames)


def test_every_stop_says_what_to_do() -> None:
    made = record(lambda x: x.sum().tolist(), (torch.ones(2),), {})
    text = str(made.reason)
    assert "test_border.py" in text and "[item]" in text and "torch.where" in text
    for row in CATALOGUE.values():
        assert row.what.endswith((".", "{detail}")) and row.write.endswith(".") and row.title
