"""What functions of os.path read of the process and its files is of the call: the folder, the environment, links."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.traps.trap import Trap, hold

PROGRAMS = {
    "abspath": lambda: len(os.path.abspath("part")),
    "realpath": lambda: len(os.path.realpath("part")),
    "relpath": lambda: len(os.path.relpath("/usr/lib")),
    "expanduser": lambda: len(os.path.expanduser("~/part")),
    "expandvars": lambda: len(os.path.expandvars("$WEIGHTS/part")),
    "islink": lambda: 2 if os.path.islink("link") else 3,
    "exists": lambda: 2 if os.path.exists("there") else 3,
    "isfile": lambda: 2 if os.path.isfile("there") else 3,
    "isdir": lambda: 2 if os.path.isdir("there") else 3,
    "lexists": lambda: 2 if os.path.lexists("link") else 3,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_paths_of_the_process(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = PROGRAMS[name]

    def program(compiled: Any) -> Any:
        f = compiled(lambda x: x * read() + 1)
        for folder in ("a", "a/bb", "a/bb/ccc"):
            place = tmp_path / folder
            place.mkdir(exist_ok=True)
            if folder == "a/bb":
                (place / "link").unlink(missing_ok=True)
                (place / "link").symlink_to("nowhere")
                (place / "there").touch()
            monkeypatch.chdir(place)
            monkeypatch.setenv("HOME", str(place))
            monkeypatch.setenv("WEIGHTS", folder)
            for number in (1, 2):
                yield f(torch.full((3,), float(number)))

    hold(Trap(program, 3, 3))
