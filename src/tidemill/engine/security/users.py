"""Describe and change the users that log in by SCRAM (KIP-554). Knows no door and no protocol."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

from tidemill.engine.security.security_log import SecurityLog
from tidemill.errors import TidemillError
from tidemill.state.security.scram import SALT_BYTES, credential, is_password
from tidemill.state.security.types import ScramCredential, ScramMechanism

UserChange = tuple[str, ScramMechanism, ScramCredential | None]
"""User, mechanism, and the keys; None deletes them."""


class UserAdmin:
    """The users, as an administrator sees them."""

    def __init__(self, log: SecurityLog) -> None:
        self._log = log

    def described(self) -> dict[str, list[tuple[ScramMechanism, int]]]:
        """Return the mechanisms and iterations of each user, by name."""
        users = self._log.state.users
        return {
            user: [(mechanism, each.iterations) for mechanism, each in users[user].items()]
            for user in sorted(users)
        }

    async def alter(
        self, changes: Sequence[UserChange], known: Mapping[str, TidemillError]
    ) -> dict[str, TidemillError | None]:
        """Set or delete keys. Of a user with an error, nothing changes.

        Args:
            known: users whose part of the request is invalid already.

        Returns:
            The error or None for each user.

        Raises:
            StorageError: nothing has changed.
        """
        state = self._log.state
        return await self._log.run(lambda: state.alter_users(changes, known))

    async def set_password(
        self, user: str, password: str, mechanisms: Sequence[ScramMechanism], iterations: int
    ) -> None:
        """Set the keys of a user. Keys that fit the password already stay as they are.

        It hashes, which takes a few milliseconds: only for a start, or without clients.

        Raises:
            TidemillError: the name or the number of iterations is invalid.
            StorageError: nothing has changed.
        """
        changes = []
        for mechanism in mechanisms:
            known = self._log.state.credential(user, mechanism)
            if known is None or not is_password(mechanism, password, known):
                salt = secrets.token_bytes(SALT_BYTES)
                changes.append((user, mechanism, credential(mechanism, password, salt, iterations)))
        error = (await self.alter(changes, {})).get(user)
        if error is not None:
            raise error

    @property
    def admins(self) -> dict[str, bool]:
        """The stored super users, and whether each has a password: a deleted user has none."""
        state = self._log.state
        return {name: name in state.users for name in sorted(state.admins)}

    async def set_admin(self, user: str, *, is_admin: bool) -> None:
        """Make a user a super user, or an ordinary one. The broker reads that when it starts."""
        state = self._log.state
        await self._log.run(lambda: state.set_admin(user, is_admin=is_admin))
