"""Truncates streams by rules: how many events, and how old, a stream of a category keeps.

The rules are not in the log; what a scavenger decides is. Any process can run it, at any time. Must
not know: clients, the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidemill.eventstore.events import Events
from tidemill.eventstore.folded import FoldedStore

_STREAMS = 100
"""Streams that one commit truncates."""


@dataclass(frozen=True, slots=True)
class Retention:
    """A rule for the streams of a category. An event that breaks one of the limits is truncated.

    Attributes:
        max_count: the most events that a stream keeps.
        max_age_ms: the age that events reach, in milliseconds. The last event is always kept, so
            that the stream is still there.
    """

    max_count: int | None = None
    max_age_ms: int | None = None

    def __post_init__(self) -> None:
        for limit in (self.max_count, self.max_age_ms):
            if limit is not None and limit < 1:
                raise ValueError(f"invalid limit {limit}: use 1 or more, or None")


def scavenge(store: FoldedStore, rules: Mapping[str, Retention], now_ms: int) -> dict[str, int]:
    """Truncate all streams to which a rule applies.

    Args:
        rules: by category.
        now_ms: the time from which ages are counted, in milliseconds since 1970.

    Returns:
        By stream, the version below which events were truncated.
    """
    truncated: dict[str, int] = {}
    for category, rule in rules.items():
        batch: dict[str, int] = {}
        for stream in store.streams(category):
            below = _first_kept(store, stream, rule, now_ms)
            if below is not None:
                batch[stream] = below
            if len(batch) >= _STREAMS:
                store.truncate(batch)
                truncated |= batch
                batch = {}
        if batch:
            store.truncate(batch)
            truncated |= batch
    return truncated


def _first_kept(store: Events, stream: str, rule: Retention, now_ms: int) -> int | None:
    """Return the version of the first event that stays; None if there is nothing to truncate."""
    last = store.version(stream)
    first = next(iter(store.read(stream, limit=1)), None)
    if first is None:
        return None
    kept = first.version
    if rule.max_count is not None:
        kept = max(kept, last - rule.max_count + 1)
    if rule.max_age_ms is not None:
        for event in store.read(stream, after=kept - 1):
            if event.time_ms >= now_ms - rule.max_age_ms:
                break
            kept = min(event.version + 1, last)
    return kept if kept > first.version else None
