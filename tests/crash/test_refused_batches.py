"""Real clients with five batches in flight, and a disk that refuses single writes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tests.conftest import BrokerFactory
from tests.crash.disk import disk
from tests.crash.load import read_all
from tests.interop.java_client import JavaClient
from tests.support.broker_process import BrokerProcess
from tests.support.effort import in_nightly_runs
from tests.support.librdkafka import ready_for_id
from tests.support.processes import poll_until, skip_if_missing
from tests.support.topics import create

pytestmark = [pytest.mark.crash]

RECORDS = 40
FIRST_WRITES = "1", "1 2 3"
"""Of a partition that does not know its producer."""
LATER_WRITES = "7", "1 5 9"


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> JavaClient:
    """Run Java programs; skip if there is no JDK or no jar."""
    with skip_if_missing():
        return JavaClient(tmp_path_factory.mktemp("java"))


def start(start_broker: BrokerFactory, folder: Path, refused: str) -> BrokerProcess:
    broker = start_broker(env=disk(folder, refused=f"b-0 {refused}"), fresh=True)
    create(broker.bootstrap, "b")
    return broker


def send(producer: Producer, meanwhile: Callable[[], object] = lambda: None) -> list[int]:
    """Send numbers, one in each batch. Return those that were reported as delivered."""
    delivered = []

    def report(error: object, message: Message) -> None:
        if error is None:
            delivered.append(int(message.value() or b""))

    for number in range(RECORDS):
        producer.produce("b", b"%d" % number, on_delivery=report)
        producer.poll(0)
    meanwhile()
    assert producer.flush(60) == 0
    return delivered


def send_in_transaction(producer: Producer) -> None:
    """Send the numbers until the transaction has failed. ``commit`` waits for the answers."""
    try:
        for number in range(RECORDS):
            producer.produce("b", b"%d" % number)
            producer.poll(0)
    except KafkaException as error:
        if error.args[0].code() != KafkaError._STATE:
            raise


def commit(producer: Producer) -> None:
    """Commit a transaction.

    If it fails meanwhile, librdkafka neither sends nor drops the messages that it has put back for
    a retry. ``flush`` and ``commit_transaction`` wait for them until their timeout; only the next
    ``commit_transaction`` says that the transaction must be aborted. A long timeout would let the
    broker abort it first, and fence the producer.
    """
    deadline = time.monotonic() + 60
    while True:
        try:
            producer.commit_transaction(1)
            return
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise


def read(broker: BrokerProcess) -> list[int]:
    """Return what a reader of committed records finds, in the order of the log."""
    return [int(value or b"") for _, value in sorted(read_all(broker.bootstrap, {"b": 1}).items())]


def config(broker: BrokerProcess, **more: str) -> dict[str, object]:
    return {
        "bootstrap.servers": broker.bootstrap,
        "enable.idempotence": True,
        "linger.ms": 0,
        "batch.num.messages": 1,
        "max.in.flight.requests.per.connection": 5,
        "retry.backoff.ms": 20,
        "reconnect.backoff.ms": 10,
        "reconnect.backoff.max.ms": 100,
        "log_level": 0,
        **more,
    }


@pytest.mark.parametrize("refused", [*FIRST_WRITES, *LATER_WRITES])
def test_what_librdkafka_reports_as_delivered_is_there_once_and_in_order(
    start_broker: BrokerFactory, tmp_path: Path, refused: str
) -> None:
    broker = start(start_broker, tmp_path, refused)
    delivered = send(ready_for_id(Producer(config(broker))))
    assert delivered == list(range(RECORDS))
    assert read(broker) == delivered


@pytest.mark.parametrize("refused", [*in_nightly_runs("1"), "1 2 3 4 5"])
def test_a_restart_between_a_refusal_and_its_repetition_makes_no_hole(
    start_broker: BrokerFactory, tmp_path: Path, refused: str
) -> None:
    """A rejected batch is known in memory only, so a restart forgets it.

    Clients send all batches without an answer again, in order. The disk refuses the first write of
    the new process, too.
    """
    broker = start(start_broker, tmp_path, refused)

    def restart() -> None:
        poll_until(lambda: "no space left" in broker.log(), 20, "the disk refuses")
        broker.kill()
        broker.start()

    producer = ready_for_id(Producer(config(broker, **{"retry.backoff.ms": "1000"})))
    delivered = send(producer, restart)
    assert delivered == list(range(RECORDS))
    assert read(broker) == delivered


@pytest.mark.parametrize("refused", [*FIRST_WRITES, *LATER_WRITES])
def test_what_librdkafka_commits_is_whole(
    start_broker: BrokerFactory, tmp_path: Path, refused: str
) -> None:
    broker = start(start_broker, tmp_path, refused)
    producer = Producer(config(broker, **{"transactional.id": "x"}))
    ready_for_id(producer).init_transactions(60)
    for _ in range(3):
        producer.begin_transaction()
        send_in_transaction(producer)
        try:
            commit(producer)
            break
        except KafkaException as error:
            if refused in FIRST_WRITES or not error.args[0].txn_requires_abort():
                raise
            # The broker knows the producer: librdkafka asks for a new epoch, and to do it again.
            producer.abort_transaction(60)
    else:
        pytest.fail("no transaction could be committed")
    assert read(broker) == list(range(RECORDS))


@pytest.mark.parametrize("refused", ["1 5 9", *in_nightly_runs("1", "1 2 3", "7")])
@pytest.mark.parametrize("kind", ["idempotent", "transactional"])
def test_what_the_java_client_reports_as_delivered_is_there_once_and_in_order(
    start_broker: BrokerFactory, tmp_path: Path, java: JavaClient, refused: str, kind: str
) -> None:
    broker = start(start_broker, tmp_path, refused)
    java.run("Pipelined", kind, broker.bootstrap)
    assert read(broker) == list(range(RECORDS))
