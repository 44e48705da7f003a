"""Serves the Kafka protocol on a socket. Each connection is a ``KafkaSession``.

Sockets, limits and back-pressure belong to ``net.listener``; what requests do, to the handlers.
"""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING

import structlog

from tidemill.errors import SettingsError
from tidemill.net.budget import Budget
from tidemill.net.link import Link
from tidemill.net.listener import Listener
from tidemill.net.tls import fingerprint, server_context
from tidemill.protocols.kafka.apis import load_handlers
from tidemill.protocols.kafka.connection import SCRATCH_BYTES, BufferPool
from tidemill.protocols.kafka.node import Node
from tidemill.protocols.kafka.session import KafkaSession, Shared

if TYPE_CHECKING:
    from tidemill.engine.engine import Engine
    from tidemill.settings import Settings

log = structlog.get_logger("tidemill.kafka")

WILDCARDS = frozenset({"0.0.0.0", "::", ""})


class KafkaServer:
    """Serves an engine to Kafka clients.

    Usage: ``host, port = await server.start()`` ... ``await server.stop()``.
    """

    def __init__(self, engine: Engine, settings: Settings, *, budget: Budget | None = None) -> None:
        self.engine = engine
        self.node = Node.of(settings)
        self.settings = settings
        self.listener = Listener("kafka", settings.limits, self._make_session, budget=budget)
        self.shared = Shared(
            engine=engine,
            node=self.node,
            apis=load_handlers(),
            listener=self.listener,
            max_frame=settings.limits.request_bytes,
            pool=BufferPool(),
            scratch=memoryview(bytearray(SCRATCH_BYTES)),
        )

    def _make_session(self, link: Link) -> KafkaSession:
        return KafkaSession(self.shared, link)

    def check_tls(self) -> None:
        """Check certificate and key, if there are any, before anything is started.

        Raises:
            SettingsError: see ``net.tls.server_context``.
        """
        self._tls_context()

    def reload_tls(self) -> None:
        """Read certificate and key again, for new connections. If they are invalid, keep the old.

        The result is logged.
        """
        path = self.settings.kafka.tls_cert
        if path is None:
            return
        try:
            self.listener.tls = self._tls_context()
        except SettingsError as error:
            log.error(
                "tls.reload_failed",
                error=str(error),
                hint=error.hint or "The old certificate stays in use.",
            )
        else:
            log.info("tls.reloaded", certificate=str(path), fingerprint=fingerprint(path))

    def _tls_context(self) -> ssl.SSLContext | None:
        kafka = self.settings.kafka
        if kafka.tls_cert is not None:
            return server_context(kafka.tls_cert, kafka.tls_key)
        if kafka.tls_key is not None:
            raise SettingsError(
                "kafka.tls_key is set and kafka.tls_cert is not: connections would be plain text",
                hint="Set kafka.tls_cert too, or remove kafka.tls_key.",
            )
        return None

    async def start(self) -> tuple[str, int]:
        """Bind the socket, and set the address that clients get.

        Returns:
            Host and port as bound; with port 0 in the settings, the port that was free.

        Raises:
            OSError: the address can't be bound.
            SettingsError: the certificate or the key can't be used.
        """
        kafka = self.settings.kafka
        tls = self._tls_context()
        host, port = await self.listener.start(self.settings.host, kafka.port, tls=tls)
        self.node.host = kafka.advertised_host or _reachable(self.settings.host)
        self.node.port = kafka.advertised_port or port
        return host, port

    async def stop(self, grace_seconds: float = 10.0) -> None:
        """Accept no more connections, answer open requests (long polls immediately), close."""
        await self.listener.stop(grace_seconds)


def _reachable(host: str) -> str:
    """Return a host that clients can connect to: a wildcard means nothing on other machines."""
    return socket.gethostname() if host in WILDCARDS else host
