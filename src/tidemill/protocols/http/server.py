"""Serves probes on a socket of their own.

They have their own limit of connections: a broker that is full of clients still answers.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tidemill.net.link import Link
from tidemill.net.listener import Listener
from tidemill.protocols.http.codec import MOST_BYTES, BadRequestError, Request, answer, parse
from tidemill.protocols.http.settings import HealthListener

if TYPE_CHECKING:
    from tidemill.engine.engine import Engine
    from tidemill.settings import Settings

CONNECTIONS = 64
IDLE_S = 60

Answers = Callable[[str], tuple[int, object] | None]
"""Returns status and content for a path; None if there is nothing at it."""


class ProbeSession:
    """One connection. Requests are answered in order, as they arrive."""

    is_busy = False

    def __init__(self, answers: Answers, link: Link) -> None:
        self._answers = answers
        self._link = link
        self._buffer = bytearray(MOST_BYTES)
        self._data = bytearray()

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
        try:
            while self._data:
                request, size = parse(bytes(self._data))
                if request is None:
                    return
                del self._data[:size]
                if not self._answer(request):
                    return
        except BadRequestError as error:
            self._data.clear()
            self._link.write([answer(error.status, {"error": str(error)}, _date(), keeps=False)])
            self._link.close()

    def _answer(self, request: Request) -> bool:
        """Answer a request; return whether the connection stays open."""
        with_body, headers = request.method != "HEAD", ""
        found = self._answers(request.path)
        if request.method not in ("GET", "HEAD"):
            found, headers = (405, {"error": "use GET"}), "allow: GET, HEAD\r\n"
        status, content = found or (404, {"error": "use /health/live or /health/ready"})
        data = answer(
            status, content, _date(), keeps=request.keeps, with_body=with_body, headers=headers
        )
        self._link.write([data])
        if not request.keeps:
            self._link.close()
        return request.keeps

    def writable(self) -> None:
        """Do nothing: no answer waits."""

    def stop(self) -> None:
        """Close the connection."""
        self._link.close()

    def closed(self) -> None:
        """Do nothing: there is nothing to clean up."""


def _date() -> str:
    """Return the time for an answer (RFC 9110, 5.6.7). ``email.utils`` takes long to import."""
    return datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")


class HealthServer:
    """Answers whether the broker is alive and ready."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self._is_stopping = False
        limits = settings.limits.model_copy(
            update={"connections": CONNECTIONS, "idle_seconds": IDLE_S}
        )
        own = settings.model_copy(update={"limits": limits})
        section = settings.section(HealthListener)
        self.listener = Listener(own, section, lambda link: ProbeSession(self.answers, link))

    def answers(self, path: str) -> tuple[int, object] | None:
        """Return status and content for a path; None if there is nothing at it.

        The event loop answers, so the process is alive. It is ready until it stops, or until the
        disk has failed.
        """
        if path == "/health/live":
            return 200, {"status": "live"}
        if path != "/health/ready":
            return None
        if self._engine.failed.done():
            return 503, {"status": "failed", "error": str(self._engine.failed.result())}
        if self._is_stopping:
            return 503, {"status": "stopping"}
        return 200, {"status": "ready"}

    async def start(self) -> tuple[str, int]:
        """Bind the socket; see ``Listener.start``."""
        return await self.listener.start()

    async def stop(self, grace_seconds: float) -> None:
        """Accept no more connections, and close those that are open."""
        self._is_stopping = True
        await self.listener.stop(grace_seconds)
