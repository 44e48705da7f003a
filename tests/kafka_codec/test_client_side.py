"""A client's half of the codec: headers, and responses that are damaged or from a newer broker.

That messages have the bytes of kio is for ``test_parity`` to say, for both halves.
"""

from __future__ import annotations

import struct
from typing import Any

import pytest

from tests.protocols.kafka.messages import as_tree, full_tree, joined
from tidemill.errors import ProtocolError
from tidemill.kafka_codec.headers import (
    frame_response,
    parse_header,
    parse_response_header,
    peek_header,
    request_header,
)
from tidemill.kafka_codec.messages import decode_request, decode_response, encode_response
from tidemill.kafka_codec.messages import encode_request as encode
from tidemill.kafka_codec.schema import response_type

DESCRIBE_LOG_DIRS, DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS = 35, 65, 66
OF_COMMANDS = [
    *((DESCRIBE_LOG_DIRS, version) for version in range(1, 5)),
    *((10, version) for version in range(4, 7)),
    *((16, 5), (18, 0), (27, 1), (47, 0), (61, 0), (69, 0), (69, 1), (77, 1), (92, 0)),
    *((22, version) for version in range(2, 6)),
    (DESCRIBE_TRANSACTIONS, 0),
    *((LIST_TRANSACTIONS, version) for version in range(3)),
    *((90, 0), (90, 1), (91, 0)),
]
"""The requests that commands send, in the versions that they know."""


def frame(api_key: int, version: int) -> bytes:
    """Encode a response that has every field, without its length."""
    body = encode_response(api_key, version, full_tree(response_type(api_key, version)))
    return joined(frame_response(api_key, version, 42, [body]))[4:]


def decode(api_key: int, version: int, answer: bytes) -> Any:
    """Decode a response that must have the right correlation id."""
    correlation_id, position = parse_response_header(answer, api_key, version)
    assert correlation_id == 42
    return decode_response(api_key, version, answer, position)


@pytest.mark.parametrize(("api_key", "version"), OF_COMMANDS)
def test_a_response_is_read_as_a_whole_or_is_an_error(api_key: int, version: int) -> None:
    whole = frame(api_key, version)
    kind = response_type(api_key, version)
    assert as_tree(kind, decode(api_key, version, whole)) == full_tree(kind)
    for end in range(4, len(whole)):
        with pytest.raises(ProtocolError):
            decode(api_key, version, whole[:end])


def test_tagged_fields_of_a_newer_broker_are_ignored() -> None:
    whole = frame(DESCRIBE_TRANSACTIONS, 0)
    assert whole.endswith(b"\0")
    newer = whole[:-1] + b"\x01\x09\x03abc"
    assert decode(DESCRIBE_TRANSACTIONS, 0, newer) == decode(DESCRIBE_TRANSACTIONS, 0, whole)


def test_an_absurd_count_is_refused() -> None:
    with pytest.raises(ProtocolError):
        decode(DESCRIBE_LOG_DIRS, 1, struct.pack(">iii", 42, 0, 2**31 - 1))


@pytest.mark.parametrize(("client_id", "read"), [("me", "me"), ("", ""), (None, "")])
@pytest.mark.parametrize("version", range(3))
def test_a_request_is_what_the_broker_reads(version: int, client_id: str | None, read: str) -> None:
    tree = {"state_filters": ["Ongoing"], "duration_filter": 500}
    sent = request_header(LIST_TRANSACTIONS, version, 9, client_id)
    sent += encode(LIST_TRANSACTIONS, version, tree)
    assert peek_header(sent) == (LIST_TRANSACTIONS, version, 9)
    found, position = parse_header(sent, LIST_TRANSACTIONS, version)
    assert found == read
    decoded = decode_request(LIST_TRANSACTIONS, version, sent, position)
    assert decoded.state_filters == ("Ongoing",)
    assert getattr(decoded, "duration_filter", None) == (500 if version else None)
