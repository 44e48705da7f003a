"""Sends single requests that librdkafka lacks: transactions, and offsets of share groups.

It runs in a thread. Must not know: what the requests are about.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from tidemill.confluent.clients import Kafka
from tidemill.errors import NotAllowedError, TidemillError
from tidemill.kafka_client.brokers import Brokers
from tidemill.kafka_client.errors import (
    ConnectionFailedError,
    ConnectionRejectedError,
    VersionNotSupportedError,
    text_of,
)
from tidemill.kafka_client.settings import Address, connection_settings

METADATA, FIND_COORDINATOR = 3, 10
GROUP, TRANSACTION = 0, 1
"""The kinds of coordinators."""
REQUEST_S = 10.0
_RETRY_S = 0.1
_TRANSIENT = (5, 6, 14, 15, 16, 51)
"""Leaders and coordinators that move or load, and transactions that are being ended."""
_FORBIDDEN = (29, 30, 31, 53)


class Asker:
    """Connections to the brokers for one question. A context manager.

    Raises:
        UnsupportedSettingError: the client's settings ask for what only librdkafka has.
    """

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        config = {key: str(value) for key, value in kafka.properties.items()}
        config |= {"bootstrap.servers": kafka.servers}
        self._brokers = Brokers(connection_settings(config, "tidemill-console"), {})

    def __enter__(self) -> Asker:
        return self

    def __exit__(self, *_: object) -> None:
        self._brokers.close()

    def metadata(self, topics: list[str] | None = None) -> Any:
        """Return brokers, and topics with their leaders; None: all topics."""
        wanted = None if topics is None else [{"name": name} for name in topics]
        tree = {"topics": wanted, "allow_auto_topic_creation": False}
        return self.ask(None, METADATA, (4, 4), tree)

    def coordinator(self, kind: int, key: str) -> Address:
        """Return the broker that coordinates a group or a transactional id."""
        tree = {"key_type": kind, "coordinator_keys": [key]}

        def find() -> Any:
            (found,) = self.ask(None, FIND_COORDINATOR, (4, 6), tree).coordinators
            return found, found.error_code

        found = self.until_settled(find, f"the coordinator of {key}")
        return Address(found.host, found.port)

    def ask(
        self, address: Address | None, api: int, versions: tuple[int, int], tree: Mapping[str, Any]
    ) -> Any:
        """Return the answer of a broker; None: of any broker.

        Raises:
            UnreachableError: no broker answers.
            NotAllowedError: it refuses the login.
            TidemillError: it does not know the request.
        """
        try:
            if address is None:
                connection = self._brokers.any(time.monotonic() + REQUEST_S)
            else:
                connection = self._brokers.at(address, REQUEST_S)
            connection.agree({api: versions})
            return connection.request(api, tree, REQUEST_S)
        except VersionNotSupportedError as error:
            raise TidemillError("this broker does not have such a request") from error
        except ConnectionRejectedError as error:
            raise NotAllowedError(f"the broker refuses the login: {error}") from error
        except ConnectionFailedError as error:
            raise self._kafka.unreachable("ask the broker", str(error)) from error

    def until_settled(self, call: Any, what: str) -> Any:
        """Call until the error is not a transient one.

        Args:
            call: returns the answer and its error code.

        Raises:
            TidemillError: the broker refuses.
        """
        deadline = time.monotonic() + REQUEST_S
        while True:
            answer, code = call()
            if code in _TRANSIENT and time.monotonic() < deadline:
                time.sleep(_RETRY_S)
                continue
            check(code, what)
            return answer


def check(code: int, what: str) -> None:
    """Raise the error for a code that is not 0.

    Raises:
        NotAllowedError: the user must not do it.
        TidemillError: another refusal.
    """
    if code in _FORBIDDEN:
        raise NotAllowedError(f"{what}: {_text(code)}")
    if code:
        raise TidemillError(f"{what}: {_text(code)}")


def _text(code: int) -> str:
    return text_of(code).removeprefix("Broker: ")
