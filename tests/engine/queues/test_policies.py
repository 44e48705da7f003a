"""The arguments of queues: dead letters, limits in time and length, priorities, delays, streams."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.engine.queues.harness import Client, connected, numbers, turns
from tests.engine.support import until
from tidemill.clock import ManualClock
from tidemill.engine.api import AlterOp, CommitRequest, ConfigChange, OffsetToCommit
from tidemill.engine.queues.api import DEATHS_HEADER, MAX_BODY_BYTES, Delivery
from tidemill.engine.queues.errors import (
    InvalidQueueArgumentError,
    NotSupportedByStreamError,
    PreconditionError,
    UnknownQueueError,
)


def deaths(delivery: Delivery | None) -> list[dict[str, Any]]:
    assert delivery is not None
    found = dict(delivery.headers)[DEATHS_HEADER]
    assert found is not None
    parsed: list[dict[str, Any]] = json.loads(found)
    return parsed


async def next_of(client: Client, queue: str) -> Delivery:
    """Wait for a message, and take it."""
    async with asyncio.timeout(60):
        while (found := await client.get(queue, no_ack=True)) is None:
            await asyncio.sleep(0.002)
    return found


# --- dead letters --------------------------------------------------------------------------------


async def test_a_rejected_message_is_a_dead_letter_with_its_history(client: Client) -> None:
    await client.declare_jobs()
    await client.publish("jobs", b"bad", b"good", headers=[("h", b"1")])
    reader, (bad, good) = await client.take(2)
    reader.reject([bad])
    reader.acknowledge([good])
    letter = await next_of(client, "dead")
    assert (letter.value, letter.key, dict(letter.headers)["h"]) == (b"bad", b"dead", b"1")
    (death,) = deaths(letter)
    assert (death["queue"], death["reason"], death["count"]) == ("jobs", "rejected", 1)
    assert (death["exchange"], death["keys"]) == ("", ["jobs"])
    await until(lambda: client.queues.describe("jobs").dead == 1)
    assert client.queues.describe("jobs").unacknowledged == 0


async def test_a_rejection_reads_a_dropped_value_again(client: Client) -> None:
    await client.declare_jobs()
    await client.publish("jobs", b"0", b"bad")
    reader, got = await client.take(2)
    got[1].drop_value()
    reader.reject([got[1]])
    assert (await next_of(client, "dead")).value == b"bad"


async def test_a_message_that_is_returned_too_often_is_a_dead_letter(client: Client) -> None:
    await client.declare_jobs({"x-delivery-limit": 2})
    await client.publish("jobs", b"poison")
    reader = await client.consume("jobs")
    for count in range(3):
        (again,) = await reader.wait(1)
        assert again.delivery_count == count
        reader.release([again])
    (death,) = deaths(await next_of(client, "dead"))
    assert death["reason"] == "delivery_limit"
    await turns()
    assert reader.got == []


async def test_letters_that_go_in_a_circle_without_a_rejection_are_dropped(client: Client) -> None:
    back = {"x-dead-letter-exchange": "", "x-message-ttl": 1}
    await client.declare("a", {**back, "x-dead-letter-routing-key": "b"})
    await client.declare("b", {**back, "x-dead-letter-routing-key": "a"})
    await client.publish("a", b"round")
    await until(lambda: client.queues.describe("b").dead == 1)
    assert (client.ready("a"), client.ready("b")) == (0, 0)


async def test_a_letter_whose_origin_was_not_stored_as_done_is_not_sent_twice(
    tmp_path: Path,
) -> None:
    """The state after a crash between the two: the origin's acknowledgement is taken away."""
    async with connected(tmp_path) as client:
        await client.declare_jobs()
        await client.publish("jobs", b"keep", b"bad")
        reader, (_, bad) = await client.take(2)
        core = client.engine._queues
        core._ack_log._submit = lambda *_: None  # type: ignore[method-assign]
        reader.reject([bad])
        await until(lambda: client.ready("dead") == 1)
        await turns()
    async with connected(tmp_path) as client:
        await until(lambda: client.ready("jobs") == 1)
        assert await client.drain("dead") == [b"bad"]
        assert await client.drain("jobs") == [b"keep"]


# --- limits --------------------------------------------------------------------------------------


async def test_messages_expire_by_the_queue_s_limit_and_by_their_own(tmp_path: Path) -> None:
    clock = ManualClock()
    async with connected(tmp_path, clock) as client:
        await client.declare_jobs({"x-message-ttl": 1000})
        await client.publish("jobs", b"short", ttl_ms=500)
        await client.publish("jobs", b"long", ttl_ms=5000)
        clock.advance(600)
        live = client.live("jobs")
        live.wake()
        letter = await next_of(client, "dead")
        assert (letter.value, deaths(letter)[0]["reason"]) == (b"short", "expired")
        assert deaths(letter)[0]["original-expiration"] == "500"
        clock.advance(600)
        live.wake()
        assert (await next_of(client, "dead")).value == b"long"
        assert client.ready("jobs") == 0


async def test_a_message_expires_without_any_client(client: Client) -> None:
    await client.fill(b"1", b"2", arguments={"x-message-ttl": 30})
    await until(lambda: client.ready("jobs") == 0)


async def test_with_a_ttl_of_zero_only_a_waiting_consumer_gets_the_message(client: Client) -> None:
    await client.declare("jobs", {"x-message-ttl": 0})
    reader = await client.consume("jobs", prefetch=1)
    await client.publish("jobs", b"1", b"2")
    (got,) = await reader.wait(1)
    assert got.value == b"1"
    await until(lambda: client.ready("jobs") == 0)
    reader.acknowledge([got])
    await turns()
    assert reader.got == []


async def test_a_queue_without_use_is_deleted(client: Client) -> None:
    await client.declare("jobs", {"x-expires": 50})
    await until(lambda: "jobs" not in [each.name for each in client.queues.queues()])
    with pytest.raises(UnknownQueueError):
        await client.consume("jobs")


@pytest.mark.parametrize(
    "limit", [{"x-max-length": 3}, {"x-max-length-bytes": 3}], ids=["messages", "bytes"]
)
async def test_a_queue_that_is_too_long_drops_its_oldest(
    limit: dict[str, object], client: Client
) -> None:
    await client.declare_jobs(limit)
    assert all(await client.publish("jobs", *numbers(5)))
    await until(lambda: client.queues.describe("jobs").dead == 2)
    assert await client.drain("jobs") == [b"2", b"3", b"4"]
    assert await client.drain("dead") == [b"0", b"1"]


@pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx"])
async def test_a_full_queue_refuses_what_is_published(overflow: str, client: Client) -> None:
    await client.declare_jobs({"x-max-length": 2, "x-overflow": overflow})
    assert await client.publish("jobs", b"1", b"2", b"3") == [True, True, False]
    await turns()
    assert await client.drain("jobs") == [b"1", b"2"]
    assert await client.drain("dead") == ([b"3"] if overflow.endswith("dlx") else [])
    assert await client.publish("jobs", b"4") == [True]


async def test_a_message_that_one_of_its_queues_refuses_is_refused(client: Client) -> None:
    await client.declare("full", {"x-max-length": 0, "x-overflow": "reject-publish"})
    await client.declare("free")
    for queue in ("full", "free"):
        await client.queues.bind(queue, "amq.fanout", "", {}, client.owner)
    assert await client.publish("k", b"1", exchange="amq.fanout") == [False]
    assert await client.drain("free") == [b"1"]


# --- order ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("most", "published", "delivered"),
    [
        (9, [0, 5, 9, 5, 200, 0], [9, 200, 5, 5, 0, 0]),
        (255, [3, 250, 32, 255, 31, 0, 249, 33, 254, 1], [255, 254, 250, 249, 33, 32, 31, 3, 1, 0]),
    ],
    ids=["those above the highest are the highest", "each of 255 has its own order"],
)
async def test_higher_priorities_come_first(
    client: Client, most: int, published: list[int], delivered: list[int]
) -> None:
    await client.declare("jobs", {"x-max-priority": most})
    for priority in published:
        await client.publish("jobs", b"%d" % priority, priority=priority)
    assert [int(value) for value in await client.drain("jobs")] == delivered


async def test_a_delayed_message_is_delivered_at_its_time(tmp_path: Path) -> None:
    clock = ManualClock()
    async with connected(tmp_path, clock) as client:
        await client.declare("jobs")
        reader = await client.consume("jobs")
        await client.publish("jobs", b"later", delay_ms=1000)
        await client.publish("jobs", b"now")
        (first,) = await reader.wait(1)
        assert first.value == b"now"
        await turns()
        assert reader.got == []
        assert client.queues.describe("jobs").ready == 1
        clock.advance(1001)
        reader.consumer.wake()
        (second,) = await reader.wait(1)
        assert (second.value, second.redelivered) == (b"later", False)


# --- streams -------------------------------------------------------------------------------------


async def test_each_consumer_of_a_stream_reads_from_its_offset(client: Client) -> None:
    await client.declare("events", {"x-queue-type": "stream"})
    await client.publish("events", *numbers(5))

    async def reads(start: object, count: int) -> list[bytes]:
        reader = await client.consume("events", arguments={"x-stream-offset": start})
        await reader.wait(0)
        if start == "next":
            await turns()
            await client.publish("events", b"new")
        await until(lambda: len(reader.got) >= count)
        await turns()
        reader.consumer.cancel()
        return reader.values

    assert await reads("first", 5) == [b"0", b"1", b"2", b"3", b"4"]
    assert await reads(3, 2) == [b"3", b"4"]
    assert await reads("last", 1) == [b"4"]
    assert await reads("1h", 5) == [b"0", b"1", b"2", b"3", b"4"]
    assert await reads("next", 1) == [b"new"]


async def test_a_stream_consumer_gets_more_as_it_acknowledges(client: Client) -> None:
    await client.declare("events", {"x-queue-type": "stream"})
    await client.publish("events", *numbers(5))
    reader = await client.consume("events", prefetch=2, arguments={"x-stream-offset": "first"})
    first = await reader.wait(2)
    await turns()
    assert reader.got == []
    reader.acknowledge(first)
    assert [d.value for d in await reader.wait(2)] == [b"2", b"3"]
    assert client.queues.describe("events").delivered == 4
    with pytest.raises(NotSupportedByStreamError):
        await client.queues.get("events", client.owner, no_ack=True)
    with pytest.raises(NotSupportedByStreamError):
        await client.queues.purge("events", client.owner)


# --- declarations --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("x-message-ttl", -1),
        ("x-message-ttl", "10"),
        ("x-message-ttl", True),
        ("x-expires", 0),
        ("x-max-priority", 256),
        ("x-overflow", "explode"),
        ("x-queue-type", "hologram"),
        ("x-dead-letter-routing-key", "without-an-exchange"),
        ("x-single-active-consumer", 1),
        ("x-max-age", "1h"),
    ],
)
async def test_an_invalid_argument_is_refused_by_name(
    argument: str, value: object, client: Client
) -> None:
    with pytest.raises(InvalidQueueArgumentError) as caught:
        await client.declare("jobs", {argument: value})
    assert caught.value.argument == argument
    assert not caught.value.unknown


async def test_an_unknown_argument_is_noticed_or_with_strict_settings_refused(
    tmp_path: Path,
) -> None:
    async with connected(tmp_path) as client:
        with capture_logs() as logs:
            for name in ("a", "b"):
                await client.declare(name, {"x-later": 1})
            await client.declare("a", {"x-later": 2})  # unknown arguments are not compared
        assert [log["argument"] for log in logs if log["event"] == "queue.unknown_argument"] == [
            "x-later"
        ]
    async with connected(tmp_path, strict=True) as client:
        with pytest.raises(InvalidQueueArgumentError) as caught:
            await client.declare("c", {"x-later": 1})
        assert (caught.value.argument, caught.value.unknown) == ("x-later", True)
        await client.queues.purge("a", client.owner)  # declared before the setting changed


async def test_another_declaration_names_what_differs(client: Client) -> None:
    await client.declare("jobs", {"x-max-length": 5})
    await client.declare("jobs", {"x-max-length": 5, "x-queue-type": "classic"})
    different: list[tuple[dict[str, object], dict[str, bool], tuple[object, ...]]] = [
        ({"x-max-length": 6}, {}, ("x-max-length", 5, 6)),
        ({"x-max-length": 5}, {"durable": False}, ("durable", True, False)),
        ({}, {}, ("x-max-length", 5, None)),
    ]
    for arguments, options, what in different:
        with pytest.raises(PreconditionError) as caught:
            await client.declare("jobs", arguments, **options)
        error = caught.value
        assert (error.argument, error.current, error.received) == what


async def test_the_largest_body_is_stored_with_the_largest_headers(client: Client) -> None:
    await client.declare("jobs")
    body, header = bytes(MAX_BODY_BYTES), ("amqp.headers", bytes(128 << 10))
    assert await client.publish("jobs", body, headers=[header]) == [True]
    found = await client.get("jobs")
    assert found is not None
    assert found.value == body


NO_DEATHS: list[bytes | None] = [
    None,
    b"",
    b"{",
    b"\xff",
    b"{}",
    b"[1, null]",
    b"[" * 100_000,
    b'[{"queue": ' + b"[" * 900 + b"]" * 900 + b"}]",
    b'[{"queue": "jobs", "reason": "rejected", "count": ' + b"9" * 4300 + b"}]",
    b'[{"queue": 1, "reason": {}, "count": "x", "keys": 3, "time": []}]',
]


async def test_deaths_that_a_client_wrote_do_not_stop_dead_letters(client: Client) -> None:
    await client.declare_jobs()
    reader = await client.consume("jobs")
    for header in NO_DEATHS:
        await client.publish("jobs", b"x", headers=[(DEATHS_HEADER, header)])
        reader.reject(await reader.wait(1))
        death = deaths(await next_of(client, "dead"))[0]
        assert (death["queue"], death["reason"], death["count"]) == ("jobs", "rejected", 1)


async def test_a_full_queue_holds_its_publishers_back_and_takes_everything(client: Client) -> None:
    other = Client(client.engine)
    await client.declare("jobs", {"x-max-length": 2, "x-overflow": "throttle"})
    await client.declare("free")
    assert await client.publish("jobs", b"1") == [True]
    assert client.publisher.hold_ms() == 0
    assert await client.publish("jobs", b"2", b"3") == [True, True]
    assert await other.publish("free", b"x") == [True]
    assert client.publisher.hold_ms() > 0
    assert other.publisher.hold_ms() == 0
    await client.get("jobs", no_ack=True)
    assert client.publisher.hold_ms() > 0
    assert await client.drain("jobs") == [b"2", b"3"]
    assert client.publisher.hold_ms() == 0


async def test_the_lag_policy_of_a_queues_topic_holds_publishers_back(client: Client) -> None:
    await client.fill(b"0")
    changes = {"lag.policy": "throttle", "lag.group": "g", "lag.max.records": "2"}
    await client.engine.configs.alter_topic(
        "jobs", [ConfigChange(name, AlterOp.SET, value) for name, value in changes.items()]
    )
    await client.publish("jobs", b"1", b"2", b"3")
    assert client.publisher.hold_ms() > 0
    request = CommitRequest("g", -1, "", None, (OffsetToCommit("jobs", 0, 4),))
    assert await client.engine.groups.commit(request) == [None]
    await until(lambda: client.publisher.hold_ms() == 0)
