"""Describe and change the rules of access. Knows no door and no protocol."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tidemill.engine.errors import SecurityDisabledError
from tidemill.engine.security.security_log import SecurityLog
from tidemill.errors import TidemillError
from tidemill.state.security.types import Rule

CHANGED_TOGETHER = 200
"""Rules that are added or deleted in one step."""


class RuleAdmin:
    """The rules, as an administrator sees them.

    Args:
        is_enabled: whether rules count.
    """

    def __init__(self, log: SecurityLog, *, is_enabled: bool) -> None:
        self._log = log
        self._is_enabled = is_enabled

    def all(self) -> Sequence[Rule]:
        """Return all rules, oldest first. The sequence does not change with them.

        Raises:
            SecurityDisabledError: rules do not count.
        """
        self._check_enabled()
        return tuple(self._log.state.rules)

    async def create(self, rules: Sequence[Rule]) -> list[TidemillError | None]:
        """Add rules. Return the error or None for each.

        Raises:
            SecurityDisabledError: rules do not count.
            StorageError: some rules were not stored.
        """
        self._check_enabled()
        errors: list[TidemillError | None] = []
        for start in range(0, len(rules), CHANGED_TOGETHER):
            part = rules[start : start + CHANGED_TOGETHER]
            found = await self._log.run(partial(self._log.state.create_rules, part))
            errors += found
        return errors

    async def delete(self, rules: Sequence[Rule]) -> None:
        """Delete rules. Those that are gone already stay gone.

        Raises:
            SecurityDisabledError: rules do not count.
            StorageError: some rules are left.
        """
        self._check_enabled()
        for start in range(0, len(rules), CHANGED_TOGETHER):
            part = rules[start : start + CHANGED_TOGETHER]
            await self._log.run(partial(self._log.state.delete_rules, part))

    def _check_enabled(self) -> None:
        if not self._is_enabled:
            raise SecurityDisabledError(
                "No Authorizer is configured on the broker.",
                hint="Name a super user: [security] super_users in tidemill.toml.",
            )
