"""Questions about modes, compilers, frames and types are answered for the program, as if nothing were recorded."""

from __future__ import annotations

import gc
import inspect
import logging
import sys
import threading
import traceback
import types
import warnings
from typing import Any

import pytest
import torch
from tests.traps.plainly import with_numbers
from tests.traps.trap import Table, Trap, hold
from torch import nn
from torch.overrides import TorchFunctionMode, has_torch_function, has_torch_function_unary, has_torch_function_variadic

import framefuse

TABLE = Table()
trap = TABLE.trap


class Passing(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


def under(mode: Any, question: Any) -> Any:
    with mode:
        return question()


# Flags of backends ---------------------------------------------------------------------------------------------------


@trap(traces=4, hits=3)
def flags_of_backends_that_change(compiled):
    def program(x):
        tf32 = torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32
        found = torch.backends.mkldnn.enabled, torch.backends.cudnn.benchmark, torch.backends.cuda.math_sdp_enabled()
        return x * 2 if tf32 else x * 3, torch._C._are_functorch_transforms_active(), found

    f = compiled(program)
    before = torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark
    try:
        for number in range(7):
            torch.backends.cudnn.allow_tf32 = number in (2, 4)
            torch.backends.cudnn.benchmark = number in (4, 6)
            yield f(torch.ones(2) + number)
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = before


# Modes ---------------------------------------------------------------------------------------------------------------


@with_numbers(TABLE)
def a_plain_tensor_has_no_torch_function(x, n):
    found = has_torch_function((x, x * n)), has_torch_function_unary(x), has_torch_function_variadic(x, x)
    return found, torch._C._has_torch_function([x]), x * n


@with_numbers(TABLE)
def a_branch_on_it(x, n):
    return x * 100 if torch.overrides.has_torch_function((x,)) else x * n


@with_numbers(TABLE)
def the_stack_of_function_modes(x, n):
    modes = torch.overrides._get_current_function_mode_stack()
    return torch._C._len_torch_function_stack(), len(modes), torch.overrides._get_current_function_mode(), x * n


@with_numbers(TABLE)
def the_stack_of_dispatch_modes(x, n):
    own = torch.utils._python_dispatch
    modes = own._get_current_dispatch_mode_stack()
    return torch._C._len_torch_dispatch_stack(), len(modes), own._get_current_dispatch_mode(), x * n


@with_numbers(TABLE, hits=0)
def a_mode_of_the_program(x, n):
    inside = under(Passing(), lambda: (has_torch_function((x,)), torch._C._len_torch_function_stack()))
    return inside, has_torch_function((x,)), x * n


@with_numbers(TABLE)
def a_default_device_is_a_mode_too(x, n):
    inside = under(torch.device("cpu"), lambda: torch._C._len_torch_function_stack())
    return inside, torch._C._len_torch_function_stack(), x * n


@with_numbers(TABLE)
def kinds_of_values(x, n):
    found = [torch.is_tensor(part) for part in (x, n, n * 0.5)], torch.overrides.is_tensor_like(n)
    return found, torch.overrides.is_tensor_like(x), torch.is_storage(x), x * n


@with_numbers(TABLE)
def state_of_gradients(x, n):
    found = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_anomaly_enabled()
    return found, x.requires_grad, (x * n).grad_fn, x * n


# Compilers -----------------------------------------------------------------------------------------------------------


@with_numbers(TABLE)
def other_compilers(x, n):
    found = torch.jit.is_scripting(), torch.jit.is_tracing(), torch._C._get_tracing_state()
    return found, torch.compiler.is_dynamo_compiling(), torch.compiler.is_exporting(), x * n


def scaled(x: Any) -> Any:
    return x * 100 if torch.compiler.is_compiling() else x * 2


@trap(traces=2, hits=3)
def what_is_kept_from_compilers_meets_none(compiled):
    kept = torch.compiler.disable(scaled)
    f = compiled(lambda x: kept(x) + 1)
    for size in (1, 2, 3, 4):
        yield f(torch.ones(size))


def asks_of_an_installed_library(module: str = "a_library.modeling", name: str = "asks") -> Any:
    """A function as if it came from an installed library."""
    space: dict[str, Any] = {"torch": torch, "__name__": module}
    way = "x * 100 if torch.compiler.is_compiling() else x * x.sum().item()"
    text = f"def {name}(x): return {way}"
    exec(compile(text, "/usr/lib/python3/site-packages/a_library/modeling.py", "exec"), space)
    return space[name]


@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_library_goes_the_way_of_eager_where_a_break_may_be(fullgraph):
    """Where none may be it leaves out branches on values."""
    asks = asks_of_an_installed_library()
    f = framefuse.compile(lambda x: asks(x) + 1, fullgraph=fullgraph)
    for number in (1.0, 2.0, 3.0):
        expected = number * 100 + 1 if fullgraph else number * 2 * number + 1
        assert f(torch.full((2,), number)).tolist() == [expected] * 2


@pytest.mark.parametrize("name", ["_ignore_causal_mask_sdpa", "find_packed_sequence_indices"])
@pytest.mark.parametrize("sees_more", [False, True])
def test_a_library_leaves_a_mask_to_the_graph_that_it_would_look_at_to_save_work(name, sees_more):
    asks = asks_of_an_installed_library("transformers.masking_utils", name)
    settings = types.SimpleNamespace(use_bidirectional_attention=sees_more)

    def program(x, config):
        return asks(x) + 1

    f = framefuse.compile(program)
    for number in (1.0, 2.0, 3.0):
        expected = number * 2 * number + 1 if sees_more else number * 100 + 1
        assert f(torch.full((2,), number), settings).tolist() == [expected] * 2


@pytest.mark.parametrize("masked", [False, True])
def test_a_library_that_has_no_mask_goes_the_way_of_eager(masked):
    space: dict[str, Any] = {"torch": torch, "__name__": "transformers.masking_utils"}
    text = (
        "def is_tracing(tensor=None): return torch.compiler.is_compiling()\n"
        "def _ignore_bidirectional_mask_sdpa(mask, x): return x * 100 if is_tracing(mask) else x * 2"
    )
    exec(compile(text, "/usr/lib/python3/site-packages/transformers/masking_utils.py", "exec"), space)
    asks = space["_ignore_bidirectional_mask_sdpa"]
    f = framefuse.compile(lambda x, mask: asks(mask, x) + 1)
    for number in (1.0, 2.0, 3.0):
        mask = torch.ones(2) if masked else None
        assert f(torch.full((2,), number), mask).tolist() == [number * (100 if masked else 2) + 1] * 2


@pytest.mark.parametrize("name", ["lazy_initialization", "lazy_initialization_indexer"])
def test_a_library_leaves_marks_for_other_compilers_out(name):
    asks = asks_of_an_installed_library("transformers.cache_utils", name)
    f = framefuse.compile(lambda x: asks(x) + 1)
    for number in (1.0, 2.0, 3.0):
        assert f(torch.full((2,), number)).tolist() == [number * 100 + 1] * 2


def test_the_program_itself_is_told():
    f = framefuse.compile(lambda x: scaled(x) + 1)
    for number in (1.0, 2.0, 3.0):
        assert f(torch.full((2,), number)).tolist() == [number * 100 + 1] * 2


def test_all_spellings_say_the_same():
    """At every call, before and after a break; what is kept from compilers is told of none."""
    from torch._dynamo import is_compiling

    def asks():
        return torch.compiler.is_compiling(), is_compiling(), torch._dynamo.external_utils.is_compiling()

    kept = torch.compiler.disable(asks)

    def program(x):
        before = asks()
        scale = x.sum().item()
        print(end="")
        return x * scale, before, asks(), kept()

    f = framefuse.compile(program)
    for number in (1.0, 2.0, 3.0):
        assert f(torch.full((2,), number))[1:] == ((True,) * 3, (True,) * 3, (False,) * 3)


class Kept(nn.Module):
    @torch.compiler.disable
    def forward(self, x: Any) -> Any:
        return scaled(x)


@trap(traces=2, hits=3)
def so_does_a_module(compiled):
    inner = Kept()
    f = compiled(lambda x: inner(x) + 1)
    for size in (1, 2, 3, 4):
        yield f(torch.ones(size))


def encoder(norm: bool = False) -> Any:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return nn.TransformerEncoder(layer, 2, nn.LayerNorm(8) if norm else None).eval()


@trap(traces=20, hits=0)
def an_encoder_leaves_padding_zero(compiled):
    f = compiled(encoder())
    padding = torch.tensor([[False, False, True], [False, False, False]])
    with torch.no_grad():
        for seed in range(4):
            torch.manual_seed(seed)
            yield f(torch.randn(2, 3, 8), src_key_padding_mask=padding)


@trap(traces=2, hits=3)
def an_encoder_takes_its_fast_path(compiled):
    f = compiled(encoder(norm=True))
    with torch.no_grad():
        for seed in range(5):
            torch.manual_seed(seed)
            yield f(torch.randn(2, 3, 8))


@trap(traces=4, hits=6)
def attention_takes_its_fast_path(compiled):
    torch.manual_seed(0)
    f = compiled(nn.MultiheadAttention(8, 2, batch_first=True).eval())
    padding = torch.tensor([[False, False, True], [False, False, False]])
    with torch.no_grad():
        for seed in range(5):
            torch.manual_seed(seed)
            x = torch.randn(2, 3, 8)
            yield f(x, x, x, need_weights=False)
            yield f(x, x, x, key_padding_mask=padding)


# Frames --------------------------------------------------------------------------------------------------------------


def caller() -> Any:
    names = [entry.name for entry in traceback.extract_stack()[-2:]]
    return inspect.stack()[1].function, sys._getframe(1).f_code.co_name, names


@with_numbers(TABLE)
def who_called(x, n):
    return caller(), sys._getframe().f_lineno, inspect.currentframe().f_code.co_name, x * n


def complain() -> None:
    warnings.warn("twice removed", stacklevel=2)


@with_numbers(TABLE)
def where_a_warning_points(x, n):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn("here", stacklevel=1)
        complain()
    return [(str(each.message), each.lineno, each.filename) for each in caught], x * n


class Collecting(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[Any] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append((record.getMessage(), record.funcName, record.lineno, record.args))


@with_numbers(TABLE, hits=0)
def where_a_log_record_points(x, n):
    logger, handler = logging.getLogger("tests.traps.queries"), Collecting()
    logger.addHandler(handler)
    logger.warning("step %d", n)
    logger.removeHandler(handler)
    return handler.found, x * n


@with_numbers(TABLE)
def generators_tell_their_state(x, n):
    made = (number for number in range(n))
    before = inspect.getgeneratorstate(made), isinstance(made, types.GeneratorType), type(made).__name__
    return before, next(made), inspect.getgeneratorstate(made), x * n


@with_numbers(TABLE, hits=0)
def another_thread_sees_no_recording(x, n):
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append((has_torch_function((x,)), torch.is_grad_enabled())))
    thread.start()
    thread.join()
    return found, x * n


@with_numbers(TABLE)
def what_refers_to_an_object(x, n):
    held = [n]
    holder = {"held": held}
    return any(each is holder for each in gc.get_referrers(held)), gc.is_tracked(holder), x * n


def steps(*sizes):
    return torch.arange(float(torch.Size(sizes).numel())).reshape(sizes)


def offsets(compiled, body):
    f = compiled(body)
    others = steps(3, 5).t(), steps(6, 3)[1:], steps(5, 3), steps(5, 3) + 2
    for x in (steps(4, 3), steps(4, 3) + 1, steps(5, 3), *others):
        yield f(x)


@trap(traces=3, hits=4)
def where_views_of_what_a_call_made_begin(compiled):
    def body(x):
        part = (x * 2)[1:]
        turned = (x + 1).t()[2:]
        return part * part.storage_offset(), turned.storage_offset(), x * 2 if turned.storage_offset() > 1 else x

    yield from offsets(compiled, body)


@trap(traces=4, hits=4)
def where_a_view_begins_that_may_be_of_an_input(compiled):
    yield from offsets(compiled, lambda x: x * x.contiguous()[1:].storage_offset())


@TABLE.parametrize()
def test_a_question_is_answered_for_the_program(trap: Trap) -> None:
    hold(trap)
