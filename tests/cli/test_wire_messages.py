"""Answers of the APIs that the command line asks itself: read as they were written."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from tidemill.cli.wire_messages import decode_response, encode_request
from tidemill.errors import ProtocolError
from tidemill.kafka.codec import decode_request, encode_response, parse_header, peek_header
from tidemill.kafka.schema import is_flexible

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
    head = struct.pack(">i", 42)
    if is_flexible(api_key, version) and api_key != 18:
        head += b"\0"
    return head + bytes(encode_response(api_key, version, tree))


def holds(found: Any, expected: Any) -> bool:
    """Whether ``found`` has all that ``expected`` says; it may have more fields."""
    if isinstance(expected, dict):
        return all(holds(found[key], value) for key, value in expected.items())
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(holds, found, expected))
    return bool(found == expected)


@pytest.mark.parametrize(("api_key", "version", "tree"), ANSWERS)
def test_an_answer_is_read_as_it_was_written(
    api_key: int, version: int, tree: dict[str, Any]
) -> None:
    correlation_id, found = decode_response(api_key, version, frame(api_key, version, tree))
    assert correlation_id == 42
    assert holds(found, tree), found


@pytest.mark.parametrize(("api_key", "version", "tree"), ANSWERS)
def test_a_torn_answer_is_an_error_wherever_it_is_torn(
    api_key: int, version: int, tree: dict[str, Any]
) -> None:
    whole = frame(api_key, version, tree)
    for end in range(len(whole) - 1):
        with pytest.raises(ProtocolError):
            decode_response(api_key, version, whole[: end + 1])


def test_tagged_fields_of_a_newer_broker_are_passed_over() -> None:
    whole = frame(65, 0, DESCRIBED)
    assert whole.endswith(b"\0")
    newer = whole[:-1] + b"\x01\x09\x03abc"
    assert holds(decode_response(65, 0, newer)[1], DESCRIBED)


def test_an_absurd_count_takes_no_memory() -> None:
    with pytest.raises(ProtocolError):
        decode_response(35, 1, struct.pack(">iii", 42, 0, 2**31 - 1))


def test_a_request_is_what_the_broker_reads() -> None:
    tree = {
        "state_filters": ["Ongoing"],
        "producer_id_filters": [4],
        "duration_filter": 500,
        "transactional_id_pattern": "a.*",
    }
    for version in range(3):
        request = encode_request(66, version, 9, "me", tree)
        assert peek_header(request) == (66, version, 9)
        client_id, position = parse_header(request, 66, version)
        assert client_id == "me"
        decoded = decode_request(66, version, request, position)
        assert decoded.state_filters == ("Ongoing",)
        assert getattr(decoded, "duration_filter", None) == (500 if version else None)
    request = encode_request(22, 4, 1, "", {"transactional_id": "a", "transaction_timeout": 1})
    decoded = decode_request(22, 4, request, parse_header(request, 22, 4)[1])
    assert decoded.transaction_timeout.total_seconds() == 0.001
    assert (decoded.producer_id, decoded.producer_epoch) == (-1, -1)
