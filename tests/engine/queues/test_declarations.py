"""Exchanges, queues and bindings through the door: who can use them, and what a restart keeps."""

from __future__ import annotations

from collections.abc import Awaitable
from pathlib import Path

import pytest

from tests.engine.queues.harness import Client, connected, numbers
from tests.engine.support import until
from tests.support.logs import append_records
from tidemill.engine.api import NewRecord, NewTopic
from tidemill.engine.internal_topics import QUEUES
from tidemill.engine.queues.api import ExchangeSpec, QueueSpec
from tidemill.engine.queues.errors import (
    InternalExchangeError,
    InvalidQueueNameError,
    PreconditionError,
    QueueInUseError,
    QueueNotEmptyError,
    ReservedNameError,
    UnknownExchangeError,
    UnknownExchangeTypeError,
    UnknownQueueError,
)
from tidemill.errors import TidemillError, UnknownTopicOrPartitionError


async def test_declarations_survive_a_restart_if_they_are_durable(tmp_path: Path) -> None:
    async with connected(tmp_path) as client:
        await client.queues.declare_exchange("x", ExchangeSpec("topic"))
        await client.queues.declare_exchange("passing", ExchangeSpec("fanout", durable=False))
        await client.declare("kept", {"x-max-length": 100})
        await client.declare("passing", durable=False)
        await client.declare("mine", exclusive=True)
        for queue in ("kept", "passing"):
            await client.queues.bind(queue, "x", "a.#", {}, client.owner)
        await client.queues.bind("kept", "passing", "", {}, client.owner)
        await client.publish("a.b", b"1", exchange="x")
    async with connected(tmp_path) as client:
        assert [each.name for each in client.queues.queues()] == ["kept"]
        assert [each for each, _ in client.queues.exchanges() if "amq" not in each] == ["", "x"]
        assert len(client.queues.bindings()) == 1
        with pytest.raises(UnknownTopicOrPartitionError):
            client.engine.topics.get("passing")
        await client.publish("a.c", b"2", exchange="x")
        got = await client.get("kept")
        assert got is not None
        assert (got.value, got.exchange, got.key) == (b"1", "x", b"a.b")
        assert await client.drain("kept") == [b"2"]


async def test_a_deleted_topic_that_was_not_a_queue_leaves_no_record(client: Client) -> None:
    engine = client.engine
    await engine.topics.create([NewTopic("orders", 1), NewTopic("bound", 1)])
    await client.queues.bind("bound", "amq.fanout", "", {}, client.owner)
    log = engine._store.partitions[QUEUES]
    before = log.log_end_offset
    await engine.topics.delete(["orders"])
    await engine.topics.delete(["bound"])  # behind the first one
    await until(lambda: not client.queues.bindings())
    assert log.log_end_offset == before + 1  # the binding


async def test_reserved_and_invalid_names(client: Client) -> None:
    queues, direct = client.queues, ExchangeSpec("direct")
    await client.declare("jobs")
    await queues.declare_exchange("amq.direct", direct)  # it is the same
    refused: list[tuple[Awaitable[object], type[TidemillError]]] = [
        (client.declare("amq.mine"), ReservedNameError),
        (client.declare("__consumer_offsets"), ReservedNameError),
        (queues.declare_exchange("", direct), ReservedNameError),
        (queues.declare_exchange("amq.direct2", direct), ReservedNameError),
        (queues.declare_exchange("amq.direct", ExchangeSpec("fanout")), PreconditionError),
        (queues.declare_exchange("x", ExchangeSpec("psychic")), UnknownExchangeTypeError),
        (queues.delete_exchange("amq.topic"), ReservedNameError),
        (queues.bind("jobs", "", "k", {}, client.owner), ReservedNameError),
        (client.declare("x" * 256), InvalidQueueNameError),
        (client.consume("__consumer_offsets"), UnknownQueueError),
    ]
    for call, error in refused:
        with pytest.raises(error):
            await call


async def test_names_that_are_not_names_of_topics_are_queues_all_the_same(tmp_path: Path) -> None:
    names = ["mit Leerzeichen", "ünï/cödé", "a_b", "a.b", "x" * 255]
    async with connected(tmp_path) as client:
        for name in names:
            assert (await client.declare(name)).name == name
            assert await client.publish(name, name.encode()) == [True]
    async with connected(tmp_path) as client:
        for name in names:
            assert await client.drain(name) == [name.encode()]


async def test_the_broker_chooses_a_name(client: Client) -> None:
    one, other = await client.declare(""), await client.declare("", exclusive=True)
    assert one.name.startswith("amq.gen-")
    assert one.name != other.name
    again = await client.queues.declare_queue(one.name, QueueSpec(), client.owner, passive=True)
    assert again.name == one.name


async def test_deletion_with_conditions(client: Client) -> None:
    queues, owner = client.queues, client.owner
    await client.fill(b"1", b"2")
    with pytest.raises(QueueNotEmptyError):
        await queues.delete_queue("jobs", owner, if_empty=True)
    reader = await client.consume("jobs", prefetch=1)
    with pytest.raises(QueueInUseError):
        await queues.delete_queue("jobs", owner, if_unused=True)
    (out,) = await reader.wait(1)
    assert await queues.delete_queue("jobs", owner) == 1
    assert reader.ended == ["the queue was deleted"]
    reader.acknowledge([out])  # too late, and harmless
    assert await queues.delete_queue("jobs", owner) == 0
    assert client.send("jobs", b"3") is None
    assert (await client.declare("jobs")).messages == 0


async def test_purge_drops_what_is_ready_and_leaves_what_is_out(client: Client) -> None:
    await client.fill(*numbers(20))
    reader, got = await client.take(4)
    reader.consumer.cancel()
    reader.release([got[1]])
    assert await client.queues.purge("jobs", client.owner) == 17
    found = client.queues.describe("jobs")
    assert (found.ready, found.unacknowledged) == (0, 3)
    reader.release([got[0]])
    await client.publish("jobs", b"new")
    assert await client.drain("jobs") == [b"0", b"new"]


async def test_auto_delete_follows_the_last_consumer_and_the_last_binding(client: Client) -> None:
    await client.declare("jobs", auto_delete=True)
    await client.queues.declare_exchange("x", ExchangeSpec("fanout", auto_delete=True))
    await client.queues.bind("jobs", "x", "", {}, client.owner)
    reader = await client.consume("jobs")
    other = await client.consume("jobs")
    reader.consumer.cancel()
    await client.publish("jobs", b"1")
    other.consumer.cancel()
    await until(lambda: "x" not in dict(client.queues.exchanges()))
    with pytest.raises(UnknownQueueError):
        client.queues.describe("jobs")


async def test_internal_exchanges_are_reached_by_bindings_only(client: Client) -> None:
    queues = client.queues
    await queues.declare_exchange("inside", ExchangeSpec("fanout", internal=True))
    await client.declare("jobs")
    await queues.bind("jobs", "inside", "", {}, client.owner)
    await queues.bind_exchange("amq.topic", "inside", "in.*", {})
    with pytest.raises(InternalExchangeError):
        client.send("k", exchange="inside")
    assert await client.publish("in.x", b"1", exchange="amq.topic") == [True]
    assert client.send("out.x", b"1", exchange="amq.topic") is None
    await queues.unbind_exchange("amq.topic", "inside", "in.*", {})
    assert client.send("in.x", b"2", exchange="amq.topic") is None
    with pytest.raises(UnknownExchangeError):
        await queues.bind_exchange("amq.topic", "missing", "", {})
    assert await client.drain("jobs") == [b"1"]


async def test_headers_and_more_keys_route(client: Client) -> None:
    for name in ("a", "b"):
        await client.declare(name)
    await client.queues.bind("a", "amq.headers", "", {"x-match": "any", "k": 1}, client.owner)
    await client.publish("", b"1", exchange="amq.headers", routing_headers={"k": 1})
    assert client.send("", b"2", exchange="amq.headers", routing_headers={"k": 2}) is None
    await client.publish("a", b"3", more_keys=["b", "a"])
    assert await client.drain("a") == [b"1", b"3"]
    assert await client.drain("b") == [b"3"]


# --- one log, many protocols ---------------------------------------------------------------------


async def test_an_existing_topic_is_a_queue(tmp_path: Path) -> None:
    async with connected(tmp_path) as client:
        await client.engine.topics.create([NewTopic("orders", 3)])
        for partition in range(3):
            records = [NewRecord(b"k", b"%d-%d" % (partition, n)) for n in range(4)]
            await append_records(client.engine, "orders", partition, records)
        reader, got = await client.take(5, "orders")
        reader.consumer.cancel()
        reader.acknowledge(got)
        assert client.queues.describe("orders").type == "topic"
        seen = [bytes(each.value) for each in got]
    async with connected(tmp_path) as client:
        seen += await client.drain("orders")
        assert sorted(seen) == sorted(b"%d-%d" % (p, n) for p in range(3) for n in range(4))
        await client.queues.bind("orders", "amq.topic", "#", {}, client.owner)
        assert await client.publish("k", b"new", exchange="amq.topic") == [True]
        assert await client.drain("orders") == [b"new"]
        await client.engine.topics.delete(["orders"])
        await until(lambda: client.queues.bindings() == [])
        assert client.send("orders") is None


async def test_segments_whose_messages_are_done_are_deleted(
    monkeypatch: pytest.MonkeyPatch, client: Client
) -> None:
    monkeypatch.setattr("tidemill.engine.queues.declarations.SEGMENT_BYTES", 1 << 20)
    await client.declare("jobs")
    await client.declare("kept", {"x-retain": -1})
    for queue in ("jobs", "kept"):
        for _ in range(5):
            await client.publish(queue, *[bytes(10_000) for _ in range(60)])
        reader = await client.consume(queue, prefetch=1000)
        reader.acknowledge(await reader.wait(300))
    log = client.live("jobs").lanes[0].log
    await until(lambda: log.log_start_offset > 0)
    await until(lambda: log.size_bytes < 2 << 20)
    kept = client.live("kept").lanes[0]
    await until(lambda: kept.stored_start == 300)
    assert kept.log.log_start_offset == 0
    assert kept.log.size_bytes > 2_900_000
