"""The question of digits is asked by numbers of which every element of an answer is one product."""

import pytest
import torch

from framefuse.ir.whole_digits import ITSELF, OF_PICTURE, OF_WEIGHT, SizedConvolution
from framefuse.runtime import convolution_digits
from framefuse.runtime.convolution_digits import ALL_DIGITS, ELEMENT, with_all_digits

CASES = {
    "windows": ((2, 6, 9, 8), (5, 6, 3, 3), 1, 1, 1, False, 0, 1),
    "points by steps of two": ((2, 6, 9, 8), (5, 6, 1, 1), 2, 0, 1, False, 0, 1),
    "even windows": ((1, 3, 8, 8), (4, 3, 4, 4), 2, 1, 1, False, 0, 1),
    "holes": ((1, 3, 9, 9), (4, 3, 3, 3), 1, 2, 2, False, 0, 1),
    "in groups": ((2, 6, 9, 8), (4, 3, 3, 3), 1, 1, 1, False, 0, 2),
    "transposed": ((2, 6, 5, 4), (6, 5, 4, 4), 2, 1, 1, True, 1, 1),
    "transposed in groups": ((2, 6, 5, 4), (6, 5, 2, 2), 2, 0, 1, True, 0, 3),
    "volumes": ((1, 4, 5, 6, 4), (3, 4, 3, 3, 3), 1, 1, 1, False, 0, 1),
}


def question(name, part, last):
    picture, weight, *numbers, transposed, extra, groups = CASES[name]
    rank = len(picture) - 2
    stride, padding, holes = ((number,) * rank for number in numbers)
    behind = (extra,) * rank
    return SizedConvolution("cpu", picture, weight, stride, padding, holes, transposed, behind, groups, part, last)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("part", [ITSELF, OF_PICTURE, OF_WEIGHT])
@pytest.mark.parametrize("name", CASES)
def test_each_element_is_one_product_or_none(name, part, last):
    asked = question(name, part, last)
    made = convolution_digits._made(asked, convolution_digits._result(asked))
    one = torch.tensor(ELEMENT) * torch.tensor(ELEMENT)
    assert set(made.unique().tolist()) <= {0.0, float(one)}
    assert float(made.amax()) == float(one) > ALL_DIGITS > ELEMENT  # ELEMENT: what it is if an operand is rounded


def test_nothing_is_asked_of_a_device_that_is_not_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert with_all_digits([question("windows", ITSELF, False)]) == [None]


def test_a_convolution_of_nothing_has_no_answer(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 30, 1 << 30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 0)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 0)
    none = SizedConvolution("cuda:0", (0, 3, 4, 4), (2, 3, 3, 3), (1, 1), (0, 0), (1, 1), False, (0, 0), 1, ITSELF)
    assert with_all_digits([none, question("windows", ITSELF, False)]) == [None, None]
