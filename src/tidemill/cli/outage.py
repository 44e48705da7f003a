"""Notices that no broker answers any more, says so, and says when one answers again.

librdkafka itself tries again for ever, and without a word. This module must not know what a command
reads or writes.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tidemill.cli import output
from tidemill.cli.client import Cluster
from tidemill.errors import UnreachableError

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

CHECK_SECONDS = 1.0
SUSPECT_SECONDS = 10.0
"""How long after an error of a connection to look if a broker still accepts connections."""


class Outage:
    """The time in which no broker answers. ``on_error`` is the error callback of the client.

    librdkafka's own report that all brokers are down does not always come: a member of a group has
    a second connection to its coordinator, and the count of brokers that are down can miss it. So
    each error of a connection starts a look at the brokers.

    Without ``give_up_seconds`` it waits for ever.
    """

    def __init__(self, cluster: Cluster, give_up_seconds: float | None = None) -> None:
        self._cluster = cluster
        self._give_up_seconds = give_up_seconds
        self._since: float | None = None
        self._checked = float("-inf")
        self._suspect_until = float("-inf")

    @property
    def ongoing(self) -> bool:
        """Whether no broker has answered since the last check."""
        return self._since is not None

    def on_error(self, error: KafkaError) -> None:
        """Note an error that is about no single request."""
        from confluent_kafka import KafkaError

        connection_errors = (
            KafkaError._ALL_BROKERS_DOWN,
            KafkaError._RESOLVE,
            KafkaError._TIMED_OUT,
            KafkaError._TRANSPORT,
        )
        if error.code() in connection_errors and self._since is None:
            self._suspect_until = time.monotonic() + SUSPECT_SECONDS
            self._look(time.monotonic())

    def check(self) -> None:
        """Look from time to time if a broker answers.

        Raises:
            UnreachableError: none has answered for too long.
        """
        now = time.monotonic()
        if self._since is None and now > self._suspect_until:
            return
        error = self._look(now)
        if error is None or self._since is None or self._give_up_seconds is None:
            return
        if now - self._since > self._give_up_seconds:
            raise error from None

    def _look(self, now: float) -> UnreachableError | None:
        """Ask for a broker unless it was done a moment ago, and report what has changed."""
        if now - self._checked < CHECK_SECONDS:
            return None
        self._checked = now
        try:
            self._cluster.check_reachable()
        except UnreachableError as error:
            if self._since is None:
                self._since = now
                output.warn(
                    f"no broker answers at {self._cluster.servers} any more: waiting for it"
                )
            return error
        if self._since is not None:
            output.warn(f"a broker answers at {self._cluster.servers} again")
            self._since = None
            self._suspect_until = float("-inf")
        return None
