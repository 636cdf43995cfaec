from benchmarks.starting import memory


def test_fresh_functions_share_nothing():
    first, second = memory.fresh(1), memory.fresh(2)
    assert first.__code__ is not second.__code__ and first.__code__.co_consts != second.__code__.co_consts


def test_findings_take_the_second_half():
    sizes = {100: 100.0, 200: 180.0, 300: 181.0, 400: 182.0}
    rows = [{"compilations": count, "megabytes": megabytes} for count, megabytes in sizes.items()]
    assert memory.findings(rows) == ["second half: 10.00 kB for each compilation"]


def test_the_process_has_a_size():
    before = memory.resident_bytes()
    block = bytearray(64_000_000)
    block[::4096] = b"x" * len(block[::4096])
    assert memory.resident_bytes() - before > 50_000_000
