"""Says soon that no broker answers, before a request that would wait. Must not know: pages."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient

from tidemill.confluent.clients import Kafka
from tidemill.gateway.topics import CLIENT

REACHED_S = 2.5
"""How long a page waits for a broker that does not answer. The requests behind it wait for 15 s."""


class Reach:
    """Asks whether a broker answers. One thread uses it at a time."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._admin: AdminClient | None = None

    def check(self, what: str) -> None:
        """Check that a broker answers.

        Args:
            what: what is to be done, as "can't <what>".

        Raises:
            UnreachableError: no broker answers within ``REACHED_S``.
        """
        if self._admin is None:
            self._admin = self._kafka.admin(CLIENT)
        self._kafka.check_reachable(what, self._admin, REACHED_S)
