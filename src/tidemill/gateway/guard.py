"""Decides whether a request is served: who sends it, from which web page, and how much.

Without logins (``users``), what protects topics is that only this machine reaches them, and that no
web page does on behalf of its reader. Must not know: topics, records.
Sources: RFC 9110 (HTTP), the Fetch standard (Origin, CORS, Sec-Fetch-Site), RFC 6585 (429).
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import lru_cache

import structlog
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidemill.errors import TidemillError
from tidemill.gateway.errors import HttpError, busy, from_error, invalid

RATE_S = 10.0
"""The time over which the rate of a client is averaged."""
_ADDRESSES = 10_000
"""The most client addresses whose rate is remembered."""
_METHODS = "GET, POST, OPTIONS"
_REQUEST_HEADERS = "Accept, Authorization, Content-Type, Idempotency-Key, Last-Event-ID"
_EXPOSED_HEADERS = b"Link, Retry-After"
_NO_SNIFF = (b"x-content-type-options", b"nosniff")
_SAME_ORIGIN = (b"cross-origin-resource-policy", b"same-origin")

log = structlog.get_logger("tidemill.gateway")


class Rates:
    """Counts the requests of each client address: a bucket of tokens (RFC 2697 without colors).

    Args:
        per_second: The most requests in a second, on average; 0: no limit.
        now: Seconds that never decrease.
    """

    def __init__(self, per_second: int, now: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._most = per_second * RATE_S
        self._now = now
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, address: str, *, counts: bool = True) -> float:
        """Count a request; return 0, or after how many seconds the client can try again.

        Args:
            counts: Whether it is counted. If not, this only looks.
        """
        if not self._per_second:
            return 0.0
        now = self._now()
        tokens, since = self._buckets.get(address, (self._most, now))
        tokens = min(self._most, tokens + (now - since) * self._per_second)
        allowed = tokens >= 1
        if counts:
            self._buckets[address] = (tokens - allowed, now)
            self._buckets.move_to_end(address)
            if len(self._buckets) > _ADDRESSES:
                self._buckets.popitem(last=False)
        return 0.0 if allowed else (1 - tokens) / self._per_second


class Budget:
    """The memory that bodies and unacknowledged records can take together.

    Args:
        most: Bytes.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.used = 0

    def take(self, size: int) -> None:
        """Take bytes.

        Raises:
            HttpError: too many are taken (503).
        """
        if self.used + size > self.most:
            raise busy("too many requests are under way")
        self.used += size

    def give(self, size: int) -> None:
        """Return bytes."""
        self.used -= size

    @contextmanager
    def taken(self) -> Iterator[Callable[[int], None]]:
        """Yield a function that takes bytes, which are returned at the end.

        With a negative number it returns some before.
        """
        total = 0

        def take(size: int) -> None:
            nonlocal total
            self.take(size)
            total += size

        try:
            yield take
        finally:
            self.give(total)


class Turns:
    """Lets a few run at the same time. Others wait for their turn, up to a bound.

    Args:
        at_once: The most that run.
        most: The most that run or wait.
        what: What there is too much of, for the error.
    """

    def __init__(self, at_once: int, most: int, what: str) -> None:
        self._free = asyncio.Semaphore(at_once)
        self._most = most
        self._what = what
        self._count = 0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn, which ends with the block.

        Raises:
            HttpError: too many wait (503).
        """
        if self._count >= self._most:
            raise busy(f"too many {self._what}")
        self._count += 1
        try:
            async with self._free:
                yield
        finally:
            self._count -= 1


class Guard:
    """ASGI middleware: refuses requests, answers errors, and adds the headers of CORS.

    Args:
        app: What serves the requests that pass.
        allow_remote: Whether clients on other machines are served.
        names: Names by which clients reach the server, besides localhost and addresses; None: all.
        origins: Origins of web pages that can use it; None: all, without headers of CORS.
        rates: The rate of each client.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        allow_remote: bool,
        names: frozenset[str] | None,
        origins: frozenset[str] | None,
        rates: Rates,
    ) -> None:
        self._app = app
        self._allow_remote = allow_remote
        self._names = names
        self._origins = origins
        self._rates = rates

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        headers = Headers(scope=scope)
        begun = False
        origin = ""

        async def send_more(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                message["headers"] = [*message.get("headers", ()), *self._added(origin)]
            await send(message)

        try:
            self._check(scope, headers)
            origin = headers.get("origin", "")
            if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
                await _preflight(headers)(scope, receive, send_more)
                return
            await self._app(scope, receive, send_more)
        except (asyncio.CancelledError, ClientDisconnect):
            raise
        except Exception as error:
            problem = problem_of(error, scope)
            if begun:  # the answer is cut off, so that the client does not take it for complete
                raise
            await problem.response()(scope, receive, send_more)

    def _check(self, scope: Scope, headers: Headers) -> None:
        """Raise an error for a request that is not served."""
        address = scope["client"][0] if scope.get("client") else ""
        if not self._allow_remote and not is_loopback(address):
            raise HttpError(
                403,
                "remote_address",
                "clients on other machines are not served",
                hint="gateway.allow_remote = true allows it; gateway.logins asks for logins.",
            )
        host = self._checked_host(headers.getlist("host"))
        self._check_origin(headers, f"{scope['scheme']}://{host}")
        wait_s = self._rates.wait_s(address)
        if wait_s:
            raise HttpError(429, "too_many_requests", "too many requests", retry_after_s=wait_s)

    def _checked_host(self, given: list[str]) -> str:
        if len(given) != 1:
            raise invalid("a request needs one Host header")
        host = given[0].strip().lower()
        name = _host_name(host)
        if self._names is not None and not _is_own(name) and name not in self._names:
            raise HttpError(
                421,
                "unknown_host",
                f"invalid Host {host[:100]!r}: it is not a name of this server",
                hint="Use localhost or an address, or add the name to gateway.hosts.",
            )
        return host

    def _check_origin(self, headers: Headers, own: str) -> None:
        """Refuse what a web page from elsewhere asks for."""
        if self._origins is None:
            return
        origin = headers.get("origin", "").lower()
        if origin == own or origin in self._origins:
            return
        site = headers.get("sec-fetch-site", "none")
        is_link = headers.get("sec-fetch-mode") == "navigate"
        if origin or (site not in ("none", "same-origin") and not is_link):
            raise HttpError(
                403,
                "origin_refused",
                f"web pages of {origin[:100] or 'other sites'} can't use this server",
                hint="Add the origin to gateway.origins.",
            )

    def _added(self, origin: str) -> list[tuple[bytes, bytes]]:
        """Return the headers of an answer that keep it from web pages, or let one read it."""
        if not self._origins:
            return [_NO_SNIFF, _SAME_ORIGIN]
        vary = (b"vary", b"origin")
        if origin.lower() not in self._origins:
            return [_NO_SNIFF, _SAME_ORIGIN, vary]
        return [
            _NO_SNIFF,
            vary,
            (b"access-control-allow-origin", origin.encode("latin-1")),
            (b"access-control-expose-headers", _EXPOSED_HEADERS),
            (b"cross-origin-resource-policy", b"cross-origin"),
        ]


def _preflight(headers: Headers) -> Response:
    """Return the answer to a browser that asks before a request."""
    allowed = {
        "access-control-allow-methods": _METHODS,
        "access-control-allow-headers": _REQUEST_HEADERS,
        "access-control-max-age": "600",
    }
    if headers.get("access-control-request-private-network") == "true":
        allowed["access-control-allow-private-network"] = "true"
    return Response(status_code=204, headers=allowed)


def problem_of(error: Exception, scope: Scope) -> HttpError:
    """Return the answer for an error; log it if it is a bug."""
    if isinstance(error, TidemillError):
        return from_error(error)
    if isinstance(error, HTTPException):  # no route
        code = "not_found" if error.status_code == 404 else "method_not_allowed"
        return HttpError(
            error.status_code,
            code,
            f"there is no {scope['method']} {scope['path'][:200]}",
            hint="See /docs.",
            headers=error.headers,
        )
    log.error("gateway.failed", method=scope["method"], path=scope["path"], error=error)
    return HttpError(500, "internal_error", "an internal error: see the log of the gateway")


def _host_name(host: str) -> str:
    """Return the name in a Host header, without a port."""
    if host.startswith("["):
        return host.partition("]")[0].removeprefix("[")
    return host.partition(":")[0].rstrip(".")


@lru_cache(_ADDRESSES)
def _is_own(name: str) -> bool:
    """Whether a name can't be made to mean this machine by a web page's name server."""
    return name == "localhost" or name.endswith(".localhost") or _address(name) is not None


@lru_cache(_ADDRESSES)
def is_loopback(text: str) -> bool:
    """Return whether an address is of this machine."""
    address = _address(text)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address is not None and address.is_loopback


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None


# --- bodies --------------------------------------------------------------------------------------


async def chunks(request: Request, pause_s: float) -> AsyncIterator[bytes]:
    """Yield the parts of a body as they come.

    Args:
        pause_s: The longest pause between two parts.

    Raises:
        HttpError: the client is too slow (408).
        ClientDisconnect: it has gone.
    """
    while True:
        try:
            async with asyncio.timeout(pause_s):
                message = await request.receive()
        except TimeoutError:
            raise slow() from None
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        yield message.get("body", b"")
        if not message.get("more_body", False):
            return


def slow() -> HttpError:
    """Return the error for a client that sends too slowly."""
    return HttpError(408, "too_slow", "the body is too slow", headers={"connection": "close"})


async def read_body(
    request: Request,
    most: int,
    seconds: float,
    take: Callable[[int], None],
    setting: str = "gateway.body_bytes",
) -> bytes:
    """Return the whole body of a request.

    Args:
        most: The most bytes.
        seconds: How long the client can take.
        take: Takes memory from a budget.
        setting: The setting with the limit, for the error.

    Raises:
        HttpError: the body is too large (413) or too slow (408), or memory is short (503).
        ClientDisconnect: the client has gone.
    """
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced[:20]) > most:
        raise too_large(most, setting)
    parts: list[bytes] = []
    size, deadline = 0, time.monotonic() + seconds
    async for part in chunks(request, seconds):
        size += len(part)
        if size > most:
            raise too_large(most, setting)
        if time.monotonic() > deadline:
            raise slow()
        take(len(part))
        parts.append(part)
    return b"".join(parts) if len(parts) != 1 else parts[0]


def too_large(most: int, setting: str = "gateway.body_bytes") -> HttpError:
    """Return the error for a body that is too large."""
    return HttpError(
        413,
        "body_too_large",
        f"the body is larger than {most} bytes",
        hint=f"{setting} is the limit.",
        headers={"connection": "close"},
    )
