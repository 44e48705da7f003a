"""Malformed messages are refused with a typed error, before anything is allocated for them."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kafka_codec.test_parity import ADVERTISED, NAMED
from tests.protocols.kafka.messages import (
    as_tree,
    from_kio,
    full_tree,
    kio_bytes,
    kio_read,
    null_tree,
    to_kio,
)
from tests.support.effort import examples
from tidemill.errors import ProtocolError
from tidemill.kafka_codec import primitives
from tidemill.kafka_codec.declared import is_flexible
from tidemill.kafka_codec.messages import decode_request, decode_response
from tidemill.kafka_codec.schema import request_type, response_type, structure_of

DECODERS = {
    "request": (request_type, decode_request),
    "response": (response_type, decode_response),
}


def decode_or_refuse(decode: Any, key: int, version: int, body: bytes) -> None:
    """Decode; the only error that may occur is the typed one."""
    with contextlib.suppress(ProtocolError):
        decode(key, version, body, 0)


METADATA, CREATE_TOPICS, LIST_OFFSETS, OFFSET_COMMIT, FETCH = 3, 19, 2, 8, 1


@pytest.mark.parametrize(("key", "version"), NAMED)
def test_a_message_that_is_truncated_anywhere_is_refused(key: int, version: int) -> None:
    for name, (find, decode) in DECODERS.items():
        entity = find(key, version)
        body = kio_bytes(entity, full_tree(entity, size=1))
        for cut in range(len(body)):
            try:
                decode(key, version, body[:cut], 0)
            except ProtocolError:
                continue
            pytest.fail(f"a {name} of {cut} of {len(body)} bytes is decoded")


@pytest.mark.parametrize(("key", "version"), NAMED)
def test_an_absurd_length_anywhere_is_refused_without_much_memory(key: int, version: int) -> None:
    """Some positions in turn hold the largest lengths: if a length is expected, it is absurd."""
    for name, (find, decode) in DECODERS.items():
        entity = find(key, version)
        body = kio_bytes(entity, full_tree(entity, size=1))
        tracemalloc.start()
        try:
            decode_or_refuse(decode, key, version, body)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            for position in range(0, len(body), max(1, len(body) // 15)):
                for absurd in (b"\xff\xff\xff\xff\x0f", b"\x7f\xff\xff\xff"):
                    broken = body[:position] + absurd + body[position + len(absurd) :]
                    decode_or_refuse(decode, key, version, broken)
            assert tracemalloc.get_traced_memory()[1] - before < 100_000, name
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize(("find", "decode"), DECODERS.values(), ids=DECODERS)
@given(data=st.data())
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_damaged_message_is_decoded_or_refused(
    find: Any, decode: Any, data: st.DataObject
) -> None:
    key, version = data.draw(st.sampled_from(ADVERTISED))
    entity = find(key, version)
    body = bytearray(kio_bytes(entity, data.draw(st.sampled_from([full_tree, null_tree]))(entity)))
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(body)))
        removed = data.draw(st.integers(0, 8))
        body[position : position + removed] = data.draw(st.binary(max_size=8))
    decode_or_refuse(decode, key, version, bytes(body))


@given(data=st.data())
@settings(max_examples=examples(60), deadline=None)
def test_random_bytes_are_decoded_or_refused(data: st.DataObject) -> None:
    key, version = data.draw(st.sampled_from(ADVERTISED))
    body = data.draw(st.binary(max_size=200))
    decode_or_refuse(decode_request, key, version, body)
    decode_or_refuse(decode_response, key, version, body)


@pytest.mark.parametrize(("key", "version"), NAMED)
def test_bytes_behind_the_body_are_ignored(key: int, version: int) -> None:
    body = kio_bytes(request_type(key, version), null_tree(request_type(key, version)))
    request = decode_request(key, version, body, 0)
    assert decode_request(key, version, body + b"\1\0\0", 0) == request


def test_librdkafkas_metadata_request_for_all_topics_is_decoded() -> None:
    """librdkafka 2.16 leaves three bytes of a wider array length behind."""
    request = decode_request(METADATA, 13, bytes.fromhex("00000000010000"), 0)
    assert request.topics is None


def _array(count: int) -> bytes:
    return struct.pack(">i", count) + b"\0" * 30


def _with_tags(tags: bytes) -> bytes:
    return kio_bytes(request_type(METADATA, 12), {})[:-1] + tags


MALFORMED = {
    "compact array, 2**31 - 2": (METADATA, 12, b"\xff\xff\xff\xff\x07" + b"\0" * 30, "length"),
    "compact array, 2**32 - 2": (METADATA, 12, b"\xff\xff\xff\xff\x0f" + b"\0" * 30, "length"),
    "compact array, 2**31 - 1": (METADATA, 12, b"\x80\x80\x80\x80\x08" + b"\0" * 30, "length"),
    "array, 2**31 - 1": (METADATA, 4, _array(2**31 - 1), "length"),
    "array, -2": (METADATA, 4, _array(-2), "length"),
    "array, -2**31": (METADATA, 4, _array(-(2**31)), "length"),
    "array, 1000": (METADATA, 4, _array(1000), "length"),
    "null": (METADATA, 0, struct.pack(">i", -1), "null"),
    "compact null": (CREATE_TOPICS, 5, b"\0" + b"\0" * 6, "null"),
    "string, -7": (METADATA, 4, struct.pack(">ih?", 1, -7, True), "length -7"),
    "varint without end": (METADATA, 12, b"\xff" * 10, "five bytes"),
    "no UTF-8": (METADATA, 4, struct.pack(">ih", 1, 2) + b"\xc3\x28" + b"\1", "UTF-8"),
    "tag behind the end": (METADATA, 12, _with_tags(b"\1\x64\x7fabc"), "length"),
    "tag twice": (METADATA, 12, _with_tags(b"\2\x64\0\x64\0"), "follows tag"),
    "tags, 2**31 - 1": (METADATA, 12, _with_tags(b"\xff\xff\xff\xff\x07"), "length"),
    "tag without a length": (METADATA, 12, _with_tags(b"\1\x64"), "middle"),
}


@pytest.mark.parametrize(("key", "version", "body", "why"), MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_request_is_refused(key: int, version: int, body: bytes, why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        decode_request(key, version, body, 0)


def test_null_in_a_nullable_field_is_decoded() -> None:
    assert decode_request(METADATA, 4, struct.pack(">i?", -1, True), 0).topics is None


def test_duration_that_python_cannot_hold_is_refused() -> None:
    entity = request_type(OFFSET_COMMIT, 2)
    body = bytearray(kio_bytes(entity, {"group_id": "g", "member_id": "m", "retention_time": 77}))
    position = body.index(struct.pack(">q", 77))
    body[position : position + 8] = struct.pack(">q", 2**63 - 1)
    with pytest.raises(ProtocolError):
        decode_request(OFFSET_COMMIT, 2, bytes(body), 0)


def test_number_of_elements_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(primitives, "MAX_ELEMENTS", 10)
    entity = request_type(METADATA, 4)
    few = kio_bytes(entity, {"topics": [{"name": "t"}] * 10})
    assert len(decode_request(METADATA, 4, few, 0).topics) == 10
    many = kio_bytes(entity, {"topics": [{"name": "t"}] * 11})
    with pytest.raises(ProtocolError, match="11 elements of topics"):
        decode_request(METADATA, 4, many, 0)


# --- tags ----------------------------------------------------------------------------------------

FLEXIBLE = [
    pytest.param(key, version)
    for key, version in ADVERTISED
    if is_flexible(key, version)
    # Otherwise the section of tags is more than the last byte: see the test below.
    and not any(spec.tag is not None for spec in structure_of(request_type(key, version)).fields)
]


@pytest.mark.parametrize(("key", "version"), FLEXIBLE)
def test_unknown_tags_are_skipped(key: int, version: int) -> None:
    entity = request_type(key, version)
    tree = full_tree(entity) if version % 2 else null_tree(entity)
    body = kio_bytes(entity, tree)
    assert body[-1] == 0
    tagged = body[:-1] + b"\2\x64\3abc\xc8\1\0"  # tags 100 and 200
    assert as_tree(entity, decode_request(key, version, tagged, 0)) == from_kio(
        to_kio(entity, tree)
    )


def test_unknown_tags_beside_and_inside_known_ones_are_skipped() -> None:
    entity = request_type(FETCH, 17)
    tree = {"cluster_id": "abc", "replica_state": {"replica_id": 5, "replica_epoch": 9}}
    body = kio_bytes(entity, tree)
    state = struct.pack(">iq", 5, 9) + b"\0"
    known = b"\2" + b"\0\4\4abc" + b"\1" + bytes([len(state)]) + state
    assert body.endswith(known)
    inner = state[:-1] + b"\1\x09\2xy"
    tagged = b"\4" + b"\0\4\4abc" + b"\1" + bytes([len(inner)]) + inner + b"\7\0" + b"\x08\1z"
    body_with = body[: -len(known)] + tagged
    assert as_tree(entity, decode_request(FETCH, 17, body_with, 0)) == from_kio(
        kio_read(entity, body)
    )


def test_known_tag_with_a_wrong_size_is_refused() -> None:
    body = kio_bytes(request_type(FETCH, 17), {"cluster_id": "abc"})
    known = b"\1\0\4\4abc"
    assert body.endswith(known)
    wrong = body[: -len(known)] + b"\1\0\5\4abc\0"
    with pytest.raises(ProtocolError):
        decode_request(FETCH, 17, wrong, 0)
