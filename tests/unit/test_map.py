"""The map shows the modules that exist, each with its own first sentence; ARCHITECTURE.md names files that exist."""

import re

import module_map


def test_the_map_names_every_module():
    text = module_map.module_map()
    files = {path.name for path in module_map.PACKAGE.rglob("*") if path.suffix in (".py", ".c")} - {"__init__.py"}
    assert not [name for name in sorted(files) if f"{name} " not in text]


def test_every_module_says_what_it_is():
    silent = [name for name, sentence in module_map.rows(module_map.PACKAGE) if not sentence and not name.endswith("/")]
    assert not silent, f"no first sentence: {silent}"


def test_first_sentence_of_each_language(tmp_path):
    texts = {
        "a.py": '"""Turns one thing into another."""\n',
        "b.c": "/* Turns one thing into another.\n * More. */\n",
        "c.h": "/* Turns one thing\n   into another. */\n",
        "d.py": '"""Turns one thing\ninto another.\n\nMore.\n"""\n',
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        assert module_map.first_sentence(tmp_path / name) == "Turns one thing into another."


def test_the_files_that_the_advice_names_exist():
    advice = module_map.ARCHITECTURE.read_text().partition("## To add something")[2].partition("\n## ")[0]
    named = re.findall(r"`([\w/]+/|[\w/]+\.(?:py|c|h))`", advice)
    roots = (module_map.PACKAGE, module_map.ROOT)
    missing = [name for name in named if not any((root / name).exists() for root in roots)]
    assert named and not missing
