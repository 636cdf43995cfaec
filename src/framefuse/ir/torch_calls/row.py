"""The columns of the table of torch's functions."""

from __future__ import annotations

from typing import NamedTuple


class Statistics(NamedTuple):
    """The running statistics that a norm writes: mean and variance stand at ``place`` and behind it, or under these
    ``names``. They are written where the flag at ``when`` (or of the name ``flag``) is set, or always where ``when`` is
    None. ``counted`` says that the write counts a version.
    """

    place: int
    when: int | None
    flag: str = "training"
    default: bool = False
    counted: bool = False
    names: tuple[str, str] = ("running_mean", "running_var")


class TorchCall(NamedTuple):
    """What is known of a torch function. A function without a row computes tensors of tensors, and what its name says
    of writes holds (``add_`` writes its first operand).
    """

    # ---- in a recording ----
    answer: str = ""  # how a recording answers it: a row of capture/recording/queries.py
    stop: str = ""  # why it is not recorded: a row of ir/stops.py
    silent: bool = False  # no operator: tells how torch stands, changes nothing that lasts, and is not recorded
    device_fact: bool = False  # silent in torch.cuda and its kin: what a process finds out about its devices once
    view: bool = False  # an attribute whose value is a tensor
    reads_element: bool = False  # reads the one element of a tensor
    kind: type | None = None  # what it makes of the element that it reads; None where that is the tensor's own type

    # ---- what it does beside computing ----
    draws: bool = False  # may draw random numbers
    generator: bool = False  # sets or reads the state of a generator: keeps its place among the calls that draw
    checks: bool = False  # gives no tensor; made for its check, which is repeated at run time
    writes_first: bool = False  # writes its first operand, which its name does not say
    resizes: bool = False  # changes sizes and strides of its operand in place, and no element
    statistics: Statistics | None = None  # the operands that it writes, where its name does not say that it writes
    uncounted: bool = False  # its write counts no version
    repeats: bool = False  # of one that writes: made again, it leaves the same, as long as no flag or word is given

    # ---- its result ----
    data: str = ""  # when values decide sizes of the result: a row of ir/torch_calls/sizes.py
    sizes: int | None = None  # the place of the first argument that may be a size of the result
    counts: bool = False  # ints among its arguments decide sizes of the result
    fixed: bool = False  # a number among its arguments says which operation it is: guards hold it
    total: bool = False  # raises for no contents and no sizes, but what the trace fixes
    keeps_order: bool = False  # of one tensor, gives the elements in the same order of memory, at all sizes
    row_major: bool = False  # gives row-major results, however its operands lie
    lies: bool = False  # its result depends on where in memory the operand's elements lie
    offset: int | None = None  # the place of an argument that counts from where an operand's memory begins
    gives_back: bool = False  # gives an operand itself whatever its sizes are, if no memory format is named
    reshapes: bool = False  # gives its operand or a view of it where its memory allows that, and else a copy
    refuses: bool = False  # of these, raises where others copy
    no_gradient: bool = False  # its result never requires grad
    inside: bool = False  # neither keeps nor returns the memory of an operand, whatever its arguments
    gradients: tuple[tuple[int, ...], ...] = ()  # how gradients of operands lie, of that many dimensions, if not by row
    alike: bool = False  # gradients of operands lie as the operands do
    sparse: tuple[int, ...] = ()  # the places of arguments that ask for sparse gradients


NOTHING = TorchCall()
