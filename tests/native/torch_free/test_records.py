"""Objects that native code makes of records without torch: tuples, instances with slots, what makers give, refusals."""

import dataclasses
import gc
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from loader import load

native, _ = load()


@dataclasses.dataclass(frozen=True)
class Base:
    __slots__ = ("a",)
    a: object


@dataclasses.dataclass(frozen=True)
class Pair(Base):
    __slots__ = ("b",)
    b: object


ROWS = ((tuple, None), (list, None), (slice, True), (Pair, (Base.a, Pair.b)), (dict.fromkeys, None))
TUPLE, LIST, SLICE, PAIR, DICT = range(len(ROWS))


def read(records, constants=(), root=None):
    return native.read_records(ROWS, list(records), list(constants), len(records) - 1 if root is None else root)


class Records(unittest.TestCase):
    def test_each_kind_of_row(self):
        self.assertEqual(read([(TUPLE, -1, -2)], ["x", 2.5]), ("x", 2.5))
        self.assertEqual(read([(LIST, -1)], [None]), [None])
        self.assertEqual(read([(SLICE, -1, -1, -2)], [1, 2]), slice(1, 1, 2))
        self.assertEqual(read([(DICT, -1)], ["k"]), {"k": None})
        pair = read([(TUPLE,), (PAIR, 0, -1)], ["b"])
        self.assertEqual((pair, pair.a, pair.b), (Pair((), "b"), (), "b"))
        self.assertEqual(read([], ["alone"], -1), "alone")

    def test_what_is_one_stays_one(self):
        first, second = read([(LIST,), (TUPLE, 0, 0)])
        self.assertIs(first, second)

    def test_many_parts(self):
        constants = list(range(500))
        self.assertEqual(read([(TUPLE, *range(-1, -501, -1))], constants), tuple(constants))

    def test_nothing_is_lost_and_cycles_are_found(self):
        held = object()
        before = sys.getrefcount(held)
        pair = read([(LIST, -1), (PAIR, 0, -1)], [held])
        self.assertTrue(gc.is_tracked(pair))
        pair.a.append(pair)
        del pair
        gc.collect()
        self.assertEqual(sys.getrefcount(held), before)

    def test_numbers_that_lead_nowhere_are_refused(self):
        for records in ([(TUPLE, 0)], [(TUPLE, 5)], [(TUPLE, -9)], [(99,)], [(-1,)], [()], [3], [(PAIR, -1)],
                        [(TUPLE, "x")], [(TUPLE, 2**70)], [("x",)]):  # fmt: skip
            with self.subTest(records=records), self.assertRaises((ValueError, TypeError, OverflowError)):
                read(records, [1])
        with self.assertRaises(ValueError):
            read([(TUPLE,)], root=1)

    def test_rows_that_are_none_are_refused(self):
        for row in ((Pair, (Base.a,)), (Base, (Base.a, Pair.b)), (Pair, (1, 2)), (len, (Base.a, Pair.b)), ()):
            with self.subTest(row=row), self.assertRaises((ValueError, TypeError)):
                native.read_records((row,), [(0, -1, -1)], [1], 0)

    def test_an_error_of_a_maker_is_told(self):
        with self.assertRaises(TypeError):
            read([(SLICE, *[-1] * 9)], [1])


if __name__ == "__main__":
    unittest.main()
