"""Encode and decode transaction markers.

A marker is a control batch with one record that ends a producer's transaction. Its key is
``version i16 = 0, type i16`` (0 abort, 1 commit), its value ``version i16 = 0, coordinatorEpoch
i32``. Knows producers and no transactional ids. Source: KIP-98.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from tidemill.log.errors import InvalidRecordError
from tidemill.log.format.batch import Buffer, parse_header
from tidemill.log.format.records import NewRecord, decode_records, encode_batch

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
_ABORT, _COMMIT = 0, 1


class Marker(NamedTuple):
    """The end of a producer's transaction.

    The epoch can be higher than that of the data: it fences older instances of the producer
    (KIP-360, KIP-890).
    """

    producer_id: int
    epoch: int
    commit: bool
    coordinator_epoch: int = 0


def encode_marker(marker: Marker, *, timestamp_ms: int, log_append_time: bool = False) -> bytearray:
    """Return the control batch of a marker, with base offset 0."""
    key = _KEY.pack(0, _COMMIT if marker.commit else _ABORT)
    value = _VALUE.pack(0, marker.coordinator_epoch)
    return encode_batch(
        [NewRecord(key, value)],
        timestamp_ms=timestamp_ms,
        producer_id=marker.producer_id,
        producer_epoch=marker.epoch,
        transactional=True,
        control=True,
        log_append_time=log_append_time,
    )


def decode_marker(batch: Buffer, position: int = 0) -> Marker | None:
    """Return the marker of the control batch at ``position``.

    None if compaction has emptied the batch, or if it is another kind of control batch.

    Raises:
        InvalidRecordError: the batch is malformed.
    """
    header = parse_header(batch, position)
    if not header.record_count:
        return None
    record = decode_records(batch, position)[0]
    try:
        _, kind = _KEY.unpack_from(record.key or b"")
        if kind not in (_ABORT, _COMMIT):
            return None  # other control batches end no transaction
        _, coordinator_epoch = _VALUE.unpack_from(record.value or b"")
    except struct.error:
        raise InvalidRecordError(
            f"the control batch at offset {header.base_offset} is not a transaction marker"
        ) from None
    return Marker(header.producer_id, header.producer_epoch, kind == _COMMIT, coordinator_epoch)
