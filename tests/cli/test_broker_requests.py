"""The command line's own client: what it does when a broker does not answer as it should."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tidemill.cli import broker_requests
from tidemill.cli.broker_requests import (
    BrokerRequests,
    LeaderMovedError,
    error_for_code,
    retry_transient,
)
from tidemill.cli.client import Cluster
from tidemill.engine.errors import ClusterAuthorizationError
from tidemill.errors import RequestTimedOutError, TidemillError, UnreachableError
from tidemill.kafka_client.settings import Address
from tidemill.kafka_codec.messages import encode_response
from tidemill.log.errors import InvalidProducerEpochError
from tidemill.protocols.kafka.errors import UnsupportedVersionError
from tidemill.protocols.logins.contract import LoginFailedError
from tidemill.state.errors import CoordinatorLoadingError, ProducerFencedError


@contextmanager
def answering(*answers: bytes) -> Iterator[Address]:
    """A server that gives these answers to the requests of one connection, then closes it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                for answer in answers:
                    (length,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
                    connection.recv(length, socket.MSG_WAITALL)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield Address("127.0.0.1", listening.getsockname()[1])
        thread.join(60)


def versions(*apis: tuple[int, int, int]) -> bytes:
    """An ApiVersions answer to the first request of a connection."""
    keys = [{"api_key": k, "min_version": low, "max_version": high} for k, low, high in apis]
    body = struct.pack(">i", 1) + encode_response(18, 0, {"api_keys": keys})
    return struct.pack(">i", len(body)) + body


def ask_to_list(broker: Address) -> object:
    with BrokerRequests(Cluster(str(broker))) as client:
        return client.ask(broker, 66, range(3), {})


@pytest.mark.parametrize(
    ("answers", "kind", "said"),
    [
        ([bytes(2)], UnreachableError, "Disconnected"),
        ([struct.pack(">ii", 1 << 30, 1)], UnreachableError, "1073741824 bytes"),
        ([struct.pack(">ii", -1, 1)], UnreachableError, "-1 bytes"),
        ([struct.pack(">iih", 6, 1, 0)], UnreachableError, "ends in the middle"),
        ([versions((66, 3, 9))], UnsupportedVersionError, "does not support ListTransactions"),
        ([versions((1, 0, 1))], UnsupportedVersionError, "does not support ListTransactions"),
        ([versions((66, 0, 9)), versions()], UnreachableError, "belongs to no request"),
    ],
    ids=["closed", "huge", "negative", "torn", "newer", "unknown", "another's"],
)
def test_an_invalid_response_is_an_error(
    answers: list[bytes], kind: type[TidemillError], said: str
) -> None:
    with answering(*answers) as broker, pytest.raises(kind) as failed:
        ask_to_list(broker)
    assert said in str(failed.value)


def test_a_port_without_a_broker_is_unreachable() -> None:
    with socket.socket() as bound:  # bound but not listening
        bound.bind(("127.0.0.1", 0))
        broker = Address("127.0.0.1", bound.getsockname()[1])
        with pytest.raises(UnreachableError, match=f"no broker answers at {broker}"):
            ask_to_list(broker)


def test_error_codes_become_our_errors() -> None:
    cases: list[tuple[int, type[TidemillError], str]] = [
        (90, ProducerFencedError, "id x: producer fenced"),
        (47, InvalidProducerEpochError, "id x: invalid producer epoch"),
        (6, LeaderMovedError, "id x: not leader or follower"),
        (31, ClusterAuthorizationError, "id x: cluster authorization failed"),
        (58, LoginFailedError, "id x: sasl authentication failed"),
        (9999, TidemillError, "id x: error 9999"),
    ]
    for code, kind, said in cases:
        error = error_for_code(code, "id x")
        assert type(error) is kind
        assert str(error) == said
    assert str(error_for_code(90, "id x", "why")) == "id x: why"


def failing(*errors: TidemillError | None) -> Callable[[], str]:
    left = iter(errors)

    def call() -> str:
        error = next(left)
        if error is not None:
            raise error
        return "done"

    return call


def test_transient_errors_are_retried_for_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(broker_requests, "RETRY_SECONDS", 0)
    loading = CoordinatorLoadingError("loading")
    assert retry_transient(failing(loading, LeaderMovedError("moved"), None)) == "done"
    with pytest.raises(ProducerFencedError):
        retry_transient(failing(loading, ProducerFencedError("fenced"), None))
    monkeypatch.setattr(broker_requests, "REQUEST_SECONDS", -1)
    with pytest.raises(RequestTimedOutError, match="loading"):
        retry_transient(failing(loading, None))
