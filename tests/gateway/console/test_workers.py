"""Pages of pipelines, sources, bridges and webhooks, from what workers publish in topics."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from tests.gateway.console.test_cluster import snapshot_of, topic_of
from tests.gateway.console.test_safety import console, token_in
from tests.support.processes import poll_until
from tests.support.topics import write
from tidemill.confluent.clients import Kafka
from tidemill.connect.base.board import Board, BoardWriter, create_topic
from tidemill.connect.cdc.topics import SOURCES
from tidemill.connect.direct.topics import BRIDGES
from tidemill.connect.webhooks.topics import WEBHOOKS, attempts_topic
from tidemill.errors import TidemillError
from tidemill.eventstore.events import NewEvent
from tidemill.eventstore.store import Store
from tidemill.gateway.cluster import tables
from tidemill.gateway.cluster.tables import Tables
from tidemill.gateway.console.workers import definitions, pipelines
from tidemill.gateway.console.workers.definitions import KINDS
from tidemill.gateway.console.workers.graph import MOST_NODES, Node, picture
from tidemill.gateway.console.workers.pipelines import worst
from tidemill.spark.pipelines.progress import TOPIC, QueryStatus, SourceStatus, now_text
from tidemill.spark.pipelines.status_topic import StatusTopic

HOSTILE = '<script>alert("x")</script>'
DELAYS = QueryStatus(
    *("flights", "delays", "running"),
    sink="topic delays",
    batch=41,
    rows=700,
    watermark="2013-03-08T12:00:00.000Z",
    latency_p50_ms=420,
    sources=(SourceStatus("departures", 7, 90, "departures", "stream"), SourceStatus("planes")),
    writes=("delays",),
    ui="http://127.0.0.1:4040",
    runner="host:/data/pipelines",
)


def seen(
    http: httpx.Client, page: str, name: str, is_new: Callable[[Any], bool] = lambda twin: True
) -> Any:
    """Return the twin of a page about a name, as soon as it shows what was written before."""

    def look() -> Any:
        answer = http.get(f"/console/{page}.json", params={"name": name})
        return answer.json() if answer.status_code == 200 and is_new(answer.json()) else None

    poll_until(lambda: look() is not None, 60, f"{page} {name} is shown")
    return look()


def has_queries(count: int) -> Callable[[Any], bool]:
    """Return a condition for ``seen``: a pipeline is shown with this many queries."""
    return lambda twin: twin["queries"] == count


@pytest.fixture
def pipeline(kafka: Kafka, topic: str) -> str:
    """A pipeline with a query that runs, one that has failed, and one that reads its result."""
    name = f"p-{topic}"
    now = int(time.time())
    history = ((now - 30, 3, 300, 250), (now - 20, 3, 600, 800))
    delays = replace(DELAYS, pipeline=name, updated=now_text(), history=history)
    late = replace(delays, query="late", sources=(SourceStatus("delays", 0, 9),), writes=())
    wrong = replace(delays, query="wrong", state="failed", error=f"{HOSTILE}\nhint: repair it")
    with StatusTopic({"bootstrap.servers": kafka.servers}) as statuses:
        statuses.create([])
        for status in (delays, late, wrong):
            statuses.publish(status)
    return name


def test_a_pipeline_is_shown_with_its_graph_rates_and_errors(
    http: httpx.Client, pipeline: str
) -> None:
    twin = seen(http, "pipeline", pipeline, has_queries(3))
    assert (twin["state"], twin["queries"], twin["runner"]) == ("failed", 3, "host:/data/pipelines")
    assert (twin["lag"], twin["latency_ms"], twin["final_up_to"]) == (14, 420, "2013-03-08 12:00")
    assert twin["errors"] == [{"query": "wrong", "lines": [HOSTILE, "hint: repair it"]}]
    assert twin["spark_ui"] == "http://127.0.0.1:4040"
    (delays,) = (each for each in twin["found"] if each["status"]["query"] == "delays")
    assert [rate for _, rate in delays["rates"]] == [30, 60]
    assert 0 < delays["rows_per_s"] <= 15
    x = {each["node"]["id"]: each["x"] for each in twin["graph"]["nodes"]}
    assert x["topic departures"] < x["query delays"] < x["topic delays"] < x["query late"]
    assert len(twin["graph"]["edges"]) == 8
    page = http.get("/console/pipeline", params={"name": pipeline}).text
    assert "hint: repair it" in page
    assert HOSTILE not in page
    assert 'href="http://127.0.0.1:4040"' in page
    listed = http.get("/console/pipelines.json", params={"q": pipeline, "sort": "-lag"}).json()
    assert [(each["name"], each["state"]) for each in listed["list"]["rows"]] == [
        (pipeline, "failed")
    ]
    assert "No pipeline matches." in http.get("/console/pipelines", params={"q": "none"}).text


def test_a_link_of_a_status_that_is_no_address_of_a_web_page_is_not_shown(
    http: httpx.Client, kafka: Kafka, topic: str
) -> None:
    with StatusTopic({"bootstrap.servers": kafka.servers}) as statuses:
        statuses.create([])
        for number, ui in enumerate(("javascript:alert(1)", 'http://x"onclick="', "//evil")):
            status = replace(DELAYS, pipeline=topic, query=f"q{number}", ui=ui, updated=now_text())
            statuses.publish(status)
    assert seen(http, "pipeline", topic, has_queries(3))["spark_ui"] is None


def test_a_pipeline_that_is_silent_is_lost(http: httpx.Client, kafka: Kafka, topic: str) -> None:
    with StatusTopic({"bootstrap.servers": kafka.servers}) as statuses:
        statuses.create([])
        statuses.publish(replace(DELAYS, pipeline=topic, updated="2026-01-01T00:00:00Z"))
    twin = seen(http, "pipeline", topic)
    assert (twin["state"], twin["rows_per_s"], twin["spark_ui"]) == ("lost", 0, None)


def test_statuses_of_other_programs_harm_no_page(
    http: httpx.Client, kafka: Kafka, pipeline: str
) -> None:
    values = (b"", b"\xff", b"[]", b'{"a":' * 9000, b'{"pipeline": {}, "query": 1}')
    wide = b'{"pipeline": "x", "query": "%s", "state": "running", "updated": "?"}' % (b"\xf0" * 9)
    hostile = ((f"hostile/{len(value)}", value) for value in values)
    write(kafka.servers, TOPIC, *hostile, ("hostile/wide", wide))
    seen(http, "pipeline", pipeline, has_queries(3))
    assert http.get("/console/pipelines").status_code == 200
    answer = http.get("/console/pipeline", params={"name": HOSTILE})
    assert answer.status_code == 404
    assert HOSTILE not in answer.text


# --- definitions ---------------------------------------------------------------------------------


@dataclass
class Defined:
    """A definition of any kind."""

    name: str
    values: Mapping[str, Any]

    def encode(self) -> bytes:
        return json.dumps({"name": self.name, **self.values}).encode()


def define(
    kafka: Kafka, board: str, name: str, status: Mapping[str, Any] | None, **values: Any
) -> None:
    create_topic(kafka, board)
    writer = BoardWriter(kafka, board)
    if status is not None:  # first, so a page that knows the name also knows its status
        writer.status(name, {"updated_ms": int(time.time() * 1000), **status})
    writer.define(Defined(name, values))
    writer.close()


def post(http: httpx.Client, page: str, name: str, **fields: str) -> httpx.Response:
    """Send a form of a page as a browser does."""
    params = {"name": name}
    seen(http, page, name)
    token = token_in(http.get(f"/console/{page}", params=params).text)
    form = {"csrf": token, "name": name, **fields}
    return http.post(f"/console/{page}", params=params, data=form)


def test_a_source_is_shown_with_its_lag_and_is_paused_and_continued(
    http: httpx.Client, kafka: Kafka, topic: str
) -> None:
    status = {
        "phase": "running",
        "lag_ms": 1500,
        "written": 7,
        "lag_bytes": "many",
        "tables": {"public.orders": "shop.public.orders"},
        "position": {"lsn": HOSTILE},
    }
    define(kafka, SOURCES, topic, status, kind="postgres")
    twin = seen(http, "source", topic)
    assert (twin["state"], twin["keys"]) == ("running", {"kind": "postgres"})
    assert twin["figures"] == {
        "lag_ms": 1500,
        "lag_bytes": None,
        "written": 7,
        "dead_letters": None,
    }
    page = http.get("/console/source", params={"name": topic}).text
    assert "shop.public.orders" in page
    assert HOSTILE not in page
    assert ">Pause<" in page
    answer = post(http, "source", topic, action="pause")
    assert answer.status_code == 303
    assert "is paused" in http.get(answer.headers["location"]).text
    assert Board.read(kafka, SOURCES).commands[topic]["pause"]["paused"] is True
    post(http, "source", topic, action="resume")
    assert Board.read(kafka, SOURCES).commands[topic]["pause"]["paused"] is False
    post(http, "source", topic, action="restart")
    assert Board.read(kafka, SOURCES).commands[topic]["restart"]["resnapshot"] is False


def test_what_a_file_declares_is_not_paused_from_the_page(
    http: httpx.Client, kafka: Kafka, topic: str
) -> None:
    define(kafka, SOURCES, topic, None, kind="postgres")
    writer = BoardWriter(kafka, SOURCES)
    writer.declare(topic, "/etc/tidemill.toml")
    writer.close()
    answer = post(http, "source", topic, action="pause")
    assert answer.status_code >= 400
    assert "is declared in /etc/tidemill.toml" in answer.text
    assert "pause" not in Board.read(kafka, SOURCES).commands.get(topic, {})


def test_orders_need_the_token_of_a_form_and_a_definition_that_exists(
    http: httpx.Client, kafka: Kafka, topic: str
) -> None:
    define(kafka, SOURCES, topic, {"phase": "running"}, kind="postgres")
    form = {"action": "pause", "name": topic}
    answer = http.post("/console/source", params={"name": topic}, data=form)
    assert answer.status_code == 403
    seen(http, "source", topic)
    token = token_in(http.get("/console/source", params={"name": topic}).text)
    form = {"csrf": token, "action": "pause", "name": "missing"}
    answer = http.post("/console/source", params={"name": topic}, data=form)
    assert answer.status_code == 404
    assert Board.read(kafka, SOURCES).commands.get(topic, {}) == {}


def test_a_webhook_has_its_attempts_and_delivers_again(
    http: httpx.Client, kafka: Kafka, topic: str
) -> None:
    status = {"phase": "disabled", "dead": 1, "last_error": HOSTILE, "hint": "repair it"}
    define(kafka, WEBHOOKS, topic, status, topic="orders", url="https://example.com/x")
    kafka.create_topics("tests", {attempts_topic(topic): (1, {})})
    good = {"id": "msg_1", "records": [[0, 17]], "attempt": 2, "status": 503, "outcome": "dead"}
    hostile: list[Any] = [
        {"id": HOSTILE, "records": [["x", 1]], "at": "now", "outcome": HOSTILE},
        {"records": [1], "attempt": 10**40, "at": 1e300},
        [1],
        "x",
    ]
    write(kafka.servers, attempts_topic(topic), *hostile, good, b'{"a":' * 9000)
    twin = seen(http, "webhook", topic, lambda twin: len(twin["attempts"]) == 3)
    assert (twin["state"], twin["error"], twin["is_paused"]) == ("disabled", HOSTILE, True)
    assert (twin["attempts"][0]["record"], twin["attempts"][0]["status"]) == ([0, 17], 503)
    page = http.get("/console/webhook", params={"name": topic}).text
    assert HOSTILE not in page
    assert "Deliver 0/17 again" in page
    post(http, "webhook", topic, action="redeliver", partition="0", offset="17")
    post(http, "webhook", topic, action="redeliver")
    post(http, "webhook", topic, action="test")
    answer = post(http, "webhook", topic, action="redeliver", partition="-1", offset="1e9")
    assert answer.status_code == 400
    commands = Board.read(kafka, WEBHOOKS).commands[topic]
    wanted = [each for name, each in commands.items() if name.startswith("redeliver/")]
    assert sorted(each.get("from", -1) for each in wanted) == [-1, 17]
    assert [name.partition("/")[0] for name in commands].count("test") == 1


@pytest.mark.parametrize("kind", KINDS, ids=lambda each: each.noun)
def test_boards_can_have_anything(http: httpx.Client, kafka: Kafka, kind: Any, topic: str) -> None:
    create_topic(kafka, kind.topic)
    producer = kafka.producer("tests")
    deep = b'{"a":' * 9000
    for number, value in enumerate((b"", b"\xff", b"[]", deep, b'{"topic": {"a": 1e400}}')):
        producer.produce(kind.topic, value, f"{topic}x{number}/definition")
    for status in (
        {"phase": {"x": [HOSTILE]}, "updated_ms": "now", "error": [1], "tables": [1]},
        {"phase": "running", "updated_ms": 1e300, "failures": 10**40, "orders": None},
        {"phase": "running", "updated_ms": -1e300, "lag": float("inf"), "lag_ms": float("nan")},
    ):
        producer.produce(kind.topic, json.dumps(status), f"{topic}x0/status")
        assert producer.flush(30) == 0
        poll_until(lambda: listed(http, kind, f"{topic}x") == 5, 60, "the definitions are there")
        for suffix in ("", ".json"):
            url = f"/console/{kind.noun}{suffix}"
            answer = http.get(url, params={"name": f"{topic}x0"})
            assert answer.status_code == 200, answer.text
            assert HOSTILE not in answer.text or suffix


def listed(http: httpx.Client, kind: Any, q: str) -> int:
    """Return how many definitions a list finds."""
    twin = http.get(f"/console/{kind.noun}s.json", params={"q": q, "sort": "-state"})
    assert twin.status_code == 200, twin.text
    assert http.get(f"/console/{kind.noun}s", params={"q": q}).status_code == 200
    return int(twin.json()["list"]["found"])


def fill_with_workers(kafka: Kafka, folder: Path) -> None:
    """Write what workers of each kind publish, and an event store, for the tour of the browser."""
    with StatusTopic({"bootstrap.servers": kafka.servers}) as statuses:
        statuses.create([])
        wrong = replace(DELAYS, query="wrong", state="failed", error="division\nhint: repair it")
        for status in (DELAYS, wrong):
            statuses.publish(replace(status, updated="2099-01-01T00:00:00Z"))
    captured = {f"public.t{number}": f"shop.public.t{number}" for number in range(9)}
    define(kafka, SOURCES, "shop", {"phase": "running", "tables": captured}, kind="postgres")
    error = {"phase": "failed", "error": "no answer from db:5432", "hint": "Is it running?"}
    define(kafka, SOURCES, "crm", error, kind="mysql")
    counts = {"phase": "running", "received": 10**9, "details": {"port": 8125}}
    define(kafka, BRIDGES, "statsd", counts, kind="statsd", topic="metrics")
    define(
        kafka, WEBHOOKS, "billing", {"phase": "running", "lag": 3}, topic="orders", url="http://x"
    )
    kafka.create_topics("tests", {attempts_topic("billing"): (1, {})})
    failed = {"status": 503, "outcome": "retry"}
    attempts = ({"id": f"msg_{n}", "records": [[0, n]], **failed} for n in range(20))
    write(kafka.servers, attempts_topic("billing"), *attempts)
    with Store(kafka, "accounts", folder=folder) as store:
        for number in range(30):
            data = json.dumps({"note": "x" * 20 * number}).encode()
            store.append(
                "account-1", [NewEvent("noted", data, metadata=b"{}", tags=frozenset("ab"))]
            )


async def test_in_read_only_mode_nothing_is_ordered() -> None:
    async with console(read_only=True) as found:
        answer = await found.post("/console/source", data={"action": "pause", "name": "x"})
        assert answer.status_code == 403


async def test_the_overview_reports_what_has_failed(
    kafka: Kafka, pipeline: str, topic: str
) -> None:
    define(kafka, WEBHOOKS, topic, {"phase": "disabled", "disabled": "410"}, url="http://x")
    define(kafka, SOURCES, topic, {"phase": "running"}, kind="postgres")
    look: Any = SimpleNamespace(parts=SimpleNamespace(tables=Tables(kafka)))
    snapshot = snapshot_of(0, *(topic_of(name, 1) for name in (TOPIC, WEBHOOKS, SOURCES)))
    found = [*await pipelines.check(look, snapshot), *await definitions.check(look, snapshot)]
    texts = [each.text for each in found]
    assert f"Pipeline {pipeline}: query wrong failed, and will not start again." in texts
    assert f"Webhook {topic} is disabled: 410" in texts
    assert not any(f"Source {topic} " in each for each in texts)
    assert await pipelines.check(look, snapshot_of(0)) == []


async def test_a_table_is_read_on_and_begins_again_with_a_new_topic(
    kafka: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "KEPT_S", 0.0)
    read = Tables(kafka).read

    def put(key: str, value: bytes | None) -> None:
        write(kafka.servers, topic, (key, value))

    assert await read("missing") == {}
    put("a", b"1")
    put("b", b"2")
    first = await read(topic)
    put("a", None)
    put("b", b"3")
    assert (await read(topic), first) == ({b"b": b"3"}, {b"a": b"1", b"b": b"2"})
    kafka.delete_topics("tests", [topic])
    kafka.create_topics("tests", {topic: (1, {})})
    put("c", b"4")
    assert await read(topic) == {b"c": b"4"}
    monkeypatch.setattr(tables, "MOST_BYTES", 10)
    put("d", b"x" * 20)
    with pytest.raises(TidemillError, match="has more than"):
        await read(topic)


# --- the graph -----------------------------------------------------------------------------------


def test_nodes_are_in_layers_and_edges_lead_to_the_right() -> None:
    names = ["a", "b", "q", "r", "out"]
    edges = [("a", "q"), ("b", "q"), ("q", "out"), ("out", "r"), ("a", "r"), ("a", "gone")]
    found = picture([Node(name, "topic", name) for name in names], edges)
    assert found is not None
    x = {each.node.id: each.x for each in found.nodes}
    assert x["a"] == x["b"] < x["q"] < x["out"] < x["r"]
    assert len(found.edges) == 5
    places = {(each.x, each.y) for each in found.nodes}
    assert len(places) == len(names)
    assert all(re.fullmatch(r"M[\d. ]+C[-\d. ]+", each) for each in found.edges)


def test_a_circle_ends_and_a_graph_that_is_too_large_is_left_out() -> None:
    nodes = [Node(str(n), "topic", "t") for n in range(MOST_NODES)]
    circle = [(str(n), str((n + 1) % 20)) for n in range(20)]
    found = picture(nodes, [*circle, ("0", "0")])
    assert found is not None
    assert len(found.nodes) == MOST_NODES
    assert picture([*nodes, Node("more", "topic", "t")], []) is None
    empty = picture([], [])
    assert empty is not None
    assert empty.nodes == ()


def test_a_chain_is_as_wide_as_it_is_long_up_to_a_limit() -> None:
    nodes = [Node(str(n), "query", "t") for n in range(60)]
    found = picture(nodes, [(str(n), str(n + 1)) for n in range(59)])
    assert found is not None
    assert found.width < 20 * 320


def test_the_worst_state_counts() -> None:
    assert worst(["running", "done"]) == "running"
    assert worst(["running", "waiting"]) == "waiting"
    assert worst(["lost", "failed"]) == "failed"
    assert worst(["something"]) == "something"
    assert worst([]) == "stopped"
