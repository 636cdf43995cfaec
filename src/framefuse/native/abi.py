"""Turns torch's unstated binary interface into facts, found on scratch tensors; what is ambiguous stays unknown.

Nothing here is assumed: an offset is believed only where exactly one place agrees with what torch's public
interface says of several tensors, a function only where it gives the right answer on the spot. An unknown fact
costs time, not correctness: native code then asks the stable C getters of libtorch, or torch's Python interface.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.autograd.function import FunctionMeta

from framefuse import _native
from framefuse.ir import dtypes
from framefuse.ir.default_device import default_device
from framefuse.native import autograd_nodes, devices, tags
from framefuse.native.devices import keys_of
from framefuse.native.libraries import Libraries, Peek, Unknown, word_at

# Where the allocator does not say how long a TensorImpl is: those of the torch versions known are 22 words or more.
LEAST_WORDS = 22


def _impl_length() -> int:
    """How many words of a TensorImpl may be read: what malloc gave for it (22 on torch 2.13, 24 on 2.11)."""
    try:
        usable = ctypes.CDLL(None)["malloc_usable_size"]
    except (AttributeError, OSError):
        return LEAST_WORDS
    usable.restype, usable.argtypes = ctypes.c_size_t, [ctypes.c_void_p]
    words = int(usable(torch.empty(2)._cdata)) // 8
    return max(LEAST_WORDS, min(words, 2 * LEAST_WORDS))


WORDS = _impl_length()

Facts = dict[str, Any]
Probe = Callable[["Scratch"], Facts]


class Scratch:
    """Tensors of several kinds to look at, and the libraries to look with."""

    def __init__(self) -> None:
        self.libraries = Libraries()
        self.plain = torch.empty(3, 5, 7)
        with torch.inference_mode():
            self.inference = torch.empty(2)
        complex_tensor = torch.empty(2, dtype=torch.complex64)
        self.kinds = [
            self.plain, self.inference, complex_tensor.conj(), torch._neg_view(self.plain),
            torch.empty(2, device="meta"),
            torch.zeros(2).to_sparse(), torch.nn.Parameter(torch.empty(2)),
        ]  # fmt: skip
        self.handle_offset = -1

    def handle(self, tensor: torch.Tensor) -> ctypes.c_void_p:
        """A borrowed handle of the tensor; :class:`Unknown` without the offset."""
        if self.handle_offset < 0:
            raise Unknown("handle")
        return ctypes.c_void_p(id(tensor) + self.handle_offset)


def _impl_words(tensor: torch.Tensor) -> list[int]:
    return [word_at(tensor._cdata + 8 * index) for index in range(WORDS)]


def _only(candidates: Iterable[Any]) -> Any:
    rest = list(candidates)
    if len(rest) != 1:
        raise Unknown(f"{len(rest)} candidates")
    return rest[0]


def _offset_of(word: Callable[[torch.Tensor], int], tensors: Iterable[torch.Tensor]) -> int:
    """The one place of a TensorImpl where all tensors hold the word expected of them."""
    sets = [{8 * i for i, value in enumerate(_impl_words(t)) if value == word(t)} for t in tensors]
    return int(_only(set.intersection(*sets)))


# ---- the probes, one a fact ----


def _handle(scratch: Scratch) -> Facts:
    size = torch.Tensor.__basicsize__
    sets = [{offset for offset in range(16, size - 7, 8) if word_at(id(t) + offset) == t._cdata} for t in scratch.kinds]
    offset = _only(set.intersection(*sets))
    # The word holds a TensorImpl*, as an at::Tensor does: a stable getter must be able to read through its address.
    dimensions = ctypes.c_int64(-1)
    get = Libraries.find(scratch.libraries.cpu, "aoti_torch_get_dim")
    if get(ctypes.c_void_p(id(scratch.plain) + offset), ctypes.byref(dimensions)) or dimensions.value != 3:
        raise Unknown("the stable getter disagrees")
    scratch.handle_offset = offset
    return {"handle": offset}


def _key_set(scratch: Scratch) -> Facts:
    return {"key_set": _offset_of(keys_of, scratch.kinds)}


def _dtype(scratch: Scratch) -> Facts:
    """Two bytes that follow the dtype; the bytes behind them follow the device."""
    offsets = None
    samples = {row: torch.empty(2, dtype=row.torch) for row in dtypes.ROWS}
    for row, tensor in samples.items():
        code = _code(scratch, row.name)
        here = {8 * i for i, value in enumerate(_impl_words(tensor)) if value & 0xFFFF == code}
        offsets = here if offsets is None else offsets & here
    offset = int(_only(offsets or ()))
    words = {row.name: word_at(tensor._cdata + offset) & 0xFF_FFFF_FFFF for row, tensor in samples.items()}
    device = {word >> 16 for word in words.values()}
    meta = word_at(torch.empty(2, device="meta")._cdata + offset) & 0xFF_FFFF_FFFF
    if len(device) != 1 or meta >> 16 in device or meta & 0xFFFF != words["float32"] & 0xFFFF:
        raise Unknown("the device does not show")
    return {"dtype": offset, "cpu_words": words}


def _sizes(scratch: Scratch) -> Facts:
    """Sizes and strides lie inline up to five dimensions."""

    def run(values: tuple[int, ...], words: list[int]) -> set[int]:
        return {8 * i for i in range(WORDS - len(values) + 1) if tuple(words[i : i + len(values)]) == values}

    samples = [scratch.plain, torch.empty(2, 11, 3, 13, 5), torch.empty(4, 9).t(), torch.empty(6, 10)[:, 2:7]]
    places = [(_impl_words(t), t) for t in samples]
    sizes = _only(set.intersection(*(run(tuple(t.shape), words) for words, t in places)))
    strides = _only(set.intersection(*(run(t.stride(), words) for words, t in places)))
    ranks = (
        [torch.empty((2,) * n) for n in (1, 2, 3, 4, 5)]
        + [torch.empty((3,) * n) for n in (4, 5, 7)]
        + [torch.empty(())]
    )
    return {"sizes": sizes, "strides": strides, "ndim": _offset_of(lambda t: t.dim(), ranks)}


def _autograd_meta(scratch: Scratch) -> Facts:
    """A pointer, null until a tensor takes part in autograd."""
    without = [torch.empty(2), scratch.inference, torch.empty(3, 4)]
    requiring = torch.empty(2, requires_grad=True)
    having = [requiring, torch.nn.Parameter(torch.empty(2)), requiring * 2]
    words = [_impl_words(t) for t in without], [_impl_words(t) for t in having]
    candidates = [
        8 * i for i in range(WORDS)
        if all(w[i] == 0 for w in words[0]) and all(w[i] > 0x1000 and w[i] % 8 == 0 for w in words[1])
    ]  # fmt: skip
    return {"autograd_meta": _only(candidates)}


def _requires_grad(scratch: Scratch) -> Facts:
    function = Libraries.find(scratch.libraries.c10, "_ZNK3c1010TensorImpl13requires_gradEv")
    function.restype = ctypes.c_bool
    for expected in (False, True):
        tensor = torch.empty(2, requires_grad=expected)
        if function(ctypes.c_void_p(tensor._cdata)) is not expected:
            raise Unknown("requires_grad disagrees")
    return {"requires_grad": Libraries.address(function)}


def _version(scratch: Scratch) -> Facts:
    """A counter behind a pointer that inference tensors lack."""
    tensors = []
    for count in (77, 131):
        tensor = torch.zeros(4)
        for _ in range(count):
            tensor.add_(1)
        tensors.append(tensor)
    absent = _impl_words(scratch.inference)
    sets = []
    with Peek() as peek:  # what looks like a pointer may be anything
        for tensor in tensors:
            pointers = [
                (8 * i, w) for i, w in enumerate(_impl_words(tensor))
                if i > 1 and absent[i] == 0 and 0x10000 < w < 1 << 47 and w % 8 == 0
            ]  # fmt: skip
            wanted = tensor._version.to_bytes(4, sys.byteorder)
            sets.append({
                (place, offset) for place, pointer in pointers for offset in range(8, 24, 4)
                if peek(pointer + offset, 4) == wanted
            })  # fmt: skip
    pointer, offset = _only(set.intersection(*sets))
    return {"version_pointer": pointer, "version_count": offset}


def _getters(scratch: Scratch) -> Facts:
    cpu, t = scratch.libraries.cpu, scratch.plain.transpose(0, 1)
    handle = scratch.handle(t)
    names = ("get_sizes", "get_strides", "get_dim", "get_data_ptr", "get_dtype", "get_device_type", "get_device_index")
    functions = {name: Libraries.find(cpu, f"aoti_torch_{name}") for name in names}
    vectors = {name: ctypes.POINTER(ctypes.c_int64)() for name in ("get_sizes", "get_strides")}
    data, code, kind = ctypes.c_void_p(), ctypes.c_int32(-1), ctypes.c_int32(-1)
    places = {**vectors, "get_data_ptr": data, "get_dtype": code, "get_device_type": kind}
    if any(functions[name](handle, ctypes.byref(place)) for name, place in places.items()):
        raise Unknown("a getter failed")
    agree = tuple(vectors["get_sizes"][:3]) == tuple(t.shape) and tuple(vectors["get_strides"][:3]) == t.stride()
    if not agree or data.value != t.data_ptr() or code.value != _code(scratch, "float32") or kind.value != 0:
        raise Unknown("a getter disagrees")
    return {name: Libraries.address(function) for name, function in functions.items()}


def _grad_mode(scratch: Scratch) -> Facts:
    read = Libraries.find(scratch.libraries.cpu, "aoti_torch_grad_mode_is_enabled")
    write = Libraries.find(scratch.libraries.cpu, "aoti_torch_grad_mode_set_enabled")
    read.restype, write.argtypes, write.restype = ctypes.c_bool, [ctypes.c_bool], None
    before = torch.is_grad_enabled()
    try:
        for on in (False, True):
            write(on)
            if read() is not on or torch.is_grad_enabled() is not on:
                raise Unknown("grad mode disagrees")
    finally:
        torch._C._set_grad_enabled(before)
    return {"grad_mode_is_enabled": Libraries.address(read), "grad_mode_set_enabled": Libraries.address(write)}


def _wrap(scratch: Scratch) -> Facts:
    """Allocating through a handle and moving it into a Python object."""
    cpu = scratch.libraries.cpu
    names = ("empty_strided", "delete_tensor_object", "create_tensor_from_blob_v2")
    functions = {name: Libraries.find(cpu, f"aoti_torch_{name}") for name in names}
    wrap = Libraries.find(scratch.libraries.python, "_Z16THPVariable_WrapON2at10TensorBaseE")
    wrap.restype, wrap.argtypes = ctypes.py_object, [ctypes.c_void_p]
    pair, handle = ctypes.c_int64 * 2, ctypes.c_void_p()
    one = ctypes.c_int32(0)
    code = ctypes.c_int32(_code(scratch, "int16"))
    if functions["empty_strided"](ctypes.c_int64(2), pair(4, 3), pair(1, 4), code, one, one, ctypes.byref(handle)):
        raise Unknown("no allocation")
    tensor = wrap(handle)
    functions["delete_tensor_object"](handle)
    good = (
        type(tensor) is torch.Tensor
        and tuple(tensor.shape) == (4, 3)
        and tensor.stride() == (1, 4)
        and tensor.dtype is torch.int16
    )
    if not good or tensor.device != torch.device("cpu") or not tensor.untyped_storage().resizable():
        raise Unknown("the tensor made is another one")
    return {**{name: Libraries.address(f) for name, f in functions.items()}, "wrap": Libraries.address(wrap)}


def _tls_keys(scratch: Scratch) -> Facts:
    """Two words of the thread: included and excluded keys, each xor a default."""
    name = "_ZN3c104impl26raw_local_dispatch_key_setE"
    if scratch.libraries.c10 is None:
        raise Unknown("libc10")
    try:
        address = ctypes.addressof((ctypes.c_uint64 * 2).in_dll(scratch.libraries.c10, name))
    except ValueError as error:
        raise Unknown(name) from error
    flips = set()
    for state in (torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu"), torch.enable_grad):
        with state():
            keys = thread_keys()
            flips.add((word_at(address) ^ keys[0], word_at(address + 8) ^ keys[1]))
    included, excluded = _only(flips)
    library = str(scratch.libraries.folder / "libc10.so")
    facts = {"tls_library": library, "tls_included_flip": included, "tls_excluded_flip": excluded}
    before = thread_keys()[1]
    with torch._C._AutoDispatchBelowADInplaceOrView():
        return {**facts, "below_autograd": thread_keys()[1] & ~before}


def _function_modes(scratch: Scratch) -> Facts:
    function = Libraries.find(scratch.libraries.cpu, "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv")
    function.restype = ctypes.c_int64
    before = torch._C._len_torch_function_stack()
    with torch.device("cpu"):
        inside = function()
    if function() != before or inside != before + 1:
        raise Unknown("the depth disagrees")
    return {"mode_count": Libraries.address(function)}


def _default_dtype(scratch: Scratch) -> Facts:
    function = Libraries.find(scratch.libraries.c10, "_ZN3c1031get_default_dtype_as_scalartypeEv")
    function.restype = ctypes.c_int8
    before = torch.get_default_dtype()
    try:
        for dtype in (torch.float64, torch.float32):
            torch.set_default_dtype(dtype)
            if function() != _code(scratch, dtypes.BY_TORCH[dtype].name):
                raise Unknown("the default dtype disagrees")
    finally:
        torch.set_default_dtype(before)
    return {"default_dtype": Libraries.address(function)}


def _deterministic(scratch: Scratch) -> Facts:
    context = Libraries.find(scratch.libraries.cpu, "_ZN2at13globalContextEv")
    function = Libraries.find(scratch.libraries.cpu, "_ZNK2at7Context23deterministicAlgorithmsEv")
    context.restype, function.restype = ctypes.c_void_p, ctypes.c_bool
    here = context()
    before = torch._C._get_deterministic_algorithms(), torch._C._get_deterministic_algorithms_warn_only()
    try:
        for on in (True, False):
            torch._C._set_deterministic_algorithms(on)
            if function(ctypes.c_void_p(here)) is not on:
                raise Unknown("determinism disagrees")
    finally:
        torch._C._set_deterministic_algorithms(before[0], warn_only=before[1])
    return {"deterministic": Libraries.address(function), "context": here}


def _autocast_dtype(scratch: Scratch) -> Facts:
    function = Libraries.find(scratch.libraries.cpu, "_ZN2at8autocast18get_autocast_dtypeEN3c1010DeviceTypeE")
    function.restype, function.argtypes = ctypes.c_int8, [ctypes.c_int8]
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype=dtype):
            if function(0) != _code(scratch, dtypes.BY_TORCH[dtype].name):
                raise Unknown("the autocast dtype disagrees")
    return {"autocast_dtype": Libraries.address(function)}


def _num_threads(scratch: Scratch) -> Facts:
    function = Libraries.find(scratch.libraries.cpu, "_ZN2at15get_num_threadsEv")
    function.restype = ctypes.c_int
    if function() != torch.get_num_threads():
        raise Unknown("the count disagrees")
    return {"thread_count": Libraries.address(function)}


def _gomp(scratch: Scratch) -> Facts:
    """Trusted by its documented interface: starting threads to try it would cost milliseconds."""
    return {"parallel": Libraries.address(Libraries.find(scratch.libraries.gomp, "GOMP_parallel"))}


def _blas(scratch: Scratch) -> Facts:
    """A 2x3 product with 32-bit integer arguments, both operands column major."""
    facts: Facts = {}
    for name, kind, row in (("sgemm", ctypes.c_float, dtypes.FLOAT32), ("dgemm", ctypes.c_double, dtypes.FLOAT64)):
        function = Libraries.find(scratch.libraries.cpu, f"{name}_")
        function.restype = None
        a = torch.arange(1, 9, dtype=row.torch).reshape(2, 4).t().contiguous().t()
        c = torch.arange(2, 14, dtype=row.torch).reshape(3, 4).t()
        out = torch.zeros(3, 2, dtype=row.torch).t()
        m, n, k = (ctypes.c_int(value) for value in (2, 3, 4))
        one, zero, plain = kind(1), kind(0), ctypes.c_char(b"N")
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in (a, c, out)]
        refs = [ctypes.byref(value) for value in (plain, plain, m, n, k, one)]
        function(
            *refs,
            pointers[0],
            ctypes.byref(m),
            pointers[1],
            ctypes.byref(k),
            ctypes.byref(zero),
            pointers[2],
            ctypes.byref(m),
        )
        if not torch.equal(out, a @ c):
            raise Unknown(f"{name} computes something else")
        facts[name] = Libraries.address(function)
    return facts


def _convolutions(scratch: Scratch) -> Facts:
    """What it gives is compared with what the operator gives when it is first needed: here that would take too long."""
    name = "aoti_torch_cpu_convolution_backward"
    return {"convolution_backward": Libraries.address(Libraries.find(scratch.libraries.cpu, name))}


# In the order in which they run: later ones use the handle. The names are those of ``initialise(without=...)``.
PROBES: dict[str, Probe] = {
    "handle": _handle,
    "getters": _getters,
    "key_set": _key_set,
    "dtype": _dtype,
    "sizes": _sizes,
    "autograd_meta": _autograd_meta,
    "requires_grad": _requires_grad,
    "version": _version,
    "wrap": _wrap,
    "grad_mode": _grad_mode,
    "tls_keys": _tls_keys,
    "function_modes": _function_modes,
    "default_dtype": _default_dtype,
    "deterministic": _deterministic,
    "autocast_dtype": _autocast_dtype,
    "num_threads": _num_threads,
    "gomp": _gomp,
    "blas": _blas,
    "default_device": lambda scratch: devices.default_key(scratch.libraries),
    "stream": lambda scratch: devices.current_stream(scratch.libraries),
    "raw_apply": lambda scratch: {"raw_apply": autograd_nodes.raw_apply()},
    "saved_hooks": lambda scratch: {"hooks_state": autograd_nodes.hooks_state(scratch.libraries)},
    "anomaly": lambda scratch: {"anomaly_flag": autograd_nodes.anomaly_flag(scratch.libraries)},
    "keeps_graph": lambda scratch: {"keeps_graph": autograd_nodes.keeps_graph(scratch.libraries)},
    "edges": lambda scratch: autograd_nodes.edges(scratch.libraries),
    "convolutions": _convolutions,
}
TAGS = ("dict_tags", "type_tags", "dict_watchers")
FACTS = (*PROBES, *TAGS)


# ---- the last way of each fact, in Python ----

_CODES: dict[str, int] = {}


def _code(scratch: Scratch, name: str) -> int:
    """The number by which libtorch knows a dtype; where its getter is missing, one of ours (then only Python compares
    it).
    """
    if name not in _CODES:
        try:
            function = Libraries.find(scratch.libraries.cpu, f"aoti_torch_dtype_{name}")
            function.restype = ctypes.c_int32
            _CODES[name] = function()
        except Unknown:
            _CODES[name] = 1000 + len(_CODES)
    return _CODES[name]


def _torch_dtype(code: int) -> torch.dtype:
    return dtypes.BY_NAME[next(name for name, value in _CODES.items() if value == code)].torch


def _dtype_code(dtype: torch.dtype) -> int:
    row = dtypes.BY_TORCH.get(dtype)
    return _CODES[row.name] if row else -1


def thread_keys() -> tuple[int, int]:
    """The thread's included and excluded dispatch keys, raw, by torch's own account."""
    return (
        int(torch._C._dispatch_tls_local_include_set().raw_repr()),
        int(torch._C._dispatch_tls_local_exclude_set().raw_repr()),
    )


def _element(tensor: torch.Tensor) -> tuple[int, int, int]:
    device = tensor.device
    index = -1 if device.index is None else device.index
    return _dtype_code(tensor.dtype), devices.number(device), index


def _empty(sizes: tuple[int, ...], strides: tuple[int, ...], rest: tuple[int, int, int]) -> torch.Tensor:
    return torch.empty_strided(sizes, strides, dtype=_torch_dtype(rest[0]), device=devices.device(rest[1], rest[2]))


def _over(sizes: tuple[int, ...], strides: tuple[int, ...], rest: tuple[int, int]) -> torch.Tensor:
    address, dtype = rest[0], _torch_dtype(rest[1])
    if 0 in sizes:
        return torch.empty_strided(sizes, strides, dtype=dtype)
    count = 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    memory = (ctypes.c_char * (count * dtypes.BY_TORCH[dtype].size)).from_address(address)
    return torch.frombuffer(memory, dtype=dtype).as_strided(sizes, strides)


def _matmul(out: torch.Tensor, a: torch.Tensor, c: torch.Tensor, accumulate: bool) -> None:
    before = torch.is_grad_enabled()
    torch._C._set_grad_enabled(False)
    try:
        if accumulate:
            out.add_(torch.bmm(a, c))
        else:
            out.copy_(torch.bmm(a, c))
    finally:
        torch._C._set_grad_enabled(before)


def _copy(to: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return to.copy_(source)


def _fill_front(to: torch.Tensor, source: torch.Tensor) -> None:
    """Bytes into the beginning of more bytes."""
    to[: source.numel()].copy_(source)


def _same_gradients(known: tuple[torch.Tensor | None, ...], found: tuple[torch.Tensor | None, ...]) -> bool:
    """Whether two tuples have equal tensors, in equal layouts."""

    def same(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
        if a is None or b is None:
            return a is b
        return a.stride() == b.stride() and a.dtype is b.dtype and torch.allclose(a, b, equal_nan=True)

    return len(known) == len(found) and all(map(same, known, found))


def _autocast_code(kind: int) -> int:
    return _dtype_code(torch.get_autocast_dtype(devices.device(kind, -1).type))


FALLBACKS: dict[str, Callable[..., Any]] = {
    "keys": keys_of,
    "element": _element,
    "sizes": lambda tensor: tuple(tensor.shape),
    "strides": lambda tensor: tensor.stride(),
    "data": lambda tensor: tensor.data_ptr(),
    "requires_grad": lambda tensor: tensor.requires_grad,
    "version": lambda tensor: -1 if tensor.is_inference() else tensor._version,
    "raise_version": lambda tensor: None if tensor.is_inference() else torch._C._increment_version([tensor]),
    "thread_keys": thread_keys,
    "grad_enabled": torch.is_grad_enabled,
    "set_grad_enabled": torch._C._set_grad_enabled,
    "mode_count": torch._C._len_torch_function_stack,
    "modes": default_device,
    "default_dtype": lambda: _dtype_code(torch.get_default_dtype()),
    "deterministic": torch._C._get_deterministic_algorithms,
    "autocast_dtype": _autocast_code,
    "thread_count": torch.get_num_threads,
    "empty": _empty,
    "over": _over,
    "matmul": _matmul,
    "copy": _copy,
    "fill_front": _fill_front,
    "same_gradients": _same_gradients,
    "stream": devices.stream,
    "node_classes": autograd_nodes.node_classes,
    "function_meta": FunctionMeta,
    "saved_hooks": autograd_nodes.hooks_active,
    "anomaly": torch.is_anomaly_enabled,
    "modified": autograd_nodes.modified,
    "first_only": autograd_nodes.first_only,
    "wanted": autograd_nodes.wanted,
    "compared_wanted": autograd_nodes.compared_wanted,
    "detach": torch._C.TensorBase.detach,
    "keeps_graph": torch._C._autograd._get_current_graph_task_keep_graph,
}

# What the last initialise() learnt: the facts known, and why the others are not.
known: frozenset[str] = frozenset()
unknown: dict[str, str] = {}


def initialise(without: Iterable[str] = ()) -> frozenset[str]:
    """Probes torch and passes what it found to the extension; returns the names of :data:`FACTS` that are known.

    ``without`` names facts to leave out, for tests of the slower ways; ValueError for another name. May be called
    again at any time: programs made before go on with the new facts.
    """
    global known
    left_out = frozenset(without)
    if left_out - set(FACTS):
        raise ValueError(f"no such fact: {', '.join(sorted(left_out - set(FACTS)))}; there are {', '.join(FACTS)}")
    scratch = Scratch()
    facts = _python_side(scratch)
    unknown.clear()
    for name, probe in PROBES.items():
        try:
            if name in left_out:
                raise Unknown("left out")
            facts.update(probe(scratch))
        except Unknown as reason:
            unknown[name] = str(reason)
    words = facts.pop("cpu_words", {})
    facts["dtypes"] = [(r.name, _code(scratch, r.name), r.size, r.torch, words.get(r.name, -1)) for r in dtypes.ROWS]
    _native.abi_initialise(facts)
    trusted = tags.probe()
    for name in TAGS:
        if name in left_out or name not in trusted:
            unknown[name] = "left out" if name in left_out else "this CPython does not show every change so"
    _native.trust_tags("dict_tags" not in unknown, "type_tags" not in unknown)
    _native.watch_open("dict_watchers" not in unknown)
    known = frozenset(name for name in FACTS if name not in unknown)
    return known


def _python_side(scratch: Scratch) -> Facts:
    fallbacks = dict(FALLBACKS)
    if torch.version.cuda or torch.version.hip or torch.version.xpu:
        fallbacks["default_device"] = torch._C._get_default_device
    plain = [torch.empty(2, dtype=row.torch) for row in dtypes.ROWS]
    return {
        "python": fallbacks,
        "tensor": torch.Tensor,
        "parameter": torch.nn.Parameter,
        "device_types": devices.TYPES,
        "hip": int(torch.version.hip is not None),
        "dual_dict": vars(forward_ad),
        "plain_keys": devices.plain_keys([*plain, scratch.inference]),
    }
