"""Serves AMQP 0-9-1 on a socket. Each connection is an ``AmqpSession``.

Sockets, limits and back-pressure belong to ``net.listener``; what methods do, to the channels.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from tidemill.engine.queues.api import MAX_BODY_BYTES
from tidemill.net.budget import Budget, Hold
from tidemill.net.link import Link
from tidemill.net.listener import Listener
from tidemill.net.pause import Pause
from tidemill.net.tls import ListenerTls
from tidemill.protocols.amqp.alarm import Alarm
from tidemill.protocols.amqp.codec.frames import SCRATCH_BYTES
from tidemill.protocols.amqp.connections import Connections
from tidemill.protocols.amqp.metrics import Tally, add_tally
from tidemill.protocols.amqp.published import Address, StatePublisher
from tidemill.protocols.amqp.session import AmqpSession
from tidemill.protocols.amqp.settings import AmqpListener
from tidemill.protocols.amqp.users import AMQP_MECHANISMS, Users
from tidemill.protocols.amqp.wire import Shared
from tidemill.protocols.logins.logins import Entrance, Logins
from tidemill.protocols.logins.users_file import FileUsers, read_users
from tidemill.settings.section import SecureSection

if TYPE_CHECKING:
    from tidemill.engine.authorize import Principal
    from tidemill.engine.door import Door
    from tidemill.engine.engine import Engine
    from tidemill.settings import Settings


class AmqpServer:
    """Serves an engine to AMQP clients on one listener.

    Usage: ``host, port = await server.start()`` ... ``await server.stop()``.

    Args:
        section: the settings of the listener; None: those of ``[amqp]``.
        logins: what all listeners share about logins.
        beside: a server of the same broker, with which this one shares turns and memory.

    Raises:
        SettingsError: a mechanism is not known, or ``amqp.users_file`` can't be used.
    """

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        *,
        budget: Budget | None = None,
        section: SecureSection | None = None,
        logins: Logins | None = None,
        beside: AmqpServer | None = None,
    ) -> None:
        """Prepare to serve."""
        self.engine = engine
        self.settings = settings
        amqp = settings.section(AmqpListener)
        section, logins = section or amqp, logins or Logins(settings, lambda: engine.logins)
        self.listener = Listener(
            settings, section, self._make_session, budget=budget, tls=ListenerTls.of(section)
        )
        own = FileUsers(read_users(amqp.users_file, "amqp.users_file"))
        users = Users(
            Entrance(section.label, section, logins, AMQP_MECHANISMS),
            logins.credentials.beside(own),
        )
        self.shared: Shared
        self._publishes = beside is None
        self._publishing: asyncio.Task[None] | None = None
        if beside is not None:
            self.shared = replace(beside.shared, listener=self.listener, users=users)
            self._listeners: list[Listener] = beside._listeners
            self._addresses: list[Address] = beside._addresses
            self._listeners.append(self.listener)
            return
        self._listeners = [self.listener]
        self._addresses = []
        tally, connections = None, Connections()
        if settings.telemetry.shows_names_of("rabbitmq"):
            tally = Tally()
            add_tally(engine.metrics, tally, connections, self._listeners)
        self.shared = Shared(
            door_for=self._door_for,
            listener=self.listener,
            alarm=Alarm(self.listener.budget),
            users=users,
            tally=tally,
            connections=connections,
            max_message=min(settings.limits.request_bytes, MAX_BODY_BYTES),
            scratch=memoryview(bytearray(SCRATCH_BYTES)),
            consumer_timeout_ms=amqp.consumer_timeout_ms,
        )

    def publisher(self) -> StatePublisher:
        """Return what publishes the state of all servers beside this one."""
        return StatePublisher(self.engine.inner_door(), self.shared.connections, self._addresses)

    def _door_for(self, principal: Principal, host: str) -> Door:
        return self.engine.door(principal, host)

    def _make_session(self, link: Link) -> AmqpSession:
        throttle_ms = self.engine.quotas.connected(link.host)
        if throttle_ms:
            Pause(link, Hold.QUOTA).throttle(throttle_ms)
        return AmqpSession(self.shared, link)

    async def start(self) -> tuple[str, int]:
        """Bind the socket; see ``Listener.start``."""
        address = await self.listener.start()
        name = "amqp/ssl" if self.listener.tls.is_used else "amqp"
        self._addresses.append((name, *address))
        if self._publishes:
            self._publishing = asyncio.create_task(self.publisher().run())
        return address

    async def stop(self, grace_seconds: float = 10.0) -> None:
        """Accept no more connections, ask clients to close theirs, and close."""
        if self._publishing is not None:
            self._publishing.cancel()
        await self.listener.stop(grace_seconds)
