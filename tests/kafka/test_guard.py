"""Nothing reaches the native reader that could make it allocate without bounds."""

from __future__ import annotations

import struct

import pytest

from tests.kafka.messages import full_tree, kio_bytes, kio_read, null_tree, to_kio
from tests.kafka.test_versions import ADVERTISED, NAMED
from tidemill.errors import ProtocolError
from tidemill.kafka import codec, guard
from tidemill.kafka.schema import fields_of, is_flexible, request_type

METADATA, CREATE_TOPICS, LIST_OFFSETS, OFFSET_COMMIT, FETCH = 3, 19, 2, 8, 1


@pytest.mark.parametrize(("key", "version"), NAMED)
def test_every_torn_request_is_refused(key: int, version: int) -> None:
    body = kio_bytes(request_type(key, version), full_tree(request_type(key, version)))
    for cut in range(len(body)):
        with pytest.raises(ProtocolError):
            codec.decode_request(key, version, body[:cut], 0)


@pytest.mark.parametrize(("key", "version"), NAMED)
def test_bytes_behind_the_body_are_passed_over(key: int, version: int) -> None:
    body = kio_bytes(request_type(key, version), null_tree(request_type(key, version)))
    request = codec.decode_request(key, version, body, 0)
    assert codec.decode_request(key, version, body + b"\1\0\0", 0) == request


def test_librdkafkas_metadata_request_for_all_topics_is_read() -> None:
    """librdkafka 2.16 leaves three bytes of a wider array length behind."""
    request = codec.decode_request(METADATA, 13, bytes.fromhex("00000000010000"), 0)
    assert request.topics is None


@pytest.mark.parametrize(
    "count", [b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\x0f", b"\x80\x80\x80\x80\x08"]
)
def test_absurd_compact_array_is_refused_before_anything_is_allocated(count: bytes) -> None:
    with pytest.raises(ProtocolError, match="length"):
        codec.decode_request(METADATA, 12, count + b"\0" * 30, 0)


@pytest.mark.parametrize("count", [2**31 - 1, -2, -(2**31), 1000])
def test_absurd_legacy_array_is_refused(count: int) -> None:
    with pytest.raises(ProtocolError, match="length"):
        codec.decode_request(METADATA, 4, struct.pack(">i", count) + b"\0" * 30, 0)


def test_null_where_the_schema_has_none_is_refused() -> None:
    with pytest.raises(ProtocolError, match="null"):
        codec.decode_request(METADATA, 0, struct.pack(">i", -1), 0)
    with pytest.raises(ProtocolError, match="null"):
        codec.decode_request(CREATE_TOPICS, 5, b"\0" + b"\0" * 6, 0)


def test_null_where_the_schema_has_one_is_read() -> None:
    assert codec.decode_request(METADATA, 4, struct.pack(">i?", -1, True), 0).topics is None


def test_negative_string_length_is_refused() -> None:
    with pytest.raises(ProtocolError, match="length -7"):
        codec.decode_request(METADATA, 4, struct.pack(">ih?", 1, -7, True), 0)


def test_varint_that_does_not_end_is_refused() -> None:
    with pytest.raises(ProtocolError, match="five bytes"):
        codec.decode_request(METADATA, 12, b"\xff" * 10, 0)


def test_text_that_is_not_utf8_is_refused() -> None:
    body = struct.pack(">ih", 1, 2) + b"\xc3\x28" + b"\1"
    with pytest.raises(ProtocolError):
        codec.decode_request(METADATA, 4, body, 0)


def test_duration_that_python_cannot_hold_is_refused() -> None:
    entity = request_type(OFFSET_COMMIT, 2)
    body = bytearray(kio_bytes(entity, {"group_id": "g", "member_id": "m", "retention_time": 77}))
    position = body.index(struct.pack(">q", 77))
    body[position : position + 8] = struct.pack(">q", 2**63 - 1)
    with pytest.raises(ProtocolError):
        codec.decode_request(OFFSET_COMMIT, 2, bytes(body), 0)


def test_number_of_elements_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "MAX_ELEMENTS", 10)
    entity = request_type(METADATA, 4)
    few = kio_bytes(entity, {"topics": [{"name": "t"}] * 10})
    assert len(codec.decode_request(METADATA, 4, few, 0).topics) == 10
    many = kio_bytes(entity, {"topics": [{"name": "t"}] * 11})
    with pytest.raises(ProtocolError, match="more than"):
        codec.decode_request(METADATA, 4, many, 0)


# --- tags ----------------------------------------------------------------------------------------

FLEXIBLE = [
    pytest.param(key, version)
    for key, version in ADVERTISED
    if is_flexible(key, version)
    # Else its tag section is not the last byte: see the test below.
    and not any(spec.tag is not None for spec in fields_of(request_type(key, version)))
]


@pytest.mark.parametrize(("key", "version"), FLEXIBLE)
def test_unknown_tags_are_skipped(key: int, version: int) -> None:
    entity = request_type(key, version)
    tree = full_tree(entity) if version % 2 else null_tree(entity)
    body = kio_bytes(entity, tree)
    assert body[-1] == 0
    tagged = body[:-1] + b"\2\x64\3abc\xc8\1\0"  # tags 100 and 200
    assert codec.decode_request(key, version, tagged, 0) == to_kio(entity, tree)


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
    assert codec.decode_request(FETCH, 17, body_with, 0) == kio_read(entity, body)


@pytest.mark.parametrize(
    ("tags", "why"),
    [
        (b"\1\x64\x7fabc", "length"),
        (b"\2\x64\0\x64\0", "follows tag"),
        (b"\xff\xff\xff\xff\x07", "length"),
        (b"\1\x64", "middle"),
    ],
)
def test_tags_that_lie_are_refused(tags: bytes, why: str) -> None:
    body = kio_bytes(request_type(METADATA, 12), {})[:-1] + tags
    with pytest.raises(ProtocolError, match=why):
        codec.decode_request(METADATA, 12, body, 0)


def test_known_tag_with_a_wrong_size_is_refused() -> None:
    body = kio_bytes(request_type(FETCH, 17), {"cluster_id": "abc"})
    known = b"\1\0\4\4abc"
    assert body.endswith(known)
    wrong = body[: -len(known)] + b"\1\0\5\4abc\0"
    with pytest.raises(ProtocolError):
        codec.decode_request(FETCH, 17, wrong, 0)
