"""Unions of spans: worked by hand, and by property against a plain set of nanoseconds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vibeserve.profiles import intervals

spans = st.lists(
    st.tuples(st.integers(-50, 200), st.integers(0, 60)).map(lambda pair: (pair[0], pair[0] + pair[1])), max_size=30
)


def arrays(pairs):
    return np.array([p[0] for p in pairs], np.int64), np.array([p[1] for p in pairs], np.int64)


@pytest.mark.parametrize(
    ("pairs", "union"),
    [
        ([], 0),
        ([(5, 5)], 0),
        ([(0, 10)], 10),
        ([(0, 10), (10, 20)], 20),  # touching
        ([(0, 10), (5, 15)], 15),  # overlapping
        ([(0, 100), (10, 20)], 100),  # nested
        ([(50, 60), (0, 10)], 20),  # out of order
        ([(0, 10), (0, 10)], 10),  # twins
        ([(9, 3)], 0),  # backward
        ([(-20, -10), (-15, 5)], 25),  # negative times
    ],
)
def test_union(pairs, union):
    assert intervals.union_ns(*arrays(pairs)) == union


def test_clipping_drops_what_lies_outside():
    assert intervals.union_ns(*arrays([(0, 10), (20, 30), (28, 50)]), (5, 40)) == 5 + 20


def test_merged_spans_are_the_disjoint_ones():
    starts, ends = intervals.merge(*arrays([(0, 10), (10, 12), (20, 30), (25, 26)]))
    assert list(zip(starts, ends, strict=True)) == [(0, 12), (20, 30)]


@given(spans)
def test_union_equals_the_set_of_nanoseconds(pairs):
    assert intervals.union_ns(*arrays(pairs)) == len({t for start, end in pairs for t in range(start, end)})


@given(spans, st.randoms())
def test_order_does_not_matter_and_merging_twice_changes_nothing(pairs, random):
    shuffled = list(pairs)
    random.shuffle(shuffled)
    once = intervals.merge(*arrays(pairs))
    other = intervals.merge(*arrays(shuffled))
    again = intervals.merge(*once)
    for a, b in ((once, other), (once, again)):
        assert np.array_equal(a[0], b[0])
        assert np.array_equal(a[1], b[1])


@given(spans, spans)
def test_overlap_equals_the_common_nanoseconds(a, b):
    both = {t for start, end in a for t in range(start, end)} & {t for start, end in b for t in range(start, end)}
    assert intervals.overlap_ns(arrays(a), arrays(b)) == len(both)


@given(spans, st.integers(-60, 100), st.integers(0, 100))
def test_a_union_never_exceeds_its_window(pairs, start, length):
    assert 0 <= intervals.union_ns(*arrays(pairs), (start, start + length)) <= length
