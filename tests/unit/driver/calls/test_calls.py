"""What one process recorded serves the next: its first call runs compiled code, and nothing is recorded."""

import collections
import contextvars
import dataclasses
import functools
import inspect
import logging
import os
import random
import subprocess
import sys

import pytest
import torch
from torch import nn

import framefuse
from framefuse.codegen.disk_cache import DiskCache
from framefuse.driver import passes
from framefuse.guards.program import build

HERE = sys.modules[__name__]
SCALE = 2.0
TABLE = {"relu": torch.relu, "gain": 3.0}
NAMES = frozenset(("left", "right"))
GAIN = contextvars.ContextVar("gain", default=2.0)


def helper(x, by=1.5):
    return x * by


def scaled(x):
    return helper(torch.relu(x)) * SCALE


def turned(x):
    return (x @ x.T).exp() + x.mT.sum(0, keepdim=True) + torch.view_as_complex(x.view(-1, 4, 2)).imag.sum()


@dataclasses.dataclass
class Answer:
    hidden: torch.Tensor
    more: torch.Tensor | None = None

    def __post_init__(self):
        self.given = [field.name for field in dataclasses.fields(self) if getattr(self, field.name) is not None]


def answered(x):
    """As models of transformers do: their results look at their fields, and chunked layers at a signature."""
    count = len(inspect.signature(tabled).parameters)
    answer = Answer(x.exp() * count)
    return answer.hidden + len(answer.given)


def tabled(x):
    return TABLE["relu"](x) * TABLE["gain"]


def chosen(x, name="left"):
    return x + 1 if name in NAMES else x - 1


def in_context(x):
    return x * GAIN.get()


def keyworded(x, *, by=(1.0, 2.0)):
    return x * by[0] + by[1]


def coded(x):
    return x * helper.__code__.co_argcount + len(helper.__code__.co_varnames)


@dataclasses.dataclass
class Config:
    width: int = 8
    act: str = "relu"
    eps: float = 1e-5


class Empty:
    by = 1.0


class Base(nn.Module):
    gain = 2.0
    kinds = ("a", "b")
    label: str

    @property
    def factor(self):
        return self.gain * 2

    @staticmethod
    def half(x):
        return x / 2

    @classmethod
    def third(cls, x):
        return x / (3 * len(cls.kinds))


def checked(function):
    @functools.wraps(function)
    def wrapper(self, *args, **kwargs):
        return function(self, *args, **kwargs) + 1

    return wrapper


class Block(Base):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.linear = nn.Linear(config.width, config.width)
        self.norm = nn.LayerNorm(config.width, eps=config.eps)
        self.acts = {"relu": torch.relu, "gelu": nn.functional.gelu}
        self.layers = nn.ModuleList(nn.Linear(config.width, config.width) for _ in range(2))
        self.register_buffer("offset", torch.ones(config.width))
        self.empty = Empty()  # whose dict is empty, and the one that it is

    @checked
    def forward(self, x, extra=None):
        x = self.acts[self.config.act](self.linear(x))
        for layer in self.layers:
            x = self.norm(layer(x)) * self.factor
        out = self.half(x) + self.third(x) + self.offset * self.empty.by
        return out if extra is None else out * extra


def validated(kind):
    """As decorators do that put a function of their own on a class, whose name says nothing of where it lies."""
    original = kind.__setattr__

    def __strict_setattr__(self, name, value):
        if not isinstance(value, kind.__validators__.get(name, object)):
            raise TypeError(name)
        original(self, name, value)

    kind.__setattr__ = __strict_setattr__
    return kind


@validated
@dataclasses.dataclass
class Strict:
    __validators__ = {"rate": int | float}

    rate: float = 1.0


class Writes(nn.Module):
    def __init__(self):
        super().__init__()
        self.strict = Strict()

    def forward(self, x):
        self.strict.rate = 2.5
        return x * self.strict.rate


@functools.lru_cache
def is_told(name):
    return name == "gain"


def tells(x):
    return x * 2 if is_told("gain") else x


def block():
    torch.manual_seed(3)
    return Block(Config()).eval()


def inputs(seed=0, rows=4):
    return (torch.randn(rows, 8, generator=torch.Generator().manual_seed(seed)),)


def first(drawer, target, args, **options):
    """Records a call, as the first process does."""
    framefuse_form = drawer.compile(target, **options)
    framefuse_form(*args)
    assert drawer.recorded == 1
    drawer.kept()


def second(drawer, make, args, found=True, **options):
    """Calls as a second process does, with a target of its own; says whether the call was found."""
    target = make()
    fast = drawer.compile(target, **options)
    torch.testing.assert_close(fast(*args), target(*args))
    assert drawer.recorded == (0 if found else 1)
    assert framefuse.explain(fast).hits == (1 if found else 0)
    more = tuple(part * 2 + 1 if isinstance(part, torch.Tensor) else part for part in args)
    hits = framefuse.explain(fast).hits
    torch.testing.assert_close(fast(*more), target(*more))
    assert framefuse.explain(fast).hits == hits + 1
    drawer.kept()
    return fast


# ---- what is found ---------------------------------------------------------------------------------------------------


def closing(over):
    def inner(x):
        return x * over

    return inner


MAKERS = {
    "function": lambda: scaled,
    "attributes of tensors": lambda: turned,
    "signatures and fields": lambda: answered,
    "table": lambda: tabled,
    "frozenset": lambda: chosen,
    "context variable": lambda: in_context,
    "keywords": lambda: keyworded,
    "code": lambda: coded,
    "closure": lambda: closing(4.0),
    "module": block,
    "recurrent": lambda: nn.LSTM(8, 4, 2).eval(),
    "parametrized": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)).eval(),
    "a function that lies on a class": Writes,
    "a cached function": lambda: tells,
    "sequential": lambda: nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8)).eval(),
    "encoder": lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(),
}


@pytest.mark.parametrize(
    ("name", "grad"), [*((name, False) for name in MAKERS), ("function", True), ("closure", True), ("module", True)]
)
def test_a_second_process_records_nothing(name, grad, drawer):
    args = (inputs()[0][None],) if name == "encoder" else inputs()
    with torch.set_grad_enabled(grad):
        first(drawer, MAKERS[name](), args)
        fast = second(drawer, MAKERS[name], tuple(part.flip(0) for part in args))
    report = framefuse.explain(fast)
    assert "found" in str(report) and "capture" not in str(report)


def test_guards_are_those_of_the_file_and_say_why_they_miss(drawer, monkeypatch):
    """Nothing is built anew, and the program is the one that would have been built: every instruction and reason."""
    first(drawer, block(), inputs())
    built = []
    monkeypatch.setattr(passes, "build", lambda *args, **kwargs: built.append(1) or build(*args, **kwargs))
    fast = second(drawer, block, inputs(1))
    assert not built
    (product,) = framefuse.runtime.function.compiled_function(fast).products
    stages, program = product.stages, product.stages.guards.program
    anew = build(stages.assumptions, sources=stages.guards.register_of)
    assert (program.state, program.registers, program.numbers) == (
        anew.program.state, anew.program.registers, anew.program.numbers
    )  # fmt: skip
    assert stages.guards.number_of == anew.number_of and stages.guards.register_of == anew.register_of
    for ours, other in zip(program.instructions, anew.program.instructions, strict=True):
        if ours[0] == "version":
            assert ours[1] == other[1] and ours[2][0] == other[2][0] and ours[2][1](ours[2][1].kind)
        else:
            assert all(left is right or left == right for left, right in zip(ours, other, strict=True)), ours
    assert list(program.texts) == list(anew.program.texts)
    fast.norm.eps = 1e-3
    torch.testing.assert_close(fast(*inputs(2)), fast.forward(*inputs(2)))
    assert "eps" in str(framefuse.explain(fast))


PAIR = ((1.0, "relu"), Config())


def paired(x):
    (gain, name), config = PAIR
    return getattr(torch, name)(x) * gain * config.eps


@pytest.mark.parametrize("pair", [((2.0, "relu"), Config()), ((1.0, "tanh"), Config()), ((1.0, "relu"), Config(eps=1))])
def test_what_a_tuple_holds_is_compared_before_kept_guards_are_used(pair, drawer, monkeypatch):
    first(drawer, paired, inputs())
    monkeypatch.setattr(HERE, "PAIR", pair)
    second(drawer, lambda: paired, inputs(), found=False)


def test_gradients_of_a_found_call(drawer):
    def gradients(run, module, seed):
        module.zero_grad()
        run(*inputs(seed)).square().mean().backward()
        return [each.grad.clone() for each in module.parameters()]

    module = block().train()
    fast = drawer.compile(module)
    for seed in (0, 3):  # the first call is eager's own
        gradients(fast, module, seed)
    drawer.kept()
    module = block().train()
    fast = drawer.compile(module)
    for seed in (1, 2):
        torch.testing.assert_close(gradients(fast, module, seed), gradients(module, module, seed))
    assert not drawer.recorded and framefuse.explain(fast).hits == 2
    stages = framefuse.runtime.function.compiled_function(fast).products[0].stages
    (derivative,) = stages.derivatives
    assert derivative.cases and all("fuse" not in case.seconds for case in derivative.cases)


def test_writes_and_effects_of_a_found_call(drawer):
    class Counter:
        def __init__(self):
            self.seen, self.total, self.calls = [], torch.zeros(8), 0

    def step(counter, x):
        counter.total.add_(x.sum(0))
        counter.seen.append(x * 2)
        counter.calls += 1
        return collections.OrderedDict(total=counter.total + 1, all=counter.seen)

    drawer.compile(step)(Counter(), *inputs())
    drawer.kept()
    fast = drawer.compile(step)
    for seed in (1, 2):
        ours, eager = Counter(), Counter()
        given, expected = fast(ours, *inputs(seed)), step(eager, *inputs(seed))
        assert type(given) is type(expected)
        torch.testing.assert_close(dict(given), dict(expected))
        torch.testing.assert_close(ours.total, eager.total)
        assert ours.calls == eager.calls and len(ours.seen) == len(eager.seen)
    assert not drawer.recorded and framefuse.explain(fast).hits == 2


def test_random_numbers_of_a_found_call(drawer):
    def dropped(x):
        return nn.functional.dropout(x * 2, 0.5) + torch.rand(8)

    first(drawer, dropped, inputs())
    fast = drawer.compile(dropped)
    for seed in (5, 6):
        torch.manual_seed(seed)
        expected = dropped(*inputs(seed))
        torch.manual_seed(seed)
        torch.testing.assert_close(fast(*inputs(seed)), expected)
    assert not drawer.recorded and framefuse.explain(fast).hits == 2


def test_other_sizes_and_settings_are_other_calls(drawer):
    first(drawer, scaled, inputs())
    for grad, given in ((True, inputs(rows=7)), (False, inputs()), (True, (inputs()[0].double(),))):
        with torch.set_grad_enabled(grad):
            second(drawer, lambda: scaled, given, found=False)
            second(drawer, lambda: scaled, given)
    assert len(drawer.kept()) == 4


def test_further_cases_are_recorded_and_found(drawer):
    for turn in range(2):
        fast = drawer.compile(closing(2.0))
        for rows in (4, 5, 6):
            torch.testing.assert_close(fast(*inputs(rows=rows)), inputs(rows=rows)[0] * 2)
        assert drawer.recorded == (0 if turn else 1)
        drawer.kept()


# ---- what has changed ------------------------------------------------------------------------------------------------


def other_helper(x, by=1.5):
    return x - by


def other_defaults(x, by=2.5):
    return x * by


CHANGES = {
    "the code of a function": lambda patch: patch.setattr(helper, "__code__", other_helper.__code__),
    "a function": lambda patch: patch.setattr(HERE, "helper", other_helper),
    "a default": lambda patch: patch.setattr(helper, "__defaults__", (2.5,)),
    "a function with another default": lambda patch: patch.setattr(HERE, "helper", other_defaults),
    "a number": lambda patch: patch.setattr(HERE, "SCALE", 5.0),
    "the type of a number": lambda patch: patch.setattr(HERE, "SCALE", 2),
    "a function of torch": lambda patch: patch.setattr(torch, "relu", torch.sigmoid),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_function_is_recorded_again(change, drawer, monkeypatch):
    first(drawer, scaled, inputs())
    with monkeypatch.context() as patch:
        CHANGES[change](patch)
        second(drawer, lambda: scaled, inputs(1), found=False)
        second(drawer, lambda: scaled, inputs(1))
    second(drawer, lambda: scaled, inputs(1), found=False)


def test_another_signature_or_field_is_recorded_again(drawer, monkeypatch):
    wider = dataclasses.make_dataclass("Wider", [("other", object, None)], bases=(Answer,))
    with torch.no_grad():
        first(drawer, answered, inputs())
        with monkeypatch.context() as patch:
            patch.setattr(tabled, "__wrapped__", chosen, raising=False)  # of two parameters
            second(drawer, lambda: answered, inputs(1), found=False)
        with monkeypatch.context() as patch:
            patch.setattr(HERE, "Answer", wider)
            second(drawer, lambda: answered, inputs(1), found=False)


def test_an_attribute_of_tensors_that_a_program_replaces_is_recorded_again(drawer, monkeypatch):
    with torch.no_grad():
        first(drawer, turned, inputs(rows=8))
        monkeypatch.setattr(torch.Tensor, "T", property(lambda self: self.mT * 2), raising=False)
        second(drawer, lambda: turned, inputs(1, rows=8), found=False)


@pytest.mark.parametrize(
    ("function", "name", "value"),
    [
        (tabled, "TABLE", {"relu": torch.relu, "gain": 4.0}),
        (tabled, "TABLE", {"relu": torch.sigmoid, "gain": 3.0}),
        (chosen, "NAMES", frozenset(("right", "middle"))),
        (in_context, "GAIN", contextvars.ContextVar("gain", default=3.0)),
    ],
)
def test_another_object_is_recorded_again(function, name, value, drawer, monkeypatch):
    first(drawer, function, inputs())
    monkeypatch.setattr(HERE, name, value)
    second(drawer, lambda: function, inputs(1), found=False)


def of_module(change):
    def make():
        module = block()
        change(module)
        return module

    return make


class Louder(nn.Linear):
    def forward(self, x):
        return super().forward(x) * 10


def swap(module):
    module.layers[0] = Louder(8, 8)


def share(module):
    module.layers[1] = module.layers[0]


MODULES = {
    "a setting": lambda module: setattr(module.config, "act", "gelu"),
    "a function in a dict": lambda module: module.acts.update(relu=torch.sigmoid),
    "another eps": lambda module: setattr(module.norm, "eps", 0.5),
    "a class of a part": swap,
    "one more part": lambda module: module.layers.append(nn.Linear(8, 8)),
    "a hook": lambda module: module.linear.register_forward_hook(lambda module, args, out: out + 1),
    "a method": lambda module: setattr(module, "half", lambda x: x / 7),
    "a buffer": lambda module: setattr(module, "offset", torch.ones(1)),
    "one part in two places": share,
}


@pytest.mark.parametrize("change", MODULES)
def test_a_changed_module_is_recorded_again(change, drawer):
    with torch.no_grad():
        first(drawer, block(), inputs())
        second(drawer, of_module(MODULES[change]), inputs(1), found=False)


def test_other_code_that_is_looked_at_is_recorded_again(drawer, monkeypatch):
    first(drawer, coded, inputs())
    monkeypatch.setattr(helper, "__code__", (lambda x, by, more=3: x).__code__)
    second(drawer, lambda: coded, inputs(1), found=False)


def test_parts_that_were_one_and_are_two(drawer):
    with torch.no_grad():
        first(drawer, of_module(share)(), inputs())
        second(drawer, block, inputs(1), found=False)


CLASSES = {
    "a number": lambda patch: patch.setattr(Base, "gain", 3.0),
    "a tuple": lambda patch: patch.setattr(Base, "kinds", ("a", "b", "c")),
    "a property": lambda patch: patch.setattr(Base, "factor", property(lambda self: 5.0)),
    "a static method": lambda patch: patch.setattr(Base, "half", staticmethod(lambda x: x / 5)),
    "a class method": lambda patch: patch.setattr(Base, "third", classmethod(lambda cls, x: x / 9)),
    "a method below": lambda patch: patch.setattr(Block, "half", staticmethod(lambda x: x / 5), raising=False),
    "a method of torch": lambda patch: patch.setattr(nn.LayerNorm, "forward", lambda self, x: x * 2),
    "what makes attributes": lambda patch: patch.setattr(Base, "__getattr__", nn.Module.__getattr__, raising=False),
    "what it says of itself": lambda patch: patch.setattr(Base, "__doc__", "Another sentence."),
    "an annotation": lambda patch: patch.setitem(Base.__annotations__, "extra", int),
}


@pytest.mark.parametrize("change", CLASSES)
def test_a_changed_class_is_recorded_again(change, drawer, monkeypatch):
    with torch.no_grad():
        first(drawer, block(), inputs())
        CLASSES[change](monkeypatch)
        second(drawer, block, inputs(1), found=False)


def test_a_changed_closure_is_recorded_again(drawer):
    first(drawer, closing((1.0, 2.0)[1]), inputs())
    second(drawer, lambda: closing(3.0), inputs(1), found=False)


# ---- what is not kept ------------------------------------------------------------------------------------------------


def looks_at_addresses(x):
    return x * (id(TABLE) % 7)


def looks_at_hashes(x):
    return x * (hash("left") % 7)


def walks_a_set(x):
    for number, name in enumerate({"left", "right", "middle"}):
        x = x * (number + 1) if name == "left" else x
    return x


def shows_a_function(x):
    return x * len(f"{helper}")


def breaks(x):
    return x + 1 if x.sum().item() > 0 else x - 1


@pytest.mark.parametrize("function", [looks_at_addresses, looks_at_hashes, walks_a_set, shows_a_function, breaks])
def test_what_is_of_one_process_is_not_kept(function, drawer):
    drawer.compile(function)(*inputs())
    assert not drawer.kept()


def test_what_is_taken_for_constant_is_not_kept(drawer):
    @framefuse.assume_constant_result
    def number():
        return 3.0

    drawer.compile(lambda x: x * number())(*inputs())
    assert not drawer.kept()


@pytest.mark.parametrize("options", [{"cache": False}, {"check": True}, {"verify": True}])
def test_options_that_leave_the_folder_alone(options, drawer):
    drawer.compile(scaled, **options)(*inputs())
    assert not drawer.kept()


def test_a_call_is_found_under_the_passes_that_it_was_recorded_with(drawer):
    first(drawer, scaled, inputs())
    with framefuse.register_pass("lowered", lambda graph: None, version="1"):
        second(drawer, lambda: scaled, inputs(), found=False)
        second(drawer, lambda: scaled, inputs())
    second(drawer, lambda: scaled, inputs())


def test_an_error_of_the_program_is_its_own(drawer):
    first(drawer, closing(2.0), inputs())
    fast = drawer.compile(closing(2.0))
    with pytest.raises(TypeError, match="positional"):
        fast()
    with pytest.raises(TypeError):
        drawer.compile(closing("text"))(*inputs())


# ---- damage ----------------------------------------------------------------------------------------------------------


def test_a_missing_program_is_made_again_and_no_object_is_missed(drawer):
    first(drawer, scaled, inputs())
    for folder in (drawer.programs, drawer.objects.disk):
        for name in folder.names():
            folder.remove(name)
        drawer.objects._objects.clear()
        drawer.objects._by_name.clear()
        second(drawer, lambda: scaled, inputs(1))


@pytest.mark.parametrize("content", [b"", b"no records", b"\xfb" * 40], ids=["empty", "text", "noise"])
def test_what_cannot_be_read_is_recorded_again(content, drawer, caplog):
    first(drawer, scaled, inputs())
    (name,) = drawer.kept()
    drawer.calls.write(name, content)
    with caplog.at_level(logging.INFO):
        second(drawer, lambda: scaled, inputs(1), found=False)
    assert not caplog.records
    second(drawer, lambda: scaled, inputs(1))


def test_flipped_bits_are_a_recording(drawer, caplog):
    first(drawer, scaled, inputs())
    (name,) = drawer.kept()
    path = drawer.calls.folder / f"{name}.o"
    whole = path.read_bytes()
    chosen_places = random.Random(1).sample(range(8 * len(whole)), 20)
    for place in chosen_places:
        damaged = bytearray(whole)
        damaged[place // 8] ^= 1 << place % 8
        path.write_bytes(damaged)
        second(drawer, lambda: scaled, inputs(1), found=False)
        path.write_bytes(whole)
    for length in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        second(drawer, lambda: scaled, inputs(1), found=False)
    assert not caplog.records


def test_the_call_of_another_is_not_taken_for_ours(drawer):
    """Whatever is filed under a key, guards and descriptions decide."""
    first(drawer, closing(2.0), inputs())
    (ours,) = drawer.kept()
    data = drawer.calls.read(ours)
    first(drawer, scaled, inputs())
    (theirs,) = set(drawer.kept()) - {ours}
    drawer.calls.write(theirs, data)
    second(drawer, lambda: scaled, inputs(1), found=False)


# ---- processes -------------------------------------------------------------------------------------------------------

SCRIPT = """
import os, sys, torch
torch.set_num_threads(1)
import framefuse
from framefuse.backends.registry import own
from framefuse.driver import tree
from framefuse.driver.programs import later
from framefuse.driver.wiring import load_stages
from torch import nn

recorded = []
record = tree.record
def counted(*args, **kwargs):
    recorded.append(args)
    return record(*args, **kwargs)
tree.record = counted

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(8, 8), nn.LayerNorm(8)])

    def forward(self, x):
        for part in self.parts:
            x = nn.functional.gelu(part(x))
        return {"out": x, "mean": x.mean(-1)}

def work():
    net = Net()
    fast = framefuse.compile(net)
    for rows in (4, 4):
        x = torch.randn(rows, 8)
        with torch.no_grad():
            ours, theirs = fast(x), net(x)
            # assert_close would import torch.distributed, most of the time of a process
            assert all(torch.allclose(ours[name], theirs[name], 1e-4, 1e-5) for name in ("out", "mean"))
    found = not recorded
    assert framefuse.explain(fast).hits == 1 + found
    os.write(1, b"found\\n" if found else b"made\\n")
    later.PROCESS.finish()

own("native")  # imported once, as the stages and the report are, for all children
load_stages()
import framefuse.explain.report
children = []
for _ in range(int(sys.argv[1])):
    child = os.fork()
    if not child:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    children.append(child)
assert all(os.waitpid(child, 0)[1] == 0 for child in children)
"""


def processes(tmp_path, count, seed="random"):
    """What so many processes found that run at once."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {
        **os.environ, "XDG_CACHE_HOME": str(tmp_path / "user"), "FRAMEFUSE_CHECK": "0", "PYTHONHASHSEED": seed
    }  # fmt: skip
    command = [sys.executable, str(script), str(count)]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert answer.returncode == 0 and not answer.stderr, answer.stderr
    lines = answer.stdout.split()
    assert len(lines) == count
    return lines


def test_processes_with_other_hash_seeds_find_the_call(tmp_path):
    assert processes(tmp_path, 1, "1") == ["made"]
    assert processes(tmp_path, 1, "2") == ["found"]
    assert processes(tmp_path, 1) == ["found"]


def test_eight_processes_at_once_share_a_folder(tmp_path):
    assert set(processes(tmp_path, 8)) <= {"made", "found"}
    kept = DiskCache(tmp_path / "user" / "framefuse" / "calls")
    assert len(kept.names()) == 1 and all(kept.read(name) is not None for name in kept.names())
    assert processes(tmp_path, 8) == ["found"] * 8
