"""``POST /sql``: a query is a process, with the caller's rights and with limits."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

pytest.importorskip("duckdb", minversion="1.5", reason="the extra tidemill[sql] needs it")

from tests.gateway.conftest import producer_of
from tests.support.broker_process import BrokerProcess
from tests.support.gateway_process import GatewayProcess
from tests.support.processes import poll_until
from tidemill.confluent.clients import Kafka
from tidemill.errors import TidemillError, UnknownTopicOrPartitionError, UnreachableError
from tidemill.gateway.errors import HttpError, from_error, from_names
from tidemill.gateway.queries import Queries
from tidemill.gateway.settings import GatewaySettings
from tidemill.sql.errors import DefinitionError
from tidemill.sql.process import Order

ENDLESS = "SELECT sum(a.range) FROM range(99999) a, range(99999) b, range(99999) c"


@pytest.fixture(scope="module")
def limited(
    tmp_path_factory: pytest.TempPathFactory, broker: BrokerProcess
) -> Iterator[GatewayProcess]:
    """A gateway with small limits."""
    settings = {
        "gateway.sql_rows": "50",
        "gateway.sql_seconds": "2",
        "gateway.sql_queries": "1",
        "gateway.sql_memory": "64MB",
        "gateway.sql_read_bytes": "100000",
        "console.mask": "masked-*:s",
    }
    folder = tmp_path_factory.mktemp("limited")
    with GatewayProcess(folder, broker.bootstrap, settings=settings) as process:
        yield process
    assert "gateway.failed" not in process.log()


@pytest.fixture(scope="module")
def client(limited: GatewayProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=limited.url, timeout=60, trust_env=False) as made:
        yield made


@pytest.fixture
def filled(broker: BrokerProcess, topic: str) -> str:
    producer = producer_of(broker.bootstrap)
    for n in range(60):
        producer.produce(topic, json.dumps({"n": n, "s": "<b>&"}), key=f"k{n}")
    assert producer.flush(30) == 0
    return topic


def ask(client: httpx.Client, statement: str, *parameters: Any) -> httpx.Response:
    return client.post("/sql", json={"statement": statement, "parameters": parameters})


def queries_of(gateway: GatewayProcess) -> list[psutil.Process]:
    found = []
    for each in psutil.Process(gateway.process.pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            if "tidemill.sql.process" in each.cmdline():
                found.append(each)
    return found


def test_a_query_returns_its_columns_and_rows(client: httpx.Client, filled: str) -> None:
    found = ask(client, f"SELECT n, s, _key FROM {filled} WHERE n < ? ORDER BY n", 2).json()
    names = [each["name"] for each in found["columns"]]
    assert (names, found["rows"]) == (["n", "s", "_key"], [[0, "<b>&", "k0"], [1, "<b>&", "k1"]])
    assert found["truncated"] is False
    assert "taken from 60 records" in found["notes"][0]
    text = client.post("/sql", content="SELECT 1 AS a", headers={"content-type": "text/plain"})
    assert text.json()["rows"] == [[1]]


def test_a_result_is_cut_at_its_limit(client: httpx.Client, filled: str) -> None:
    found = ask(client, f"SELECT n FROM {filled}").json()
    assert (len(found["rows"]), found["truncated"]) == (50, True)


HOSTILE = [
    ("SELECT * FROM read_text('/etc/passwd')", 400, "invalid_statement"),
    (ENDLESS, 504, "query_timeout"),
]
MORE = [
    ("SELECT * FROM nosuch", 404, "unknown_topic"),
    ("SELECT", 400, "invalid_statement"),
    ("COPY (SELECT 1) TO '/tmp/tidemill-gateway-sql'", 400, "statement_refused"),
    ("INSERT INTO {t} SELECT 1 AS n", 400, "statement_refused"),
    ("CREATE MATERIALIZED VIEW v AS SELECT n FROM {t}", 400, "statement_refused"),
    ("SET memory_limit = '64GB'", 400, "statement_refused"),
    ("INSTALL httpfs", 400, "statement_refused"),
    ("SELECT list(range) FROM range(100000000)", 400, "invalid_statement"),
]


def test_errors_of_a_process_have_the_statuses_of_all_others() -> None:
    def answer(error: TidemillError) -> HttpError:
        kinds = [each.__name__ for each in type(error).__mro__]
        return from_names(kinds, str(error), error.hint)

    refused = answer(DefinitionError("no"))
    assert (refused.status, refused.code, refused.hint) == (
        400,
        "statement_refused",
        DefinitionError.default_hint,
    )
    for error in (UnreachableError("x"), UnknownTopicOrPartitionError("x"), TidemillError("x")):
        assert answer(error).body() == from_error(error).body()
        assert answer(error).retry_after_s == from_error(error).retry_after_s


@pytest.mark.parametrize(
    ("statement", "status", "code"),
    [*HOSTILE, *(pytest.param(*each, marks=pytest.mark.nightly) for each in MORE)],
)
def test_hostile_queries_are_refused_or_bounded(
    client: httpx.Client,
    limited: GatewayProcess,
    filled: str,
    statement: str,
    status: int,
    code: str,
) -> None:
    answer = ask(client, statement.format(t=filled))
    assert (answer.status_code, answer.json()["error"]) == (status, code), answer.text
    assert queries_of(limited) == []
    assert not Path("/tmp/tidemill-gateway-sql").exists()


def test_a_query_that_reads_too_much_is_refused(
    client: httpx.Client, broker: BrokerProcess, topic: str
) -> None:
    producer = producer_of(broker.bootstrap)
    for _ in range(30):
        producer.produce(topic, json.dumps({"text": "x" * 10_000}))
    assert producer.flush(30) == 0
    answer = ask(client, f"SELECT * FROM {topic}")
    assert (answer.status_code, answer.json()["error"]) == (413, "too_much_to_read")


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"{", "application/json", 400),
        (b"[]", "application/json", 400),
        (b'{"statement": 1}', "application/json", 400),
        (b'{"statement": "SELECT 1", "limit": 1}', "application/json", 400),
        (b'{"statement": "SELECT 1", "parameters": {}}', "application/json", 400),
        (b"\xff", "text/plain", 400),
        (b"SELECT 1", "application/xml", 415),
        (b"-" * (1 << 21), "text/plain", 413),
    ],
)
def test_malformed_requests_are_refused(
    client: httpx.Client, body: bytes, kind: str, status: int
) -> None:
    answer = client.post("/sql", content=body, headers={"content-type": kind})
    assert answer.status_code == status, answer.text


def test_too_many_queries_are_refused_and_one_without_a_client_is_killed(
    client: httpx.Client, limited: GatewayProcess
) -> None:
    async def run() -> httpx.Response:
        async with httpx.AsyncClient(base_url=limited.url, trust_env=False) as other:
            body = {"statement": ENDLESS}
            waiting = asyncio.ensure_future(other.post("/sql", json=body, timeout=60))
            while not queries_of(limited):
                await asyncio.sleep(0.02)
            answer = await asyncio.to_thread(ask, client, "SELECT 1")
            waiting.cancel()
            return answer

    answer = asyncio.run(run())
    assert (answer.status_code, answer.json()["error"]) == (503, "busy")
    assert "retry-after" in answer.headers
    began = time.monotonic()
    poll_until(lambda: not queries_of(limited), 20, "the query is killed")
    assert time.monotonic() - began < 2 + 15  # its own limits
    assert ask(client, "SELECT 1").json()["rows"] == [[1]]


def test_the_page_shows_the_rows_of_a_query(client: httpx.Client, filled: str) -> None:
    query = {"q": f"SELECT n, s FROM {filled} WHERE n = 7"}
    page = client.get("/console/sql", params=query)
    assert page.status_code == 200
    assert "<td>7</td>" in page.text
    assert "&lt;b&gt;&amp;" in page.text
    twin = client.get("/console/sql.json", params=query).json()
    assert twin["result"]["rows"] == [[7, "<b>&"]]
    wrong = client.get("/console/sql", params={"q": "SELECT nosuch"})
    assert 'class="notice problem"' in wrong.text
    assert client.get("/console/sql").status_code == 200


def test_the_page_does_not_read_topics_with_hidden_fields(
    client: httpx.Client, broker: BrokerProcess, topic: str
) -> None:
    name = f"masked-{topic}"
    Kafka(broker.bootstrap).create_topics("tests", {name: (1, {})})
    producer = producer_of(broker.bootstrap)
    producer.produce(name, json.dumps({"s": "4111"}))
    assert producer.flush(30) == 0
    for table in (f'"{name}"', f'"{name}$latest" AS t', f'(SELECT * FROM "{name}")'):
        page = client.get("/console/sql", params={"q": f"SELECT * FROM {table}"}).text
        assert "hidden here" in page
        assert "4111" not in page
    found = ask(client, f'SELECT s FROM "{name}"').json()  # programs see topics as they are
    assert found["rows"] == [["4111"]]


def test_the_page_cuts_large_values_and_shows_what_is_invisible(client: httpx.Client) -> None:
    query = {"q": "SELECT repeat('x', 1000000) AS a, chr(8238) || 'b' AS b, [1, NULL] AS c"}
    page = client.get("/console/sql", params=query)
    assert len(page.content) < 20_000
    assert "<td>\\u202eb</td>" in page.text
    assert "<td>[1,null]</td>" in page.text


async def test_users_share_the_limit_also_while_their_queries_start() -> None:
    settings = GatewaySettings(sql_queries=1)
    first = Queries(Kafka("127.0.0.1:1"), settings)
    second = Queries(Kafka("127.0.0.1:1"), settings, beside=first)
    never = asyncio.get_running_loop().create_future
    running = asyncio.ensure_future(first.run("SELECT 1", never, lambda _: None))
    await asyncio.sleep(0)
    with pytest.raises(HttpError, match="too many queries"):
        await second.run("SELECT 1", never, lambda _: None)
    assert (await running).rows == [[1]]
    assert (await second.run("SELECT 2", never, lambda _: None)).rows == [[2]]


def test_an_order_has_the_login_in_nothing_that_is_shown() -> None:
    order = Order("here:1", "SELECT 1", properties={"sasl.password": "secret"}, token="secret")
    assert "secret" not in repr(order)
    assert json.loads(order.encode())["properties"] == {"sasl.password": "secret"}
    assert GatewaySettings().sql_queries > 0
