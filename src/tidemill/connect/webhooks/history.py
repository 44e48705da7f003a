"""Read the last attempts of a webhook. Must not know: HTTP, a worker."""

from __future__ import annotations

import json
from collections import deque
from typing import Any

from tidemill.confluent.clients import Kafka
from tidemill.confluent.reading import end_offsets, read_to_end
from tidemill.connect.webhooks.topics import attempts_topic

_READ = 2000


def last_attempts(
    kafka: Kafka, client: str, name: str, count: int, within: int = _READ
) -> list[dict[str, Any]]:
    """Return the last attempts and events of a webhook, the oldest first.

    Args:
        within: how many of the last records are looked at, at least.

    Raises:
        UnreachableError: no broker answers.
    """
    topic = attempts_topic(name)
    ends = end_offsets(kafka, client, topic)
    starts = {place: max(end - max(count, within), 0) for place, end in ends.items()}
    found: deque[dict[str, Any]] = deque(maxlen=count)
    for _, value in read_to_end(kafka, client, topic, starts=starts):
        try:
            record = json.loads(value or b"")
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            found.append(record)
    return list(found)
