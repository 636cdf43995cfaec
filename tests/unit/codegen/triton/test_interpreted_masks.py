"""The kernel that draws masks of dropout takes of Philox's streams what the thread of eager's kernel takes."""

import pytest
import torch

from framefuse.codegen.triton.drawn_masks import BLOCK, WARPS, _halves, _signed, bound, draw

MOST = 0xFFFFFFFF


def philox(counter, key):
    """Philox4x32-10, as Salmon et al. have it."""
    a, b, c, d = counter
    one, other = key
    for _ in range(10):
        left, right = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = right >> 32 ^ b ^ one, right & MOST, left >> 32 ^ d ^ other, left & MOST
        one, other = one + 0x9E3779B9 & MOST, other + 0xBB67AE85 & MOST
    return a, b, c, d


def test_the_reference_gives_the_known_answer():
    assert philox((0, 0, 0, 0), (0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)


@pytest.mark.parametrize("sets", [1, 2])
@pytest.mark.parametrize(("seed", "first"), [(7, 0), (0xDEADBEEF12345678, (1 << 32) - 2), ((1 << 64) - 1, 1 << 40)])
def test_each_thread_takes_from_its_stream(sets, seed, first):
    threads, words = 768, 768 * 5 + 6
    mask = torch.full((words * 4,), True)
    numbers = (*_halves(seed), *_halves(first), _signed(bound(0.3)), words, threads)
    draw[-(-threads // BLOCK), -(-words // (threads * sets))](mask, *numbers, sets=sets, block=BLOCK, num_warps=WARPS)
    for word in {0, 1, 767, 768, 1535, 1536, 2 * 1536 + 1, words - 1}:
        place, number = divmod(word, sets)
        turn, thread = divmod(place, threads)
        taken = first + turn * sets + number
        drawn = philox((taken & MOST, taken >> 32 & MOST, thread, 0), (seed & MOST, seed >> 32))
        assert mask[4 * word : 4 * word + 4].tolist() == [each < bound(0.3) for each in drawn]


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 1e-9, 1 - 1e-9])
def test_numbers_below_the_bound_are_those_that_eager_keeps(p):
    kept = torch.tensor(1.0 - p, dtype=torch.float32)
    near = torch.arange(max(bound(p) - 600, 0), min(bound(p) + 600, 1 << 32))
    uniform = torch.tensor(2.0**-32) * near.float() + torch.tensor(2.0**-33)
    assert torch.equal(uniform < kept, near < bound(p))
