"""Sessions of browsers: a cookie, the login behind it, and the token of forms.

A session keeps in memory what the browser sent when the user logged in, and the gateway passes it
on for each request (``users``). Nothing is stored on disk: a restart asks for a login again. Must
not know: pages, Kafka. Sources: RFC 6265 (cookies), OWASP's sheet about request forgery.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

MOST_SESSIONS = 10_000
"""Sessions that are kept. The one that was not used for the longest time ends first."""
_ID = re.compile(r"[A-Za-z0-9_-]{43}")


@dataclass
class Session:
    """A browser that has been seen.

    Attributes:
        id: What the cookie has.
        authorization: The header that the user's requests get; empty without a login.
        notice: A text for the next page, and whether it is about a failure.
    """

    id: str
    authorization: str = ""
    user: str = ""
    used_s: float = 0.0
    notice: tuple[str, bool] | None = None


class Sessions:
    """The sessions of one gateway.

    Args:
        idle_s: How long a login lasts without use, in seconds.
        now: Seconds that never decrease.
    """

    def __init__(self, idle_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self._idle_s = idle_s
        self._now = now
        self._key = secrets.token_bytes(32)
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def of(self, request: Request) -> Session:
        """Return the session of a request: the one of its cookie, or a new one.

        A new one is kept when it is changed (``keep``), so visitors without a login take no memory.
        """
        id_ = request.cookies.get(_name(request), "")
        found = self._sessions.get(id_)
        if found is not None and self._now() - found.used_s > self._idle_s:
            del self._sessions[id_]
            found = None
        if found is None:
            known = _ID.fullmatch(id_) is not None
            return Session(id_ if known else secrets.token_urlsafe(32))
        found.used_s = self._now()
        self._sessions.move_to_end(id_)
        return found

    def keep(self, session: Session) -> None:
        """Keep a session."""
        session.used_s = self._now()
        self._sessions[session.id] = session
        self._sessions.move_to_end(session.id)
        while len(self._sessions) > MOST_SESSIONS:
            self._sessions.popitem(last=False)

    def log_in(self, session: Session, authorization: str, user: str) -> Session:
        """Return a new session with a login: the old id, which others may have seen, ends."""
        self.end(session)
        made = Session(secrets.token_urlsafe(32), authorization, user)
        self.keep(made)
        return made

    def end(self, session: Session) -> None:
        """End a session, and what its pages still receive."""
        session.authorization = ""
        self._sessions.pop(session.id, None)

    def token(self, session: Session) -> str:
        """Return the token that a form of this session must have."""
        return hmac.new(self._key, session.id.encode(), hashlib.sha256).hexdigest()

    def is_valid(self, session: Session, token: str) -> bool:
        """Return whether a form has the token of its session."""
        return hmac.compare_digest(self.token(session).encode(), token.encode(errors="replace"))


def set_cookie(request: Request, response: Response, session: Session) -> None:
    """Give the session to the browser, unless it has it."""
    if request.cookies.get(_name(request)) != session.id:
        response.set_cookie(
            _name(request),
            session.id,
            path="/",
            httponly=True,
            samesite="strict",
            secure=is_secure(request),
        )


def is_secure(request: Request) -> bool:
    """Return whether the browser uses TLS, also if a proxy ends it."""
    proxy = request.headers.get("x-forwarded-proto", "")
    return request.url.scheme == "https" or proxy.strip().lower() == "https"


def _name(request: Request) -> str:
    """Return the name of the cookie: browsers do not keep the ports of a host apart."""
    return f"tidemill_{request.url.port or 80}"
