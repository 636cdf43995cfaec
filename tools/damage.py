"""Damages files of the cache in many ways, and looks that each is refused or compiled anew: python tools/damage.py"""

import argparse
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest import mock

import torch

import framefuse
from framefuse.codegen.disk_cache import DiskCache
from framefuse.codegen.llvm import compile as llvm
from framefuse.codegen.llvm import loading
from framefuse.driver import archive
from framefuse.driver.calls import calls
from framefuse.driver.programs import later, programs
from framefuse.driver.wiring import connect
from framefuse.errors import CompilerBug

CALLS = 100  # of so many damaged files one is called for


def flipped(content: bytes, others: Sequence[bytes], draw: random.Random) -> bytes:
    """Some bits are others."""
    damaged = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 8, 64))):
        damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
    return bytes(damaged)


def cut(content: bytes, others: Sequence[bytes], draw: random.Random) -> bytes:
    """The end is missing."""
    return content[: draw.randrange(len(content))]


def swapped(content: bytes, others: Sequence[bytes], draw: random.Random) -> bytes:
    """The file of another entry lies there."""
    return draw.choice(others)


def mixed(content: bytes, others: Sequence[bytes], draw: random.Random) -> bytes:
    """It begins as it should and goes on as another one."""
    other, place = draw.choice(others), draw.randrange(1, len(content))
    return content[:place] + other[place:]


def longer(content: bytes, others: Sequence[bytes], draw: random.Random) -> bytes:
    """Something stands behind its end."""
    return content + draw.randbytes(draw.randrange(1, 100))


def noise(content: bytes, others: Sequence[bytes], draw: random.Random) -> bytes:
    """A stretch of it is noise."""
    start, size = draw.randrange(len(content)), draw.randrange(1, 200)
    return content[:start] + draw.randbytes(size) + content[start + size :]


WAYS: tuple[Callable[[bytes, Sequence[bytes], random.Random], bytes], ...] = (
    flipped, cut, swapped, mixed, longer, noise
)  # fmt: skip


def linked(path: Path, content: bytes, place: Path) -> None:
    """A link to a good file."""
    (place / "elsewhere").write_bytes(content)
    path.symlink_to(place / "elsewhere")


def foldered(path: Path, content: bytes, place: Path) -> None:
    """A folder."""
    path.mkdir()
    (path / "file").write_bytes(content)


def piped(path: Path, content: bytes, place: Path) -> None:
    """A pipe into which nobody writes."""
    os.mkfifo(path)


def foreign(path: Path, content: bytes, place: Path) -> None:
    """A good file of another user, where we may make one; else none."""
    if os.geteuid() == 0:
        path.write_bytes(content)
        os.chown(path, 65534, 65534)


FORMS: tuple[Callable[[Path, bytes, Path], None], ...] = (linked, foldered, piped, foreign)


def gone(folder: Path) -> None:
    """The folder is missing."""
    shutil.rmtree(folder)


def a_file(folder: Path) -> None:
    """A file lies where the folder should."""
    shutil.rmtree(folder)
    folder.write_bytes(b"no folder")


def without_key(folder: Path) -> None:
    """The key is missing, so that nobody can tell who signed the files."""
    (folder / ".key").unlink()


def another_key(folder: Path) -> None:
    """The key is another folder's."""
    (folder / ".key").write_bytes(os.urandom(32))


def cut_key(folder: Path) -> None:
    """The key is cut short."""
    (folder / ".key").write_bytes(b"short")


def open_key(folder: Path) -> None:
    """Everybody may have read the key."""
    (folder / ".key").chmod(0o644)


SURROUNDINGS: tuple[Callable[[Path], None], ...] = (gone, a_file, without_key, another_key, cut_key, open_key)


class Caches:
    """The folders of one process that begins, in a place of their own, and a few functions that use them."""

    def __init__(self, place: Path) -> None:
        self.place = place
        calls.PROCESS, programs.PROCESS = DiskCache(place / "calls"), DiskCache(place / "programs")
        llvm.PROCESS = llvm.Compiler(DiskCache(place / "kernels"))
        self.folders = {"calls": calls.PROCESS, "programs": programs.PROCESS, "kernels": llvm.PROCESS.disk}
        self.functions = [_function(number) for number in range(3)]
        for function in self.functions:
            self.call(function, 4)

    def call(self, function: Callable[[torch.Tensor], torch.Tensor], rows: int) -> None:
        """Calls as a process does that begins, twice, and compares with eager."""
        later.PROCESS.finish()
        llvm.PROCESS._objects.clear()
        llvm.PROCESS._by_name.clear()
        llvm.PROCESS._loaded.clear()
        fast = framefuse.compile(function, options={"check": False, "cache": True})
        for size in (rows, rows + 1):
            x = torch.randn(size, 8)
            torch.testing.assert_close(fast(x), function(x))
        assert fast.hits > 0
        later.PROCESS.finish()


def damage_files(caches: Caches, count: int, draw: random.Random) -> int:
    """Damages so many files, one after the other; returns how many calls met one. Raises AssertionError where one is
    read.
    """
    files = {
        (name, key): folder.folder / f"{key}.o" for name, folder in caches.folders.items() for key in folder.names()
    }
    good = {entry: path.read_bytes() for entry, path in files.items()}
    met = damaged = 0
    for _ in range(count):
        entry = draw.choice(list(files))
        others = [content for other, content in good.items() if other != entry]
        content = draw.choice(WAYS)(good[entry], others, draw)
        if content == good[entry]:
            continue
        files[entry].write_bytes(content)
        assert caches.folders[entry[0]].read(entry[1]) is None, f"{entry} was read, though damaged"
        if damaged % CALLS == 0:
            for function in caches.functions:
                caches.call(function, 4)
            met += 1
        damaged += 1
        files[entry].write_bytes(good[entry])
    return met


def replace_files(caches: Caches, count: int, draw: random.Random) -> None:
    """Puts something else in the place of so many files. Raises AssertionError where it is read."""
    files = [
        (folder, key, folder.folder / f"{key}.o") for folder in caches.folders.values() for key in folder.names()
    ]
    good = {path: path.read_bytes() for _, _, path in files}
    for number in range(count):
        folder, key, path = draw.choice(files)
        removed(path)
        draw.choice(FORMS)(path, good[path], caches.place)
        assert folder.read(key) is None, f"{path} was read, though it is no file of ours"
        if number % CALLS == 0:
            caches.call(draw.choice(caches.functions), 4)
        removed(path)
        path.write_bytes(good[path])


def spoil_folders(caches: Caches) -> int:
    """Spoils each folder in each way, and all at once; returns how many calls met that."""
    met = 0
    for spoil in SURROUNDINGS:
        for names in (*((name,) for name in caches.folders), tuple(caches.folders)):
            for name in names:
                spoil(caches.folders[name].folder)
            caches.call(caches.functions[met % len(caches.functions)], 4)
            for folder in caches.folders.values():  # a program brings its kernels: alone they would not come back
                removed(folder.folder)
            for function in caches.functions:  # fills them again
                caches.call(function, 4)
            met += 1
    return met


def removed(path: Path) -> None:
    """Removes whatever lies there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def damage_archives(caches: Caches, count: int, draw: random.Random) -> None:
    """Damages so many saved files. Raises AssertionError where one is loaded."""
    path, other = caches.place / "saved", caches.place / "other"
    with mock.patch.object(archive, "folders", lambda: caches.folders):
        for key in (None, "a key"):
            archive.save(path, key, whole=True)
            archive.save(other, key or "another key", whole=True)
            good, others = path.read_bytes(), [other.read_bytes()[::-1], *([] if key else [other.read_bytes()])]
            for _ in range(count // 2):
                content = draw.choice(WAYS)(good, others, draw)
                if content != good:
                    path.write_bytes(content)
                    _refused(path, key)


def _refused(path: Path, key: str | None) -> None:
    try:
        archive.load(path, key)
    except framefuse.UserError:
        return
    raise AssertionError("a damaged file was loaded")


def damage_objects(caches: Caches, count: int, draw: random.Random) -> int:
    """Loads so many damaged objects, as if nobody had signed them, without running them; returns how many were refused.
    A flip in the code itself cannot be seen; anything else must not be more than an error.
    """
    connect()
    kernels = caches.folders["kernels"]
    good = [data for data in map(kernels.look, kernels.names()) if data is not None]
    refused = 0
    for _ in range(count):
        content = draw.choice(good)
        for _ in range(draw.choice((1, 2))):
            content = draw.choice(WAYS)(content, good, draw) or b"empty"
        try:
            loading.load([loading.Object("of another name", (), content)])
        except CompilerBug:
            refused += 1
        try:
            name = next(name for name in kernels.names() if name.encode() in content)
            loading.load([loading.Object(name, (), content)])
        except (CompilerBug, StopIteration):
            refused += 1
    return refused


def _function(number: int) -> Callable[[torch.Tensor], torch.Tensor]:
    def small(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) * number + x.softmax(-1)

    return small


def main() -> None:
    """Damages what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="files of the cache, and as many saved ones")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    draw = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as place:
        caches = Caches(Path(place))
        met = damage_files(caches, options.count, draw) + spoil_folders(caches)
        replace_files(caches, options.count // 10, draw)
        damage_archives(caches, options.count, draw)
        refused = damage_objects(caches, options.count, draw)
    print(f"{options.count} damaged files, {met} of them with calls, and {options.count} saved ones: none was used")
    print(f"{options.count} damaged objects loaded twice: {refused} refused, none ended the process")


if __name__ == "__main__":
    main()
