"""Blocks of the log are made of Arrow columns, and are those that are made of records."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.effort import examples
from tidemill.connect.direct import zeromq_log
from tidemill.direct.pubsub.blocks import Row, encode_block, encode_columns
from tidemill.reading.plan import SCHEMA_WITH_HEADERS

BYTES = st.none() | st.binary(max_size=20)
HEADERS = st.lists(st.tuples(st.text(max_size=5), BYTES), max_size=2)
TIMES = st.just(-1) | st.integers(0, 10**14)
ROWS = st.lists(st.tuples(TIMES, BYTES, BYTES, HEADERS), min_size=1, max_size=8)


def batch_of(rows: list[Row]) -> pa.RecordBatch:
    """Return records as they are read from the log."""
    columns = [
        [row[2] for row in rows],
        [row[3] for row in rows],
        ["t"] * len(rows),
        [0] * len(rows),
        [row[0] for row in rows],
        [row[1] * 1000 for row in rows],
        [0] * len(rows),
        [[{"key": name, "value": value} for name, value in row[4]] for row in rows],
    ]
    arrays = [
        pa.array(each, kind.type) for each, kind in zip(columns, SCHEMA_WITH_HEADERS, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA_WITH_HEADERS)


@given(ROWS, st.data())
@settings(max_examples=examples(20))
def test_columns_become_the_block_that_the_same_records_become(
    drawn: list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]],
    data: st.DataObject,
) -> None:
    rows: list[Row] = [(3 * number, *each) for number, each in enumerate(drawn)]
    start = data.draw(st.integers(0, len(rows) - 1))
    count = data.draw(st.integers(1, len(rows) - start))
    part = batch_of(rows).slice(start, count)
    expected = encode_block(7, 2, 0, 100, rows[start : start + count])
    assert encode_columns(7, 2, 0, 100, zeromq_log._columns(part)) == expected


def test_last_values_keep_the_last_record_of_a_key_and_all_without_a_key() -> None:
    rows: list[Row] = [
        (0, 0, b"a", b"1", ()),
        (1, 0, None, b"x", ()),
        (2, 0, b"a", None, ()),
        (3, 0, None, b"y", ()),
        (4, 0, b"", b"z", ()),
    ]
    kept = zeromq_log._last_of_each_key(batch_of(rows))
    assert kept.column("offset").to_pylist() == [1, 2, 3, 4]


def test_a_block_has_half_a_megabyte_or_one_larger_record() -> None:
    sizes = [200, 300, 100, 600, 1, 512, 0]
    rows: list[Row] = [
        (offset, 0, None, b"x" * (size << 10), ()) for offset, size in enumerate(sizes)
    ]
    parts = [each.column("offset").to_pylist() for each in zeromq_log._parts(batch_of(rows))]
    assert parts == [[0, 1], [2], [3], [4], [5, 6]]
