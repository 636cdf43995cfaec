"""Keeps a process that answers commands: a contestant that compiles cold and has its memory to itself, yet takes turns.

`serve` is its side: a command a line on stdin, the name of a function and its arguments in JSON, and a line of JSON for
each on stdout. Between commands it waits, and takes no time from the others.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

ANSWER = "= "  # before a line that answers; whatever else a compiler prints is not for us
ROOT = Path(__file__).resolve().parents[2]  # where `python -m` finds this package
PATIENCE = 30.0  # seconds that a process has to end


class Failed(Exception):
    """A process could not do what it was asked; the text is the reason in one line."""


class Process:
    """``python -m MODULE ARGUMENTS``, started at once; its first answer says that it is ready."""

    def __init__(self, module: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # lives as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            env={**os.environ, **(environment or {})},
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def answer(self) -> Any:
        """The next answer; raises Failed where there is none, and the process is over then."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(ANSWER):
                message: dict[str, Any] = json.loads(line.removeprefix(ANSWER))
                if "failed" not in message:
                    return message["answer"]
                self.close()
                raise Failed(message["failed"])
        status = self._process.wait()
        self._errors.seek(0)
        said = [line.strip() for line in self._errors if line.strip()]
        self.close()
        raise Failed(": ".join([f"exit status {status}", *(line[:200] for line in said[-1:])]))

    def ask(self, command: str, *arguments: object) -> Any:
        """What the command gives; raises Failed."""
        assert self._process.stdin is not None
        with suppress(OSError):  # it has ended, and the answer says why
            self._process.stdin.write(json.dumps([command, *arguments]) + "\n")
            self._process.stdin.flush()
        return self.answer()

    def dismiss(self) -> None:
        """Tells the process to end, without waiting."""
        assert self._process.stdin is not None
        with suppress(OSError):  # of a command that nobody read
            self._process.stdin.close()

    def close(self) -> None:
        """Ends the process and waits for its end, so that its memory is free."""
        self.dismiss()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()


def reason(error: Exception) -> str:
    """The exception in one line."""
    lines = str(error).strip().splitlines()
    return ": ".join([type(error).__name__, *(line[:200] for line in lines[:1])])


def serve(prepare: Callable[[], Mapping[str, Callable[..., object]]]) -> None:
    """Prepares, says so, and answers commands until there are no more, or until one of them fails."""
    commands: Mapping[str, Callable[..., object]] = {}

    def attempt(function: Callable[..., object], *arguments: object) -> bool:
        try:
            message: dict[str, object] = {"answer": function(*arguments)}
        except Exception as error:  # whatever a compiler raises is that contestant's row
            message = {"failed": reason(error)}
        print("\n" + ANSWER + json.dumps(message), flush=True)
        return "failed" not in message

    def start() -> None:
        nonlocal commands
        commands = prepare()

    if not attempt(start):
        return
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        if not attempt(commands[name], *arguments):
            return
