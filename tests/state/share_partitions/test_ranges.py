"""Sets of offsets as ranges, against a set of Python."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.effort import examples
from tidemill.state.share_partitions.ranges import Ranges

pairs = st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda p: (p[0], p[0] + p[1]))


@settings(max_examples=examples(100))
@given(added=st.lists(pairs), cut=st.integers(0, 80), asked=pairs)
def test_ranges_are_a_set(added: list[tuple[int, int]], cut: int, asked: tuple[int, int]) -> None:
    ranges, model = Ranges(), set[int]()
    for first, last in added:
        ranges.add(first, last)
        model.update(range(first, last + 1))
    ranges.remove_below(cut)
    model = {each for each in model if each >= cut}
    found = list(ranges)
    assert {o for first, last in found for o in range(first, last + 1)} == model
    assert all(a[1] + 1 < b[0] for a, b in pairwise(found))
    parts = list(ranges.split(*asked))
    assert [o for first, last, _ in parts for o in range(first, last + 1)] == list(
        range(asked[0], asked[1] + 1)
    )
    assert all((o in model) == inside for f, last, inside in parts for o in range(f, last + 1))
    ranges.clear()
    assert len(ranges) == 0
