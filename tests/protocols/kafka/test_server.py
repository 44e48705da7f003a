"""The server on a socket: order, refusals, bounds, back-pressure, stop."""

from __future__ import annotations

import asyncio
import itertools
import struct
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from tests.protocols.kafka.keys import API_VERSIONS, FETCH, METADATA, PRODUCE
from tests.protocols.kafka.messages import one_batch
from tests.protocols.kafka.trees import (
    ALL_TOPICS,
    SOFTWARE,
    fetch,
    fetched,
    picked,
    produce,
    written,
)
from tests.protocols.kafka.wire import eventually, request, request_bytes, serving, talking
from tests.support.logs import read_bytes
from tidemill.net.responses import STUCK_SECONDS
from tidemill.protocols.kafka.connection import FIRST_BYTES
from tidemill.protocols.kafka.session import MOST_UNANSWERED
from tidemill.settings import Groups

pytestmark = pytest.mark.usefixtures("loop_factory")

# --- order ---------------------------------------------------------------------------------------


async def test_produce_and_fetch_give_the_same_bytes_but_for_the_offset() -> None:
    async with talking() as (_, client):
        sent = [one_batch(b"x" * size) for size in (10, 70_000, 1_000_000, 300, 5_000_000)]
        for index, records in enumerate(sent):
            answer = await client.call(PRODUCE, 9, produce("t", records))
            assert written(answer) == [(0, index)]
        stored = fetched(await client.call(FETCH, 11, fetch("t")))
        assert len(stored) == sum(map(len, sent))
        position = 0
        for index, records in enumerate(sent):
            assert stored[position : position + 8] == struct.pack(">q", index)
            assert stored[position + 16 : position + len(records)] == records[16:]
            position += len(records)


async def test_produce_requests_overlap_and_are_answered_in_order() -> None:
    async with talking() as (s, client):
        s.disk.hold()
        first = client.send(PRODUCE, 9, produce("t", one_batch(b"1")))
        second = client.send(PRODUCE, 9, produce("t", one_batch(b"2")))
        third = client.send(PRODUCE, 9, produce("t", one_batch(b"3"), acks=1))
        await eventually(lambda: s.appended == 3)
        s.disk.release()
        assert [(await client.response(PRODUCE, 9))[0] for _ in range(3)] == [first, second, third]


@pytest.mark.parametrize("size", [10, 4000], ids=["small batches", "large batches"])
async def test_a_produce_request_to_many_partitions_is_answered_in_order(size: int) -> None:
    """It is handled in slices. What arrives meanwhile must not overwrite its records."""
    names, partitions = [f"wide{t}" for t in range(3)], 150
    records = {
        name: [one_batch(name.encode() + bytes([p]) * size) for p in range(partitions)]
        for name in names
    }
    wide = produce(names[0], *records[names[0]])
    for name in names[1:]:
        wide["topic_data"] += produce(name, *records[name])["topic_data"]
    async with serving() as s:
        for name in names:
            await s.make_topic(name, partitions)
        client, other = await s.client(), await s.client()
        first = client.send(PRODUCE, 9, wide)
        second = client.send(PRODUCE, 9, produce("wide0", one_batch(b"later")))
        await s.make_topic("t")
        for _ in range(50):
            await other.call(PRODUCE, 9, produce("t", one_batch(b"x" * 100_000)))
        correlation, answer = await client.response(PRODUCE, 9)
        assert correlation == first
        assert [each["name"] for each in answer["responses"]] == names
        for each in answer["responses"]:
            found = picked(each["partition_responses"], "index", "error_code", "base_offset")
            assert found == [(index, 0, 0) for index in range(partitions)]
        correlation, answer = await client.response(PRODUCE, 9)
        assert correlation == second
        assert written(answer) == [(0, 1)]
        for name, p in itertools.product(names, range(partitions)):
            assert records[name][p][16:] in read_bytes(s.log(name, p))


async def test_other_requests_wait_for_the_answers_before_them() -> None:
    async with talking() as (s, client):
        s.disk.hold()
        first = client.send(PRODUCE, 9, produce("t", one_batch()))
        second = client.send(FETCH, 11, fetch("t"))
        third = client.send(PRODUCE, 9, produce("t", one_batch(), acks=1))
        await eventually(lambda: s.appended == 1)
        other = await s.client()
        await other.call(METADATA, 9, ALL_TOPICS)  # another connection is served meanwhile
        assert not s.reads
        s.disk.release()
        asked = ((PRODUCE, 9), (FETCH, 11), (PRODUCE, 9))
        assert [(await client.response(*api))[0] for api in asked] == [first, second, third]


async def test_most_produce_requests_of_a_connection_wait_until_others_are_answered() -> None:
    async with talking() as (s, client):
        s.disk.hold()
        sent = [client.send(PRODUCE, 9, produce("t", one_batch())) for _ in range(3000)]
        await eventually(lambda: s.appended == MOST_UNANSWERED)
        (link,) = s.server.listener._links
        transport = link._transport
        await eventually(lambda: transport is not None and not transport.is_reading())
        other = await s.client()
        await other.call(METADATA, 9, ALL_TOPICS)  # another connection is served meanwhile
        assert s.appended == MOST_UNANSWERED
        assert s.server.listener.budget.used < 1000 * (len(one_batch()) + 1000)
        s.disk.release()
        assert [(await client.response(PRODUCE, 9))[0] for _ in sent] == sent
        assert s.appended == len(sent)


async def test_a_long_poll_behind_many_produce_requests_ends() -> None:
    async with talking() as (s, client):
        s.disk.hold()
        sent = [client.send(PRODUCE, 9, produce("t", one_batch())) for _ in range(400)]
        sent.append(client.send(FETCH, 11, fetch("t")))
        sent += [client.send(PRODUCE, 9, produce("t", one_batch(), acks=1)) for _ in range(400)]
        await eventually(lambda: s.appended == MOST_UNANSWERED)
        s.disk.release()
        asked = [(FETCH, 11) if number == 400 else (PRODUCE, 9) for number in range(len(sent))]
        assert [(await client.response(*api))[0] for api in asked] == sent


async def test_many_pipelined_requests_are_answered_in_order() -> None:
    async with talking() as (_, client):
        sent = [client.send(METADATA, 9, ALL_TOPICS) for _ in range(500)]
        assert [(await client.response(METADATA, 9))[0] for _ in sent] == sent


async def test_bytes_may_arrive_one_at_a_time() -> None:
    async with talking() as (s, client):
        for byte in request(METADATA, 9, ALL_TOPICS) * 2:
            client.writer.write(bytes([byte]))
            await client.writer.drain()
            await asyncio.sleep(0)
        for _ in range(2):
            assert (await client.response(METADATA, 9))[1]["cluster_id"] == s.cluster_id


# --- acks=0 --------------------------------------------------------------------------------------


async def test_acks_0_gets_no_answer_and_an_error_closes() -> None:
    async with talking() as (s, client):
        client.send(PRODUCE, 9, produce("t", one_batch(), acks=0))
        await client.call(METADATA, 9, ALL_TOPICS)
        assert s.appended == 1
        client.send(PRODUCE, 9, produce("missing", one_batch(), acks=0))
        assert await client.is_closed()


# --- versions ------------------------------------------------------------------------------------


async def test_unknown_version_of_api_versions_gets_the_supported_range() -> None:
    async with talking() as (_, client):
        client.writer.write(struct.pack(">ihhi", 12, API_VERSIONS, 77, 5) + b"\xff\xff\0\0")
        correlation, answer = await client.response(API_VERSIONS, 0)
        ranges = {a["api_key"]: (a["min_version"], a["max_version"]) for a in answer["api_keys"]}
        assert (correlation, answer["error_code"], ranges[API_VERSIONS]) == (5, 35, (0, 4))
        answer = await client.call(API_VERSIONS, 4, SOFTWARE)
        assert answer["error_code"] == 0
        assert {a["api_key"]: a["min_version"] for a in answer["api_keys"]}[PRODUCE] == 0


async def test_produce_of_old_clients_is_refused_in_their_own_version() -> None:
    async with talking() as (_, client):
        body = struct.pack(">hiih1sii", 1, 500, 1, 1, b"t", 1, 0) + struct.pack(">i2s", 2, b"ab")
        client.writer.write(request_bytes(PRODUCE, 2, body, 9))
        content = await client.raw_response()
        assert content == struct.pack(">iih1siihqqi", 9, 1, 1, b"t", 1, 0, 35, -1, -1, 0)


@pytest.mark.parametrize(
    ("key", "version"), [(999, 0), (METADATA, 99), (FETCH, 3), (-1, -1), (4, 1)]
)
async def test_unknown_api_or_version_closes_only_its_connection(key: int, version: int) -> None:
    async with serving() as s:
        good, bad = await s.client(), await s.client()
        bad.writer.write(struct.pack(">ihhih", 10, key, version, 1, -1))
        assert await bad.is_closed()
        await good.call(METADATA, 9, ALL_TOPICS)


# --- bounds --------------------------------------------------------------------------------------


async def test_announced_size_over_the_limit_closes_and_nothing_is_allocated() -> None:
    async with serving(request_bytes=100_000) as s:
        for size in (100_001, 2**31 - 1, -1, -(2**31)):
            client = await s.client()
            client.writer.write(struct.pack(">i", size) + b"\0" * 10)
            assert await client.is_closed()
            client.close()


async def test_unsent_part_of_a_large_request_takes_no_memory() -> None:
    async with serving() as s:
        clients = [await s.client() for _ in range(20)]
        for client in clients:
            client.writer.write(struct.pack(">i", 100_000_000) + b"\0" * 1000)
        budget = s.server.listener.budget
        await eventually(lambda: budget.used >= 20 * FIRST_BYTES)
        assert budget.used == 20 * FIRST_BYTES
        for client in clients:
            client.close()
        await eventually(lambda: budget.used == 0)


async def test_connections_over_the_limit_are_closed() -> None:
    async with serving(connections=2) as s:
        first, second = await s.client(), await s.client()
        for served in (first, second):
            await served.call(METADATA, 9, ALL_TOPICS)
        assert await (await s.client()).is_closed()
        first.close()
        await eventually(lambda: s.server.listener.connections == 1)
        await (await s.client()).call(METADATA, 9, ALL_TOPICS)


async def test_unanswered_bytes_stop_the_reading_until_they_are_answered() -> None:
    async with talking(connection_inflight_bytes=50_000) as (s, client):
        s.disk.hold()
        body = produce("t", one_batch(b"x" * 10_000))
        sent = [client.send(PRODUCE, 9, body) for _ in range(400)]
        budget = s.server.listener.budget
        await eventually(lambda: budget.unanswered > 50_000)
        held = -1
        while held != budget.unanswered:  # what was received before the pause is still there
            held = budget.unanswered
            await asyncio.sleep(0.02)
        assert held < 1_000_000
        assert s.appended < 400
        s.disk.release()
        assert [(await client.response(PRODUCE, 9))[0] for _ in sent] == sent


async def test_client_that_does_not_read_is_not_read() -> None:
    async with talking() as (s, writer):
        await writer.call(PRODUCE, 9, produce("t", one_batch(b"x" * 5_000_000)))
        client = await s.client(limit=1)
        sent = [client.send(FETCH, 11, fetch("t")) for _ in range(30)]
        await eventually(lambda: len(s.reads) >= 1)
        seen = -1
        while seen != len(s.reads):
            seen = len(s.reads)
            await asyncio.sleep(0.05)
        assert seen < 5
        await writer.call(METADATA, 9, ALL_TOPICS)
        assert [(await client.response(FETCH, 11))[0] for _ in sent] == sent


async def test_responses_over_the_bound_wait_until_others_are_read() -> None:
    async with talking(total_inflight_bytes=8_000_000) as (s, writer):
        memory = s.server.listener.responses
        await writer.call(PRODUCE, 9, produce("t", one_batch(b"x" * 20_000_000)))
        clients = [await s.client(limit=1) for _ in range(4)]
        for client in clients:
            client.send(FETCH, 11, fetch("t"))
        await eventually(lambda: memory.waiting == 3)
        await writer.call(METADATA, 9, ALL_TOPICS)  # only large responses wait
        # They are read at the same time: which of them comes first depends on the event loop, and
        # one that is not read while the others wait is closed.
        for _, answer in await asyncio.gather(*(each.response(FETCH, 11) for each in clients)):
            assert len(fetched(answer)) > 20_000_000
        memory.measure()
        assert (memory.used, memory.waiting) == (0, 0)


async def test_client_that_leaves_while_it_waits_for_its_turn_takes_no_memory() -> None:
    async with talking(total_inflight_bytes=8_000_000) as (s, writer):
        memory = s.server.listener.responses
        await writer.call(PRODUCE, 9, produce("t", one_batch(b"x" * 20_000_000)))
        slow, leaving, patient = [await s.client(limit=1) for _ in range(3)]
        for number, client in enumerate((slow, leaving, patient)):
            client.send(FETCH, 11, fetch("t"))
            await eventually(lambda n=number: len(s.reads) == n + 1)
        await eventually(lambda: memory.waiting == 2)
        leaving.close()
        await eventually(lambda: memory.waiting == 1)
        await slow.response(FETCH, 11)
        await patient.response(FETCH, 11)
        memory.measure()
        assert memory.used == 0


async def test_client_that_does_not_read_while_others_wait_is_closed() -> None:
    async with talking(total_inflight_bytes=8_000_000) as (s, writer):
        await writer.call(PRODUCE, 9, produce("t", one_batch(b"x" * 20_000_000)))
        with capture_logs() as logs:
            slow = await s.client(limit=1)
            slow.send(FETCH, 11, fetch("t"))
            await eventually(lambda: s.server.listener.responses.used > 8_000_000)
            assert (await writer.call(FETCH, 11, fetch("t")))["error_code"] == 0
        (line,) = [line for line in logs if line["event"] == "connection.not_reading"]
        assert line["unread_bytes"] > 8_000_000
        assert line["seconds"] >= STUCK_SECONDS


async def test_total_bound_holds_over_connections_and_gives_way_to_one_at_a_time() -> None:
    async with talking(total_inflight_bytes=300_000) as (s, _):
        clients = [await s.client() for _ in range(6)]
        message = request(PRODUCE, 9, produce("t", one_batch(b"x" * 400_000)))
        for client in clients:  # all begin: together far more than the bound
            client.writer.write(message[:200_000])
        for client in clients:
            client.writer.write(message[200_000:])
        for client in clients:
            assert (await client.response(PRODUCE, 9))[1]["responses"]
        assert s.appended == 6


async def test_idle_connection_is_closed() -> None:
    async with talking(idle_seconds=1) as (_, client):
        await client.call(METADATA, 9, ALL_TOPICS)
        assert await client.is_closed()


# --- bad input -----------------------------------------------------------------------------------


async def test_malformed_requests_close_their_connection_and_leave_the_others() -> None:
    async with serving() as s:
        good = await s.client()
        absurd = b"\xff\xff\xff\xff\x0f" + b"\0" * 20
        for bad in (
            request_bytes(METADATA, 12, absurd),
            request_bytes(PRODUCE, 9, absurd),
            request_bytes(METADATA, 12, b""),
            struct.pack(">i", 3) + b"abc",
            struct.pack(">i", 0),
            struct.pack(">ihhih", 10, METADATA, 9, 1, 500),
        ):
            client = await s.client()
            client.writer.write(bad)
            assert await client.is_closed()
            await good.call(METADATA, 9, ALL_TOPICS)


async def test_one_log_line_says_who_and_why() -> None:
    async with talking() as (_, client):
        port = client.writer.get_extra_info("sockname")[1]
        await client.call(API_VERSIONS, 3, SOFTWARE)
        with capture_logs() as lines:
            client.writer.write(request_bytes(METADATA, 12, b"\xff\xff\xff\xff\x07\0"))
            assert await client.is_closed()
        (line,) = lines
        assert (line["event"], line["log_level"]) == ("connection.closed", "warning")
        assert line["peer"] == f"127.0.0.1:{port}"
        assert (line["client_id"], line["software"]) == ("test", "soft 1.2")
        assert (line["api"], line["version"]) == ("Metadata", 12)
        assert "length 2147483646 of topics" in line["error"]


async def test_memory_that_is_used_up_is_told_as_that_and_closes_one_connection() -> None:
    async with serving() as s:
        for place in ("get_buffer", "received"):
            client = await s.client()
            await client.call(METADATA, 9, ALL_TOPICS)
            (link,) = s.server.listener._links

            def fail(*_: object) -> memoryview:
                raise MemoryError

            session = link._session
            assert session is not None
            link._session = cast("Any", SimpleNamespace(**{
                name: getattr(session, name)
                for name in ("get_buffer", "received", "closed", "writable", "stop", "is_busy")
            }))  # fmt: skip
            setattr(link._session, place, fail)
            with capture_logs() as logs:
                client.send(METADATA, 9, ALL_TOPICS)
                assert await client.is_closed()
            (line,) = [line for line in logs if line["event"] == "connection.closed"]
            assert (line["why"], line["log_level"]) == ("out of memory", "error")
            assert "exc_info" not in line
            await eventually(lambda: s.server.listener.connections == 0)
        other = await s.client()
        await other.call(METADATA, 9, ALL_TOPICS)


async def test_fault_in_a_handler_closes_one_connection() -> None:
    def fail(*_: object) -> Any:
        raise ZeroDivisionError

    async with talking() as (s, other):
        s.engine._services.records.reader.read_now = fail  # type: ignore[assignment, method-assign]
        s.engine._topic_admin.listed = fail  # type: ignore[method-assign]
        for key, version, tree in ((METADATA, 9, ALL_TOPICS), (FETCH, 11, fetch("t"))):
            client = await s.client()
            client.send(key, version, tree)
            assert await client.is_closed()
        await other.call(METADATA, 9, {"topics": []})


async def test_client_that_leaves_during_a_long_poll_frees_it() -> None:
    async with talking() as (s, client):
        client.send(FETCH, 11, fetch("t", max_wait=60_000))
        await eventually(lambda: len(s.reads) == 1)
        client.close()
        await eventually(lambda: not s.server.shared.tasks and not s.server.listener.connections)


# --- stop ----------------------------------------------------------------------------------------


async def test_stop_answers_long_polls_and_open_produces_then_closes() -> None:
    async with talking() as (s, idle):
        s.disk.hold()
        poller, producer = await s.client(), await s.client()
        producer.send(PRODUCE, 9, produce("t", one_batch(), acks=-1))
        await eventually(lambda: s.appended == 1)
        poller.send(FETCH, 11, fetch("t", max_wait=60_000))
        await eventually(lambda: len(s.reads) == 1)
        poller.send(METADATA, 9, ALL_TOPICS)  # never starts
        stopping = asyncio.ensure_future(s.server.stop(grace_seconds=10))
        assert (await poller.response(FETCH, 11))[1]["error_code"] == 0
        assert await poller.is_closed()
        assert await idle.is_closed()
        s.disk.release()
        assert (await producer.response(PRODUCE, 9))[1]["responses"]
        assert await producer.is_closed()
        await stopping


async def test_stop_does_not_wait_for_members_of_a_group() -> None:
    async with serving(groups=Groups(initial_rebalance_delay_ms=600_000)) as s:
        client = await s.client()
        asked = {"group_id": "g", "session_timeout": 10_000, "rebalance_timeout": 10_000}
        protocols = [{"name": "range", "metadata": b""}]
        client.send(11, 3, asked | {"protocol_type": "consumer", "protocols": protocols})
        await eventually(lambda: len(list(s.engine.groups.listings())) == 1)
        async with asyncio.timeout(300):
            await s.server.stop(grace_seconds=60)
        assert await client.is_closed()


async def test_stop_cuts_what_does_not_end_in_time() -> None:
    async with talking() as (s, client):
        s.disk.hold()
        client.send(PRODUCE, 9, produce("t", one_batch()))
        await eventually(lambda: s.appended == 1)
        await s.server.stop(grace_seconds=0.05)
        assert await client.is_closed()
        s.disk.release()
        await eventually(lambda: s.server.listener.budget.used == 0)
