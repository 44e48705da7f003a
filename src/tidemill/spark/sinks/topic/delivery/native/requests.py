"""Sends requests to coordinators, again and again until one of them answers for good.

Must not know: records, shares, Spark.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from tidemill.errors import UnreachableError
from tidemill.spark.errors import DeliveryError, with_note
from tidemill.spark.sinks.topic.delivery import limits
from tidemill.spark.sinks.topic.delivery.native import failures, messages
from tidemill.spark.sinks.topic.delivery.native.cluster import Cluster
from tidemill.spark.sinks.topic.delivery.native.settings import ProducerSettings
from tidemill.spark.wire.brokers import Address
from tidemill.spark.wire.connection import Connection
from tidemill.spark.wire.errors import (
    BrokerError,
    ConnectionFailedError,
    ConnectionRejectedError,
)

Answer = TypeVar("Answer")


class NotAnsweredError(UnreachableError):
    """The brokers did not answer in time."""


class Requests:
    """Requests of one producer, besides Produce.

    Args:
        settings: The settings.
        keys: The transactional id and the consumer group, by ``messages.TRANSACTION`` and
            ``messages.GROUP``.

    Attributes:
        cluster: The connections; None while the producer is idle.
    """

    def __init__(self, settings: ProducerSettings, keys: dict[int, str]) -> None:
        self.cluster: Cluster | None = None
        self._settings = settings
        self._keys = keys
        self._coordinators: dict[int, Address] = {}

    def ask(
        self,
        what: str,
        api: int,
        body: bytes,
        parse: Callable[[memoryview], Answer],
        kind: int | None,
        *,
        timeout_s: float | None = None,
    ) -> Answer:
        """Send a request until it succeeds or fails with a permanent error.

        Args:
            what: What the request does, for messages.
            api: The number of the request.
            body: Its body.
            parse: Decodes the response, and raises a BrokerError for its error code.
            kind: The coordinator that answers it; None for any broker.
            timeout_s: Seconds to wait; None for the time of a transaction.

        Raises:
            DeliveryError: A broker answers with a permanent error.
            UnreachableError: There was no answer in time, or the brokers reject the connection.
        """
        began = time.monotonic()
        deadline = began + (timeout_s or limits.TRANSACTION_TIMEOUT_MS / 1000)
        while True:
            try:
                return self._try(api, body, parse, kind)
            except ConnectionRejectedError as error:
                raise failures.rejected(self._servers, str(error)) from error
            except ConnectionFailedError as error:
                cause, is_final = str(error), False
            except BrokerError as error:
                cause, is_final = error.text, error.code not in failures.RETRIABLE
                if error.code == failures.UNKNOWN_TOPIC:
                    patience_s = self._settings.propagation_ms / 1000
                    is_final = time.monotonic() - began > patience_s
            self._coordinators.clear()
            if is_final:
                raise with_note(
                    DeliveryError(f"could not {what}: {cause}", hint=limits.ALL_OR_NONE)
                )
            if time.monotonic() > deadline:
                raise with_note(
                    NotAnsweredError(f"the brokers did not answer in time to {what}: {cause}")
                )
            time.sleep(limits.PAUSE_S)

    @property
    def _servers(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in self._settings.connection.servers)

    def _try(
        self, api: int, body: bytes, parse: Callable[[memoryview], Answer], kind: int | None
    ) -> Answer:
        assert self.cluster is not None, "idle"
        brokers = self.cluster.control
        connection: Connection | None = None
        try:
            if kind is None:
                connection = brokers.any(time.monotonic() + limits.REQUEST_S)
            else:
                address = self._coordinators.get(kind) or self._find(kind)
                connection = brokers.at(address, limits.REQUEST_S)
            return parse(connection.call(api, body, limits.REQUEST_S))
        except ConnectionFailedError:
            brokers.drop(connection)
            raise

    def _find(self, kind: int) -> Address:
        assert self.cluster is not None, "idle"
        brokers = self.cluster.control
        connection = brokers.any(time.monotonic() + limits.REQUEST_S)
        try:
            view = connection.call(
                messages.FIND_COORDINATOR,
                messages.find_coordinator(self._keys[kind], kind),
                limits.REQUEST_S,
            )
            code, address = messages.parse_find_coordinator(view)
        except ConnectionFailedError:
            brokers.drop(connection)
            raise
        check(code)
        self._coordinators[kind] = address
        return address


def check(code: int) -> None:
    """Raise an error for an error code other than 0.

    Raises:
        BrokerError: The code is not 0.
    """
    if code:
        raise BrokerError(code)
