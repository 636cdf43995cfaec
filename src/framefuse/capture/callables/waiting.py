"""What the program gets of functional collectives inside compiled code: a plain tensor, as other compilers give, rather
than one that waits when it is first used (where that is, the recording knows), and the sizes of groups.
"""

from __future__ import annotations

import functools

import torch.distributed as dist

from framefuse.capture.facts.questions import Question, answered
from framefuse.capture.interp.machine import Machine
from framefuse.capture.interp.registry import NAMED_EQUIVALENTS, special
from framefuse.capture.program.frame import Frame
from framefuse.capture.program.markers import MISSING, Outcome
from framefuse.capture.recording.functional_collectives import waited
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Arguments, Keywords, Value


def _is_plain(args: Arguments, kwargs: Keywords) -> bool:
    return len(args) == 1 and not kwargs


NAMED_EQUIVALENTS["torch.distributed._functional_collectives", "_maybe_wrap_tensor"] = (_is_plain, waited)

SIZE: Value = getattr(getattr(dist, "distributed_c10d", None), "_get_group_size_by_name", None)


@functools.cache
def _size_of(group: str) -> Question:
    """How many processes are in the group of this name."""
    return Question(functools.partial(SIZE, group))


@special(SIZE)
def _group_size(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    if len(args) != 1 or kwargs:
        return MISSING
    group = args[0]
    if is_a(group, dist.ProcessGroup):
        group = machine.attributes.attribute_now(frame, group, "group_name")
    if type(group) is not str:
        return MISSING
    frame.stack.append(answered(machine.recorder.sources, _size_of(group)))
    return None
