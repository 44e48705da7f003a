"""A backup of a running broker has all that was acknowledged before, and becomes a data folder."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from typer.testing import CliRunner

from tests.support.broker_process import BrokerProcess
from tests.support.processes import poll_until
from tests.support.topics import write
from tidemill.cli.backup.contents import FILE, BackupError, read
from tidemill.cli.backup.copying import _copy_active, back_up
from tidemill.cli.main import app
from tidemill.confluent.clients import Kafka
from tidemill.log.disk.files import RealFileSystem
from tidemill.log.format.records import NewRecord, encode_batch

SEGMENTS = {"log.topic_defaults": '{"segment.bytes": "1048576"}'}
LARGE = b"x" * 50_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker"), settings=SEGMENTS) as process:
        produce(process, "orders", 60)
        yield process


def produce(broker: BrokerProcess, topic: str, count: int, value: bytes = LARGE) -> None:
    write(broker.bootstrap, topic, *((str(number), value) for number in range(count)))


def commit(broker: BrokerProcess, group: str, topic: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


def run(*arguments: object) -> Any:
    done = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout.splitlines()[-1])


def records(folder: Path, topic: str) -> list[str]:
    """Start a broker on a data folder; return the keys of a topic's records."""
    with BrokerProcess(folder) as restored:
        consumer = Consumer({"bootstrap.servers": restored.bootstrap, "group.id": "reader"})
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), 60)
        consumer.assign([TopicPartition(topic, 0, 0)])
        keys: list[str] = []
        while len(keys) < end:
            keys += [(each.key() or b"").decode() for each in consumer.consume(100, 1.0)]
        consumer.close()
        return keys


def test_a_backup_of_a_running_broker_is_restored_with_all_records(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    commit(broker, "g", "orders", 7)
    made = run("backup", tmp_path / "b", "--data-dir", broker.data_dir)
    assert made["partitions"] >= 3
    assert made["linked"] > 2_000_000  # two closed segments
    closed = sorted((broker.data_dir / "orders-0").glob("*.log"))
    copied = sorted((tmp_path / "b" / "orders-0").glob("*.log"))
    assert [os.path.samefile(*pair) for pair in zip(closed, copied, strict=True)] == [
        *(True for _ in closed[:-1]),
        False,  # the broker appends to it
    ]
    verified = CliRunner().invoke(app, ["doctor", "--verify", "--data-dir", str(tmp_path / "b")])
    assert "without damage" in verified.output
    (tmp_path / "new").mkdir()
    done = run("restore", tmp_path / "b", "--data-dir", tmp_path / "new" / "data")
    assert (done["clipped"], done["aborted"], done["offline"], done["shorter"]) == ([], [], [], [])
    assert records(tmp_path / "new", "orders") == [str(number) for number in range(60)]


def test_an_archive_is_restored_elsewhere(broker: BrokerProcess, tmp_path: Path) -> None:
    run("backup", tmp_path / "b.tgz", "--data-dir", broker.data_dir)
    again = CliRunner().invoke(
        app, ["backup", str(tmp_path / "b.tgz"), "--data-dir", str(broker.data_dir)]
    )
    assert "exists" in again.output
    with tarfile.open(tmp_path / "b.tgz") as archive:
        assert f"backup/{FILE}" in archive.getnames()
    (tmp_path / "new").mkdir()
    run("restore", tmp_path / "b.tgz", "--data-dir", tmp_path / "new" / "data")
    assert len(records(tmp_path / "new", "orders")) == 60
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tgz", "new"]


def test_a_backup_again_copies_what_is_new(
    broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(broker, "growing", 30)
    first = os.link

    def refuse(source: Path, made: Path) -> None:
        if broker.data_dir in Path(source).parents:
            raise OSError(18, "Invalid cross-device link")
        first(source, made)

    monkeypatch.setattr(os, "link", refuse)
    before = back_up(broker.data_dir, tmp_path / "b")
    assert (before.linked, before.reused) == (0, 0)
    produce(broker, "growing", 30)
    after = back_up(broker.data_dir, tmp_path / "b")
    assert after.reused > 3_000_000
    assert after.partitions["growing-0"].end == 60
    assert read(tmp_path / "b").partitions["growing-0"].end == 60
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_a_file_system_without_hard_links_gets_copies_each_time(
    broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, made: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    for _ in range(2):
        made = back_up(broker.data_dir, tmp_path / "b")
        assert (made.linked, made.reused) == (0, 0)
        assert made.partitions["orders-0"].end == 60


def test_an_archive_is_on_the_disk_before_it_has_its_name(
    broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []

    def sync(self: RealFileSystem, path: str) -> None:
        assert not (tmp_path / "b.tar").exists()
        synced.append(Path(path).stat().st_size)

    monkeypatch.setattr(RealFileSystem, "sync_file", sync)
    run("backup", tmp_path / "b.tar", "--data-dir", broker.data_dir)
    assert synced == [(tmp_path / "b.tar").stat().st_size]


def test_offsets_beyond_a_log_are_clipped_and_open_transactions_are_aborted(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    produce(broker, "cut", 5, b"small")
    commit(broker, "ahead", "cut", 1_000)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "open"})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("cut", b"in a transaction")
    assert producer.flush(60) == 0
    run("backup", tmp_path / "b", "--data-dir", broker.data_dir)
    producer.abort_transaction(60)
    done = run("restore", tmp_path / "b", "--data-dir", tmp_path / "data")
    assert done["aborted"] == ["open"]
    # The offsets are clipped to the end behind the marker that aborts the transaction.
    assert done["clipped"] == [["ahead", "cut-0", 1_000, 7]]


def test_a_backup_while_clients_write_and_topics_come_and_go_is_whole(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    stop, written, rounds = threading.Event(), [0], [0]
    kafka = Kafka(broker.bootstrap)

    def write() -> None:
        while not stop.is_set():
            produce(broker, "busy", 20, b"x" * 20_000)
            written[0] += 20

    def create_and_delete() -> None:
        admin = kafka.admin("tests")
        while not stop.is_set():
            name = f"short-lived-{rounds[0]}"
            kafka.create_topics("tests", {name: (3, {})})
            produce(broker, name, 3, b"small")
            admin.delete_topics([name])[name].result(60)
            rounds[0] += 1

    def has_written(least: int) -> bool:
        return written[0] >= least and rounds[0] > 2

    threads = [threading.Thread(target=each) for each in (write, create_and_delete)]
    for thread in threads:
        thread.start()
    try:
        for least in (20, 200, 400):
            poll_until(partial(has_written, least), 60, "clients have written")
            acknowledged = written[0]
            back_up(broker.data_dir, tmp_path / "b")
            assert read(tmp_path / "b").partitions["busy-0"].end >= acknowledged
            done = run("restore", tmp_path / "b", "--data-dir", tmp_path / f"data{least}")
            assert (done["offline"], done["shorter"]) == ([], [])
            assert [each for each in done["left_out"] if not each.startswith("short-lived")] == []
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_segments_that_disappear_while_they_are_copied_are_looked_up_again(
    broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [FileNotFoundError(2, "No such file or directory")]
    link = os.link

    def fail_once(source: Path, made: Path) -> None:
        if failures:
            raise failures.pop()
        link(source, made)

    monkeypatch.setattr(os, "link", fail_once)
    made = back_up(broker.data_dir, tmp_path / "b")
    assert failures == []
    assert made.partitions["orders-0"].end == 60


def test_an_interrupted_backup_leaves_the_one_before(broker: BrokerProcess, tmp_path: Path) -> None:
    back_up(broker.data_dir, tmp_path / "b")
    (tmp_path / ".b.new" / "orders-0").mkdir(parents=True)
    (tmp_path / "b").rename(tmp_path / ".b.old")
    back_up(broker.data_dir, tmp_path / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    assert (tmp_path / "b").stat().st_mode & 0o77 == 0


def test_a_second_backup_to_a_folder_is_refused_while_one_is_under_way(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    refused: list[str] = []

    def meanwhile(partition: str) -> None:
        if partition == "orders-0":
            with pytest.raises(BackupError) as error:
                back_up(broker.data_dir, tmp_path / "b")
            refused.append(str(error.value))

    made = back_up(broker.data_dir, tmp_path / "b", meanwhile)
    assert refused == [f"another backup to {tmp_path / 'b'} is under way"]
    assert {each.name for each in (tmp_path / "b").iterdir()} >= {*made.partitions, FILE}


def test_an_active_segment_is_cut_behind_its_last_whole_batch(tmp_path: Path) -> None:
    batches = []
    for number in range(3):
        records = [NewRecord(b"k", b"value %d" % each) for each in range(number + 1)]
        batch = encode_batch(records, timestamp_ms=1)
        batch[:8] = sum(range(number + 1)).to_bytes(8, "big")
        batches.append(bytes(batch))
    whole = b"".join(batches)
    ends = {0: 0, len(batches[0]): 1, len(batches[0] + batches[1]): 3, len(whole): 6}
    source, made = tmp_path / "source", tmp_path / "made"
    for size in range(len(whole) + 1):
        source.write_bytes(whole[:size])
        copied, end = _copy_active(source, made, 0)
        best = max(each for each in ends if each <= size)
        assert (copied, end) == (best, ends[best])
        assert made.read_bytes() == whole[:best]


def test_damage_of_a_backup_is_named(broker: BrokerProcess, tmp_path: Path) -> None:
    back_up(broker.data_dir, tmp_path / "b")
    segment = max((tmp_path / "b" / "orders-0").glob("*.log"))
    assert not os.path.samefile(segment, broker.data_dir / "orders-0" / segment.name)
    data = bytearray(segment.read_bytes())
    data[-100] ^= 1
    segment.write_bytes(data)
    done = CliRunner().invoke(
        app, ["restore", str(tmp_path / "b"), "--data-dir", str(tmp_path / "data")]
    )
    assert done.exit_code == 1
    assert "orders-0" in done.output


@pytest.mark.parametrize("name", ["missing", "folder", "damaged"])
def test_what_is_not_a_backup_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / FILE).write_text('{"version": 1, "partitions": []}')
    arguments = ["restore", str(tmp_path / name), "--data-dir", str(tmp_path / "data")]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code != 0
    assert not (tmp_path / "data").exists()


def test_nothing_is_overwritten(broker: BrokerProcess, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years")
    data_dir = ["--data-dir", str(broker.data_dir)]
    for target in (tmp_path / "mine", tmp_path / "mine" / "thesis.txt", broker.data_dir / "b"):
        done = CliRunner().invoke(app, ["backup", str(target), *data_dir])
        assert done.exit_code == 1
    back_up(broker.data_dir, tmp_path / "b")
    done = CliRunner().invoke(
        app, ["restore", str(tmp_path / "b"), "--data-dir", str(tmp_path / "mine")]
    )
    assert done.exit_code == 1
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years"


@pytest.mark.parametrize("then", ["deleted", "created", "damaged"])
def test_a_partition_without_a_segment_is_looked_at_again(
    broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    copied = tmp_path / "data"
    pauses: list[float] = []
    shutil.copytree(broker.data_dir, copied, ignore=shutil.ignore_patterns("*.sock"))
    folder = copied / "orders-0"
    aside = folder.rename(tmp_path / "aside")
    folder.mkdir()

    def meanwhile(seconds: float) -> None:
        pauses.append(seconds)
        if then != "damaged" and len(pauses) == 2:
            folder.rmdir()
            if then == "created":
                aside.rename(folder)

    monkeypatch.setattr("tidemill.cli.backup.copying.time.sleep", meanwhile)
    if then == "damaged":
        with pytest.raises(BackupError, match="orders-0 has no segment: partition orders-0"):
            back_up(copied, tmp_path / "b")
        return
    made = back_up(copied, tmp_path / "b")
    assert ("orders-0" in made.partitions) == (then == "created")
