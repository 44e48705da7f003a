"""Batches with a valid CRC around any bytes."""

from __future__ import annotations

from tidemill.log.format.batch import Buffer, build_batch


def batch_around(
    body: Buffer, count: int, *, attributes: int = 0, last_delta: int | None = None, at: int = 0
) -> bytearray:
    """Return a batch whose header announces ``count`` records, from the offset 0 on."""
    return build_batch(
        base_offset=0,
        body=body,
        attributes=attributes,
        last_offset_delta=max(count - 1, 0) if last_delta is None else last_delta,
        base_timestamp=at,
        max_timestamp=at,
        record_count=count,
    )
