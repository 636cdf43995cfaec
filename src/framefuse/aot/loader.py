"""Turns an exported library into a callable: tensors go in by DLPack, and come out as arrays or tensors."""

from __future__ import annotations

import ctypes
import functools
import json
import os
import struct
import sys
import tempfile
import threading
import zlib
from collections.abc import Mapping
from typing import Any

import numpy

from framefuse import _native
from framefuse.aot.arguments import takes_tensors, tensors_of
from framefuse.errors import UserError

VERSION = 3
HOST, CUDA = (1, 0), 2  # of DLPack: the CPU, and the type of NVIDIA's GPUs
CHUNK = 1 << 24  # bytes of a file that are read at once
MARK = struct.Struct("<8sQL")  # behind the library: a word, its length, its checksum


_python = ctypes.pythonapi
_pointer_of = _python.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


class _Result:
    """A tensor of the library until somebody takes it."""

    __slots__ = ("capsule", "device")

    def __init__(self, capsule: Any, device: tuple[int, int]) -> None:
        self.capsule, self.device = capsule, device

    def __dlpack__(self, **_: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


class LoadedProgram:
    """An exported program in this process. A call takes arguments as they were recorded, with tensors of numpy, torch
    or whatever knows DLPack, and gives new ones in the structure that was recorded: torch's where torch's were given,
    else numpy's, or on a GPU what knows DLPack. Threads that call it wait for each other: a program of its own for
    each runs at once with them. A call may itself run on several, see :meth:`set_threads`. On a GPU it runs on torch's
    current stream.
    """

    def __init__(self, path: str, library: ctypes.CDLL, weights: str | None = None, device: int = 0) -> None:
        self.path, self._library = path, library
        self.description: Mapping[str, Any] = json.loads(_declared(library))
        self._flat = takes_tensors(self.description["arguments"])
        self._count = library.framefuse_output_count()
        on_gpu = self.description.get("device", "cpu") != "cpu"
        self._device = (CUDA, device) if on_gpu else HOST
        run = library.framefuse_run_on if on_gpu else library.framefuse_run
        self._run: int = ctypes.cast(run, ctypes.c_void_p).value or 0
        self._result = self.description["result"]
        error = ctypes.create_string_buffer(512)
        file = _weights_file(path, weights, self.description.get("weights_file"))
        if on_gpu:
            self._model = library.framefuse_load_on(device, file and os.fsencode(file), error, len(error))
        elif file is None:
            self._model = library.framefuse_load(error, len(error))
        else:
            self._model = library.framefuse_load_with(os.fsencode(file), error, len(error))
        if not self._model:
            raise UserError(f"{path} cannot be loaded: {error.value.decode()}")
        self._leading = (self._model,)
        self._turn = threading.RLock()  # a model has one arena

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tensors = args if self._flat and not kwargs else tensors_of(self.description["arguments"], args, kwargs)
        torch = sys.modules.get("torch")  # a program that has none gives none
        kinds = None if torch is None else _functions_of(torch)
        leading = self._leading if self._device == HOST else (*self._leading, self._stream(torch))
        with self._turn:
            results = _native.run_exported(self._run, leading, tensors, self._count, kinds, _capsule, self._taken)
            if results is None:
                raise ValueError(self._error())
        if self._result["kind"] == "tensor":
            return results[self._result["output"]]
        return _structured(self._result, results)

    def _taken(self, capsule: Any) -> Any:
        """A result for a caller who gave no tensor of torch."""
        made = _Result(capsule, self._device)
        return numpy.from_dlpack(made) if self._device == HOST else made

    def _stream(self, torch: Any) -> int:
        """The stream of a GPU on which torch works now; 0 is the default one."""
        return 0 if torch is None else torch._C._cuda_getCurrentRawStream(self._device[1])

    def update_constants(self, weights: Mapping[str, Any]) -> None:
        """Copies new contents of weights into the program, by their names: all of them or, with ValueError, none."""
        torch = sys.modules.get("torch")
        if torch is not None and self._device != HOST:
            torch.cuda.current_stream(self._device[1]).synchronize()
        names = (ctypes.c_char_p * max(1, len(weights)))(*[name.encode() for name in weights])
        capsules = [_capsule(value) for value in weights.values()]
        values = (ctypes.c_void_p * max(1, len(weights)))(*[_pointer_of(capsule, b"dltensor") for capsule in capsules])
        with self._turn:
            if self._library.framefuse_update_constants(self._model, names, values, len(weights)):
                raise ValueError(self._error())

    def set_threads(self, count: int) -> None:
        """On how many threads later calls run, the caller's among them."""
        if not isinstance(count, int) or count < 1:
            raise UserError(f"{count!r:.40} is no count of threads. Give an int of at least 1")
        with self._turn:
            self._library.framefuse_set_threads(self._model, count)

    def _error(self) -> str:
        return str(self._library.framefuse_error(self._model).decode())

    def __del__(self) -> None:
        if getattr(self, "_model", None):
            self._library.framefuse_free(self._model)

    def __repr__(self) -> str:
        return f"<exported {self.description['name']} of {self.path}>"


def load(
    path: str | os.PathLike[str],
    *,
    threads: int = 1,
    weights: str | os.PathLike[str] | None = None,
    device: int = 0,
) -> LoadedProgram:
    """The program that :func:`framefuse.export` wrote to ``path``, as a callable that runs on so many ``threads``, or
    on the GPU number ``device``, with the file ``weights`` where that is not the one beside it.

    The file is machine code that will run: load one that you trust as much as a program. Its checksum finds damage, and
    no intent.

    Raises:
        UserError: the file is no exported program, is damaged, or needs another processor. OSError: there is no such
            file.
    """
    name = os.path.abspath(os.fspath(path))
    _check_whole(name)
    try:
        library = _opened(name)
    except OSError as error:
        raise UserError(f"{name} cannot be loaded: {error}. Export it on a machine like this one") from error
    program = LoadedProgram(name, library, None if weights is None else os.path.abspath(os.fspath(weights)), device)
    program.set_threads(threads)
    return program


def _opened(name: str) -> ctypes.CDLL:
    """The library under a name that no other had: the loader takes a library that is open under the same name for this
    one, also where the file was replaced since.
    """
    with tempfile.TemporaryDirectory(prefix="framefuse-load-") as folder:
        unique = os.path.join(folder, os.path.basename(name))
        os.symlink(name, unique)
        return ctypes.CDLL(unique)


def _check_whole(name: str) -> None:
    """Raises UserError where the file is not what export wrote, to the last bit."""
    with open(name, "rb") as file:
        data = file.read()
    body = data[: -MARK.size]
    word, length, checksum = MARK.unpack(data[-MARK.size :]) if len(data) >= MARK.size else (b"", 0, 0)
    if word != b"framefus":
        raise UserError(f"{name} is no exported program, or its end is missing. Export it again")
    if length != len(body) or checksum != zlib.crc32(body):
        raise UserError(f"{name} is damaged. Export it again, or copy it anew")


def _weights_file(path: str, given: str | None, described: Mapping[str, Any] | None) -> str | None:
    """The file of the weights: the one that is ``given``, or that was written with the library, to the last bit; None
    where the library holds them.
    """
    if described is None and given is not None:
        raise UserError(f"{path} holds its weights. Export it with weights='beside', or use update_constants")
    if described is None or given is not None:
        return given
    name = os.path.join(os.path.dirname(os.path.realpath(path)), described["name"])
    with open(name, "rb") as file:
        if "checksum_at" in described:  # the library compares what the file says with what it holds
            file.seek(described["checksum_at"])
            is_own = file.read(8) == described["checksum"].encode()
        else:  # of an earlier version
            checksum = 0
            while part := file.read(CHUNK):
                checksum = zlib.crc32(part, checksum)
            is_own = checksum == described["crc32"]
        length = file.seek(0, os.SEEK_END)
    if length != described["bytes"] or not is_own:
        raise UserError(f"{name} is damaged, or of another export. Export it again, or copy it anew")
    return name


def _declared(library: ctypes.CDLL) -> bytes:
    """Tells ctypes the functions of the library; gives its description."""
    version = library.framefuse_version()
    if version != VERSION:
        raise UserError(f"the library has version {version} of the interface, not {VERSION}. Export it again")
    library.framefuse_load.restype = ctypes.c_void_p
    library.framefuse_load.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    if hasattr(library, "framefuse_load_with"):  # libraries of earlier versions hold their weights
        library.framefuse_load_with.restype = ctypes.c_void_p
        library.framefuse_load_with.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]
    if hasattr(library, "framefuse_load_on"):  # and know no GPUs
        library.framefuse_load_on.restype = ctypes.c_void_p
        library.framefuse_load_on.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]
    library.framefuse_free.argtypes = [ctypes.c_void_p]
    library.framefuse_update_constants.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]
    library.framefuse_error.restype, library.framefuse_error.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
    library.framefuse_set_threads.argtypes = [ctypes.c_void_p, ctypes.c_int]
    library.framefuse_description.restype = ctypes.c_char_p
    text: bytes = library.framefuse_description()
    return text


def _capsule(tensor: Any) -> Any:
    """A tensor as a capsule of DLPack; an array that may not be written is copied, as numpy exports none, and so is a
    tensor of torch whose memory holds its values negated, which DLPack cannot say.
    """
    if isinstance(tensor, numpy.ndarray) and not tensor.flags.writeable:
        tensor = tensor.copy()
    if not hasattr(tensor, "__dlpack__"):
        raise TypeError(f"{type(tensor).__name__} has no __dlpack__. Give tensors of numpy, torch or another library")
    if hasattr(tensor, "resolve_neg"):
        tensor = tensor.detach().resolve_conj().resolve_neg()
    return tensor.__dlpack__()


@functools.cache
def _functions_of(torch: Any) -> tuple[Any, Any, Any, Any]:
    """What native code takes to make capsules of torch's tensors, and them of capsules: functions that take a tenth of
    the time of the methods.
    """
    return torch.Tensor, torch.strided, torch.to_dlpack, torch._C._from_dlpack


def _structured(structure: Any, results: list[Any]) -> Any:
    """The results in the structure that the description gives."""
    kind, parts = structure["kind"], structure.get("parts", ())
    if kind == "tensor":
        return results[structure["output"]]
    if kind in ("none", "value"):
        return structure.get("value")
    if kind == "dict":
        return {key: _structured(part, results) for key, part in zip(structure["keys"], parts, strict=True)}
    filled = [_structured(part, results) for part in parts]
    return filled if kind == "list" else tuple(filled)
