"""Turns `framefuse COMMAND ...` on the command line into calls: the demo, a script that is run, the primitives."""

from __future__ import annotations

import argparse
import functools
import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from framefuse import __version__, cache
from framefuse.api import install
from framefuse.backends.registry import compiler_of
from framefuse.demo import demo
from framefuse.errors import UserError
from framefuse.explain.op_matrix import ops_text
from framefuse.run.everywhere import Everywhere
from framefuse.run.script import run_script
from framefuse.run.summary import Ledger, summary
from framefuse.runtime.function import CompiledFunction


@dataclass(frozen=True)
class Command:
    """One subcommand: `declare` adds its arguments, `call` gets them parsed and returns the exit status."""

    name: str
    summary: str
    declare: Callable[[argparse.ArgumentParser], None]
    call: Callable[[argparse.Namespace], int]


def no_options(parser: argparse.ArgumentParser) -> None:
    """For commands without options."""


def declare_demo(parser: argparse.ArgumentParser) -> None:
    """How many threads torch has."""
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (1)")


def call_demo(options: argparse.Namespace) -> int:
    """Times three small programs."""
    return demo(options.threads)


def call_ops(options: argparse.Namespace) -> int:
    """Prints the table of primitives."""
    print(ops_text())
    return 0


def declare_script(parser: argparse.ArgumentParser) -> None:
    """The script and its own arguments."""
    parser.add_argument("script", help="a Python file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, default=[], help="what the script gets as its arguments")


def call_explain(options: argparse.Namespace) -> int:
    """Prints one screen for each function that the script compiles itself; the exit status is the script's, else 1
    where there is none.
    """
    with Ledger() as ledger:
        status = run_script(options.script, options.arguments)
        explanations = ledger.explanations()
    print("\n\n".join(map(str, explanations)) or f"{options.script} compiled nothing with framefuse.compile")
    return status or int(not explanations)


def declare_run(parser: argparse.ArgumentParser) -> None:
    """How to compile, then the script."""
    parser.add_argument(
        "--function", action="append", default=[], metavar="NAME",
        help="also compile this function of the script, or module:name of another module; may be repeated",
    )  # fmt: skip
    parser.add_argument("--backend", default="native", help="what compiles: native, eager, or another backend")
    parser.add_argument("--static", action="store_true", help="compile each size anew")
    parser.add_argument(
        "--report", default="", metavar="PATH",
        help="FILE.html: a page to look at; else a folder for what each stage made",
    )  # fmt: skip
    parser.add_argument("--quiet", action="store_true", help="print no summary at the end")
    declare_script(parser)


def call_run(options: argparse.Namespace) -> int:
    """Runs the script with its models compiled; the summary goes to stderr, the exit status is the script's."""
    page = options.report if options.report.endswith(".html") else ""
    settings = {"report": options.report} if options.report and not page else None
    try:
        compiler_of(options.backend)
        if page:
            importlib.import_module("framefuse.explain.page").library()
    except UserError as error:
        print(f"framefuse: {error}", file=sys.stderr)
        return 2
    how = {"dynamic": False if options.static else None, "backend": options.backend, "options": settings}
    everywhere = Everywhere(functools.partial(install, **how), options.function)
    with Ledger() as ledger:
        status = run_script(options.script, options.arguments, everywhere.start)
        everywhere.stop()
        explanations = ledger.explanations()
        if page:
            _write_page(page, [state for state in ledger.alive() if state.dispatch.calls])
    if not options.quiet and (explanations or status == 0):
        sys.stdout.flush()
        print(summary(explanations), file=sys.stderr)
    return status


def _write_page(path: str, states: list[CompiledFunction]) -> None:
    """Writes the page; a disk that takes none is no error of the script."""
    try:
        importlib.import_module("framefuse.explain.page").write_all(path, states)
    except OSError as error:
        print(f"framefuse: {path} cannot be written: {error.strerror}", file=sys.stderr)


def declare_cache(parser: argparse.ArgumentParser) -> None:
    """What is to be done."""
    actions = ("show", "verify", "prune")
    told = "show what is kept (the default); verify it and drop what is damaged; prune it"
    parser.add_argument("action", choices=actions, nargs="?", default="show", help=told)
    parser.add_argument("--keep", type=int, default=0, metavar="MIB", help="how much prune leaves in each folder (0)")


def call_cache(options: argparse.Namespace) -> int:
    """Prints a line for each folder; the exit status of verify is 1 where a file was damaged."""
    if options.action == "verify":
        text, damaged = cache.verify()
        print(text)
        return int(damaged > 0)
    print(cache.show() if options.action == "show" else cache.prune(options.keep << 20))
    return 0


COMMANDS = (
    Command("demo", "three small programs against eager, in a few seconds", declare_demo, call_demo),
    Command("explain", "run a script and say what was compiled, what not, and why", declare_script, call_explain),
    Command("run", "run a script unchanged, with every model compiled", declare_run, call_run),
    Command("cache", "what is kept on disk of compiled programs: show, verify or prune it", declare_cache, call_cache),
    Command("ops", "the primitives by element type, and which of torch's functions become them", no_options, call_ops),
)


def version_text() -> str:
    """The versions that a report of a fault needs."""
    python = ".".join(map(str, sys.version_info[:3]))
    return f"framefuse {__version__} (torch {torch.__version__}, Python {python})"


def parser() -> argparse.ArgumentParser:
    """The command line, one subcommand for each row of COMMANDS."""
    top = argparse.ArgumentParser(prog="framefuse", description="A just-in-time compiler for PyTorch programs.")
    top.add_argument("--version", action="version", version=version_text())
    parts = top.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        part = parts.add_parser(command.name, help=command.summary, description=command.summary)
        command.declare(part)
        part.set_defaults(call=command.call)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit status."""
    given = sys.argv[1:] if arguments is None else arguments
    if not given:
        parser().print_help()
        return 0
    options = parser().parse_args(given)
    status: int = options.call(options)
    return status


if __name__ == "__main__":
    sys.exit(main())
