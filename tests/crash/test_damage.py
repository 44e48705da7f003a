"""Damaged files: recovery repairs and reports what it can; the rest is an error with its place."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.conftest import BrokerFactory
from tests.crash.disk import disk
from tests.crash.load import read_all
from tests.support import topics
from tests.support.broker_process import BrokerProcess
from tidemill.log.format.batch import iter_headers

pytestmark = [pytest.mark.crash, pytest.mark.disk]

RECORDS = 40
SIZE = 100_000


@pytest.fixture(scope="module")
def filled_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder of a stopped broker: topics ``t`` and ``other`` with closed segments."""
    with BrokerProcess(tmp_path_factory.mktemp("filled")) as broker:
        for topic in ("t", "other"):
            create(broker, topic)
            fill(broker, topic)
        assert len(segments(broker, "t")) >= 4
        assert broker.terminate() == 0
        return broker.data_dir


@pytest.fixture
def filled(filled_data: Path, tmp_path: Path) -> Iterator[BrokerProcess]:
    """A stopped broker with a copy of ``filled_data``."""
    broker = BrokerProcess(tmp_path / "broker")
    shutil.copytree(filled_data, broker.data_dir)
    yield broker
    broker.__exit__()


def create(broker: BrokerProcess, topic: str) -> None:
    topics.create(broker.bootstrap, topic, segment_bytes="1048576")


def fill(broker: BrokerProcess, topic: str) -> None:
    records = (b"p:%d:%b" % (number, os.urandom(SIZE)) for number in range(RECORDS))
    topics.write(broker.bootstrap, topic, *records, one_by_one=True)


def segments(broker: BrokerProcess, topic: str) -> list[Path]:
    return sorted((broker.data_dir / f"{topic}-0").glob("*.log"))


def numbers(broker: BrokerProcess, topic: str) -> list[int]:
    found = read_all(broker.bootstrap, {topic: 1})
    return [int((value or b"").split(b":", 2)[1]) for _, value in sorted(found.items())]


def flip_a_bit(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 0x10]))


def second_batch(path: Path) -> tuple[int, int]:
    """(position, base offset) of the second batch in a segment."""
    data = path.read_bytes()
    batches = iter_headers(data)
    next(batches)
    position, header = next(batches)
    return position, header.base_offset


def assert_reported(broker: BrokerProcess, path: Path, offset: int | None = None) -> None:
    log = broker.log(50_000)
    assert str(path) in log, log
    if offset is not None:
        assert str(offset) in log, log


def test_a_flipped_bit_in_the_middle_is_an_error_that_names_the_place(
    filled: BrokerProcess,
) -> None:
    victim = segments(filled, "t")[1]
    position, offset = second_batch(victim)
    flip_a_bit(victim, position + 1000)
    filled.start()
    with pytest.raises(KafkaException):
        read_all(filled.bootstrap, {"t": 1}, offsets_timeout=1)
    assert_reported(filled, victim, offset)
    assert numbers(filled, "other") == list(range(RECORDS))


def test_records_before_a_flipped_bit_are_still_given(filled: BrokerProcess) -> None:
    victim = segments(filled, "t")[1]
    position, offset = second_batch(victim)
    flip_a_bit(victim, position + 1000)
    filled.start()
    consumer = Consumer({"bootstrap.servers": filled.bootstrap, "group.id": "g"})
    consumer.assign([TopicPartition("t", 0, 0)])
    got = -1
    while got < offset - 1:
        message = consumer.poll(90)
        assert message is not None
        assert message.error() is None
        got = message.offset() or 0
    consumer.close()
    assert got == offset - 1


@pytest.mark.parametrize("clean", [True, False])
def test_a_truncated_closed_segment_takes_the_partition_offline(
    filled: BrokerProcess, clean: bool
) -> None:
    if not clean:
        filled.start()
        filled.kill()
    victim = segments(filled, "t")[1]
    os.truncate(victim, victim.stat().st_size - 500)
    filled.start()
    with pytest.raises(KafkaException):
        read_all(filled.bootstrap, {"t": 1}, offsets_timeout=1)
    assert_reported(filled, victim)
    assert "partition.offline" in filled.log(50_000)
    assert numbers(filled, "other") == list(range(RECORDS))


def test_a_missing_segment_takes_the_partition_offline(filled: BrokerProcess) -> None:
    victim = segments(filled, "t")[1]
    victim.unlink()
    filled.start()
    with pytest.raises(KafkaException):
        read_all(filled.bootstrap, {"t": 1}, offsets_timeout=1)
    assert_reported(filled, victim.parent)
    assert numbers(filled, "other") == list(range(RECORDS))


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("every_file", [True, False])
def test_a_missing_first_segment_takes_the_partition_offline(
    filled: BrokerProcess, every_file: bool, clean: bool
) -> None:
    if not clean:
        filled.start()
        filled.kill()
    folder = filled.data_dir / "t-0"
    for path in list(folder.iterdir()):
        if every_file or path.name == f"{0:020}.log":
            path.unlink()
    filled.start()
    with pytest.raises(KafkaException):
        read_all(filled.bootstrap, {"t": 1}, offsets_timeout=1)
    assert "partition.offline" in filled.log(50_000)
    assert_reported(filled, folder, 0)
    assert numbers(filled, "other") == list(range(RECORDS))


@pytest.mark.parametrize("bit", [1, 4, 60])
@pytest.mark.parametrize("newest", [True, False])
def test_a_wrong_base_offset_is_an_error_and_stops_no_other_partition(
    filled: BrokerProcess, newest: bool, bit: int
) -> None:
    """The CRC does not cover it. After a kill, recovery reads the newest segment."""
    filled.start()
    filled.kill()
    (filled.data_dir / "recovery-point-offset-checkpoint").unlink()
    victim = segments(filled, "t")[-1 if newest else 1]
    position, offset = second_batch(victim)
    with victim.open("r+b") as file:
        file.seek(position)
        file.write((offset ^ 1 << bit).to_bytes(8, "big"))
    filled.start()
    with pytest.raises(KafkaException):
        read_all(filled.bootstrap, {"t": 1}, offsets_timeout=1)
    assert_reported(filled, victim, offset)
    assert numbers(filled, "other") == list(range(RECORDS))


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("kind", ["index", "timeindex"])
def test_a_lost_index_is_rebuilt_and_nothing_is_lost(
    filled: BrokerProcess, kind: str, clean: bool
) -> None:
    if not clean:
        filled.start()
        filled.kill()
    victims = list((filled.data_dir / "t-0").glob(f"*.{kind}"))
    assert victims
    for victim in victims:
        victim.unlink()
    filled.start()
    assert numbers(filled, "t") == list(range(RECORDS))


def damage_the_tail(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 100)


def zero_the_tail(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-100, os.SEEK_END)
        file.write(bytes(100))


@pytest.mark.parametrize("damage", [damage_the_tail, zero_the_tail])
def test_a_torn_last_batch_is_cut_and_reported_after_an_unclean_stop(
    filled: BrokerProcess, damage: Callable[[Path], None]
) -> None:
    filled.start()
    filled.kill()
    victim = segments(filled, "t")[-1]
    # The recovery point says that all of it was synced: forget that, as if it had not been.
    (filled.data_dir / "recovery-point-offset-checkpoint").unlink()
    damage(victim)
    filled.start()
    assert numbers(filled, "t") == list(range(RECORDS - 1))
    assert_reported(filled, victim)


def test_damage_below_the_recovery_point_is_never_cut(filled: BrokerProcess) -> None:
    """All of it was promised: a torn end there is no torn tail."""
    filled.start()
    filled.kill()
    victim = segments(filled, "t")[-1]
    damage_the_tail(victim)
    size = victim.stat().st_size
    filled.start()
    with pytest.raises(KafkaException):
        read_all(filled.bootstrap, {"t": 1}, offsets_timeout=1)
    assert victim.stat().st_size == size
    assert_reported(filled, victim)


def unrepeated(broker: BrokerProcess) -> dict[str, str | int]:
    """Return the settings of a producer that sends each record once."""
    return {"bootstrap.servers": broker.bootstrap, "message.send.max.retries": 0, "linger.ms": 0}


def test_a_full_disk_refuses_writes_and_harms_nothing(
    start_broker: BrokerFactory, tmp_path: Path
) -> None:
    faults = tmp_path / "faults"
    broker = start_broker(env=disk(tmp_path, faults=faults), fresh=True)
    create(broker, "t")
    outcomes: dict[int, bool] = {}
    producer = Producer(unrepeated(broker))

    def send(number: int) -> None:
        producer.produce(
            "t",
            b"p:%d:%b" % (number, os.urandom(5000)),
            on_delivery=lambda error, _: outcomes.__setitem__(number, error is None),
        )
        assert producer.flush(60) == 0

    send(0)
    faults.write_text("enospc")
    send(1)
    send(2)
    faults.unlink()
    send(3)
    assert outcomes == {0: True, 1: False, 2: False, 3: True}
    assert numbers(broker, "t") == [0, 3]
    assert "no space left" in broker.log(20_000).lower()
    broker.kill()
    broker.start()
    assert numbers(broker, "t") == [0, 3]


def test_a_failed_fsync_stops_the_broker_and_acknowledges_nothing(
    start_broker: BrokerFactory, tmp_path: Path
) -> None:
    faults = tmp_path / "faults"
    broker = start_broker(env=disk(tmp_path, faults=faults), fresh=True)
    create(broker, "t")
    acknowledged: list[bytes] = []
    producer = Producer({**unrepeated(broker), "message.timeout.ms": 5000})

    def send(value: bytes) -> None:
        producer.produce(
            "t",
            value,
            on_delivery=lambda error, _: acknowledged.append(value) if error is None else None,
        )
        producer.flush(60)

    send(b"p:0:")
    faults.write_text("fsync")
    send(b"p:1:")
    assert acknowledged == [b"p:0:"]
    assert broker.process.wait(60) == 1
    log = broker.log(20_000)
    assert "error:" in log
    assert str(broker.data_dir / "journal") in log or str(broker.data_dir / "t-0") in log
    faults.unlink()
    broker.start()
    assert numbers(broker, "t")[:1] == [0]


def test_records_are_acknowledged_and_kept_when_the_journal_can_not_be_written(
    start_broker: BrokerFactory, tmp_path: Path
) -> None:
    """Segments are synced instead."""
    faults = tmp_path / "faults"
    broker = start_broker(env=disk(tmp_path, faults=faults), fresh=True)
    create(broker, "t")
    producer = Producer(unrepeated(broker))
    errors: list[object] = []
    for number in range(10):
        if number == 5:
            faults.write_text("journal")
        producer.produce("t", b"p:%d:" % number, on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(60) == 0
    assert errors == [None] * 10
    assert "journal.closed" in broker.log(20_000)
    broker.kill()
    faults.unlink()
    broker.start()
    assert numbers(broker, "t") == list(range(10))
