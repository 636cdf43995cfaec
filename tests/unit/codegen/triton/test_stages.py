"""What Triton's LLVM is given says nothing of vectors of integers that its code for a GPU then takes for more."""

import re

import pytest
from tests.unit.codegen import kernels as k

from framefuse.codegen.specialisation import Place, Specialisation
from framefuse.codegen.triton import compile as module
from framefuse.codegen.triton import stages
from framefuse.codegen.triton.stages import without_promises
from framefuse.codegen.triton.target import REFERENCE

LINES = {
    "  %52 = shl nuw nsw <2 x i32> %50, <i32 31, i32 2>": "  %52 = shl <2 x i32> %50, <i32 31, i32 2>",
    "  %92 = or disjoint <2 x i32> %91, %53": "  %92 = or <2 x i32> %91, %53",
    "  %5 = lshr exact <4 x i16> %4, splat (i16 1)": "  %5 = lshr <4 x i16> %4, splat (i16 1)",
    "  %7 = zext nneg <2 x i32> %6 to <2 x i64>": "  %7 = zext <2 x i32> %6 to <2 x i64>",
    "  %9 = icmp samesign ult <2 x i32> %8, %7": "  %9 = icmp ult <2 x i32> %8, %7",
}
KEPT = (
    "  %30 = shl nuw nsw i32 %28, 2",
    "  %31 = or disjoint i32 %23, 4",
    "  %36 = getelementptr inbounds nuw i8, ptr addrspace(3) @global_smem, i32 %62",
    "  %40 = fadd nnan <2 x float> %38, %39",
    "  %41 = add <2 x i32> %38, %39",
)


@pytest.mark.parametrize("line", LINES)
def test_promises_of_vectors_are_dropped(line):
    assert without_promises(line) == LINES[line]


@pytest.mark.parametrize("line", KEPT)
def test_all_else_stays(line):
    assert without_promises(line) == line


def test_code_is_made_of_what_is_left(monkeypatch):
    """Compiled for a GPU that is not here: the columns of a tile are summed, which LLVM packs in pairs of rows."""
    pytest.importorskip("triton")
    made: list[str] = []
    monkeypatch.setattr(stages, "without_promises", lambda text: made.append(without_promises(text)) or made[-1])
    module.compile_kernel(k.column_operation("sum"), Specialisation({k.ROWS: 64, k.COLS: 96}), Place("cpu"), REFERENCE)
    assert len(made) == 1 and "define ptx_kernel" in made[0]
    assert re.search(r"= \w+ (?:nuw |nsw |disjoint )+i32", made[0])  # scalars keep theirs
    assert without_promises(made[0]) == made[0]
