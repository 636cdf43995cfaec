"""Declares every option and environment variable once: name, type, default and one sentence."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any

from framefuse.errors import UserError, kind_of


def _row(default: Any, text: str, choices: tuple[str, ...] = (), numbers: bool = False, shapes: bool = True) -> Any:
    """The field of an option: its default, its sentence, for some strings all that they may be, whether numbers will do
    as well, and whether it has a part in what is compiled.
    """
    return field(default=default, repr=shapes, metadata={"text": text, "choices": choices, "numbers": numbers})


# "reduce-overhead" and "max-autotune" replay what a trace launches on a GPU as a captured graph.
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")

# What ``numerics`` promises. In both, tensors are of eager's dtypes; a value is rounded where a tensor of a 16-bit
# dtype is stored, where the program casts, and where a comparison or a rounding to integers decides on it; operands
# are converted as eager converts them; nothing is contracted; and only sums may associate in another order.
#   default  A kernel holds 16-bit floats in float32 from one operation to the next, so a chain is nearer to the exact
#            result than eager's, which rounds after each. Functions such as exp are ours, within 2 ulp in float32; on a
#            GPU they have six digits in kernels that write 16-bit floats alone.
#   eager    A kernel rounds after each operation of eager and calls the functions that eager's vectors call, so chains
#            of 16-bit elementwise operations have eager's bits; products are torch's own calls. It fuses all the same.
#            Measured exceptions (of all 65536 values of a dtype, AVX-512): gelu 661 in bfloat16 and 378 in float16
#            (oneDNN's), digamma 11 and asinh 4 in float16, sinc 2; floor_divide near an integer, which eager rounds on
#            the way; and the last few elements of a tensor, for which eager has scalar code. In float32 elementwise
#            functions that eager takes from MKL differ by at most 2 ulp.
NUMERICS = "Whether kernels hold 16-bit floats in float32 between operations, or round where eager does."


FLOATS = "floats"  # in the place of dynamic: sizes and ints are constants, floats run-time values once they change


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The settings of one compiled function: arguments of :func:`framefuse.compile`, then the options, each a row."""

    dynamic: bool | str | None = None
    fullgraph: bool = False
    mode: str = "default"

    trace_limit: int = _row(16, "How many traces may start at one place before new cases of it wait.")
    compile_seconds: float = _row(300.0, "How long a function may record and compile before new cases wait.")
    tune_seconds: float = _row(
        120.0, "How long one graph may compile and measure candidates in the modes max-autotune."
    )
    measure_seconds: float = _row(
        0.1, "How long large kernels of one graph may be timed in a few forms, in the other modes; 0: not at all."
    )
    point_limit: int = _row(
        64, "At how many points of one function compiled code may hand over to an eager step."
    )
    graph_limit: int = _row(
        8, "How many CUDA graphs may be captured of one trace, where the mode asks for them."
    )
    cpu_target: str = _row(
        "llvm", "What compiles the CPU's kernels; alone: for where torch's library is not; triton: in tests, and slow.",
        ("llvm", "triton", "alone"),
    )  # fmt: skip
    threads: bool = _row(True, "Kernels may use the threads that torch.get_num_threads() allows.")
    cache: bool = _row(True, "Programs and machine code are kept in the user's cache folder for later processes.")
    wait: bool | float = _row(
        True, "Calls wait for compiled code; False: they run eagerly meanwhile; a number: for so many milliseconds.",
        numbers=True, shapes=False,
    )  # fmt: skip
    freeze: bool = _row(
        False, "What a graph without gradients computes from parameters and buffers alone is kept while they stay."
    )
    check: bool = _row(False, "Every stage's product is verified; slow, for tests.")
    verify: bool = _row(False, "Each new trace is compared with eager on the call that it was made for; slow.")
    numerics: str = _row("default", NUMERICS, ("default", "eager"))
    log: str = _row("", "What is printed while compiling.", ("", "calls", "graphs", "kernels"))
    report: str = _row("", "A folder that receives the trace, graph, passes, kernels and plan of each compile.")

    @property
    def patience(self) -> float | None:
        """The seconds for which a call waits for code that another thread compiles; None where no other does."""
        if self.wait is True:
            return None
        return float(self.wait) / 1e3

    @property
    def graphs(self) -> bool:
        """Whether what a trace launches on a GPU is to be captured and replayed."""
        return self.mode in ("reduce-overhead", "max-autotune")

    @property
    def measures(self) -> bool:
        """Whether candidates are measured on the device, and the fastest is kept."""
        return self.mode in ("max-autotune", "max-autotune-no-cudagraphs")

    @property
    def exact(self) -> bool:
        """Whether kernels round where eager does."""
        return self.numerics == "eager"


@dataclass(frozen=True, slots=True)
class Option:
    """One setting: ``name`` as a key of ``options=`` or, in capitals after ``FRAMEFUSE_``, as an environment variable.

    ``choices`` limits strings; with ``numbers`` one from 0 on will do too.
    """

    name: str
    type: type
    default: Any
    text: str
    choices: tuple[str, ...] = ()
    numbers: bool = False

    @property
    def variable(self) -> str:
        """The environment variable's name."""
        return f"FRAMEFUSE_{self.name.upper()}"


TABLE = tuple(
    Option(row.name, type(row.default), row.default, **row.metadata)
    for row in fields(Options)
    if row.metadata
)
BY_NAME = {option.name: option for option in TABLE}


KINDS = {bool: "True or False", int: "a whole number", float: "a number", str: "a text"}
LOG = BY_NAME["log"].variable
LEVELS = ("debug", "info", "warning", "error")
LOGGERS = ("capture", "lower", "autodiff", "fuse", "codegen", "guards", "assemble", "cache")  # of framefuse
DISABLE = "FRAMEFUSE_DISABLE"  # 1: everything runs eagerly until framefuse.enable()


def disabled() -> bool:
    """Whether the environment turns compiled code off; raises UserError for a value that is no truth."""
    text = os.environ.get(DISABLE, "")
    return bool(text) and bool(_parse(Option("disable", bool, False, "1: everything runs eagerly"), text, DISABLE))


def environment(name: str) -> Any:
    """The value of an option from the environment, else its default; raises UserError for a value of the wrong type."""
    option = BY_NAME[name]
    text = os.environ.get(option.variable)
    if text is None or (option.variable == LOG and levels(text)):
        return option.default
    return _parse(option, text, option.variable)


def levels(text: str) -> dict[str, int]:
    """The levels that FRAMEFUSE_LOG states, by the names of loggers: one for all (``debug``), or one for some stages
    (``fuse=debug,cache=info``). Empty where it states something else, or a stage that there is not.
    """
    stated: dict[str, int] = {}
    for part in text.split(",") if text else ():
        stage, _, level = part.strip().rpartition("=")
        if level.lower() not in LEVELS or stage not in ("", *LOGGERS):
            return {}
        stated[f"framefuse.{stage}" if stage else "framefuse"] = getattr(logging, level.upper())
    return stated


def resolve(
    options: Mapping[str, Any] | None, *, dynamic: bool | None = None, fullgraph: bool = False, mode: str | None = None
) -> Options:
    """Checks and completes what the user gave; raises UserError naming the choices."""
    if mode is not None and mode not in MODES:
        raise UserError(f"unknown mode {mode!r}. Choose one of: {', '.join(MODES)}")
    if not isinstance(fullgraph, bool):
        raise UserError(f"fullgraph is {fullgraph!r}. Choose True or False")
    if dynamic is not None and not isinstance(dynamic, bool):
        raise UserError(f"dynamic is {dynamic!r}. Choose None, True or False")
    if options is not None and not isinstance(options, Mapping):
        raise UserError(f"options is {kind_of(options)}. Give a dict such as {{'trace_limit': 32}}")
    values = {option.name: environment(option.name) for option in TABLE}
    for name, value in (options or {}).items():
        if name not in BY_NAME:
            raise UserError(f"unknown option {name!r}. Choose one of: {', '.join(BY_NAME)}")
        values[name] = _parse(BY_NAME[name], value, f"option {name!r}")
    return Options(dynamic=dynamic, fullgraph=fullgraph, mode=mode or "default", **values)


def _parse(option: Option, value: Any, where: str) -> Any:
    if option.type is bool and isinstance(value, str) and value.lower() in ("0", "1", "true", "false", "on", "off"):
        return value.lower() in ("1", "true", "on")
    if option.numbers and not isinstance(value, bool):
        with suppress(TypeError, ValueError):
            if float(value) >= 0:
                return float(value)
    if option.type is int and isinstance(value, str) and value.lstrip("-").isdigit():
        return int(value)
    if option.type is float:
        with suppress(TypeError, ValueError):
            return float(value)
    if type(value) is not option.type:
        more = ", or a number from 0 on" if option.numbers else ""
        raise UserError(f"{where} ({option.text.rstrip('.')}) is {value!r}. Give {KINDS[option.type]}{more}")
    if option.choices and value not in option.choices:
        more = f", or a level such as 'debug' or 'fuse=debug' of {', '.join(LOGGERS)}" if where == LOG else ""
        raise UserError(f"{where} is {value!r}. Choose one of: {', '.join(map(repr, option.choices))}{more}")
    return value
