"""DescribeClientQuotas and AlterClientQuotas, and what a quota does to requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.protocols.kafka.broker import Broker, each_version
from tests.protocols.kafka.keys import API_VERSIONS, CREATE_TOPICS, FETCH, METADATA, PRODUCE
from tests.protocols.kafka.messages import one_batch
from tests.protocols.kafka.trees import (
    Tree,
    create_topics,
    fetch,
    fetched,
    picked,
    produce,
    written,
)
from tests.protocols.kafka.wire import Serving, serving
from tidemill.engine.authorize import Principal
from tidemill.engine.security.quotas import ClientQuotas
from tidemill.state.security.types import DEFAULT, QuotaEntity

DESCRIBE, ALTER = 48, 49
EXACT, IS_DEFAULT, ANY = 0, 1, 2


def entity(**names: str | None) -> list[Tree]:
    kinds = {"user": "user", "client": "client-id", "ip": "ip"}
    return [{"entity_type": kinds[kind], "entity_name": name} for kind, name in names.items()]


def op(key: str, value: float | None) -> Tree:
    return {"key": key, "value": value or 0.0, "remove": value is None}


def alter(
    broker: Broker, *entries: tuple[list[Tree], Mapping[str, float | None]], **flags: Any
) -> list[int]:
    asked = [
        {"entity": each, "ops": [op(key, value) for key, value in values.items()]}
        for each, values in entries
    ]
    answer = broker.call(ALTER, 1, {"entries": asked, "validate_only": False, **flags})
    return [each["error_code"] for each in answer["entries"]]


def described(
    broker: Broker, *components: tuple[str, int, str | None], strict: bool = False, version: int = 1
) -> Any:
    asked = [
        {"entity_type": kind, "match_type": how, "match": match} for kind, how, match in components
    ]
    answer = broker.call(DESCRIBE, version, {"components": asked, "strict": strict})
    if answer["error_code"]:
        return answer["error_code"]
    return [
        (
            {each["entity_type"]: each["entity_name"] for each in entry["entity"]},
            {each["key"]: each["value"] for each in entry["values"]},
        )
        for entry in answer["entries"]
    ]


@each_version(DESCRIBE)
def test_quotas_are_set_described_and_removed(broker: Broker, version: int) -> None:
    assert described(broker, version=version) == []
    rate: dict[str, float | None] = {"producer_byte_rate": 1e6, "request_percentage": 50.0}
    assert alter(
        broker,
        (entity(user="ann"), rate),
        (entity(user="ann", client="app"), {"consumer_byte_rate": 5.0}),
        (entity(user=None), {"consumer_byte_rate": 7.0}),
        (entity(ip="10.0.0.1"), {"connection_creation_rate": 3.0}),
    ) == [0, 0, 0, 0]
    ann = ({"user": "ann"}, rate)
    app = ({"user": "ann", "client-id": "app"}, {"consumer_byte_rate": 5.0})
    default = ({"user": None}, {"consumer_byte_rate": 7.0})
    address = ({"ip": "10.0.0.1"}, {"connection_creation_rate": 3.0})
    assert described(broker, version=version) == [ann, app, default, address]
    assert described(broker, ("user", EXACT, "ann"), version=version) == [ann, app]
    assert described(broker, ("user", EXACT, "ann"), strict=True, version=version) == [ann]
    assert described(broker, ("user", IS_DEFAULT, None), version=version) == [default]
    assert described(broker, ("user", ANY, None), version=version) == [ann, app, default]
    assert alter(broker, (entity(user="ann"), dict.fromkeys(rate))) == [0]
    assert described(broker, version=version) == [app, default, address]


def test_a_validation_changes_nothing(broker: Broker) -> None:
    entry = (entity(user="ann"), {"producer_byte_rate": 1.0})
    assert alter(broker, entry, validate_only=True) == [0]
    assert described(broker) == []


@pytest.mark.parametrize(
    ("names", "values"),
    [
        ([], {"producer_byte_rate": 1.0}),
        (entity(user="a") * 2, {"producer_byte_rate": 1.0}),
        ([{"entity_type": "group", "entity_name": "g"}], {"producer_byte_rate": 1.0}),
        (entity(user=""), {"producer_byte_rate": 1.0}),
        (entity(user="x" * 2000), {"producer_byte_rate": 1.0}),
        (entity(user="a"), {"producer_byte_rate": -1.0}),
        (entity(user="a"), {"producer_byte_rate": float("nan")}),
        (entity(user="a"), {"speed": 1.0}),
        (entity(ip="10.0.0.1"), {"producer_byte_rate": 1.0}),
    ],
)
def test_an_invalid_quota_has_its_own_error(
    broker: Broker, names: list[Tree], values: dict[str, float | None]
) -> None:
    valid = entity(user="b"), {"request_percentage": 1.0}
    assert alter(broker, (names, values), valid) == [42, 0]
    assert [each for each, _ in described(broker)] == [{"user": "b"}]


@pytest.mark.parametrize(
    "components",
    [
        [("group", EXACT, "g")],
        [("user", EXACT, None)],
        [("user", ANY, "x")],
        [("user", 9, None)],
        [("user", ANY, None)] * 2,
        [("user", ANY, None)] * 100,
    ],
)
def test_an_invalid_filter_is_refused(broker: Broker, components: list[Any]) -> None:
    assert described(broker, *components) == 42


# --- what a quota does ---------------------------------------------------------------------------

ANYONE = QuotaEntity(DEFAULT)
SIZE = len(one_batch())


@asynccontextmanager
async def limited(named: QuotaEntity, **values: float) -> AsyncIterator[Serving]:
    """Serve a topic ``t`` with a quota."""
    async with serving() as s, asyncio.timeout(60):
        await s.make_topic("t")
        await s.engine.security.alter_quota(named, values)
        yield s


async def test_a_producer_above_its_quota_gets_a_throttle_time_and_is_not_read() -> None:
    async with limited(ANYONE, producer_byte_rate=SIZE * 1.3) as s:
        client = await s.client()
        first = await client.call(PRODUCE, 9, produce("t", one_batch()))
        began = time.monotonic()
        second = await client.call(PRODUCE, 9, produce("t", one_batch()))
        throttle_ms = second["throttle_time"]
        assert (first["throttle_time"], 100 < throttle_ms <= 1000) == (0, True)
        assert written(second) == [(0, 1)]
        await client.call(API_VERSIONS, 0, {})
        assert time.monotonic() - began >= throttle_ms / 1000 * 0.9


async def test_a_consumer_above_its_quota_gets_no_records_until_it_has_waited() -> None:
    async with limited(ANYONE, consumer_byte_rate=SIZE * 1.6) as s:
        client = await s.client()
        for _ in range(3):
            await client.call(PRODUCE, 9, produce("t", one_batch()))
        found = [await client.call(FETCH, 11, fetch("t")) for _ in range(3)]
        waits = [each["throttle_time"] for each in found]
        assert len(fetched(found[0])) == len(fetched(found[2])) == 3 * SIZE
        assert found[1]["responses"] == []
        assert (waits[0], waits[2]) == (0, 0)
        assert 500 < waits[1] <= 1000


async def test_a_request_above_the_quota_of_its_time_holds_its_client_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted: list[tuple[str, float]] = []

    def worked(self: ClientQuotas, client_id: str, seconds: float) -> int:
        counted.append((client_id, seconds))
        return 300 if len(counted) == 1 else 0

    monkeypatch.setattr(ClientQuotas, "worked", worked)
    async with limited(QuotaEntity(DEFAULT, DEFAULT), request_percentage=50) as s:
        client, other = await s.client(), await s.client()
        began = time.monotonic()
        await client.call(METADATA, 1, {"topics": None})
        later = asyncio.create_task(client.call(METADATA, 1, {"topics": None}))
        await other.call(API_VERSIONS, 0, {})
        assert not later.done()
        await later
        assert time.monotonic() - began >= 0.3
    assert len(counted) == 3
    assert all(0 < seconds < 10 for _, seconds in counted)


def test_processor_time_is_counted_as_percent_of_a_processor(broker: Broker) -> None:
    alter(broker, (entity(user=None), {"request_percentage": 50.0}))
    client = broker.door.quotas
    assert client.worked("app", 0.5) == 0
    assert client.worked("app", 0.25) == 500
    assert client.worked("another", 0.0) == 500  # the user's clients share the quota
    assert broker.engine.door(Principal("other")).quotas.worked("app", 0.1) == 0


async def test_partitions_above_the_quota_are_refused_or_slow_old_clients() -> None:
    async with limited(ANYONE, controller_mutation_rate=1.2) as s:
        client = await s.client()
        asked = create_topics("a", "b", "c", partitions=2)
        found = await client.call(CREATE_TOPICS, 6, asked)
        assert picked(found["topics"], "error_code") == [(0,), (89,), (89,)]
        assert 0 < found["throttle_time"] <= 1000
        old = await client.call(CREATE_TOPICS, 5, create_topics("d", "e", partitions=2))
        assert picked(old["topics"], "error_code") == [(0,), (0,)]
        assert old["throttle_time"] > 1000


async def test_connections_above_the_quota_of_their_address_wait() -> None:
    async with limited(QuotaEntity(ip=DEFAULT), connection_creation_rate=4.0) as s:
        began = time.monotonic()
        clients = [await s.client() for _ in range(7)]
        await asyncio.gather(*(client.call(API_VERSIONS, 0, {}) for client in clients))
        assert time.monotonic() - began > 0.5


def test_without_quotas_requests_are_handled_together(broker: Broker) -> None:
    """A quota of any producer makes each request be looked at; without one nothing is counted."""
    quotas = broker.engine.quotas
    assert not quotas.counts_writes
    for key, value, counts in (
        ("consumer_byte_rate", 1.0, False),
        ("producer_byte_rate", 1.0, True),
        ("producer_byte_rate", None, False),
    ):
        assert alter(broker, (entity(user=None), {key: value})) == [0]
        assert quotas.counts_writes is counts
