"""A client's half of the codec: responses of the APIs that the command line asks for itself."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from tests.protocols.kafka.messages import joined
from tidemill.errors import ProtocolError
from tidemill.kafka_codec.headers import (
    frame_response,
    parse_header,
    parse_response_header,
    peek_header,
    request_header,
)
from tidemill.kafka_codec.messages import (
    UnknownFieldError,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)

LOG_DIRS: dict[str, Any] = {
    "results": [
        {
            "error_code": 0,
            "log_dir": "/data",
            "topics": [
                {
                    "name": "t",
                    "partitions": [
                        {"partition_index": 3, "partition_size": 1 << 40, "is_future_key": True}
                    ],
                }
            ],
        }
    ]
}
COORDINATORS: dict[str, Any] = {
    "coordinators": [
        {"key": "ü", "node_id": 1, "host": "h", "port": 9, "error_code": 15, "error_message": None}
    ]
}
DESCRIBED: dict[str, Any] = {
    "transaction_states": [
        {
            "error_code": 0,
            "transactional_id": "a",
            "transaction_state": "Empty",
            "transaction_timeout": 60_000,
            "transaction_start_time": -1,
            "producer_id": 7,
            "producer_epoch": 2,
            "topics": [{"topic": "t", "partitions": [0, 5]}],
        }
    ]
}
LISTED: dict[str, Any] = {
    "error_code": 0,
    "unknown_state_filters": ["x"],
    "transaction_states": [
        {"transactional_id": "a", "producer_id": 1 << 40, "transaction_state": "Ongoing"}
    ],
}
ANSWERS = [
    *((35, version, LOG_DIRS) for version in range(1, 6)),
    *((10, version, COORDINATORS) for version in range(4, 7)),
    (65, 0, DESCRIBED),
    *((66, version, LISTED) for version in range(3)),
    *((22, v, {"error_code": 0, "producer_id": 4, "producer_epoch": 5}) for v in range(2, 6)),
    (18, 0, {"api_keys": [{"api_key": 1, "min_version": 2, "max_version": 3}]}),
]


def frame(api_key: int, version: int, tree: dict[str, Any]) -> bytes:
    """Encode a response, without its length."""
    body = encode_response(api_key, version, tree)
    return joined(frame_response(api_key, version, 42, [body]))[4:]


def decode(api_key: int, version: int, answer: bytes) -> tuple[int, dict[str, Any]]:
    """Decode a response: correlation id and tree."""
    correlation_id, position = parse_response_header(answer, api_key, version)
    return correlation_id, decode_response(api_key, version, answer, position).as_tree()


def holds(found: Any, expected: Any) -> bool:
    """Return whether ``found`` has everything in ``expected``; it may have more fields."""
    if isinstance(expected, dict):
        return all(holds(found[key], value) for key, value in expected.items())
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(holds, found, expected))
    return bool(found == expected)


@pytest.mark.parametrize(("api_key", "version", "tree"), ANSWERS)
def test_a_response_is_decoded_as_it_was_encoded(
    api_key: int, version: int, tree: dict[str, Any]
) -> None:
    correlation_id, found = decode(api_key, version, frame(api_key, version, tree))
    assert correlation_id == 42
    assert holds(found, tree), found


@pytest.mark.parametrize(("api_key", "version", "tree"), ANSWERS)
def test_a_response_that_is_truncated_anywhere_is_an_error(
    api_key: int, version: int, tree: dict[str, Any]
) -> None:
    whole = frame(api_key, version, tree)
    for end in range(len(whole) - 1):
        with pytest.raises(ProtocolError):
            decode(api_key, version, whole[: end + 1])


def test_tagged_fields_of_a_newer_broker_are_ignored() -> None:
    whole = frame(65, 0, DESCRIBED)
    assert whole.endswith(b"\0")
    newer = whole[:-1] + b"\x01\x09\x03abc"
    assert holds(decode(65, 0, newer)[1], DESCRIBED)


def test_an_absurd_count_is_refused() -> None:
    with pytest.raises(ProtocolError):
        decode(35, 1, struct.pack(">iii", 42, 0, 2**31 - 1))


def request(api_key: int, version: int, client_id: str | None, tree: dict[str, Any]) -> bytes:
    """Encode a request, without its length."""
    return request_header(api_key, version, 9, client_id) + encode_request(api_key, version, tree)


def test_a_request_is_what_the_broker_reads() -> None:
    tree = {
        "state_filters": ["Ongoing"],
        "producer_id_filters": [4],
        "duration_filter": 500,
        "transactional_id_pattern": "a.*",
    }
    for version in range(3):
        sent = request(66, version, "me", tree)
        assert peek_header(sent) == (66, version, 9)
        client_id, position = parse_header(sent, 66, version)
        assert client_id == "me"
        decoded = decode_request(66, version, sent, position)
        assert decoded.state_filters == ("Ongoing",)
        assert getattr(decoded, "duration_filter", None) == (500 if version else None)
    sent = request(22, 4, "", {"transactional_id": "a", "transaction_timeout": 1})
    decoded = decode_request(22, 4, sent, parse_header(sent, 22, 4)[1])
    assert decoded.transaction_timeout == 1
    assert (decoded.producer_id, decoded.producer_epoch) == (-1, -1)


@pytest.mark.parametrize("client_id", [None, ""])
def test_a_client_may_have_no_name(client_id: str | None) -> None:
    sent = request(66, 0, client_id, {})
    assert parse_header(sent, 66, 0)[0] == ""


def test_a_field_that_no_version_of_a_request_has_is_a_mistake() -> None:
    with pytest.raises(UnknownFieldError, match="state_filter"):
        encode_request(66, 0, {"state_filter": []})
