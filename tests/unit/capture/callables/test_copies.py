"""Deep copies of plain data made in the middle of a function."""

import copy

import torch

import framefuse


class Config:
    def __init__(self):
        self.scale, self.names, self.inner = 2.0, ["a", "b"], {"depth": {"n": 3}}


class Loud(Config):
    copies = 0

    def __deepcopy__(self, memo):
        Loud.copies += 1
        return self


def test_a_copy_is_its_own_and_follows_the_original():
    config = Config()

    def f(x):
        own = copy.deepcopy(config)
        own.scale += 1
        own.names.append("c")
        return x * own.scale + own.inner["depth"]["n"] + len(own.names), own.names

    fast = framefuse.compile(f)
    state = fast.__framefuse__
    x = torch.randn(3)
    for _ in range(3):
        y, names = fast(x)
        torch.testing.assert_close(y, x * 3 + 6)
        assert names == ["a", "b", "c"] and config.names == ["a", "b"] and config.scale == 2.0
    assert state.dispatch.hits == 2, state.reasons
    config.inner["depth"]["n"] = 4
    torch.testing.assert_close(fast(x)[0], x * 3 + 7)
    config.names.append("d")
    torch.testing.assert_close(fast(x)[0], x * 3 + 8)
    config.extra = 1
    torch.testing.assert_close(fast(x)[0], x * 3 + 8)


def test_a_copy_with_code_of_its_own_runs_it_each_time():
    loud = Loud()
    fast = framefuse.compile(lambda x: x * copy.deepcopy(loud).scale)
    x = torch.randn(3)
    for _ in range(3):
        torch.testing.assert_close(fast(x), x * 2)
    assert Loud.copies == 3


def test_a_set_of_names_is_copied():
    config = Config()
    config.kept = {"inner", "names"}

    def f(x):
        own = copy.deepcopy(config)
        own.kept.add("scale")
        return x * len(own.kept) + ("extra" in own.kept), own.kept

    fast = framefuse.compile(f)
    for _ in range(3):
        x = torch.randn(3)
        y, kept = fast(x)
        torch.testing.assert_close(y, x * 3)
        assert kept == {"inner", "names", "scale"} and config.kept == {"inner", "names"}
    assert fast.__framefuse__.dispatch.hits == 2
    config.kept.add("extra")
    torch.testing.assert_close(fast(x)[0], x * 4 + 1)
    config.kept.discard("names")
    torch.testing.assert_close(fast(x)[0], x * 3 + 1)
