"""A broker under load is killed at random moments, and its disk loses what was not synced."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.conftest import BrokerFactory
from tests.crash.ledger import Ledger
from tests.crash.load import Load, read_all
from tests.crash.power import Power, lose_an_index
from tests.support import topics
from tests.support.broker_process import BrokerProcess
from tests.support.effort import chosen_seed, rounds
from tests.support.processes import poll_until
from tidemill.log.format.batch import iter_headers

pytestmark = [pytest.mark.crash, pytest.mark.disk, pytest.mark.separate]

KILLS = rounds("CRASH_KILLS", 10, nightly=500)
PARTITIONS = 3
SETTINGS = {
    "log.checkpoint_interval_ms": "100",
    "log.cleaner_backoff_ms": "100",
    "log.retention_check_ms": "200",
}
SMALL_SEGMENTS = {"segment.bytes": "1048576", "retention.ms": "-1"}


def create(broker: BrokerProcess, name: str, partitions: int, **config: str) -> None:
    topics.create(broker.bootstrap, name, partitions=partitions, **SMALL_SEGMENTS | config)


def kill_and_restart(
    broker: BrokerProcess,
    kills: int,
    dice: random.Random,
    progress: Callable[[], int],
    between: Callable[[], None] = lambda: None,
) -> None:
    """Kill the broker, damage what may be lost, and restart it, several times.

    Most kills come after clients have got some more answers; some come right after the start,
    before the clients are connected.
    """
    for _ in range(kills):
        if dice.random() < 0.8:
            wanted = progress() + dice.randint(1, 400)
            poll_until(lambda n=wanted: progress() >= n, 30, "clients get answers")  # type: ignore[misc]
        broker.kill()
        between()
        broker.start()


@contextmanager
def explained(broker: BrokerProcess, seed: int, notes: list[str]) -> Iterator[None]:
    """Add to a failure what is needed to understand it."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{error}\nseed {seed}; {notes[-5:]}\n{broker.log()}") from error


def test_what_was_synced_in_the_journal_only_is_restored(
    start_broker: BrokerFactory, tmp_path: Path
) -> None:
    power = Power(start_broker, tmp_path)
    broker = power.broker
    create(broker, "safe", 1)
    # One after the other, so that the segment is synced for the first.
    records = [b"p:%d:" % number for number in range(20)]
    topics.write(broker.bootstrap, "safe", *records, one_by_one=True)
    broker.kill()
    log, synced = power.last_segment("safe-0")
    ends = [position + header.size for position, header in iter_headers(log.read_bytes())]
    assert ends.index(synced) < len(ends) - 10, "most records are in the journal only"
    os.truncate(log, synced)
    broker.start()
    found = read_all(broker.bootstrap, {"safe": 1})
    assert list(found.values()) == records


def test_what_was_synced_in_the_journal_only_survives_the_end_of_the_journal(
    start_broker: BrokerFactory, tmp_path: Path
) -> None:
    """The disk becomes full for the journal, and then the power fails."""
    power = Power(start_broker, tmp_path)
    broker = power.broker
    for topic in ("first", "second"):
        create(broker, topic, 1)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all"})
    for number in range(20):
        producer.produce("first", b"p:%d:" % number, partition=0)
        assert producer.flush(60) == 0
    producer.produce("second", b"p:0:", partition=0)  # its files are new, so it is synced
    assert producer.flush(60) == 0
    power.let_journal_fail(True)
    producer.produce("second", b"p:1:", partition=0)
    assert producer.flush(60) == 0
    assert "journal.closed" in broker.log()
    broker.kill()
    for topic in ("first-0", "second-0"):
        os.truncate(*power.last_segment(topic))
    power.let_journal_fail(False)
    broker.start()
    assert list(read_all(broker.bootstrap, {"first": 1}).values()) == [
        b"p:%d:" % number for number in range(20)
    ]
    assert list(read_all(broker.bootstrap, {"second": 1}).values()) == [b"p:0:", b"p:1:"]


def test_nothing_promised_is_lost_when_the_broker_is_killed(
    start_broker: BrokerFactory, tmp_path: Path
) -> None:
    seed = chosen_seed(6)
    dice = random.Random(seed)
    ledger = Ledger()
    power = Power(start_broker, tmp_path, SETTINGS)
    broker = power.broker
    create(broker, "safe", PARTITIONS)
    load = Load(broker.bootstrap, ledger)
    # This producer survives all restarts: the log must remember its sequence numbers.
    load.produce("idem", "safe", PARTITIONS, promised=True, **{"enable.idempotence": True})
    load.produce(
        "plain", "safe", PARTITIONS, promised=True, acks="all", **{"message.send.max.retries": 0}
    )
    load.produce(
        "fast", "safe", PARTITIONS, promised=False, acks=1, **{"message.send.max.retries": 0}
    )
    load.read("safe", PARTITIONS)
    load.commit("committer", "safe")
    notes: list[str] = []
    journal_fails_at = 1 << 60  # so many answers

    def progress() -> int:
        answers = len(ledger.acknowledged)
        if answers >= journal_fails_at:
            power.let_journal_fail(True)
        return answers

    def damage() -> None:
        nonlocal journal_fails_at
        notes.extend(power.cut(dice))
        power.let_journal_fail(False)
        later = dice.choice([0, dice.randint(0, 200), 1 << 60, 1 << 60])
        journal_fails_at = len(ledger.acknowledged) + later
        if dice.random() < 0.3:
            folder = broker.data_dir / f"safe-{dice.randrange(PARTITIONS)}"
            notes.append(lose_an_index(folder, dice))

    with explained(broker, seed, notes):
        try:
            kill_and_restart(broker, KILLS, dice, progress, damage)
        finally:
            load.stop()
        found = {k: v for k, v in read_all(broker.bootstrap, {"safe": PARTITIONS}).items() if v}
        assert len(ledger.acknowledged) > KILLS
        assert len(ledger.seen) > KILLS
        assert any("synced up to" in note for note in notes), "the damage never hit anything"
        idempotent = {k: v for k, v in found.items() if v.startswith(b"idem:")}
        assert len(set(idempotent.values())) == len(idempotent), "written twice"
        ledger.check(found, duplicates=False)
        assert committed_offset(broker, "committer", "safe") >= ledger.committed["committer"]


def committed_offset(broker: BrokerProcess, group: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    try:
        (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=60)
        return int(found.offset)
    finally:
        consumer.close()


def test_compaction_loses_no_key_when_the_broker_is_killed(start_broker: BrokerFactory) -> None:
    seed = chosen_seed(7)
    dice = random.Random(seed)
    ledger = Ledger()
    broker = start_broker(settings=SETTINGS)
    create(broker, "keyed", 1, **{"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"})
    load = Load(broker.bootstrap, ledger)
    for i in range(3):
        load.produce(f"p{i}", "keyed", 1, promised=True, **{"compression.type": "lz4"})
    try:
        kill_and_restart(broker, max(10, KILLS // 4), dice, lambda: len(ledger.acknowledged))
    finally:
        load.stop()
    poll_until(
        lambda: len(read_all(broker.bootstrap, {"keyed": 1})) < len(ledger.acknowledged),
        60,
        "something is compacted",
        interval=0.3,
    )
    found = read_all(broker.bootstrap, {"keyed": 1})
    latest: dict[bytes, int] = {}
    for place, value in ledger.acknowledged.items():
        key = value.split(b":", 2)[1]
        group = b"%d" % (int(key) % 50)
        latest[group] = max(latest.get(group, -1), place[2])
    kept = {place[2] for place in found}
    lost = {key: offset for key, offset in latest.items() if offset not in kept}
    # The last record of a key may have been replaced by one whose acknowledgement got lost.
    newest = {}
    for place, stored in found.items():
        assert stored is not None
        newest[b"%d" % (int(stored.split(b":", 2)[1]) % 50)] = place[2]
    for key, offset in lost.items():
        assert newest.get(key, -1) > offset, f"key {key!r} lost offset {offset}; seed {seed}"


def test_a_killed_broker_leaves_a_log_that_says_what_was_cut(
    start_broker: BrokerFactory, tmp_path: Path
) -> None:
    broker = start_broker()
    create(broker, "t", 1)
    load = Load(broker.bootstrap, Ledger())
    load.produce("p", "t", 1, promised=True)
    log = broker.data_dir / "t-0" / "00000000000000000000.log"
    broker.process.wait_until(lambda: log.stat().st_size > 10_000, 20)
    load.stop()
    broker.kill()
    size = log.stat().st_size
    with log.open("ab") as file:
        file.write(b"\0" * 100)
    broker.start()
    assert log.stat().st_size == size
    assert "log.repaired" in broker.log()
    assert "t-0" in broker.log()
