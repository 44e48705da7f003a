"""Users and their passwords, and the mechanisms PLAIN and AMQPLAIN.

Without users in the settings there is one, guest with the password guest, for clients on this
machine only, as in RabbitMQ. Knows no connection.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Mapping
from pathlib import Path

from tidemill.errors import SettingsError
from tidemill.protocols.amqp.codec.tables import decode_table
from tidemill.protocols.amqp.errors import MalformedError

MECHANISMS = b"AMQPLAIN PLAIN"
_GUEST = {"guest": "guest"}


def read_users(path: Path | None) -> dict[str, str]:
    """Read passwords by name from a file; without a file there are none.

    Raises:
        SettingsError: the file can't be read, or a line is not ``name:password``.
    """
    if path is None:
        return {}
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"can't read amqp.users_file {path}: {error}",
            hint="Write a file with a user in each line: name, colon, password.",
        ) from error
    users: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, password = line.partition(":")
        if not name or not colon or name in users:
            raise SettingsError(
                f"amqp.users_file {path}, line {number}: expected name:password, each name once",
                hint="Lines that begin with # are comments.",
            )
        users[name] = password
    if not users:
        raise SettingsError(
            f"amqp.users_file {path} has no users", hint="Remove the setting, or add a user."
        )
    return users


class Users:
    """Checks names and passwords.

    Args:
        passwords: by name; empty for guest on the loopback address.
    """

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._passwords = dict(passwords) or _GUEST
        self._only_loopback = not passwords

    def login(self, mechanism: str, response: bytes, host: str) -> str | None:
        """Return the name of the user; None if the response is not accepted.

        Args:
            response: as in connection.start-ok.
        """
        name, password = _credentials(mechanism, response)
        expected = self._passwords.get(name)
        # The comparison takes the same time for unknown names.
        same = hmac.compare_digest((expected or "").encode(), password)
        if expected is None or not same or (self._only_loopback and not _is_loopback(host)):
            return None
        return name


def _credentials(mechanism: str, response: bytes) -> tuple[str, bytes]:
    if mechanism == "PLAIN":
        parts = response.split(b"\0")
        if len(parts) != 3:
            return "", b""
        return parts[1].decode("utf-8", "replace"), parts[2]
    try:
        table, _ = decode_table(len(response).to_bytes(4, "big") + response, 0, len(response) + 4)
    except MalformedError:
        return "", b""
    name, password = table.get("LOGIN"), table.get("PASSWORD")
    if isinstance(password, str):
        password = password.encode()
    if not isinstance(name, str) or not isinstance(password, bytes):
        return "", b""
    return name, password


def _is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
