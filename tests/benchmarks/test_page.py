"""What was measured takes the place of what was measured before, and nothing else changes."""

import argparse

from benchmarks import page

OLD = """# Title

<!-- curve: python -m benchmarks curve -->

old curve

<!-- end -->

Between.

<!-- models cuda: python -m benchmarks models --device cuda -->

old models

<!-- end -->
"""
SHEET = "statements,eager_us,framefuse_static_us,measured_on\n1,3.5,0.5,a machine\n5,11.0,0.6,a machine\n"


def test_sections_know_their_commands():
    commands = {"curve": "python -m benchmarks curve", "models cuda": "python -m benchmarks models --device cuda"}
    assert page.sections(OLD) == commands


def test_only_what_was_measured_is_replaced():
    new = page.replaced(OLD, {"curve": "new curve\n", "models": "of another device"})
    assert new == OLD.replace("old curve", "new curve")
    assert page.replaced(new, {"curve": "new curve"}) == new


def test_a_folder_is_written_into_the_page(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(page, "ROOT", tmp_path)
    monkeypatch.setattr(page, "PAGE", tmp_path / "performance.md")
    monkeypatch.setattr(page, "PICTURE", tmp_path / "curve.svg")
    page.PAGE.write_text(OLD)
    out = tmp_path / "out"
    out.mkdir()
    assert page.write(argparse.Namespace(out=out, device="cpu")) == 1
    (out / "curve.md").write_text("**curve**\n")
    (out / "curve.csv").write_text(SHEET)
    (out / "models.md").write_text("models here\n")
    assert page.write(argparse.Namespace(out=out, device="cpu")) == 0
    assert page.PAGE.read_text() == OLD.replace("old curve", "**curve**")
    assert "a machine" in page.PICTURE.read_text() or page.PICTURE.stat().st_size > 1000
    assert page.write(argparse.Namespace(out=out, device="cuda")) == 0
    assert "models here" in page.PAGE.read_text()
    assert capsys.readouterr().out.splitlines()[-1] == "performance.md: models cuda"
