"""Reports carry their facts: two are compared, and those of several ranks stand side by side."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import framefuse
from framefuse.cli import main
from framefuse.explain.difference import difference
from framefuse.explain.ranks import side_by_side
from framefuse.explain.report_facts import Process, ReportFacts, read

ROOT = Path(__file__).parents[3]


def report_of(function, folder, name, *shapes):
    compiled = framefuse.compile(function)
    for shape in shapes:
        for _ in range(2):
            compiled(torch.randn(shape))
    assert compiled.hits >= len(shapes)
    return framefuse.report(compiled, folder / name)


def rows_of(tables):
    return {row[0].text: row[1:] for table in tables.tables for row in table.rows}


def make(body):
    """A function called ``work``, as two versions of one program have it."""
    names = {"torch": torch}
    exec(compile(f"def work(x):\n    return {body}", "work.py", "exec"), names)
    return names["work"]


def test_the_facts_of_a_page_are_what_the_page_shows(tmp_path):
    path = report_of(lambda x: torch.relu(x).softmax(-1) @ x.T, tmp_path, "page.html", (3, 4))
    facts = read(path)
    (function,) = facts.functions
    assert [(step.kind, step.count) for step in function.steps if step.kind == "product"] == [("product", 1)]
    assert (function.calls, function.hits, function.breaks, function.again) == (2, 1, (), ())
    assert function.peak >= 3 * 3 * 4 and facts.process == Process()
    assert json.loads(facts.json())["functions"][0]["peak"] == function.peak
    assert "<" not in facts.json()


def test_equal_reports_have_no_difference(tmp_path):
    pages = [read(report_of(make("torch.relu(x) * 2"), tmp_path, f"{name}.html", (3, 4))) for name in "ab"]
    tables = difference(*pages)
    assert not tables.tables and str(tables) == "a.html and b.html: no difference"


def test_one_function_that_was_renamed_is_compared_with_itself(tmp_path):
    def before(x):
        return torch.relu(x) * 2

    def after(x):
        return (torch.relu(x) * 2).sort().values

    tables = difference(*(read(report_of(f, tmp_path, f"{f.__name__}.html", (3, 4))) for f in (before, after)))
    (table,) = tables.tables
    assert table.title.startswith("test_one") and ", then test_one" in table.title
    assert "the function" not in rows_of(tables) and any("sort" in what for what in rows_of(tables))


def test_a_difference_names_steps_breaks_compilations_and_memory(tmp_path):
    before = read(report_of(make("(torch.relu(x) * 2).sum(-1)"), tmp_path, "a.html", (3, 4)))
    longer = make("((torch.relu(x) @ x.T) * (x.sum().item() * 0 + 1)).sum(-1) if x.shape[0] > 3 else x.sum(-1)")
    after = read(report_of(longer, tmp_path, "b.html", (3, 4), (5, 4)))
    rows = rows_of(difference(before, after))
    counts = {row: (old.text, new.text) for row, (old, new) in rows.items()}
    assert any(row.startswith("product matmul") and count == ("-", "x1") for row, count in counts.items())
    assert any(row.startswith("kernel") and count == ("x1", "-") for row, count in counts.items())
    assert rows["compiled again"][1].worse and rows["memory, at most"][1].worse
    assert any(re.match(r"compiled again: x\.shape\[0\] was 3, is 5", row) for row in rows)
    back = rows_of(difference(after, before))
    assert not any(cell.worse for cells in back.values() for cell in cells)


def test_only_measured_times_that_differ_much_are_told(tmp_path):
    facts = read(report_of(make("torch.relu(x) * 2"), tmp_path, "a.html", (3, 4)))
    (function,) = facts.functions

    def timed(seconds):
        steps = tuple(replace(step, seconds=seconds, measured=True) for step in function.steps)
        return ReportFacts((replace(function, steps=steps, compiled=seconds, eager=1.0),))

    rows = rows_of(difference(timed(1e-3), timed(2e-3)))
    assert len(rows) == 2 and all(new.worse and new.text == "2.00 ms" for _, new in rows.values())
    assert not rows_of(difference(timed(1e-3), timed(1.05e-3)))


def test_the_command_prints_and_writes_the_difference(tmp_path, capsys):
    bodies = {"a.html": "x + 1", "b.html": "x.cumsum(0)"}
    pages = [str(report_of(make(body), tmp_path, name, (3,))) for name, body in bodies.items()]
    assert main(["report", "diff", *pages, "--html", str(tmp_path / "c.html")]) == 0
    shown = capsys.readouterr().out
    assert "work (work.py)" in shown and "a.html" in shown
    text = (tmp_path / "c.html").read_text()
    assert "work (work.py)" in text and not re.search(r"https?:|@import|url\(", text)
    for wrong in (["report", "diff", pages[0]], ["report", "diff", pages[0], str(tmp_path / "no.html")]):
        assert main(wrong) == 2
    (tmp_path / "other.html").write_text("<p>")
    assert main(["report", "ranks", str(tmp_path / "other.html")]) == 2
    assert "is no page of framefuse" in capsys.readouterr().err


RANKS = """
import os, sys, time, torch
import torch.distributed as dist
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=int(os.environ["RANK"]), world_size=2)
net = torch.nn.Linear(4, 4)
for step in range(6):
    net(torch.ones(2 + 3 * step * dist.get_rank() % 7, 4))
    dist.barrier()
end = time.process_time() + 1.5 * dist.get_rank()
while time.process_time() < end: pass
dist.destroy_process_group()
"""


def test_each_rank_writes_its_page_and_they_stand_side_by_side(tmp_path, capsys):
    script, page = tmp_path / "script.py", tmp_path / "out.html"
    script.write_text(RANKS)
    command = [sys.executable, "-m", "framefuse", "run", "--quiet", "--report", str(page), str(script)]
    ours = {"PYTHONPATH": str(ROOT / "src"), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen([*command, str(tmp_path / "store")], env={**os.environ, **ours, "RANK": str(rank)})
        for rank in range(2)
    ]
    assert [process.wait(240) for process in started] == [0, 0]
    pages = [str(tmp_path / f"out.rank{rank}.html") for rank in (1, 0)]
    facts = [read(path) for path in pages]
    assert [each.process.rank for each in facts] == [1, 0] and not page.exists()
    assert main(["report", "ranks", *pages, "--html", str(tmp_path / "ranks.html")]) == 0
    shown = capsys.readouterr().out
    assert "rank 1 is the slowest" in shown and shown.index("rank 0") < shown.index("rank 1", shown.index("what"))
    rows = rows_of(side_by_side(facts))
    assert [cell.worse for cell in rows["processor"]] == [False, True]
    assert [cell.text for cell in rows["calls"]] == ["6", "6"]


def test_ranks_that_do_the_same_have_no_mark():
    same = [ReportFacts((), Process(rank, 2.0, 1.0)) for rank in (1, 0, 2)]
    tables = side_by_side(same)
    assert tables.tables[0].head == ("what", "rank 0", "rank 1", "rank 2")
    assert not any(cell.worse for cells in rows_of(tables).values() for cell in cells)
    with pytest.raises(framefuse.UserError, match="cannot be read"):
        read("nowhere.html")
