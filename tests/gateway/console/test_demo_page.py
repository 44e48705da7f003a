"""The demo's page as the gateway serves it: a module that only the settings name."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.demo.page.test_live import DAY, NOON, alerted, closed
from tests.demo.support import flight, skip_without_data_set
from tests.support.topics import write
from tidemill.confluent.clients import Kafka
from tidemill.demo.events import DEPARTURES, reports
from tidemill.demo.page import PAGES, following
from tidemill.demo.page import live as live_module
from tidemill.demo.page.view import changes, following_of
from tidemill.gateway.app import topics
from tidemill.gateway.console.contract import View
from tidemill.gateway.console.settings import ConsoleSettings
from tidemill.gateway.parts import Parts
from tidemill.gateway.settings import GatewaySettings
from tidemill.gateway.users import Users

TOPICS = {name: (1, {"retention.ms": "-1"}) for name in live_module.TOPICS}


@asynccontextmanager
async def console(kafka: Kafka) -> AsyncIterator[tuple[httpx.AsyncClient, Parts]]:
    """Yield a client of a console with the demo's page, and its parts."""
    parts = Parts.start(kafka, GatewaySettings())
    settings = ConsoleSettings(pages="tidemill.demo.page")
    app = topics(parts, Users(parts, frozenset()), settings)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://localhost"
    ) as http:
        yield http, parts
    following_of(parts).stop()
    parts.stop()
    await parts.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    skip_without_data_set()
    monkeypatch.setattr(following, "_LOOK_S", 0.1)
    monkeypatch.setattr(following, "_RETRY_S", 0.1)


def send(kafka: Kafka, topic: str, value: bytes, time_ms: int = 0) -> None:
    write(kafka.servers, topic, value, timestamp=time_ms or NOON * 1000)


async def until(events: AsyncIterator[bytes], wanted: str) -> Any:
    """Return the data of the next event with a text in it."""
    async with asyncio.timeout(60):
        async for event in events:
            if wanted in event.decode():
                return json.loads(event.decode().partition("data: ")[2])
    raise AssertionError("the stream has ended")


@pytest.mark.usefixtures("quick")
async def test_the_page_moves_and_begins_again_with_new_topics(kafka: Kafka) -> None:
    async with console(kafka) as (http, parts):
        look: Any = type("Look", (), {"parts": parts})()
        view: View = look
        events = changes(view)
        await until(events, "tidemill demo")  # nothing is there: how to start it
        kafka.create_topics("tests", TOPICS)
        (report, *_) = reports([flight(1, departed=NOON, delay=50)], DAY)
        send(kafka, DEPARTURES, report.value, report.reported_at * 1000)
        found = await until(events, '"planes":[{')
        assert found["planes"][0]["route"][0] > found["planes"][0]["route"][4] - 200
        send(kafka, live_module.ALERTS, json.dumps(alerted(NOON)).encode())
        send(kafka, live_module.HOURLY, json.dumps(closed(NOON)).encode())
        await until(events, '"is_final":true')
        twin = (await http.get("/console/demo.json")).json()
        assert [len(twin[name]) for name in ("planes", "hours", "alerts")] == [1, 1, 1]
        page = (await http.get("/console/demo")).text
        assert "Fri 8 Mar, 12-13" in page
        assert not re.findall(r"<script>|\sstyle=|\son\w+=", page)
        kafka.delete_topics("tests", list(TOPICS))
        again = await until(events, "event: all")
        assert (again["planes"], again["clock"]) == ([], 0)
        await events.aclose()  # type: ignore[attr-defined]


async def test_its_files_are_beside_those_of_the_console() -> None:
    async with console(Kafka("127.0.0.1:1")) as (http, _):
        for name in ("demo.js", "demo.css", "console.js"):
            answer = await http.get(f"/console/static/{name}")
            assert (answer.status_code, len(answer.text) > 1000) == (200, True)
        assert (await http.get("/console/static/demo.html")).status_code == 404


def test_templates_and_scripts_have_nothing_inline() -> None:
    folder = Path(str(sys.modules["tidemill.demo.page"].__file__)).parent
    text = (folder / "templates" / "demo.html").read_text()
    assert not re.findall(r"\|\s*safe\b|autoescape|<script>|<style|\sstyle=|\son[a-z]+=", text)
    script = (folder / "static" / "demo.js").read_text()
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", script)
    assert [each.address for each in PAGES] == ["demo"]
