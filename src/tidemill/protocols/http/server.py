"""Serves probes and metrics on a socket of their own.

They have their own limit of connections: a broker that is full of clients still answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tidemill.metrics import text
from tidemill.net.budget import Hold
from tidemill.net.link import Link
from tidemill.net.listener import Listener
from tidemill.protocols.http.codec import MOST_BYTES, BadRequestError, Request, answer, parse
from tidemill.protocols.http.metrics import PAGES, MetricsPages
from tidemill.protocols.http.settings import HealthListener

if TYPE_CHECKING:
    from tidemill.engine.engine import Engine
    from tidemill.settings import Settings

CONNECTIONS = 64
IDLE_S = 60


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request. Content that is not bytes becomes JSON."""

    status: int
    content: object
    content_type: str = "application/json"
    headers: str = ""


Answered = Answer | asyncio.Task[bytes]
"""An answer, or the task that returns its content."""
Answers = Callable[[Request, str], Answered]
"""Returns the answer to a request of a client at an address."""


class ProbeSession:
    """One connection. Requests are answered in order, as they arrive."""

    def __init__(self, answers: Answers, link: Link) -> None:
        self._answers = answers
        self._link = link
        self._buffer = bytearray(MOST_BYTES)
        self._data = bytearray()
        self._waits = False

    @property
    def is_busy(self) -> bool:
        """Whether a page is being written for the client."""
        return self._waits

    @property
    def is_partial(self) -> bool:
        """Whether a request has arrived in part."""
        return bool(self._data)

    def get_buffer(self) -> memoryview:
        """Return the buffer to receive into."""
        return memoryview(self._buffer)

    def received(self, count: int) -> None:
        """Answer the requests that are complete."""
        if self._link.is_closing:
            return
        self._data += self._buffer[:count]
        self._continue()

    def _continue(self) -> None:
        """Answer requests until one has to wait, or the client has to read."""
        try:
            while self._data and not (self._waits or self._link.is_congested):
                request, size = parse(bytes(self._data))
                if request is None:
                    break
                del self._data[:size]
                if not self._answer(request):
                    return
        except BadRequestError as error:
            self._data.clear()
            self._link.write([answer(error.status, {"error": str(error)}, _date(), keeps=False)])
            self._link.close()
            return
        is_full = len(self._data) >= MOST_BYTES
        (self._link.hold if is_full else self._link.unhold)(Hold.QUEUE)

    def _answer(self, request: Request) -> bool:
        """Answer a request; return whether the connection stays open."""
        if request.method not in ("GET", "HEAD"):
            found: Answered = Answer(405, {"error": "use GET"}, headers="allow: GET, HEAD\r\n")
        else:
            found = self._answers(request, self._link.host)
        if isinstance(found, Answer):
            return self._write(request, found)
        self._waits = True
        found.add_done_callback(lambda task: self._written(request, task))
        return True

    def _written(self, request: Request, task: asyncio.Task[bytes]) -> None:
        self._waits = False
        if self._link.is_closing:
            return
        if task.cancelled() or task.exception() is not None:
            done = Answer(500, {"error": "the metrics could not be written; see the broker's log"})
        else:
            done = Answer(200, task.result(), text.content_type(request.accept))
        if self._write(request, done):
            self._continue()

    def _write(self, request: Request, found: Answer) -> bool:
        data = answer(
            found.status,
            found.content,
            _date(),
            keeps=request.keeps,
            with_body=request.method != "HEAD",
            headers=found.headers,
            content_type=found.content_type,
        )
        self._link.write([data])
        if not request.keeps:
            self._link.close()
        return request.keeps

    def writable(self) -> None:
        """Answer what has waited for the client to read."""
        if not self._link.is_closing:
            self._continue()

    def stop(self) -> None:
        """Close the connection."""
        self._link.close()

    def closed(self) -> None:
        """Do nothing: there is nothing to clean up."""


def _date() -> str:
    """Return the time for an answer (RFC 9110, 5.6.7). ``email.utils`` takes long to import."""
    return datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")


def is_loopback(host: str) -> bool:
    """Return whether an address of a client is one of this machine's loopback addresses."""
    return host == "::1" or host.removeprefix("::ffff:").startswith("127.")


class HealthServer:
    """Answers whether the broker is alive and ready, and what it measures."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self._is_stopping = False
        limits = settings.limits.model_copy(
            update={"connections": CONNECTIONS, "idle_seconds": IDLE_S}
        )
        own = settings.model_copy(update={"limits": limits})
        section = settings.section(HealthListener)
        self._metrics = section.metrics
        self._pages = MetricsPages(engine.metrics)
        self.listener = Listener(own, section, lambda link: ProbeSession(self.answers, link))

    def answers(self, request: Request, host: str) -> Answered:
        """Return the answer to a request of a client at ``host``.

        The event loop answers, so the process is alive. It is ready until it stops, or until the
        disk has failed.
        """
        path = request.path
        if path in PAGES:
            return self._metrics_page(path, request.accept, host)
        if path == "/health/live":
            return Answer(200, {"status": "live"})
        if path != "/health/ready":
            return Answer(404, {"error": "use /health/live, /health/ready or /metrics"})
        if self._engine.failed.done():
            return Answer(503, {"status": "failed", "error": str(self._engine.failed.result())})
        if self._is_stopping:
            return Answer(503, {"status": "stopping"})
        return Answer(200, {"status": "ready"})

    def _metrics_page(self, path: str, accept: str, host: str) -> Answered:
        if self._metrics == "off":
            return Answer(404, {"error": "health.metrics is off"})
        if self._metrics == "loopback" and not is_loopback(host):
            return Answer(
                403,
                {
                    "error": "metrics are for clients on the broker's machine",
                    "hint": 'Set health.metrics = "anywhere" if only your monitoring reaches '
                    "this port.",
                },
            )
        content = text.content_type(accept)
        page = self._pages.get(path, content)
        return page if isinstance(page, asyncio.Task) else Answer(200, page, content)

    async def start(self) -> tuple[str, int]:
        """Bind the socket; see ``Listener.start``."""
        return await self.listener.start()

    async def stop(self, grace_seconds: float) -> None:
        """Accept no more connections, and close those that are open."""
        self._is_stopping = True
        self._pages.stop()
        await self.listener.stop(grace_seconds)
