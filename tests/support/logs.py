"""Opens stores and partitions in temporary folders, writes records and reads them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from uuid import UUID

from tidemill.clock import ManualClock
from tidemill.engine.api import PartitionWrite
from tidemill.engine.engine import Engine
from tidemill.errors import TidemillError
from tidemill.log.config.parse import parse_config
from tidemill.log.disk.files import FileSystem
from tidemill.log.disk.slice import Slice
from tidemill.log.format.batch import iter_headers
from tidemill.log.format.records import NewRecord, Record, decode_records, encode_batch
from tidemill.log.names import TopicPartition
from tidemill.log.partition.partition import PartitionLog
from tidemill.log.partition.sync import SyncTicket
from tidemill.log.store import LogStore

TP = TopicPartition("t", 0)


def open_store(folder: Path | str, clock: ManualClock, fs: FileSystem | None = None) -> LogStore:
    """Open a store in ``folder``."""
    return LogStore.open(folder, clock=clock, fs=fs)


def open_log(store: LogStore, configs: Mapping[str, str]) -> PartitionLog:
    """Return the partition ``TP`` with these configs; create it if it is missing."""
    config = parse_config(configs)
    if TP in store.partitions:
        log = store.get(TP)
        log.config = config
        return log
    return store.create(TP, config, UUID(int=1))


def write(
    log: PartitionLog,
    records: Iterable[tuple[bytes | None, bytes | None]],
    now_ms: int,
    *,
    codec: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
    sync: bool = True,
) -> int:
    """Append one batch of (key, value); returns its first offset."""
    batch = encode_batch(
        [NewRecord(key, value) for key, value in records],
        timestamp_ms=now_ms,
        codec=codec,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
    )
    info = log.append(memoryview(batch), now_ms=now_ms)
    if sync:
        log.flush()
    return info.first_offset


def read_bytes(log: PartitionLog) -> bytes:
    """Return all readable bytes of a partition."""
    out = bytearray()
    offset = log.log_start_offset
    while True:
        found = log.read(offset, 1 << 30, limit_offset=log.high_watermark)
        if found is None:
            return bytes(out)
        data = bytes(found.load())
        out += data
        offset = [header for _, header in iter_headers(data)][-1].last_offset + 1


def read_records(log: PartitionLog) -> list[Record]:
    """Return all readable records of a partition."""
    data = read_bytes(log)
    return [
        record for position, _ in iter_headers(data) for record in decode_records(data, position)
    ]


def find_slice(
    log: PartitionLog, offset: int, max_bytes: int, *, limit_offset: int | None = None
) -> Slice:
    """Return what a reader finds, who must find something; up to the high watermark by default."""
    limit = log.high_watermark if limit_offset is None else limit_offset
    found = log.read(offset, max_bytes, limit_offset=limit)
    assert found is not None
    return found


def ticket_of(log: PartitionLog) -> SyncTicket:
    """Return the next sync of a partition that has something to sync."""
    ticket = log.begin_sync()
    assert ticket is not None
    return ticket


def advance(store: LogStore) -> None:
    """Advance the recovery points of all partitions: the first call sees that they are idle."""
    store.checkpoint()
    store.checkpoint()


async def append_records(
    engine: Engine, topic: str, partition: int, records: Sequence[NewRecord]
) -> None:
    """Append records as one batch, as a producer with acks=all does."""
    batch = encode_batch(records, timestamp_ms=engine.clock.now_ms())
    answer = engine.records.append([PartitionWrite(topic, partition, memoryview(batch))])
    (result,) = answer if isinstance(answer, list) else await answer
    if isinstance(result, TidemillError):
        raise result
