"""Finds the dimensions of a reshape that hold the same elements before and behind it, so that indices follow them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from framefuse.ir.builder import Shape
from framefuse.ir.numbers import product
from framefuse.lower.context import Lowering

WHY = "dimensions that hold the same elements"


def aligned(lo: Lowering, before: Shape, after: Shape) -> Shape:
    """The new shape, in which a size that the recorded sizes say to be a product of old ones is that product, where
    numbers of the program or what is left over said it: 64 patches of a picture that has 8 x 8 of them, or as many
    heads as there are. Relations hold what was recorded; counts of all elements alone leave an index of quotients.
    """
    result = list(after)
    for olds, news in _segments(lo.sizes(before), lo.sizes(after)):
        old = product(before[axis] for axis in olds)
        new = product(after[axis] for axis in news)
        if old is new or (old.symbols | new.symbols) & lo.bound:
            continue
        if len(news) == 1:
            lo.require("==", old, new, WHY)
            if new.constant is None or len(olds) > 1:
                result[news[0]] = old
        elif len(olds) == 1 and new.constant is not None:
            lo.require("==", old, new, WHY)
    return tuple(result)


def _segments(before: Sequence[int], after: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """Pairs of lists of dimensions of equal counts, as fine as possible; those of one element are in none."""
    if 0 in before or 0 in after:
        return
    left, right = ([axis for axis, size in enumerate(sizes) if size != 1] for sizes in (before, after))
    while left and right:
        olds, news = [left.pop(0)], [right.pop(0)]
        one, other = before[olds[0]], after[news[0]]
        while one != other:
            if one < other:
                olds.append(left.pop(0))
                one *= before[olds[-1]]
            else:
                news.append(right.pop(0))
                other *= after[news[-1]]
        yield olds, news
