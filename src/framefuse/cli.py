"""Turns `framefuse COMMAND ...` on the command line into calls: benchmarks, the demo, the table of primitives."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from framefuse.api import install
from framefuse.bench.demo import demo
from framefuse.bench.run import BENCHES, add_common_options, no_options, run
from framefuse.explain.ops import ops_text
from framefuse.run.everywhere import Everywhere
from framefuse.run.script import run_script
from framefuse.run.summary import Ledger, summary


@dataclass(frozen=True)
class Command:
    """One subcommand: `declare` adds its arguments, `call` gets them parsed and returns the exit status."""

    name: str
    summary: str
    declare: Callable[[argparse.ArgumentParser], None]
    call: Callable[[argparse.Namespace], int]


def declare_bench(parser: argparse.ArgumentParser) -> None:
    """One subcommand for each benchmark."""
    parts = parser.add_subparsers(metavar="NAME", required=True)
    for bench in BENCHES:
        part = parts.add_parser(bench.name, help=bench.summary, description=bench.summary)
        add_common_options(part)
        bench.add_options(part)
        part.set_defaults(bench=functools.partial(run, bench.name))


def call_bench(options: argparse.Namespace) -> int:
    """Runs the benchmark that was named."""
    status: int = options.bench(options)
    return status


def declare_demo(parser: argparse.ArgumentParser) -> None:
    """The options of every benchmark, with a folder of its own."""
    add_common_options(parser, "demo-out")


def call_ops(options: argparse.Namespace) -> int:
    """Prints the table of primitives."""
    print(ops_text())
    return 0


def declare_script(parser: argparse.ArgumentParser) -> None:
    """The script and its own arguments."""
    parser.add_argument("script", help="a Python file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what the script gets as its arguments")


def call_explain(options: argparse.Namespace) -> int:
    """Prints one screen for each function that the script compiles itself; the exit status is the script's, else 1
    where there is none.
    """
    with Ledger() as ledger:
        status = run_script(options.script, options.arguments)
        found = ledger.explanations()
    print("\n\n".join(map(str, found)) or f"{options.script} compiled nothing with framefuse.compile")
    return status or int(not found)


def declare_run(parser: argparse.ArgumentParser) -> None:
    """How to compile, then the script."""
    parser.add_argument(
        "--function", action="append", default=[], metavar="NAME",
        help="also compile this function of the script, or module:name of another module; may be repeated",
    )  # fmt: skip
    parser.add_argument("--backend", default="native", help="what compiles: native, eager, or another backend")
    parser.add_argument("--static", action="store_true", help="compile each size anew")
    parser.add_argument("--report", default="", metavar="DIR", help="write what each stage made into this folder")
    parser.add_argument("--quiet", action="store_true", help="print no summary at the end")
    declare_script(parser)


def call_run(options: argparse.Namespace) -> int:
    """Runs the script with its models compiled; the summary goes to stderr, the exit status is the script's."""
    settings = {"report": options.report} if options.report else None
    how = {"dynamic": False if options.static else None, "backend": options.backend, "options": settings}
    everywhere = Everywhere(functools.partial(install, **how), options.function)
    with Ledger() as ledger:
        status = run_script(options.script, options.arguments, everywhere.start)
        everywhere.stop()
        found = ledger.explanations()
    if not options.quiet:
        sys.stdout.flush()
        print(summary(found), file=sys.stderr)
    return status


COMMANDS = (
    Command("bench", "measure against eager and torch.compile", declare_bench, call_bench),
    Command("demo", "the curve and some models, in under three minutes", declare_demo, demo),
    Command("explain", "run a script and say what was compiled, what not, and why", declare_script, call_explain),
    Command("run", "run a script unchanged, with every model compiled", declare_run, call_run),
    Command("ops", "the primitives by element type, and which of torch's functions become them", no_options, call_ops),
)


def parser() -> argparse.ArgumentParser:
    """The command line, one subcommand for each row of COMMANDS."""
    top = argparse.ArgumentParser(prog="framefuse", description="A just-in-time compiler for PyTorch programs.")
    parts = top.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        part = parts.add_parser(command.name, help=command.summary, description=command.summary)
        command.declare(part)
        part.set_defaults(call=command.call)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit status."""
    options = parser().parse_args(arguments)
    status: int = options.call(options)
    return status


if __name__ == "__main__":
    sys.exit(main())
