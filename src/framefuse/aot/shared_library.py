"""Makes the shared library of an exported program: object code of its kernels, its C text, the C compiler."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO

from framefuse.aot.c_launches import Launches
from framefuse.aot.c_text import Writer, c_text
from framefuse.aot.exported_program import FileBeside, Program
from framefuse.aot.loader import MARK
from framefuse.aot.weights import CHECKSUM_AT, Laid, laid, write
from framefuse.codegen import llvm
from framefuse.errors import UserError

HERE = Path(__file__).parent
WEIGHTS = "weights.safetensors"  # their file, or where that lies beside the library its head, for the assembler
FLAGS = ("-std=gnu11", "-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-Bsymbolic")
NATIVE, PORTABLE = ("-O3", "-march=native"), ("-O2",)  # of the library that computes, and of one that has it computed
LIBRARIES = ("-lm", "-ldl", "-pthread")


def build(program: Program, files: Mapping[str, bytes], path: Path, beside: Path | None) -> None:
    """Writes the library to ``path`` and, where there is a place ``beside`` it, the weights to that one; each file
    whole or not at all. ``files`` are the code of its kernels: objects are linked, the C text holds what else there is.
    Raises UserError where there is no C compiler.
    """
    placed = laid(program.weights)
    with tempfile.TemporaryDirectory(prefix="framefuse-export-") as name:
        folder = Path(name)
        for file_name, code in files.items():
            (folder / file_name).write_bytes(code)
        if beside is None:
            with open(folder / WEIGHTS, "wb") as file:
                write(program.weights, placed, file)
            _library(program, placed, folder, path)
            return
        with _replaced(beside, 0o644) as file:
            placed = write(program.weights, placed, file)
            (folder / WEIGHTS).write_bytes(placed.head)
            found = FileBeside(beside.name, placed.size, CHECKSUM_AT, placed.checksum)
            description = {**program.description, "weights_file": asdict(found)}
            _library(replace(program, description=description, beside=found), placed, folder, path)


def _library(program: Program, placed: Laid, folder: Path, path: Path) -> None:
    wide = llvm.host().vector_bytes == 64
    writer, flags = (Writer(program, wide), NATIVE) if program.gpu is None else (Launches(program), PORTABLE)
    (folder / "program.c").write_text(c_text(writer, placed), encoding="utf-8")
    objects = sorted(file.name for file in folder.glob("*.o"))
    command = [*_compiler(), *FLAGS, *flags, f"-I{HERE}", "program.c", *objects, "-o", "program.so", *LIBRARIES]
    answer = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if answer.returncode:
        lines = answer.stderr.strip().splitlines() or ["no reason"]
        line = next((line for line in lines if "error" in line), lines[0])
        raise UserError(f"the C compiler fails: {line}. Check it with {shlex.join(command[:1])} --version")
    library = (folder / "program.so").read_bytes()
    with _replaced(path, 0o755) as file:  # behind the library a mark, by which a damaged file is known
        file.write(library)
        file.write(MARK.pack(b"framefus", len(library), zlib.crc32(library)))


def _compiler() -> list[str]:
    """The C compiler as a command: CC, or the one that is there."""
    told = shlex.split(os.environ.get("CC", "")) or shlex.split(sysconfig.get_config_var("CC") or "")
    for command in (told, ["cc"], ["gcc"], ["clang"]):
        if command and shutil.which(command[0]):
            return command[:1]
    raise UserError("export needs a C compiler, and there is none. Install gcc or clang, or set CC")


@contextlib.contextmanager
def _replaced(path: Path, mode: int) -> Iterator[IO[bytes]]:
    """A file that takes the place of ``path`` when all is written to it."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        os.chmod(name, mode)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
