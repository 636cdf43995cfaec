"""Turns a CPython 3.12 code object into plain instructions: fused ones are split, flags in arguments become names."""

from __future__ import annotations

from types import CodeType

from framefuse.capture.program.versions.listing import DROPPED, Instruction, Parts, plain_instructions, raw_instructions

# CALL_INTRINSIC_1 and CALL_INTRINSIC_2 by their argument.
INTRINSICS = (
    "INVALID", "PRINT", "IMPORT_STAR", "STOPITERATION_ERROR", "ASYNC_GEN_WRAP", "UNARY_POSITIVE", "LIST_TO_TUPLE",
    "TYPEVAR", "PARAMSPEC", "TYPEVARTUPLE", "SUBSCRIPT_GENERIC", "TYPEALIAS",
)  # fmt: skip
INTRINSICS_OF_TWO = (
    "INVALID", "PREP_RERAISE_STAR", "TYPEVAR_WITH_BOUND", "TYPEVAR_WITH_CONSTRAINTS", "SET_FUNCTION_TYPE_PARAMS",
    "SET_TYPEPARAM_DEFAULT",
)  # fmt: skip

# SEND takes the exhausted iterator off the stack here, and FOR_ITER as CPython does: nothing is left to end.
ENDS = frozenset(("END_SEND", "END_FOR"))
# LOAD_FAST tells an unbound variable; what is loaded and cleared may be unbound, and is stored back as it is.
RENAMED = {"LOAD_FAST_CHECK": "LOAD_FAST"}


def instructions(code: CodeType) -> tuple[list[Instruction], dict[int, int]]:
    """The plain instructions of ``code`` and the index of the one that starts at each byte offset."""
    return plain_instructions(raw_instructions(code), expand)


def expand(name: str, argument: int) -> Parts:
    """The plain instructions, as (name, argument), that one of CPython's stands for."""
    if name in DROPPED or name in ENDS:
        return ()
    if name == "COMPARE_OP":
        return ((name, argument >> 4),)
    return expand_common(name, argument)


def expand_common(name: str, argument: int) -> Parts:
    """As :func:`expand`, for what is the same in the versions since 3.12."""
    match name:
        case "LOAD_ATTR":
            return (("LOAD_METHOD" if argument & 1 else "LOAD_ATTR", argument >> 1),)
        case "LOAD_SUPER_ATTR":
            return (("LOAD_SUPER", argument >> 1 & 1), ("LOAD_METHOD" if argument & 1 else "LOAD_ATTR", argument >> 2))
        case "RETURN_CONST":
            return (("LOAD_CONST", argument), ("RETURN_VALUE", 0))
        case "BINARY_SLICE":
            return (("BUILD_SLICE", 2), ("BINARY_SUBSCR", 0))
        case "STORE_SLICE":
            return (("BUILD_SLICE", 2), ("STORE_SUBSCR", 0))
        case "CALL_INTRINSIC_1":
            return ((INTRINSICS[argument], 0),)
        case "CALL_INTRINSIC_2":
            return ((INTRINSICS_OF_TWO[argument], 0),)
    return ((RENAMED.get(name, name), argument),)
