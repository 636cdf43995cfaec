"""A class alone tells what its instances are not, and proxies are asked themselves."""

import types
import weakref
from collections import OrderedDict

import pytest
import torch
from torch import nn

import framefuse
from framefuse.capture.facts.kinds import is_plain
from framefuse.capture.facts.numbers import TRACKED


class Config:
    def __getattribute__(self, name):
        return torch.Tensor if name == "__class__" else object.__getattribute__(self, name)


class Poser:
    @property
    def __class__(self):
        return torch.Tensor


@pytest.mark.parametrize("kind", [nn.Linear, dict, OrderedDict, types.FunctionType, Config, object])
def test_plain(kind):
    assert is_plain(kind)


@pytest.mark.parametrize(
    "kind",
    [torch.Tensor, nn.Parameter, type, types.ModuleType, types.MethodType, weakref.ProxyType, Poser, super, *TRACKED],
)
def test_not_plain(kind):
    assert not is_plain(kind)


def test_a_proxy_of_a_tensor_is_no_constant():
    def scaled(x):
        return x * weakref.proxy(x).shape[0]

    fast = framefuse.compile(scaled)
    for size in (3, 4, 5, 4):
        x = torch.randn(size)
        torch.testing.assert_close(fast(x), scaled(x))


def test_attributes_are_looked_up_by_the_real_class():
    config = Config()
    config.scale = 2.0

    def scaled(x):
        return x * config.scale

    fast, x = framefuse.compile(scaled), torch.randn(3)
    torch.testing.assert_close(fast(x), x * 2.0)
    torch.testing.assert_close(fast(x), x * 2.0)
    assert fast.__framefuse__.dispatch.hits == 1, fast.__framefuse__.reasons
    config.scale = 3.0
    torch.testing.assert_close(fast(x), x * 3.0)
