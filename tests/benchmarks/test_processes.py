import io
import json
import sys

import pytest

from benchmarks.harness.processes import ANSWER, Failed, Process, reason, serve

SERVER = """
import os, sys
from benchmarks.harness.processes import serve

def fail(): raise ValueError("first line\\nsecond line")
def leave(): print("a last word", file=sys.stderr, flush=True); os._exit(3)
def add(a, b): print("not an answer"); return a + b

def prepare():
    return {"add": add, "fail": fail, "leave": leave}

serve(prepare)
"""


@pytest.fixture
def started(tmp_path, monkeypatch):
    """Starts servers and ends them."""
    (tmp_path / "server_of_a_test.py").write_text(SERVER)
    monkeypatch.setenv("PYTHONPATH", ":".join([str(tmp_path), *filter(None, sys.path)]))
    processes = []

    def start():
        processes.append(Process("server_of_a_test", ()))
        return processes[-1]

    yield start
    for process in processes:
        process.close()


def test_commands_are_answered_until_one_fails(started):
    fails, dies = started(), started()
    assert fails.answer() is None and fails.ask("add", 1, 2) == 3 and fails.ask("add", "a", "b") == "ab"
    with pytest.raises(Failed, match=r"^ValueError: first line$"):
        fails.ask("fail")
    dies.answer()
    with pytest.raises(Failed, match=r"^exit status 3: a last word$"):
        dies.ask("leave")
    for process in (fails, dies):
        process.close()


def test_nothing_is_asked_of_what_could_not_be_prepared(monkeypatch, capsys):
    def nothing():
        raise RuntimeError("nothing here")

    monkeypatch.setattr(sys, "stdin", io.StringIO('["add", 1, 2]\n'))
    serve(nothing)
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith(ANSWER))
    assert json.loads(line.removeprefix(ANSWER)) == {"failed": "RuntimeError: nothing here"}
    serve(lambda: {"add": lambda a, b: a + b})
    assert capsys.readouterr().out.split() == ["=", '{"answer":', "null}", "=", '{"answer":', "3}"]


def test_a_reason_is_one_line():
    assert reason(ValueError()) == "ValueError" and reason(KeyError("a")) == "KeyError: 'a'"
