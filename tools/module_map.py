"""Prints the map of modules: the source tree, each file with its own first sentence."""

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "framefuse"
ARCHITECTURE = ROOT / "ARCHITECTURE.md"

# The order in which one call passes the stages; folders and files that are not named here follow in the alphabet.
ORDER = [
    "__init__.py", "api.py", "marks.py", "testing.py", "driver", "options.py", "errors.py", "ir",
    "capture", "guards", "lower", "autodiff", "fuse", "codegen", "runtime", "native", "_native.pyi",
    "explain", "backends", "cli.py", "demo.py",
]  # fmt: skip


def first_sentence(path: Path) -> str:
    """The sentence that opens a module's docstring, or the comment at the top of a C file; it may wrap."""
    text = path.read_text()
    if path.suffix in (".py", ".pyi"):
        lines = (ast.get_docstring(ast.parse(text)) or "").splitlines()
    else:
        comment = re.match(r"\s*/\*+(?P<text>.*?)\*/", text, re.DOTALL)
        lines = [line.strip(" *") for line in comment["text"].splitlines()] if comment else []
    sentence: list[str] = []
    for line in lines:
        sentence.append(line.strip())
        if not line.strip() or line.rstrip().endswith("."):
            break
    return " ".join(sentence).strip()


def rank(path: Path) -> tuple[bool, int, bool, str]:
    """Sorts a folder: the package's own file, the stages in their order, then files before folders by name."""
    known = ORDER.index(path.name) if path.parent == PACKAGE and path.name in ORDER else len(ORDER)
    return (path.name != "__init__.py", known, path.is_dir(), path.name)


def rows(folder: Path, depth: int = 0) -> list[tuple[str, str]]:
    """(indented name, first sentence) of everything below `folder`, which itself is not named."""
    entries: list[tuple[str, str]] = []
    for path in sorted(folder.iterdir(), key=rank):
        name = "  " * depth + path.name
        if path.is_dir():
            below = rows(path, depth + 1)
            if below:
                opening = path / "__init__.py"
                entries.append((name + "/", first_sentence(opening) if opening.exists() else ""))
                entries += [row for row in below if row[0].strip() != "__init__.py"]
        elif path.suffix in (".py", ".pyi", ".c", ".h"):
            entries.append((name, first_sentence(path)))
    return entries


def module_map() -> str:
    """The map as text, one line a module."""
    listing = rows(PACKAGE)
    width = max(len(name) for name, _ in listing)
    return "\n".join(f"{name:<{width}}  {sentence}".rstrip() for name, sentence in listing)


def main() -> int:
    """Prints the map."""
    print(module_map())
    return 0


if __name__ == "__main__":
    sys.exit(main())
