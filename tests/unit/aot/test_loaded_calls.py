"""A loaded program takes every kind of tensor, gives back all that it borrowed, and raises what goes wrong midway."""

import gc
import shutil
import sys
import threading
import weakref

import numpy as np
import pytest
import torch

import framefuse
from framefuse import _native

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="export needs a C compiler")


class Own:
    """An array of somebody else's library."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **_):
        if self.array is None:
            raise BufferError("nothing is here")
        return self.array.__dlpack__()


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A program of two tensors and two results."""
    path = tmp_path_factory.mktemp("calls") / "pair.so"
    framefuse.export(lambda x, y: (x * 2 + y, x - y), (torch.randn(3, 4), torch.randn(3, 4)), path)
    return framefuse.load(path)


GIVEN = {
    "plain": lambda x: x.clone(),
    "turned": lambda x: x.t().contiguous().t(),
    "a part": lambda x: torch.stack([x, x], -1)[..., 1],
    "with a gradient": lambda x: x.clone().requires_grad_(),
    "computed from what has one": lambda x: x.clone().requires_grad_() * 1,
    "a parameter": lambda x: torch.nn.Parameter(x.clone()),
    "of inference": lambda x: torch.inference_mode()(x.clone)(),
    "of numpy": lambda x: x.numpy().copy(),
    "of another library": lambda x: Own(x.numpy().copy()),
}


@pytest.mark.parametrize("first", GIVEN)
@pytest.mark.parametrize("second", ["plain", "with a gradient", "of numpy"])
def test_each_kind_of_tensor_is_taken(pair, first, second):
    x, y = torch.arange(12.0).reshape(3, 4), torch.linspace(0, 1, 12).reshape(3, 4)
    given = GIVEN[first](x), GIVEN[second](y)
    for _ in range(3):
        results = pair(*given)
        kind = torch.Tensor if any(isinstance(each, torch.Tensor) for each in given) else np.ndarray
        for result, expected in zip(results, (x * 2 + y, x - y), strict=True):
            assert isinstance(result, kind)
            np.testing.assert_allclose(np.asarray(result), expected.numpy(), rtol=1e-6, atol=1e-6)


def test_a_negated_view_has_its_values(pair):
    x = torch.complex(torch.zeros(3, 4), torch.ones(3, 4)).conj().imag
    assert x.is_neg()
    assert torch.equal(pair(x, torch.zeros(3, 4))[0], torch.full((3, 4), -2.0))


@pytest.mark.parametrize("bad", [3, None, "text", Own(None)], ids=["number", "none", "text", "broken"])
def test_what_is_no_tensor_is_an_error_and_keeps_nothing(pair, bad):
    x = torch.randn(3, 4)
    before = sys.getrefcount(x)
    for _ in range(3):
        with pytest.raises((AttributeError, BufferError, TypeError)):
            pair(x, bad)
        with pytest.raises((AttributeError, BufferError, TypeError)):
            pair(bad, x)
    assert sys.getrefcount(x) == before


def test_nothing_is_kept_and_results_outlive_what_made_them(tmp_path):
    framefuse.export(lambda x: (x + 1, x * 2), (torch.randn(1000),), tmp_path / "kept.so")
    program = framefuse.load(tmp_path / "kept.so")
    x = torch.randn(1000)
    expected = x + 1
    gone = weakref.ref(x)
    result = program(x)[0]  # the other result is dropped
    of_numpy = program(x.numpy().copy())[0]
    del x, program
    gc.collect()
    assert gone() is None
    assert torch.equal(result, expected) and np.array_equal(of_numpy, expected.numpy())


def test_results_that_nobody_takes_are_freed(pair):
    x = torch.randn(3, 4)

    def refuse(capsule):
        raise RuntimeError("not taken")

    kinds = (torch.Tensor, torch.strided, torch.to_dlpack, refuse)
    before = sys.getrefcount(x)
    for _ in range(100):
        with pytest.raises(RuntimeError, match="not taken"):
            _native.run_exported(pair._run, pair._leading, (x, x), 2, kinds, refuse, refuse)
    assert sys.getrefcount(x) == before


def test_wrong_arguments_of_the_call_are_told(pair):
    with pytest.raises(TypeError, match="run_exported takes"):
        _native.run_exported(pair._run, (), (), 2, None, id, id)
    with pytest.raises(TypeError, match="stand in a sequence"):
        _native.run_exported(pair._run, pair._leading, 3, 2, None, id, id)


def test_many_tensors_are_taken(tmp_path):
    tensors = tuple(torch.randn(3) for _ in range(40))
    framefuse.export(lambda *xs: [x + 1 for x in xs], tensors, tmp_path / "many.so")
    for result, x in zip(framefuse.load(tmp_path / "many.so")(*tensors), tensors, strict=True):
        assert torch.equal(result, x + 1)


def test_threads_that_call_one_program_wait_for_each_other(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 8)).eval()
    framefuse.export(model, (torch.randn(16, 64),), tmp_path / "model.so")
    program = framefuse.load(tmp_path / "model.so")
    given = [torch.randn(16 + seed, 64) for seed in range(4)]
    with torch.no_grad():
        expected = [model(x) for x in given]
    right = []

    def work(seed):
        right.extend(torch.allclose(program(given[seed]), expected[seed], atol=1e-5) for _ in range(300))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(right) == 1200 and all(right)
