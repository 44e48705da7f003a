"""Sends requests to coordinators, again and again until one of them answers for good.

Must not know: records, connectors, Spark.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from tidemill.kafka_client.connection import Connection
from tidemill.kafka_client.errors import (
    BrokerError,
    ConnectionFailedError,
    ConnectionRejectedError,
)
from tidemill.kafka_client.producing import failures
from tidemill.kafka_client.producing.cluster import Cluster
from tidemill.kafka_client.producing.failures import ErrorFactory
from tidemill.kafka_client.producing.settings import ProducerSettings
from tidemill.kafka_client.settings import Address
from tidemill.kafka_codec.declared import FIND_COORDINATOR, INIT_PRODUCER_ID
from tidemill.kafka_codec.messages import Tree

Answer = TypeVar("Answer")

GROUP, TRANSACTION = 0, 1
"""What a coordinator coordinates."""
REQUEST_S = 30.0
"""Seconds to wait for one response."""
_PAUSE_S = 0.02
"""Seconds between a temporary failure and the next attempt."""


class Requests:
    """Requests of one producer, besides Produce.

    Args:
        keys: The transactional id and the consumer group, by ``TRANSACTION`` and ``GROUP``.

    Attributes:
        cluster: The connections; None while the producer is idle.
    """

    def __init__(
        self, settings: ProducerSettings, keys: dict[int, str], errors: ErrorFactory
    ) -> None:
        self.cluster: Cluster | None = None
        self._settings = settings
        self._keys = keys
        self._errors = errors
        self._coordinators: dict[int, Address] = {}

    def ask(
        self,
        what: str,
        api: int,
        tree: Tree,
        parse: Callable[[Any], Answer],
        kind: int | None,
        *,
        timeout_s: float | None = None,
    ) -> Answer:
        """Send a request until it succeeds or fails with a permanent error.

        Args:
            parse: Returns what the response says, or raises a BrokerError for its error code.
            kind: The coordinator that answers it; None for any broker.
            timeout_s: Seconds to wait; None for the time of a transaction.
        """
        began = time.monotonic()
        deadline = began + (timeout_s or self._settings.transaction_timeout_ms / 1000)
        while True:
            try:
                return self._try(api, tree, parse, kind)
            except ConnectionRejectedError as error:
                raise self._errors.rejected(self._servers, str(error)) from error
            except ConnectionFailedError as error:
                cause, code, is_final = str(error), 0, False
            except BrokerError as error:
                cause, code = error.text, error.code
                is_final = code not in failures.RETRIABLE
                if code == failures.UNKNOWN_TOPIC:
                    patience_s = self._settings.propagation_ms / 1000
                    is_final = time.monotonic() - began > patience_s
            self._coordinators.clear()
            if is_final:
                raise self._errors.refused(what, cause, code)
            if time.monotonic() > deadline:
                raise self._errors.not_answered(what, cause)
            time.sleep(_PAUSE_S)

    def init_producer_id(
        self, what: str, transactional_id: str, timeout_ms: int, timeout_s: float | None
    ) -> tuple[int, int]:
        """Return the id and the epoch of a new producer. It fences others of its transactional id.

        Args:
            transactional_id: The transactional id; empty without transactions.
            timeout_ms: Milliseconds that a transaction can take; -1 without transactions.
        """

        def parse(found: Any) -> tuple[int, int]:
            check(found.error_code)
            return found.producer_id, found.producer_epoch

        tree = {
            "transactional_id": transactional_id or None,
            "transaction_timeout": timeout_ms,
        }
        kind = TRANSACTION if transactional_id else None
        return self.ask(what, INIT_PRODUCER_ID, tree, parse, kind, timeout_s=timeout_s)

    @property
    def _servers(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in self._settings.connection.servers)

    def _try(
        self, api: int, tree: Tree, parse: Callable[[Any], Answer], kind: int | None
    ) -> Answer:
        assert self.cluster is not None, "idle"
        brokers = self.cluster.control
        connection: Connection | None = None
        try:
            if kind is None:
                connection = brokers.any(time.monotonic() + REQUEST_S)
            else:
                address = self._coordinators.get(kind) or self._find(kind)
                connection = brokers.at(address, REQUEST_S)
            return parse(connection.request(api, tree, REQUEST_S))
        except ConnectionFailedError:
            brokers.drop(connection)
            raise

    def _find(self, kind: int) -> Address:
        assert self.cluster is not None, "idle"
        brokers = self.cluster.control
        connection = brokers.any(time.monotonic() + REQUEST_S)
        try:
            tree = {"key": self._keys[kind], "key_type": kind}
            found = connection.request(FIND_COORDINATOR, tree, REQUEST_S)
        except ConnectionFailedError:
            brokers.drop(connection)
            raise
        check(found.error_code)
        address = self._coordinators[kind] = Address(found.host, found.port)
        return address


def check(code: int) -> None:
    """Raise an error for an error code other than 0."""
    if code:
        raise BrokerError(code)
