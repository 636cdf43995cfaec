"""Turns the catalogue of stops into the pages under docs/stops, one for each code, and their list."""

import argparse
import sys
from pathlib import Path

from framefuse.ir import stops

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "stops"


def pages() -> dict[str, str]:
    """The text of every page by file name."""
    text_of = {f"{row.code}.md": stops.page(row) for row in stops.ROWS}
    text_of["README.md"] = stops.index()
    return text_of


def main() -> int:
    """Lists the pages; `--write` writes those that changed and removes what no row stands for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the pages")
    if parser.parse_args().write:
        FOLDER.mkdir(parents=True, exist_ok=True)
        wanted = pages()
        for old in FOLDER.iterdir():
            if old.name not in wanted:
                old.unlink()
        for name, text in wanted.items():
            (FOLDER / name).write_text(text)
    print("\n".join(pages()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
