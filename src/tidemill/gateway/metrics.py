"""Metrics of the gateway, and the page with those of all workers.

Workers publish theirs in the topic ``tidemill.metrics``, which the first scrape creates; the broker
has a page of its own.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidemill.confluent.clients import Kafka
from tidemill.confluent.metrics import TOPIC, create_topic, read_metrics
from tidemill.gateway.kept import Kept
from tidemill.gateway.reach import Reach
from tidemill.metrics import text
from tidemill.metrics.definition import gauge, histogram
from tidemill.metrics.published import Published, merged
from tidemill.metrics.registry import Family, Registry
from tidemill.tracing import context_in, span

REQUEST_SECONDS = histogram(
    "tidemill_http_request_seconds",
    "Time until the answer to a request begins, by listener, method and status.",
    *("listener", "method", "status"),
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0),
)
OPEN = gauge("tidemill_http_requests_open", "Requests that are being answered.", "listener")

TRACE = "tidemill.trace"
"""The key of a request's scope that has its context, to pass on."""
_TRACE = (b"traceparent", b"tracestate")
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
WORKER = "gateway"
KEPT_S = 2.0
"""How long a page is served again."""
PUBLISHED_S = 10.0
"""How long what workers have published is kept for the console: they publish as often."""


class Measured:
    """An ASGI application whose requests are measured."""

    def __init__(self, app: ASGIApp, registry: Registry, listener: str) -> None:
        self._app = app
        self._registry = registry
        self._listener = listener
        self._open = registry.gauge(OPEN, listener)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        method = scope["method"] if scope["method"] in METHODS else "other"
        path = scope["path"]
        # Pairs of bytes; names are in lower case.
        given = [pair for pair in scope["headers"] if pair[0] in _TRACE]
        parent = context_in((name.decode(), value) for name, value in given) if given else {}
        with span(
            f"{method} {self._listener}",
            "server",
            parent,
            http__request__method=method,
            url__path=path,
        ) as traced:
            scope[TRACE] = traced.context

            async def send_measured(message: Message) -> None:
                if message["type"] == "http.response.start":
                    labels = self._listener, method, str(message["status"])
                    taken = time.perf_counter() - began
                    self._registry.histogram(REQUEST_SECONDS, *labels).observe(taken)
                    traced.set("http.response.status_code", message["status"])
                await send(message)

            self._open.value += 1
            try:
                await self._app(scope, receive, send_measured)
            finally:
                self._open.value -= 1


class MetricsPage:
    """The text with the metrics of all workers, kept for a short time."""

    def __init__(self, kafka: Kafka, registry: Registry) -> None:
        self._kafka = kafka
        self._registry = registry
        self._reach = Reach(kafka)
        self._process = f"{socket.gethostname()}:{os.getpid()}"
        self._lock = asyncio.Lock()
        self._pages: dict[str, tuple[float, bytes]] = {}
        self._is_created = False
        self._published = Kept(PUBLISHED_S, self._others)

    async def published(self) -> list[Published]:
        """Return what workers published lately, at most ``PUBLISHED_S`` ago; not the gateway's own.

        Raises:
            TidemillError: the topic can't be read or created.
        """
        return await self._published.get()

    async def get(self, content: str) -> bytes:
        """Return the page.

        Raises:
            UnreachableError: no broker answers.
        """
        async with self._lock:
            at, page = self._pages.get(content, (0.0, b""))
            if not page or time.monotonic() - at > KEPT_S:
                own = tuple(self._registry.families())
                page = await asyncio.to_thread(self._write, own, content)
                self._pages[content] = time.monotonic(), page
            return page

    def _write(self, own: tuple[Family, ...], content: str) -> bytes:
        now_ms = time.time_ns() // 1_000_000
        here = Published(WORKER, self._process, now_ms, own)
        published = [here, *self._others()]
        return "".join(text.write(merged(published, now_ms), content)).encode()

    def _others(self) -> list[Published]:
        self._reach.check(f"read topic {TOPIC}")
        if not self._is_created:
            create_topic(self._kafka)
            self._is_created = True
        own = f"{WORKER}@{self._process}"
        return [each for each in read_metrics(self._kafka) if each.key != own]


async def get_metrics(request: Request) -> Response:
    """Answer Prometheus."""
    content = text.content_type(request.headers.get("accept", ""))
    page = await request.app.parts.metrics.get(content)
    return Response(page, headers={"content-type": content, "cache-control": "no-store"})
