"""PLAIN (RFC 4616): a name and a password in one message. Without I/O of its own."""

from __future__ import annotations

from tidemill.protocols.logins.contract import (
    Credentials,
    LoginFailedError,
    Proved,
    checked_name,
    decoded,
)


class Plain:
    """One login. Implements ``Exchange``."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self.proved: Proved | None = None

    async def step(self, message: bytes) -> bytes:
        """Take the only message."""
        parts = decoded(message).split("\0")
        if len(parts) != 3:
            raise LoginFailedError("PLAIN needs an authorization id, a name and a password")
        acting_as, name, password = parts
        await self.verify(name, password, acting_as)
        return b""

    async def verify(self, name: str, password: str, acting_as: str = "") -> None:
        """Check a name and a password.

        Raises:
            LoginFailedError: they are not those of a user, or the client wants to act as another.
        """
        checked_name(name)
        if not password:
            raise LoginFailedError("the password is empty", name)
        if acting_as and acting_as != name:
            raise LoginFailedError("the authorization id is not the name of the user", name)
        if not await self._credentials.verify(name, password):
            raise LoginFailedError("unknown user or wrong password", name)
        self.proved = Proved(name)
