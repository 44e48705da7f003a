"""Read the last attempts of a webhook. Must not know: HTTP, a worker."""

from __future__ import annotations

import json
from collections import deque
from typing import Any

from tidemill.confluent.clients import Kafka
from tidemill.confluent.reading import end_offsets, read_to_end
from tidemill.connect.webhooks.topics import attempts_topic

_READ = 2000
"""So many of the last records of the attempts are looked at."""


def last_attempts(kafka: Kafka, client: str, name: str, count: int) -> list[dict[str, Any]]:
    """Return the last attempts and events of a webhook, the oldest first.

    Raises:
        UnreachableError: no broker answers.
    """
    topic = attempts_topic(name)
    ends = end_offsets(kafka, client, topic)
    starts = {place: max(end - max(count, _READ), 0) for place, end in ends.items()}
    found: deque[dict[str, Any]] = deque(maxlen=count)
    for _, value in read_to_end(kafka, client, topic, starts=starts):
        record = decode(value)
        if record is not None:
            found.append(record)
    return list(found)


def decode(value: bytes | None) -> dict[str, Any] | None:
    """Return the attempt or event in a record's value; None if it is not one."""
    try:
        record = json.loads(value or b"")
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None
