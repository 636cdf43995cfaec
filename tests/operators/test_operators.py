"""Every operator of torch's own database, with gradients of two orders: compiled calls are as near to float64 as eager.

``python -m tests.operators.run`` does the same for more samples and all element types.
"""

import pytest
import torch
from tests.operators.calls import LEFT_OUT, Tally, hold
from tests.unit.operator_database import OPERATORS

LETTERS = sorted({op.name.removeprefix("nn.functional.")[0] for op in OPERATORS})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("letter", LETTERS)
def test_operators_named_with(letter):
    tally = Tally()
    for op in OPERATORS:
        if op.name.removeprefix("nn.functional.")[0] == letter and op.name not in LEFT_OUT:
            for dtype in (torch.float32, torch.complex64):
                grad = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
                if dtype in op.supported_dtypes("cpu") and (grad or dtype is torch.complex64):
                    hold(op, dtype, tally, samples=1, grad=grad, orders=2)
    assert not tally.wrong, "\n".join(tally.wrong)
