"""What every test shares: one thread, a fixed seed, and golden files that `pytest --update-golden` rewrites."""

import gc
import os
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest
import torch

from framefuse.codegen.disk_cache import DiskCache
from framefuse.driver.calls import calls
from framefuse.driver.programs import programs
from framefuse.driver.wiring import load_stages
from framefuse.runtime import function, trace_limits, weighing

load_stages()  # many tests record without a compiled function, whose first call does so
# Where no folder can be: a call or a program that another test, or an earlier run, had kept would pass by the stages.
calls.PROCESS = DiskCache(Path(os.devnull) / "calls")
programs.PROCESS = DiskCache(Path(os.devnull) / "programs")

# `torch.manual_seed` notes the whole stack for each kind of device that was not used yet, 0.8 ms in a test.
for kind in (torch.cuda, torch.mtia, torch.xpu):
    if not kind.is_available():
        kind.manual_seed_all = lambda seed: None

# `make test` gives the same answer each time; `pytest --hypothesis-profile=default` draws new examples.
hypothesis.settings.register_profile("same", deadline=None, derandomize=True)
hypothesis.settings.load_profile("same")

# A fault of the compiler is an error in tests, where users get eager's result and a warning.
os.environ.setdefault("FRAMEFUSE_CHECK", "1")

if os.environ.get("TRITON_INTERPRET") == "1":
    from tests import interpreter

    interpreter.install()

# Folders whose tests are held to call what they compile until compiled code runs.
HELD = (
    "tests/unit/autodiff/", "tests/unit/capture/", "tests/unit/lower/", "tests/unit/native/", "tests/unit/runtime/",
    "tests/unit/training/",
)  # fmt: skip
GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the files of tests/golden; read the diff")


def pytest_collection_finish(session: pytest.Session) -> None:
    """The workers of `make test` must collect the same names: one with an address is another one in each process."""
    named = [item.nodeid for item in session.items if " at 0x" in item.nodeid]
    if named:
        raise pytest.UsageError(f"names of tests that hold an address, give them ids: {named[:3]}")
    forget_garbage()


def forget_garbage() -> None:
    """The cycle collector looks no more at what is alive now: 13,000 tests and torch, half a second a look."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # what libraries look for at the exit of a process


@pytest.fixture(scope="module", autouse=True)
def what_a_file_made_is_not_looked_at_again() -> Iterator[None]:
    yield
    forget_garbage()


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Two test workers share two cores, and a timing of small tensors wants no thread pool."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def fixed_seed() -> Iterator[None]:
    """Every test draws the same numbers, whatever ran before it in the same process."""
    random.seed(0)
    torch.manual_seed(0)
    yield


@pytest.fixture(autouse=True)
def compiled_calls_are_not_weighed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which code a call runs is not the clock's to say in a test, but for those with the mark ``weighed``."""
    if not request.node.get_closest_marker("weighed"):
        for first in ("FIRST", "SETTLE"):
            monkeypatch.setattr(function, first, weighing.MOST)
        monkeypatch.setattr(trace_limits, "COSTS", 0.0)
        for limit in ("SLOW_SMALL", "FIRST_CALLS"):
            monkeypatch.setattr(trace_limits, limit, weighing.MOST)


@pytest.fixture(autouse=True)
def compiled_code_runs(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test of the folders HELD compiles runs compiled code in one call or more: the first call is eager's own,
    so a test that calls once compares eager with eager. The mark ``first_call`` is for tests about
    such calls, which nothing compiled serves.
    """
    if not request.node.nodeid.startswith(HELD) or request.node.get_closest_marker("first_call"):
        yield
        return
    made: set[int] = set()
    hits: dict[int, int] = {}

    def compiled(state: function.CompiledFunction, product: function.Product) -> None:
        made.add(id(state))

    def ended(state: function.CompiledFunction) -> None:
        if id(state) in made:
            made.remove(id(state))
            places = [state, *state.resume_dispatches]
            hits[len(hits)] = sum(place.dispatch.hits for place in places)

    function.listeners.append(compiled)
    function.ended.append(ended)
    try:
        yield
    finally:
        function.listeners.remove(compiled)
        function.ended.remove(ended)
    for state in list(function.LIVE):
        ended(state)
    assert all(count > 0 for count in hits.values()), "a function was compiled, and no call of it ran compiled code"


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Compares a text with the file of this test: `golden(text)`, or `golden(text, "kernel")` for several in one test.

    The file is tests/golden/<test module>/<test name>[.<part>].txt. It is written only under --update-golden, so a
    missing file fails.
    """

    def check(text: str, part: str = "") -> None:
        name = re.sub(r"[^\w.-]+", "_", request.node.name).strip("_") + (f".{part}" if part else "")
        path = GOLDEN / request.node.path.stem.removeprefix("test_") / f"{name}.txt"
        text = text.rstrip("\n") + "\n"
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"no golden file {path.relative_to(GOLDEN.parent)}: run pytest --update-golden"
        assert text == path.read_text(), f"differs from {path.relative_to(GOLDEN.parent)}: pytest --update-golden"

    return check
