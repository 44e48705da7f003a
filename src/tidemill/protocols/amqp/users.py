"""Logins of AMQP: the mechanisms PLAIN, AMQPLAIN and EXTERNAL, over the users of all protocols.

As long as there are no users, there is one, guest with the password guest, for clients on this
machine only, as in RabbitMQ. Knows no connection.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from typing import Any

from tidemill.protocols.amqp.codec.tables import decode_table
from tidemill.protocols.amqp.errors import MalformedError
from tidemill.protocols.logins.contract import (
    AMQPLAIN,
    EXTERNAL,
    PLAIN,
    LoginFailedError,
)
from tidemill.protocols.logins.logins import AllUsers, Entrance, Limited
from tidemill.protocols.logins.plain import Plain
from tidemill.protocols.logins.users_file import FileUsers

AMQP_MECHANISMS = (AMQPLAIN, PLAIN, EXTERNAL)
"""The mechanisms that a listener can have."""
_DEFAULT = (AMQPLAIN, PLAIN)
_GUEST = "guest"


class Users:
    """Checks logins of one listener.

    Args:
        credentials: all users.

    Attributes:
        mechanisms: those that clients can use.
    """

    def __init__(self, entrance: Entrance, credentials: AllUsers) -> None:
        self.entrance = entrance
        self.mechanisms = entrance.mechanisms or _DEFAULT
        self._credentials = credentials
        self._guest = AllUsers([FileUsers({_GUEST: _GUEST})])

    async def login(
        self,
        mechanism: str,
        response: bytes,
        peer: str,
        host: str,
        certificate: Mapping[str, Any] | None = None,
    ) -> str | None:
        """Return the name of the user; None if the response is not accepted.

        Args:
            mechanism: one of ``mechanisms``.
            response: as in connection.start-ok.
            peer: ``host:port`` of the client, for log lines.
            certificate: what the client has shown within TLS.
        """
        try:
            self.entrance.check_may_try(host)
            if mechanism == EXTERNAL:
                return self._of_certificate(certificate)
            return await self._of_password(mechanism, response, host)
        except LoginFailedError as error:
            await self.entrance.refuse(error, peer, host, mechanism)
            return None

    def watch(self, user: str, mechanism: str, end: Callable[[], None]) -> Callable[[], None]:
        """End a connection when its user is deleted; return a function that forgets it.

        Names of certificates and guest are not users that can be deleted.

        Args:
            end: closes the connection.
        """
        if mechanism == EXTERNAL or not self._credentials.has_user(user):
            return lambda: None
        return self.entrance.logins.watch(self._credentials, user, end)

    def _of_certificate(self, certificate: Mapping[str, Any] | None) -> str:
        name = self.entrance.certified(certificate)
        if name is None:
            raise LoginFailedError("the client has shown no certificate")
        return name

    async def _of_password(self, mechanism: str, response: bytes, host: str) -> str:
        is_open = not self._credentials.has_users()
        users = self._guest if is_open else self._credentials
        login = Plain(Limited(users, self.entrance.logins.by_user, host))
        if mechanism == PLAIN:
            await login.step(response)
        else:
            await login.verify(*_amqplain(response))
        if login.proved is None:
            raise LoginFailedError("the login is not complete")
        if is_open and not _is_loopback(host):
            raise LoginFailedError(
                "guest can log in from this machine only",
                _GUEST,
                hint="Add users: logins.users_file, or tidemill user create.",
            )
        return login.proved.user


def _amqplain(response: bytes) -> tuple[str, str]:
    """Return name and password of the table that AMQPLAIN sends."""
    try:
        table, _ = decode_table(len(response).to_bytes(4, "big") + response, 0, len(response) + 4)
    except MalformedError:
        raise LoginFailedError("the table of AMQPLAIN is malformed") from None
    name, password = table.get("LOGIN"), table.get("PASSWORD")
    if isinstance(password, bytes):
        password = password.decode("utf-8", "replace")
    if isinstance(name, bytes):
        name = name.decode("utf-8", "replace")
    if not isinstance(name, str) or not isinstance(password, str):
        raise LoginFailedError("AMQPLAIN needs LOGIN and PASSWORD")
    return name, password


def _is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
