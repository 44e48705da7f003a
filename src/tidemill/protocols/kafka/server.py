"""Serves the Kafka protocol on a socket. Each connection is a ``KafkaSession``.

Sockets, limits and back-pressure belong to ``net.listener``; what requests do, to the handlers.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from tidemill.net.budget import Budget
from tidemill.net.link import Link
from tidemill.net.listener import Listener
from tidemill.net.tls import ListenerTls
from tidemill.protocols.kafka.apis import load_handlers
from tidemill.protocols.kafka.connection import SCRATCH_BYTES, BufferPool
from tidemill.protocols.kafka.node import Node
from tidemill.protocols.kafka.session import KafkaSession
from tidemill.protocols.kafka.settings import KafkaListener
from tidemill.protocols.kafka.slots import Shared

if TYPE_CHECKING:
    from tidemill.engine.engine import Engine
    from tidemill.settings import Settings

WILDCARDS = frozenset({"0.0.0.0", "::", ""})


class KafkaServer:
    """Serves an engine to Kafka clients.

    Usage: ``host, port = await server.start()`` ... ``await server.stop()``.
    """

    def __init__(self, engine: Engine, settings: Settings, *, budget: Budget | None = None) -> None:
        self.engine = engine
        self.node = Node.of(settings)
        self.settings = settings
        kafka = settings.section(KafkaListener)
        self.listener = Listener(
            settings,
            kafka,
            self._make_session,
            budget=budget,
            tls=ListenerTls("kafka", kafka.tls_cert, kafka.tls_key),
        )
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

    async def start(self) -> tuple[str, int]:
        """Bind the socket, and set the address that clients get; see ``Listener.start``."""
        kafka = self.settings.section(KafkaListener)
        host, port = await self.listener.start()
        self.node.host = kafka.advertised_host or _reachable(self.settings.host)
        self.node.port = kafka.advertised_port or port
        return host, port

    async def stop(self, grace_seconds: float = 10.0) -> None:
        """Accept no more connections, answer open requests (long polls immediately), close."""
        await self.listener.stop(grace_seconds)


def _reachable(host: str) -> str:
    """Return a host that clients can connect to: a wildcard means nothing on other machines."""
    return socket.gethostname() if host in WILDCARDS else host
