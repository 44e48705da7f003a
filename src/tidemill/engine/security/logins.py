"""Check who a client is: the keys of users for SCRAM, and passwords for everything else.

A user who does not exist takes the same way as one who does, with the same hashes. Knows no SASL
message and no connection.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tidemill.state.security.machine import Security
from tidemill.state.security.scram import is_password
from tidemill.state.security.types import ScramCredential, ScramMechanism

PASSWORD_THREADS = 2
"""Threads that hash passwords, so that a flood of logins takes no more processors."""
LONGEST_PASSWORD = 1024
"""Passwords with more characters are refused, after a hash as for others."""


class Logins:
    """The users, as a login sees them. Use it on the event loop.

    Args:
        state: the users.
    """

    def __init__(self, state: Security) -> None:
        self._state = state
        self._key = secrets.token_bytes(32)
        self._checked: dict[str, tuple[bytes, ScramCredential]] = {}
        self._threads: ThreadPoolExecutor | None = None
        self._watching: list[Callable[[], None]] = []

    @property
    def has_users(self) -> bool:
        """Whether there is at least one user."""
        return bool(self._state.users)

    def has_user(self, user: str) -> bool:
        """Return whether the user exists, which no client may learn before its login."""
        return user in self._state.users

    def credentials(self, user: str, mechanism: ScramMechanism) -> ScramCredential | None:
        """Return the keys of a user; None if there are none. ``decoy`` gives some then."""
        return self._state.credential(user, mechanism)

    def decoy(self, user: str, mechanism: ScramMechanism) -> ScramCredential:
        """Return keys that fit no password, the same each time, for a user without keys."""
        return self._state.decoy(user, mechanism)

    async def verify_plain(self, user: str, password: str) -> bool:
        """Return whether this is the password of a user.

        The first check of a password takes about 2 ms on a thread. The result is kept under a
        keyed hash until the keys of the user change.
        """
        mechanism, known = self._key_of(user)
        digest = self._digest(user, password)
        checked = self._checked.get(user)
        if checked is not None and checked[1] == known and hmac.compare_digest(checked[0], digest):
            return True
        expected = known or self.decoy(user, mechanism)
        if self._threads is None:
            self._threads = ThreadPoolExecutor(PASSWORD_THREADS, thread_name_prefix="password")
        is_right = await asyncio.get_running_loop().run_in_executor(
            self._threads, is_password, mechanism, password[:LONGEST_PASSWORD], expected
        )
        if not is_right or known is None or len(password) > LONGEST_PASSWORD:
            return False
        if self._state.credential(user, mechanism) != known:  # changed in the meantime
            return False
        self._checked[user] = (digest, known)
        return True

    def watch(self, changed: Callable[[], None]) -> None:
        """Call a function after each change of users."""
        self._watching.append(changed)

    def changed(self) -> None:
        """Forget checked passwords of users whose keys have changed or are gone."""
        self._checked = {
            user: (digest, known)
            for user, (digest, known) in self._checked.items()
            if self._key_of(user)[1] == known
        }
        for changed in self._watching:
            changed()

    def close(self) -> None:
        """End the threads."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _key_of(self, user: str) -> tuple[ScramMechanism, ScramCredential | None]:
        for mechanism in ScramMechanism:
            found = self._state.credential(user, mechanism)
            if found is not None:
                return mechanism, found
        return ScramMechanism.SHA_256, None

    def _digest(self, user: str, password: str) -> bytes:
        # The length keeps two pairs with the same text apart.
        name = user.encode("utf-8", "surrogatepass")
        text = len(name).to_bytes(4, "big") + name + password.encode("utf-8", "surrogatepass")
        return hmac.digest(self._key, text, "sha256")
