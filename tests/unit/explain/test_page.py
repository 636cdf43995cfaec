"""The page of a report is one file: it reaches nothing outside, its links lead somewhere, data are what was made."""

import re
import sys
import time
from html.parser import HTMLParser

import pytest
import torch

import framefuse
from framefuse.cli import main
from framefuse.explain.page import write_all
from framefuse.explain.report_facts import Process
from framefuse.runtime.function import compiled_function


class Page(HTMLParser):
    """What a test asks of a page: ids, links inside, and addresses outside."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.outside, self.open, self.words = [], [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "input", "br"):
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            elif name in ("src", "srcset", "action", "data", "poster") or (name == "href" and value[:1] != "#"):
                self.outside.append(value)
            elif name == "href":
                self.links.append(value[1:])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def page_of(path):
    text = path.read_text()
    page = Page(text)
    assert not page.outside and not page.open and not re.search(r"https?:|@import|url\(", text)
    assert len(page.ids) == len(set(page.ids)) and page.links and set(page.links) <= set(page.ids)
    return page, " ".join(" ".join(page.words).split())


def layer(x, weight):
    if x.shape[0] > 5:
        return (x @ weight).softmax(-1)
    return torch.relu(x @ weight) * 2


def test_a_page_tells_lines_steps_bytes_and_reasons(tmp_path):
    compiled = framefuse.compile(layer)
    weight = torch.randn(4, 3, requires_grad=True)
    for _ in range(2):
        compiled(torch.randn(2, 4), weight).sum().backward()
    compiled(torch.randn(7, 4), weight)
    calls = compiled_function(compiled).dispatch.calls
    _, words = page_of(framefuse.report(compiled, tmp_path / "page.html"))
    assert compiled_function(compiled).dispatch.calls == calls  # nothing of the program ran
    assert "x.shape[0] was 2, is 7: x.shape[0] <= 5 holds no longer (asked at test_page.py:" in words
    assert "backward 1 of graph 1" in words and "not timed how much faster it is" in words
    assert "return (x @ weight).softmax(-1)" in words  # a line of the source, with the kernels of it
    row = re.search(r"matmul product f32\[s\d+, s\d+\] (\d+) B (\d+) B", words)
    assert row is not None and [int(row[1]), int(row[2])] == [(2 * 4 + 4 * 3) * 4, 2 * 3 * 4]
    assert re.search(r"Memory over a call and its backward pass: at most \d+ B, while .* lie between forward", words)


def test_what_is_asked_for_is_measured(tmp_path):
    compiled = framefuse.compile(lambda x: torch.relu(x) * 2)
    compiled(torch.ones(3))
    _, words = page_of(framefuse.report(compiled, tmp_path / "page.html", torch.ones(3), time=True))
    assert re.search(r"A call takes \d.* [nu]s, eager \d.*\dx as fast as eager", words) and "not timed" not in words
    assert re.search(r"kernel f32\[s\d+\] 12 B 12 B [\d.]+ ns [\d.]+ (ns|us) \d+% test_page.py", words)


def test_a_break_is_on_its_line_and_among_what_is_left(tmp_path):
    @framefuse.compile
    def broken(x):
        scale = (x + 1).sum().tolist()
        return x * scale + "<b>".count("b")

    broken(torch.ones(3))
    _, words = page_of(framefuse.report(broken, tmp_path / "page.html"))
    left = words[words.index("Left to gain") : words.index("Source")]
    assert "a break" in left and "Nothing ran eagerly" not in left
    assert words.count("a break:") >= 2 and '"<b>".count' in words  # the program's text is no markup


def test_a_step_of_training_is_no_loss_and_counts_recording_once(tmp_path):
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @framefuse.compile
    def step(x):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    model(torch.ones(3, 4)).sum().backward()  # as gradients are there in all later steps
    start = time.perf_counter()
    step(torch.ones(3, 4)), step(torch.zeros(3, 4))
    took = time.perf_counter() - start
    graphs = framefuse.explain(step).graphs
    assert len(graphs) > 1 and sum(graph.seconds["capture"] for graph in graphs) < took
    _, words = page_of(framefuse.report(step, tmp_path / "page.html"))
    left = words[words.index("Left to gain") : words.index("Source")]
    assert "a break:" not in left and "a break: torch._tensor.Tensor.backward" in words
    assert "nothing is lost by the break" in left


def test_equal_steps_are_one_row_with_all_below(tmp_path):
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(6)))
    compiled = framefuse.compile(model)
    compiled(torch.randn(2, 8)), compiled(torch.randn(2, 8))
    _, words = page_of(framefuse.report(compiled, tmp_path / "page.html"))
    assert re.search(r"matmul 6 product f32\[s\d+, 8\]", words) and "steps, in order" in words


def test_what_was_not_called_and_what_is_not_compiled(tmp_path):
    path = framefuse.report(framefuse.compile(layer), tmp_path / "page.html")
    assert "it has not been called yet" in path.read_text()
    with pytest.raises(framefuse.UserError, match="was not compiled"):
        framefuse.report(layer, path)
    with pytest.raises(framefuse.UserError, match="Give the name of a file"):
        framefuse.report(framefuse.compile(layer), 3)


def test_equal_layers_make_a_small_page_with_each_kernel_once(tmp_path):
    made = torch.nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(made, 4, enable_nested_tensor=False)
    compiled = framefuse.compile(model)
    compiled(torch.randn(2, 5, 16)).sum()
    path = framefuse.report(compiled, tmp_path / "page.html")
    page, _ = page_of(path)
    codes = [mark for mark in page.ids if re.fullmatch(r"f1k\d+", mark)]
    steps = [mark for mark in page.ids if re.fullmatch(r"f1g\d+w\d+", mark)]
    assert 0 < len(codes) < len(steps) and path.stat().st_size < 1_000_000


def test_a_script_gets_a_page_for_its_models(tmp_path, monkeypatch):
    for name in ("argv", "path", "meta_path"):
        monkeypatch.setattr(sys, name, list(getattr(sys, name)))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    script, path = tmp_path / "script.py", tmp_path / "out.html"
    script.write_text("import torch\nnet = torch.nn.Linear(4, 4)\nfor _ in range(3): net(torch.ones(2, 4))\n")
    assert main(["run", "--quiet", "--report", str(path), str(script)]) == 0
    _, words = page_of(path)
    assert "Linear" in words and "2 of 3 calls ran compiled code" in words
    script.write_text("1 / 0\n")
    assert main(["run", "--quiet", "--report", str(tmp_path / "no" / "out.html"), str(script)]) == 2  # it did not run


def test_a_page_of_several_functions_begins_with_all_of_them(tmp_path):
    def parted(x):
        return x * 2 if x.sum() > 0 else x.sin()

    functions = [framefuse.compile(layer), framefuse.compile(parted), framefuse.compile(lambda x: x.cos())]
    functions[0](torch.randn(2, 4), torch.randn(4, 3))
    for _ in range(2):
        functions[1](torch.ones(3)), functions[2](torch.ones(3))
    path = write_all(tmp_path / "page.html", map(compiled_function, functions), Process())
    page, words = page_of(path)
    assert words.index("3 functions") < words.index("Left to gain") and {"f1", "f2", "f3"} <= set(page.ids)
    assert words.index("Compiled in parts") < words.index("Left to gain") and words.count("Compiled whole") == 4


def test_a_page_of_one_function_has_no_list(tmp_path):
    compiled = framefuse.compile(lambda x: x.cos())
    compiled(torch.ones(3))
    assert "functions " not in page_of(framefuse.report(compiled, tmp_path / "page.html"))[1].split("Source")[0]


def test_a_notebook_shows_an_explanation_as_text():
    compiled = framefuse.compile(lambda x: x * 2)
    compiled(torch.ones(3))
    shown = framefuse.explain(compiled)._repr_html_()
    assert "<pre>" in shown and "&lt;lambda&gt;" in shown and "1 graph, 1 kernel" in shown
