"""What a notebook shows of compiled functions and modules: a card of few facts, made when it is asked for."""

import subprocess
import sys
from html.parser import HTMLParser

import torch

import framefuse


class Card(HTMLParser):
    """The words of a card, whose elements are closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.words = [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        assert all(name == "style" for name, _ in attrs)
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def words_of(shown):
    return " ".join(" ".join(Card(shown._repr_html_()).words).split())


def test_a_function_shows_whether_it_worked_and_what_is_left():
    @framefuse.compile
    def broken(x):
        scale = (x + 1).sum().tolist()
        return x * scale if scale < 2 else x - scale

    assert "it has not been called yet" in words_of(broken)
    for _ in range(3):
        broken(torch.ones(3))
    calls = broken.calls
    words = words_of(broken)
    assert f"{broken.hits} of {calls} calls ran compiled code." in words and broken.hits == 2
    assert "Left to gain: test_card.py:" in words and "a break" in words and "was not measured" in words
    assert broken.calls == calls  # nothing of the program ran


def test_a_module_shows_its_own_card_where_it_has_one():
    class Shown(torch.nn.Linear):
        def _repr_html_(self):
            return "<b>mine</b>"

    plain, own = framefuse.compile(torch.nn.Linear(2, 2)), framefuse.compile(Shown(2, 2))
    for model in (plain, own):
        model(torch.ones(1, 2)), model(torch.zeros(1, 2))
    assert "Linear" in words_of(plain) and "1 of 2 calls ran compiled code" in words_of(plain)
    assert words_of(own) == "mine"
    assert not hasattr(torch.nn.Linear(2, 2), "_repr_html_")


def test_a_timed_explanation_says_how_much_faster():
    compiled = framefuse.compile(lambda x: torch.relu(x) * 2)
    compiled(torch.ones(3))
    assert "times as fast as eager" in words_of(framefuse.explain(compiled, torch.ones(3), time=True))


def test_a_card_needs_no_library_that_pages_need():
    code = (
        "import sys; sys.modules['jinja2'] = None\nimport torch, framefuse\nf = framefuse.compile(lambda x: x * 2)\n"
        "f(torch.ones(2)), f(torch.ones(2))\n"
        "assert '1 of 2 calls ran' in f._repr_html_()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_function_whose_next_call_records_further_says_where_the_last_recording_ended():
    table = torch.nn.Embedding(8, 2, sparse=True)

    @framefuse.compile
    def step(rows):
        table(rows).sum().backward()
        return table.weight.grad.coalesce().values() * 2

    step(torch.arange(3))
    end = "yet: the last recording ended at test_card.py:"
    assert end in words_of(step) and end in str(framefuse.explain(step))
    assert "a tensor of layout torch.sparse_coo is not a plain strided tensor." in str(framefuse.explain(step))
    for count in range(4, 10):
        step(torch.arange(count) % 8)
    assert step.hits and end not in words_of(step)
