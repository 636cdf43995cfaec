"""Lowers einsum and tensordot to sums, products of elements and products of matrices, a pair of operands after the
other.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

import torch

from framefuse.ir.builder import ONE
from framefuse.ir.dtypes import BY_NAME
from framefuse.ir.graph import Node
from framefuse.ir.numbers import Expr, product
from framefuse.ir.values import Value
from framefuse.lower.context import Lowering, in_memory
from framefuse.lower.products import FLOATS, by_blas, by_library
from framefuse.lower.reductions import accumulate
from framefuse.lower.rules import Lowered, Shapes, Unsupported, rule

Word = list[str]  # the letters of the dimensions of a tensor


@rule("einsum")
def einsum(lo: Lowering, equation: Value, *operands: Value) -> Lowered:
    """As torch does: pair by pair, in the order that it chooses."""
    nodes = operands[0] if len(operands) == 1 and isinstance(operands[0], (tuple, list)) else operands
    if not isinstance(equation, str):
        raise Unsupported("letters as numbers")
    words, result = _words(equation.replace(" ", ""), [len(node.shape) for node in nodes])
    sizes = _sizes(lo, nodes, words)
    shape = tuple(sizes[letter] for letter in result)
    if any(len(set(word)) != len(word) for word in words) or not _is_ours(lo, nodes, words, result):
        return Shapes((shape,))
    return _along(lo, _path(lo, equation, nodes, words, result, sizes), nodes, words, result, sizes)


@rule("tensordot")
def tensordot(lo: Lowering, a: Node, b: Node, dims: Value = 2, out: Value = None) -> Lowered:
    """The einsum that has a letter for each pair of dimensions, which is in none of the results."""
    words = dot_words(lo, dims, len(a.shape), len(b.shape))
    result = [letter for letter in (*words[0], *words[1]) if (letter in words[0]) != (letter in words[1])]
    sizes = _sizes(lo, (a, b), words)
    if any(len(set(word)) != len(word) for word in words) or not _is_ours(lo, (a, b), words, result):
        return Shapes((tuple(sizes[letter] for letter in result),))
    return _along(lo, [(0, 1)], (a, b), words, result, sizes)


def dot_words(lo: Lowering, dims: Value, *ranks: int) -> tuple[Word, Word]:
    """The letters of tensordot's operands: those that are summed over are in both."""
    if isinstance(dims, int) and not isinstance(dims, bool):
        if not 0 <= dims <= min(ranks):
            raise Unsupported("dimensions")
        dims = list(range(ranks[0] - dims, ranks[0])), list(range(dims))
    if not isinstance(dims, (tuple, list)) or len(dims) != 2:
        raise Unsupported("dimensions")
    pairs = [[each] if isinstance(each, int) else each for each in dims]
    if not all(isinstance(each, (tuple, list)) for each in pairs) or len(pairs[0]) != len(pairs[1]):
        raise Unsupported("dimensions")
    first, second = ([lo.axis(dim, rank) for dim in each] for each, rank in zip(pairs, ranks, strict=True))
    one, other = ([f"{name}{axis}" for axis in range(rank)] for name, rank in zip("ab", ranks, strict=True))
    for place, axis in zip(second, first, strict=True):
        other[place] = one[axis]
    return one, other


def _along(
    lo: Lowering, path: Sequence[tuple[int, int]], nodes: Sequence[Node], words: Sequence[Word], result: Word,
    sizes: dict[str, Expr],
) -> Node:  # fmt: skip
    """The product of all operands, a pair of them after the other."""
    left = [(node, word) for node, word in zip(nodes, words, strict=True)]
    if len(left) == 1:
        left = [_summed(lo, *left[0], result)]
    for first, second in path:
        (one, other), left = (left[first], left[second]), [x for n, x in enumerate(left) if n not in (first, second)]
        later = [*result, *itertools.chain(*(word for _, word in left))]
        one, other = _summed(lo, *one, [*later, *other[1]]), _summed(lo, *other, [*later, *one[1]])
        left.append(_contracted(lo, *one, *other, later, sizes))
    ((out, letters),) = left
    return lo.permute(out, [letters.index(letter) for letter in result])


def _sizes(lo: Lowering, nodes: Sequence[Node], words: Sequence[Word]) -> dict[str, Expr]:
    """The size of each letter: one that is 1 in an operand is expanded."""
    sizes: dict[str, Expr] = {}
    for node, word in zip(nodes, words, strict=True):
        for letter, size in zip(word, node.shape, strict=True):
            sizes[letter] = lo.broadcast((sizes.get(letter, ONE),), (size,))[0]
    return sizes


def _is_ours(lo: Lowering, nodes: Sequence[Node], words: Sequence[Word], result: Word) -> bool:
    """Whether kernels and products of matrices give what torch does, with as many digits."""
    if by_blas(lo, *nodes):
        return True
    first = nodes[0]
    if not first.dtype.is_float or any(node.dtype is not first.dtype or node.device != first.device for node in nodes):
        return False
    multiplies = len(nodes) == 2 and set(result) == set(words[0]) | set(words[1])  # nothing is summed
    if multiplies or not _on_tiles(lo, first):
        return multiplies
    # Eager's own call leaves its result where it is; what is ours is copied where nothing is computed of it: 16 x 128 x
    # 128 x 256 times 256 x 512 on an H100 1.45 ms and 1.81.
    alone = len(nodes) == 2 and all(map(in_memory, nodes)) and not _has_vector(words, result)
    return first.dtype.name in FLOATS and not lo.exact and not alone


def _has_vector(words: Sequence[Word], result: Word) -> bool:
    """Whether there is no matrix on a side of a product of two operands."""
    first, second = map(set, words)
    return not (first - second) & set(result) or not (second - first) & set(result)


def _path(
    lo: Lowering, equation: str, nodes: Sequence[Node], words: Sequence[Word], result: Word, sizes: dict[str, Expr]
) -> Sequence[tuple[int, int]]:
    """The places of the operands of each product, of those that are left, behind which its result stands. Without the
    package that torch asks for an order at the recorded sizes, torch takes the first two, which can make what is much
    larger than one operand after the other does.
    """
    chooser, count = torch.backends.opt_einsum, len(nodes)
    if count > 2 and chooser.is_available() and chooser.enabled:
        shapes = [tuple(map(lo.size, node.shape)) for node in nodes]
        found, _ = chooser.get_opt_einsum().contract_path(equation, *shapes, shapes=True, optimize=chooser.strategy)
        if any(len(pair) != 2 for pair in found):
            raise Unsupported("another order")
        return [(min(pair), max(pair)) for pair in found]
    orders = [(0, 1)] * (count - 1), [(0, 1), *((0, left) for left in range(count - 2, 0, -1))][: count - 1]
    known = {letter: lo.size(size) for letter, size in sizes.items()}
    return min(orders, key=lambda order: _largest(order, words, result, known))


def _largest(order: Sequence[tuple[int, int]], words: Sequence[Word], result: Word, sizes: dict[str, int]) -> int:
    """The elements of the largest product on the way."""
    left, largest = [set(word) for word in words], 0
    for first, second in order:
        both, left = left[first] | left[second], [x for n, x in enumerate(left) if n not in (first, second)]
        left.append(both & set(result).union(*left))
        largest = max(largest, math.prod(sizes[letter] for letter in left[-1]))
    return largest


def _on_tiles(lo: Lowering, node: Node) -> bool:
    """Whether kernels are those of a GPU, where products of matrices are the library's."""
    target = lo.targets(node.device)
    return target is not None and target.tiles and target.library


def _words(equation: str, ranks: list[int]) -> tuple[list[Word], Word]:
    """The letters of each operand's dimensions and of the result's; those behind an ellipsis are numbers, counted from
    the last. Without an arrow the result has the letters that stand once, in their order.
    """
    left, arrow, right = equation.partition("->")
    texts = left.split(",")
    if len(texts) != len(ranks):
        raise Unsupported("equation")
    open_ranks = [rank - len(text) + 3 if "..." in text else 0 for text, rank in zip(texts, ranks, strict=True)]
    if any(rank < 0 for rank in open_ranks):
        raise Unsupported("equation")
    words = [_word(text, rank) for text, rank in zip(texts, open_ranks, strict=True)]
    if not arrow:
        right = "..." + "".join(sorted(letter for letter in set(left) - set(",.") if left.count(letter) == 1))
    result = _word(right, max(open_ranks))
    if len(set(result)) != len(result) or not set(result).issubset(itertools.chain(*words)):
        raise Unsupported("equation")
    if any(len(word) != rank for word, rank in zip(words, ranks, strict=True)):
        raise Unsupported("equation")
    return words, result


def _word(text: str, rank: int) -> Word:
    before, dots, after = text.partition("...")
    return [*before, *(map(str, reversed(range(rank))) if dots else ()), *after]


def _summed(lo: Lowering, node: Node, word: Word, kept: Iterable[str]) -> tuple[Node, Word]:
    """An operand without the dimensions that only it has, and their letters."""
    kept = set(kept)
    axes = tuple(place for place, letter in enumerate(word) if letter not in kept)
    if not axes:
        return node, word
    return accumulate(lo, "sum", node, axes, False, node.dtype), [letter for letter in word if letter in kept]


def _contracted(
    lo: Lowering, left: Node, first: Word, right: Node, second: Word, kept: Word, sizes: dict[str, Expr]
) -> tuple[Node, Word]:
    """The product of two operands, summed over the letters that both have and nobody wants later."""
    batch = [letter for letter in first if letter in second and letter in kept]
    summed = [letter for letter in first if letter in second and letter not in kept]
    rows = [letter for letter in first if letter not in second]
    columns = [letter for letter in second if letter not in first]
    letters = batch + rows + columns

    def laid(node: Node, word: Word, letters: Word) -> Node:
        whole = lo.expand(node, tuple(sizes[letter] for letter in word))
        return lo.permute(whole, [word.index(letter) for letter in letters])

    def lined_up(node: Node, word: Word, letters: Word) -> Node:
        own = [letter for letter in letters if letter in word]
        return lo.reshape(laid(node, word, own), tuple(sizes[x] if x in word else ONE for x in letters))

    # A GPU's kernels sum up where there is no matrix on a side, and are fused with what is done to the result.
    vector = _on_tiles(lo, left) and not (rows and columns)
    if not summed or vector:
        one, other = (lined_up(x, word, letters + summed) for x, word in ((left, first), (right, second)))
        if not summed:
            return lo.compute(lambda a, b: a * b, one, other), letters
        wide = BY_NAME[left.dtype.compute]
        terms = lo.compute(lambda a, b: a * b, lo.cast(one, wide), lo.cast(other, wide))
        axes = tuple(range(len(letters), len(letters + summed)))
        return accumulate(lo, "sum", terms, axes, False, left.dtype), letters

    def folded(node: Node, word: Word, *groups: Word) -> Node:
        shape = tuple(product(sizes[x] for x in group) for group in (*shared, *groups))
        return lo.reshape(laid(node, word, batch + groups[0] + groups[1]), shape)

    # The library multiplies one batch, as eager has it do; what folds dimensions to one is fused with what computes it.
    shared = [batch] if _on_tiles(lo, left) else [[letter] for letter in batch]
    one, other = folded(left, first, rows, summed), folded(right, second, summed, columns)
    if _on_tiles(lo, left):
        groups = (rows, summed), (summed, columns)
        orders = [_order(lo, word, (batch, *pair), sizes) for word, pair in zip((first, second), groups, strict=True)]
        out = by_library(lo, one, other, orders)
    else:
        out = lo.matmul(one, other)
    return lo.reshape(out, tuple(sizes[letter] for letter in letters)), letters


def _order(lo: Lowering, word: Word, groups: Sequence[Word], sizes: dict[str, Expr]) -> tuple[int, ...]:
    """How folded dimensions lie, so that the library reads the operand as it is, or so that what copies it reads
    neighbours.
    """
    places = [[word.index(x) for x in group if lo.size(sizes[x]) != 1] for group in groups]
    several = sorted(place for group in places for place in group)
    runs = all(group == several[several.index(group[0]) :][: len(group)] for group in places if group)
    last = [max(group, default=-1) for group in places]
    order = sorted(range(len(groups)), key=lambda number: (runs or number > 0, last[number]))
    return tuple(order)
