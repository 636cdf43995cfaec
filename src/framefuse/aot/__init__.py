"""Turns a compiled call into a shared library that runs without Python, and such a library into a callable.

Here are the public functions; torch and the stages are imported at their calls, as :func:`load` needs neither.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from framefuse.aot.exporting import Exported
    from framefuse.aot.loader import LoadedProgram


def export(
    f: Callable[..., Any],
    example_inputs: Sequence[Any],
    path: str | os.PathLike[str],
    *,
    kwargs: Mapping[str, Any] | None = None,
    dynamic: bool | Mapping[int | str, Mapping[int, str]] | None = None,
    weights: str = "inside",
    libtorch: bool = False,
) -> Exported:
    """Writes ``f`` as a shared library that runs without Python and without torch, on CPUs or NVIDIA GPUs like those
    here: where the examples lie.

    ``f`` runs once on the examples, without gradients. What a trace would silently make constant is an error at its
    line: a branch on a tensor's value, an effect, a number computed from a tensor. docs/export.md has the interface in
    C, and what can be exported so far. It needs a C compiler.

    Args:
        f: a function or module of tensors, on the CPU or a GPU; also one of TorchScript, or an ``ExportedProgram``.
        example_inputs: the arguments that it is called with: tensors, also within tuples, lists, dicts with texts as
            keys and dataclasses, and numbers, texts and None, which stay what they are.
        kwargs: those that it is called with by name.
        path: the library. It is replaced whole.
        dynamic: None or True, sizes may differ from the examples' as far as the program allows it: where it allows
            none to, None takes those of the examples and True is an error; False, none may differ; or
            ``{input: {dimension: name}}``, only those may, and those of one name are equal in each call. An input is
            the number of a tensor among all, or the name of a parameter.
        weights: "inside" the library, or "beside" it, in a file of safetensors with its name.
        libtorch: whether the program may call operators of torch's library that there is no code for, on the CPU. It
            then needs libtorch_cpu.so where it runs; what was written says which operators those are.

    Returns:
        What was written: ``path``, names of ``inputs`` and ``weights``, the number of ``outputs``, ``assumed``,
        Python values that the program read and that stay what they were, and ``libtorch``, the operators of torch that
        it calls.

    Raises:
        UserError: the program cannot be exported; the text says why and where. An OSError too: the file cannot be
            written.
    """
    stage = importlib.import_module("framefuse.aot.exporting")
    asked = {"kwargs": kwargs, "dynamic": dynamic, "weights": weights, "libtorch": libtorch}
    written: Exported = stage.export(f, example_inputs, path, **asked)
    return written


def load(
    path: str | os.PathLike[str],
    *,
    threads: int = 1,
    weights: str | os.PathLike[str] | None = None,
    device: int = 0,
) -> LoadedProgram:
    """The program that :func:`export` wrote to ``path``, as a callable of arrays of NumPy or tensors of torch.

    The file is machine code that will run: load one that you trust as much as a program. Its checksum finds damage, and
    no intent. The callable has ``update_constants({name: tensor})``, ``set_threads(count)`` and a ``description``; one
    thread calls it at a time, and a call runs on so many ``threads``, or on the GPU number ``device``, in torch's
    current stream. ``weights`` is their file where it lies elsewhere than beside the library; it may have other
    contents, and its checksum is not looked at.

    Raises:
        UserError: the file is no exported program, is damaged, or needs another processor. OSError: there is no such
            file.
    """
    program: LoadedProgram = importlib.import_module("framefuse.aot.loader").load(
        path, threads=threads, weights=weights, device=device
    )
    return program
