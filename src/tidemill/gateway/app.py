"""The application of topics: its routes, and what runs around them.

A room that serves something else (webhooks) adds its listeners to ``listeners``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from tidemill.gateway.console.app import Console
from tidemill.gateway.console.settings import ConsoleSettings
from tidemill.gateway.guard import Guard, Rates
from tidemill.gateway.information import get_group, get_groups, get_topic, get_topics
from tidemill.gateway.management.app import METHODS, api
from tidemill.gateway.metrics import get_metrics
from tidemill.gateway.openapi import get_document, get_page, get_root
from tidemill.gateway.parts import Parts
from tidemill.gateway.posting import post
from tidemill.gateway.queries import post_sql
from tidemill.gateway.reading import get_partition
from tidemill.gateway.server import Listener
from tidemill.gateway.users import Users
from tidemill.net.tls import ListenerTls


async def _topic(request: Request) -> Response:
    """One route for both, so that an answer 405 names both."""
    return await (post if request.method == "POST" else get_topic)(request)


ROUTES = [
    Route("/topics/{topic}", _topic, methods=["GET", "POST"]),  # the first match counts
    Route("/", get_root),
    Route("/docs", get_page),
    Route("/openapi.json", get_document),
    Route("/metrics", get_metrics),
    Route("/topics", get_topics),
    Route("/sql", post_sql, methods=["POST"]),
    Route("/topics/{topic}/partitions/{partition}", get_partition),
    Mount("/api", routes=[Route("/{rest:path}", api, methods=METHODS)]),
    Route("/groups", get_groups),
    Route("/groups/{group}", get_group),
]


class Application:
    """Routes with the parts that they share: an endpoint has them as ``request.app.parts``.

    Starlette's own application would answer errors itself, and put three layers around a route.
    """

    def __init__(self, users: Users, routes: Sequence[BaseRoute]) -> None:
        self._users = users
        self._router = Router(routes, redirect_slashes=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request. Errors are raised: the guard answers them."""
        async with self._users.parts(scope) as parts:
            scope["app"] = _Shared(parts)
            await self._router(scope, receive, send)


@dataclass(frozen=True, slots=True)
class _Shared:
    """The parts of a request, where an endpoint looks for them."""

    parts: Parts


class _Beside:
    """The console and the application of topics, on one listener.

    The console has ``/`` and what is below ``/console``.
    """

    def __init__(self, console: Console, topics: ASGIApp) -> None:
        self._console = console
        self._topics = topics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        app = self._console if self._console.has(scope["path"]) else self._topics
        await app(scope, receive, send)


def topics(parts: Parts, users: Users, console: ConsoleSettings | None = None) -> ASGIApp:
    """Return the application of topics, behind its guard, with the console if it is enabled."""
    settings = parts.settings
    app: ASGIApp = Application(users, ROUTES)
    if console is not None and console.enabled:
        app = _Beside(Console(parts, users, console), app)
    return Guard(
        app,
        allow_remote=settings.allow_remote,
        names=settings.names(),
        origins=settings.allowed_origins(),
        rates=Rates(settings.requests_per_second),
    )


def listeners(parts: Parts, users: Users, console: ConsoleSettings | None = None) -> list[Listener]:
    """Return what the gateway serves, each with its address."""
    settings = parts.settings
    return [
        Listener(
            "topics",
            topics(parts, users, console),
            settings.host,
            settings.port,
            settings.connections,
            settings.slow_client_seconds,
            tls=ListenerTls(settings.key, settings.tls_cert, settings.tls_key),
        ),
    ]
