"""The headers of a client's requests and of their responses.

Bodies are checked in both directions by ``test_parity`` and ``test_malformed``.
"""

from __future__ import annotations

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
from tidemill.kafka_codec.messages import decode_request, encode_request

API_VERSIONS, LIST_TRANSACTIONS, METADATA = 18, 66, 3


@pytest.mark.parametrize(("client_id", "read"), [("me", "me"), ("", ""), (None, "")])
@pytest.mark.parametrize("version", range(3))
def test_a_request_is_what_the_broker_reads(version: int, client_id: str | None, read: str) -> None:
    tree = {"state_filters": ["Ongoing"], "duration_filter": 500}
    sent = request_header(LIST_TRANSACTIONS, version, 9, client_id)
    sent += encode_request(LIST_TRANSACTIONS, version, tree)
    assert peek_header(sent) == (LIST_TRANSACTIONS, version, 9)
    found, position = parse_header(sent, LIST_TRANSACTIONS, version)
    assert found == read
    decoded = decode_request(LIST_TRANSACTIONS, version, sent, position)
    assert decoded.state_filters == ("Ongoing",)
    assert getattr(decoded, "duration_filter", None) == (500 if version else None)


@pytest.mark.parametrize(
    ("api_key", "version"), [(LIST_TRANSACTIONS, 0), (METADATA, 4), (API_VERSIONS, 3)]
)
def test_the_header_of_a_response_is_read_as_it_was_written(api_key: int, version: int) -> None:
    answer = joined(frame_response(api_key, version, 42, [b"body"]))[4:]
    correlation_id, position = parse_response_header(answer, api_key, version)
    assert (correlation_id, answer[position:]) == (42, b"body")
    with pytest.raises(ProtocolError):
        parse_response_header(answer[: position - 1], api_key, version)


def test_tagged_fields_in_the_header_of_a_newer_broker_are_skipped() -> None:
    answer = b"\0\0\0\x2a" + b"\1\x09\2xy" + b"body"
    assert parse_response_header(answer, LIST_TRANSACTIONS, 0) == (42, 9)
