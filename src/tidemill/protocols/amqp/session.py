"""One connection of AMQP: frames go to channels, in order, and what waits holds the rest back.

A method that has to wait (a declaration, a get, a commit) stops the reading of its connection until
it is done, so that what follows finds it done. Publishing and acknowledging never wait. Sockets,
limits and back-pressure belong to ``net``, bytes to ``codec``, and methods to ``channel``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import structlog

from tidemill.engine.authorize import Access, Principal
from tidemill.engine.queues.api import Owner
from tidemill.errors import TidemillError
from tidemill.net import eager
from tidemill.net.budget import Hold
from tidemill.net.link import Link
from tidemill.net.pause import Pause
from tidemill.parts import Part
from tidemill.protocols.amqp.accounts import Accounts
from tidemill.protocols.amqp.channels.channel import Channel
from tidemill.protocols.amqp.codec import frames, methods
from tidemill.protocols.amqp.codec.frames import Event, FrameReader
from tidemill.protocols.amqp.codec.methods import Method
from tidemill.protocols.amqp.error_codes import amqp_error, precondition
from tidemill.protocols.amqp.errors import AmqpError, ChannelClosedError, ConnectionClosedError
from tidemill.protocols.amqp.handshake import HEADER, ClosedWithoutWordError, Handshake
from tidemill.protocols.amqp.heartbeat import Heartbeat
from tidemill.protocols.amqp.throttle import Throttle
from tidemill.protocols.amqp.wire import Shared
from tidemill.protocols.logins.watched import USER_DELETED

if TYPE_CHECKING:
    from tidemill.engine.door import Queues, Security
    from tidemill.engine.security.quotas import ClientQuotas

log = structlog.get_logger("tidemill.amqp")

HANDSHAKE_SECONDS = 10.0
"""How long a client can take until its connection is open."""
CLOSE_SECONDS = 1.0
"""How long the broker waits for connection.close-ok, and after its own until the client closes."""
MOST_BETWEEN_WATCHES = 60.0
"""Seconds between two looks at messages that clients keep."""
EVENTS_BETWEEN_LOOKS = 32
"""Events between two looks at the time."""

_PUBLISH_NUMBER = 60 << 16 | 40
_ACK_NUMBER = 60 << 16 | 80


class AmqpSession:
    """One connection. Implements ``net.link.Session`` and ``wire.Wire``."""

    def __init__(self, shared: Shared, link: Link) -> None:
        self.shared = shared
        self._link = link
        self._reader = FrameReader(
            shared.scratch,
            shared.max_message,
            shared.listener.limits.connection_inflight_bytes,
        )
        self._reader.frame_max, self._reader.takes_messages = frames.LOGIN_FRAME_MAX, False
        self._handshake = Handshake(shared.users, link.peer, link.host)
        self._pending = shared.users.entrance.logins.pending
        self.owner = Owner(link.peer)
        self._queues: Queues | None = None
        self._security: Security | None = None
        self._access: Access | None = None
        self._name = ""
        self._connected_ms = 0
        self._quotas: ClientQuotas | None = None
        self._pause = Pause(link, Hold.QUOTA)
        self._channels: dict[int, Channel] = {}
        self._closing_channels: set[int] = set()
        self._events: Iterator[Event] | None = None
        self._started = False
        self._is_waiting = False
        self._is_closing = False
        self._is_finished = False
        self._is_over = False
        grew = partial(shared.alarm.published, self)
        self._accounts = Accounts(link, shared.listener.budget, self._pending_bytes, grew)
        self._throttle = Throttle(link, self._channels.values, grew)
        loop = asyncio.get_running_loop()
        self._heartbeat: Heartbeat | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = loop.call_later(HANDSHAKE_SECONDS, self._expire)
        self._forget_login: Callable[[], None] = lambda: None
        self._pending.add(self, link.host, lambda: loop.call_soon(self._crowd_out))

    # --- as channels see it ----------------------------------------------------------------------

    @property
    def queues(self) -> Queues:
        """The engine's queues for the connection's user."""
        assert self._queues is not None
        return self._queues

    @property
    def security(self) -> Security:
        """The engine's permissions for the connection's user."""
        assert self._security is not None
        return self._security

    @property
    def access(self) -> Access:
        """Answers whether the connection's user may do something that only AMQP has."""
        assert self._access is not None
        return self._access

    @property
    def user(self) -> str:
        """The user who has logged in."""
        return self._handshake.result.user

    @property
    def consumers(self) -> int:
        """The number of consumers of all channels."""
        return sum(len(channel.consuming.consumers) for channel in self._channels.values())

    @property
    def frame_max(self) -> int:
        """The largest frame, as negotiated."""
        return self._handshake.result.frame_max

    @property
    def cancel_notify(self) -> bool:
        """Whether the client understands basic.cancel from the broker."""
        return self._handshake.result.cancel_notify

    @property
    def is_congested(self) -> bool:
        """Whether the client does not read, so that no delivery should be sent."""
        return self._link.is_congested or self._is_closing

    def send(self, parts: Sequence[Part]) -> None:
        """Send encoded frames."""
        if not self._is_closing:
            self._link.write(parts)

    def method(self, channel: int, name: str, **arguments: object) -> None:
        """Encode and send a method."""
        self.send([methods.encode(channel, name, **arguments)])

    def count_pending(self) -> None:
        """Compare what is not written yet with the limits, in the next turn."""
        self._accounts.count_pending_later()

    def _pending_bytes(self) -> int:
        return sum(channel.pending_bytes for channel in self._channels.values())

    @property
    def held_back_by(self) -> str | None:
        """The reason why the client must wait before it publishes more."""
        return self._throttle.reason()

    def notify_blocked(self, reason: str | None) -> None:
        """Send connection.blocked or connection.unblocked, if the client understands it."""
        if self._handshake.result.knows_blocked and self._handshake.is_open:
            if reason is None:
                self.method(0, "connection.unblocked")
            else:
                self.method(0, "connection.blocked", reason=reason)

    # --- as administrators see it ----------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """Return the facts that a listing shows, with RabbitMQ's names."""
        agreed, link = self._handshake.result, self._link
        port = link.local.rpartition(":")
        return {
            "user": agreed.user,
            "auth_mechanism": agreed.mechanism,
            "client_properties": agreed.client,
            "channel_max": agreed.channel_max,
            "frame_max": agreed.frame_max,
            "timeout": agreed.heartbeat,
            "connected_at": self._connected_ms,
            "channels": len(self._channels),
            "host": port[0],
            "port": int(port[2] or 0),
            "peer_host": link.host,
            "peer_port": int(link.peer.rpartition(":")[2] or 0),
            "ssl": link.is_encrypted,
            "recv_oct": link.received_bytes,
            "state": "blocked" if self.held_back_by else "running",
        }

    def describe_channels(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the number of each channel with the facts that a listing shows."""
        for number, channel in list(self._channels.items()):
            yield number, channel.describe()

    def end(self, reason: str) -> None:
        """Close the connection with the code 320 (CONNECTION_FORCED) and this reason."""
        self._close(ConnectionClosedError(320, reason), 0)

    # --- called by the link ----------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Whether the connection is in use: an open one is never idle; heartbeats watch it."""
        return self._handshake.is_open and not self._reader.is_partial

    @property
    def is_partial(self) -> bool:
        """Whether a frame or a message has arrived in part."""
        return self._reader.is_partial

    def get_buffer(self) -> memoryview:
        """Return the buffer to receive into; it is never empty."""
        return self._reader.get_buffer()

    def received(self, count: int) -> None:
        """Take ``count`` received bytes, and process the events that are complete."""
        if self._is_finished:
            return
        self._reader.received(count)
        if not self._started and not self._start():
            return
        self._process()
        self._accounts.count_partial(self._reader.partial_bytes)

    def writable(self) -> None:
        """Continue to deliver: the client has read what it was sent."""
        for channel in list(self._channels.values()):
            channel.consuming.wake()

    def stop(self) -> None:
        """Ask the client to close the connection."""
        if not self._handshake.is_open:
            self._link.close()
        elif not self._is_closing:
            text = "broker forced connection closure with reason 'shutdown'"
            self._close(ConnectionClosedError(320, text), 0)

    def closed(self) -> None:
        """Release everything: the connection is gone."""
        self._is_closing = True
        self.shared.connections.remove(self._name, self)
        self._pending.remove(self, self._link.host)
        self._forget_login()
        if self._timer is not None:
            self._timer.cancel()
        if self._heartbeat is not None:
            self._heartbeat.stop()
        if self._watch is not None:
            self._watch.cancel()
        self.shared.alarm.forget(self)
        self._end_channels()
        self._is_over = True
        if self._queues is not None:
            self._spawn(self._leave())
        self._events = None
        self._reader.close()
        self._accounts.close()
        self._throttle.close()

    async def _leave(self) -> None:
        queues, self._queues = self._queues, None
        if queues is not None:
            await queues.connection_closed(self.owner)

    def _end_channels(self) -> None:
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()
        self._accounts.count_pending()

    # --- events ----------------------------------------------------------------------------------

    def _start(self) -> bool:
        """Take the protocol header; return whether it has arrived and is AMQP 0-9-1's."""
        header = self._reader.take(8)
        if len(header) < 8 and HEADER.startswith(header):
            self._reader.untake(header)
            return False
        start = self._handshake.start(header)
        if start is None:
            self._link.write([HEADER])
            self._link.close()
            return False
        self._started = True
        self._link.write([start])
        return True

    def _process(self) -> None:
        """Process events until none is left, one has to wait, or the turn is over."""
        if self._is_waiting:
            return
        turns = self.shared.turns
        began = perf_counter()
        end = turns.deadline(began)
        count = 0
        published = size = 0
        try:
            if self._events is None:
                self._events = self._reader.events()
            for event in self._events:
                kind = event[0]
                if kind == frames.PUBLISH:
                    published += 1
                    size += len(event[4])
                elif kind == frames.NOTHING:
                    if perf_counter() > end:
                        self._wait()
                        turns.queue(self._continue)
                        break
                    continue
                self._handle(event)
                if self._is_waiting or self._link.is_closing:
                    break
                count += 1
                if count % EVENTS_BETWEEN_LOOKS == 0 and perf_counter() > end:
                    self._wait()
                    turns.queue(self._continue)
                    break
            else:
                self._events = None
        except AmqpError as error:  # of the reader: nothing behind it can be read
            self._events = None
            self._reader.close()
            self._close(error, 0)
        for channel in self._channels.values():
            channel.flush()
        if published:
            self._accounts.count_pending()
            self._throttle.look()
            self._count(size)
        turns.spend(perf_counter() - began)

    def _count(self, size: int) -> None:
        """Count published bytes for the user's quota. Who has used too much is not read."""
        if self._quotas is not None and self._quotas.quotas.with_producers:
            throttle_ms = self._quotas.produced("", size)
            if throttle_ms and not self._link.is_closing:
                self._pause.throttle(throttle_ms)

    def _wait(self) -> None:
        self._is_waiting = True
        self._link.hold(Hold.QUEUE)

    def _continue(self) -> None:
        """Process what has arrived, after a wait."""
        self._is_waiting = False
        if self._is_over:
            return
        self._link.gather()
        try:
            self._process()
        finally:
            self._link.send()
        self._accounts.count_partial(self._reader.partial_bytes)
        if not self._is_waiting:
            self._link.unhold(Hold.QUEUE)

    def _handle(self, event: Event) -> None:
        kind, number = event[0], event[1]
        if self._is_closing:
            self._handle_closing(event)
            return
        channel = self._channels.get(number)
        about = _PUBLISH_NUMBER
        try:
            if channel is None:
                about = event[2] if kind == frames.METHOD else about
                self._handle_without_channel(event)
            elif kind == frames.PUBLISH:
                channel.publish(event[2], event[3], event[4])
            elif kind == frames.ACK:
                about = _ACK_NUMBER
                channel.acknowledge(event[2], event[3])
            elif kind == frames.METHOD:
                about = event[2]
                self._handle_method(channel, about, event[3])
            else:
                limit = f"configured max size {self.shared.max_message}"
                raise precondition(f"message size {event[2]} is larger than {limit}")
        except TidemillError as error:
            self._refuse(amqp_error(error), number, about)

    def _handle_without_channel(self, event: Event) -> None:
        kind, number = event[0], event[1]
        if number in self._closing_channels:
            if kind == frames.METHOD:
                self._handle_on_closing_channel(number, event[2])
            return
        if kind != frames.METHOD:
            raise ConnectionClosedError(504, "expected 'channel.open'")
        method = methods.decode(event[3])
        if number == 0:
            self._handle_connection(method)
        elif not self._handshake.is_open:
            raise ConnectionClosedError(503, f"unexpected method {method.name} in the handshake")
        elif method.name != "channel.open":
            raise ConnectionClosedError(504, "expected 'channel.open'")
        elif number > self._handshake.result.channel_max:
            raise ConnectionClosedError(
                530,
                f"channel {number} is above the negotiated channel_max "
                f"({self._handshake.result.channel_max})",
            )
        else:
            self._channels[number] = Channel(number, self)
            self.method(number, "channel.open-ok")

    def _handle_on_closing_channel(self, number: int, method: int) -> None:
        if method == methods.BY_NAME["channel.close-ok"].number:
            self._closing_channels.discard(number)
        elif method == methods.BY_NAME["channel.close"].number:
            self.method(number, "channel.close-ok")

    def _handle_method(self, channel: Channel, number: int, payload: bytes) -> None:
        method = methods.decode(payload)
        if method.name == "channel.close":
            channel.close()
            del self._channels[channel.number]
            self.method(channel.number, "channel.close-ok")
        elif method.name == "channel.open":
            raise ConnectionClosedError(504, "second 'channel.open' seen")
        else:
            work = channel.handle(method)
            if work is not None:
                self._run(work, channel.number, number)

    def _handle_connection(self, method: Method) -> None:
        if method.name == "connection.close":
            self._end_channels()
            self._run(self._close_for_client(), 0, 0)
        elif self._handshake.expects_login:
            self._run(self._log_in(method), 0, 0)
        elif not self._handshake.is_open:
            reply = self._handshake.handle(method)
            if reply:
                self._link.write([reply])
            if method.name == "connection.tune-ok":
                self._reader.frame_max = self.frame_max
            if self._handshake.is_open:
                self._opened()
        elif method.name == "connection.update-secret":  # passwords do not expire, as in RabbitMQ
            self.method(0, "connection.update-secret-ok")
        elif method.name != "connection.close-ok":
            raise ConnectionClosedError(503, f"unexpected method {method.name} on channel 0")

    async def _log_in(self, method: Method) -> None:
        reply = await self._handshake.log_in(method, self._link.certificate)
        self._pending.remove(self, self._link.host)
        if not self._is_closing:
            self._forget_login = self.shared.users.watch(
                self.user, self._handshake.result.mechanism, partial(self.end, USER_DELETED)
            )
            self._link.write([reply])

    def _opened(self) -> None:
        self._reader.takes_messages = True
        if self._timer is not None:
            self._timer.cancel()
        door = self.shared.door_for(Principal(self.user), self._link.host)
        self._queues, self._quotas, self._security = door.queues, door.quotas, door.security
        self._access, self._connected_ms = door.access, door.clock.now_ms()
        self._name = f"{self._link.peer} -> {self._link.local}"
        self.shared.connections.add(self._name, self)
        self._watch_consumers()
        seconds = self._handshake.result.heartbeat
        if seconds:
            self._heartbeat = Heartbeat(self._link, seconds)

    def _watch_consumers(self) -> None:
        """Close channels whose clients keep messages for too long. Called again and again."""
        limit_ms = self.shared.consumer_timeout_ms
        if not limit_ms:
            return
        loop = asyncio.get_running_loop()
        now, limit = loop.time(), limit_ms / 1000
        for number, channel in list(self._channels.items()):
            if channel.consuming.is_overdue(now, limit):
                problem = f"delivery acknowledgement on channel {number} timed out"
                used = f"Timeout value used: {limit_ms} ms (amqp.consumer_timeout_ms)"
                self._refuse(precondition(f"{problem}. {used}"), number, 0)
        self._watch = loop.call_later(min(limit / 10, MOST_BETWEEN_WATCHES), self._watch_consumers)

    async def _close_for_client(self) -> None:
        await self._leave()
        self.method(0, "connection.close-ok")
        self._is_closing = self._is_finished = True
        self._link.finish()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(CLOSE_SECONDS, self._link.close)

    # --- waiting ---------------------------------------------------------------------------------

    def _run(self, work: Awaitable[None], channel: int, about: int) -> None:
        """Run the rest of a method; hold back what follows until it is done."""
        started = eager.start(self._guard(work, channel, about))
        if isinstance(started, eager.Waiting):
            self._wait()
            self._spawn(started).add_done_callback(self._then_continue)

    async def _guard(self, work: Awaitable[None], channel: int, about: int) -> None:
        try:
            await work
        except TidemillError as error:
            self._refuse(amqp_error(error), channel, about)

    def _then_continue(self, work: asyncio.Future[None]) -> None:
        error = None if work.cancelled() else work.exception()
        if error is not None:
            self._link.fail(error)
        self._continue()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self.shared.tasks.add(task)
        task.add_done_callback(self.shared.tasks.discard)
        return task

    # --- closing ---------------------------------------------------------------------------------

    def _refuse(self, error: AmqpError, number: int, about: int) -> None:
        """Close a channel or the connection because of an error."""
        if isinstance(error, ClosedWithoutWordError):
            self._link.fail(error)
            return
        channel = self._channels.pop(number, None)
        if not isinstance(error, ChannelClosedError) or channel is None:
            if channel is not None:
                self._channels[number] = channel
            self._close(error, about)
            return
        log.warning("channel.closed", peer=self._link.peer, channel=number, error=error.text)
        channel.close()
        self._closing_channels.add(number)
        self.method(
            number,
            "channel.close",
            reply_code=error.code,
            reply_text=error.text,
            class_id=about >> 16,
            method_id=about & 0xFFFF,
        )

    def _close(self, error: AmqpError, about: int) -> None:
        """Close the connection with a code, and wait a moment for the client's answer."""
        if self._is_closing:
            return
        log.warning("connection.closed", peer=self._link.peer, error=error.text)
        self.shared.connections.remove(self._name, self)
        self._end_channels()
        self.method(
            0,
            "connection.close",
            reply_code=error.code,
            reply_text=error.text,
            class_id=about >> 16,
            method_id=about & 0xFFFF,
        )
        self._is_closing = True
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(CLOSE_SECONDS, self._link.close)

    def _handle_closing(self, event: Event) -> None:
        """Take methods of a connection that the broker closes: the client's answer ends it."""
        if event[0] == frames.METHOD and event[1] == 0:
            name = methods.method_name(event[2])
            if name == "connection.close":
                self._link.write([methods.encode(0, "connection.close-ok")])
            if name in ("connection.close", "connection.close-ok"):
                self._link.close()

    def _crowd_out(self) -> None:
        log.warning("connection.closed", peer=self._link.peer, why="too many logins are under way")
        self._link.abort()

    def _expire(self) -> None:  # no handshake in time
        log.warning("connection.closed", peer=self._link.peer, why="no handshake in time")
        self._link.abort()
