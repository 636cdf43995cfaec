"""What libraries write around their tensors: late imports, versions, patterns, einsum's forms, flags of backends."""

from __future__ import annotations

import collections
import functools
import linecache
import operator
import re
import sys
import traceback

import pytest
import torch
import torch.fx.traceback
from tests.traps.trap import Table, Trap, hold

import framefuse

TABLE = Table()
NAMED = re.compile(r"layer(\d+)_(?P<kind>[a-z]+)")
SETTINGS = collections.OrderedDict(first=1, second=2)


def trap(traces: int, hits: int):
    return TABLE.trap(traces, hits, fullgraph=True)


def rows(count: int = 4, *sizes: int):
    return [torch.randn(sizes or (4, 5)) for _ in range(count)]


# Context managers ---------------------------------------------------------------------------------


@TABLE.trap(traces=4, hits=3, waits="native-call")
def a_manager_that_torch_made_of_a_generator(compiled):
    """It ends with a StopIteration inside, which kept the whole function eager."""

    def program(a):
        with torch.fx.traceback.annotate({"part": "first"}):
            a = a.sin() * 2
        return a + 1

    f = compiled(program)
    for a in rows():
        yield f(a)


@TABLE.trap(traces=8, hits=2, waits="native-call raises")
def such_a_manager_around_what_raises(compiled):
    def program(a, wrong):
        with torch.fx.traceback.preserve_node_meta(), torch.fx.traceback.annotate({"part": "first"}):
            a = a * 2
            if wrong:
                raise KeyError("no such part")
        return a + 1

    f = compiled(program)
    for number, a in enumerate(rows(6)):
        try:
            yield f(a, number in (2, 3))
        except KeyError as error:
            yield str(error), [frame.name for frame in traceback.extract_tb(error.__traceback__)][-1]
        yield torch.fx.traceback.has_preserved_node_meta()


# Imports and versions -----------------------------------------------------------------------------


@trap(traces=1, hits=3)
def a_module_is_imported_at_its_first_use(compiled):
    sys.modules.pop("wave", None)

    def program(a):
        import wave

        return a + wave.WAVE_FORMAT_PCM

    f = compiled(program)
    for a in rows():
        yield f(a)


@trap(traces=1, hits=3)
def a_module_that_is_missing(compiled):
    def program(a):
        try:
            import no_such_module
        except ImportError:
            return a * 2
        return a + no_such_module.one

    f = compiled(program)
    for a in rows():
        yield f(a)


@trap(traces=2, hits=2)
def a_missing_module_appears(compiled):
    def program(a):
        try:
            import a_late_module
        except ImportError:
            return a * 2
        return a + a_late_module.one

    f = compiled(program)
    for place, a in enumerate(rows()):
        if place == 2:
            sys.modules["a_late_module"] = module = type(sys)("a_late_module")
            module.one = 1
        yield f(a)
    del sys.modules["a_late_module"]


@trap(traces=1, hits=3)
def the_version_of_torch_is_taken_apart(compiled):
    def program(a):
        major, minor = map(int, torch.__version__.split("+")[0].split(".")[:2])
        return a + major if (major, minor) >= (2, 1) and torch.__version__.startswith("2") else a

    f = compiled(program)
    for a in rows():
        yield f(a)


# Patterns -----------------------------------------------------------------------------


@trap(traces=1, hits=3)
def what_a_pattern_finds(compiled):
    def program(a, name):
        found = NAMED.match(name)
        again = re.compile(r"_(.)").search(name)
        return a * int(found.group(1)) + found.start("kind"), found["kind"], again.groups()

    f = compiled(program)
    for a in rows():
        yield f(a, "layer12_norm")


@trap(traces=2, hits=2)
def a_pattern_in_another_name(compiled):
    f = compiled(lambda a, name: a * int(NAMED.match(name).group(1)))
    for a, name in zip(rows(), ("layer2_norm", "layer3_norm", "layer2_norm", "layer3_norm"), strict=True):
        yield f(a, name)


# Methods of C that are bound at each read, iterators of ordered dicts -----------------------------


@trap(traces=1, hits=3)
def methods_of_a_module(compiled):
    def program(a):
        scale = operator.__getattribute__("mul")(2, 3)
        return a * scale if torch.backends.opt_einsum.is_available() in (True, False) else a

    f = compiled(program)
    for a in rows():
        yield f(a)


@trap(traces=2, hits=2)
def a_module_whose_attribute_changes(compiled):
    module = type(sys)("settings")
    module.factor = 2.0
    f = compiled(lambda a: a * module.__getattribute__("factor"))
    for place, a in enumerate(rows()):
        module.factor = 2.0 if place < 2 else 3.0
        yield f(a)


@trap(traces=1, hits=3)
def steps_of_an_ordered_dict(compiled):
    def program(a):
        name, number = next(iter(SETTINGS.items()))
        return a * number + sum(SETTINGS[key] for key in reversed(SETTINGS)), name

    f = compiled(program)
    for a in rows():
        yield f(a)


# Custom functions of autograd -----------------------------------------------------------------------------


class OfClass(torch.autograd.Function):
    @classmethod
    def forward(cls, ctx, x, dim=0):
        ctx.dim = dim
        return x - x.max(dim=dim, keepdim=True)[0]

    @classmethod
    def backward(cls, ctx, gradient):
        return gradient, None


class OfPartial(torch.autograd.Function):
    forward = staticmethod(functools.partial(lambda factor, ctx, x, dim: x.sum(dim) * factor, 3))


class OfObject(torch.autograd.Function):
    forward = torch.nn.Identity()

    @staticmethod
    def setup_context(ctx, given, result):
        ctx.dim = given[1]


OfObject.forward.forward = lambda x, dim: x.cumsum(dim)


@trap(traces=1, hits=3)
def forward_may_be_any_callable(compiled):
    f = compiled(lambda a: [function.apply(a, -1) * 2 for function in (OfClass, OfPartial, OfObject)])
    for a in rows():
        yield f(a)


# Sums of products -----------------------------------------------------------------------------

EQUATIONS = {
    "...abcd, ...abe -> ...cde": ((2, 3, 1, 5, 4), (2, 3, 1, 6)),
    "bij,bjk": ((2, 3, 4), (2, 4, 5)),
    "ba": ((2, 3),),
    "ij->j": ((3, 4),),
    "ij->": ((3, 4),),
    "ii->i": ((3, 3),),
    "ij,jk,kl->il": ((2, 3), (3, 4), (4, 5)),
    "i,j->ij": ((3,), (4,)),
    "ij,ij->": ((3, 4), (3, 4)),
    "ijk,jl->il": ((2, 3, 4), (3, 5)),
    "...ij,...jk->...ik": ((1, 2, 3), (5, 3, 4)),
    "i...,j...->ij...": ((2, 3, 4), (5, 3, 4)),
    "ij,kj->ik": ((3, 1), (5, 4)),
    ",ij->ij": ((), (2, 3)),
    "...,...->...": ((2, 3), (3,)),
    "bhqd,bhkd->bhqk": ((2, 2, 0, 4), (2, 2, 3, 4)),
}


@pytest.mark.parametrize("equation", EQUATIONS)
def test_einsum_is_what_it_is_under_eager(equation):
    @framefuse.compile(fullgraph=True)
    def program(*given):
        return torch.einsum(equation, *given) * 2

    for grown in (0, 0, 1):
        sizes = [tuple(size + grown * (size > 1) for size in each) for each in EQUATIONS[equation]]
        given = [torch.randn(each, dtype=torch.float64, requires_grad=True) for each in sizes]
        ours, eagers = program(*given), program.__wrapped__(*given)
        torch.testing.assert_close(ours, eagers)
        if ours.numel():
            weight = torch.randn(ours.shape, dtype=torch.float64)
            wanted = torch.autograd.grad((eagers * weight).sum(), given)
            torch.testing.assert_close(torch.autograd.grad((ours * weight).sum(), given), wanted)
    found = framefuse.explain(program)
    assert len(found.graphs) == 1 and found.hits == 2


@trap(traces=1, hits=3)
def tensors_that_have_their_common_sizes(compiled):
    def program(a):
        one, other = torch.broadcast_tensors(a, a.exp())
        return one, one is a, one + other

    f = compiled(program)
    for count in (4, 4, 6, 9):
        yield f(torch.randn(count, 5))


@trap(traces=3, hits=3)
def tensors_of_which_one_is_repeated(compiled):
    f = compiled(lambda a, b: [(part is a, part is b, part + 1) for part in torch.broadcast_tensors(a, b)])
    for first, second in ((4, 1), (5, 1), (5, 5), (7, 7), (1, 6), (1, 3)):
        yield f(torch.randn(first, 5), torch.randn(second, 5))


@trap(traces=1, hits=3)
def sizes_behind_einsum_are_known(compiled):
    def program(a, b):
        found = torch.einsum("...ab,...b->...a", a, b)
        return found.reshape(found.shape[0] * 2, -1).unfold(0, 2, 2).flatten(1) + 1

    f = compiled(program)
    for _ in range(4):
        yield f(torch.randn(3, 4, 5), torch.randn(3, 5))


@trap(traces=1, hits=3)
def rows_of_a_value_joined_with_itself(compiled):
    def program(a):
        angles = torch.einsum("i,j->ij", torch.arange(16).to(a.dtype), a)
        return torch.cat((angles, angles), -1)[..., -8:, :].cos()

    f = compiled(program)
    for a in rows(4, 8):
        yield f(a)


# Queries and flags of backends -----------------------------------------------------------------------------


@trap(traces=1, hits=3)
def bytes_of_a_tensor(compiled):
    f = compiled(lambda a: (a * a.nbytes, a[1:].nbytes, a.double().nbytes))
    for count in (4, 4, 6, 9):
        yield f(torch.randn(count, 5))


@trap(traces=1, hits=3)
def leaves_without_gradients(compiled):
    f = compiled(lambda a: a + 1 if a.is_leaf and (a * 2).is_leaf and a.grad_fn is None else a)
    for a in rows():
        yield f(a)


@trap(traces=1, hits=3)
def engines_of_quantized_tensors(compiled):
    f = compiled(lambda a: a * 2 if torch.backends.quantized.engine == "none" else a * 3)
    for a in rows():
        yield f(a)


@trap(traces=1, hits=3)
def sequences_of_tensors_are_joined(compiled):
    def program(a, step):
        kept = (a.contiguous(),)
        kept += (a * step,)
        turned = [kept[0].t().contiguous()]
        more = turned + turned + list(kept)
        more += (kept + kept) * 2
        return sum(part.sum() for part in more) + a.shape[0], a * step

    f = compiled(program)
    for number in range(4):
        yield f(torch.randn(3 + number, 5 + number), 2 + number)


class Version(str):
    """A text of a class of its own, as torch.__version__ is."""


class Renamed(str):
    """One that is another text where it is asked."""

    def __str__(self) -> str:
        return "10.2"


OWN = Version("1.2.30"), Version("7.8.9")
RENAMED = Renamed("4.5"), Renamed("77.77")
VERSIONS: dict[str, str] = {}


@trap(traces=4, hits=4)
def patterns_sought_in_texts_of_their_own_classes(compiled):
    """As libraries read torch.__version__."""

    def program(a):
        own = VERSIONS["own"]
        _, minor, patch = re.search(r"(\d+)\.(\d+)\.(\d+)", own).groups()
        known = re.match(r"\d+", torch.__version__).group() == str(torch.__version__).split(".")[0]
        parts = re.split("[.]", own) + re.findall(r"\d", VERSIONS["renamed"]) + [re.sub("[.]", "", own)]
        a = a * int(minor) + len(parts) * len(f"{own}-{VERSIONS['renamed']!s}")
        return a.sin() if known else a, patch, parts

    f = compiled(program)
    for number, a in enumerate(rows(8)):
        VERSIONS["own"] = OWN[number in (2, 4, 6)]
        VERSIONS["renamed"] = RENAMED[number in (5, 6)]
        yield f(a)


@pytest.mark.parametrize("backend", [torch.backends.cudnn, torch.backends.mkldnn])
def test_flags_of_a_backend_are_breaks_at_their_line(backend):
    def program(a):
        with backend.flags(enabled=False):
            found = a.sin() * 2, backend.enabled
        return found, backend.enabled

    compiled = framefuse.compile(program)
    for a in rows():
        ours, eagers = compiled(a), program(a)
        torch.testing.assert_close(ours[0][0], eagers[0][0])
        assert (ours[0][1], ours[1]) == (eagers[0][1], eagers[1])
    found = framefuse.explain(compiled)
    (stop,) = found.breaks  # as the block begins and as it ends
    assert linecache.getline(stop.line.file, stop.line.line).strip() == "with backend.flags(enabled=False):"
    assert len(found.graphs) == 3 and found.hits == 3


@TABLE.parametrize()
def test_trap(trap: Trap) -> None:
    hold(trap)
