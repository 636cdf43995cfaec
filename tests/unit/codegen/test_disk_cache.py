"""A folder of files is shared by processes, bounded, and read only where a file is whole, its own and this user's."""

import os
import random
import stat
import time

import pytest

from framefuse.codegen import disk_cache
from framefuse.codegen.disk_cache import KEY, DiskCache


@pytest.fixture
def cache(tmp_path):
    return DiskCache(tmp_path / "folder")


def path(cache, key):
    return cache.folder / f"{key}.o"


def test_what_is_written_is_read_by_another(cache):
    assert cache.read("a") is None
    for data in (b"", b"x", os.urandom(5000)):
        cache.write("a", data)
        assert cache.read("a") == data == DiskCache(cache.folder).read("a")
    assert cache.names() == ["a"]


def test_only_the_user_can_read_the_folder(cache):
    cache.write("a", b"x")
    modes = {entry.name: stat.S_IMODE(entry.stat().st_mode) for entry in os.scandir(cache.folder)}
    assert modes == {KEY: 0o600, "a.o": 0o600}
    assert stat.S_IMODE(cache.folder.stat().st_mode) == 0o700


def test_every_flipped_bit_is_seen(cache):
    data, drawn = os.urandom(300), random.Random(0)
    cache.write("a", data)
    whole = path(cache, "a").read_bytes()
    for _ in range(600):
        broken = bytearray(whole)
        broken[drawn.randrange(len(whole))] ^= 1 << drawn.randrange(8)
        path(cache, "a").write_bytes(broken)
        assert cache.read("a") is None
    path(cache, "a").write_bytes(whole)
    assert cache.read("a") == data


def test_files_cut_short_or_grown_are_seen(cache):
    cache.write("a", b"0123456789")
    whole = path(cache, "a").read_bytes()
    for content in [whole[:length] for length in range(len(whole))] + [whole + b"\0", whole * 2]:
        path(cache, "a").write_bytes(content)
        assert cache.read("a") is None


def test_a_file_in_another_place_is_seen(cache, tmp_path):
    other = DiskCache(tmp_path / "other")
    for each in (cache, other):
        each.write("a", b"of a")
        each.write("b", b"of b")
    os.replace(path(cache, "b"), path(cache, "a"))
    assert cache.read("a") is None
    os.replace(path(other, "b"), path(cache, "b"))  # signed by another key
    assert cache.read("b") is None


def test_files_and_keys_of_another_user_are_refused(cache, monkeypatch):
    cache.write("a", b"x")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert cache.read("a") is None  # the file
    assert DiskCache(cache.folder).read("a") is None  # the key
    monkeypatch.undo()
    assert cache.read("a") == b"x"


def test_a_key_that_others_can_read_signs_nothing(cache):
    cache.write("a", b"x")
    (cache.folder / KEY).chmod(0o644)
    fresh = DiskCache(cache.folder)
    assert fresh.read("a") is None
    fresh.write("a", b"y")
    assert stat.S_IMODE((cache.folder / KEY).stat().st_mode) == 0o600
    assert cache.read("a") is None and cache.read("a") == b"y"  # who held the old key takes the new one


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 33])
def test_a_damaged_key_is_replaced(content, cache):
    cache.write("a", b"x")
    (cache.folder / KEY).write_bytes(content)
    fresh = DiskCache(cache.folder)
    assert fresh.read("a") is None
    fresh.write("a", b"x")
    assert DiskCache(cache.folder).read("a") == b"x"


def test_links_and_folders_are_no_files(cache, tmp_path):
    cache.write("a", b"x")
    os.replace(path(cache, "a"), tmp_path / "elsewhere")
    path(cache, "a").symlink_to(tmp_path / "elsewhere")
    assert cache.read("a") is None
    path(cache, "b").mkdir()
    assert cache.read("b") is None
    cache.write("b", b"x")  # cannot replace it, and says nothing
    os.mkfifo(path(cache, "c"))
    assert cache.read("c") is None


def test_a_dropped_folder_comes_back(cache):
    cache.write("a", b"x")
    for entry in os.scandir(cache.folder):
        os.unlink(entry)
    cache.folder.rmdir()
    assert cache.read("a") is None
    cache.write("a", b"x")
    assert cache.read("a") == DiskCache(cache.folder).read("a") == b"x"


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    cache = DiskCache(tmp_path / "file" / "folder")
    cache.write("a", b"x")
    assert cache.read("a") is None and cache.names() == [] and cache.held().files == 0


def aged(cache, names):
    """Writes files that were used one after the other, long ago."""
    for number, name in enumerate(names):
        cache.write(name, bytes(100))
        then = time.time() - 10 * disk_cache.FRESH + number
        os.utime(path(cache, name), (then, then))


def test_what_was_used_longest_ago_is_dropped_first(cache):
    names = [f"n{number}" for number in range(10)]
    aged(cache, names)
    assert cache.read("n0") is not None  # notes the use
    size = cache.held().bytes // 10
    assert cache.leave(100, 10 * size) == 0
    assert cache.leave(100, 4 * size) == 6
    assert cache.names() == ["n0", "n7", "n8", "n9"]
    assert cache.leave(1, 100 * size) == 3 and cache.names() == ["n0"]
    assert cache.read("n0") is not None
    assert cache.leave(0, 0) == 1 and cache.held().files == 0


def test_a_folder_of_too_many_files_is_thinned_to_half(cache, monkeypatch):
    aged(cache, [f"n{number}" for number in range(9)])
    monkeypatch.setattr(disk_cache, "MOST_FILES", 8)
    DiskCache(cache.folder).write("new", b"x")
    assert len(cache.names()) == 10  # looked through a short time ago, by whichever process
    os.utime(cache.folder / KEY, (1, 1))
    DiskCache(cache.folder).write("newer", b"x")
    assert cache.names() == ["n6", "n7", "n8", "new", "newer"]
    assert (cache.folder / KEY).stat().st_mtime > 1


def test_damaged_files_are_named(cache):
    for name in ("a", "b", "c"):
        cache.write(name, b"0123")
    assert cache.damaged() == []
    path(cache, "b").write_bytes(b"0123")
    assert cache.damaged() == ["b"]


def test_a_folder_is_thinned_as_it_grows(cache, monkeypatch):
    monkeypatch.setattr(disk_cache, "MOST_BYTES", 3000)
    for number in range(100):
        cache.write(f"n{number}", bytes(100))
        assert cache.held().bytes <= 3000 + 3000 // 8 + 2 * 132
    assert cache.read("n99") is not None


def test_parts_that_nobody_writes_any_more_are_dropped(cache):
    cache.write("a", b"x")
    fresh, old = cache.folder / "x.part", cache.folder / "y.part"
    for part in (fresh, old):
        part.write_bytes(b"half")
    then = time.time() - 2 * disk_cache.ABANDONED
    os.utime(old, (then, then))
    assert cache.held().files == 1
    assert fresh.exists() and not old.exists()
