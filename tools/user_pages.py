"""Runs the code of the user pages under docs, each page as one program, and writes what each block prints."""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAMES = (
    "getting_started", "training", "gpus", "dynamic_shapes", "breaks", "debugging", "extending", "passes", "operators",
    "cache", "deployment", "export", "transforms", "troubleshooting",
)  # fmt: skip
PAGES = {name: ROOT / "docs" / f"{name}.md" for name in NAMES}
# A block of Python; a block of text right after it is what it prints.
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n*```text\n(?P<output>.*?)^```$)?", re.MULTILINE | re.DOTALL)
FIGURE = re.compile(r"\d+(?:\.\d*)?(?:e-?\d+)?(?: (?:us|ms|s|bytes|kB|MB|GB)\b)?")
COUNT = re.compile(r"# ([a-z]+?)e?s?\b")
END = "\x1e"  # between what two blocks print
# transformers and timm import torchvision, whose extension may be built for another torch.
RUN = (
    "import runpy, sys; from benchmarks.zoo.torchvision_ops import declare_torchvision_operators as declare; "
    "declare(); sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
)


def without_figures(text: str) -> list[list[str]]:
    """The words of each line, a figure with its unit as #, a noun after it without its plural: times and counts differ
    from machine to machine, what is said must not.
    """
    return [COUNT.sub(r"# \1", FIGURE.sub("#", line)).split() for line in text.strip().splitlines()]


def printed(name: str, text: str) -> list[str]:
    """What each block of a page prints, the blocks run in order as one program called ``name``; raises AssertionError
    with the error where it fails.
    """
    blocks = [block["code"] for block in BLOCK.finditer(text)]
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / f"{name}.py"
        script.write_text("".join(f"{code}print({END!r}, flush=True)\n" for code in blocks))
        path = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        models = any(library in text for library in ("from transformers", "import timm"))
        command = [sys.executable, *(["-c", RUN] if models else []), script.name]
        ran = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)
    assert ran.returncode == 0, f"{name}: {ran.stdout[-500:]}\n{ran.stderr[-2000:]}"
    return [part.strip("\n") for part in ran.stdout.split(END)[:-1]]


def filled(text: str, outputs: list[str]) -> str:
    """The page with what its blocks print in the blocks of text behind them."""
    left = iter(outputs)

    def block(match: re.Match[str]) -> str:
        output = next(left)
        code = f"```python\n{match['code']}```\n"
        return code if match["output"] is None else f"{code}\n```text\n{output}\n```"

    return BLOCK.sub(block, text)


def main() -> int:
    """Runs the pages that are named, or all; `--write` writes what they print into them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=NAMES, help="pages, such as training")
    parser.add_argument("--write", action="store_true", help="write the pages")
    options = parser.parse_args()
    for name in options.names:
        text = PAGES[name].read_text()
        new = filled(text, printed(name, text))
        if options.write:
            PAGES[name].write_text(new)
        print(name, "as it was" if without_figures(new) == without_figures(text) else "changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
