"""A connection of a listener with logins, until the client has logged in.

It takes ApiVersions and the login only, and little memory. Then another session continues with the
connection, so that a request after the login costs nothing more. ``Expired`` cuts the frames of a
connection whose login has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from tidemill.errors import ProtocolError
from tidemill.kafka_codec.declared import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from tidemill.kafka_codec.headers import parse_header, peek_header
from tidemill.net import eager
from tidemill.net.budget import Hold
from tidemill.net.link import Link, Session
from tidemill.parts import Part
from tidemill.protocols.kafka.answer import Answer, answer, refuse_version
from tidemill.protocols.kafka.apis import ConnectionState, RequestContext
from tidemill.protocols.kafka.connection import Frame, FrameReader
from tidemill.protocols.kafka.errors import LoginExpiredError
from tidemill.protocols.kafka.sasl import Sasl
from tidemill.protocols.kafka.slots import Shared
from tidemill.protocols.logins.contract import LoginFailedError
from tidemill.protocols.logins.logins import Entrance

LOGIN_SECONDS = 20.0
"""How long a client can take until it has logged in."""
MOST_BYTES = 65_536
"""Largest request before the login."""
MOST_QUESTIONS = 4
"""ApiVersions requests before the login: a client asks again after an answer that it can't use."""

log = structlog.get_logger("tidemill.kafka")


class LoginSession:
    """One connection before its login. Implements ``net.link.Session``.

    Args:
        proceed: returns the session after the login.
    """

    def __init__(
        self,
        shared: Shared,
        link: Link,
        entrance: Entrance,
        proceed: Callable[[Link, Sasl], Session],
    ) -> None:
        self._shared = shared
        self._link = link
        self._proceed = proceed
        self._pending = entrance.logins.pending
        self._sasl = Sasl(entrance, link.peer, link.host)
        self._sasl.on_deleted = link.abort
        self._state = ConnectionState(link.host, link.budget, sasl=self._sasl)
        self._data = bytearray()
        self._questions = 0
        self._has_plain_tokens = False
        self._task: asyncio.Task[None] | None = None
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(LOGIN_SECONDS, self._expire)
        # Not now: one that is too much is closed while the listener still accepts it.
        self._pending.add(self, link.host, lambda: loop.call_soon(self._crowded_out))

    # --- called by the link ----------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Whether a message is being checked."""
        return self._task is not None

    @property
    def is_partial(self) -> bool:
        """Whether a request has arrived in part."""
        return bool(self._data) and self._task is None

    def get_buffer(self) -> memoryview:
        """Return the buffer to receive into: for one request at most."""
        return self._shared.scratch[: max(MOST_BYTES + 4 - len(self._data), 1)]

    def received(self, count: int) -> None:
        """Take received bytes: answer the request that is complete."""
        self._data += self._shared.scratch[:count]
        self._shared.listener.budget.count_partial(self._link, len(self._data))
        if self._task is None:
            self._process()

    def writable(self) -> None:
        """Do nothing: answers are short."""

    def stop(self) -> None:
        """Close the connection."""
        self._link.close()

    def closed(self) -> None:
        """Release everything: the connection is closed."""
        self._release()
        self._sasl.close()
        if self._task is not None:
            self._task.cancel()

    def _release(self) -> None:
        self._timer.cancel()
        self._pending.remove(self, self._link.host)
        self._shared.listener.budget.count_partial(self._link, 0)

    # --- requests --------------------------------------------------------------------------------

    def _process(self) -> None:
        while self._task is None and len(self._data) >= 4 and not self._link.is_closing:
            size = int.from_bytes(self._data[:4], "big", signed=True)
            if not 0 <= size <= MOST_BYTES:
                raise ProtocolError(
                    f"a request of {size} bytes before the login",
                    hint="Does the client use SASL? Set security.protocol and sasl.mechanism in "
                    "the client.",
                )
            if len(self._data) < 4 + size:
                return
            frame = memoryview(bytes(self._data[4 : 4 + size]))
            del self._data[: 4 + size]
            if self._has_plain_tokens and self._sasl.is_begun:
                self._run(self._take_token(frame))
            else:
                self._take_request(frame)
            if self._sasl.proved is not None and self._task is None:
                self._continue_with_requests()
                return

    def _take_request(self, frame: memoryview) -> None:
        key, version, correlation_id = peek_header(frame)
        api = self._shared.apis.get(key)
        self._questions += key == API_VERSIONS
        expected = (API_VERSIONS, SASL_AUTHENTICATE if self._sasl.is_begun else SASL_HANDSHAKE)
        if api is None or key not in expected or self._questions > MOST_QUESTIONS:
            name = api.name if api is not None else f"API {key}"
            raise ProtocolError(
                f"{name} before the login",
                hint="Does the client use SASL? Set security.protocol and sasl.mechanism in the "
                "client.",
            )
        if not api.min_version <= version <= api.max_version:
            refusal = refuse_version(self._shared.apis, key, version, correlation_id)
            self._link.write(refusal)
            return
        client_id, body = parse_header(frame, key, version)
        door = self._shared.engine.door()
        about = (correlation_id, client_id, self._state)
        ctx = RequestContext(door, self._shared.node, key, version, *about)
        self._has_plain_tokens |= key == SASL_HANDSHAKE and version == 0
        answered = answer(api, ctx, frame, body)
        self._run(self._answer(answered, key))

    async def _answer(self, answered: Answer | None, key: int) -> None:
        assert isinstance(answered, list | Coroutine)
        self._link.write(answered if isinstance(answered, list) else await answered)
        if self._sasl.is_refused or (key == SASL_HANDSHAKE and not self._sasl.is_begun):
            self._link.close()

    async def _take_token(self, frame: memoryview) -> None:
        """Take a message without a header, as after version 0 of the handshake."""
        try:
            token = await self._sasl.step(bytes(frame))
        except LoginFailedError:
            self._link.close()
        else:
            parts: list[Part] = [len(token).to_bytes(4, "big"), token]
            self._link.write(parts)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        """Do what can wait. Nothing that follows is read meanwhile."""
        started = eager.start(work)
        if isinstance(started, eager.Waiting):
            self._link.hold(Hold.QUEUE)
            self._task = asyncio.get_running_loop().create_task(started)
            self._shared.logins.add(self._task)
            self._task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._shared.logins.discard(task)
        self._task = None
        if task.cancelled() or self._link.is_closing:
            return
        self._link.unhold(Hold.QUEUE)
        error = task.exception()
        if error is not None:
            self._link.fail(error)
            return
        try:
            if self._sasl.proved is None:
                self._process()
            else:
                self._continue_with_requests()
        except Exception as problem:
            self._link.fail(problem)

    def _continue_with_requests(self) -> None:
        """Hand the connection over, with what has arrived behind the login."""
        self._release()
        self._link.hand_over(self._proceed(self._link, self._sasl), self._data)

    # --- limits ----------------------------------------------------------------------------------

    def _expire(self) -> None:
        log.warning("connection.closed", peer=self._link.peer, why="no login in time")
        self._link.abort()

    def _crowded_out(self) -> None:
        log.warning("connection.closed", peer=self._link.peer, why="too many logins are under way")
        self._link.abort()


class Expired:
    """Cuts frames as ``reader`` does, and lets a new login pass only."""

    def __init__(self, reader: FrameReader) -> None:
        self.reader = reader
        self.partial_bytes = 0

    @property
    def is_partial(self) -> bool:
        """Whether a part of a frame has arrived."""
        return self.reader.is_partial

    def get_buffer(self) -> memoryview:
        """Return the buffer to receive into."""
        return self.reader.get_buffer()

    def received(self, count: int) -> list[Frame]:
        """Return the frames that are complete.

        Raises:
            LoginExpiredError: one of them is not part of a login.
        """
        frames = self.reader.received(count)
        self.partial_bytes = self.reader.partial_bytes
        for frame in frames:
            if int.from_bytes(frame.view[:2], "big") not in (SASL_HANDSHAKE, SASL_AUTHENTICATE):
                raise LoginExpiredError(
                    "the login has expired",
                    hint="The client must log in again in time (KIP-368), as current ones do.",
                )
        return frames

    def close(self) -> None:
        """Return the buffer of an unfinished frame."""
        self.reader.close()
