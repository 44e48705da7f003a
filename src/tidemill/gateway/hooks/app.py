"""Answers requests to ``/hooks/NAME``: 200 when the record is durable, and an error otherwise.

Must not know: how records are stored or verified. The guard of the gateway answers the errors.
"""

from __future__ import annotations

import asyncio
import time
from urllib.parse import unquote

import structlog
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from tidemill.confluent.clients import Kafka
from tidemill.connect.webhooks.signatures import SignatureError
from tidemill.errors import SettingsError
from tidemill.gateway.errors import (
    HookUnavailableError,
    HttpError,
)
from tidemill.gateway.guard import Budget, Guard, Rates, read_body
from tidemill.gateway.hooks.cloudevents import allowed
from tidemill.gateway.hooks.hook import Challenge, Hook
from tidemill.gateway.hooks.mapping import Delivery
from tidemill.gateway.hooks.settings import DeclaredHooks, HookEntry
from tidemill.gateway.hooks.writer import Writer
from tidemill.gateway.metrics import TRACE
from tidemill.gateway.server import Listener
from tidemill.net.tls import ListenerTls

DUPLICATE = "webhook-duplicate"
"""The header of an answer that says how many records the topic had already."""
BODY_S = 10.0
"""How long a sender can take for a body."""
INFLIGHT_BYTES = 128 << 20
"""Bytes of all bodies that are in memory."""
_BROKEN_RETRY_S = 60.0
_LOG_EVERY_S = 10.0
_STOP_S = 5.0

log = structlog.get_logger("tidemill.gateway")


class HooksApp:
    """An ASGI application that serves all hooks.

    A hook that can't verify, because a secret is missing or invalid, answers 503, so that senders
    try again; the others are served.

    Args:
        kafka: the cluster that has the topics.
        declared: the hooks, and the settings of their listener.
    """

    def __init__(self, kafka: Kafka, declared: DeclaredHooks) -> None:
        self._section = declared.section
        self._hooks: dict[str, Hook] = {}
        self._broken: set[str] = set()
        for entry in declared.entries:
            try:
                self._hooks[entry.name] = self._made(entry)
            except SettingsError as error:
                self._broken.add(entry.name)
                log.error("hook.invalid", hook=entry.name, error=str(error), hint=error.hint)
        self._writers = {name: Writer(kafka, hook.entry) for name, hook in self._hooks.items()}
        self._budget = Budget(INFLIGHT_BYTES)
        self._tasks: list[asyncio.Task[None]] = []
        self._logged: dict[tuple[str, str], float] = {}

    def listeners(self) -> list[Listener]:
        """Return the listener of hooks; none if there is no hook."""
        section = self._section
        rates = Rates(section.requests_per_second)
        # Senders are elsewhere, and no web page: what they send is verified.
        app = Guard(self, allow_remote=True, names=None, origins=None, rates=rates)
        address = section.host, section.port
        tls = ListenerTls(section.key, section.tls_cert, section.tls_key)
        limits = section.connections
        listener = Listener("hooks", app, *address, limits, section=section.key, tls=tls)
        return [listener] if self._hooks or self._broken else []

    def _made(self, entry: HookEntry) -> Hook:
        """Return a declared hook, ready to use.

        Raises:
            SettingsError: a secret is missing or invalid, or a setting that its sender needs.
        """
        if entry.verifier == "twilio" and not self._section.public_url:
            raise SettingsError(
                f"hook {entry.name}: Twilio signs the URL, and hooks.public_url is not set",
                hint="Set it to what Twilio calls, without /hooks/NAME: https://hooks.example.com",
            )
        return Hook(entry)

    def start(self) -> None:
        """Take over the hooks. Requests wait until their hook is ready."""
        self._tasks = [
            asyncio.create_task(writer.run(), name=f"hook {name}")
            for name, writer in self._writers.items()
        ]

    async def stop(self) -> None:
        """Store what waits, for a few seconds, and end."""
        for writer in self._writers.values():
            writer.stop()
        if not self._tasks:
            return
        _, pending = await asyncio.wait(self._tasks, timeout=_STOP_S)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        response = await self._answer(Request(scope, receive))
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        """Return the answer to a request.

        Raises:
            TidemillError: it is refused, or not stored.
        """
        hook, parameters = self._find(request)
        entry = hook.entry
        headers: dict[str, str] = {}
        for name, value in request.headers.items():
            headers.setdefault(name, value)
        if request.method == "OPTIONS" and entry.format == "cloudevents":
            return Response(headers=allowed(headers, entry.allowed_origins, entry.allowed_rate))
        if request.method not in entry.methods:
            methods = ", ".join(entry.methods)
            message = f"hook {entry.name} accepts {methods}"
            raise HttpError(405, "method_not_allowed", message, headers={"allow": methods})
        with self._budget.taken() as take:
            most = self._section.body_bytes
            body = await read_body(request, most, BODY_S, take, "hooks.body_bytes")
            # Not from request.url: Starlette 0.40 fails there on a Host that is malformed.
            query = request.scope["query_string"].decode("latin-1")
            raw = request.scope["raw_path"].decode("latin-1") + (f"?{query}" if query else "")
            url = self._section.public_url.rstrip("/") + raw
            trace = request.scope.get(TRACE, {})
            delivery = Delivery(request.method, url, headers, body, parameters, query, trace)
            return await self._store(hook, delivery)

    async def _store(self, hook: Hook, delivery: Delivery) -> Response:
        name = hook.entry.name
        try:
            found = hook.accept(delivery, time.time())
        except SignatureError as error:
            if self._is_due("refused", name):
                log.warning("hook.refused", hook=name, reason=str(error))
            raise
        if isinstance(found, Challenge):
            return PlainTextResponse(found.text)
        writer = self._writers[name]
        try:
            stored = await asyncio.gather(*(writer.store(record) for record in found))
        except HookUnavailableError as error:
            if self._is_due("not stored", name):
                log.warning("hook.not_stored", hook=name, error=str(error))
            raise
        duplicates = stored.count(False)
        return Response(headers={DUPLICATE: str(duplicates)} if duplicates else None)

    def _find(self, request: Request) -> tuple[Hook, dict[str, str]]:
        """Return the hook of a request, and the parameters of its path."""
        raw = request.scope["raw_path"].decode("latin-1")
        parts = [unquote(part) for part in raw.split("/")[1:]]
        name = parts[1] if len(parts) > 1 and parts[0] == "hooks" else ""
        if name in self._broken:
            message = f"hook {name} can't verify requests: its settings are invalid"
            raise HttpError(503, "invalid_hook", message, retry_after_s=_BROKEN_RETRY_S)
        hook = self._hooks.get(name)
        parameters = None if hook is None else hook.parameters(parts[2:])
        if hook is None or parameters is None:
            raise HttpError(404, "unknown_hook", "there is no such hook")
        return hook, parameters

    def _is_due(self, what: str, name: str) -> bool:
        """Return whether to log something about a hook: not each of many requests."""
        now = time.monotonic()
        is_due = now - self._logged.get((what, name), -_LOG_EVERY_S) >= _LOG_EVERY_S
        if is_due:
            self._logged[what, name] = now
        return is_due
