"""Logins of a broker and of each of its listeners: mechanisms, users, limits.

A protocol takes an ``Entrance`` for each listener, and an ``Exchange`` for each login. Must not
know: a protocol, sockets.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog

from tidemill.errors import SettingsError
from tidemill.protocols.logins.certificates import PrincipalRules, distinguished_name
from tidemill.protocols.logins.contract import (
    MOST_SHOWN,
    OAUTHBEARER,
    PLAIN,
    SCRAM,
    Credentials,
    Exchange,
    LoginFailedError,
    ScramKeys,
    UnknownMechanismError,
    UserStore,
)
from tidemill.protocols.logins.failures import (
    ADDRESS_PER_SECOND,
    MOST_OF_ADDRESS,
    MOST_OF_USER,
    USER_PER_SECOND,
    Failures,
    Pending,
)
from tidemill.protocols.logins.oauthbearer import OAuthBearer
from tidemill.protocols.logins.plain import Plain
from tidemill.protocols.logins.scram import Scram, decoy
from tidemill.protocols.logins.settings import LoginSettings, OauthSettings
from tidemill.protocols.logins.tokens import Tokens
from tidemill.protocols.logins.users_file import FileUsers, check_mode, read_users
from tidemill.protocols.logins.watched import KnownUsers, Watched
from tidemill.settings import Settings
from tidemill.settings.section import SecureSection
from tidemill.state.security.types import ScramMechanism

log = structlog.get_logger("tidemill.logins")


class AllUsers:
    """The users of files, and those that the broker stores. Implements ``Credentials``.

    All that have users are asked each time, so that the time does not say which of them has one.

    Args:
        store: returns the broker's users; None: there are only files.
    """

    def __init__(
        self, files: Sequence[FileUsers], store: Callable[[], UserStore] | None = None
    ) -> None:
        self.files = [each for each in files if each.has_users]
        self.store = store
        self._secret = secrets.token_bytes(32)

    def has_users(self) -> bool:
        """Return whether there is any user at all."""
        return bool(self.files) or (self.store is not None and self.store().has_users)

    def has_user(self, user: str) -> bool:
        """Return whether the user exists, which no client may learn before its login."""
        if any(file.has_user(user) for file in self.files):
            return True
        return self.store is not None and self.store().has_user(user)

    async def keys(self, user: str, mechanism: str) -> tuple[ScramKeys, bool]:
        """Return the keys of a user, and whether there is such a user with such keys."""
        if self.store is None:
            unknown: ScramKeys = decoy(self._secret, user, mechanism)
        else:
            unknown = self.store().decoy(user, ScramMechanism(mechanism))
        found: list[ScramKeys | None] = [
            await file.keys(user, mechanism, unknown.salt) for file in self.files
        ]
        if self.store is not None:
            found.append(self.store().credentials(user, ScramMechanism(mechanism)))
        known = next((each for each in found if each is not None), None)
        return known or unknown, known is not None

    async def verify(self, user: str, password: str) -> bool:
        """Return whether a password is that of a user."""
        found = [file.verify(user, password) for file in self.files]
        if self.store is not None and self.store().has_users:
            found.append(await self.store().verify_plain(user, password))
        return any(found)

    def beside(self, file: FileUsers) -> AllUsers:
        """Return these users and those of another file."""
        return AllUsers([file, *self.files], self.store)


class Logins:
    """Users and limits that the logins of all listeners of a broker share.

    Args:
        store: returns the users that the broker stores; None: there are only those of the file.
        workers: passwords of the broker's workers, by name.

    Attributes:
        credentials: all users.
        by_user, by_address: failed logins of a name from an address, and of each address.
        pending: connections whose logins are not complete.

    Raises:
        SettingsError: ``logins.users_file`` can't be used.
    """

    def __init__(
        self,
        settings: Settings,
        store: Callable[[], UserStore] | None = None,
        workers: Mapping[str, str] | None = None,
    ) -> None:
        section = settings.section(LoginSettings)
        check_mode(section.users_file)
        self._store = store
        self.credentials = AllUsers([FileUsers(read_users(section.users_file))], store)
        if workers:
            self.credentials = self.credentials.beside(FileUsers(workers))
        self.by_user = Failures(time.monotonic, MOST_OF_USER, USER_PER_SECOND)
        self.by_address = Failures(time.monotonic, MOST_OF_ADDRESS, ADDRESS_PER_SECOND)
        self.pending = Pending(settings.limits.connections // 2)
        self.delay_s = section.failed_delay_ms / 1000
        self.max_session_s = section.max_session_seconds
        self._watched: Watched | None = None
        self._oauth = settings.section(OauthSettings)
        self._tokens: Tokens | None = None

    def tokens(self) -> Tokens:
        """Return what checks tokens.

        Raises:
            SettingsError: the section ``[oauth]`` is incomplete.
            TidemillError: joserfc is not installed.
        """
        if self._tokens is None:
            self._tokens = Tokens(self._oauth)
        return self._tokens

    def watch(self, users: KnownUsers, user: str, end: Callable[[], None]) -> Callable[[], None]:
        """End a connection when its user is deleted; return a function that forgets it.

        Args:
            users: those among whom the user was found.
            end: closes the connection.
        """
        if self._watched is None:
            self._watched = Watched()
            if self._store is not None:
                self._store().watch(self._watched.look)
        return self._watched.add(users, user, end)

    def exchange(self, mechanism: str, address: str) -> Exchange:
        """Return a new login by a mechanism, of a client at an address."""
        if mechanism == OAUTHBEARER:
            return OAuthBearer(self.tokens())
        limited = Limited(self.credentials, self.by_user, address)
        return Scram(mechanism, limited) if mechanism in SCRAM else Plain(limited)


class Limited:
    """Users, for the client at one address, which can fail with each name only so often."""

    def __init__(self, credentials: Credentials, failures: Failures, address: str) -> None:
        self._credentials = credentials
        self._failures = failures
        self._address = address

    def has_users(self) -> bool:
        """Return whether there is any user at all."""
        return self._credentials.has_users()

    async def keys(self, user: str, mechanism: str) -> tuple[ScramKeys, bool]:
        """Return the keys of a user, and whether there is such a user with such keys."""
        self._check(user)
        return await self._credentials.keys(user, mechanism)

    async def verify(self, user: str, password: str) -> bool:
        """Return whether a password is that of a user."""
        self._check(user)
        return await self._credentials.verify(user, password)

    def _check(self, user: str) -> None:
        if not self._failures.may_try(pair(self._address, user)):
            raise LoginFailedError("too many failed logins with this name", user)


def pair(address: str, user: str) -> str:
    """Return the key of a name at an address."""
    return f"{address} {user[:MOST_SHOWN]}"


KAFKA_MECHANISMS = (PLAIN, *SCRAM, OAUTHBEARER)
"""The mechanisms that a Kafka listener can have."""


class Entrance:
    """The logins of one listener: its mechanisms, and its rules for certificates.

    Args:
        name: the listener's, for log lines.
        known: the mechanisms that its protocol has.

    Attributes:
        mechanisms: those that clients can use; empty: no login is needed.

    Raises:
        SettingsError: a mechanism is not known, or lacks what it needs.
    """

    def __init__(
        self, name: str, section: SecureSection, logins: Logins, known: Sequence[str]
    ) -> None:
        self.name = name
        self.logins = logins
        self.mechanisms = section.mechanism_names()
        self._rules: PrincipalRules | None = None
        if section.tls_client_auth != "none":
            self._rules = PrincipalRules(section.tls_principal_rules, f"{name}.tls_principal_rules")
        for each in self.mechanisms:
            if each not in known:
                raise SettingsError(
                    f"unknown mechanism {each!r} in {name}.mechanisms",
                    hint=f"Use some of {', '.join(known)}.",
                )
        if OAUTHBEARER in self.mechanisms:
            logins.tokens()

    def exchange(self, mechanism: str, address: str) -> Exchange:
        """Return a new login of a client at an address.

        Raises:
            UnknownMechanismError: the listener does not have the mechanism.
        """
        if mechanism not in self.mechanisms:
            raise UnknownMechanismError(f"unsupported mechanism {mechanism[:64]!r}")
        return self.logins.exchange(mechanism, address)

    def certified(self, certificate: Mapping[str, Any] | None) -> str | None:
        """Return the name of the principal of a certificate; None without one.

        Raises:
            LoginFailedError: no rule matches.
        """
        if self._rules is None or not certificate:
            return None
        return self._rules.principal(distinguished_name(certificate))

    def check_may_try(self, address: str) -> None:
        """Check that an address has not failed too often.

        Raises:
            LoginFailedError: it has.
        """
        if not self.logins.by_address.may_try(address):
            raise LoginFailedError("too many failed logins from this address")

    async def refuse(self, error: LoginFailedError, peer: str, address: str, how: str) -> None:
        """Count and log a failed login, and wait before it is answered."""
        by_user, by_address = self.logins.by_user, self.logins.by_address
        key = pair(address, error.user)
        if by_user.may_try(key) and by_address.may_try(address):  # others would fill the log
            log.warning(
                "login.failed",
                listener=self.name,
                peer=peer,
                mechanism=how[:64],
                user=error.user,
                why=str(error),
            )
        by_user.failed(key)
        by_address.failed(address)
        if self.logins.delay_s:
            await asyncio.sleep(self.logins.delay_s)
