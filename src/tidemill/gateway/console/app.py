"""Serves the console: addresses, logins, headers, forms and live parts.

A page is one function (``contract``); this module knows none of them. Must not know: Kafka.
Sources: Content Security Policy 3, HTML Standard 9.2 (server-sent events).
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import math
import time
from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote

import orjson
import structlog
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from tidemill import __version__
from tidemill.errors import TidemillError
from tidemill.gateway import guard
from tidemill.gateway.console.contract import ROOT, Data, Done, Form, Page, View, address
from tidemill.gateway.console.render import Renderer, hidden
from tidemill.gateway.console.sessions import Session, Sessions, set_cookie
from tidemill.gateway.console.settings import ConsoleSettings
from tidemill.gateway.console.table import CHECKS, pages_of
from tidemill.gateway.errors import HttpError, busy, from_error
from tidemill.gateway.parts import Parts
from tidemill.gateway.server_sent import HEARTBEAT, HEARTBEAT_S, RETRY, event, event_stream
from tidemill.gateway.users import Users

MOST_LIVE = 200
"""Answers that take long, at the same time: pages that move, searches, downloads."""
_FIELDS = 20_000
_PAUSE_S = 0.5
_STATIC = Path(__file__).parent / "static"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "x-frame-options": "DENY",
    # Not "no-referrer": a browser would send forms with "Origin: null".
    "referrer-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}

_TITLES = {404: "Not found", 501: "Not available here"}
"""Titles of pages that say why there is nothing to show, by status."""

log = structlog.get_logger("tidemill.gateway")


class Console:
    """The ASGI application of the console. It belongs to one event loop.

    Args:
        parts: The gateway's own Kafka clients.
        users: The logins of requests.

    Raises:
        SettingsError: a module of ``console.pages`` can't be used.
    """

    def __init__(self, parts: Parts, users: Users, settings: ConsoleSettings) -> None:
        pages, folders = pages_of(settings.modules())
        self._parts = parts
        self._users = users
        self._settings = settings
        self._pages = {each.address: each for each in pages}
        self._renderer = Renderer(folders)
        self._sessions = Sessions(settings.session_minutes * 60)
        static = [*(each.with_name("static") for each in folders), _STATIC]
        self._static = {
            each.name: _File.of(each)
            for folder in static
            if folder.is_dir()
            for each in folder.iterdir()
            if each.suffix in _TYPES
        }
        self._live = 0
        parts.watch.start_sampling()

    def has(self, path: str) -> bool:
        """Return whether a path is the console's."""
        return path in ("/", ROOT) or path.startswith(f"{ROOT}/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        request = Request(scope, receive)

        async def send_more(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        async with contextlib.AsyncExitStack() as stack:  # holds the user's clients
            response = await self._answer(request, stack)
            await response(scope, receive, send_more)

    async def _answer(self, request: Request, stack: contextlib.AsyncExitStack) -> Response:
        path = request.url.path.removeprefix(ROOT).strip("/")
        if request.method not in ("GET", "HEAD", "POST"):
            raise HttpError(405, "method_not_allowed", "use GET or POST")
        if path.startswith("static/"):
            return self._file(request, path.removeprefix("static/"))
        session = self._sessions.of(request)
        page, _, suffix = path.partition(".")
        try:
            self._check_address(request)
            if not path:
                response: Response = RedirectResponse(address("overview"), 303)
            elif path == "login":
                response = await self._login(request, session)
            elif path == "logout":
                response = await self._logout(request, session)
            else:
                response = await self._page(request, session, page, suffix, stack)
        except (asyncio.CancelledError, ClientDisconnect):
            raise
        except TidemillError as error:
            response = self._failed(request, session, from_error(error), suffix)
        except Exception as error:
            log.error("console.failed", path=request.url.path, exc_info=error)
            text = "an internal error: see the gateway's log"
            response = self._failed(
                request, session, HttpError(500, "internal_error", text), suffix
            )
        if response.status_code < 400 or path == "login":
            set_cookie(request, response, session)
        return response

    def _check_address(self, request: Request) -> None:
        """Refuse clients on other machines where no login is asked for.

        Raises:
            HttpError: the client is one (403).
        """
        if self._users.schemes:
            return
        client = request.client.host if request.client else ""
        is_forwarded = "forwarded" in request.headers or "x-forwarded-for" in request.headers
        if is_forwarded or not guard.is_loopback(client):
            raise HttpError(
                403,
                "login_needed",
                "without logins, the console is for this machine only",
                hint='Set gateway.logins = "basic", and users of the broker.',
            )

    # --- pages -----------------------------------------------------------------------------------

    async def _page(
        self,
        request: Request,
        session: Session,
        name: str,
        suffix: str,
        stack: contextlib.AsyncExitStack,
    ) -> Response:
        page = self._pages.get(name)
        if page is None or suffix not in ("", "json", "live", *page.answers):
            raise HttpError(404, "not_found", f"there is no page {request.url.path[:200]}")
        scope = dict(request.scope)
        if session.authorization and "authorization" not in request.headers:
            login = (b"authorization", session.authorization.encode("latin-1"))
            scope["headers"] = [*scope["headers"], login]
        parts = await stack.enter_async_context(self._users.parts(scope))
        view = View(
            page=page,
            request=request,
            parts=parts,
            history=self._parts.watch.history,
            settings=self._settings,
            user=session.user,
            is_read_only=self._settings.read_only,
            render=lambda template, data: self._renderer.page(
                template, {**data, **self._context(request, session)}
            ),
            checks=CHECKS,
        )
        if request.method == "POST":
            return await self._act(view, session, suffix)
        if suffix in page.answers:
            return self._bounded(request, await page.answers[suffix](view))
        if suffix == "live":
            return self._bounded(request, self._moving(view, session))
        data = await page.data(view)
        if suffix == "json":
            return Response(_json(data), media_type="application/json")
        return HTMLResponse(self._render(view, session, data))

    def _render(self, view: View, session: Session, data: Data) -> str:
        context = {**data, **self._context(view.request, session, view)}
        if session.notice is not None:
            context["frame"].notice, session.notice = session.notice, None
        return self._renderer.page(view.page.template, {"result": None, **context})

    def _context(
        self, request: Request, session: Session, view: View | None = None
    ) -> dict[str, Any]:
        page = None if view is None else view.page
        moves = page is not None and page.live_s > 0
        frame = Frame(
            version=__version__,
            pages=list(self._pages.values()),
            active="" if page is None else page.belongs_to or page.address,
            title="" if page is None else page.title,
            user=session.user,
            is_read_only=self._settings.read_only,
            can_export=self._settings.export,
            has_logins=bool(self._users.schemes),
            live="",
            twin="",
        )
        if view is not None and page is not None:
            frame.live = address(f"{page.address}.live", **view.kept) if moves else ""
            frame.twin = address(f"{page.address}.json", **view.kept)
            if view.shown is not None:
                frame.snapshot_ms = view.shown.at_ms
                frame.problems = view.shown.problems
        token = self._sessions.token(session)
        return {"frame": frame, "view": view, "csrf": lambda: hidden("csrf", token)}

    def _failed(
        self, request: Request, session: Session, error: HttpError, suffix: str
    ) -> Response:
        is_page = suffix == "" and request.method in ("GET", "HEAD")
        if error.status == 401 and is_page:
            behind = f"?{request.url.query}" if request.url.query else ""
            where = quote(request.url.path + behind, safe="")
            return RedirectResponse(f"{ROOT}/login?next={where}", 303)
        if suffix:
            response = error.response()
            if "www-authenticate" in response.headers and session.authorization:
                del response.headers["www-authenticate"]  # a browser would ask in a window
            return response
        context = self._context(request, session)
        context["frame"].title = _TITLES.get(error.status, "That did not work")
        text = self._renderer.page("error.html", {**context, "error": error})
        return HTMLResponse(text, error.status)

    # --- forms -----------------------------------------------------------------------------------

    async def _form(self, request: Request, session: Session, parts: Parts) -> Form:
        """Return the fields of a form that this session has sent.

        Raises:
            HttpError: it is not from a page of this session (403), or is malformed.
        """
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/x-www-form-urlencoded":
            raise HttpError(415, "unsupported_media_type", "a form is expected")
        with parts.budget.taken() as take:
            settings = parts.settings
            body = await guard.read_body(
                request, settings.body_bytes, settings.slow_client_seconds, take
            )
            try:
                pairs = parse_qsl(
                    body.decode(), keep_blank_values=True, max_num_fields=_FIELDS, errors="strict"
                )
            except ValueError as error:
                raise HttpError(400, "invalid_request", f"the form is malformed: {error}") from None
            form = Form(pairs)
        if not self._sessions.is_valid(session, form.get("csrf", "")):
            raise HttpError(
                403,
                "form_refused",
                "the form is too old, or from another page",
                hint="Load the page again, and send the form from there.",
            )
        return form

    async def _act(self, view: View, session: Session, suffix: str) -> Response:
        form = await self._form(view.request, session, view.parts)
        action = view.page.actions.get(form.get("action", ""))
        if action is None:
            raise HttpError(404, "not_found", "the page has no such action")
        if view.is_read_only:
            raise HttpError(
                403, "read_only", "the console is read-only", hint="console.read_only is set."
            )
        found = await action(view, form)
        view.parts.watch.expire()
        if isinstance(found, Done):
            if suffix == "json":
                return Response(_json({"text": found.text, "url": found.url}), 200)
            session.notice = found.text, found.is_problem
            self._sessions.keep(session)
            return RedirectResponse(found.url, 303)
        if suffix == "json":
            return Response(_json(found), media_type="application/json")
        data = await view.page.data(view)
        return HTMLResponse(self._render(view, session, {**data, "result": found}))

    async def _login(self, request: Request, session: Session) -> Response:
        if not self._users.schemes:
            return RedirectResponse(address("overview"), 303)
        where = _local(request.query_params.get("next", ""))
        problem = ""
        if request.method == "POST":
            form = await self._form(request, session, self._parts)
            header = _authorization(form)
            login = header.encode("latin-1", "replace")
            scope = {**request.scope, "headers": [(b"authorization", login)]}
            try:
                async with self._users.parts(scope):
                    made = self._sessions.log_in(session, header, form.get("name", "").strip())
                    response = RedirectResponse(where, 303)
                    set_cookie(request, response, made)
                    session.id = made.id  # it is not given again
                    return response
            except HttpError as error:
                if error.status not in (401, 429, 503):
                    raise
                problem = "The broker refuses this login." if error.status == 401 else f"{error}."
        context = self._context(request, session)
        context["frame"].title = "Log in"
        more = {"schemes": self._users.schemes, "problem": problem, "next": where}
        text = self._renderer.page("login.html", {**context, **more})
        return HTMLResponse(text, 401 if problem else 200)

    async def _logout(self, request: Request, session: Session) -> Response:
        if request.method == "POST":
            await self._form(request, session, self._parts)
            self._sessions.end(session)
            session.id = ""
            session.id = self._sessions.of(request).id
        return RedirectResponse(f"{ROOT}/login", 303)

    # --- what moves ------------------------------------------------------------------------------

    def _moving(self, view: View, session: Session) -> Response:
        """Return the answer that sends the block ``live`` whenever it has changed."""
        if view.page.live_s <= 0:
            raise HttpError(404, "not_found", "this page does not move")
        return event_stream(self._events(view, session))

    async def _events(self, view: View, session: Session) -> AsyncIterator[bytes]:
        shown, sent_s = b"", time.monotonic()
        authorization = session.authorization
        yield RETRY
        while not self._parts.hub.is_stopping and session.authorization == authorization:
            look = replace(view, _snapshot=None)
            try:
                context = {"result": None, **await view.page.data(look)}
                context |= self._context(view.request, session, look)
                text = self._renderer.block(view.page.template, "live", context)
                made = event("part", text)
            except TidemillError as error:
                made = event("problem", str(error))
            now_s = time.monotonic()
            digest = hashlib.blake2b(made).digest()
            if digest != shown:
                shown, sent_s = digest, now_s
                yield made
            elif now_s - sent_s > HEARTBEAT_S:
                sent_s = now_s
                yield HEARTBEAT
            await self._pause(view.page.live_s)

    def _bounded(self, request: Request, response: Response) -> Response:
        """Return an answer; one that takes long is counted.

        Raises:
            HttpError: too many such answers are being sent (503).
        """
        if not isinstance(response, StreamingResponse):
            return response
        if self._live >= MOST_LIVE:
            raise busy("too many pages are open")
        if request.method == "HEAD":  # the body would be made for no one, and might never end
            return Response(None, response.status_code, response.headers)
        response.body_iterator = self._counted(response.body_iterator)
        return response

    async def _counted(self, stream: AsyncIterable[Any]) -> AsyncIterator[Any]:
        """Yield the parts of an answer that takes long, and count it among those."""
        self._live += 1
        try:
            async for part in stream:
                yield part
        finally:
            self._live -= 1

    async def _pause(self, seconds: float) -> None:
        """Wait, but not for long when the gateway stops."""
        for _ in range(math.ceil(seconds / _PAUSE_S)):
            if self._parts.hub.is_stopping:
                return
            await asyncio.sleep(_PAUSE_S)

    # --- files -----------------------------------------------------------------------------------

    def _file(self, request: Request, name: str) -> Response:
        found = self._static.get(name)
        if found is None:
            raise HttpError(404, "not_found", "there is no such file")
        headers = {"etag": found.tag, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == found.tag:
            return Response(None, 304, headers)
        return Response(found.data, 200, headers, found.kind)


@dataclass
class Frame:
    """The data around a page: navigation, notices, the age of the snapshot."""

    version: str
    pages: Sequence[Page]
    active: str
    title: str
    user: str
    is_read_only: bool
    can_export: bool
    has_logins: bool
    live: str
    twin: str
    snapshot_ms: int | None = None
    problems: Sequence[str] = ()
    notice: tuple[str, bool] | None = None

    def sections(self) -> Mapping[str, list[Page]]:
        """Return the pages of the navigation by their headings."""
        found: dict[str, list[Page]] = {}
        for page in self.pages:
            if page.section:
                found.setdefault(page.section, []).append(page)
        return found


@dataclass(frozen=True)
class _File:
    data: bytes
    kind: str
    tag: str

    @classmethod
    def of(cls, path: Path) -> _File:
        data = path.read_bytes()
        tag = f'"{hashlib.blake2b(data, digest_size=12).hexdigest()}"'
        return cls(data, _TYPES[path.suffix], tag)


def _authorization(form: Form) -> str:
    """Return the header for what a user has typed."""
    if form.get("token"):
        return f"Bearer {form['token'].strip()}"
    pair = f"{form.get('name', '').strip()}:{form.get('password', '')}"
    return "Basic " + base64.b64encode(pair.encode()).decode()


def _local(where: str) -> str:
    """Return where to go after a login: a page of the console."""
    is_local = where.startswith(f"{ROOT}/") and "\\" not in where and "//" not in where
    return where if is_local else address("overview")


def _json(data: Any) -> bytes:
    return orjson.dumps(data, option=orjson.OPT_NON_STR_KEYS, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} in the data of a page")
