"""What is derived from parents is kept while they live, lie where they lay and nobody wrote to them."""

import gc

import pytest
import torch

from framefuse import _native
from framefuse.runtime import kept_values
from framefuse.runtime.kept_values import Kept, counts_writes


def doubled(parents):
    return tuple(parent * 2 for parent in parents)


def test_marks_are_equal_until_a_tensor_moves():
    x, y = torch.ones(3), torch.ones(3)
    before = _native.marks_of(x, y)
    assert before == _native.marks_of(x, y) and before != _native.marks_of(y, x)
    x.add_(1)
    assert before != _native.marks_of(x, y)
    before = _native.marks_of(x, y)
    y.data = torch.ones(3)
    assert before != _native.marks_of(x, y)
    with torch.inference_mode():
        uncounted = torch.ones(3)
    for wrong in (uncounted, 1):
        with pytest.raises(TypeError):
            _native.marks_of(x, wrong)


def test_tensors_of_inference_mode_lack_a_key():
    with torch.inference_mode():
        uncounted = torch.ones(3)
    assert _native.tensor_facts(torch.nn.Parameter(torch.ones(3)))["keys"] & counts_writes()
    assert not _native.tensor_facts(uncounted)["keys"] & counts_writes()


def test_values_are_derived_anew_when_a_parent_or_witness_moves():
    kept, (x, witness) = Kept(doubled), (torch.ones(3), torch.ones(1))
    (first,) = kept.values((x,), (witness,))
    assert kept.values((x,), (witness,))[0] is first
    x.data.mul_(3)  # nobody counts it
    assert kept.values((x,), (witness,))[0] is first
    witness.add_(1)
    assert kept.values((x,), (witness,))[0].tolist() == [6, 6, 6]
    assert (kept.account.computed, kept.account.spared, kept.bytes) == (2, 2, 12)


def test_values_go_with_a_witness():
    kept, x = Kept(doubled), torch.ones(3)
    witness = torch.ones(1)
    kept.values((x,), (witness,))
    del witness
    gc.collect()
    assert kept.bytes == 0  # another tensor may come to be at its address


def test_memory_of_a_parent_is_no_other_tensors_while_values_of_it_are_kept():
    kept, x = Kept(doubled), torch.ones(1 << 16)
    kept.values((x,))
    for number in range(4):
        x.data = torch.empty(0)
        x.data = torch.full((1 << 16,), float(number))
        assert kept.values((x,))[0][0] == 2 * number


def test_values_go_with_their_parents(monkeypatch):
    kept = Kept(doubled)
    parents = [torch.ones(4) for _ in range(3)]
    for parent in parents:
        kept.values((parent,))
    assert kept.bytes == 48
    del parent, parents[0]
    gc.collect()
    assert kept.bytes == 32
    kept.forget(frozenset((parents[0].data_ptr(),)))
    assert kept.bytes == 16
    monkeypatch.setattr(kept_values, "MOST", 2)
    for parent in [*parents, *(torch.ones(4) for _ in range(5))]:
        kept.values((parent,))
        assert len(kept._families) <= 2
    kept_values.refresh()
    assert kept.bytes == 0
