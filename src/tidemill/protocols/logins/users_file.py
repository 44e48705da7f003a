"""Users in a file: a name, a colon and a password in each line. The simple store of users.

Nothing is derived before it is needed: each check takes the same time, for a name that is not in
the file, too. Must not know: a mechanism's messages, connections.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from pathlib import Path

from tidemill.errors import SettingsError
from tidemill.protocols.logins.contract import SCRAM
from tidemill.protocols.logins.scram import Keys, derived

_OTHERS = 0o007


def read_users(path: Path | None, setting: str = "logins.users_file") -> dict[str, str]:
    """Read passwords by name from a file; without a file there are none.

    Args:
        setting: the setting that names it, for errors.

    Raises:
        SettingsError: the file can't be read, or a line is not ``name:password``.
    """
    if path is None:
        return {}
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"can't read {setting} {path}: {error}",
            hint="Write a file with a user in each line: name, colon, password.",
        ) from error
    users: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, password = line.partition(":")
        if not name or not colon or not password or name in users:
            raise SettingsError(
                f"{setting} {path}, line {number}: expected name:password, each name once",
                hint="Lines that begin with # are comments.",
            )
        users[name] = password
    if not users:
        raise SettingsError(
            f"{setting} {path} has no users", hint="Remove the setting, or add a user."
        )
    return users


def check_mode(path: Path | None, setting: str = "logins.users_file") -> None:
    """Refuse a file of passwords that all users of the machine can read.

    Raises:
        SettingsError: they can.
    """
    if path is None:
        return
    mode = path.stat().st_mode & 0o777
    if mode & _OTHERS:
        raise SettingsError(
            f"all users of this machine can use {setting} {path}: its mode is {mode:04o}",
            hint=f"Run chmod 600 {path}",
        )


class FileUsers:
    """Users with their passwords.

    Args:
        passwords: by name.
    """

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._passwords = dict(passwords)
        self._secret = secrets.token_bytes(32)

    @property
    def has_users(self) -> bool:
        """Whether there is any user."""
        return bool(self._passwords)

    def has_user(self, user: str) -> bool:
        """Return whether the user is in the file."""
        return user in self._passwords

    async def keys(self, user: str, mechanism: str, salt: bytes) -> Keys | None:
        """Derive the keys of a user, on a thread. A name that is not known takes as long.

        Args:
            salt: the same each time, for a name that is not known, too.
        """
        password = self._passwords.get(user)
        keys = await asyncio.to_thread(derived, SCRAM[mechanism], password or "-", salt)
        return None if password is None else keys

    def verify(self, user: str, password: str) -> bool:
        """Return whether a password is that of a user."""
        expected = self._passwords.get(user)
        # Digests have one length, so the time says nothing about that of the password.
        same = hmac.compare_digest(self._digest(expected or ""), self._digest(password))
        return same and expected is not None

    def _digest(self, text: str) -> bytes:
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), key=self._secret).digest()
