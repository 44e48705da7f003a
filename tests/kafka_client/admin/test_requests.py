"""Requests to brokers: lost connections, refusals, and what is retried."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tidemill.errors import RequestTimedOutError, TidemillError
from tidemill.kafka_client.admin import requests as admin
from tidemill.kafka_client.admin.requests import (
    BrokerRequests,
    Wording,
    check_error_code,
    retry_transient,
)
from tidemill.kafka_client.errors import ConnectionFailedError, RefusedError
from tidemill.kafka_client.settings import Address, connection_settings
from tidemill.kafka_codec.messages import encode_response

LIST = 66


@contextmanager
def answering(*connections: list[bytes]) -> Iterator[Address]:
    """A server. It gives each connection its answers, one for each request, then closes it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            for answers in connections:
                connection, _ = listening.accept()
                with connection:
                    for answer in answers:
                        (length,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
                        connection.recv(length, socket.MSG_WAITALL)
                        connection.sendall(answer)
                    # The system would answer a request that nobody reads with a reset.
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(4096):
                        pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield Address("127.0.0.1", listening.getsockname()[1])
        thread.join(60)


def versions(*apis: tuple[int, int, int]) -> bytes:
    """An ApiVersions answer to the first request of a connection."""
    keys = [{"api_key": k, "min_version": low, "max_version": high} for k, low, high in apis]
    body = struct.pack(">i", 1) + encode_response(18, 0, {"api_keys": keys})
    return struct.pack(">i", len(body)) + body


def nothing_listed(correlation_id: int) -> bytes:
    """A ListTransactions answer without transactional ids."""
    header = struct.pack(">ib", correlation_id, 0)
    body = header + encode_response(LIST, 0, {"unknown_state_filters": []})
    return struct.pack(">i", len(body)) + body


class WordedError(TidemillError):
    """No broker answers."""


@pytest.fixture
def named() -> list[Address | None]:
    """The addresses that did not answer, as they are reported."""
    return []


def requests_to(broker: Address, named: list[Address | None]) -> BrokerRequests:
    def unreachable(error: ConnectionFailedError, address: Address | None) -> TidemillError:
        named.append(address)
        return WordedError(str(error))

    settings = connection_settings({"bootstrap.servers": str(broker)}, "tests")
    return BrokerRequests(settings, Wording(unreachable, lambda error: WordedError(str(error))))


def test_a_connection_that_was_closed_while_it_was_idle_is_made_again(
    named: list[Address | None],
) -> None:
    offered = versions((LIST, 0, 0))
    first, second = [offered, nothing_listed(2)], [offered, nothing_listed(2)]
    with answering(first, second) as broker, requests_to(broker, named) as requests:
        for _ in range(2):
            assert requests.ask(broker, LIST, (0, 2), {}).error_code == 0
    assert named == []


def test_a_new_connection_that_is_closed_is_an_error(named: list[Address | None]) -> None:
    with answering([versions((LIST, 0, 0))]) as broker, requests_to(broker, named) as requests:
        with pytest.raises(WordedError, match="Disconnected"):
            requests.ask(broker, LIST, (0, 2), {})
        assert named == [broker]


def test_addresses_of_the_settings_are_not_reported_as_named_by_the_cluster(
    named: list[Address | None],
) -> None:
    with socket.socket() as bound:  # bound but not listening
        bound.bind(("127.0.0.1", 0))
        broker = Address("127.0.0.1", bound.getsockname()[1])
        with pytest.raises(WordedError), requests_to(broker, named) as requests:
            requests.brokers()
    assert named == [None]


def test_a_code_is_an_error_with_its_words() -> None:
    assert check_error_code(0, "id x")
    cases = {
        90: "producer fenced",
        6: "not leader or follower",
        9999: "error 9999",
    }
    for code, said in cases.items():
        with pytest.raises(RefusedError) as failed:
            check_error_code(code, "id x")
        assert (failed.value.code, str(failed.value)) == (code, f"id x: {said}")
    with pytest.raises(RefusedError, match="id x: why"):
        check_error_code(90, "id x", "why")


def test_a_code_of_one_element_can_be_reported() -> None:
    reported: list[RefusedError] = []
    assert not check_error_code(29, "topic a", report=reported.append)
    assert [(each.code, each.reason) for each in reported] == [(29, "topic authorization failed")]


def failing(*codes: int) -> Callable[[], str]:
    left = iter(codes)

    def call() -> str:
        check_error_code(next(left), "it")
        return "done"

    return call


def test_transient_errors_are_retried_for_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "RETRY_S", 0)
    loading, moved, fenced = 14, 6, 90
    assert retry_transient(failing(loading, moved, 0)) == "done"
    with pytest.raises(RefusedError, match="fenced"):
        retry_transient(failing(loading, fenced, 0))
    monkeypatch.setattr(admin, "REQUEST_S", -1)
    with pytest.raises(RequestTimedOutError, match="load in progress, for"):
        retry_transient(failing(loading, 0))
