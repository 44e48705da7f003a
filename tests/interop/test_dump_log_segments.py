"""Apache Kafka's own dump tool reads our files: logs with markers, all indexes, snapshots."""

from __future__ import annotations

import subprocess
from pathlib import Path
from uuid import UUID

import pytest

from tests.support.apache_kafka import KafkaNotFoundError, find_java, find_tools_classpath
from tests.support.logs import open_log, open_store, write
from tidemill.clock import ManualClock
from tidemill.log.compaction.run import compact
from tidemill.log.format.markers import Marker
from tidemill.log.format.records import NewRecord, encode_batch
from tidemill.state.consumer_groups import format as groups
from tidemill.state.consumer_groups.types import (
    ClassicProtocols,
    ConsumerMember,
    MemberAssignment,
    MemberState,
    ResolvedPattern,
)
from tidemill.state.modern_groups.format import RecordKey, RecordKind

pytestmark = pytest.mark.spark  # each starts a JVM

RECORDS = 120


@pytest.fixture(scope="module")
def dump_command() -> list[str]:
    try:
        java, classpath = find_java(), find_tools_classpath()
    except KafkaNotFoundError as error:
        pytest.skip(f"Apache Kafka is not here: {error}")
    return [java, "-Xmx256m", "-cp", classpath, "org.apache.kafka.tools.DumpLogSegments"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A partition of several segments, with every codec, a producer and a compacted part."""
    data = tmp_path_factory.mktemp("data")
    clock = ManualClock()
    store = open_store(data, clock)
    log = open_log(
        store,
        {
            "internal.segment.bytes": "6000",
            "index.interval.bytes": "200",
            "cleanup.policy": "compact",
        },
    )
    for number in range(RECORDS):
        clock.advance(1000)
        write(
            log,
            [(b"key-%d" % (number % 50), b"value-%d" % number * 20)],
            clock.now_ms(),
            codec=number % 5,
            producer=(4711, 3, number),
        )
    for work in compact(log, clock.now_ms()):
        if work is not None:
            work.run()
    for number in range(RECORDS, RECORDS + 10):
        write(log, [(b"key", b"late")], clock.now_ms(), producer=(4711, 3, number))
    store.close()
    return data / "t-0"


def _dump(command: list[str], files: list[Path], *options: str) -> str:
    done = subprocess.run(
        [*command, "--files", ",".join(map(str, files)), *options],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    return output


def test_kafka_reads_every_record_of_the_log(dump_command: list[str], folder: Path) -> None:
    files = sorted(folder.glob("*.log"))
    assert len(files) > 2
    output = _dump(dump_command, files, "--deep-iteration", "--print-data-log")
    assert f"offset: {RECORDS + 9} " in output
    assert "isvalid: false" not in output
    assert "producerId: 4711 producerEpoch: 3" in output
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        assert f"compresscodec: {codec}" in output
    for number in range(RECORDS - 50, RECORDS):
        assert f"payload: value-{number}value" in output


def test_kafka_finds_no_fault_in_the_indexes(dump_command: list[str], folder: Path) -> None:
    files = [*sorted(folder.glob("*.index")), *sorted(folder.glob("*.timeindex"))]
    output = _dump(dump_command, files)
    assert "offset: " in output
    assert "timestamp: " in output
    for complaint in (
        "Mismatches in",
        "Found timestamp mismatch",
        "Found out of order",
        "not found",
    ):
        assert complaint not in output, output


def test_kafka_reads_the_producer_snapshot(dump_command: list[str], folder: Path) -> None:
    newest = max(folder.glob("*.snapshot"))
    output = _dump(dump_command, [newest])
    assert "producerId: 4711 producerEpoch: 3" in output
    assert f"lastSequence: {RECORDS + 9}" in output


@pytest.fixture(scope="module")
def transactions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A partition with a committed, an aborted and an open transaction."""
    data = tmp_path_factory.mktemp("transactions")
    clock = ManualClock()
    store = open_store(data, clock)
    log = open_log(store, {})
    for producer in (21, 22, 23):
        batch = encode_batch(
            [NewRecord(b"k", b"v")],
            timestamp_ms=clock.now_ms(),
            producer_id=producer,
            producer_epoch=4,
            base_sequence=0,
            transactional=True,
        )
        log.append(batch, now_ms=clock.now_ms())
    log.append_marker(Marker(21, 4, True, 9), now_ms=clock.now_ms())
    log.append_marker(Marker(22, 5, False, 9), now_ms=clock.now_ms())
    store.close()
    return data / "t-0"


def test_kafka_reads_transaction_markers(dump_command: list[str], transactions: Path) -> None:
    files = sorted(transactions.glob("*.log"))
    output = _dump(dump_command, files, "--deep-iteration", "--print-data-log")
    assert "isvalid: false" not in output
    assert output.count("isTransactional: true") == 5
    assert "endTxnMarker: COMMIT coordinatorEpoch: 9" in output
    assert "endTxnMarker: ABORT coordinatorEpoch: 9" in output


def test_kafka_reads_the_index_of_aborted_transactions(
    dump_command: list[str], transactions: Path
) -> None:
    output = _dump(dump_command, sorted(transactions.glob("*.txnindex")))
    assert "version: 0 producerId: 22 firstOffset: 1 lastOffset: 4 lastStableOffset: 2" in output, (
        output
    )


def test_kafka_reads_open_transactions_of_a_snapshot(
    dump_command: list[str], transactions: Path
) -> None:
    output = _dump(dump_command, [max(transactions.glob("*.snapshot"))])
    states = [line for line in output.splitlines() if "producerId: 2" in line]
    firsts = {line.split()[1]: "currentTxnFirstOffset: OptionalLong[2]" in line for line in states}
    assert firsts == {"21": False, "22": False, "23": True}, output


TOPIC = UUID(int=1)
GROUP_RECORDS = [
    (RecordKind.GROUP, "", groups.FORMAT.encode_group(7, -99), '"epoch":7,"metadataHash":-99'),
    (RecordKind.IGNORED, "", None, "<DELETE>"),
    (
        RecordKind.MEMBER,
        "new",
        groups.encode_member(ConsumerMember("i", "r", "c", "h", ("a",), "t.*", 1000, "range")),
        '"instanceId":"i","rackId":"r","clientId":"c","clientHost":"h",'
        '"subscribedTopicNames":["a"],"subscribedTopicRegex":"t.*","rebalanceTimeoutMs":1000,'
        '"serverAssignor":"range"',
    ),
    (
        RecordKind.MEMBER,
        "old",
        groups.encode_member(ConsumerMember(classic=ClassicProtocols(9, (("range", b"meta"),)))),
        '"classicMemberMetadata":{"sessionTimeoutMs":9,'
        '"supportedProtocols":[{"name":"range","metadata":"bWV0YQ=="}]}',
    ),
    (RecordKind.TARGET_EPOCH, "", groups.FORMAT.encode_target_epoch(7), '"assignmentEpoch":7'),
    (
        RecordKind.TARGET,
        "new",
        groups.FORMAT.encode_target({TOPIC: frozenset([0, 2])}),
        '"topicId":"AAAAAAAAAAAAAAAAAAAAAQ","partitions":[0,2]',
    ),
    (
        RecordKind.CURRENT,
        "new",
        groups.encode_current(
            MemberAssignment(7, 6, MemberState.UNREVOKED, {TOPIC: {0: 7, 2: 3}}, {TOPIC: {1: 5}})
        ),
        '"memberEpoch":7,"previousMemberEpoch":6,"state":1,"assignedPartitions":'
        '[{"topicId":"AAAAAAAAAAAAAAAAAAAAAQ","partitions":[0,2],"assignmentEpochs":[7,3]}]',
    ),
    (
        RecordKind.PATTERN,
        "t.*",
        groups.encode_pattern(ResolvedPattern(frozenset(["t2", "t1"]), 3, 1000)),
        '"topics":["t1","t2"],"version":3,"timestamp":1000',
    ),
]


def test_kafka_reads_the_records_of_consumer_groups(
    dump_command: list[str], tmp_path: Path
) -> None:
    clock = ManualClock()
    store = open_store(tmp_path, clock)
    log = open_log(store, {})
    for kind, name, value, _ in GROUP_RECORDS:
        write(log, [(groups.FORMAT.encode_key(RecordKey(kind, "g", name)), value)], clock.now_ms())
    store.close()
    folder = (tmp_path / "t-0").rename(tmp_path / "__consumer_offsets-0")
    output = _dump(
        dump_command, sorted(folder.glob("*.log")), "--offsets-decoder", "--print-data-log"
    )
    lines = [line for line in output.splitlines() if line.startswith("| offset")]
    for line, (kind, name, _, expected) in zip(lines, GROUP_RECORDS, strict=True):
        assert f'"type":"{groups.FORMAT.versions[kind]}"' in line
        assert '"groupId":"g"' in line
        assert name in line
        assert expected in line
