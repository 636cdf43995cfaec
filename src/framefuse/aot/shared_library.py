"""Makes the shared library of an exported program: object code of its kernels, its C text, the C compiler."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from framefuse.aot.c_text import c_text
from framefuse.aot.exported_program import Program
from framefuse.aot.loader import MARK
from framefuse.aot.weights import written
from framefuse.codegen import llvm
from framefuse.errors import UserError
from framefuse.ir.loops import Kernel

HERE = Path(__file__).parent
FLAGS = ("-std=gnu11", "-O3", "-march=native", "-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-Bsymbolic")


def build(program: Program, kernels: Mapping[str, Kernel], path: Path) -> None:
    """Writes the library to ``path``, whole or not at all. Raises UserError where there is no C compiler."""
    data, places = written(program.weights)
    wide = llvm.host().vector_bytes == 64
    with tempfile.TemporaryDirectory(prefix="framefuse-export-") as name:
        folder = Path(name)
        (folder / "weights.safetensors").write_bytes(data)
        (folder / "program.c").write_text(c_text(program, places, wide), encoding="utf-8")
        for function, kernel in kernels.items():
            (folder / f"{function}.o").write_bytes(llvm.object_file(kernel, function))
        objects = [f"{function}.o" for function in kernels]
        command = [*_compiler(), *FLAGS, f"-I{HERE}", "program.c", *objects, "-o", "program.so", "-lm", "-pthread"]
        answer = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if answer.returncode:
            lines = answer.stderr.strip().splitlines() or ["no reason"]
            raise UserError(f"the C compiler fails: {lines[0]}. Check it with {shlex.join(command[:1])} --version")
        _write(path, (folder / "program.so").read_bytes())


def _compiler() -> list[str]:
    """The C compiler as a command: CC, or the one that is there."""
    told = shlex.split(os.environ.get("CC", "")) or shlex.split(sysconfig.get_config_var("CC") or "")
    for command in (told, ["cc"], ["gcc"], ["clang"]):
        if command and shutil.which(command[0]):
            return command[:1]
    raise UserError("export needs a C compiler, and there is none. Install gcc or clang, or set CC")


def _write(path: Path, library: bytes) -> None:
    """The library and, behind it, a mark with its length and checksum, by which a damaged file is known."""
    sealed = library + MARK.pack(b"framefus", len(library), zlib.crc32(library))
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(sealed)
        os.chmod(name, 0o755)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
