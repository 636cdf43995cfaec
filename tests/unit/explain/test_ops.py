import torch

from framefuse.explain import op_matrix
from framefuse.ir.ops import POINTWISE, TABLE


def test_the_matrix_has_no_holes():
    places = [(op, dtype) for op in TABLE.values() for dtype in op_matrix.DTYPES]
    holes = [(op.name, dtype.name) for op, dtype in places if op_matrix.mark(op, dtype) == "-"]
    assert not holes, "primitives that codegen cannot compile"


def test_every_primitive_has_a_line():
    lines = op_matrix.matrix()
    assert [line.split()[0] for line in lines[1:]] == list(TABLE)
    assert sum(f" {POINTWISE} " in line for line in lines) == sum(op.kind == POINTWISE for op in TABLE.values())


def test_the_share_of_torch_counts_what_has_a_rule():
    functions = op_matrix.torch_functions()
    assert torch.relu in functions and torch.Tensor.add in functions
    assert f"of the {len(functions)} functions of torch become primitives" in op_matrix.ops_text()
