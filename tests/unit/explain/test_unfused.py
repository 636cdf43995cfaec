"""Each value that passes between steps by way of memory has a reason why its reader is not part of what makes it."""

import torch

import framefuse
from framefuse.explain.unfused import BY_LIBRARY, BY_PRODUCT, borders
from framefuse.fuse.grouping import kept
from framefuse.ir.schedule import RunKernel
from framefuse.runtime.function import compiled_function


def reasons(function, *inputs):
    fast = framefuse.compile(function)
    for _ in range(2):
        fast(*inputs)
    (product,) = compiled_function(fast).products
    schedule = product.stages.code.schedule
    found = borders(schedule)
    assert all(border.writer < min(border.readers) for each in found.values() for border in each)
    return [border.why for each in found.values() for border in each], schedule


def test_a_product_between_kernels():
    why, schedule = reasons(lambda x, w: torch.relu(x.exp() @ w), torch.randn(40, 30), torch.randn(30, 20))
    assert why == [kept.READ, BY_PRODUCT]
    assert len(dict(schedule.notes)) == len(schedule.notes)


def test_a_call_of_the_library():
    why, _ = reasons(lambda x: x.sort()[0] * 2 + 1, torch.randn(30))
    assert why == [BY_LIBRARY]


def test_a_reduction_that_two_kernels_read():
    def two(x):
        total = x.sum(0)
        return (x - total).sort(0)[0], x.t() * 3, (x / total).sum(1).exp().cumsum(0)

    why, schedule = reasons(two, torch.randn(64, 48))
    assert kept.READ in why and "2 kernels read what it reduces to" in why
    assert sum(isinstance(item, RunKernel) for item in schedule.items) > 1


def test_one_kernel_has_no_border():
    why, _ = reasons(lambda x: torch.relu(x * 2 + 1), torch.randn(30))
    assert why == []


def test_a_value_of_many_readers_has_their_count():
    def many(x):
        y = x.tanh().exp().sin()
        return y.sum(0), y.sum(1), y.t().contiguous()

    why, _ = reasons(many, torch.randn(300, 40))
    assert why == ["it is read at 3 places, and to compute it again there costs more than memory"]


def test_a_page_says_it_and_prices_copies(tmp_path):
    fast = framefuse.compile(lambda x, w: torch.relu(x.exp() @ w).t().contiguous())
    for _ in range(2):
        fast(torch.randn(40, 30), torch.randn(30, 20))
    text = framefuse.report(fast, tmp_path / "page.html").read_text()
    assert f"</a>: {kept.READ}." in text and f"</a>: {BY_PRODUCT}." in text and "Copies into" not in text
    turned = framefuse.compile(lambda x: x.t().contiguous())
    for _ in range(2):
        turned(torch.randn(40, 30))
    text = framefuse.report(turned, tmp_path / "page.html").read_text()
    assert "Copies into another layout: 1, which write 4.8 kB in" in text and "(estimated)" in text
