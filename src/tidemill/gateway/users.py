"""Logins over HTTP: each user's requests reach the broker through Kafka clients of that user.

The gateway knows no users and stores no passwords: it passes on what a request has (RFC 7617, RFC
6750), and the broker decides. Clients of a user stay for later requests; there are at most
``MOST_USERS``. Must not know: routes, records.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hashlib
import importlib.metadata
import math
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from starlette.datastructures import Headers
from starlette.types import Scope

from tidemill.confluent.clients import Kafka
from tidemill.confluent.requests import requests_to
from tidemill.errors import (
    NotAllowedError,
    SettingsError,
    TidemillError,
    UnreachableError,
)
from tidemill.gateway.errors import HttpError, busy, from_error, unavailable
from tidemill.gateway.guard import Rates, Turns
from tidemill.gateway.parts import Clients, Parts
from tidemill.kafka_client.errors import UnsupportedSettingError

MOST_USERS = 32
"""Users whose clients stay open. Each has a few connections and threads."""
CHECKED_S = 60.0
"""How long a login counts as checked. Then the next request checks it again."""
LOOK_AGAIN_S = 10.0
"""How often the logins of open clients are checked without a request. Clients of a user who was
deleted, or whose token has expired, would try to log in again and again."""
SLOW_S = 0.5
"""After so long without an answer, the login of a request is checked again. When a user is deleted,
the broker ends its connections, and confluent-kafka tries for seconds to log in again.
"""
_CHECK_S = 5.0
"""How long the broker can take to accept a login."""
_LOOK_S = 0.25
_CHECKS = 4
"""Logins that are checked at the same time."""
_WAITING = 100
"""The most logins that wait for that."""
_FAILURES_PER_SECOND = 1
"""Failed logins of a client address, on average over ten seconds. Above it, none is checked."""
_MOST_BYTES = 16_384
OPEN_PATHS = frozenset({"/", "/docs", "/openapi.json"})
"""The documentation, which needs no login."""


@dataclass
class _User:
    """The clients of one user, and how many requests use them.

    Attributes:
        checked_at: when the broker accepted the login; the next request checks one that is old.
        is_refused: whether the broker has refused it since.
    """

    parts: Parts
    checked_at: float
    requests: int = 0
    is_refused: bool = False


def _installed() -> str:
    return importlib.metadata.version("confluent-kafka")


def has_tokens() -> bool:
    """Return whether this confluent-kafka gives a producer its token: from 2.13 on."""
    return tuple(int(part) for part in _installed().split(".")[:2]) >= (2, 13)


class Users:
    """The parts of each user who has logged in.

    Args:
        own: the gateway's own parts, whose limits and settings hold for all users.
        schemes: the schemes of HTTP that are allowed: ``basic`` and ``bearer``.
        now: seconds that never decrease.

    Attributes:
        schemes: the schemes that are allowed; none: requests need no login.

    Raises:
        SettingsError: the broker would not check a login.
    """

    def __init__(
        self, own: Parts, schemes: frozenset[str], now: Callable[[], float] = time.monotonic
    ) -> None:
        protocol = str(own.kafka.properties.get("security.protocol", "")).upper()
        if schemes and not protocol.startswith("SASL"):
            raise SettingsError(
                "gateway.logins is set, and the broker asks for no login: any password would do",
                hint="Set kafka.mechanisms of the broker, or security.protocol of the gateway's "
                "client.",
            )
        if "bearer" in schemes and not has_tokens():
            raise SettingsError(
                f"gateway.logins has bearer, and producers of confluent-kafka {_installed()} can't "
                "log in with tokens",
                hint="Install confluent-kafka 2.13 or newer, or leave bearer out.",
            )
        self._own = own
        self.schemes = schemes
        self._now = now
        self._salt = secrets.token_bytes(16)
        self._users: OrderedDict[bytes, _User] = OrderedDict()
        self._failures = Rates(_FAILURES_PER_SECOND, now)
        self._threads = ThreadPoolExecutor(_CHECKS, "logins")  # a guesser holds up nothing else
        self._turns = Turns(_CHECKS, _WAITING, "logins are under way")
        self._locks: WeakValueDictionary[bytes, asyncio.Lock] = WeakValueDictionary()
        self._looking: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def parts(self, scope: Scope) -> AsyncIterator[Parts]:
        """Yield the parts with which a request is served.

        Raises:
            HttpError: the request has no login, or the broker refuses it (401); there are too many
                failures (429) or users (503).
        """
        if not self.schemes or scope["path"] in OPEN_PATHS:
            yield self._own
            return
        properties = self._properties(Headers(scope=scope).getlist("authorization"))
        address = scope["client"][0] if scope.get("client") else ""
        key = self._key(properties)
        user = await self._user(key, properties, address)
        user.requests += 1
        try:
            async with self._watched(key, user):
                yield user.parts
        finally:
            user.requests -= 1

    @asynccontextmanager
    async def _watched(self, key: bytes, user: _User) -> AsyncIterator[None]:
        """End a request that is slow, or has failed, because its login is not valid any more.

        Raises:
            HttpError: the broker refuses the login now (401).
        """
        since = self._now()
        try:
            async with asyncio.timeout(None) as limit:

                async def look() -> None:
                    if await self._is_refused(key, user, since):
                        limit.reschedule(0)

                looks: list[asyncio.Task[None]] = []
                loop = asyncio.get_running_loop()
                timer = loop.call_later(SLOW_S, lambda: looks.append(loop.create_task(look())))
                try:
                    yield
                finally:
                    timer.cancel()
                    for each in looks:
                        each.cancel()
        except Exception as error:
            is_ended = limit.expired() or self._users.get(key) is not user
            is_unavailable = isinstance(error, TidemillError) and from_error(error).status == 503
            if (is_ended or is_unavailable) and await self._is_refused(key, user, since):
                raise self._refused(_REFUSED) from None
            raise

    async def _is_refused(self, key: bytes, user: _User, since: float) -> bool:
        """Return whether the broker refuses a login; ask it if it has not accepted it since."""
        async with self._locks.setdefault(key, asyncio.Lock()):
            if user.checked_at > since or self._users.get(key) is not user:
                return user.is_refused
            try:
                await self._run(user.parts.kafka)
            except (HttpError, SettingsError) as error:
                user.is_refused = isinstance(error, HttpError) and error.status == 401
                if user.is_refused and self._users.get(key) is user:
                    self._forget(key)
            else:
                user.checked_at, user.is_refused = self._now(), False
            return user.is_refused

    async def _user(self, key: bytes, properties: Mapping[str, Any], address: str) -> _User:
        found = self._fresh(key)
        if found is None:
            lock = self._locks.setdefault(key, asyncio.Lock())
            async with lock:  # requests of a new user come together
                found = self._fresh(key) or await self._checked(key, properties, address)
        self._users.move_to_end(key)
        return found

    def _fresh(self, key: bytes) -> _User | None:
        """Return a user whose login was checked lately, or None."""
        found = self._users.get(key)
        is_fresh = found is not None and self._now() - found.checked_at <= CHECKED_S
        return found if is_fresh else None

    async def _checked(self, key: bytes, properties: Mapping[str, Any], address: str) -> _User:
        """Return a user after its login was checked."""
        own = {
            name: value
            for name, value in self._own.kafka.properties.items()
            if name not in ("sasl.username", "sasl.password", "sasl.mechanisms")
        }
        kafka = Kafka(self._own.kafka.servers, {**own, **properties})
        try:
            await self._check(kafka, address)
        except HttpError as error:
            if error.status != 401:
                raise
            self._failures.wait_s(address)
            if key in self._users:
                self._users[key].is_refused = True
                self._forget(key)
            raise self._refused(str(error)) from None
        found = self._users.get(key)
        if found is None:
            clients = await Clients.of(kafka)
            self._make_room()
            found = _User(Parts.start(kafka, self._own.settings, self._own, clients), 0.0)
            self._users[key] = found
            if self._looking is None:
                self._looking = asyncio.create_task(self._look_again())
        found.checked_at, found.is_refused = self._now(), False
        return found

    async def _look_again(self) -> None:
        """Check the logins of open clients now and then, and close those that are refused twice.

        After the first refusal, the next request of the user checks by itself. A second one is
        needed because the broker also refuses a name for a moment that others have guessed at.
        """
        while True:
            await asyncio.sleep(LOOK_AGAIN_S)
            for key, user in list(self._users.items()):
                try:
                    await self._run(user.parts.kafka)
                except HttpError as error:
                    if error.status != 401 or self._users.get(key) is not user:
                        continue
                    if user.is_refused:
                        self._forget(key)
                    user.is_refused, user.checked_at = True, -math.inf
                except SettingsError:  # a certificate that can't be read says nothing about a user
                    continue
                else:
                    user.is_refused = False

    async def _run(self, kafka: Kafka) -> None:
        await asyncio.get_running_loop().run_in_executor(self._threads, _check, kafka)

    async def _check(self, kafka: Kafka, address: str) -> None:
        """Let the broker check a login. A few are under way; others wait for their turn.

        Raises:
            HttpError: the broker refuses it (401) or does not answer (503); the address has failed
                too often (429); too many wait (503).
        """
        async with self._turns.turn():
            # Those in front of it may have failed.
            wait_s = self._failures.wait_s(address, counts=False)
            if wait_s:
                raise HttpError(
                    429, "too_many_requests", "too many failed logins", retry_after_s=wait_s
                )
            await self._run(kafka)

    def _make_room(self) -> None:
        while len(self._users) >= MOST_USERS:
            idle = next((key for key, user in self._users.items() if not user.requests), None)
            if idle is None:
                raise busy("too many users are served at the same time")
            self._forget(idle)

    def _forget(self, key: bytes) -> None:
        """Close the clients of a user, which can take seconds: no request waits for that."""
        user = self._users.pop(key)
        user.parts.stop()
        closing = asyncio.create_task(user.parts.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def _key(self, properties: Mapping[str, Any]) -> bytes:
        text = "\0".join(f"{name}={properties[name]}" for name in sorted(properties) if name != _CB)
        token = properties[_CB].token if _CB in properties else ""
        return hashlib.blake2b(f"{text}\0{token}".encode(), key=self._salt).digest()

    def _properties(self, given: list[str]) -> dict[str, Any]:
        """Return librdkafka's properties for the login of a request."""
        if len(given) != 1 or len(given[0]) > _MOST_BYTES:
            raise self._refused("a login is needed")
        scheme, _, value = given[0].partition(" ")
        value = value.strip()
        if scheme.lower() not in self.schemes or not value:
            raise self._refused("this kind of login is not allowed")
        if scheme.lower() == "bearer":
            return {"sasl.mechanism": "OAUTHBEARER", _CB: _Token(value)}
        try:
            name, colon, password = base64.b64decode(value, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError, ValueError):
            colon = ""
        if not colon or not name or not password or "\0" in name + password:
            raise self._refused("the login is malformed")
        return {"sasl.username": name, "sasl.password": password}

    def _refused(self, reason: str) -> HttpError:
        known = {"basic": 'Basic realm="tidemill", charset="UTF-8"', "bearer": "Bearer"}
        ways = ", ".join(known[each] for each in sorted(self.schemes))
        return HttpError(401, "unauthorized", reason, headers={"www-authenticate": ways})

    def stop(self) -> None:
        """End answers that wait for new records."""
        for user in self._users.values():
            user.parts.stop()

    async def close(self) -> None:
        """End the clients of all users."""
        if self._looking is not None:
            self._looking.cancel()
        for key in list(self._users):
            self._forget(key)
        if self._closing:
            await asyncio.wait(self._closing)
        self._threads.shutdown(wait=False, cancel_futures=True)


_REFUSED = "the broker refuses the login"
_CB = "oauth_cb"
_CHECKER = "tidemill-gateway-login"


@dataclass(frozen=True)
class _Token:
    """Gives librdkafka the token of a request. The broker checks it, and when it expires."""

    token: str

    def __call__(self, config: str) -> tuple[str, float]:
        return self.token, time.time() + 3600


def _check(kafka: Kafka) -> None:
    """Return if the broker accepts a login.

    Our own client asks, which needs some milliseconds. confluent-kafka sleeps for a second when it
    makes a client with a token, and does not say when a login has failed.

    Raises:
        HttpError: it does not (401), or no broker answers (503).
    """
    try:
        requests = requests_to(kafka, _CHECKER, _CHECK_S)
    except UnsupportedSettingError:
        _check_with_librdkafka(kafka)
        return
    with requests:
        try:
            requests.brokers()
        except NotAllowedError:
            raise _refused_login() from None
        except UnreachableError:
            raise unavailable("the broker does not answer a login") from None


def _check_with_librdkafka(kafka: Kafka) -> None:
    """Return if the broker accepts a login, where the connection needs what only librdkafka has."""
    refused: list[KafkaError] = []

    def note(error: KafkaError) -> None:
        if error.code() == KafkaError._AUTHENTICATION:
            refused.append(error)

    admin = kafka.make(AdminClient, kafka.config(_CHECKER) | {"error_cb": note})
    deadline = time.monotonic() + _CHECK_S
    while time.monotonic() < deadline:
        with contextlib.suppress(KafkaException):
            admin.list_topics(timeout=_LOOK_S)
            return
        admin.poll(0)
        if refused:
            raise _refused_login()
    raise unavailable("the broker does not answer a login")


def _refused_login() -> HttpError:
    return HttpError(401, "unauthorized", _REFUSED)
