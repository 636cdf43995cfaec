"""What one process has made of a trace serves the next: it records, and lowers, fuses and compiles nothing."""

import logging
import os
import random
import subprocess
import sys

import pytest
import torch

import framefuse
from framefuse.codegen.disk_cache import DiskCache
from framefuse.driver import backward
from framefuse.driver.programs import fingerprint, later, programs
from framefuse.ir.plan_printer import plan_text
from framefuse.ir.printer import graph_text
from framefuse.ir.schedule import RunKernel


def softened(x, scale):
    y = torch.relu(x) * scale
    return y.softmax(-1).sum(0), y[1:].mean()


def twice(shelf, function, first, second, **options):
    """Compiles ``function`` two times, each as in a process of its own, and runs each on other arguments."""
    for turn in range(2):
        fast = shelf.compile(function, **options)
        fast(*first)
        hits = framefuse.explain(fast).hits
        torch.testing.assert_close(fast(*second), function(*second))
        assert framefuse.explain(fast).hits == hits + 1
        assert shelf.found and all(found is bool(turn) for found in shelf.found), turn
        shelf.kept()
    return fast


def test_a_function_is_found(shelf):
    fast = twice(shelf, softened, (torch.randn(4, 8), 0.5), (torch.randn(9, 3), -2.0))
    text = str(framefuse.explain(fast))
    assert "cache" in text and "codegen" not in text


def test_what_is_found_is_what_was_made(shelf):
    shelf.compile(softened)(torch.randn(4, 8), 0.5)
    (made,) = shelf.made
    shelf.compile(softened)(torch.randn(4, 8), 0.5)
    (found,) = shelf.made
    assert "fuse" in made.seconds and "fuse" not in found.seconds
    assert graph_text(found.stages.lowered) == graph_text(made.stages.lowered)
    assert plan_text(found.stages.plan) == plan_text(made.stages.plan)
    kernels = [item for item in found.stages.code.schedule.items if isinstance(item, RunKernel)]
    assert len(found.stages.code.kernels) == len(kernels) > 0
    for index, code in made.stages.code.kernels.items():
        assert found.stages.code.kernels[index].keep is code.keep  # one process loads an object once


def test_lines_of_a_found_program_are_those_of_this_recording(shelf):
    shelf.compile(softened)(torch.randn(4, 8), 0.5)
    shelf.compile(softened)(torch.randn(4, 8), 0.5)
    stages = shelf.made[0].stages
    sites = {id(call.line.site) for call in stages.trace.calls if call.line is not None}
    found = {id(node.line.site) for node in stages.lowered.nodes if node.line is not None and node.line.site}
    assert found and found <= sites


def test_training_is_found_forward_and_backward(shelf, monkeypatch):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4))

    def gradients(run, x, y):
        model.zero_grad()
        loss = torch.nn.functional.cross_entropy(run(x), y)
        loss.backward()
        return loss.detach(), [each.grad.clone() for each in model.parameters()]

    data = [(torch.randn(rows, 8), torch.randint(0, 4, (rows,))) for rows in (5, 5, 7)]
    for turn in range(2):
        fast = shelf.compile(model)
        gradients(fast, *data[0])
        for x, y in data[1:]:
            torch.testing.assert_close(gradients(fast, x, y), gradients(model, x, y))
        assert framefuse.explain(fast).hits >= 2
        assert len(shelf.found) >= 2 and all(found is bool(turn) for found in shelf.found), shelf.found
        shelf.kept()
        monkeypatch.setattr(backward, "backward_graph", lambda *given: pytest.fail("a graph that was kept"))


def test_backwards_of_parts_and_of_other_shapes_are_kept_apart(shelf):
    """Two heads of which one is asked, gradients that lie otherwise, and inputs that want none."""

    def heads(x, w):
        y = torch.tanh(x @ w)
        return y.sin() * 2, y.exp().sum(0)

    def gradients(run, asked, turned, wants):
        x, w = torch.randn(4, 3).requires_grad_(wants), torch.randn(3, 5).requires_grad_()
        results = run(x, w)
        given = [torch.randn(4, 5), torch.randn(5)]
        if turned:
            given[0] = given[0].t().contiguous().t()
        torch.autograd.backward([results[place] for place in asked], [given[place] for place in asked])
        return w.grad, x.grad

    ways = [((0, 1), False, True), ((0,), True, True), ((1,), False, True), ((0, 1), True, False), ((0,), False, True)]
    for _ in range(2):
        fast = shelf.compile(heads)
        for number, way in enumerate(ways * 2):
            torch.manual_seed(number)
            found = gradients(fast, *way)
            torch.manual_seed(number)
            torch.testing.assert_close(found, gradients(heads, *way))
        assert framefuse.explain(fast).hits >= len(ways)
        shelf.kept()


def test_no_more_backwards_are_kept_than_are_compiled(shelf):
    """Gradients that are parts of ever wider ones lie otherwise at each call."""
    fast = shelf.compile(lambda x: (x * 2).sin())
    kept = []
    for width in range(1, 41):
        x, y = torch.randn(4, 6, requires_grad=True), torch.randn(4, width)
        (torch.cat([fast(x), y], 1) ** 2).sum().backward()
        torch.testing.assert_close(x.grad, 4 * (x * 2).sin() * (x * 2).cos())
        kept.append(len(shelf.kept()))
    assert kept[10] > kept[4] and kept[-1] == kept[35]


def test_random_numbers_are_eagers_from_a_found_program(shelf):
    def dropped(x):
        return torch.nn.functional.dropout(x * 2, 0.5) + torch.rand(3)

    for turn in range(2):
        fast = shelf.compile(dropped)
        fast(torch.randn(6, 3))
        x = torch.randn(7, 3)
        torch.manual_seed(5)
        expected = dropped(x)
        torch.manual_seed(5)
        torch.testing.assert_close(fast(x), expected)
        assert framefuse.explain(fast).hits == 1 and shelf.found == [bool(turn)]
        shelf.kept()


def test_writes_and_objects_of_the_program_are_those_of_this_call(shelf):
    class Counter:
        def __init__(self):
            self.seen, self.total = [], torch.zeros(3)

    def step(counter, x):
        counter.total.add_(x.sum(0))
        counter.seen.append(x * 2)
        return {"total": counter.total + 1, "all": counter.seen}

    for turn in range(2):
        fast, ours, eager = shelf.compile(step), Counter(), Counter()
        fast(Counter(), torch.ones(2, 3))
        x = torch.randn(4, 3)
        torch.testing.assert_close(fast(ours, x), step(eager, x))
        torch.testing.assert_close(ours.total, eager.total)
        assert framefuse.explain(fast).hits == 1 and shelf.found == [bool(turn)]
        shelf.kept()


# ---- what is another program -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda x: x * 2, lambda x: x * 3),
        (lambda x: x * 0.0, lambda x: x * -0.0),
        (lambda x: x * 1, lambda x: x * 1.0),
        (lambda x: x.sum(0), lambda x: x.sum(1)),
        (lambda x: x.exp(), lambda x: x.exp2()),
        (lambda x: torch.relu(x), lambda x: torch.sigmoid(x)),
        (lambda x: x.to(torch.float64) * 2, lambda x: x.to(torch.bfloat16) * 2),
    ],
)
def test_another_program_has_another_key(first, second, shelf):
    x = torch.randn(4, 4)
    for function in (first, second):
        fast = shelf.compile(function)
        fast(x)
        torch.testing.assert_close(fast(x + 1), function(x + 1))
        assert shelf.found == [False]
        shelf.kept()
    assert len(shelf.kept()) == 2


def function_of(x):
    return (x * 2).exp()


@pytest.mark.parametrize(
    "other",
    [
        lambda: (torch.randn(4, 8, dtype=torch.float64), {}),
        lambda: (torch.randn(8, 4).t(), {}),
        lambda: (torch.randn(4, 8, requires_grad=True), {}),
        lambda: (torch.randn(1, 8), {}),
        lambda: (torch.randn(4, 8), {"numerics": "eager"}),
        lambda: (torch.randn(4, 8), {"threads": False}),
    ],
)
def test_other_inputs_and_options_have_another_key(other, shelf):
    shelf.compile(function_of)(torch.randn(4, 8))
    assert len(shelf.kept()) == 1
    x, options = other()
    shelf.compile(function_of, **options)(x)
    assert shelf.found == [False] and len(shelf.kept()) == 2


def test_another_machine_has_another_key(shelf, monkeypatch):
    shelf.compile(function_of)(torch.randn(4, 8))
    shelf.kept()
    monkeypatch.setattr(programs, "fingerprint", lambda: ("another", *fingerprint.fingerprint()))
    shelf.compile(function_of)(torch.randn(4, 8))
    assert shelf.found == [False]


def test_the_packages_files_count(tmp_path):
    (tmp_path / "a.py").write_text("x = 1")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "b.py").write_text("x = 1")
    (tmp_path / "notes.txt").write_text("")
    before = fingerprint.own_files(str(tmp_path))
    assert before.count("\n") == 1
    (tmp_path / "inner" / "b.py").write_text("x = 22")
    assert fingerprint.own_files(str(tmp_path)) != before


# ---- what is not kept ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"cache": False}, {"check": True}, {"log": "calls"}])
def test_options_that_leave_the_folder_alone(options, shelf, capsys):
    fast = shelf.compile(function_of, **options)
    fast(torch.randn(4, 8))
    x = torch.randn(5, 8)
    torch.testing.assert_close(fast(x), function_of(x))
    assert framefuse.explain(fast).hits == 1
    assert not shelf.kept()
    assert not (shelf.folder / "programs").exists()


def test_the_environment_leaves_the_folder_alone(shelf, monkeypatch):
    monkeypatch.setenv("FRAMEFUSE_CACHE", "0")
    monkeypatch.setenv("FRAMEFUSE_CHECK", "0")
    framefuse.compile(function_of)(torch.randn(4, 8))
    assert not shelf.kept() and not shelf.programs.folder.exists()
    monkeypatch.setenv("FRAMEFUSE_CACHE", "1")
    framefuse.compile(function_of)(torch.randn(4, 8))
    assert len(shelf.kept()) == 1


def test_graphs_that_users_change_are_not_kept(shelf):
    with framefuse.register_pass("lowered", lambda graph: None, name="nothing"):
        shelf.compile(function_of)(torch.randn(4, 8))
        assert not shelf.kept()
    shelf.compile(function_of)(torch.randn(4, 8))
    assert shelf.found == [False] and len(shelf.kept()) == 1
    with framefuse.register_pass("backward", lambda graph: None, name="nothing"):
        shelf.compile(function_of)(torch.randn(4, 8))
        assert shelf.found == [False]


def test_an_operator_of_the_program_is_not_kept(shelf):
    with torch.library._scoped_library("shelf_test", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")

        def calls(x):
            return torch.ops.shelf_test.twice(x) + 1

        fast = shelf.compile(calls)
        fast(torch.randn(4))
        x = torch.randn(4)
        torch.testing.assert_close(fast(x), calls(x))
        assert framefuse.explain(fast).hits == 1
        assert not shelf.kept()


# ---- damage ----------------------------------------------------------------------------------------------------------


def test_a_program_brings_its_objects(shelf):
    shelf.compile(softened)(torch.randn(4, 8), 0.5)
    shelf.kept()
    before = shelf.objects.compiled
    shelf.forget_objects()
    fast = shelf.compile(softened)
    fast(torch.randn(4, 8), 0.5)
    assert shelf.found == [True] and "codegen" not in shelf.made[0].seconds and shelf.objects.compiled == before
    x = torch.randn(3, 5)
    torch.testing.assert_close(fast(x, 2.0), softened(x, 2.0))


@pytest.mark.parametrize("content", [b"", b"x", b"\xf4", b"[\x00\x00\x00\x00", "signed"])
def test_what_cannot_be_read_is_made_anew(content, shelf, caplog):
    """Also what bears the signature: as a file of a later format would."""
    shelf.compile(softened)(torch.randn(4, 8), 0.5)
    (key,) = shelf.kept()
    path = shelf.programs.folder / f"{key}.o"
    if content == "signed":
        for data in (b"", b"\xe9", b"(", os.urandom(80), shelf.programs.read(key)[:-9]):
            later.PROCESS.finish()
            shelf.programs.write(key, data)
            fast = shelf.compile(softened)
            fast(torch.randn(4, 8), 0.5)
            assert shelf.found == [False]
    else:
        path.write_bytes(content)
    with caplog.at_level(logging.WARNING, "framefuse"):
        fast = shelf.compile(softened)
        fast(torch.randn(4, 8), 0.5)
    x = torch.randn(3, 5)
    torch.testing.assert_close(fast(x, 2.0), softened(x, 2.0))
    assert framefuse.explain(fast).hits == 1 and not caplog.records
    shelf.kept()
    shelf.compile(softened)(torch.randn(4, 8), 0.5)
    assert shelf.found == [True]  # it was written again


def test_flipped_bits_in_any_file_are_a_recompilation(shelf, caplog):
    """In programs, objects and keys, one bit in each file at a time: results are eager's, and nothing is said."""
    drawn = random.Random(0)
    shelf.compile(softened)(torch.randn(4, 8), 0.5)
    shelf.kept()
    with caplog.at_level(logging.WARNING, "framefuse"):
        for _ in range(60):
            for file in [*shelf.folder.glob("*/*"), *shelf.folder.glob("*/.key")]:
                content = bytearray(file.read_bytes())
                content[drawn.randrange(len(content))] ^= 1 << drawn.randrange(8)
                file.write_bytes(content)
            shelf.forget_loaded()
            fast, x = shelf.compile(softened), torch.randn(drawn.randrange(2, 9), 5)
            fast(torch.randn(4, 8), 0.5)
            assert shelf.found == [False]
            torch.testing.assert_close(fast(x, 2.0), softened(x, 2.0))
            assert framefuse.explain(fast).hits == 1
            shelf.kept()
    assert not caplog.records


# ---- processes -------------------------------------------------------------------------------------------------------

# Forks as many children as it is told, which compile and check at once; prints what each found in the folder.
SCRIPT = """
import os, sys, torch
torch.set_num_threads(1)
import framefuse
from framefuse.backends.registry import own
from framefuse.driver import tree
from framefuse.driver.programs import later
from framefuse.driver.wiring import load_stages
from framefuse.runtime import function

tree.call_of = lambda *given: None  # programs are found by traces that were recorded
made = []
function.listeners.append(lambda state, product: made.append(product))

def loss(w, x):
    return (torch.nn.functional.gelu(x @ w) ** 2).mean()

def gradient(run, rows):
    torch.manual_seed(rows)
    w = torch.randn(8, 4, requires_grad=True)
    run(w, torch.randn(rows, 8)).backward()
    return w.grad

def work():
    fast = framefuse.compile(loss)
    gradient(fast, 5)
    for rows in (5, 6):
        assert torch.allclose(gradient(fast, rows), gradient(loss, rows), 1e-4, 1e-6)
    assert framefuse.explain(fast).hits == 2
    cases = [case for each in made for part in each.stages.derivatives for case in part.cases]
    words = ["found" if "fuse" not in each.seconds else "made" for each in (*made, *cases)]
    os.write(1, (" ".join(words) + "\\n").encode())
    later.PROCESS.finish()

own("native")  # imported once, as the stages and the report are, for all children
load_stages()
import framefuse.explain.report
children = []
for _ in range(int(sys.argv[1])):
    child = os.fork()
    if not child:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    children.append(child)
assert all(os.waitpid(child, 0)[1] == 0 for child in children)
"""


def processes(tmp_path, count):
    """What so many processes found that run at once."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "user"), "FRAMEFUSE_CHECK": "0"}
    answer = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(count)], env=environment, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert answer.returncode == 0 and not answer.stderr, answer.stderr
    lines = answer.stdout.splitlines()
    assert len(lines) == count
    return [line.split() for line in lines]


def test_a_second_process_finds_what_the_first_made(tmp_path):
    assert processes(tmp_path, 1) == [["made", "made"]]
    assert processes(tmp_path, 1) == [["found", "found"]]


def test_eight_processes_at_once_share_a_folder(tmp_path):
    assert {word for answer in processes(tmp_path, 8) for word in answer} <= {"made", "found"}
    kept = DiskCache(tmp_path / "user" / "framefuse" / "programs")
    # The program of the call, that of its backward, and the graph that this begins with.
    assert len(kept.names()) == 3 and all(kept.read(name) is not None for name in kept.names())
    assert processes(tmp_path, 1) == [["found", "found"]]


def ones_dropped(graph):
    def change(node, operands, build):
        if node.op == "mul" and operands[1].op == "full" and operands[1].attr("value") == 1.0:
            return operands[0]
        return None

    return framefuse.rewritten(graph, change)


def by_ones(x):
    return (x * torch.ones_like(x)).sin() * 2


def test_passes_of_users_are_part_of_the_keys(shelf):
    """Without a version nothing is kept; with one a program is found under the same passes alone."""
    ran = []

    def drop(graph):
        ran.append(graph)
        return ones_dropped(graph)

    def made(version: str | None) -> bool:
        x = torch.randn(4, 8)
        with framefuse.register_pass("lowered", drop, version=version):
            fast = shelf.compile(by_ones)
            fast(x)
        torch.testing.assert_close(fast(-x), by_ones(-x))
        return shelf.found[0]

    shelf.compile(by_ones)(torch.randn(4, 8))
    assert len(shelf.kept()) == 1
    assert not made(None) and len(shelf.kept()) == 1
    assert not made("1") and len(shelf.kept()) == 2
    assert len(ran) == 2
    assert made("1") and len(ran) == 2
    assert not made("2") and len(shelf.kept()) == 3
    shelf.compile(by_ones)(torch.randn(4, 8))
    assert shelf.found == [True]
