"""Writes the smallest program whose writes to attributes, variables and lists are not made, as a test."""

from __future__ import annotations

import types
from dataclasses import dataclass

import torch

from framefuse import api
from framefuse.ir.values import Keywords, Value

CALLS = 3
WRITES = {  # by what is written, with what it holds after the calls
    "given.count += 1": f"given.count == {CALLS}",
    "given.all.append(1)": f"given.all == {[1] * CALLS}",
    "given.count = given.count + x.shape[0]": f"given.count == {2 * CALLS}",
}


@dataclass(frozen=True, slots=True)
class EffectCase:
    """A function of a tensor that writes what another object holds."""

    about: str
    write: str

    @property
    def text(self) -> str:
        """The case as a file that runs and is a test."""
        return "\n".join(
            [
                f'"""capture: {self.about} is not written"""',
                "import types",
                "",
                "import torch",
                "",
                "import framefuse",
                "",
                *self._lines,
                "",
                "",
                "def test_what_eager_writes_is_written():",
                "    fast = framefuse.compile(f)",
                f"    for _ in range({CALLS}):",
                "        fast(torch.ones(2))",
                f"    assert {WRITES[self.write]}",
                "",
            ]
        )

    @property
    def _lines(self) -> tuple[str, ...]:
        given = "given = types.SimpleNamespace(count=0, all=[])"
        return given, "", "", "def f(x):", f"    {self.write}", "    return x * 2"

    def shows(self, options: Keywords) -> bool:
        """Whether compiled calls leave the write out."""
        space: dict[str, Value] = {"types": types}
        exec(compile("\n".join(self._lines), f"<{self.about}>", "exec"), space)
        fast = api.compile(space["f"], options=options)
        for _ in range(CALLS):
            fast(torch.ones(2))
        return not eval(WRITES[self.write], space)


def effect_case(about: str, options: Keywords) -> EffectCase | None:
    """The first case that shows that writes are not made; None where no case does."""
    return next((case for case in (EffectCase(about, write) for write in WRITES) if case.shows(options)), None)
