"""The walk over the records of a client's batch: it accepts what readers can read, and no more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.golden import tables
from tests.log.format.batches import batch_around
from tests.log.format.test_records import GOOD, MALFORMED, new_records
from tests.support.effort import examples
from tidemill.errors import TidemillError
from tidemill.log.errors import InvalidRecordError
from tidemill.log.format import walk as walk_module
from tidemill.log.format.batch import HEADER_SIZE, parse_header
from tidemill.log.format.records import (
    Headers,
    NewRecord,
    decode_records,
    encode_batch,
    encode_record,
    scan_records,
)
from tidemill.log.format.walk import PAUSE_AFTER, PAUSE_AFTER_HEADERS, Walked, walk_records
from tidemill.log.steps import run_steps

PLAIN: Headers = ()


class OneByOne:
    """Stands for the extension, and leaves all records to the code that looks at each alone."""

    @staticmethod
    def walk_records(
        body: bytes, position: int, first: int, last: int
    ) -> tuple[int, int, int, int, int]:
        return position, first, 0, -(1 << 63), 0


@pytest.fixture(autouse=True, scope="module", params=["together", "one by one"])
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run each test with the extension, and as records are walked that it refuses."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "one by one":
            patch.setattr(walk_module, "extension", OneByOne)
        yield request.param


def body_of(records: Sequence[NewRecord]) -> bytes:
    return bytes(encode_batch(records, timestamp_ms=0)[HEADER_SIZE:])


def walk(body: bytes, count: int) -> Walked:
    return run_steps(walk_records(memoryview(body), count))


def readable(body: bytes, count: int) -> Walked | None:
    """Return the result of a walk as the decoder sees it; None if it refuses the records."""
    try:
        decode_records(batch_around(body, count))
    except TidemillError:
        return None
    found = list(scan_records(body, count))
    if [raw.offset_delta for raw in found] != list(range(count)):
        return None
    times = [raw.timestamp_delta for raw in found]
    without_key = sum(raw.key_length < 0 for raw in found)
    return Walked(min(0, *times), max(times), without_key)


def check_alike(body: bytes, count: int) -> bool:
    """Check that the walk and the decoder agree; return whether they accept the records."""
    expected = readable(body, count)
    if expected is None:
        with pytest.raises(InvalidRecordError):
            walk(body, count)
        return False
    assert walk(body, count) == expected
    return True


# --- valid records -------------------------------------------------------------------------------


@given(new_records)
def test_what_a_producer_encodes_is_accepted(records: list[NewRecord]) -> None:
    assert check_alike(body_of(records), len(records))


@pytest.mark.parametrize("golden", tables.batches(), ids=lambda golden: golden.name)
def test_batches_of_real_clients_are_accepted(golden: tables.Golden) -> None:
    header = parse_header(golden.data)
    if not header.codec and not header.is_control and header.record_count:
        body = golden.data[HEADER_SIZE:]
        deltas = [raw.offset_delta for raw in scan_records(body, header.record_count)]
        if deltas == list(range(header.record_count)):
            assert check_alike(body, header.record_count)


@pytest.mark.parametrize("size", [0, 1, 60, 63, 64, 100, 8191, 8192, 70_000])
@pytest.mark.parametrize(
    "key", [None, b"", b"k" * 63, b"k" * 64, b"k" * 9000], ids=lambda key: f"key {len(key or '')}"
)
def test_lengths_around_the_limits_of_their_encoding(key: bytes | None, size: int) -> None:
    assert check_alike(body_of([NewRecord(key, bytes(size))] * 3), 3)


@pytest.mark.parametrize("step", [0, 1, 63, 64, 8191, 8192, 1 << 40, -1, -64, -70_000])
def test_times_around_the_limits_of_their_encoding(step: int) -> None:
    records = [NewRecord(None, b"v", PLAIN, (1 << 50) + step * index) for index in range(40)]
    assert check_alike(body_of(records), 40)


def test_times_that_are_all_earlier_than_the_base_timestamp() -> None:
    body = bytearray()
    for index, delta in enumerate([-5, -9, -7]):
        encode_record(body, index, delta, b"k", b"v")
    assert walk(bytes(body), 3) == Walked(-9, -5, 0)


@pytest.mark.parametrize("count", [1, 15, 16, 63, 64, 65, 500, 8191, 8192, 8193, 9000])
@pytest.mark.parametrize("key", [None, b"key"])
def test_records_of_one_size(count: int, key: bytes | None) -> None:
    records = [
        NewRecord(key, bytes([index % 256]) * 20, PLAIN, index // 5) for index in range(count)
    ]
    assert check_alike(body_of(records), count)


# --- malformed records ---------------------------------------------------------------------------


@pytest.mark.parametrize("body", MALFORMED)
def test_malformed_records_are_refused(body: str) -> None:
    assert not check_alike(bytes.fromhex(body), 1)


@pytest.mark.parametrize("count", [2, 3, 2**31 - 1])
def test_a_wrong_record_count_is_refused(count: int) -> None:
    with pytest.raises(InvalidRecordError):
        walk(GOOD, count)


@pytest.mark.parametrize("deltas", [[1], [0, 2], [0, 0, 0], [0, 1, 0], [0, -1], [0, 1, 2**31 - 1]])
def test_offset_deltas_must_count_from_0(deltas: list[int]) -> None:
    body = bytearray()
    for delta in deltas:
        encode_record(body, delta, 0, b"a", b"")
    with pytest.raises(InvalidRecordError, match="has the offset delta"):
        walk(bytes(body), len(deltas))


@settings(max_examples=examples(100))
@given(st.binary(max_size=60), st.integers(1, 5))
def test_arbitrary_bytes(body: bytes, count: int) -> None:
    check_alike(body, count)


@pytest.mark.slow
@settings(max_examples=examples(100))
@given(new_records, st.data())
def test_changed_bytes(records: list[NewRecord], data: st.DataObject) -> None:
    body = bytearray(body_of(records))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    check_alike(bytes(body), len(records))


@pytest.mark.slow
@settings(max_examples=examples(30))
@given(
    st.sampled_from([20, 70, 300, 8300]),
    st.none() | st.binary(max_size=3),
    st.integers(0, 70),
    st.sampled_from([0, 1, 90]),
    st.data(),
)
def test_a_changed_byte_among_records_of_one_size(
    count: int, key: bytes | None, size: int, step: int, data: st.DataObject
) -> None:
    records = [NewRecord(key, bytes(size), PLAIN, index * step) for index in range(count)]
    body = bytearray(body_of(records))
    at = data.draw(st.integers(0, len(body) - 1))
    body[at] = data.draw(st.integers(0, 255))
    check_alike(bytes(body), count)


# --- pauses --------------------------------------------------------------------------------------


def test_many_records_are_walked_in_steps(way: str) -> None:
    records = [NewRecord(b"k", bytes(index % 7)) for index in range(4 * PAUSE_AFTER)]
    steps = len(list(walk_records(body_of(records), len(records))))
    assert steps == (3 if way == "together" else len(records) - 1)


def test_many_headers_are_walked_in_steps() -> None:
    headers: Headers = (("h", b"x"), ("", None)) * (2 * PAUSE_AFTER_HEADERS)
    body = body_of([NewRecord(b"k", b""), NewRecord(None, b"v", headers), NewRecord(b"k", b"")])
    assert len(list(walk_records(body, 3))) >= 3
    assert check_alike(body, 3)


def test_a_count_that_can_not_fit_is_refused_before_any_record_is_looked_at() -> None:
    class Unreadable(bytes):
        def __getitem__(self, index: object) -> bytes:  # type: ignore[override]
            raise AssertionError("was read")

    with pytest.raises(InvalidRecordError, match="can't fit"):
        run_steps(walk_records(Unreadable(70), 11))
