"""Serves the Kafka protocol on a socket. Each connection is a ``KafkaSession``.

Sockets, limits and back-pressure belong to ``net.listener``; what requests do, to the handlers.
"""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import TYPE_CHECKING

from tidemill.engine.authorize import ANONYMOUS, Principal
from tidemill.net.budget import Budget, Hold
from tidemill.net.link import Link, Session
from tidemill.net.listener import Listener
from tidemill.net.pause import Pause
from tidemill.net.tls import ListenerTls
from tidemill.protocols.kafka.apis import load_handlers
from tidemill.protocols.kafka.connection import SCRATCH_BYTES, BufferPool
from tidemill.protocols.kafka.login import LoginSession
from tidemill.protocols.kafka.metrics import add_requests
from tidemill.protocols.kafka.node import Node
from tidemill.protocols.kafka.sasl import Sasl
from tidemill.protocols.kafka.session import KafkaSession
from tidemill.protocols.kafka.settings import KafkaListener
from tidemill.protocols.kafka.slots import Shared
from tidemill.protocols.listeners import NamedListener
from tidemill.protocols.logins.logins import KAFKA_MECHANISMS, Entrance, Logins

if TYPE_CHECKING:
    from tidemill.engine.engine import Engine
    from tidemill.settings import Settings

WILDCARDS = frozenset({"0.0.0.0", "::", ""})


class KafkaServer:
    """Serves an engine to Kafka clients on one listener.

    Usage: ``host, port = await server.start()`` ... ``await server.stop()``.

    Args:
        section: the settings of the listener; None: those of ``[kafka]``.
        logins: what all listeners share about logins.
        beside: a server of the same broker, with which this one shares turns and sessions.

    Attributes:
        is_advertised_elsewhere: whether clients get another address than the bound one.

    Raises:
        SettingsError: a mechanism is not known, or lacks what it needs.
    """

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        *,
        budget: Budget | None = None,
        section: KafkaListener | NamedListener | None = None,
        logins: Logins | None = None,
        beside: KafkaServer | None = None,
    ) -> None:
        self.engine = engine
        self.settings = settings
        self._section = section = section or settings.section(KafkaListener)
        self.node = Node.of(settings, section)
        self.entrance = Entrance(
            section.label,
            section,
            logins or Logins(settings, lambda: engine.logins),
            KAFKA_MECHANISMS,
        )
        self.listener = Listener(
            settings, section, self._make_session, budget=budget, tls=ListenerTls.of(section)
        )
        self.is_advertised_elsewhere = False
        self.shared: Shared
        if beside is not None:
            self.shared = replace(beside.shared, node=self.node, listener=self.listener)
            return
        apis = load_handlers()
        self.shared = Shared(
            engine=engine,
            node=self.node,
            apis=apis,
            seconds=add_requests(engine.metrics, apis),
            listener=self.listener,
            max_frame=settings.limits.request_bytes,
            pool=BufferPool(),
            scratch=memoryview(bytearray(SCRATCH_BYTES)),
        )

    def _make_session(self, link: Link) -> Session:
        throttle_ms = self.engine.quotas.connected(link.host)
        if throttle_ms:
            Pause(link, Hold.QUOTA).throttle(throttle_ms)
        if self.entrance.mechanisms:
            return LoginSession(self.shared, link, self.entrance, self._logged_in)
        name = self.entrance.certified(link.certificate)
        return KafkaSession(self.shared, link, ANONYMOUS if name is None else Principal(name))

    def _logged_in(self, link: Link, sasl: Sasl) -> Session:
        assert sasl.proved is not None
        return KafkaSession(self.shared, link, Principal(sasl.proved.user), sasl)

    async def start(self) -> tuple[str, int]:
        """Bind the socket, and set the address that clients get; see ``Listener.start``."""
        section = self._section
        host, port = await self.listener.start()
        bound = section.bind_host(self.settings.host)
        self.node.host = section.advertised_host or _reachable(bound)
        self.node.port = section.advertised_port or port
        self.is_advertised_elsewhere = (self.node.host, self.node.port) != (bound, port)
        return host, port

    async def stop(self, grace_seconds: float = 10.0) -> None:
        """Accept no more connections, answer open requests (long polls immediately), close."""
        await self.listener.stop(grace_seconds)


def _reachable(host: str) -> str:
    """Return a host that clients can connect to: a wildcard means nothing on other machines."""
    return socket.gethostname() if host in WILDCARDS else host
