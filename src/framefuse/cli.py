"""Turns `framefuse COMMAND ...` on the command line into calls: the demo, a script that is run, the primitives."""

from __future__ import annotations

import argparse
import functools
import importlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from framefuse import __version__, cache
from framefuse.api import install, load_cache, save_cache
from framefuse.backends.registry import compiler_of
from framefuse.demo import demo
from framefuse.errors import UserError
from framefuse.explain.difference import difference
from framefuse.explain.op_matrix import ops_text
from framefuse.explain.ranks import side_by_side
from framefuse.explain.report_facts import Process, read
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
            if not Path(page).absolute().parent.is_dir():
                raise UserError(f"{page} cannot be written. Make the folder {Path(page).absolute().parent} first")
    except UserError as error:
        print(f"framefuse: {error}", file=sys.stderr)
        return 2
    how = {"dynamic": False if options.static else None, "backend": options.backend, "options": settings}
    everywhere = Everywhere(functools.partial(install, **how), options.function)
    begun, used = time.perf_counter(), time.process_time()
    with Ledger() as ledger:
        status = run_script(options.script, options.arguments, everywhere.start)
        everywhere.stop()
        process = Process(_rank(), time.perf_counter() - begun, time.process_time() - used)
        explanations = ledger.explanations()
        if page:
            _write_page(page, [state for state in ledger.alive() if state.dispatch.calls], process)
    if not options.quiet and (explanations or status == 0):
        sys.stdout.flush()
        print(summary(explanations), file=sys.stderr)
    return status


def _rank() -> int | None:
    """The place of this process among several that a launcher started; None where it is the only one."""
    rank, world = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    return int(rank) if rank.isdecimal() and world.isdecimal() and int(world) > 1 else None


def _write_page(path: str, states: list[CompiledFunction], process: Process) -> None:
    """Writes the page; a disk that takes none is no error of the script."""
    try:
        importlib.import_module("framefuse.explain.page").write_all(path, states, process)
    except OSError as error:
        advice = "Give --report the name of a file that you can write"
        print(f"framefuse: {path} cannot be written: {error.strerror}. {advice}", file=sys.stderr)


def declare_report(parser: argparse.ArgumentParser) -> None:
    """What is to be done with which pages."""
    told = "diff: what the second page has that the first has not; ranks: pages of several processes side by side"
    parser.add_argument("action", choices=("diff", "ranks"), help=told)
    parser.add_argument("pages", nargs="+", help="pages that framefuse.report or framefuse run --report wrote")
    parser.add_argument("--html", default="", metavar="FILE", help="write a page too")


def call_report(options: argparse.Namespace) -> int:
    """Prints tables, and writes them as a page where that is asked."""
    try:
        if options.action == "diff" and len(options.pages) != 2:
            raise UserError(f"{len(options.pages)} pages were given. Name two for diff: the earlier and the later one")
        found = [read(page) for page in options.pages]
        tables = difference(*found) if options.action == "diff" else side_by_side(found)
        if options.html:
            importlib.import_module("framefuse.explain.page").write_tables(options.html, tables)
    except (UserError, OSError) as error:
        print(f"framefuse: {error}", file=sys.stderr)
        return 2
    print(tables)
    return 0


def declare_cache(parser: argparse.ArgumentParser) -> None:
    """What is to be done, and with which file."""
    actions = ("show", "verify", "prune", "save", "load")
    told = (
        "show what is kept (the default); verify it and drop what is damaged, or verify a saved FILE; prune it; "
        "save all of it in FILE; load FILE"
    )
    parser.add_argument("action", choices=actions, nargs="?", default="show", help=told)
    parser.add_argument("file", nargs="?", default="", metavar="FILE", help="for save, load and verify")
    parser.add_argument("--keep", type=int, default=0, metavar="MIB", help="how much prune leaves in each folder (0)")
    parser.add_argument("--key", default="", metavar="FILE", help="whose content signs and checks saved files")


def call_cache(options: argparse.Namespace) -> int:
    """Prints what was done; the exit status is 1 where verify has found something, 2 where a file is refused."""
    try:
        text, status = _cache_action(options)
    except (UserError, OSError) as error:
        print(f"framefuse: {error}", file=sys.stderr)
        return 2
    print(text)
    return status


def _cache_action(options: argparse.Namespace) -> tuple[str, int]:
    action, file = options.action, options.file
    if bool(file) != (action in ("save", "load")) and not (file and action == "verify"):
        raise UserError(f"{action} takes {'no file' if file else 'a file'}. See framefuse cache --help")
    key = Path(options.key).read_bytes().strip() if options.key else None
    if action == "save":
        return f"{save_cache(file, key=key, whole=True)} entries saved in {file}", 0
    if action == "load":
        return f"{load_cache(file, key=key)} entries loaded from {file}", 0
    if action == "verify":
        text, found = cache.verify_file(file, key) if file else cache.verify()
        return text, int(found > 0)
    return cache.show() if action == "show" else cache.prune(options.keep << 20), 0


COMMANDS = (
    Command("demo", "three small programs against eager, in a few seconds", declare_demo, call_demo),
    Command("explain", "run a script and say what was compiled, what not, and why", declare_script, call_explain),
    Command("run", "run a script unchanged, with every model compiled", declare_run, call_run),
    Command("report", "compare two pages, or put those of several ranks side by side", declare_report, call_report),
    Command("cache", "what is kept on disk: show, verify, prune, save or load it", declare_cache, call_cache),
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
