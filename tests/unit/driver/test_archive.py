"""A cache goes to another machine of the same kind as one file; what is not as it was saved is refused, and told."""

import hmac
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

import framefuse
from framefuse import cache, cli
from framefuse.codegen.disk_cache import DiskCache
from framefuse.driver import archive

PROGRAM = """
import sys, torch, framefuse
action, path = sys.argv[1:]
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU())
fast = framefuse.compile(model, options={"check": False})
if action == "load":
    assert framefuse.load_cache(path, key="between us") > 2
x = torch.randn(4, 8)
assert torch.allclose(fast(x), model(x), 1e-4, 1e-6)
fast(x).sum().backward()
if action == "save":
    print(framefuse.save_cache(path, key="between us"))
from framefuse.runtime.function import compiled_function
products = compiled_function(fast).products
print([("found" in each.seconds, sorted({"lower", "fuse"} & set(each.seconds))) for each in products])
"""
NAMES = {name: f"{name[0] * 32}" for name in ("calls", "programs", "kernels")}


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """Two machines with a folder of each kind; the function chooses the one that this process is on."""
    machines = [
        {name: DiskCache(tmp_path / f"{number}" / name) for name in NAMES} for number in range(2)
    ]

    def go(number):
        for module in (archive, cache):
            monkeypatch.setattr(module, "folders", lambda: machines[number])
        return machines[number]

    for name, key in NAMES.items():
        go(0)[name].write(key, name.encode() * 100)
    return go


def test_a_second_machine_records_and_compiles_nothing(tmp_path):
    script, path = tmp_path / "program.py", tmp_path / "saved"
    script.write_text(PROGRAM)
    shown = []
    for action in ("save", "load"):
        home = {"XDG_CACHE_HOME": str(tmp_path / action), "FRAMEFUSE_CACHE": "1", "FRAMEFUSE_CHECK": "0"}
        done = subprocess.run(
            [sys.executable, str(script), action, str(path)], env={**os.environ, **home}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        shown.append(done.stdout.splitlines()[-1])
    assert shown == ["[(False, ['fuse', 'lower'])]", "[(True, [])]"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_entries_are_signed_for_the_machine_that_loads_them(shelf, tmp_path):
    path = tmp_path / "saved"
    assert framefuse.save_cache(path) == framefuse.save_cache(path, whole=True) == 3
    there = shelf(1)
    assert all(each.names() == [] for each in there.values())
    assert framefuse.load_cache(path) == 3
    found = {name: each.read(NAMES[name]) for name, each in there.items()}
    assert found == {name: name.encode() * 100 for name in NAMES}


def test_what_this_process_has_not_used_is_saved_with_the_whole_folder_alone(shelf, tmp_path):
    path, kept = tmp_path / "saved", shelf(0)["calls"]
    kept.write("other" * 8, b"data")
    kept.used.remove("other" * 8)
    assert framefuse.save_cache(path) == 3
    assert framefuse.save_cache(path, whole=True) == 4
    assert "other" * 8 not in kept.used
    shelf(1)
    with pytest.raises(framefuse.UserError, match=r"used no cache\. Call what you have compiled first"):
        framefuse.save_cache(path)
    with pytest.raises(framefuse.UserError, match="the cache is empty"):
        framefuse.save_cache(path, whole=True)


@pytest.mark.parametrize(
    ("saved", "loaded", "told"),
    [
        (None, "k", "saved without a key"),
        ("k", None, "saved with a key. Give the same key"),
        ("k", b"other", "or was saved with another key"),
        ("k", "", "key is empty"),
        ("k", 1, "key is an int"),
    ],
)
def test_a_key_is_asked_for_on_both_sides(shelf, tmp_path, saved, loaded, told):
    path = tmp_path / "saved"
    framefuse.save_cache(path, key=saved)
    there = shelf(1)
    with pytest.raises(framefuse.UserError, match=told):
        framefuse.load_cache(path, key=loaded)
    assert all(each.names() == [] for each in there.values())
    assert framefuse.load_cache(path, key=saved) == 3


@pytest.mark.parametrize("part", ["torch", "Python", "processor", "framefuse", "devices", "format"])
def test_another_kind_of_machine_is_told(shelf, tmp_path, monkeypatch, part):
    path = tmp_path / "saved"
    framefuse.save_cache(path)
    here = archive.kind_here()
    other = {**here, part: f"{here[part]} other"}
    monkeypatch.setattr(archive, "kind_here", lambda: other)
    there = shelf(1)
    if part == "format":
        monkeypatch.setattr(archive, "FORMAT", other[part])
    with pytest.raises(framefuse.UserError, match=f"was saved elsewhere: {part} "):
        framefuse.load_cache(path)
    assert all(each.names() == [] for each in there.values())
    text, found = cache.verify_file(str(path), None)
    assert found == 1 and f"not for this machine: {part}" in text


@pytest.mark.parametrize("key", [None, "k"])
def test_no_damaged_file_is_loaded(shelf, tmp_path, key):
    path = tmp_path / "saved"
    framefuse.save_cache(path, key=key)
    whole, draw, there = path.read_bytes(), random.Random(0), shelf(1)
    for _ in range(300):
        damaged = bytearray(whole)
        match draw.randrange(3):
            case 0:
                damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
            case 1:
                del damaged[draw.randrange(len(damaged)) :]
            case 2:
                start = draw.randrange(len(damaged) - 8)
                damaged[start : start + 8] = reversed(damaged[start : start + 8])
        path.write_bytes(damaged)
        if damaged == whole:
            continue
        with pytest.raises(framefuse.UserError, match="saved"):
            framefuse.load_cache(path, key=key)
    assert all(each.names() == [] for each in there.values())


def sealed(head, content=b""):
    """A file whose seal holds."""
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    body = len(text).to_bytes(8, "little") + text + content
    return archive.MARKS[False] + hmac.digest(b"framefuse", body, "sha256") + body


@pytest.mark.parametrize(
    "entries",
    [
        [["calls", "../../.bashrc/xxxxxxxxxxxx", 1]], [["elsewhere", "c" * 32, 1]], [["calls", "c" * 32, -1]],
        [["calls", "c" * 32, 2]], [["calls", "c" * 32, True]], [["calls", "c" * 32, 0]], [["calls"]],
        [[[], "c" * 32, 1]], [["calls", ["c"], 1]], 7, "text", None,
    ],
)  # fmt: skip
def test_a_sealed_file_with_other_contents_is_refused(shelf, tmp_path, entries):
    path, there = tmp_path / "saved", shelf(1)
    path.write_bytes(sealed({"kind": archive.kind_here(), "entries": entries}, b"x"))
    with pytest.raises(framefuse.UserError, match="is no cache of this framefuse"):
        framefuse.load_cache(path)
    assert all(each.names() == [] for each in there.values())


@pytest.mark.parametrize("head", [b"", b"[]", b"{}", b"\xff", b"[" * 100_000, b"null"])
def test_a_sealed_head_that_is_none_is_refused(shelf, tmp_path, head):
    path = tmp_path / "saved"
    path.write_bytes(sealed(head))
    with pytest.raises(framefuse.UserError, match="is no cache of this framefuse"):
        framefuse.load_cache(path)


def test_a_file_that_others_may_have_written_is_refused_without_a_key(shelf, tmp_path, monkeypatch):
    path, signed = tmp_path / "saved", tmp_path / "signed"
    framefuse.save_cache(path)
    framefuse.save_cache(signed, key="k")
    shelf(1)
    for each in (path, signed):
        each.chmod(0o662)
    with pytest.raises(framefuse.UserError, match="chmod go-w"):
        framefuse.load_cache(path)
    assert framefuse.load_cache(signed, key="k") == 3
    path.chmod(0o600)
    owner = path.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    if owner == 0:
        os.chown(path, 12345, -1)
    with pytest.raises(framefuse.UserError, match="belongs to another user"):
        framefuse.load_cache(path)


def test_a_folder_that_cannot_be_written_is_told(shelf, tmp_path, monkeypatch):
    path = tmp_path / "saved"
    framefuse.save_cache(path)
    monkeypatch.setattr(archive, "folders", lambda: {name: DiskCache(Path(os.devnull) / name) for name in NAMES})
    with pytest.raises(framefuse.UserError, match=r"cannot be written\. Make it writable"):
        framefuse.load_cache(path)


def test_paths_that_are_no_files(tmp_path, shelf):
    with pytest.raises(FileNotFoundError):
        framefuse.load_cache(tmp_path / "none")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises((framefuse.UserError, IsADirectoryError)):
            framefuse.load_cache(path)
    with pytest.raises(OSError):
        framefuse.save_cache(tmp_path / "none" / "saved")
    left = tmp_path / "program.py"
    left.write_text("print()")
    with pytest.raises(framefuse.UserError, match="is no cache"):
        framefuse.load_cache(left)


def test_the_command_saves_verifies_and_loads(shelf, tmp_path, capsys):
    path, key = str(tmp_path / "saved"), tmp_path / "key"
    key.write_text("between us\n")
    assert cli.main(["cache", "save", path, "--key", str(key)]) == 0
    assert capsys.readouterr().out == f"3 entries saved in {path}\n"
    shelf(1)
    assert cli.main(["cache", "verify", path, "--key", str(key)]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [[n, "1", "entries"] for n in NAMES]
    assert cli.main(["cache", "load", path, "--key", str(key)]) == 0
    assert capsys.readouterr().out == f"3 entries loaded from {path}\n"
    assert cli.main(["cache", "load", path]) == 2
    assert capsys.readouterr().err == f"framefuse: {path} was saved with a key. Give the same key\n"
    for wrong in (["save"], ["show", path], ["prune", path], ["load", str(tmp_path / "none")]):
        assert cli.main(["cache", *wrong]) == 2
    assert capsys.readouterr().err.startswith("framefuse: save takes a file. See framefuse cache --help\n")
