"""The login of a connection: its handshake, its messages, and the same again while it is open.

Handlers and the session before the login use it. Must not know: requests, sockets. Sources:
KIP-43, KIP-152, KIP-255, KIP-368, Apache Kafka's ``SaslServerAuthenticator``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from tidemill.protocols.logins.contract import (
    OAUTHBEARER,
    Exchange,
    LoginFailedError,
    LoginStateError,
    Proved,
)
from tidemill.protocols.logins.logins import Entrance


class Sasl:
    """The login of one connection.

    Args:
        peer: ``host:port`` of the client, for log lines.
        host: its address.

    Attributes:
        proved: the last login that was complete; None before that.
        is_refused: whether a login has failed, so that the connection must be closed.
        on_proved: called after each login that is complete.
        on_refused: called after a login that has failed, before it is answered.
        on_deleted: called when the user is deleted. It ends the connection.
    """

    def __init__(self, entrance: Entrance, peer: str, host: str) -> None:
        self._entrance = entrance
        self._forget: Callable[[], None] | None = None
        self._peer, self._host = peer, host
        self._mechanism = ""
        self._exchange: Exchange | None = None
        self.proved: Proved | None = None
        self.is_refused = False
        self.on_proved: Callable[[], None] = lambda: None
        self.on_refused: Callable[[], None] = lambda: None
        self.on_deleted: Callable[[], None] = lambda: None

    @property
    def mechanisms(self) -> Sequence[str]:
        """The mechanisms that the client can use."""
        return self._entrance.mechanisms

    @property
    def is_begun(self) -> bool:
        """Whether a handshake was made, and messages of the mechanism follow."""
        return self._exchange is not None

    @property
    def lifetime_s(self) -> float | None:
        """The time for which the login holds from now on, in seconds; None: for ever."""
        limits: list[float] = []
        if self._entrance.logins.max_session_s:
            limits.append(self._entrance.logins.max_session_s)
        if self.proved is not None and self.proved.expires_at is not None:
            limits.append(max(self.proved.expires_at - time.time(), 0.001))
        return min(limits) if limits else None

    def begin(self, mechanism: str) -> None:
        """Take the handshake.

        Raises:
            UnknownMechanismError: the listener does not have the mechanism.
            LoginStateError: a login is under way, or the mechanism is not that of the connection.
        """
        if self._exchange is not None or self.is_refused:
            raise LoginStateError("a login is under way")
        exchange = self._entrance.exchange(mechanism, self._host)
        if self.proved is not None and mechanism != self._mechanism:
            raise LoginStateError("the mechanism must not change while the connection is open")
        self._mechanism, self._exchange = mechanism, exchange

    async def step(self, message: bytes) -> bytes:
        """Take a message of the mechanism, and return the answer.

        Raises:
            LoginStateError: there was no handshake.
            LoginFailedError: the login has failed. It is logged, and the delay is over.
        """
        exchange = self._exchange
        if exchange is None:
            raise LoginStateError("there was no handshake")
        try:
            self._entrance.check_may_try(self._host)
            answer = await exchange.step(message)
            if exchange.proved is not None:
                self._accept(exchange.proved)
        except LoginFailedError as error:
            self.is_refused = True
            await self._entrance.refuse(error, self._peer, self._host, self._mechanism)
            self.on_refused()
            raise
        return answer

    def _accept(self, proved: Proved) -> None:
        if self.proved is not None and self.proved.user != proved.user:
            raise LoginFailedError(
                f"the user must not change while the connection is open: it was {self.proved.user}",
                proved.user,
            )
        if self._mechanism != OAUTHBEARER:
            self._watch(proved.user)
        self.proved, self._exchange = proved, None
        self.on_proved()

    def _watch(self, user: str) -> None:
        """Let the connection end with its user, who is known by a password."""
        logins = self._entrance.logins
        if not logins.credentials.has_user(user):
            raise LoginFailedError("the user was deleted during the login", user)
        if self._forget is None:
            self._forget = logins.watch(logins.credentials, user, lambda: self.on_deleted())

    def close(self) -> None:
        """Forget the login: the connection is closed."""
        if self._forget is not None:
            self._forget()

    def refusal(self) -> str:
        """Return the text for a client whose login has failed. It is the same for each reason."""
        return (
            "Authentication failed during authentication due to invalid credentials with SASL "
            f"mechanism {self._mechanism}"
        )
