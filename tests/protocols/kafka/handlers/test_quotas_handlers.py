"""DescribeClientQuotas and AlterClientQuotas, and what a quota does to requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.protocols.kafka.broker import Broker, versions
from tests.protocols.kafka.messages import one_batch
from tests.protocols.kafka.wire import Client
from tests.support.faultyfs import FaultyFileSystem
from tidemill.clock import ManualClock
from tidemill.engine.api import NewTopic
from tidemill.engine.authorize import Principal
from tidemill.engine.engine import Engine
from tidemill.engine.security.quotas import ClientQuotas
from tidemill.protocols.kafka.server import KafkaServer
from tidemill.protocols.kafka.settings import KafkaListener
from tidemill.settings import Settings
from tidemill.state.security.types import DEFAULT, QuotaEntity

DESCRIBE, ALTER = 48, 49
EXACT, IS_DEFAULT, ANY = 0, 1, 2


@pytest.fixture
def broker() -> Iterator[Broker]:
    broker = Broker()
    yield broker
    broker.close()


def entity(**names: str | None) -> list[dict[str, Any]]:
    kinds = {"user": "user", "client": "client-id", "ip": "ip"}
    return [{"entity_type": kinds[kind], "entity_name": name} for kind, name in names.items()]


def op(key: str, value: float | None) -> dict[str, Any]:
    return {"key": key, "value": value or 0.0, "remove": value is None}


def alter(
    broker: Broker, *entries: tuple[list[dict[str, Any]], Mapping[str, float | None]], **flags: Any
) -> list[int]:
    tree = {
        "entries": [
            {"entity": each, "ops": [op(key, value) for key, value in values.items()]}
            for each, values in entries
        ],
        "validate_only": False,
        **flags,
    }
    return [each["error_code"] for each in broker.call(ALTER, 1, tree)["entries"]]


def described(
    broker: Broker, *components: tuple[str, int, str | None], strict: bool = False, version: int = 1
) -> Any:
    tree = {
        "components": [
            {"entity_type": kind, "match_type": how, "match": match}
            for kind, how, match in components
        ],
        "strict": strict,
    }
    answer = broker.call(DESCRIBE, version, tree)
    if answer["error_code"]:
        return answer["error_code"]
    return [
        (
            {each["entity_type"]: each["entity_name"] for each in entry["entity"]},
            {each["key"]: each["value"] for each in entry["values"]},
        )
        for entry in answer["entries"]
    ]


@pytest.mark.parametrize("version", versions(DESCRIBE))
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
    broker: Broker, names: list[dict[str, Any]], values: dict[str, float | None]
) -> None:
    assert alter(broker, (names, values), (entity(user="b"), {"request_percentage": 1.0})) == [
        *(42, 0)
    ]
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


async def served(quotas: dict[QuotaEntity, dict[str, float]], use: Any) -> Any:
    """Run a broker with quotas, and use a client of it."""
    settings = Settings.model_validate({"data_dir": "/tmp", "sections": (KafkaListener(port=0),)})
    engine = Engine(settings, fs=FaultyFileSystem())
    await engine.start()
    server = KafkaServer(engine, settings)
    address = await server.start()
    try:
        await engine.topics.create([NewTopic("t", 1)])
        for named, values in quotas.items():
            await engine.security.alter_quota(named, values)
        async with asyncio.timeout(60):
            return await use(address)
    finally:
        await server.stop(grace_seconds=0)
        await engine.stop()


def produce() -> dict[str, Any]:
    partition = {"index": 0, "records": one_batch()}
    topic = {"name": "t", "partition_data": [partition]}
    return {"transactional_id": None, "acks": -1, "timeout": 1000, "topic_data": [topic]}


def fetch(max_wait: int = 0) -> dict[str, Any]:
    part = {
        "partition": 0,
        "current_leader_epoch": -1,
        "fetch_offset": 0,
        "partition_max_bytes": 9999,
    }
    return {
        "replica_id": -1,
        "max_wait": max_wait,
        "min_bytes": 0,
        "max_bytes": 9999,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic": "t", "partitions": [part]}],
        "rack_id": "",
    }


ANYONE = QuotaEntity(DEFAULT)
SIZE = len(one_batch())


async def test_a_producer_above_its_quota_gets_a_throttle_time_and_is_not_read() -> None:
    async def use(address: Any) -> None:
        client = await Client.connect(address)
        first = await client.call(0, 9, produce())
        began = time.monotonic()
        second = await client.call(0, 9, produce())
        throttle_ms = second["throttle_time"]
        assert (first["throttle_time"], 100 < throttle_ms <= 1000) == (0, True)
        assert second["responses"][0]["partition_responses"][0]["error_code"] == 0
        await client.call(18, 0, {})
        assert time.monotonic() - began >= throttle_ms / 1000 * 0.9
        client.close()

    await served({ANYONE: {"producer_byte_rate": SIZE * 1.3}}, use)


async def test_a_consumer_above_its_quota_gets_no_records_until_it_has_waited() -> None:
    async def use(address: Any) -> None:
        client = await Client.connect(address)
        for _ in range(3):
            await client.call(0, 9, produce())
        found = [await client.call(1, 11, fetch()) for _ in range(3)]
        sizes = [bytes_of(each) for each in found]
        waits = [each["throttle_time"] for each in found]
        assert sizes == [3 * SIZE, 0, 3 * SIZE]
        assert (waits[0], waits[2]) == (0, 0)
        assert 500 < waits[1] <= 1000
        client.close()

    await served({ANYONE: {"consumer_byte_rate": SIZE * 1.6}}, use)


def bytes_of(answer: dict[str, Any]) -> int:
    return sum(
        len(partition["records"] or b"")
        for topic in answer["responses"]
        for partition in topic["partitions"]
    )


async def test_a_request_above_the_quota_of_its_time_holds_its_client_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted: list[tuple[str, float]] = []

    def worked(self: ClientQuotas, client_id: str, seconds: float) -> int:
        counted.append((client_id, seconds))
        return 300 if len(counted) == 1 else 0

    monkeypatch.setattr(ClientQuotas, "worked", worked)

    async def use(address: Any) -> None:
        client, other = await Client.connect(address), await Client.connect(address)
        began = time.monotonic()
        await client.call(3, 1, {"topics": None})
        later = asyncio.create_task(client.call(3, 1, {"topics": None}))
        await other.call(18, 0, {})
        assert not later.done()
        await later
        assert time.monotonic() - began >= 0.3
        client.close()
        other.close()

    await served({QuotaEntity(DEFAULT, DEFAULT): {"request_percentage": 50}}, use)
    assert len(counted) == 3
    assert all(0 < seconds < 10 for _, seconds in counted)


async def test_processor_time_is_counted_as_percent_of_a_processor() -> None:
    broker = Engine(
        Settings.model_validate({"data_dir": "/tmp"}), ManualClock(), FaultyFileSystem()
    )
    await broker.start()
    try:
        await broker.security.alter_quota(ANYONE, {"request_percentage": 50.0})
        client = broker.door().quotas
        assert client.worked("app", 0.5) == 0
        assert client.worked("app", 0.25) == 500
        assert client.worked("another", 0.0) == 500  # the user's clients share the quota
        assert broker.door(Principal("other")).quotas.worked("app", 0.1) == 0
    finally:
        await broker.stop()


async def test_partitions_above_the_quota_are_refused_or_slow_old_clients() -> None:
    async def use(address: Any) -> None:
        client = await Client.connect(address)

        def create(*names: str) -> dict[str, Any]:
            topics = [
                {
                    "name": name,
                    "num_partitions": 2,
                    "replication_factor": 1,
                    "assignments": [],
                    "configs": [],
                }
                for name in names
            ]
            return {"topics": topics, "timeout": 1000, "validate_only": False}

        found = await client.call(19, 6, create("a", "b", "c"))
        assert [each["error_code"] for each in found["topics"]] == [0, 89, 89]
        assert 0 < found["throttle_time"] <= 1000
        old = await client.call(19, 5, create("d", "e"))
        assert [each["error_code"] for each in old["topics"]] == [0, 0]
        assert old["throttle_time"] > 1000
        client.close()

    await served({ANYONE: {"controller_mutation_rate": 1.2}}, use)


async def test_connections_above_the_quota_of_their_address_wait() -> None:
    async def use(address: Any) -> None:
        began = time.monotonic()
        clients = [await Client.connect(address) for _ in range(7)]
        await asyncio.gather(*(client.call(18, 0, {}) for client in clients))
        assert time.monotonic() - began > 0.5
        for client in clients:
            client.close()

    await served({QuotaEntity(ip=DEFAULT): {"connection_creation_rate": 4.0}}, use)


async def test_without_quotas_requests_are_handled_together() -> None:
    """A quota of any producer makes each request be looked at; without one nothing is counted."""
    settings = Settings.model_validate({"data_dir": "/tmp"})
    engine = Engine(settings, fs=FaultyFileSystem())
    await engine.start()
    try:
        assert not engine.quotas.counts_writes
        await engine.security.alter_quota(ANYONE, {"consumer_byte_rate": 1.0})
        assert not engine.quotas.counts_writes
        await engine.security.alter_quota(ANYONE, {"producer_byte_rate": 1.0})
        assert engine.quotas.counts_writes
        await engine.security.alter_quota(ANYONE, {"producer_byte_rate": None})
        assert not engine.quotas.counts_writes
    finally:
        await engine.stop()
