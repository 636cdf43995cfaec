"""Gradients of calls that write and read at positions: no call is made again, and they are eager's, twice."""

import pytest
import torch
from tests.unit.autodiff.gradient_graphs import check_lowered
from torch.nn import functional as F

import framefuse


def rand(*shape):
    torch.manual_seed(sum(shape))
    return torch.randn(shape, dtype=torch.float64)


def places(size, *shape):
    torch.manual_seed(size)
    return torch.randint(0, size, shape)


def names(backward):
    return [node.attr("name") for node in backward.nodes if node.op == "library"]


ORDER, ROWS, MASK, ADDED = rand(4, 5, 6).argsort(1), torch.tensor([2, 0]), rand(4, 5, 6) > 0, places(5, 4, 5, 6)
I, J, K = places(4, 7), places(5, 7), places(6, 7)
GIVEN = (ORDER, ROWS, MASK, ADDED, I, J, K)


def filled(x, v, order, rows, mask, added, i, j, k):
    y = x * 2
    y[rows] = v
    return y


def filled_in_place(x, v, order, rows, mask, added, i, j, k):
    y = x * 2
    y.scatter_(1, order, v).index_add_(0, rows, v[:2])
    return y


WRITES = {
    "scatter": (lambda x, v, order, *_: x.scatter(1, order, v), (4, 5, 6)),
    "scatter from the end": (lambda x, v, order, *_: x.scatter(-2, order[:, :3], v), (4, 3, 6)),
    "scatter_add": (lambda x, v, order, rows, mask, added, *_: x.scatter_add(1, added, v), (4, 5, 6)),
    "index_add": (lambda x, v, order, rows, mask, added, i, j, k: x.index_add(2, k, v), (4, 5, 7)),
    "index_copy": (lambda x, v, order, rows, *_: torch.index_copy(x, 1, rows, v), (4, 2, 6)),
    "index_put": (lambda x, v, order, rows, *_: x.index_put((rows,), v), (2, 5, 6)),
    "index_put from the end": (lambda x, v, order, rows, *_: x.index_put((-1 - rows,), v), (2, 5, 6)),
    "index_put of rows": (lambda x, v, order, rows, *_: x.index_put((rows,), v), (6,)),
    "index_put of one": (lambda x, v, order, rows, *_: x.index_put((rows,), v, accumulate=True), (1, 5, 1)),
    "index_put added": (
        lambda x, v, order, rows, mask, added, i, j, k: x.index_put((i, j), v, accumulate=True), (7, 6),
    ),
    "index_put broadcast": (lambda x, v, order, rows, *_: x.index_put((rows[:, None], rows + 1), v), (2, 6)),
    "rows set": (filled, (2, 5, 6)),
    "in place": (filled_in_place, (4, 5, 6)),
    "masked_scatter": (lambda x, v, order, rows, mask, *_: x.masked_scatter(mask, v), (4, 5, 6)),
    "masked_scatter of rows": (lambda x, v, order, rows, mask, *_: x.masked_scatter(mask[0], v), (130,)),
}  # fmt: skip


def twice(function, *tensors):
    """First and second gradients of calls that run compiled code are eager's."""
    fast, floats = framefuse.compile(function), [place for place, t in enumerate(tensors) if t.is_floating_point()]
    for _ in range(3):
        results = []
        for run in (fast, function):
            leaves = [t.detach().requires_grad_(t.is_floating_point()) for t in tensors]
            wanted = [leaves[place] for place in floats]
            first = torch.autograd.grad(run(*leaves).sin().sum(), wanted, create_graph=True)
            second = torch.autograd.grad(sum(part.sin().sum() for part in first), wanted)
            results.append((*first, *second))
        torch.testing.assert_close(*results)
    assert framefuse.explain(fast).hits >= 1


@pytest.mark.parametrize("name", WRITES)
def test_what_is_written_reads_its_gradient(name):
    function, shape = WRITES[name]
    x, v = rand(4, 5, 6), rand(*shape)
    for frozen in ((), (0,), (1,)):
        backward = check_lowered(
            lambda x, v, *others: function(x * 2, v.sin(), *others).sin(), x, v, *GIVEN, frozen=frozen
        )
        assert not any(name.endswith(("_vjp", "_adjoint")) for name in names(backward)), names(backward)
    twice(lambda x, v, *others: function(x * 2, v.sin(), *others).sin(), x, v, *GIVEN)


ALONE = {
    "index_fill": lambda x, order, rows, *_: x.index_fill(1, rows, 0.5),
    "scatter of a number": lambda x, order, *_: x.scatter(1, order, 0.5),
    "numbers at positions": lambda x, order, *_: x.scatter(1, order[:, :2], value=2),
    "getitem": lambda x, order, rows, mask, added, i, j, k: x[i, j],
    "getitem behind": lambda x, order, rows, mask, added, i, j, k: x[:, j, k],
    "getitem apart": lambda x, order, rows, mask, added, i, j, k: x[i, :, k],
    "getitem of a part": lambda x, order, rows, mask, added, i, j, k: x[1:, None, j, 2:3],
    "getitem of a row": lambda x, order, rows, mask, added, i, j, k: x[2, j, k],
    "getitem of a place": lambda x, order, rows, mask, added, i, j, k: x[i[0], :, k],
    "getitem from the end": lambda x, order, rows, *_: x[..., [0, -1], rows - 6],
    "getitem by a mask": lambda x, order, rows, mask, *_: x[mask],
    "getitem of rows by a mask": lambda x, order, rows, mask, *_: x[mask[:, 0, 0]],
    "getitem behind a mask": lambda x, order, rows, mask, *_: x[:, mask[0]],
    "masked_select": lambda x, order, rows, mask, *_: x.masked_select(mask),
    "masked_select of repeats": lambda x, order, rows, mask, *_: x.masked_select(mask[0]),
    "take": lambda x, order, rows, mask, added, *_: torch.take(x, added * 48 - 120),
    "cummax": lambda x, *_: x.cummax(1)[0],
    "cummin": lambda x, *_: x.cummin(-1).values,
    "cumprod": lambda x, *_: x.cumprod(1),
    "cumprod of zeros": lambda x, order, rows, mask, *_: torch.cumprod(x * mask, 2),
    "diagonal": lambda x, *_: x.diagonal(1, 2, 1),
    "diagonal below": lambda x, *_: torch.diagonal(x, -2, 0, -1),
    "diagonal at the edge": lambda x, *_: torch.diagonal(x, 5, 0, 2),
    "diag_embed": lambda x, *_: torch.diag_embed(x),
    "diag_embed aside": lambda x, *_: torch.diag_embed(x, -2, 0, 2),
    "trace": lambda x, *_: torch.trace(x[0]),
    "unfold": lambda x, *_: x.unfold(1, 3, 1),
    "F.unfold": lambda x, *_: F.unfold(x, (2, 3), padding=1, stride=2),
    "F.fold": lambda x, *_: F.fold(x.reshape(1, 20, 6), (2, 3), 1),
    "F.fold over": lambda x, *_: F.fold(x[:, :4], (4, 3), 2),
}  # fmt: skip


# Values decide how the results of these lie, or how large they are: no graph of them alone.
UNKNOWN = ("getitem behind", "getitem apart", "getitem of a place", "getitem from the end", "getitem by a mask",
           "getitem of rows by a mask", "getitem behind a mask", "masked_select", "masked_select of repeats",
           "diagonal at the edge")  # fmt: skip


@pytest.mark.parametrize("name", ALONE)
def test_what_is_read_gives_its_gradient_back(name):
    x, function = rand(4, 5, 6), ALONE[name]
    if name not in UNKNOWN:
        backward = check_lowered(lambda x, *others: function(x * 2, *others).sin(), x, *GIVEN)
        assert not any(name.endswith(("_vjp", "_adjoint")) for name in names(backward)), names(backward)
    twice(lambda x, *others: function(x * 2, *others).sin(), x, *GIVEN)


def test_second_gradients_over_calls_with_other_sizes():
    """The sizes of positions and of what is written change from call to call."""

    def program(x, index, value):
        return F.pad(x.index_put((index,), value), (2, 1), mode="reflect").cumprod(1)[index, index + 1]

    fast = framefuse.compile(program)
    for size in (4, 5, 6, 9):
        x, index, value = rand(size, size + 1).requires_grad_(), places(size - 1, size), rand(1, size + 1)
        value.requires_grad_()
        results = []
        for function in (fast, program):
            first = torch.autograd.grad(function(x, index, value).sin().sum(), (x, value), create_graph=True)
            second = torch.autograd.grad(sum(part.square().sum() for part in first), (x, value))
            results.append((*first, *second))
        torch.testing.assert_close(*results)
    assert len(framefuse.explain(fast).graphs) == 1


def test_refusals_are_eagers():
    """What eager's backward refuses, and a position that is none."""
    def wide(x, index, value):
        return x.scatter(0, index, value) * 2

    fast = framefuse.compile(wide)
    x, value = rand(4, 3).requires_grad_(), rand(4, 3).requires_grad_()
    for rows, errors in ((4, None), (4, None), (2, RuntimeError), (2, RuntimeError)):
        index = places(4, rows, 3)
        for function in (wide, fast):
            made = function(x, index, value)
            if errors is None:
                torch.autograd.grad(made.sum(), (x, value))
                continue
            with pytest.raises(errors, match="shape"):
                torch.autograd.grad(made.sum(), (x, value))


@pytest.mark.parametrize("part", [
    lambda x, n: x.reshape(-1)[:n],
    lambda x, n: x[:, 1:n, None],
    lambda x, n: x[-1, ..., n // 2 :],
])
def test_a_slice_of_a_size_that_values_decide(part):
    """No tensor stands among the positions."""
    def program(x):
        return part(x * 2, int((x.detach() > 0).sum() % 3 + 2)).sin()

    fast = framefuse.compile(program)
    for rows in (4, 4, 5, 7):
        x = rand(rows, 4, 6).requires_grad_()
        made, expected = (torch.autograd.grad(f(x).sum(), x) for f in (fast, program))
        torch.testing.assert_close(made, expected)
    assert framefuse.explain(fast).hits >= 2


def test_rows_that_are_read_on_a_cpu_are_added_by_index_add():
    x, rows = rand(5, 6), places(5, 9)
    reads = (lambda x, rows: x[rows], lambda x, rows: F.embedding(rows, x), lambda x, rows: x[-1 - rows])
    for read in reads:
        backward = check_lowered(lambda x, rows, read=read: read(x * 2, rows).sin(), x, rows)
        assert "rows_added" in names(backward), names(backward)
    for keywords in ({"padding_idx": 2}, {"scale_grad_by_freq": True}):
        backward = check_lowered(lambda x, rows, kw=keywords: F.embedding(rows, x * 2, **kw).sin(), x, rows)
        assert "embedding_dense_backward" in names(backward), names(backward)


@pytest.mark.parametrize("read", [lambda x, at: x[at], lambda x, at: x.index_select(-1, at)])
def test_elements_that_are_read_are_added_as_elements(read):
    """Torch takes twice as long to add rows of one element."""
    fast = framefuse.compile(lambda x, at: read(x * 2, at).sin())
    for size, count in ((6, 9), (6, 9), (8, 4), (3, 1), (5, 0)):
        x, at = rand(size).requires_grad_(), places(size, count)
        made, expected = (torch.autograd.grad(f(x, at).sum(), x) for f in (fast, lambda x, at: read(x * 2, at).sin()))
        torch.testing.assert_close(made, expected)
    x, at = rand(7, 1).requires_grad_(), places(7, 5)
    fast = framefuse.compile(lambda x, at: (x * 2)[at].sin())
    fast(x, at).sum().backward()
    with torch.profiler.profile(record_shapes=True) as seen:
        fast(x, at).sum().backward()
    assert [event.input_shapes[0] for event in seen.events() if event.name == "aten::index_add_"] == [[7]]
