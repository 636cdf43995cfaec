"""Turns `python -m benchmarks NAME ...`, typed at the root of the repository, into one benchmark or the demo."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Sequence

from benchmarks.demo import demo
from benchmarks.page import add_page_options, write
from benchmarks.run import BENCHES, add_common_options, run


def parser() -> argparse.ArgumentParser:
    """The command line, one subcommand for each benchmark."""
    summary = "what is measured beside eager and torch.compile"
    short = functools.partial(argparse.HelpFormatter, indent_increment=0)  # all on one screen
    top = argparse.ArgumentParser(prog="benchmarks", formatter_class=short)
    parts = top.add_subparsers(title=summary, metavar="NAME", required=True)
    for bench in BENCHES:
        part = parts.add_parser(bench.name, help=bench.summary, description=bench.summary)
        add_common_options(part)
        bench.add_options(part)
        part.set_defaults(call=functools.partial(run, bench.name))
    summary = "the curve and some models, in under three minutes"
    part = parts.add_parser("demo", help=summary, description=summary)
    add_common_options(part, "demo-out")
    part.set_defaults(call=demo)
    summary = "write what was measured into docs/performance.md"
    part = parts.add_parser("page", help=summary, description=summary)
    add_page_options(part)
    part.set_defaults(call=write)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one benchmark; returns its exit status."""
    options = parser().parse_args(arguments)
    status: int = options.call(options)
    return status


if __name__ == "__main__":
    sys.exit(main())
