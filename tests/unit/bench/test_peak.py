import torch

import framefuse
from framefuse.bench import peak

MEGABYTE = 1_000_000


def test_the_peak_is_what_is_alive_at_once():
    def call():
        for _ in range(3):
            torch.ones(5 * MEGABYTE)
        return torch.ones(MEGABYTE)

    measured = peak.peak_bytes(call, lambda: None)
    assert 19 * MEGABYTE < measured < 26 * MEGABYTE


def test_what_is_prepared_is_not_counted():
    kept = []
    measured = peak.peak_bytes(lambda: None, lambda: kept.append(torch.ones(5 * MEGABYTE)))
    assert measured < 10 * MEGABYTE and len(kept) == 3


def test_what_plans_keep_is_counted_where_asked():
    function = framefuse.compile(lambda x: (x.flip(0).sin() @ x).softmax(-1).flip(0))

    def call():
        with torch.no_grad():
            function(torch.ones(500, 500))

    for _ in range(3):
        call()
    assert peak.kept_bytes() >= MEGABYTE
    plain, whole = (peak.peak_bytes(call, lambda: None, kept=kept) for kept in (peak.nothing, peak.kept_bytes))
    assert whole - plain > 0.7 * peak.kept_bytes()
