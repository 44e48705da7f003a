"""Name the records of a batch that break a rule of their topic.

A batch is refused as a whole, but the client gets the index of each bad record (KIP-467), so that
it can send the others again. Called only for a batch that has bad records. Knows no codecs.
"""

from __future__ import annotations

from typing import NamedTuple

from tidemill.log.errors import BadRecord, InvalidRecordError, InvalidTimestampError
from tidemill.log.format.batch import NO_TIMESTAMP, BatchHeader, Buffer
from tidemill.log.format.records import RawRecord, scan_records
from tidemill.log.steps import Steps

MOST_NAMED = 10_000
"""Most records that are named. More would take longer to report than to send."""
_PAUSE_AFTER = 128
_NO_KEY = "it has no key: a compacted topic needs one"


class Rules(NamedTuple):
    """The rules that records of a batch can break."""

    require_keys: bool
    behind_ms: int | None
    """Most milliseconds that a timestamp can be behind the broker's clock; None for any."""
    ahead_ms: int | None
    """Most milliseconds that a timestamp can be ahead of the broker's clock; None for any."""
    now_ms: int
    """The broker's time."""

    @property
    def has_times(self) -> bool:
        return self.behind_ms is not None or self.ahead_ms is not None


def find_bad_records(body: Buffer, header: BatchHeader, rules: Rules) -> Steps[None]:
    """Refuse the batch if records break a rule, and name the first ``MOST_NAMED`` of them.

    Args:
        body: the records, decompressed. They are well-formed.

    Raises:
        InvalidTimestampError: a timestamp is too far from the broker's clock.
        InvalidRecordError: a key is missing, and all timestamps are valid.
    """
    bad: list[BadRecord] = []
    total = wrong_times = 0
    for index, raw in enumerate(scan_records(body, header.record_count)):
        wrong_time = None
        if rules.require_keys and raw.key_length < 0:
            reason = _NO_KEY
        else:
            wrong_time = _wrong_time(raw, header, rules)
            reason = wrong_time or ""
        if reason:
            total += 1
            wrong_times += wrong_time is not None
            if len(bad) < MOST_NAMED:
                bad.append(BadRecord(index, reason))
        if not (index + 1) % _PAUSE_AFTER:
            yield None
    if not bad:
        return
    text = f"record {bad[0].at}: {bad[0].reason}"
    if total > 1:
        text = f"{total} of {header.record_count} records are invalid, the first is {text}"
    if wrong_times:
        raise InvalidTimestampError(
            text,
            hint="Check the producer's clock, raise message.timestamp.before.max.ms or "
            "message.timestamp.after.max.ms on the topic, or use LogAppendTime.",
            bad_records=bad,
        )
    raise InvalidRecordError(
        text,
        hint="Send a key with each record, or drop 'compact' from cleanup.policy.",
        bad_records=bad,
    )


def _wrong_time(raw: RawRecord, header: BatchHeader, rules: Rules) -> str | None:
    timestamp = header.base_timestamp + raw.timestamp_delta
    if timestamp == NO_TIMESTAMP:
        return None
    if rules.ahead_ms is not None and timestamp - rules.now_ms > rules.ahead_ms:
        return (
            f"timestamp {timestamp} is more than {rules.ahead_ms} ms ahead of the broker's clock "
            f"({rules.now_ms})"
        )
    if rules.behind_ms is not None and rules.now_ms - timestamp > rules.behind_ms:
        return (
            f"timestamp {timestamp} is more than {rules.behind_ms} ms behind the broker's clock "
            f"({rules.now_ms})"
        )
    return None
