"""Serves AMQP 0-9-1 on a socket. Each connection is an ``AmqpSession``.

Sockets, limits and back-pressure belong to ``net.listener``; what methods do, to the channels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.engine.queues.api import MAX_BODY_BYTES
from tidemill.net.budget import Budget
from tidemill.net.link import Link
from tidemill.net.listener import Listener
from tidemill.net.tls import ListenerTls
from tidemill.protocols.amqp.alarm import Alarm
from tidemill.protocols.amqp.codec.frames import SCRATCH_BYTES
from tidemill.protocols.amqp.session import AmqpSession
from tidemill.protocols.amqp.settings import AmqpListener
from tidemill.protocols.amqp.users import Users, read_users
from tidemill.protocols.amqp.wire import Shared

if TYPE_CHECKING:
    from tidemill.engine.authorize import Principal
    from tidemill.engine.door import Queues
    from tidemill.engine.engine import Engine
    from tidemill.settings import Settings


class AmqpServer:
    """Serves an engine to AMQP clients.

    Usage: ``host, port = await server.start()`` ... ``await server.stop()``.
    """

    def __init__(self, engine: Engine, settings: Settings, *, budget: Budget | None = None) -> None:
        """Prepare to serve."""
        self.engine = engine
        self.settings = settings
        amqp = settings.section(AmqpListener)
        self.listener = Listener(
            settings,
            amqp,
            self._make_session,
            budget=budget,
            tls=ListenerTls("amqp", amqp.tls_cert, amqp.tls_key),
        )
        self.shared = Shared(
            queues_for=self._queues_for,
            listener=self.listener,
            alarm=Alarm(self.listener.budget),
            users=Users(read_users(amqp.users_file)),
            max_message=min(settings.limits.request_bytes, MAX_BODY_BYTES),
            scratch=memoryview(bytearray(SCRATCH_BYTES)),
            consumer_timeout_ms=amqp.consumer_timeout_ms,
        )

    def _queues_for(self, principal: Principal) -> Queues:
        return self.engine.door(principal).queues

    def _make_session(self, link: Link) -> AmqpSession:
        return AmqpSession(self.shared, link)

    async def start(self) -> tuple[str, int]:
        """Bind the socket; see ``Listener.start``."""
        return await self.listener.start()

    async def stop(self, grace_seconds: float = 10.0) -> None:
        """Accept no more connections, ask clients to close theirs, and close."""
        await self.listener.stop(grace_seconds)
