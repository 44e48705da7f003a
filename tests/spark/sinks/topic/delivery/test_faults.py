"""Lost requests, lost responses and temporary errors: each row is written once, in order."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from tests.contracts.deliver import batch
from tests.spark.conftest import Broker
from tests.support.committed import read_to_end, values
from tidemill.errors import UnreachableError
from tidemill.kafka_client.connection import Connection
from tidemill.kafka_client.errors import ConnectionFailedError
from tidemill.kafka_client.producing import transactional
from tidemill.kafka_codec import client_hot
from tidemill.kafka_codec import declared as apis
from tidemill.spark.errors import DeliveryError
from tidemill.spark.sinks.topic.delivery import at_least_once, exactly_once
from tidemill.spark.sinks.topic.delivery.exactly_once import Share, write_share

TRANSACTIONAL = (
    apis.FIND_COORDINATOR,
    apis.INIT_PRODUCER_ID,
    apis.OFFSET_FETCH,
    apis.ADD_OFFSETS,
    apis.COMMIT_OFFSETS,
    apis.ADD_PARTITIONS,
    apis.PRODUCE,
    apis.END_TRANSACTION,
)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(at_least_once.SWITCH, "own")
    yield
    exactly_once.close_idle_writers()
    at_least_once.close_idle_producers()


Parse = Callable[[memoryview], Any]


class Faults:
    """Loses requests before they are sent, or their responses.

    Args:
        loses: Is called with the number of a request, and whether its response has come.
    """

    def __init__(self, patch: pytest.MonkeyPatch, loses: Callable[[int, bool], bool]) -> None:
        self.lost = 0
        send, receive = Connection.send, Connection.receive
        sent: dict[int, list[int]] = {}

        def losing_send(connection: Connection, api: int, *body: Any) -> None:
            if loses(api, False):
                self.lost += 1
                raise ConnectionFailedError("the request was lost")
            sent.setdefault(id(connection), []).append(api)
            send(connection, api, *body)

        def losing_receive(connection: Connection, timeout_s: float, parse: Parse) -> Any:
            found: Any = receive(connection, timeout_s, parse)
            if loses(sent[id(connection)].pop(0), True):
                self.lost += 1
                raise ConnectionFailedError("the response was lost")
            return found

        def closed(connection: Connection) -> None:
            sent.pop(id(connection), None)
            close(connection)

        close = Connection.close
        patch.setattr(Connection, "send", losing_send)
        patch.setattr(Connection, "receive", losing_receive)
        patch.setattr(Connection, "close", closed)


def numbers(count: int, partitions: int, rows: int = 500) -> list[pa.RecordBatch]:
    """Return numbered rows, of which each partition gets every so many."""
    return [
        batch(
            value=pa.array([b"%d" % i for i in range(first, min(first + rows, count))]),
            partition=pa.array(
                [i % partitions for i in range(first, min(first + rows, count))], pa.int32()
            ),
        )
        for first in range(0, count, rows)
    ]


@pytest.mark.parametrize("seed", range(4))
def test_rows_are_written_once_and_in_order_over_a_bad_network(
    tidemill_broker: Broker, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    topic, dice = tidemill_broker.topic(3), random.Random(seed)
    faults = Faults(
        monkeypatch,
        lambda api, _: api == apis.PRODUCE and dice.random() < 0.1,
    )
    settings = {**tidemill_broker.kafka, "batch.size": "700", "retry.backoff.ms": "1"}
    count = 12_000
    assert at_least_once.write_rows(numbers(count, 3), topic, settings) == count
    assert faults.lost > 5
    for partition in range(3):
        found = [
            int(value or b"-1") for value in values(tidemill_broker.bootstrap, topic, partition)
        ]
        assert found == list(range(partition, count, 3))


@pytest.mark.parametrize("is_response", [False, True], ids=["request", "response"])
@pytest.mark.parametrize("api", TRANSACTIONAL)
def test_a_transaction_survives_the_loss_of_each_message(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, api: int, *, is_response: bool
) -> None:
    topic = broker.topic(2)
    lost: list[int] = []

    def loses(sent: int, has_response: bool) -> bool:
        if sent != api or has_response != is_response or len(lost) > 1:
            return False
        lost.append(sent)
        return True

    faults = Faults(monkeypatch, loses)
    share = Share(f"sink-{uuid.uuid4().hex[:8]}", 0, 0)
    kafka = {"bootstrap.servers": broker.bootstrap, "batch.size": "700"}
    batches = numbers(400, 2)
    assert write_share(batches, topic, kafka, share, marker_topic=topic) == 400
    assert faults.lost == 2
    exactly_once.close_idle_writers()
    assert write_share(batches, topic, kafka, share, marker_topic=topic) == 0
    for partition in range(2):
        found = [int(value or b"-1") for value in values(broker.bootstrap, topic, partition)]
        assert found == list(range(partition, 400, 2))


def test_a_network_that_stays_bad_ends_the_transaction_in_time(
    tidemill_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = tidemill_broker.topic()
    monkeypatch.setattr(exactly_once, "TRANSACTION_TIMEOUT_MS", 1000)
    Faults(monkeypatch, lambda api, _: api == apis.END_TRANSACTION)
    monkeypatch.setattr(transactional, "ABORT_S", 0.1)
    share = Share(f"sink-{uuid.uuid4().hex[:8]}", 0, 0)
    with pytest.raises(UnreachableError, match=r"in time to commit batch 0: .*lost"):
        write_share(numbers(5, 1), topic, tidemill_broker.kafka, share, marker_topic=topic)


@pytest.mark.parametrize("api", [apis.ADD_PARTITIONS, apis.PRODUCE])
def test_an_interruption_between_request_and_response_aborts_the_transaction(
    tidemill_broker: Broker, monkeypatch: pytest.MonkeyPatch, api: int
) -> None:
    topic = tidemill_broker.topic()
    share = Share(f"sink-{uuid.uuid4().hex[:8]}", 0, 0)
    with pytest.MonkeyPatch.context() as patch:
        interrupted: list[int] = []

        def loses(sent: int, has_response: bool) -> bool:
            if sent == api and not interrupted:
                interrupted.append(sent)
                patch.setattr(Connection, "receive", interrupt)
            return False

        receive = Connection.receive

        def interrupt(connection: Connection, timeout_s: float, parse: Parse) -> Any:
            patch.setattr(Connection, "receive", receive)
            patch.setattr(Connection, "send", send)
            raise KeyboardInterrupt

        send = Connection.send
        Faults(patch, loses)
        with pytest.raises(KeyboardInterrupt):
            write_share(numbers(5, 1), topic, tidemill_broker.kafka, share, marker_topic=topic)
    assert write_share(numbers(5, 1), topic, tidemill_broker.kafka, share, marker_topic=topic) == 5
    assert len(values(tidemill_broker.bootstrap, topic)) == 5


class Codes:
    """Replaces the codes of the first responses to Produce. The records were written."""

    def __init__(self, patch: pytest.MonkeyPatch, *codes: int) -> None:
        self.left = list(codes)
        parse = client_hot.parse_produce

        def replaced(*args: Any) -> dict[tuple[str, int], int]:
            found = parse(*args)
            if not self.left:
                return found
            code = self.left.pop(0)
            return {partition: code or old for partition, old in found.items()}

        patch.setattr(client_hot, "parse_produce", replaced)


@pytest.mark.parametrize("codes", [(6,), (3, 5), (0, 7, 19), (0, 45, 0, 6), (46,)])
def test_temporary_errors_are_retried(
    tidemill_broker: Broker, monkeypatch: pytest.MonkeyPatch, codes: tuple[int, ...]
) -> None:
    topic = tidemill_broker.topic()
    injected = Codes(monkeypatch, *codes)
    kafka = {**tidemill_broker.kafka, "batch.size": "900", "retry.backoff.ms": "1"}
    assert at_least_once.write_rows(numbers(2000, 1), topic, kafka) == 2000
    assert not injected.left
    assert values(tidemill_broker.bootstrap, topic) == [b"%d" % i for i in range(2000)]


@pytest.mark.parametrize(
    ("codes", "text"),
    [
        ((87,), "record"),
        ((29,), "authoriz"),
        ((45,) * 9, "sequence"),
        ((47,), "epoch"),
        ((90,), "fenced|newer"),
    ],
)
def test_permanent_errors_are_named(
    tidemill_broker: Broker, monkeypatch: pytest.MonkeyPatch, codes: tuple[int, ...], text: str
) -> None:
    topic = tidemill_broker.topic()
    Codes(monkeypatch, *codes)
    kafka = {"bootstrap.servers": tidemill_broker.bootstrap, "retry.backoff.ms": "1"}
    with pytest.raises(
        DeliveryError, match=f"(?i)not accepted, the first for topic {topic}.*{text}"
    ):
        at_least_once.write_rows(numbers(10, 1), topic, kafka)


def test_a_topic_with_more_partitions_than_before_is_asked_for_again(
    tidemill_broker: Broker,
) -> None:
    from confluent_kafka.admin import NewPartitions

    topic = tidemill_broker.topic(1)
    at_least_once.write_rows(numbers(1, 1), topic, tidemill_broker.kafka)
    tidemill_broker.admin.create_partitions([NewPartitions(topic, 3)])[topic].result(60)
    row = batch(value=pa.array([b"late"]), partition=pa.array([2], pa.int32()))
    assert at_least_once.write_rows([row], topic, tidemill_broker.kafka) == 1
    assert values(tidemill_broker.bootstrap, topic, 2) == [b"late"]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_records_are_read_by_librdkafka(broker: Broker, codec: str) -> None:
    topic = broker.topic()
    kafka = {"bootstrap.servers": broker.bootstrap, "compression.type": codec}
    rows = [b"%d" % (i % 10) * 50 for i in range(5000)]
    assert at_least_once.write_rows([batch(value=pa.array(rows))], topic, kafka) == 5000
    assert [each.value() for each in read_to_end(broker.bootstrap, topic)] == rows


def test_many_topics_share_requests(
    tidemill_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = [tidemill_broker.topic() for _ in range(20)]
    requests: list[int] = []

    def counts(api: int, _: bool) -> bool:
        requests.append(api)
        return False

    Faults(monkeypatch, counts)
    rows = batch(value=pa.array([b"%d" % i for i in range(400)]), topic=pa.array(topics * 20))
    assert at_least_once.write_rows([rows], None, tidemill_broker.kafka) == 400
    assert requests.count(apis.PRODUCE) == 2  # one, and its response
    for number, topic in enumerate(topics):
        found = values(tidemill_broker.bootstrap, topic)
        assert found == [b"%d" % i for i in range(number, 400, 20)]


def test_many_partitions_share_requests(tidemill_broker: Broker) -> None:
    topic = tidemill_broker.topic(200)
    keys = [b"%d" % i for i in range(5000)]
    rows = batch(value=pa.array(keys), key=pa.array(keys))
    assert at_least_once.write_rows([rows], topic, tidemill_broker.kafka) == 5000
    found = [len(values(tidemill_broker.bootstrap, topic, each)) for each in (0, 57, 199)]
    assert all(0 < each < 60 for each in found)
