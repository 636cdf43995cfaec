import csv
import io

import pytest
from rich.console import Console

from benchmarks.harness.report import Field, hardware, markdown, number, progress, save, show

FIELDS = (Field("name", "name"), Field("time_us", "time us", "{:.1f}"), Field("torch_us", "torch us", "{:.1f}"))
ROWS = [{"name": "a", "time_us": 1.25, "torch_us": None, "hidden": 7}, {"name": "b", "time_us": 2.0, "torch_us": 3.0}]


def test_files_hold_every_value(tmp_path):
    sheet, text = save(tmp_path / "new", "result", "A title", FIELDS, ROWS, "on a machine")
    with sheet.open() as file:
        read = list(csv.DictReader(file))
    assert list(read[0]) == ["name", "time_us", "torch_us", "hidden", "measured_on"]
    assert [row["time_us"] for row in read] == ["1.25", "2.0"] and read[0]["measured_on"] == "on a machine"
    assert text.read_text() == markdown("A title", FIELDS, ROWS, "on a machine")


def test_markdown_has_a_dash_where_nothing_was_measured():
    lines = markdown("A title", FIELDS, ROWS, "on a machine").splitlines()
    assert lines[0] == "**A title**" and lines[-1] == "on a machine"
    assert lines[2] == "| name | time us | torch us |" and lines[4] == "| a | 1.2 | - |"


def test_the_screen_shows_title_and_figures():
    console = Console(file=io.StringIO(), width=80)
    show(console, "A title", FIELDS, ROWS)
    text = console.file.getvalue()
    assert text.startswith("A title\n") and text.splitlines()[-1].split() == ["b", "2.0", "3.0"]


def test_number_refuses_a_missing_figure():
    assert number(ROWS[0], "time_us") == 1.25
    with pytest.raises(TypeError, match="torch_us is None"):
        number(ROWS[0], "torch_us")


def test_progress_counts_finished_steps():
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    with progress(console, 3) as say:
        say("first")
        say("second")
    assert "second" in console.file.getvalue() and "1/3" in console.file.getvalue()


def test_hardware_names_threads_and_torch():
    assert "torch threads" in hardware() and "Python 3." in hardware()
