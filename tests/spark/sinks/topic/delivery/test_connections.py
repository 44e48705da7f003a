"""Connections of our own producer: TLS, idle ones, forked processes, a broker that restarts."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from tests.conftest import BrokerFactory
from tests.spark.conftest import Broker, broker_at
from tests.support.broker_process import BrokerProcess
from tests.support.certificates import self_signed
from tests.support.committed import values
from tidemill.errors import UnreachableError
from tidemill.kafka_client.connection import Connection
from tidemill.reading.fetch import FetchPlan, fetch
from tidemill.reading.ranges import OffsetRange
from tidemill.spark.sinks.topic.delivery import at_least_once, exactly_once
from tidemill.spark.sinks.topic.delivery.at_least_once import write_rows
from tidemill.spark.sinks.topic.delivery.exactly_once import Share, write_share
from tidemill.spark.sinks.topic.delivery.own import clusters


@pytest.fixture(autouse=True)
def edition(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    exactly_once.close_idle_writers()
    monkeypatch.setenv(at_least_once.SWITCH, "own")
    yield
    exactly_once.close_idle_writers()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each connection."""
    made: list[int] = []
    init = Connection.__init__

    def counted(*args: object) -> None:
        made.append(1)
        init(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(Connection, "__init__", counted)
    return made


def rows(*numbers: int) -> list[pa.RecordBatch]:
    return [pa.record_batch({"value": [b"%d" % number for number in numbers]})]


def test_tasks_share_connections_although_each_has_a_producer(
    tidemill_broker: Broker, opened: list[int]
) -> None:
    topic = tidemill_broker.topic()
    share = Share(f"sink-{uuid.uuid4().hex[:8]}", 0, 0, run="one")
    for batch_id in range(3):
        for task in range(20):
            there = replace(share, task=task, batch_id=batch_id)
            assert (
                write_share(rows(task), topic, tidemill_broker.kafka, there, marker_topic=topic)
                == 1
            )
    # One for records, one for other requests, and one to the server that is asked first.
    assert len(opened) <= 3
    assert len(values(tidemill_broker.bootstrap, topic)) == 60


def test_a_forked_process_makes_its_own_connections(tidemill_broker: Broker) -> None:
    topic = tidemill_broker.topic()
    write_rows(rows(1), topic, tidemill_broker.kafka)
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if write_rows(rows(2), topic, tidemill_broker.kafka) == 1 else 1)
        except BaseException:
            os._exit(2)
    write_rows(rows(3), topic, tidemill_broker.kafka)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert sorted(value or b"" for value in values(tidemill_broker.bootstrap, topic)) == [
        b"1",
        b"2",
        b"3",
    ]


def test_idle_connections_that_were_closed_are_replaced(tidemill_broker: Broker) -> None:
    topic = tidemill_broker.topic()
    share = Share(f"sink-{uuid.uuid4().hex[:8]}", 0, 0, run="one")
    for number in range(3):
        there = replace(share, batch_id=number)
        assert (
            write_share(rows(number), topic, tidemill_broker.kafka, there, marker_topic=topic) == 1
        )
        (idle, _) = next(iter(clusters._idle.values()))
        for brokers in (idle.data, idle.control):
            for connection in brokers._connections.values():
                connection._socket.shutdown(2)
    assert values(tidemill_broker.bootstrap, topic) == [b"0", b"1", b"2"]


@pytest.mark.crash
def test_rows_are_written_once_while_the_broker_is_killed_and_started(
    start_broker: BrokerFactory,
) -> None:
    process = start_broker()
    broker_at(process.bootstrap).topic(name="out")
    kafka = {"bootstrap.servers": process.bootstrap, "linger.ms": "0"}

    def interrupted() -> Iterator[pa.RecordBatch]:
        yield rows(*range(100))[0]
        process.kill()
        process.start()
        yield rows(*range(100, 200))[0]

    assert write_rows(interrupted(), "out", kafka) == 200
    assert values(process.bootstrap, "out") == [b"%d" % number for number in range(200)]
    share = Share("sink", 0, 0)
    assert write_share(rows(1), "out", kafka, share, marker_topic="out") == 1


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl program")
def test_tls(tmp_path: Path) -> None:
    cert, key = self_signed(tmp_path)
    settings = {"kafka.tls_cert": str(cert), "kafka.tls_key": str(key)}
    with BrokerProcess(tmp_path / "broker", settings=settings) as broker:
        servers = {"bootstrap.servers": broker.bootstrap, "security.protocol": "ssl"}
        trust = {**servers, "ssl.ca.location": str(cert)}
        broker_at(broker.bootstrap, **trust).topic(name="t")
        large = pa.record_batch({"value": [bytes(1000)] * 3000})
        assert write_rows([large], "t", trust) == 3000
        share = Share("sink", 0, 0)
        assert write_share(rows(1, 2), "t", trust, share, marker_topic="t") == 2
        found = fetch(OffsetRange("t", 0, 0, 3002), FetchPlan(trust))
        assert sum(each.num_rows for each in found) == 3002
        with pytest.raises(UnreachableError, match=r"rejected .*certificate is not valid here"):
            write_rows(rows(1), "t", servers)
        with pytest.raises(UnreachableError, match=r"rejected .*certificate is not valid here"):
            write_share(rows(1), "t", servers, replace(share, task=1), marker_topic="t")
