"""The codec written by hand agrees with the compiled one and with kio, in every version."""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocols.kafka.messages import as_tree as message_tree
from tests.protocols.kafka.messages import full_tree, joined, kio_bytes, null_tree, trees
from tests.support.effort import examples
from tidemill.errors import ProtocolError
from tidemill.kafka_codec.hot import (
    FetchedPartition,
    ProducedPartition,
    ProduceRequest,
    decode_produce,
    encode_fetch,
    encode_produce,
)
from tidemill.kafka_codec.messages import decode_request, encode_response
from tidemill.kafka_codec.quick import decode_quickly, encode_all, encode_one
from tidemill.kafka_codec.schema import request_type, response_type

PRODUCE, FETCH = 0, 1
PRODUCE_VERSIONS = range(3, 14)
FETCH_VERSIONS = range(4, 19)
TOPIC_ID = UUID(int=77)
LONG_RECORDS = bytes(5000)


def decoded(frame: memoryview, position: int, version: int) -> ProduceRequest:
    """Decode a Produce request without pauses, and compare with the decoder of ordinary ones."""
    quick = decode_quickly(frame, position, version)
    steps = decode_produce(frame, position, version)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            request: ProduceRequest = end.value
            assert quick in (None, request)
            return request
        except ProtocolError:
            assert quick is None
            raise


# --- Produce request -----------------------------------------------------------------------------


def as_tree(version: int, request: ProduceRequest) -> dict[str, Any]:
    return {
        "transactional_id": request.transactional_id,
        "acks": request.acks,
        "timeout": request.timeout_ms,
        "topic_data": [
            ({"topic_id": topic.topic_id} if version >= 13 else {"name": topic.name})
            | {
                "partition_data": [
                    {"index": index, "records": None if records is None else bytes(records)}
                    for index, records in topic.partitions
                ]
            }
            for topic in request.topics
        ],
    }


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@given(data=st.data())
@settings(max_examples=examples(15), deadline=None)
def test_a_produce_request_has_the_values_that_kio_wrote(version: int, data: st.DataObject) -> None:
    entity = request_type(PRODUCE, version)
    tree = data.draw(trees(entity))
    frame = memoryview(b"head" + kio_bytes(entity, tree))
    assert as_tree(version, decoded(frame, 4, version)) == tree
    compiled = decode_request(PRODUCE, version, frame, 4)
    assert message_tree(entity, compiled) == tree


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_records_are_views_into_the_frame(version: int) -> None:
    entity = request_type(PRODUCE, version)
    frame = bytearray(kio_bytes(entity, full_tree(entity)))
    records = decoded(memoryview(frame), 0, version).topics[0].partitions[0][1]
    assert records is not None
    records[0] = 0xAB
    assert 0xAB in frame


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@pytest.mark.parametrize("shape", [full_tree, null_tree])
def test_a_truncated_produce_request_is_refused(version: int, shape: Any) -> None:
    entity = request_type(PRODUCE, version)
    body = kio_bytes(entity, shape(entity))
    for cut in range(len(body)):
        with pytest.raises(ProtocolError):
            decoded(memoryview(body[:cut]), 0, version)
    with pytest.raises(ProtocolError, match="follow"):
        decoded(memoryview(body + b"\0"), 0, version)


@pytest.mark.parametrize("version", [9, 12, 13])
def test_unknown_tags_of_a_produce_request_are_skipped(version: int) -> None:
    entity = request_type(PRODUCE, version)
    tree = full_tree(entity)
    body = kio_bytes(entity, tree)[:-1] + b"\1\x09\2xy"
    assert as_tree(version, decoded(memoryview(body), 0, version)) == tree


@pytest.mark.parametrize(
    "body",
    [
        struct.pack(">hhii", -1, 1, 1000, 2**31 - 1) + b"\0" * 20,
        struct.pack(">hhii", -1, 1, 1000, -2) + b"\0" * 20,
        struct.pack(">hhiih", -1, 1, 1000, 1, -1) + b"\0" * 20,
        struct.pack(">hhiih", -5, 1, 1000, 1, -1) + b"\0" * 20,
    ],
    ids=["absurd count", "negative count", "null name", "negative length"],
)
def test_a_produce_request_with_an_invalid_length_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        decoded(memoryview(body), 0, 7)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_produce_requests_of_old_clients_are_decoded(version: int) -> None:
    body = struct.pack(">hiih1sii", 1, 500, 1, 1, b"t", 1, 4) + struct.pack(">i2s", 2, b"ab")
    request = decoded(memoryview(body), 0, version)
    assert (request.acks, request.timeout_ms, request.topics[0].name) == (1, 500, "t")
    assert [(i, bytes(r or b"")) for i, r in request.topics[0].partitions] == [(4, b"ab")]


# --- Produce response ----------------------------------------------------------------------------

produced = st.builds(
    ProducedPartition,
    partition=st.integers(0, 2**31 - 1),
    error_code=st.sampled_from([0, 3, 87]),
    base_offset=st.integers(-1, 2**62),
    log_append_time_ms=st.just(-1) | st.integers(0, 4_000_000_000_000),
    log_start_offset=st.integers(-1, 2**62),
    error_message=st.none() | st.text(st.characters(codec="utf-8"), max_size=200),
    record_errors=st.lists(st.tuples(st.integers(0, 2**31 - 1), st.text("é x", max_size=20))),
)
produced_topics = st.lists(
    st.tuples(st.text("abc", max_size=9), st.uuids(), st.lists(produced, max_size=3)), max_size=3
)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@given(topics=produced_topics, throttle_ms=st.integers(0, 2**31 - 1))
@settings(max_examples=examples(20), deadline=None)
def test_produce_response_has_the_bytes_that_kio_writes(
    version: int, topics: Any, throttle_ms: int
) -> None:
    tree = {
        "throttle_time": throttle_ms,
        "responses": [
            {
                "name": name,
                "topic_id": topic_id,
                "partition_responses": [
                    {
                        "index": part.partition,
                        "error_code": part.error_code,
                        "base_offset": part.base_offset,
                        "log_append_time": part.log_append_time_ms,
                        "log_start_offset": part.log_start_offset,
                        "error_message": part.error_message,
                        "record_errors": [
                            {"batch_index": index, "batch_index_error_message": reason}
                            for index, reason in part.record_errors
                        ],
                    }
                    for part in parts
                ],
            }
            for name, topic_id, parts in topics
        ],
    }
    expected = kio_bytes(response_type(PRODUCE, version), tree)
    assert encode_produce(version, topics, throttle_ms) == expected
    assert encode_response(PRODUCE, version, tree) == expected


def test_produce_responses_of_old_clients() -> None:
    topics = [("t", None, [ProducedPartition(4, 35, -1, -1)])]
    v0 = struct.pack(">ih1siihq", 1, 1, b"t", 1, 4, 35, -1)
    assert encode_produce(0, topics) == v0
    assert encode_produce(1, topics) == v0 + struct.pack(">i", 0)
    assert encode_produce(2, topics) == v0 + struct.pack(">qi", -1, 0)


# --- Fetch response ------------------------------------------------------------------------------

offsets = st.integers(-1, 2**62)
fetched = st.builds(
    FetchedPartition,
    partition=st.integers(0, 2**31 - 1),
    error_code=st.sampled_from([0, 1, 3]),
    high_watermark=offsets,
    last_stable_offset=offsets,
    log_start_offset=offsets,
    aborted=st.none() | st.lists(st.tuples(offsets, offsets), max_size=2),
    records=st.binary(max_size=300) | st.sampled_from([LONG_RECORDS]),
)
fetched_topics = st.lists(
    st.tuples(st.text("abc", max_size=9), st.uuids(), st.lists(fetched, max_size=3)), max_size=3
)


@pytest.mark.parametrize("version", FETCH_VERSIONS)
@given(topics=fetched_topics, head=st.tuples(*[st.integers(0, 99)] * 2))
@settings(max_examples=examples(20), deadline=None)
def test_fetch_response_has_the_bytes_that_kio_writes(
    version: int, topics: Any, head: tuple[int, int]
) -> None:
    throttle_ms, session_id = head
    tree = {
        "throttle_time": throttle_ms,
        "error_code": 0,
        "session_id": session_id,
        "responses": [
            {
                "topic": name,
                "topic_id": topic_id,
                "partitions": [
                    {
                        "partition_index": part.partition,
                        "error_code": part.error_code,
                        "high_watermark": part.high_watermark,
                        "last_stable_offset": part.last_stable_offset,
                        "log_start_offset": part.log_start_offset,
                        "aborted_transactions": part.aborted
                        if part.aborted is None
                        else [{"producer_id": a, "first_offset": b} for a, b in part.aborted],
                        "records": part.records,
                    }
                    for part in parts
                ],
            }
            for name, topic_id, parts in topics
        ],
    }
    buffers = encode_fetch(version, topics, session_id=session_id, throttle_ms=throttle_ms)
    assert joined(buffers) == kio_bytes(response_type(FETCH, version), tree)
    assert joined(buffers) == encode_response(FETCH, version, tree)


def test_long_records_are_sent_as_they_are() -> None:
    records = memoryview(bytes(100_000))
    buffers = encode_fetch(17, [("", TOPIC_ID, [FetchedPartition(0, 0, records=records)])])
    assert any(buffer is records for buffer in buffers)


def test_empty_partition_carries_no_null_records() -> None:
    body = joined(encode_fetch(12, [("t", None, [FetchedPartition(0, 0)])]))
    # Length zero and not null, then three empty tag sections.
    assert body.endswith(b"\1" + b"\0" * 3)


# --- ordinary requests ---------------------------------------------------------------------------


def ordinary_body(version: int) -> bytes:
    partitions = [{"index": each, "records": bytes(each)} for each in (7, 0)]
    key = {"topic_id": TOPIC_ID} if version >= 13 else {"name": "a"}
    tree = {
        "transactional_id": None,
        "acks": -1,
        "timeout": 30_000,
        "topic_data": [{**key, "partition_data": partitions}],
    }
    return kio_bytes(request_type(PRODUCE, version), tree)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_ordinary_produce_requests_are_decoded_in_one_call(version: int) -> None:
    body = ordinary_body(version)
    assert decode_quickly(memoryview(body), 0, version) == decoded(memoryview(body), 0, version)


@settings(max_examples=examples(150))
@given(data=st.data())
def test_changed_requests_mean_the_same_to_both_decoders(data: st.DataObject) -> None:
    version = data.draw(st.sampled_from([3, 8, 9, 12, 13]))
    body = bytearray(ordinary_body(version))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    del body[data.draw(st.integers(1, len(body))) :]
    with suppress(ProtocolError):
        decoded(memoryview(body), 0, version)


@pytest.mark.parametrize("version", range(14))
@pytest.mark.parametrize("name", ["a", "Z" * 249])
def test_the_short_response_has_the_bytes_of_the_long_one(version: int, name: str) -> None:
    for offsets in ((5, -1, 0), (1 << 62, 1_700_000_000_000, 7)):
        produced = ProducedPartition(3, 0, *offsets)
        body = encode_produce(version, [(name, TOPIC_ID, [produced])])
        assert encode_one(version, name, TOPIC_ID, 3, offsets) == (body if version >= 5 else None)


@pytest.mark.parametrize("version", range(14))
@pytest.mark.parametrize("counts", [[], [0], [1], [12], [3, 0, 1], [200, 130]])
def test_the_short_response_to_many_partitions_has_the_bytes_of_the_long_one(
    version: int, counts: list[int]
) -> None:
    offsets = [(1 << 40 | number, number - 1, number % 7) for number in range(sum(counts))]
    following = iter(offsets)
    asked, produced = [], []
    for number, count in enumerate(counts):
        name, topic_id = "n" * (1 + 200 * number), UUID(int=number)
        asked.append((name, topic_id.bytes, list(range(5, 5 + count))))
        of_topic = [ProducedPartition(5 + n, 0, *next(following)) for n in range(count)]
        produced.append((name, topic_id, of_topic))
    body = encode_produce(version, produced)
    assert encode_all(version, asked, offsets) == (body if version >= 5 else None)
