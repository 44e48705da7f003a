"""Groups, share groups, queues, AMQP connections and transactions, with what changes them."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.gateway.console.test_cluster import snapshot_of
from tests.gateway.console.test_messages import HOSTILE, write
from tests.gateway.console.views import view_of
from tests.gateway.management.views import CONNECTION
from tests.gateway.management.views import queue as amqp_queue
from tests.gateway.management.views import view as amqp_view
from tests.support.broker_process import BrokerProcess
from tests.support.processes import poll_until
from tidemill.amqp_client.connection import AmqpClient
from tidemill.confluent.clients import Kafka
from tidemill.gateway.amqp.state import _rates
from tidemill.gateway.cluster import changes, transactions
from tidemill.gateway.cluster.transactions import Transactions
from tidemill.gateway.console import queues
from tidemill.gateway.console.contract import View
from tidemill.gateway.console.transactions import check
from tidemill.kafka_client.admin import open_writes
from tidemill.kafka_client.admin.transactions import Description, now_ms


def post(http: httpx.Client, url: str, **fields: Any) -> httpx.Response:
    """Send a form, with the token of this session. It also lets the next look ask again."""
    token = http.get("/console/topics").text.partition('name="csrf" value="')[2].partition('"')[0]
    return http.post(url, data={"csrf": token, **fields})


def data(http: httpx.Client, page: str, **parameters: Any) -> Any:
    """Return the JSON twin of a page."""
    answer = http.get(f"/console/{page}.json", params=parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()


def waited(http: httpx.Client, page: str, name: str, key: str = "name") -> dict[str, Any]:
    """Return the row of a list as soon as it is there."""
    found: list[dict[str, Any]] = []

    def look() -> bool:
        rows = data(http, page, q=name, size="500")["list"]["rows"]
        found[:] = [each for each in rows if each[key] == name]
        return bool(found)

    poll_until(look, 30, f"{name} is on the page {page}")
    return found[0]


def commit(kafka: Kafka, group: str, topic: str, offset: int) -> None:
    """Commit as a consumer that leaves."""
    config = kafka.config("tests", group_id=group, enable_auto_commit=False)
    consumer: Consumer = kafka.make(Consumer, config)
    consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


# --- groups --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def setting(broker: BrokerProcess, http: httpx.Client) -> str:
    """A topic with two groups without members, and its name is theirs.

    ``TOPIC`` has read 2 of 5 records in partition 0, and ``TOPIC-share`` has finished 4.
    """
    kafka, topic = Kafka(broker.bootstrap), "read-by-groups"
    kafka.create_topics("tests", {topic: (2, {})})
    write(kafka, topic, *((None, b"x"),) * 10)
    commit(kafka, topic, topic, 2)
    changes.move_starts(kafka, f"{topic}-share", {(topic, 0): 4})
    # A snapshot from before would be shown for five seconds; an action ends that.
    post(http, "/console/topics", action="create", name=f"{topic}-2", partitions="1")
    waited(http, "groups", topic)
    return topic


@pytest.fixture
def group(setting: str, kafka: Kafka, http: httpx.Client) -> str:
    """The group of the setting, where it was."""
    changes.commit(kafka, setting, {(setting, 0): 2})
    expire(http, setting)
    return setting


def expire(http: httpx.Client, group: str) -> None:
    """Let the next look at the console ask for a new snapshot."""
    answer = post(http, f"/console/group?name={group}", action="preview", to="end")
    assert answer.status_code == 200, answer.text


def test_a_group_is_listed_with_its_lag(http: httpx.Client, group: str) -> None:
    row = waited(http, "groups", group)
    assert (row["members"], row["topics"], row["lag"]) == (0, [group], 3)
    assert [each["name"] for each in data(http, "groups", q=group)["list"]["rows"]] == [group]
    page = http.get("/console/groups").text
    orders = re.findall(r"[?]sort=([a-z_-]+)", page)
    assert orders == ["name", "state", "-members", "lag", "-lag_s", "-per_s"]
    page = http.get("/console/groups", params={"q": "no such group"}).text
    assert "No group matches." in page
    about = data(http, "group", name=group)
    (part,) = about["partitions"]
    assert (part["committed"], part["end"], part["lag"]) == (2, 5, 3)
    assert http.get("/console/group", params={"name": "none"}).status_code == 404
    assert http.get("/console/groups?sort=nothing").status_code == 400


@pytest.mark.parametrize(
    ("to", "value", "after"),
    [
        *(("beginning", "", 0), ("end", "", 5), ("offset", "4", 4), ("offset", "9" * 19, 5)),
        *(("shift", "-1", 1), ("shift", "+2", 4), ("shift", "-" + "9" * 19, 0)),
        *(("time", "2000-01-01T00:00Z", 0), ("time", "2100-01-01", 5)),
    ],
)
def test_a_preview_says_what_a_reset_would_change(
    http: httpx.Client, group: str, to: str, value: str, after: int
) -> None:
    fields = {"action": "preview", "to": to, "value": value}
    page = post(http, f"/console/group?name={group}", **fields)
    assert "Preview: nothing is changed yet" in page.text
    twin = post(http, f"/console/group.json?name={group}", **fields, topic=group)
    (change,) = twin.json()["changes"]
    assert (change["before"], change["after"]) == (2, after)
    assert data(http, "group", name=group)["partitions"][0]["committed"] == 2


def test_a_reset_moves_the_group(http: httpx.Client, group: str) -> None:
    fields = {"action": "reset", "to": "beginning", "value": "", "topic": ""}
    done = post(http, f"/console/group?name={group}", **fields)
    assert done.status_code == 303
    assert "on 1 partition." in http.get(done.headers["location"]).text
    assert data(http, "group", name=group)["partitions"][0]["committed"] == 0
    assert (
        "Nothing to change."
        in http.get(post(http, f"/console/group?name={group}", **fields).headers["location"]).text
    )


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"to": "elsewhere", "value": "1"},
        {"to": "offset"},
        {"to": "offset", "value": "x"},
        {"to": "offset", "value": "1" * 30},
        {"to": "time", "value": "yesterday"},
        {"to": "beginning", "topic": "another topic"},
    ],
)
def test_an_invalid_reset_is_refused(
    http: httpx.Client, group: str, fields: dict[str, str]
) -> None:
    for action in ("preview", "reset"):
        answer = post(http, f"/console/group?name={group}", action=action, **fields)
        assert answer.status_code == 400, answer.text
    assert data(http, "group", name=group)["partitions"][0]["committed"] == 2


def test_a_group_with_members_is_not_moved(
    http: httpx.Client, kafka: Kafka, topic: str, group: str
) -> None:
    write(kafka, topic, (None, b"x"), (None, b"y"))
    name, config = f"{topic}-alive", {"group_id": f"{topic}-alive", "auto_offset_reset": "earliest"}
    consumer: Consumer = kafka.make(Consumer, kafka.config(HOSTILE, **config))
    consumer.subscribe([topic])
    try:
        poll_until(lambda: consumer.poll(0.2) is not None, 30, "the member has a record")
        consumer.commit(asynchronous=False)
        expire(http, group)
        assert waited(http, "groups", name)["members"] == 1
        page = http.get("/console/group", params={"name": name}).text
        assert HOSTILE not in page
        assert "stop its consumers first" in page
        refused = post(http, f"/console/group?name={name}", action="reset", to="beginning")
        assert refused.status_code == 409
    finally:
        consumer.close()


def test_a_share_group_has_its_list_and_its_reset(http: httpx.Client, group: str) -> None:
    name = f"{group}-share"
    assert waited(http, "share-groups", name)["lag"] == 1
    names = [each["name"] for each in data(http, "groups", size=500)["list"]["rows"]]
    assert group in names
    assert name not in names
    done = post(http, f"/console/group?name={name}", action="reset", to="beginning")
    assert done.status_code == 303, done.text
    assert waited(http, "share-groups", name)["lag"] == 5


# --- queues --------------------------------------------------------------------------------------


@pytest.fixture
def amqp(broker: BrokerProcess) -> Iterator[AmqpClient]:
    with AmqpClient(f"amqp://127.0.0.1:{broker.amqp_port}/") as client:
        client.call("confirm.select")
        yield client


def test_a_queue_shows_its_depth_and_letters_go_back(
    http: httpx.Client, amqp: AmqpClient, topic: str
) -> None:
    jobs, dead = f"<b>{topic}", f"{topic}-dead"
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    amqp.call("queue.declare", queue=dead)
    amqp.call("queue.declare", queue=jobs, arguments=letters)
    for _ in range(3):
        amqp.publish("", jobs, b"job")
    message = amqp.get(jobs)
    assert message is not None
    amqp.settle(message.delivery_tag, requeue=False)
    assert amqp.get(jobs) is not None  # it stays unacknowledged
    poll_until(lambda: waited(http, "queues", dead)["ready"] == 1, 30, "the letter is there")
    row = waited(http, "queues", jobs)
    assert (row["ready"], row["unacknowledged"], row["dead"]) == (1, 1, 1)
    assert row["letters"] == [dead]
    about = data(http, "queue", name=dead)
    assert about["origins"] == [jobs]
    page = http.get("/console/queue", params={"name": jobs}).text
    assert f"&lt;b&gt;{topic}" in page
    assert f"<b>{topic}" not in page
    done = post(http, f"/console/queue?name={dead}", action="move-back")
    assert "1 message moved to &lt;b&gt;" in http.get(done.headers["location"]).text
    poll_until(lambda: waited(http, "queues", jobs)["ready"] == 2, 30, "it is back")
    done = post(http, f"/console/queue?name={dead}", action="move-back")
    assert "has no message to move" in http.get(done.headers["location"]).text


def test_a_queue_is_emptied(http: httpx.Client, amqp: AmqpClient, topic: str) -> None:
    amqp.call("queue.declare", queue=f"{topic}-q")
    amqp.publish("", f"{topic}-q", b"job")
    waited(http, "queues", f"{topic}-q")
    done = post(http, f"/console/queue?name={topic}-q", action="purge")
    assert "Dropped 1 message of" in http.get(done.headers["location"]).text
    assert amqp.get(f"{topic}-q") is None
    amqp.call("queue.delete", queue=f"{topic}-q")
    gone = f"/console/queue?name={topic}-q"
    poll_until(lambda: http.get(gone).status_code == 404, 30, "it is gone")


def test_a_queue_that_is_gone_is_not_changed(http: httpx.Client) -> None:
    for action in ("purge", "move-back"):
        answer = post(http, "/console/queue?name=never", action=action)
        assert answer.status_code == 404, answer.text


def test_a_connection_is_listed_and_closed(http: httpx.Client, amqp: AmqpClient) -> None:
    local = "{}:{}".format(*amqp._sock.getsockname())
    found: list[str] = []

    def look() -> bool:
        found[:] = [e["name"] for e in data(http, "connections", q=local)["list"]["rows"]]
        return bool(found)

    poll_until(look, 30, "the connection is listed")
    done = post(http, "/console/connections", action="close", name=found[0])
    assert done.status_code == 303
    with pytest.raises(Exception, match="CONNECTION_FORCED - closed in the console"):
        amqp.call("basic.qos", prefetch_count=1)
    assert post(http, "/console/topics", action="close", name="none").status_code == 404


def test_a_rate_is_the_growth_of_a_counter() -> None:
    from tidemill.gateway.amqp.state import COUNTED, Entry

    fields = dict.fromkeys(COUNTED, 10)
    before = Entry(1000, {"i": "a", **fields})
    now = {"i": "a", **fields, "published": 15}
    assert _rates(before, now, 3000)["published"] == 2.5
    assert _rates(before, {**now, "i": "b"}, 3000) == {}
    assert _rates(before, now, 1000) == {}
    assert _rates(None, now, 3000) == {}
    assert _rates(before, {"i": "a", **dict.fromkeys(COUNTED, 0)}, 3000)["published"] == 0


async def test_the_page_says_how_many_queues_the_broker_does_not_publish() -> None:
    amqp = amqp_view(orders=amqp_queue())
    amqp.node["left_out"] = 7

    async def looked() -> Any:
        return amqp

    state = SimpleNamespace(view=looked)
    for page in (queues.QUEUES, queues.CONNECTIONS):
        found = await page.data(view_of(page, amqp=object(), amqp_state=state))
        assert found["left_out"] == 7
        assert len(found["list"].rows) == 1


async def test_queues_with_very_many_bindings_do_not_hold_the_gateway_up() -> None:
    names = [f"q{number:05}" for number in range(20_000)]
    arguments = {"x-dead-letter-exchange": "dead", "x-dead-letter-routing-key": "key"}
    amqp = replace(
        amqp_view(**{name: amqp_queue(arguments=arguments) for name in names}),
        bindings=[
            {
                "source": "dead",
                "destination": name,
                "destination_type": "queue",
                "routing_key": "key" if name == "q00007" else name,
                "arguments": {},
            }
            for name in names
        ],
    )

    async def looked() -> Any:
        return amqp

    parts: dict[str, Any] = {"amqp": object(), "amqp_state": SimpleNamespace(view=looked)}
    began = time.process_time()
    about = await queues.QUEUE.data(view_of(queues.QUEUE, "name=q00007", **parts))
    listed = await queues.QUEUES.data(view_of(queues.QUEUES, "size=500", **parts))
    assert time.process_time() - began < 2  # each with each takes half a minute
    assert about["origins"] == names[: queues.MOST_ROWS]
    assert about["consumers"][0]["connection"] == CONNECTION
    assert {each["letters"] for each in listed["list"].rows} == {("q00007",)}


def test_dead_letters_go_where_bindings_say() -> None:
    def binding(source: str, key: str, destination: str, kind: str = "queue") -> dict[str, Any]:
        about = {"destination": destination, "destination_type": kind, "arguments": {}}
        return {"source": source, "routing_key": key, **about}

    bindings = [
        binding("dead", "a", "one"),
        binding("dead", "#", "two"),
        binding("dead", "b", "three"),
        binding("dead", "a", "other", "exchange"),
        binding("else", "a", "four"),
    ]
    made = replace(amqp_view(jobs=amqp_queue(), one=amqp_queue()), bindings=bindings)

    def letters(**arguments: str) -> set[str]:
        given = {
            f"x-dead-letter-{name.replace('_', '-')}": each for name, each in arguments.items()
        }
        return set(queues._letters(made, "jobs", given))

    assert letters() == set()
    assert letters(exchange="") == {"jobs"}
    assert letters(exchange="", routing_key="one") == {"one"}
    assert letters(exchange="", routing_key="gone") == set()
    assert letters(exchange="dead") == {"one", "two", "three"}
    assert letters(exchange="dead", routing_key="a") == {"one", "two"}
    assert letters(exchange="gone", routing_key="a") == set()


# --- transactions --------------------------------------------------------------------------------


@pytest.fixture
def open_transaction(kafka: Kafka, topic: str) -> Producer:
    """A producer with an open transaction of 3 records, whose id is that of its topic."""
    config = kafka.config("tests", transactional_id=f"<b>{topic}")
    producer: Producer = kafka.make(Producer, config)
    producer.init_transactions(30)
    producer.begin_transaction()
    for _ in range(3):
        producer.produce(topic, b"x", partition=0)
    producer.flush(30)
    return producer


def test_an_open_transaction_is_shown_with_what_it_holds_back_and_aborted(
    http: httpx.Client, kafka: Kafka, topic: str, open_transaction: Producer
) -> None:
    write(kafka, topic, (None, b"waits behind it"))
    row = waited(http, "transactions", f"<b>{topic}", "id")
    assert (row["state"], row["partitions"], row["held"]) == ("ongoing", [f"{topic}-0"], 4)
    page = http.get("/console/transactions").text
    assert f"&lt;b&gt;{topic}" in page
    fields = {"action": "abort", "id": row["id"]}
    other = post(http, "/console/transactions", **fields, producer_id=row["producer_id"] + 1000)
    assert other.status_code == 409
    for wrong in ("", "x", "9" * 30):
        answer = post(http, "/console/transactions", **fields, producer_id=wrong)
        assert answer.status_code == 400
    done = post(http, "/console/transactions", **fields, producer_id=row["producer_id"])
    assert "its producer is fenced" in http.get(done.headers["location"]).text
    rows = data(http, "transactions", q=topic)["list"]["rows"]
    assert rows == []
    with pytest.raises(Exception, match=r"fenced|epoch"):
        open_transaction.commit_transaction(30)
    again = post(http, "/console/transactions", **fields, producer_id=row["producer_id"])
    assert again.status_code == 409


async def test_a_write_that_no_coordinator_knows_hangs_and_is_ended(
    kafka: Kafka, topic: str, open_transaction: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = Transactions(kafka)
    assert not (await looked.look()).hanging
    monkeypatch.setattr(transactions, "HANGS_MS", -1)
    # As after a bug of a coordinator.
    monkeypatch.setattr(open_writes, "list_transactions", lambda *_, **__: [])
    looked = Transactions(kafka)
    (write_,) = [each for each in (await looked.look()).hanging if each.topic == topic]
    assert write_.first_offset == 0
    with pytest.raises(Exception, match="does not hang"):
        await looked.abort_hanging(topic, 0, write_.producer_id + 1)
    await looked.abort_hanging(topic, 0, write_.producer_id)
    assert not [each for each in (await looked.look()).hanging if each.topic == topic]


def test_the_twin_of_transactions_is_json(http: httpx.Client) -> None:
    found = data(http, "transactions")
    assert json.dumps(found)
    assert {"list", "hanging", "held", "held_partitions", "problems"} <= found.keys()


async def test_the_overview_reports_a_transaction_that_is_open_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    places = (("orders", 0),)
    begun = Description("t", "ongoing", 1, 0, 60_000, now_ms() - 3_600_000, places, 0)
    asked: list[Sequence[Description]] = [
        (begun, replace(begun, transactional_id="u", started_ms=now_ms())),
        (),
    ]
    monkeypatch.setattr(transactions, "_only_open", lambda _: asked.pop(0))
    parts = SimpleNamespace(transactions=Transactions(Kafka("127.0.0.1:1")))

    async def attention() -> list[str]:
        found = await check(cast("View", SimpleNamespace(parts=parts)), snapshot_of(0))
        return [each.command for each in found]

    assert await attention() == ["tidemill transaction abort t"]
    assert await attention() == ["tidemill transaction abort t"]  # it is not asked again so soon
    parts.transactions._open.expire()
    assert await attention() == []
