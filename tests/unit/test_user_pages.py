"""Every block of code of the user pages runs, each page as one program, and prints what the page says it prints."""

import re

import pytest

import user_pages


@pytest.mark.parametrize("name", user_pages.NAMES)
def test_the_code_of_a_page_runs_and_prints_what_is_shown(name):
    text = user_pages.PAGES[name].read_text()
    if "from transformers" in text:
        pytest.importorskip("transformers")
    blocks = list(user_pages.BLOCK.finditer(text))
    assert blocks and text.count("```python") == len(blocks) and text.count("```text") <= len(blocks)
    for block, output in zip(blocks, user_pages.printed(name, text), strict=True):
        assert block["output"] is not None or not output, f"what this prints is not shown: {block['code']}"
        if block["output"] is not None:
            assert user_pages.without_figures(output) == user_pages.without_figures(block["output"])


@pytest.mark.parametrize("name", user_pages.NAMES)
def test_a_page_is_short(name):
    text = user_pages.PAGES[name].read_text()
    written = re.sub(r"```text\n.*?```", "", text, flags=re.DOTALL).splitlines()
    assert len(text.splitlines()) <= 135
    assert not [line for line in written if len(line) > 120]
