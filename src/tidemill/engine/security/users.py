"""Describe and change the users that log in by SCRAM (KIP-554). Knows no door and no protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidemill.engine.security.security_log import SecurityLog
from tidemill.errors import TidemillError
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

    async def set_admin(self, user: str, *, is_admin: bool) -> None:
        """Make a user a super user, or an ordinary one. The broker reads that when it starts."""
        state = self._log.state
        await self._log.run(lambda: state.set_admin(user, is_admin=is_admin))
