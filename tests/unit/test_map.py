"""ARCHITECTURE.md shows the modules that exist, each with its own first sentence."""

import module_map


def test_the_map_is_the_tree():
    document = module_map.ARCHITECTURE.read_text()
    assert module_map.with_map(document) == document, "ARCHITECTURE.md is behind the tree: make map"


def test_every_module_says_what_it_is():
    silent = [name for name, sentence in module_map.rows(module_map.PACKAGE) if not sentence and not name.endswith("/")]
    assert not silent, f"no first sentence: {silent}"


def test_first_sentence_of_each_language(tmp_path):
    texts = {
        "a.py": '"""Turns one thing into another."""\n',
        "b.c": "/* Turns one thing into another.\n * More. */\n",
        "c.h": "// Turns one thing into another.\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        assert module_map.first_sentence(tmp_path / name) == "Turns one thing into another."
