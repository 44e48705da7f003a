"""A receiver of webhooks: in a thread of the tests, or as a process that is killed.

As a process it is ``python -m tests.support.receiver PORT FILE [--fail KEY]``. It writes a line of
JSON for each request before it answers, and a killed one loses no line that was answered.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.support.ports import reserve_port

Reply = int | tuple[int, dict[str, str]]


@dataclass
class Request:
    """A request that has arrived."""

    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Receiver:
    """Answers with what ``reply`` returns. Use it as a context manager.

    Attributes:
        requests: in the order of their arrival.
        reply: returns a status, or a status and headers. It runs in the receiver's thread.
        delay_s: so long each answer takes.
    """

    reply: Callable[[Request], Reply] = lambda request: 200
    delay_s: float = 0.0
    requests: list[Request] = field(default_factory=list)
    ssl: Any = None
    port: int = field(default_factory=reserve_port)
    most_open: int = 0

    @property
    def url(self) -> str:
        return f"{'https' if self.ssl else 'http'}://127.0.0.1:{self.port}/hook"

    def __enter__(self) -> Receiver:
        self._loop = asyncio.new_event_loop()
        self._open = 0
        started = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(started,), daemon=True)
        self._thread.start()
        assert started.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)

    def _serve(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        app = web.Application(client_max_size=16 << 20)
        app.router.add_post("/{path:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)

        async def start() -> None:
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", self.port, ssl_context=self.ssl).start()

        self._loop.run_until_complete(start())
        self._loop.call_soon(started.set)
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()

    async def _handle(self, request: web.Request) -> web.Response:
        names = {name.lower(): value for name, value in request.headers.items()}
        got = Request(names, await request.read())
        self._open += 1
        self.most_open = max(self.most_open, self._open)
        self.requests.append(got)
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        reply = self.reply(got)
        self._open -= 1
        status, headers = (reply, {}) if isinstance(reply, int) else reply
        return web.Response(status=status, headers=headers, text="answer " * 500)


def _main() -> None:
    port, file = int(sys.argv[1]), Path(sys.argv[2])
    out = file.open("a")

    async def handle(request: web.Request) -> web.Response:
        line = {"id": request.headers["webhook-id"], "body": (await request.read()).decode()}
        out.write(json.dumps(line) + "\n")
        out.flush()
        return web.Response()

    app = web.Application()
    app.router.add_post("/{path:.*}", handle)
    web.run_app(app, host="127.0.0.1", port=port, access_log=None, print=None)


if __name__ == "__main__":
    _main()
