"""Both editions of the encoder write what the log's decoder reads, and refuse invalid columns."""

from __future__ import annotations

import random
import struct
from typing import Any

import pyarrow as pa
import pytest

from tidemill import native
from tidemill.kafka_client.producing import encoder as python
from tidemill.kafka_client.producing.record_batch import Batch, compressed
from tidemill.log.format.batch import check_batch
from tidemill.log.format.records import NewRecord, decode_records, encode_batch
from tidemill.spark.errors import DeliveryError
from tidemill.spark.sinks.topic.delivery.native.columns import by_topic, columns

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
LIMIT = 1_000_000


def _kinds() -> list[Any]:
    extension = native.load()
    return [python.RecordEncoder, *([] if extension is None else [extension.RecordEncoder])]


@pytest.fixture(params=_kinds(), ids=["python", "native"][: len(_kinds())])
def kind(request: pytest.FixtureRequest) -> Any:
    """The class of an edition."""
    return request.param


def encode(
    kind: Any, batch: pa.RecordBatch, partitions: int = 1, *, time_ms: int = 1000, **limits: int
) -> list[python.Body]:
    """Return all bodies of the rows."""
    made = kind(
        partitions,
        limits.get("batch_bytes", LIMIT),
        limits.get("record_bytes", LIMIT),
        limits.get("open_bytes", LIMIT),
        limits.get("method", python.MURMUR2_RANDOM),
        limits.get("start", 0),
    )
    row, found, given = 0, [], columns(batch)
    while row < batch.num_rows:
        row, status, closed = made.add(given, row, time_ms)
        found += closed
        assert status in (python.ALL_READ, python.FULL)
    size, rest = made.size(), made.take()
    assert size == sum(memoryview(each[4]).nbytes for each in rest)
    assert made.size() == 0
    return [(*each[:4], bytes(each[4])) for each in found + rest]


def batch_of(body: python.Body, codec: int = 0, **fields: Any) -> Batch:
    """Return the batch that the producer makes of a body."""
    partition, count, base, most, raw = body
    small = compressed(raw, codec)
    return Batch(0, "t", partition, count, base, most, small, codec, 0.0, **fields)


def whole(body: python.Body, codec: int = 0) -> bytes:
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


def test_every_row_is_in_one_batch_that_the_log_reads(kind: Any) -> None:
    dice = random.Random(5)
    for _ in range(30):
        batch = random_batch(dice, 200)
        found: list[tuple[Any, ...]] = []
        for body in encode(kind, batch, 3, batch_bytes=dice.choice([1, 500, 5000])):
            stored = whole(body)
            header = check_batch(stored)
            assert (header.record_count, header.last_offset_delta) == (body[1], body[1] - 1)
            for record in decode_records(stored):
                pairs = [(str(name), value) for name, value in record.headers]
                found.append((record.key, record.value, pairs))
                assert record.timestamp == 1000
        assert sorted(map(repr, found)) == sorted(map(repr, expected(batch)))


def test_both_editions_write_the_same_bytes() -> None:
    if len(_kinds()) == 1:
        pytest.skip("the extension was not built")
    dice = random.Random(6)
    for _ in range(30):
        batch = random_batch(dice, 200)
        limits = {"batch_bytes": dice.choice([1, 700, 9000]), "open_bytes": dice.choice([1, 10**6])}
        limits |= {"method": dice.randrange(2), "start": dice.randrange(100)}
        partitions = dice.randrange(3, 9)
        one, other = (encode(each, batch, partitions, **limits) for each in _kinds())
        assert one == other


def test_a_batch_has_the_bytes_of_the_logs_encoder(kind: Any) -> None:
    values = [b"a", None, b"", b"x" * 300]
    (body,) = encode(kind, pa.record_batch({"value": pa.array(values, pa.binary())}))
    new = [NewRecord(None, value) for value in values]
    # The leader sets its epoch, which no checksum covers.
    log = encode_batch(new, timestamp_ms=1000, leader_epoch=-1)
    assert whole(body) == bytes(log)


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_each_codec_is_read_by_the_log(kind: Any, codec: int) -> None:
    values = [b"%d" % i * 20 for i in range(5000)]
    (body,) = encode(kind, pa.record_batch({"value": values}))
    stored = whole(body, codec)
    assert len(stored) < len(body[4])
    assert [record.value for record in decode_records(stored)] == values


def test_a_batch_is_not_larger_than_its_limit_unless_one_record_is(kind: Any) -> None:
    values = [bytes(size) for size in (100, 100, 5000, 100, 300, 400)]
    bodies = encode(kind, pa.record_batch({"value": values}), batch_bytes=1000)
    assert [each[1] for each in bodies] == [2, 1, 3] or [each[1] for each in bodies] == [2, 1, 2, 1]
    assert all(len(each[4]) <= 1000 or each[1] == 1 for each in bodies)


def test_later_rows_have_later_times(kind: Any) -> None:
    made = kind(1, LIMIT, LIMIT, LIMIT, 1, 0)
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
def test_a_key_has_the_partition_of_the_java_client(kind: Any, key: bytes, hash_: int) -> None:
    assert python.murmur2(key) == hash_ & 0xFFFFFFFF
    (body,) = encode(kind, pa.record_batch({"key": [key], "value": [b"v"]}), 1000)
    assert body[0] == (hash_ & 0x7FFFFFFF) % 1000


def test_records_without_a_key_use_all_partitions_in_turn(kind: Any) -> None:
    batch = pa.record_batch({"value": [bytes(1000)] * 1000})
    bodies = encode(kind, batch, 4, start=6)
    assert sorted(each[0] for each in bodies) == [0, 1, 2, 3]
    assert max(each[1] for each in bodies) - min(each[1] for each in bodies) <= 100
    (few,) = encode(kind, batch.slice(0, 10), 4, start=6)
    assert few[0] == 2


@pytest.mark.parametrize(
    ("batch", "status"),
    [
        (pa.record_batch({"value": [b"v", bytes(2000)]}), python.TOO_LARGE),
        (
            pa.record_batch({"value": [b"v", b""], "partition": pa.array([0, 7], pa.int32())}),
            python.UNKNOWN_PARTITION,
        ),
        (
            pa.record_batch({"value": [b"v", b""], "partition": pa.array([0, -2], pa.int32())}),
            python.UNKNOWN_PARTITION,
        ),
        (
            pa.record_batch(
                {
                    "value": [b"v", b""],
                    "headers": pa.array([None, [{"key": None, "value": b""}]], HEADERS),
                }
            ),
            python.NULL_HEADER_KEY,
        ),
        (
            pa.record_batch({"value": [b"v", b""], "headers": pa.array([None, [None]], HEADERS)}),
            python.NULL_HEADER_KEY,
        ),
    ],
)
def test_a_row_that_can_not_be_written_is_named(
    kind: Any, batch: pa.RecordBatch, status: int
) -> None:
    made = kind(3, LIMIT, 1000, LIMIT, 1, 0)
    assert made.add(columns(batch), 0, 0)[:2] == (1, status)
    (body,) = made.take()
    assert body[1] == 1


def test_more_partitions_can_appear(kind: Any) -> None:
    made = kind(1, LIMIT, LIMIT, LIMIT, 1, 0)
    given = columns(pa.record_batch({"value": [b"v"], "partition": pa.array([5], pa.int32())}))
    assert made.add(given, 0, 0)[:2] == (0, python.UNKNOWN_PARTITION)
    made.grow(6)
    assert made.partitions() == 6
    assert made.add(given, 0, 0)[:2] == (1, python.ALL_READ)
    assert [each[0] for each in made.take()] == [5]
    for invalid in (5, 0, -1, 10**9):
        with pytest.raises(ValueError, match="number of partitions"):
            made.grow(invalid)


def test_limits_are_checked(kind: Any) -> None:
    good = (1, LIMIT, LIMIT, LIMIT, 1, 0)
    kind(*good)
    for place, bad in [(0, 0), (0, 10**8), (1, 0), (2, 2**31 - 1), (3, 0), (4, 2), (5, -1)]:
        with pytest.raises(ValueError, match="invalid"):
            kind(*good[:place], bad, *good[place + 1 :])


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
def test_invalid_columns_are_an_error_and_nothing_else(kind: Any, bad: Any) -> None:
    made = kind(1, LIMIT, LIMIT, LIMIT, 1, 0)
    with pytest.raises((ValueError, TypeError)):
        made.add(bad, 0, 0)
    assert made.add((GOOD, None, None, None), 0, 0) == (1, python.ALL_READ, [])


def test_rows_without_values_and_other_layouts_of_text_are_written(kind: Any) -> None:
    batch = pa.record_batch({"value": pa.nulls(2), "key": pa.array(["a", "b"], pa.large_string())})
    (body,) = encode(kind, batch)
    found = [(record.key, record.value) for record in decode_records(whole(body))]
    assert found == [(b"a", None), (b"b", None)]
    dictionary = pa.record_batch({"value": pa.array(["a", None, "a"]).dictionary_encode()})
    (body,) = encode(kind, dictionary)
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
