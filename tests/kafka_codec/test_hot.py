"""The codec written by hand agrees with the compiled one and with kio, in every version."""

from __future__ import annotations

import struct
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
    Produced,
    ProduceRequest,
    Refusal,
    decode_produce,
    encode_fetch,
    encode_produce,
    encode_run,
)
from tidemill.kafka_codec.messages import decode_request, encode_response
from tidemill.kafka_codec.schema import request_type, response_type
from tidemill.native import extension

PRODUCE, FETCH = 0, 1
PRODUCE_VERSIONS = range(3, 14)
FETCH_VERSIONS = range(4, 19)
TOPIC_ID = UUID(int=77)
LONG_RECORDS = bytes(5000)


def records_of(request: ProduceRequest) -> list[list[tuple[int, memoryview | None]]]:
    """Return index and records of the partitions of each topic."""
    return [
        [(index, request.frame[start:end] if start >= 0 else None) for index, start, end in each[2]]
        for each in request.topics
    ]


# --- Produce request -----------------------------------------------------------------------------


def as_tree(request: ProduceRequest) -> dict[str, Any]:
    return {
        "transactional_id": request.transactional_id,
        "acks": request.acks,
        "timeout": request.timeout_ms,
        "topic_data": [
            ({"name": name} if topic_id is None else {"topic_id": UUID(bytes=topic_id)})
            | {
                "partition_data": [
                    {"index": index, "records": None if records is None else bytes(records)}
                    for index, records in partitions
                ]
            }
            for (name, topic_id, _), partitions in zip(
                request.topics, records_of(request), strict=True
            )
        ],
    }


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@given(data=st.data())
@settings(max_examples=examples(15), deadline=None)
def test_a_produce_request_has_the_values_that_kio_wrote(version: int, data: st.DataObject) -> None:
    entity = request_type(PRODUCE, version)
    tree = data.draw(trees(entity))
    frame = memoryview(b"head" + kio_bytes(entity, tree))
    assert as_tree(decode_produce(frame, 4, version)) == tree
    compiled = decode_request(PRODUCE, version, frame, 4)
    assert message_tree(entity, compiled) == tree


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_records_are_views_into_the_frame(version: int) -> None:
    entity = request_type(PRODUCE, version)
    frame = bytearray(kio_bytes(entity, full_tree(entity)))
    records = records_of(decode_produce(memoryview(frame), 0, version))[0][0][1]
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
            decode_produce(memoryview(body[:cut]), 0, version)
    with pytest.raises(ProtocolError, match="follow"):
        decode_produce(memoryview(body + b"\0"), 0, version)


@pytest.mark.parametrize("version", [9, 12, 13])
def test_unknown_tags_of_a_produce_request_are_skipped(version: int) -> None:
    entity = request_type(PRODUCE, version)
    tree = full_tree(entity)
    body = kio_bytes(entity, tree)[:-1] + b"\1\x09\2xy"
    assert as_tree(decode_produce(memoryview(body), 0, version)) == tree


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
        decode_produce(memoryview(body), 0, 7)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_produce_requests_of_old_clients_are_decoded(version: int) -> None:
    body = struct.pack(">hiih1sii", 1, 500, 1, 1, b"t", 1, 4) + struct.pack(">i2s", 2, b"ab")
    request = decode_produce(memoryview(body), 0, version)
    assert (request.acks, request.timeout_ms, request.topics[0][0]) == (1, 500, "t")
    assert [(i, bytes(r or b"")) for i, r in records_of(request)[0]] == [(4, b"ab")]


# --- Produce response ----------------------------------------------------------------------------

offsets = st.integers(-1, 2**62)
appended = st.tuples(offsets, st.just(-1) | st.integers(0, 4_000_000_000_000), offsets)
refusals = st.builds(
    Refusal,
    error_code=st.sampled_from([0, 3, 87]),
    base_offset=offsets,
    log_start_offset=offsets,
    message=st.none() | st.text(st.characters(codec="utf-8"), max_size=200),
    records=st.lists(st.tuples(st.integers(0, 2**31 - 1), st.text("é x", max_size=20))),
)
produced = st.tuples(st.integers(0, 2**31 - 1), appended | refusals)
produced_topics = st.lists(
    st.tuples(st.text("abc", max_size=9), st.uuids(), st.lists(produced, max_size=3)), max_size=3
)


def fields_of(index: int, result: Produced) -> dict[str, Any]:
    """Return a result as kio has it."""
    if not isinstance(result, Refusal):
        base, time, start = result
        result, code = Refusal(0, base, start), 0
    else:
        time, code = -1, result.error_code
    return {
        "index": index,
        "error_code": code,
        "base_offset": result.base_offset,
        "log_append_time": time,
        "log_start_offset": result.log_start_offset,
        "error_message": result.message,
        "record_errors": [
            {"batch_index": at, "batch_index_error_message": reason}
            for at, reason in result.records
        ],
    }


def with_throttle(body: bytes, version: int) -> bytes:
    """Return the body of a response to a request that was not throttled."""
    end = 5 if version >= 9 else 4
    return body[:-end] + bytes(end)


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
                "partition_responses": [fields_of(*part) for part in parts],
            }
            for name, topic_id, parts in topics
        ],
    }
    expected = kio_bytes(response_type(PRODUCE, version), tree)
    asked = [
        (name, topic_id.bytes, [part[:1] for part in parts]) for name, topic_id, parts in topics
    ]
    results = [part[1] for *_, parts in topics for part in parts]
    assert encode_produce(version, asked, results, throttle_ms) == expected
    one, two = ((number, asked) for number in (1, -7))
    head = b"\0" if version >= 9 else b""
    responses = [struct.pack(">i", each[0]) + head for each in (one, two)]
    assert encode_run(version, [one, two], 2 * results) == b"".join(
        struct.pack(">i", len(each + body)) + each + body
        for each, body in zip(responses, 2 * [with_throttle(expected, version)], strict=True)
    )
    assert encode_response(PRODUCE, version, tree) == expected


def test_produce_responses_of_old_clients() -> None:
    topics = [("t", None, [(4,)])]
    results: list[Produced] = [Refusal(35)]
    v0 = struct.pack(">ih1siihq", 1, 1, b"t", 1, 4, 35, -1)
    assert encode_produce(0, topics, results) == v0
    assert encode_produce(1, topics, results) == v0 + struct.pack(">i", 0)
    assert encode_produce(2, topics, results) == v0 + struct.pack(">qi", -1, 0)


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


# --- wrong arguments -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("requests", "results", "why"),
    [
        ([(None, [("t", None, [(0,)])])], [], "out of range"),
        ([(None, [("t", None, [(0,)])])], [(1, 2, 3)] * 2, "each partition has a result"),
        ([(None, [("t", None, [(0,)])])], [(1, 2)], "not a partition and its result"),
        ([(None, [("t", None, [0])])], [(1, 2, 3)], "not a partition and its result"),
        ([(None, [("t", None, ((0,),))])], [(1, 2, 3)], "not a topic"),
        ([(None, ())], [], "topics must be a list"),
        ([7], [], "not a request"),
        ([(None, [("t", b"short", [])])], [], "16 bytes"),
        ([(None, [("t", bytes(16), [(0,)])])], [Refusal(1, records=[3])], "not a refused record"),  # type: ignore[list-item]
    ],
)
def test_a_response_of_wrong_arguments_is_not_encoded(
    requests: list[Any], results: list[Any], why: str
) -> None:
    with pytest.raises((TypeError, ValueError, IndexError), match=why):
        extension.encode_produced(13, requests, results, 0)


@pytest.mark.parametrize("version", [9, 13])
def test_tagged_fields_without_end_are_refused(version: int) -> None:
    entity = request_type(PRODUCE, version)
    body = kio_bytes(entity, full_tree(entity))[:-1]
    for tags, why in ((b"\xff\xff\xff\xff\x0f", "length"), (b"\x01\x09\x7f", "middle")):
        with pytest.raises(ProtocolError, match=why):
            decode_produce(memoryview(body + tags), 0, version)
    with pytest.raises(ProtocolError, match="more than 5000"):
        decode_produce(memoryview(body + b"\x89\x27" + b"\0" * 10_002), 0, version)
