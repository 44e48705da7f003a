"""Handlers of the data APIs in every advertised version; produce and fetch over the wire."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from tests.engine.transactions.support import Producer
from tests.protocols.kafka.broker import MISSING_ID, NOW_MS, Broker, each_version, versions
from tests.protocols.kafka.keys import FETCH, METADATA, PRODUCE
from tests.protocols.kafka.messages import one_batch
from tests.protocols.kafka.trees import Tree, fetch, fetched, picked, produce, written
from tests.protocols.kafka.wire import Serving, eventually, talking
from tests.support.logs import append_records
from tidemill.engine.api import CommitRequest, OffsetToCommit
from tidemill.errors import TidemillError
from tidemill.log.errors import InvalidProducerEpochError, InvalidTxnStateError, StorageError
from tidemill.log.format.records import NewRecord
from tidemill.net.pause import LOOK_SECONDS
from tidemill.protocols.kafka.handlers.metadata import TOGETHER
from tidemill.protocols.kafka.handlers.offsets import TOGETHER as LOOKED_UP_TOGETHER
from tidemill.protocols.kafka.node import cluster_id_text
from tidemill.state.errors import (
    ConcurrentTransactionsError,
    CoordinatorLoadingError,
    CoordinatorNotAvailableError,
    InvalidProducerIdMappingError,
    ProducerFencedError,
    TransactionAbortableError,
)

LIST_OFFSETS, FIND_COORDINATOR = 2, 10
DELETE_RECORDS, INIT_PRODUCER_ID, OFFSET_FOR_EPOCH = 21, 22, 23
DESCRIBE_CLUSTER, DESCRIBE_PRODUCERS, DESCRIBE_TOPIC_PARTITIONS = 60, 61, 75


# --- produce and fetch ---------------------------------------------------------------------------


def by_id(version: int, tree: Tree, topic_id: UUID) -> Tree:
    """Name the first topic of a request by its id, where the version does."""
    if version >= 13:
        tree["topic_data" if "topic_data" in tree else "topics"][0]["topic_id"] = topic_id
    return tree


@each_version(PRODUCE, since=3)
async def test_produce(version: int) -> None:
    async with talking() as (s, client):
        tree = by_id(version, produce("t", one_batch(records=3)), s.topic_id("t"))
        await client.call(PRODUCE, version, tree)
        answer = await client.call(PRODUCE, version, tree)
        (topic,) = answer["responses"]
        assert topic.get("topic_id", topic.get("name")) in (s.topic_id("t"), "t")
        (part,) = topic["partition_responses"]
        assert (part["index"], part["error_code"], part["base_offset"]) == (0, 0, 3)


@each_version(PRODUCE, since=3)
async def test_produce_answers_each_partition_by_itself(version: int) -> None:
    async with talking() as (s, client):
        good, bad = one_batch(), one_batch()[:-1] + b"?"
        tree = by_id(version, produce("t", good, bad, acks=1), s.topic_id("t"))
        tree["topic_data"][0]["partition_data"] += [
            {"index": 7, "records": good},
            {"index": 0, "records": None},
        ]
        tree["topic_data"] += by_id(version, produce("missing", good), UUID(int=5))["topic_data"]
        answer = await client.call(PRODUCE, version, tree)
        codes = [code for code, _ in written(answer)]
        assert codes == [0, 2, 3, 87, 100 if version >= 13 else 3]
        if version >= 8:
            message = answer["responses"][0]["partition_responses"][1]["error_message"]
            assert "CRC" in message


async def test_produce_with_odd_acks_is_refused() -> None:
    async with talking() as (s, client):
        answer = await client.call(PRODUCE, 9, produce("t", one_batch(), acks=2))
        assert written(answer) == [(21, -1)]
        assert s.appended == 0


@pytest.mark.parametrize("version", [3, versions(PRODUCE)[-1]])
async def test_a_producer_that_outruns_its_consumers_is_told_and_held_back(version: int) -> None:
    async with talking() as (s, client):
        await s.make_topic("slow", lag_policy="throttle", lag_group="g", lag_max_records="1")
        tree = by_id(version, produce("slow", one_batch(records=3)), s.topic_id("slow"))

        async def caught_up() -> None:
            offset = OffsetToCommit("slow", 0, s.log("slow").log_end_offset)
            await s.engine.groups.commit(CommitRequest("g", -1, "", None, (offset,)))
            await s.engine._backpressure.check()

        await caught_up()
        answer = await client.call(PRODUCE, version, tree)
        assert answer["throttle_time"] > 0
        assert written(answer) == [(0, 0)]
        # The next request is not read until the consumers have caught up.
        waiting = asyncio.ensure_future(client.call(PRODUCE, version, tree))
        await asyncio.sleep(3 * LOOK_SECONDS)
        assert s.appended == 3
        await caught_up()
        await waiting
        assert s.appended == 6


async def payment(s: Serving) -> Tree:
    """Return a request that writes in a transaction of a new producer."""
    producer = await Producer(s.engine, "payments").init()
    batch = producer.batch("t", b"value").records
    return produce("t", bytes(batch)) | {"transactional_id": "payments"}


@each_version(PRODUCE, since=3)
async def test_transactional_produce_passes_the_transaction_version(version: int) -> None:
    async with talking() as (s, client):
        tree = await payment(s)
        answer = await client.call(PRODUCE, version, by_id(version, tree, s.topic_id("t")))
        # Since version 12 a write adds its partition to the transaction. Before, it is refused.
        code = 0 if version >= 12 else 120 if version >= 11 else 48
        assert written(answer)[0][0] == code
        assert s.appended == (1 if version >= 12 else 0)


@pytest.mark.parametrize(
    ("error", "before", "since", "after"),
    [
        (ProducerFencedError("x"), 47, 99, -1),
        (InvalidProducerEpochError("x"), 47, 99, 47),
        (TransactionAbortableError("x"), 48, 11, 120),
        (InvalidTxnStateError("x"), 48, 99, 48),
        (InvalidProducerIdMappingError("x"), 49, 99, 49),
        (ConcurrentTransactionsError("x"), 19, 12, 51),
        (CoordinatorLoadingError("x"), 19, 99, -1),
        (CoordinatorNotAvailableError("x"), 19, 99, -1),
        (StorageError("x"), 56, 99, -1),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_a_refused_transactional_produce_gets_a_code_that_its_version_knows(
    error: TidemillError, before: int, since: int, after: int
) -> None:
    def refuse(*_: object) -> None:
        raise error

    async with talking() as (s, client):
        s.engine._services.records.appender._admit = refuse
        tree = await payment(s)
        for version in versions(PRODUCE, since=3):
            answer = await client.call(PRODUCE, version, by_id(version, tree, s.topic_id("t")))
            ((code, _),) = written(answer)
            assert code == (before if version < since else after), version


@each_version(FETCH)
async def test_fetch(version: int) -> None:
    async with talking() as (s, client):
        await client.call(PRODUCE, 9, produce("t", one_batch(b"x" * 9000, records=2)))
        tree = by_id(version, fetch("t", offset=1), s.topic_id("t"))
        answer = await client.call(FETCH, version, tree)
        (topic,) = answer["responses"]
        (part,) = topic["partitions"]
        assert part["error_code"] == 0
        assert part["high_watermark"] == part["last_stable_offset"] == 2
        assert part["records"].count(b"x" * 9000) == 2
        assert part["aborted_transactions"] is None


@each_version(FETCH)
async def test_fetch_errors(version: int) -> None:
    async with talking() as (s, client):
        tree = by_id(version, fetch("t", offset=99, max_wait=60_000), s.topic_id("t"))
        tree["topics"] += by_id(version, fetch("missing"), UUID(int=5))["topics"]
        answer = await client.call(FETCH, version, tree | {"isolation_level": 1})
        codes = [topic["partitions"][0]["error_code"] for topic in answer["responses"]]
        assert codes == [1, 100 if version >= 13 else 3]
        assert answer["responses"][0]["partitions"][0]["records"] == b""


async def test_fetch_waits_for_records_and_is_bounded() -> None:
    async with talking() as (s, client):
        sent = client.send(FETCH, 12, fetch("t", max_wait=30_000) | {"max_bytes": 2**31 - 1})
        await eventually(lambda: s.reads)
        assert s.reads[0].max_bytes == s.engine.settings.limits.fetch_bytes
        assert s.reads[0].max_wait_ms == 30_000
        await append_records(s.engine, "t", 0, [NewRecord(None, b"later")])
        correlation, answer = await client.response(FETCH, 12)
        assert correlation == sent
        assert fetched(answer)


@each_version(FETCH, since=7)
async def test_a_fetch_session_answers_with_changes_only(version: int) -> None:
    async with talking() as (s, client):

        def part(index: int, offset: int = 0) -> Tree:
            tree = by_id(version, fetch("t", offset, partition=index), s.topic_id("t"))
            return dict(tree["topics"][0])

        full = {"session_epoch": 0, "topics": [part(0), part(1)]}
        answer = await client.call(FETCH, version, full)
        session = answer["session_id"]
        assert session > 0
        assert sum(len(topic["partitions"]) for topic in answer["responses"]) == 2

        async def follow(epoch: int, **more: Any) -> Tree:
            tree = {"session_id": session, "session_epoch": epoch} | more
            return await client.call(FETCH, version, tree)

        answer = await follow(1)
        assert (answer["session_id"], answer["responses"]) == (session, [])
        await append_records(s.engine, "t", 1, [NewRecord(None, b"later")])
        answer = await follow(2)
        assert [p["partition_index"] for p in answer["responses"][0]["partitions"]] == [1]
        answer = await follow(3, topics=[part(1, offset=1)])
        assert answer["responses"] == []
        answer = await follow(4, forgotten_topics_data=[part(1) | {"partitions": [1]}])
        assert [p.partition for p in s.reads[-1].partitions] == [0]
        answer = await follow(9)
        assert (answer["error_code"], answer["responses"]) == (71, [])
        answer = await client.call(FETCH, version, {"session_id": 12345, "session_epoch": 1})
        assert answer["error_code"] == 70


# --- metadata ------------------------------------------------------------------------------------


def listed(broker: Broker, version: int) -> Tree:
    """Return the metadata of all topics."""
    return broker.call(METADATA, version, {"topics": [] if version == 0 else None})


@each_version(METADATA)
def test_metadata_of_all_topics(broker: Broker, version: int) -> None:
    answer = listed(broker, version)
    assert picked(answer["brokers"], "host", "port") == [("broker.example", 9092)]
    orders, users = answer["topics"]
    assert (orders["name"], users["name"]) == ("orders", "users")
    found = picked(
        orders["partitions"], "partition_index", "leader_id", "isr_nodes", "replica_nodes"
    )
    assert found == [(index, 1, [1], [1]) for index in range(3)]
    if version >= 10:
        assert orders["topic_id"] == broker.topic_id("orders")
    if version >= 1:
        assert answer["controller_id"] == 1
        assert broker.call(METADATA, version, {"topics": []})["topics"] == []


@each_version(METADATA)
def test_metadata_has_partitions_that_were_added_and_topics_that_were_created_again(
    broker: Broker, version: int
) -> None:
    def counts() -> dict[str, int]:
        topics = listed(broker, version)["topics"]
        for topic in topics:
            parts = topic["partitions"]
            assert [each["partition_index"] for each in parts] == list(range(len(parts)))
            assert {(each["leader_id"], *each["isr_nodes"]) for each in parts} == {(1, 1)}
        found = {each["name"]: len(each["partitions"]) for each in topics}
        return {name: found[name] for name in found if not name.startswith("__")}

    both = counts()
    topics = broker.engine.inner_door().topics
    broker.create("u", TOGETHER)
    assert counts() == both | {"u": TOGETHER}
    broker.run(topics.add_partitions("u", 2 * TOGETHER + 1))
    assert counts() == both | {"u": 2 * TOGETHER + 1}
    broker.run(topics.delete(["u"]))
    assert counts() == both == {"orders": 3, "users": 1}
    broker.create("u", 3)
    assert counts() == both | {"u": 3}


@each_version(METADATA)
def test_metadata_creates_a_missing_topic_unless_forbidden(broker: Broker, version: int) -> None:
    asked = {"topics": [{"name": "new"}]}
    if version >= 4:
        forbidden = asked | {"allow_auto_topic_creation": False}
        answer = broker.call(METADATA, version, forbidden)
        assert picked(answer["topics"], "name", "error_code") == [("new", 3)]
        assert "new" not in broker.topics()
    answer = broker.call(METADATA, version, asked | {"allow_auto_topic_creation": True})
    assert picked(answer["topics"], "name", "error_code") == [("new", 0)]
    assert "new" in broker.topics()


@each_version(METADATA, since=10)
def test_metadata_by_topic_id(broker: Broker, version: int) -> None:
    known = broker.topic_id("orders")
    asked = [{"name": None, "topic_id": each} for each in (known, MISSING_ID)]
    topics = broker.call(METADATA, version, {"topics": asked})["topics"]
    if version < 12:
        assert picked(topics, "error_code") == [(42,), (42,)]
    else:
        found = picked(topics, "name", "topic_id", "error_code")
        assert found == [("orders", known, 0), (None, MISSING_ID, 100)]


def test_allowed_operations_are_included_on_request(broker: Broker) -> None:
    flags = {f"include_{kind}_authorized_operations": True for kind in ("topic", "cluster")}
    answer = broker.call(METADATA, 9, {"topics": None, **flags})
    assert answer["topics"][0]["topic_authorized_operations"] == 3576
    assert answer["cluster_authorized_operations"] == 8096
    assert listed(broker, 9)["topics"][0]["topic_authorized_operations"] == -(2**31)


@each_version(DESCRIBE_CLUSTER)
def test_describe_cluster(broker: Broker, version: int) -> None:
    answer = broker.call(DESCRIBE_CLUSTER, version, {"endpoint_type": 1})
    cluster_id = cluster_id_text(broker.engine.storage.cluster_id)
    assert (answer["error_code"], answer["cluster_id"]) == (0, cluster_id)
    assert picked(answer["brokers"], "broker_id", "port") == [(1, 9092)]
    if version >= 1:
        answer = broker.call(DESCRIBE_CLUSTER, version, {"endpoint_type": 2})
        assert (answer["error_code"], answer["brokers"]) == (114, [])


def test_topic_partitions_come_in_pages(broker: Broker) -> None:
    broker.create("a", 3)
    seen: list[tuple[Any, ...]] = []
    cursor = None
    for _ in range(10):
        asked = {"response_partition_limit": 2, "cursor": cursor}
        answer = broker.call(DESCRIBE_TOPIC_PARTITIONS, 0, asked)
        for topic in answer["topics"]:
            fields = ("partition_index", "eligible_leader_replicas", "last_known_elr")
            seen += [(topic["name"], *found) for found in picked(topic["partitions"], *fields)]
        cursor = answer["next_cursor"]
        if cursor is None:
            break
    everything = [*(("a", n) for n in range(3)), *(("orders", n) for n in range(3)), ("users", 0)]
    assert seen == [(name, index, [], []) for name, index in everything]
    answer = broker.call(DESCRIBE_TOPIC_PARTITIONS, 0, {"topics": [{"name": "no"}]})
    assert answer["topics"][0]["error_code"] == 3


@each_version(FIND_COORDINATOR)
def test_coordinator_is_this_broker(broker: Broker, version: int) -> None:
    def ask(**kind: int) -> list[tuple[Any, ...]]:
        asked = {"coordinator_keys": ["g", "h"]} if version >= 4 else {"key": "g"}
        answer = broker.call(FIND_COORDINATOR, version, asked | kind)
        found = answer["coordinators"] if version >= 4 else [answer]
        return picked(found, "error_code", "node_id", "host", "port")

    here = [(0, 1, "broker.example", 9092)] * (2 if version >= 4 else 1)
    assert ask() == here
    if version >= 1:
        assert ask(key_type=1) == here
        assert ask(key_type=9)[0][0] == 35


# --- positions -----------------------------------------------------------------------------------


def append(broker: Broker, partition: int, count: int = 1) -> None:
    records = [NewRecord(None, b"value")] * count
    broker.run(append_records(broker.engine, "orders", partition, records))


def list_offsets(broker: Broker, version: int, *partitions: Tree) -> list[tuple[Any, ...]]:
    """Return error code and offset of partitions of ``orders``."""
    tree = {"topics": [{"name": "orders", "partitions": list(partitions)}]}
    (topic,) = broker.call(LIST_OFFSETS, version, tree)["topics"]
    return picked(topic["partitions"], "error_code", "offset")


@each_version(LIST_OFFSETS)
def test_list_offsets(broker: Broker, version: int) -> None:
    append(broker, 0)
    broker.clock.advance(1000)
    append(broker, 0)
    expected = {
        -1: (0, 2),
        -2: (0, 0),
        NOW_MS + 500: (0, 1),
        NOW_MS + 1500: (0, -1),
        -3: (0, 1) if version >= 7 else (35, -1),
        -5: (0, -1) if version >= 9 else (35, -1),
        -77: (35, -1),
    }
    for timestamp, answer in expected.items():
        part = {"partition_index": 0, "timestamp": timestamp}
        assert list_offsets(broker, version, part) == [answer], timestamp


@each_version(LIST_OFFSETS)
def test_list_offsets_answers_each_partition_of_many(broker: Broker, version: int) -> None:
    """Those that are known are answered with those that take a search, and with errors."""
    append(broker, 0, 3)
    append(broker, 1, 2)
    numbers = [*range(2 * LOOKED_UP_TOGETHER - 1), 1, 0]
    parts = [{"partition_index": each, "timestamp": -1} for each in numbers]
    parts[-1]["timestamp"] = 500
    few = [{"partition_index": 1, "timestamp": -2}, {"partition_index": 0, "timestamp": -1}]
    asked = (("orders", parts), ("orders", few), ("orders", few[:0]), ("missing", few[:1]))
    tree = {"topics": [{"name": name, "partitions": each} for name, each in asked]}
    answer = broker.call(LIST_OFFSETS, version, tree)
    fields = ("partition_index", "error_code", "offset")
    first, *others = (picked(each["partitions"], *fields) for each in answer["topics"])
    ends = {0: (0, 0, 3), 1: (1, 0, 2), 2: (2, 0, 0)}
    known = [ends.get(number, (number, 3, -1)) for number in numbers[:-1]]
    assert first == [*known, (0, 0, 0)]
    assert answer["topics"][0]["partitions"][-1]["timestamp"] == NOW_MS
    assert others == [[(1, 0, 0), (0, 0, 3)], [], [(1, 3, -1)]]


@each_version(LIST_OFFSETS, since=4)
def test_list_offsets_compares_the_leader_epoch_of_each_partition(
    broker: Broker, version: int
) -> None:
    append(broker, 0, 3)
    other = {"partition_index": 1, "timestamp": -2, "current_leader_epoch": 0}
    for epoch, expected in ((-1, (0, 3)), (0, (0, 3)), (5, (75, -1))):
        part = {"partition_index": 0, "timestamp": -1, "current_leader_epoch": epoch}
        assert list_offsets(broker, version, part, other) == [expected, (0, 0)]


@each_version(OFFSET_FOR_EPOCH)
def test_offset_for_leader_epoch(broker: Broker, version: int) -> None:
    append(broker, 1, 4)
    parts = [{"partition": each, "leader_epoch": 0} for each in (1, 9)]
    tree = {"topics": [{"topic": "orders", "partitions": parts}]}
    (topic,) = broker.call(OFFSET_FOR_EPOCH, version, tree)["topics"]
    assert picked(topic["partitions"], "error_code", "end_offset") == [(0, 4), (3, -1)]


@each_version(DELETE_RECORDS)
def test_delete_records(broker: Broker, version: int) -> None:
    append(broker, 0, 4)
    parts = [{"partition_index": each, "offset": 3} for each in (0, 1)]
    tree = {"topics": [{"name": "orders", "partitions": parts}]}
    (topic,) = broker.call(DELETE_RECORDS, version, tree)["topics"]
    assert picked(topic["partitions"], "error_code", "low_watermark") == [(0, 3), (1, -1)]


# --- producers -----------------------------------------------------------------------------------


@each_version(INIT_PRODUCER_ID)
def test_each_producer_without_a_name_gets_an_id(broker: Broker, version: int) -> None:
    asked: Tree = {"transactional_id": None}
    first, second = (broker.call(INIT_PRODUCER_ID, version, asked) for _ in range(2))
    assert first["error_code"] == second["error_code"] == 0
    assert first["producer_id"] != second["producer_id"]


def test_describe_producers(broker: Broker) -> None:
    producer = broker.run(Producer(broker.engine, "payments").init())
    broker.run(producer.send("orders", b"first"))
    broker.run(producer.commit())
    broker.run(producer.send("orders", b"second", b"third"))
    (known,) = broker.engine.records.producers("orders", 0)
    asked = {"topics": [{"name": "orders", "partition_indexes": [0, 9]}]}
    (topic,) = broker.call(DESCRIBE_PRODUCERS, 0, asked)["topics"]
    found, unknown = topic["partitions"]
    (active,) = found["active_producers"]
    assert active == {
        "producer_id": producer.identity.producer_id,
        "producer_epoch": producer.identity.epoch,
        "last_sequence": 1,
        "last_timestamp": known.last_timestamp_ms,
        "coordinator_epoch": 0,
        "current_txn_start_offset": 2,
    }
    assert unknown["error_code"] == 3
