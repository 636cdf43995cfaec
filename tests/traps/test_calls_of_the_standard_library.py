"""What functions of Python's standard library give is part of the graph where their arguments decide it, and is what
eager has where something else does: a clock, a context, an object that lives on.
"""

from __future__ import annotations

import ast
import base64
import cmath
import datetime
import decimal
import fractions
import hashlib
import io
import json
import math
import pathlib
import pickle
import random
import statistics
import string
import struct
import sys
import textwrap
import time
import unicodedata
import uuid
import zlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.traps.trap import Table, Trap, hold

import framefuse

DECIDED: dict[str, Callable[[Any, int], Any]] = {
    "struct": lambda x, k: (struct.unpack("<I", struct.pack("<I", k))[0] * x, LAYOUT.unpack(LAYOUT.pack(k, -k)), x + 1),
    "json": lambda x, k: (json.dumps({"a": [k, None, True], "b": {"c": 1.5}}, indent=k), json.loads("[1, {}]"), x * 2),
    "decimal": lambda x, k: (float(decimal.Decimal("1.5") * k - 1) * x, decimal.Decimal(k), -decimal.Decimal(k)),
    "fraction": lambda x, k: (float(fractions.Fraction(k, 3) + 1) * x, fractions.Fraction(k, 4)),
    "dates": lambda x, k: (x * k, (EPOCH + datetime.timedelta(days=k)).isoformat(), EPOCH.replace(year=2000 + k)),
    "timedelta": lambda x, k: (datetime.timedelta(seconds=k) / HOUR * x, HOUR * k, str(HOUR + HOUR * k), HOUR > HOUR),
    "datetime": lambda x, k: (x * datetime.datetime(2020, 1, k, tzinfo=datetime.UTC).day, f"{EPOCH}", x),
    "fromisoformat": lambda x, k: (x * datetime.date.fromisoformat(f"2020-01-0{k}").toordinal(), x),
    "cmath": lambda x, k: cmath.exp(1j * k).real * x,
    "digest": lambda x, k: (x * len(hashlib.md5(str(k).encode()).hexdigest()), hashlib.sha256(bytes([k])).digest()),
    "digest that grows": lambda x, k: (x * digest(k), x),
    "base64": lambda x, k: (base64.b64encode(bytes([k, 1])), x * len(base64.b64decode("YWI="))),
    "zlib": lambda x, k: (zlib.crc32(bytes([k])) % 7 * x, zlib.decompress(zlib.compress(b"ab" * k)), x),
    "pickle": lambda x, k: (pickle.loads(pickle.dumps((k, "a", [1])))[0] * x, x),
    "statistics": lambda x, k: (statistics.mean([1, 2, k]) * x, statistics.median([1, k]), statistics.stdev([1, k])),
    "textwrap": lambda x, k: (textwrap.wrap("aa bb cc", 2 * k), x * k),
    "template": lambda x, k: (string.Template("$a is").substitute(a=k), x),
    "file in memory": lambda x, k: (x * written(k), io.BytesIO(b"abc").read(k)),
    "literal": lambda x, k: (ast.literal_eval(f"[{k}, 2]")[0] * x, ast.literal_eval("{'a': (1,)}")),
    "unicode": lambda x, k: (unicodedata.name(chr(65 + k)), x),
    "uuid": lambda x, k: (uuid.UUID(int=k).hex, uuid.UUID(int=k), uuid.uuid5(uuid.NAMESPACE_DNS, str(k)), x + 1),
    "path": lambda x, k: (pathlib.Path("/a/b.txt").stem, str(ROOT / f"{k}.txt"), ROOT / "b", x * len(ROOT.parts)),
    "path of names": lambda x, k: (pathlib.PurePosixPath("a", str(k)).with_suffix(".x").as_posix(), x),
    "random": lambda x, k: random.Random(k).random() * x,
    "random that goes on": lambda x, k: (x * drawn(k), x),
    "random of tensors": lambda x, k: random.Random(k).choice([x, x * 2, x * 3, x * 4]),
    "shuffled": lambda x, k: shuffled(x, k),
    "version": lambda x, k: x * (sys.version_info >= (3, 8)) * k * (sys.getrecursionlimit() > 10),
    "error": lambda x, k: x * (failed(lambda: json.loads("[" * k)) + failed(lambda: struct.pack("B", 254 + k))),
}
EPOCH = datetime.date(2020, 1, 1)
HOUR = datetime.timedelta(hours=1)
LAYOUT = struct.Struct("<Ii")
ROOT = pathlib.Path("/words/of")


def digest(k: int) -> int:
    whole = hashlib.sha1(b"a")
    other = whole.copy()
    for step in range(k):
        whole.update(bytes([step]))
    return whole.digest()[0] + other.digest()[1]


def written(k: int) -> int:
    file = io.StringIO()
    file.write("ab" * k)
    file.write(str(k))
    file.seek(1)
    return len(file.read())


def drawn(k: int) -> float:
    source = random.Random(k)
    state = source.getstate()
    first = source.gauss(0, 1) + source.uniform(1, 2) + source.randint(0, 9)
    source.setstate(state)
    return first + source.random() + len(source.sample(range(9), 3)) + source.choices([1, 2, 3], k=2)[0]


def shuffled(x: Any, k: int) -> Any:
    parts = [x, x * 2, x * 3]
    random.Random(k).shuffle(parts)
    return parts


def failed(call: Callable[[], Any]) -> int:
    try:
        call()
    except (ValueError, struct.error) as error:
        return len(str(error))
    return 1


@pytest.mark.parametrize("name", DECIDED)
def test_what_arguments_decide_is_part_of_the_graph(name: str) -> None:
    def program(compiled: Any) -> Any:
        f = compiled(DECIDED[name])
        for k in (1, 2, 3, 2, 1, 3):
            yield f(torch.arange(3.0) - k, k)
        if f is not DECIDED[name]:
            state = framefuse.explain(f)
            assert not state.breaks, str(state)

    hold(Trap(program, 6, 2))


TRAPS = Table()


@TRAPS.trap(traces=3, hits=3)
def what_is_given_is_new_at_each_call(compiled: Any) -> Any:
    @compiled
    def f(x: Any) -> Any:
        found = json.loads('{"a": [1]}')
        found["x"] = x + 1
        return found, json.loads("[]")

    for _ in range(5):
        given, empty = f(torch.ones(2))
        given["a"].append(2)
        empty.append(3)
        yield given, empty


@TRAPS.trap(traces=9, hits=0)
def a_generator_that_lives_goes_on(compiled: Any) -> Any:
    source = random.Random(3)
    f = compiled(lambda x: x * source.random() + random.Random(4).random())
    for _ in range(4):
        yield f(torch.ones(2))
    source.seed(3)
    yield f(torch.ones(2)), source.random()


@TRAPS.trap(traces=9, hits=0)
def a_generator_that_is_given_goes_on(compiled: Any) -> Any:
    f = compiled(lambda x, source: (x * source.random(), source.sample(range(9), 2)))
    source = random.Random(3)
    for _ in range(4):
        yield f(torch.ones(2), source)
    yield f(torch.ones(2), random.Random(5))


@TRAPS.trap(traces=9, hits=0)
def objects_that_leave(compiled: Any) -> Any:
    @compiled
    def f(x: Any, k: int) -> Any:
        source, file, digest = random.Random(k), io.StringIO("ab"), hashlib.md5(bytes([k]))
        digest.update(b"c")
        source.random()
        file.seek(1)
        kept.append((source, file))
        return x + 1, source, file, digest, string.Template("$a"), datetime.UTC

    kept: list[Any] = []
    for k in (1, 2, 1, 2, 3):
        y, source, file, digest, template, zone = f(torch.ones(2), k)
        assert kept[-1] == (source, file)
        digest.update(b"d")
        yield y, source.random(), file.read(), digest.hexdigest(), template.substitute(a=k), zone
        yield source.random(), file.write("z"), file.getvalue()
        yield [(one.random(), other.getvalue()) for one, other in kept]


@TRAPS.trap(traces=9, hits=0)
def objects_over_a_break(compiled: Any) -> Any:
    @compiled
    def f(x: Any, k: int) -> Any:
        source, file, digest = random.Random(k), io.StringIO(), hashlib.md5(bytes([k]))
        file.write("ab")
        first = source.random() * x
        number = (x + k).sum().tolist()
        digest.update(str(number).encode())
        file.write(str(number))
        day = datetime.date(2020, 1, k)
        return first + source.random(), file.getvalue(), digest.hexdigest(), day + datetime.timedelta(int(number))

    for k in (1, 2, 1, 2, 3):
        yield f(torch.ones(2), k)


@TRAPS.trap(traces=15, hits=3)
def decimals_follow_their_context(compiled: Any) -> Any:
    @compiled
    def f(x: Any, k: int) -> Any:
        third = decimal.Decimal(k) / 3
        return x * float(third), str(third), decimal.Decimal("2.5") * k

    for precision in (28, 5, 5, 3, 28):
        for k in (1, 6, 2):
            with decimal.localcontext() as context:
                context.prec = precision
                result = f(torch.ones(2), k)
                flags = [signal.__name__ for signal, raised in context.flags.items() if raised]
            yield result, flags


@TRAPS.trap(traces=9, hits=0)
def clocks_go_on(compiled: Any) -> Any:
    f = compiled(lambda x: (x + 1, datetime.datetime.now(), datetime.datetime.fromtimestamp(time.time()), time.time()))
    before = f(torch.ones(2))
    for _ in range(3):
        after = f(torch.ones(2))
        yield [one < other for one, other in zip(before[1:], after[1:], strict=True)]
        before = after


@TRAPS.trap(traces=9, hits=0)
def zones_of_the_process_are_read(compiled: Any) -> Any:
    f = compiled(lambda x: x * (datetime.datetime(2020, 1, 1).timestamp() % 86400 + 1))
    old = time.tzname
    for zone in ("UTC", "EST5", "UTC", "EST5"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TZ", zone)
            time.tzset()
            yield f(torch.ones(2))
    time.tzset()
    assert old


@TRAPS.trap(traces=9, hits=0)
def containers_that_change(compiled: Any) -> Any:
    f = compiled(lambda x, given: (x * len(json.dumps(given)), statistics.mean(given["a"])))
    given: dict[str, Any] = {"a": [1, 2]}
    for value in (3, 4, 2.5, 5):
        given["a"].append(value)
        yield f(torch.ones(2), given)
    yield f(torch.ones(2), {"a": [7]})


@TRAPS.trap(traces=9, hits=0)
def texts_that_are_given(compiled: Any) -> Any:
    f = compiled(lambda x, text: x * json.loads(text)["a"])
    for text in ('{"a": 1}', '{"a": 2}', '{"a": 3}', '{"a": 1}'):
        yield f(torch.ones(2), text)
    try:
        f(torch.ones(2), "{")
    except json.JSONDecodeError as error:
        yield str(error)


@TRAPS.trap(traces=8, hits=15)
def numbers_that_go_on(compiled: Any) -> Any:
    f = compiled(lambda x, step: (x * random.Random(step).random(), json.dumps({"step": step}), math.gcd(step, 12)))
    for step in range(20):
        yield f(torch.ones(2), step)


@TRAPS.trap(traces=6, hits=10)
def functions_of_numbers_that_go_on(compiled: Any) -> Any:
    f = compiled(lambda x, step: x * math.gcd(step, 12))
    for step in range(20):
        yield f(torch.ones(2), step)


@TRAPS.trap(traces=9, hits=0)
def functions_that_are_handed_over(compiled: Any) -> Any:
    seen: list[int] = []

    def default(value: Any) -> str:
        seen.append(len(seen))
        return str(len(seen))

    f = compiled(lambda x: (x + 1, json.dumps({"a": {1, 2}}, default=default)))
    for _ in range(4):
        yield f(torch.ones(2)), list(seen)


class Own(random.Random):
    def random(self) -> float:
        self.drawn = getattr(self, "drawn", 0) + 1
        return 0.25 * self.drawn


@TRAPS.trap(traces=9, hits=0)
def a_class_of_the_program(compiled: Any) -> Any:
    @compiled
    def f(x: Any, k: int) -> Any:
        source = Own(k)
        return x * source.random() * source.uniform(1, 2)

    for k in (1, 2, 1):
        yield f(torch.ones(2), k)


@TRAPS.trap(traces=9, hits=0)
def tensors_among_the_values(compiled: Any) -> Any:
    f = compiled(lambda x: (statistics.median([x.sum(), x.max()]), x + 1))
    for number in range(4):
        yield f(torch.arange(3.0) - number)


@TRAPS.trap(traces=9, hits=0)
def numbers_of_the_caller_that_move(compiled: Any) -> Any:
    f = compiled(lambda x, d, when: (x * d, when + datetime.timedelta(d), decimal.Decimal(d) + 1))
    for number in (1.5, 2.5, 0.25, 3.0):
        yield f(torch.ones(2), number, datetime.date(2020, 1, 1 + int(number)))


@TRAPS.parametrize()
def test_calls_of_the_standard_library(trap: Trap) -> None:
    hold(trap)
