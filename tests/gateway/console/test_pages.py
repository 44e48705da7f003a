"""Each page has a title, a twin as JSON and a line in the documentation, and is safe to look at."""

from __future__ import annotations

import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import httpx
import pytest

from tests.gateway.console.test_cluster import snapshot_of
from tests.gateway.console.views import view_of
from tests.support.effort import in_nightly_runs
from tests.support.ports import reserve_port
from tidemill.confluent.clients import Kafka
from tidemill.errors import NotAllowedError, UnreachableError
from tidemill.gateway.alerting import kept_alerts
from tidemill.gateway.cluster.state import Snapshot
from tidemill.gateway.cluster.tables import Tables
from tidemill.gateway.cluster.transactions import Transactions
from tidemill.gateway.cluster.watch import Watch
from tidemill.gateway.console.app import Frame
from tidemill.gateway.console.contract import ROOT, Attention, Page, View
from tidemill.gateway.console.overview import attention_of, check
from tidemill.gateway.console.render import TEMPLATES, Renderer
from tidemill.gateway.console.table import PAGES
from tidemill.gateway.errors import from_error, invalid
from tidemill.kafka_client.errors import UnsupportedSettingError
from tidemill.metrics.published import Published

DOCS = Path(__file__).parents[3] / "docs" / "console.md"
NEEDED: dict[str, dict[str, str]] = {"message": {"partition": "0", "offset": "0"}}
"""Parameters of pages that are about one thing."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.address)
def test_a_page_has_a_title_a_template_and_a_line_in_the_documentation(page: Page) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9/-]*", page.address)
    assert page.title
    assert page.about.endswith(".")
    assert f"| `{ROOT}/{page.address}` | {page.title} | {page.about} |" in DOCS.read_text()
    if page.live_s:
        assert Renderer().has_block(page.template, "live")
    assert not page.belongs_to or page.belongs_to in {each.address for each in PAGES}


def test_the_documentation_has_no_other_pages() -> None:
    known = {f"{ROOT}/{each.address}" for each in PAGES}
    assert set(re.findall(rf"^\| `({ROOT}/\S+)` \|", DOCS.read_text(), re.MULTILINE)) == known


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.address)
def test_a_page_and_its_twin_answer(http: httpx.Client, topic: str, page: Page) -> None:
    parameters = {**NEEDED.get(page.address, {}), "name": topic, "topic": topic}
    answer = http.get(f"{ROOT}/{page.address}", params=parameters)
    assert answer.status_code in (200, 404), answer.text
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    assert not re.findall(
        r"<script>|\sstyle=|\son\w+=|(?:src|href|action)=['\"]?https?:", answer.text
    )
    twin = http.get(f"{ROOT}/{page.address}.json", params=parameters)
    assert twin.status_code == answer.status_code
    assert isinstance(twin.json(), dict)


def test_templates_escape_everything_and_have_nothing_inline() -> None:
    for path in TEMPLATES.iterdir():
        text = path.read_text()
        assert not re.findall(
            r"\|\s*safe\b|autoescape|<script>|<style|\sstyle=|\son[a-z]+=", text
        ), path
        for scroll in re.findall(r'<div class="scroll"[^>]*>', text):
            assert "tabindex" in scroll, path  # keys must reach what is to be scrolled
        for form in re.findall(r"<form[^>]*post.*?</form>", text, re.DOTALL):
            assert "csrf()" in form, path


def test_the_root_is_the_overview(http: httpx.Client) -> None:
    answer = http.get("/")
    assert (answer.status_code, answer.headers["location"]) == (303, f"{ROOT}/overview")


def test_an_unknown_page_is_not_found(http: httpx.Client) -> None:
    for path in ("/nothing", "/overview.xml", "/overview/more", "/static/../app.py", "/%00"):
        answer = http.get(ROOT + path)
        assert answer.status_code == 404, path
    assert http.get(f"{ROOT}/nothing").headers["content-type"].startswith("text/html")
    assert http.request("PUT", f"{ROOT}/overview").status_code == 405


def test_static_files_are_served_with_a_tag(http: httpx.Client) -> None:
    for name in ("console.css", "console.js", "icon.svg"):
        answer = http.get(f"{ROOT}/static/{name}")
        assert answer.status_code == 200
        again = http.get(f"{ROOT}/static/{name}", headers={"if-none-match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


def test_a_live_part_is_sent_and_changes(http: httpx.Client) -> None:
    with http.stream("GET", f"{ROOT}/overview.live") as answer:
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        lines = answer.iter_lines()
        event = next(line for line in lines if line.startswith("event"))
        data = next(line for line in lines if line.startswith("data"))
    assert event == "event: part"
    assert "Needs attention" in data


async def test_the_overview_notes_what_a_user_must_not_read() -> None:
    async def refused(view: View, snapshot: Snapshot) -> list[Attention]:
        raise NotAllowedError("reading topic tidemill.pipelines is not allowed")

    async def found(view: View, snapshot: Snapshot) -> list[Attention]:
        return [Attention("problem", "Partitions have no leader.")]

    view = cast("View", SimpleNamespace(checks=[refused, found]))
    first, second = await attention_of(view, snapshot_of(0))
    assert first.level == "problem"
    assert (second.level, "tidemill.pipelines is not allowed" in second.text) == ("note", True)


KERBEROS = Kafka("127.0.0.1:1", {"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"})


async def test_the_overview_says_that_a_login_has_no_snapshot_and_shows_the_rest() -> None:
    async def published() -> list[Published]:
        return [Published("bridge", "host:1", 1, ())]

    async def same(view: View, snapshot: Snapshot) -> list[Attention]:
        await Transactions(KERBEROS).look()
        return []

    page = next(each for each in PAGES if each.address == "overview")
    metrics = SimpleNamespace(published=published)
    view = view_of(page, watch=Watch(KERBEROS), metrics=metrics)
    view.checks = [check, same]
    data = await page.data(view)
    (note,) = data["attention"]
    assert (note.level, "can't be listed with this login" in note.text) == ("note", True)
    shown = Renderer().block(page.template, "live", data)
    assert "GSSAPI" in shown
    assert "host:1" in shown
    assert "no topics yet" not in shown


async def test_a_lost_worker_is_not_shown_beside_the_one_that_replaces_it() -> None:
    now_ms = time.time_ns() // 1_000_000
    hour = 3_600_000

    async def published() -> list[Published]:
        seen = (
            *(("sources", "host:1", now_ms - hour), ("sources", "host:2", now_ms)),
            *(("views", "host:3", now_ms - 2 * hour), ("views", "host:4", now_ms - hour)),
            *(("gateway", "host:5", now_ms), ("gateway", "other:6", now_ms - 1000)),
        )
        return [Published(*each, ()) for each in seen]

    page = next(each for each in PAGES if each.address == "overview")
    metrics = SimpleNamespace(published=published)
    data = await page.data(view_of(page, watch=Watch(KERBEROS), metrics=metrics))
    assert [(each["process"], each["is_lost"]) for each in data["workers"]] == [
        *(("host:2", False), ("host:4", True), ("host:5", False), ("other:6", False))
    ]


def test_links_of_a_list_repeat_only_the_parameters_of_the_page(http: httpx.Client) -> None:
    unknown = "&".join(f"x{number}=1" for number in range(3000))
    answer = http.get(f"{ROOT}/topics?internal=1&size=1&sort=-records&{unknown}")
    assert len(answer.content) < 50_000
    assert "x2999" not in answer.text
    (link,) = re.findall(r'<a href="([^"]+)" rel="next"', answer.text)
    assert link.replace("&amp;", "&") == (f"{ROOT}/topics?internal=1&size=1&sort=-records&page=2")
    assert re.search(r'name="sort" value="-records"', answer.text)
    (twin,) = re.findall(r'<a href="([^"]+)">JSON</a>', answer.text)
    assert twin.replace("&amp;", "&") == f"{ROOT}/topics.json?internal=1&size=1&sort=-records"


@pytest.mark.parametrize(
    "address",
    ["alerts", "topics", *in_nightly_runs("pipelines", "sources", "bridges", "webhooks", "groups")],
)
async def test_without_a_broker_a_page_says_so_within_seconds(address: str) -> None:
    gone = Kafka(f"127.0.0.1:{reserve_port()}")
    page = next(each for each in PAGES if each.address == address)
    view = view_of(page, alerts=kept_alerts(gone), tables=Tables(gone), watch=Watch(gone))
    began = time.monotonic()
    with pytest.raises(UnreachableError):
        await page.data(view)
    assert time.monotonic() - began < 5


async def test_pages_that_need_a_snapshot_say_that_a_login_has_none() -> None:
    page = next(each for each in PAGES if each.address == "topics")
    with pytest.raises(UnsupportedSettingError) as caught:
        await page.data(view_of(page, watch=Watch(KERBEROS)))
    found = from_error(caught.value)
    assert (found.status, found.code) == (501, "not_supported")
    assert "Pages of records, queues, alerts and workers are there." in (found.hint or "")


def test_what_a_snapshot_does_not_have_is_said_on_each_page_that_shows_it() -> None:
    frame = Frame(
        *("1", PAGES, "topics", "Topics", "", False, True, False, "", ""),
        problems=("Only 50000 of 60000 partitions are shown.",),
    )
    context = {"frame": frame, "view": None, "csrf": lambda: ""}
    shown = Renderer().page("error.html", {**context, "error": invalid("wrong")})
    assert "Only 50000 of 60000 partitions are shown." in shown


@pytest.mark.parametrize("address", ["overview.live", "messages.tail", "messages.scan"])
def test_what_moves_passes_proxies_at_once_and_has_no_body_for_head(
    http: httpx.Client, topic: str, address: str
) -> None:
    url = f"{ROOT}/{address}?topic={topic}"
    with http.stream("GET", url) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["x-accel-buffering"] == "no"
    # The next request of the connection is answered.
    assert [http.head(url).content for _ in range(2)] == [b"", b""]
