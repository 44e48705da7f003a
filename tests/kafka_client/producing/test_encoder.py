"""The encoder writes what the log's decoder reads, and refuses invalid columns."""

from __future__ import annotations

import random
import struct
from typing import Any

import pyarrow as pa
import pytest

from tidemill.kafka_client.producing import batching
from tidemill.kafka_client.producing.batching import Body, encode_headers
from tidemill.kafka_client.producing.record_batch import Batch, compressed
from tidemill.kafka_client.producing.settings import MURMUR2, MURMUR2_RANDOM
from tidemill.log.format.batch import check_batch
from tidemill.log.format.records import NewRecord, decode_records, encode_batch
from tidemill.native import extension
from tidemill.spark.errors import DeliveryError
from tidemill.spark.sinks.topic.delivery.columns import by_topic, columns

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
LIMIT = 1_000_000


RecordEncoder: Any = extension.RecordEncoder


def encode(
    batch: pa.RecordBatch, partitions: int = 1, *, time_ms: int = 1000, **limits: int
) -> list[Body]:
    """Return all bodies of the rows."""
    made = RecordEncoder(
        partitions,
        limits.get("batch_bytes", LIMIT),
        limits.get("record_bytes", LIMIT),
        limits.get("open_bytes", LIMIT),
        limits.get("method", MURMUR2_RANDOM),
        limits.get("start", 0),
    )
    row, found, given = 0, [], columns(batch)
    while row < batch.num_rows:
        row, status, closed = made.add(given, row, time_ms)
        found += closed
        assert status in (batching.ALL_READ, batching.FULL)
    size, rest = made.size(), made.take()
    assert size == sum(memoryview(each[4]).nbytes for each in rest)
    assert made.size() == 0
    return [(*each[:4], bytes(each[4])) for each in found + rest]


def batch_of(body: Body, codec: int = 0, **fields: Any) -> Batch:
    """Return the batch that the producer makes of a body."""
    partition, count, base, most, raw = body
    small = compressed(raw, codec)
    return Batch(0, "t", partition, count, base, most, small, codec, 0.0, **fields)


def whole(body: Body, codec: int = 0) -> bytes:
    """Return the bytes of a batch of a producer that is not idempotent."""
    batch = batch_of(body, codec)
    return batch.header((-1, -1), transactional=False) + bytes(batch.body)


def random_batch(dice: random.Random, rows: int) -> pa.RecordBatch:
    def some(most: int) -> bytes | None:
        return None if dice.random() < 0.2 else dice.randbytes(dice.randrange(most))

    def headers() -> list[dict[str, Any]] | None:
        if dice.random() < 0.5:
            return None
        return [{"key": f"h{i}ü", "value": some(9)} for i in range(dice.randrange(4))]

    made = pa.record_batch(
        {
            "key": pa.array([some(20) for _ in range(rows)], pa.binary()),
            "value": pa.array([some(300) for _ in range(rows)], pa.binary()),
            "partition": pa.array(
                [dice.choice([None, -1, 0, 1, 2]) for _ in range(rows)], pa.int32()
            ),
            "headers": pa.array([headers() for _ in range(rows)], HEADERS),
        }
    )
    begin = dice.randrange(rows)
    return made.slice(begin, dice.randrange(1, rows - begin + 1))


def expected(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    return [
        (row["key"], row["value"], [(h["key"], h["value"]) for h in row["headers"] or []])
        for row in batch.to_pylist()
    ]


def test_every_row_is_in_one_batch_that_the_log_reads() -> None:
    dice = random.Random(5)
    for _ in range(30):
        batch = random_batch(dice, 200)
        found: list[tuple[Any, ...]] = []
        for body in encode(batch, 3, batch_bytes=dice.choice([1, 500, 5000])):
            stored = whole(body)
            header = check_batch(stored)
            assert (header.record_count, header.last_offset_delta) == (body[1], body[1] - 1)
            for record in decode_records(stored):
                pairs = [(str(name), value) for name, value in record.headers]
                found.append((record.key, record.value, pairs))
                assert record.timestamp == 1000
        assert sorted(map(repr, found)) == sorted(map(repr, expected(batch)))


def test_a_record_has_its_headers() -> None:
    made = RecordEncoder(1, LIMIT, LIMIT, LIMIT, MURMUR2, 0)
    headers = [("a", b"1"), ("ключ", None), ("a", b""), ("long", b"x" * 300)]
    assert made.append(b"k", b"v", 1000, encode_headers(headers)) == batching.ALL_READ
    assert made.append(None, b"w", 1000) == batching.ALL_READ
    assert made.append(b"k", b"v", 1000, bytes(LIMIT)) == batching.TOO_LARGE
    (body,) = made.take()
    one, other = decode_records(whole(body))
    assert [(str(name), value) for name, value in one.headers] == headers
    assert (one.key, one.value, other.value, other.headers) == (b"k", b"v", b"w", ())


def test_a_batch_has_the_bytes_of_the_logs_encoder() -> None:
    values = [b"a", None, b"", b"x" * 300]
    (body,) = encode(pa.record_batch({"value": pa.array(values, pa.binary())}))
    new = [NewRecord(None, value) for value in values]
    # The leader sets its epoch, which no checksum covers.
    log = encode_batch(new, timestamp_ms=1000, leader_epoch=-1)
    assert whole(body) == bytes(log)


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_each_codec_is_read_by_the_log(codec: int) -> None:
    values = [b"%d" % i * 20 for i in range(5000)]
    (body,) = encode(pa.record_batch({"value": values}))
    stored = whole(body, codec)
    assert len(stored) < len(body[4])
    assert [record.value for record in decode_records(stored)] == values


def test_a_batch_is_not_larger_than_its_limit_unless_one_record_is() -> None:
    values = [bytes(size) for size in (100, 100, 5000, 100, 300, 400)]
    bodies = encode(pa.record_batch({"value": values}), batch_bytes=1000)
    assert [each[1] for each in bodies] == [2, 1, 3] or [each[1] for each in bodies] == [2, 1, 2, 1]
    assert all(len(each[4]) <= 1000 or each[1] == 1 for each in bodies)


def test_later_rows_have_later_times() -> None:
    made = RecordEncoder(1, LIMIT, LIMIT, LIMIT, 1, 0)
    given = columns(pa.record_batch({"value": [b"v"]}))
    for time_ms in (1000, 5000, 3000, -7):
        made.add(given, 0, time_ms)
    (body,) = made.take()
    assert body[:4] == (0, 4, 1000, 5000)
    assert [record.timestamp for record in decode_records(whole(body))] == [1000, 5000, 3000, -7]


@pytest.mark.parametrize(
    ("key", "hash_"),
    # Apache Kafka's own test vectors (UtilsTest.testMurmur2).
    [(b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536)],
)
def test_a_key_has_the_partition_of_the_java_client(key: bytes, hash_: int) -> None:
    (body,) = encode(pa.record_batch({"key": [key], "value": [b"v"]}), 1000)
    assert body[0] == (hash_ & 0x7FFFFFFF) % 1000


def test_records_without_a_key_use_all_partitions_in_turn() -> None:
    batch = pa.record_batch({"value": [bytes(1000)] * 1000})
    bodies = encode(batch, 4, start=6)
    assert sorted(each[0] for each in bodies) == [0, 1, 2, 3]
    assert max(each[1] for each in bodies) - min(each[1] for each in bodies) <= 100
    (few,) = encode(batch.slice(0, 10), 4, start=6)
    assert few[0] == 2


@pytest.mark.parametrize(
    ("batch", "status"),
    [
        (pa.record_batch({"value": [b"v", bytes(2000)]}), batching.TOO_LARGE),
        (
            pa.record_batch({"value": [b"v", b""], "partition": pa.array([0, 7], pa.int32())}),
            batching.UNKNOWN_PARTITION,
        ),
        (
            pa.record_batch({"value": [b"v", b""], "partition": pa.array([0, -2], pa.int32())}),
            batching.UNKNOWN_PARTITION,
        ),
        (
            pa.record_batch(
                {
                    "value": [b"v", b""],
                    "headers": pa.array([None, [{"key": None, "value": b""}]], HEADERS),
                }
            ),
            batching.NULL_HEADER_KEY,
        ),
        (
            pa.record_batch({"value": [b"v", b""], "headers": pa.array([None, [None]], HEADERS)}),
            batching.NULL_HEADER_KEY,
        ),
    ],
)
def test_a_row_that_can_not_be_written_is_named(batch: pa.RecordBatch, status: int) -> None:
    made = RecordEncoder(3, LIMIT, 1000, LIMIT, 1, 0)
    assert made.add(columns(batch), 0, 0)[:2] == (1, status)
    (body,) = made.take()
    assert body[1] == 1


def test_more_partitions_can_appear() -> None:
    made = RecordEncoder(1, LIMIT, LIMIT, LIMIT, 1, 0)
    given = columns(pa.record_batch({"value": [b"v"], "partition": pa.array([5], pa.int32())}))
    assert made.add(given, 0, 0)[:2] == (0, batching.UNKNOWN_PARTITION)
    made.grow(6)
    assert made.partitions() == 6
    assert made.add(given, 0, 0)[:2] == (1, batching.ALL_READ)
    assert [each[0] for each in made.take()] == [5]
    for invalid in (5, 0, -1, 10**9):
        with pytest.raises(ValueError, match="number of partitions"):
            made.grow(invalid)


def test_limits_are_checked() -> None:
    good = (1, LIMIT, LIMIT, LIMIT, 1, 0)
    RecordEncoder(*good)
    for place, bad in [(0, 0), (0, 10**8), (1, 0), (2, 2**31 - 1), (3, 0), (4, 2), (5, -1)]:
        with pytest.raises(ValueError, match="invalid"):
            RecordEncoder(*good[:place], bad, *good[place + 1 :])


def _ends(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}i", *numbers)


GOOD = (0, 1, None, _ends(0, 2), b"ab")


@pytest.mark.parametrize(
    "bad",
    [
        5,
        (GOOD, None, None),
        (5, None, None, None),
        ((0, 1, None, _ends(0, 3), b"ab"), None, None, None),
        ((0, 1, None, _ends(2, 1), b"ab"), None, None, None),
        ((0, 1, None, _ends(-1, 1), b"ab"), None, None, None),
        ((0, 1, None, _ends(0, 2), None), None, None, None),
        ((0, 1, None, _ends(0), b"ab"), None, None, None),
        ((0, 9, b"\xff", _ends(*[0] * 10), b""), None, None, None),
        ((-1, 1, None, _ends(0, 2), b"ab"), None, None, None),
        ((0, -1, None, _ends(0, 2), b"ab"), None, None, None),
        ((2**60, 1, None, _ends(0, 2), b"ab"), None, None, None),
        (GOOD, (0, 2, None, _ends(0, 1, 2), b"ab"), None, None),
        (GOOD, None, (0, 1, None, b"", None), None),
        (GOOD, None, None, (GOOD, GOOD)),
        (GOOD, None, None, ((0, 1, None, _ends(0, 2), None), GOOD, GOOD)),
        (GOOD, None, None, ((0, 1, None, _ends(1, 0), None), GOOD, GOOD)),
        (GOOD, None, None, ((0, 1, None, _ends(0, 1), None), GOOD, (0, 0, None, _ends(0), b""))),
    ],
)
def test_invalid_columns_are_an_error_and_nothing_else(bad: Any) -> None:
    made = RecordEncoder(1, LIMIT, LIMIT, LIMIT, 1, 0)
    with pytest.raises((ValueError, TypeError)):
        made.add(bad, 0, 0)
    assert made.add((GOOD, None, None, None), 0, 0) == (1, batching.ALL_READ, [])


def test_rows_without_values_and_other_layouts_of_text_are_written() -> None:
    batch = pa.record_batch({"value": pa.nulls(2), "key": pa.array(["a", "b"], pa.large_string())})
    (body,) = encode(batch)
    found = [(record.key, record.value) for record in decode_records(whole(body))]
    assert found == [(b"a", None), (b"b", None)]
    dictionary = pa.record_batch({"value": pa.array(["a", None, "a"]).dictionary_encode()})
    (body,) = encode(dictionary)
    assert [record.value for record in decode_records(whole(body))] == [b"a", None, b"a"]


@pytest.mark.parametrize(
    "batch",
    [
        pa.record_batch({"value": pa.array([1])}),
        pa.record_batch({"value": [b"v"], "key": pa.array([1.5])}),
        pa.record_batch({"value": [b"v"], "partition": pa.array(["x"])}),
        pa.record_batch({"value": [b"v"], "partition": pa.array([2**40])}),
        pa.record_batch({"value": [b"v"], "headers": pa.array([b"h"])}),
    ],
)
def test_columns_of_other_types_are_refused(batch: pa.RecordBatch) -> None:
    with pytest.raises(DeliveryError, match="which is not written"):
        columns(batch)


def test_rows_of_several_topics_keep_their_order() -> None:
    batch = pa.record_batch({"topic": ["b", "a", "b"], "value": [b"1", b"2", b"3"]})
    found = [(topic, rows.column("value").to_pylist()) for topic, rows in by_topic(batch, None)]
    assert found == [("a", [b"2"]), ("b", [b"1", b"3"])]
    many = pa.record_batch(
        {"topic": [f"t{i % 5000}" for i in range(20_000)], "value": [b""] * 20_000}
    )
    assert [rows.num_rows for _, rows in by_topic(many, None)] == [4] * 5000
    assert list(by_topic(batch.slice(0, 0), None)) == []
    assert [topic for topic, _ in by_topic(batch, "c")] == ["c"]
