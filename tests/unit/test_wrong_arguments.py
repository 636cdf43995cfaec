"""A wrong argument given to framefuse is a UserError whose text says what is wrong and ends with one thing to do."""

import pytest
import torch

import framefuse
from framefuse import cli
from framefuse.errors import UserError


def double(x):
    return x * 2


def one_way(x):
    return x * 2 if x.sum() > 0 else x


def broken(graph, inputs):
    raise RuntimeError("out of ideas")


X = torch.ones(3)
compile = framefuse.compile

MISTAKES = {
    "no callable": (lambda: compile(3), "an int is not callable", "Give a function, a method or an nn.Module"),
    "a tensor": (lambda: compile(X), "a Tensor is not callable", "Give a function, a method or an nn.Module"),
    "option": (lambda: compile(double, options={"thread": True}), "unknown option 'thread'", "threads"),
    "type of option": (lambda: compile(double, options={"threads": 3}), "option 'threads'", "Give True or False"),
    "number": (lambda: compile(double, options={"trace_limit": 1.5}), "is 1.5", "Give a whole number"),
    "choice": (lambda: compile(double, options={"numerics": "exact"}), "'exact'", "Choose one of: 'default', 'eager'"),
    "options": (lambda: compile(double, options=["threads"]), "options is a list", "Give a dict such as"),
    "mode": (lambda: compile(double, mode="fast"), "unknown mode 'fast'", "Choose one of: default, "),
    "fullgraph": (lambda: compile(double, fullgraph="no"), "fullgraph is 'no'", "Choose True or False"),
    "dynamic": (lambda: compile(double, dynamic="yes"), "dynamic is 'yes'", "Choose None, True or False"),
    "backend": (lambda: compile(double, backend="inducter"), "unknown backend 'inducter'", "or a callable"),
    "no backend": (lambda: compile(double, backend=3), "backend is 3", "Give a name or (gm, inputs) -> callable"),
    "backend fails": (lambda: compile(double, backend=broken)(X), "out of ideas", "or choose backend='eager'"),
    "backend gives": (lambda: compile(double, backend=lambda gm, x: 3)(X), "gave 3", "such as gm.forward"),
    "branch": (lambda: compile(one_way, fullgraph=True)(X), "in one_way", "or branch outside the compiled function."),
    "explain": (lambda: framefuse.explain(double), "was not compiled", "Pass what framefuse.compile returned"),
    "graphs": (lambda: framefuse.graphs(double), "a function has no graphs", "Give what framefuse.compile returned"),
    "install": (lambda: framefuse.install(torch.relu), "cannot be installed", "Give a Python function or an nn.Module"),
    "dimension": (lambda: framefuse.mark_dynamic(X, 4), "dimension 4", "Give one that it has"),
    "no dimension": (lambda: framefuse.mark_dynamic(X, "0"), "a dimension is '0'", "Give a whole number, or several"),
    "no tensor": (lambda: framefuse.mark_static(3), "an int has no dimensions", "Mark a tensor"),
    "disable": (lambda: framefuse.disable(3), "an int is not callable", "Give a function"),
    "stage": (lambda: framefuse.register_pass("fused", double), "unknown stage 'fused'", "captured, lowered, joint"),
    "name of a backend": (lambda: framefuse.register_backend(broken, name=3), "name is an int", "is to know it"),
    "kind": (lambda: framefuse.minify(double, X, kind="fast"), "kind is 'fast'", "wrong, crash, hang, slow"),
    "count": (lambda: framefuse.assert_compiles("no").__enter__(), "is 'no'", "Give a whole number"),
}


@pytest.mark.parametrize(("mistake", "fault", "advice"), MISTAKES.values(), ids=MISTAKES)
def test_the_text_says_what_is_wrong_and_what_to_do(mistake, fault, advice):
    with pytest.raises(UserError) as caught:
        mistake()
    text = str(caught.value)
    assert fault in text and advice in text[-90:], text


def test_without_a_command_the_help_is_shown(capsys):
    assert cli.main([]) == 0
    assert "unchanged, with every model compiled" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [["run", "--backend", "inducter", "x.py"], ["run", "missing.py"], ["run", "--report", "/none/page.html", "x.py"]],
)
def test_a_wrong_run_tells_one_thing(words, capsys):
    assert cli.main(words) == 2
    told = capsys.readouterr().err.splitlines()
    advice = ("Choose one of", "can't open file", "Make the folder /none first")
    assert len(told) == 1 and any(text in told[0] for text in advice)


@pytest.mark.parametrize("writer", ["report", "export", "save_cache"])
@pytest.mark.parametrize("place", ["missing/page", "", "file/page"])
def test_a_file_that_cannot_be_written_is_an_error_at_the_line_that_asked(tmp_path, writer, place):
    pytest.importorskip("jinja2")
    (tmp_path / "file").touch()
    path, x = tmp_path / place, torch.ones(3)
    compiled = framefuse.compile(lambda x: x + 1)
    compiled(x)
    with pytest.raises(framefuse.UserError) as raised:
        if writer == "report":
            framefuse.report(compiled, path, x)
        elif writer == "export":
            framefuse.export(lambda x: x + 1, (x,), path)
        else:
            framefuse.save_cache(path)
    text = str(raised.value)
    assert isinstance(raised.value, OSError)
    assert text.startswith(f"{__file__}:")
    assert f"    framefuse.{writer}(" in text
    assert f"{path} cannot be written: " in text
    advice = {"missing/page": f"Make the folder {tmp_path / 'missing'} first", "": "Give the name of a file in it"}
    assert text.endswith(advice.get(place, "Give the name of a file that you can write"))
