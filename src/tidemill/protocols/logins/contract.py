"""The contract of logins: a mechanism, the store of users behind it, and the errors.

Must not know: a protocol, sockets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tidemill.errors import TidemillError
from tidemill.state.security.types import ScramMechanism

PLAIN, AMQPLAIN, EXTERNAL, OAUTHBEARER = "PLAIN", "AMQPLAIN", "EXTERNAL", "OAUTHBEARER"
SCRAM = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""The mechanisms of SCRAM, and the name of the hash of each."""
MOST_SHOWN = 64
"""The part of a name that is logged, and remembered after a failed login."""
MOST_NAME = 1024
"""Longest name of a user in characters."""


class LoginFailedError(TidemillError):
    """The client has not proved who it is.

    The message says why, for the broker's log only: a client gets the same answer for each reason.

    Attributes:
        user: the name that the client gave, as far as it was understood.
    """

    def __init__(self, message: str, user: str = "", *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.user = user[:MOST_SHOWN]


class UnknownMechanismError(TidemillError):
    """The client asks for a mechanism that the listener does not have. It uses another one."""


class LoginStateError(TidemillError):
    """The message does not belong to this step of a login, or nothing is to be proved here."""


class ScramKeys(Protocol):
    """The stored keys of a user for one mechanism of SCRAM (RFC 5802, 3)."""

    @property
    def salt(self) -> bytes: ...

    @property
    def iterations(self) -> int: ...

    @property
    def stored_key(self) -> bytes: ...

    @property
    def server_key(self) -> bytes: ...


class Credentials(Protocol):
    """The users. They are asked on the event loop, and must not block it.

    A question takes the same path, and as long, whether there is such a user or not.
    """

    def has_users(self) -> bool:
        """Return whether there is any user at all."""

    async def keys(self, user: str, mechanism: str) -> tuple[ScramKeys, bool]:
        """Return the keys of a user, and whether there is such a user with such keys.

        If not, the keys fit no password, and are the same each time.
        """

    async def verify(self, user: str, password: str) -> bool:
        """Return whether a password is that of a user."""


class UserStore(Protocol):
    """The users that the broker stores."""

    @property
    def has_users(self) -> bool:
        """Whether there is any user."""

    def credentials(self, user: str, mechanism: ScramMechanism) -> ScramKeys | None:
        """Return the keys of a user; None if there are none for the mechanism."""

    def decoy(self, user: str, mechanism: ScramMechanism) -> ScramKeys:
        """Return keys that fit no password, the same each time."""

    async def verify_plain(self, user: str, password: str) -> bool:
        """Return whether a password is that of a user."""

    def has_user(self, user: str) -> bool:
        """Return whether the user exists."""

    def watch(self, changed: Callable[[], None]) -> None:
        """Call a function after each change of users."""


@dataclass(frozen=True, slots=True)
class Proved:
    """The result of a login.

    Attributes:
        user: the name.
        expires_at: when the proof ends, in seconds since the epoch; None: never.
    """

    user: str
    expires_at: float | None = None


class Exchange(Protocol):
    """One login under way: the broker's side of a mechanism.

    Attributes:
        proved: the result, when the login is complete.
    """

    proved: Proved | None

    async def step(self, message: bytes) -> bytes:
        """Take a message of the client, and return the answer, possibly empty.

        Raises:
            LoginFailedError: the client has not proved who it is, or the message is malformed.
        """


def decoded(message: bytes) -> str:
    """Return a message as text.

    Raises:
        LoginFailedError: it is not UTF-8.
    """
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise LoginFailedError("the message is not UTF-8") from None


def checked_name(name: str) -> str:
    """Return the name of a user.

    Raises:
        LoginFailedError: it is empty, too long, or has a zero character.
    """
    if not name or len(name) > MOST_NAME or "\0" in name:
        raise LoginFailedError("the name of the user is empty or too long", name)
    return name
