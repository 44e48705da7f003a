"""The conditions of rules: what a rule measures, and whether it is active. No I/O, no clock.

One object for each rule keeps what it needs of the past: samples of counters, counts of records.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from tidemill.connect.alerts.definition import LABEL, AlertEntry
from tidemill.connect.alerts.exposition import Series
from tidemill.connect.alerts.machine import Reading
from tidemill.connect.alerts.model import Labels, labels_of
from tidemill.connect.webhooks.expression import lookup, parse_filter, parse_path
from tidemill.connect.webhooks.lanes import Event
from tidemill.connect.webhooks.messages import RecordScope

MOST_SERIES = 5000
"""Series, or sets of fields of records, that a rule follows."""
_PARTS = 60
"""A window is followed in so many parts."""
LONGEST_NAME = 99
_TYPE = parse_path("type")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _LabelScope:
    """The names of a filter on series (``expression.Scope``): labels."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._labels = labels

    def root(self, name: str) -> Any:
        """Return a label; None if it is missing."""
        return self._labels.get(name)


def is_active(rule: AlertEntry, value: float) -> bool:
    """Return whether a value is beyond a limit of the rule. NaN is beyond none."""
    above, below = rule.above, rule.below
    return (above is not None and value > above) or (below is not None and value < below)


class MetricCondition:
    """The condition of a rule on a metric.

    Attributes:
        is_full: whether there were more than ``MOST_SERIES`` at the last reading.
    """

    def __init__(self, rule: AlertEntry) -> None:
        self._rule = rule
        self.is_full = False
        self._filter = parse_filter(rule.filter) if rule.filter else None
        self._past: dict[Labels, deque[tuple[int, float, float]]] = {}

    def read(
        self, series: Iterable[Series], now_ms: int, *, is_complete: bool
    ) -> tuple[list[Reading], bool]:
        """Return what the rule measures, and whether that is all.

        Args:
            is_complete: whether all sources of metrics have answered.
        """
        found: dict[Labels, float] = {}
        self.is_full = False
        for each in series:
            if self._filter is None or self._filter(_LabelScope(each.labels)):
                if len(found) >= MOST_SERIES:
                    self.is_full, is_complete = True, False
                    break
                found[labels_of(each.labels)] = each.value
        measured = self._rule.measured
        if measured == "absent":
            return [Reading((), 0.0, not found)] if found or is_complete else [], is_complete
        is_whole = is_complete
        if measured in ("rate", "increase"):
            known = len(found)
            found = self._changes(found, now_ms)
            is_complete = is_complete and len(found) == known
        if self._rule.by is not None:
            found = _sums(found, self._rule.by)
            if not is_whole:  # a part of a sum is certain only if it is above the limit already
                above = math.inf if self._rule.above is None else self._rule.above
                found = {labels: value for labels, value in found.items() if value > above}
        return [
            Reading(labels, value, is_active(self._rule, value)) for labels, value in found.items()
        ], is_complete

    def _changes(self, found: Mapping[Labels, float], now_ms: int) -> dict[Labels, float]:
        """Return by how much each series has grown. A counter that fell has begun at 0 again."""
        window_ms = int(1000 * self._rule.window_s)
        changes: dict[Labels, float] = {}
        for gone in self._past.keys() - found.keys():
            if self._past[gone][-1][0] < now_ms - window_ms:
                del self._past[gone]
        for labels, value in found.items():
            is_new = labels not in self._past
            if not math.isfinite(value) or (is_new and len(self._past) >= 2 * MOST_SERIES):
                continue
            past = self._past.setdefault(labels, deque())
            # Each sample has the value, and the growth since the first one.
            grown = past[-1][2] + _growth(past[-1][1], value) if past else 0.0
            if len(past) > 1 and now_ms - past[-2][0] < window_ms // _PARTS:
                past.pop()
            past.append((now_ms, value, grown))
            while len(past) > 2 and past[1][0] <= now_ms - window_ms:
                past.popleft()
            took_ms = now_ms - past[0][0]
            if took_ms > 0:
                total = grown - past[0][2]
                is_rate = self._rule.measured == "rate"
                changes[labels] = 1000 * total / took_ms if is_rate else total
        return changes


def _growth(before: float, value: float) -> float:
    return value - before if value >= before else value


def _sums(found: Mapping[Labels, float], by: list[str]) -> dict[Labels, float]:
    sums: dict[Labels, float] = {}
    for labels, value in found.items():
        key = tuple(pair for pair in labels if pair[0] in by)
        sums[key] = sums.get(key, 0.0) + value
    return sums


@dataclass(slots=True)
class _Counts:
    """Records of one set of fields, by parts of the window in their order: (start, count)."""

    parts: deque[list[int]] = field(default_factory=deque)
    total: int = 0

    def add(self, part_ms: int) -> None:
        self.total += 1
        at = len(self.parts)
        while at and self.parts[at - 1][0] > part_ms:  # partitions are read one after the other
            at -= 1
        if at and self.parts[at - 1][0] == part_ms:
            self.parts[at - 1][1] += 1
        else:
            self.parts.insert(at, [part_ms, 1])

    def forget(self, before_ms: int) -> None:
        while self.parts and self.parts[0][0] < before_ms:
            self.total -= self.parts.popleft()[1]


class TopicCondition:
    """The condition of a rule on the records of a topic.

    Attributes:
        is_full: whether there were more than ``MOST_SERIES`` sets of fields at the last reading.
        invalid: records that could not be evaluated.
    """

    def __init__(self, rule: AlertEntry) -> None:
        self._rule = rule
        self.is_full = self._is_filling = False
        self._window_ms = int(1000 * rule.window_s)
        self._part_ms = max(self._window_ms // _PARTS, 1)
        self._filter = parse_filter(rule.filter) if rule.filter else None
        self._by = [(path, parse_path(path)) for path in rule.by or ()]
        self._field = parse_path(rule.field) if rule.field else None
        self._counts: dict[Labels, _Counts] = {} if self._by else {(): _Counts()}
        self._last: dict[Labels, tuple[int, float, bool]] = {}
        self._newest: dict[Labels, int] = {}  # the latest ``at`` of events
        self._last_ms = 0
        self.invalid = 0

    @property
    def is_events(self) -> bool:
        """Whether the records are alerts themselves, so that none can be left out."""
        return self._rule.measured == "events"

    @property
    def window_ms(self) -> int:
        """The age up to which records count, in milliseconds."""
        return self._window_ms

    def know(self, labels: Iterable[Mapping[str, str]]) -> None:
        """Follow the sets of fields of alerts that an earlier process has made."""
        for each in labels if self._by and self._rule.measured in ("count", "rate") else ():
            names = {_label(path) for path, _ in self._by}
            found = labels_of({name: value for name, value in each.items() if name in names})
            self._counts.setdefault(found, _Counts())

    def add(self, event: Event, now_ms: int) -> None:
        """Take over a record. One that can't be evaluated counts as invalid."""
        at_ms = min(event.timestamp_ms, now_ms)
        scope = RecordScope(event, self._rule.topic, _TYPE)
        try:
            if self._filter is not None and not self._filter(scope):
                return
            self._take(scope, at_ms, now_ms)
        except (orjson.JSONDecodeError, RecursionError, _InvalidRecordError):
            self.invalid += 1

    def _take(self, scope: RecordScope, at_ms: int, now_ms: int) -> None:
        measured = self._rule.measured
        if measured == "absent":
            self._last_ms = max(self._last_ms, at_ms)
            return
        if measured == "events":
            labels, value, active, said_ms = _event(scope.root("$value"))
            if self._is_new(labels, said_ms):
                self._put(labels, at_ms if said_ms is None else said_ms, value, active)
            return
        labels = labels_of({_label(path): _text(lookup(scope, parts)) for path, parts in self._by})
        if measured == "last":
            assert self._field is not None
            value = _number(lookup(scope, self._field))
            self._put(labels, at_ms, value, is_active(self._rule, value))
            return
        part_ms = at_ms - at_ms % self._part_ms
        if part_ms < now_ms - self._window_ms:
            return  # too old to count: of a backfill, or a copy
        counts = self._counts.get(labels)
        if counts is None:
            if not self._has_room(self._counts):
                return
            counts = self._counts[labels] = _Counts()
        counts.add(part_ms)

    def _has_room(self, known: Mapping[Labels, Any]) -> bool:
        has_room = len(known) < MOST_SERIES
        self._is_filling |= not has_room
        return has_room

    def _is_new(self, labels: Labels, said_ms: int | None) -> bool:
        """Whether no event has said something later. Rows of a batch come in any order."""
        if said_ms is None:
            return True
        if said_ms < self._newest.get(labels, said_ms):
            return False
        self._newest[labels] = said_ms
        if len(self._newest) > MOST_SERIES:
            del self._newest[next(iter(self._newest))]
        return True

    def _put(self, labels: Labels, at_ms: int, value: float, active: bool) -> None:
        if labels not in self._last and not self._has_room(self._last):
            return
        if labels not in self._last or self._last[labels][0] <= at_ms:
            self._last[labels] = at_ms, value, active

    def read(self, now_ms: int) -> tuple[list[Reading], bool]:
        """Return what the rule measures, and whether that is all."""
        oldest_ms = now_ms - self._window_ms
        self.is_full, self._is_filling = self._is_filling, False
        match self._rule.measured:
            case "absent":
                return [Reading((), 0.0, self._last_ms <= oldest_ms)], True
            case "events":
                found = [Reading(key, each[1], each[2]) for key, each in self._last.items()]
                self._last.clear()  # the state of alerts has them from now on
                return found, False
            case "last":
                self._last = {key: at for key, at in self._last.items() if at[0] > oldest_ms}
                return [Reading(key, at[1], at[2]) for key, at in self._last.items()], True
        is_rate = self._rule.measured == "rate"
        readings: list[Reading] = []
        for labels, counts in list(self._counts.items()):
            counts.forget(oldest_ms)
            value = counts.total / self._rule.window_s if is_rate else float(counts.total)
            readings.append(Reading(labels, value, is_active(self._rule, value)))
            if self._by and not counts.total and not readings[-1].is_active:
                del self._counts[labels]  # others have room, and its alert has ended
        return readings, True


class _InvalidRecordError(Exception):
    """A record can't be evaluated."""


Condition = MetricCondition | TopicCondition
Read = Callable[[int], tuple[list[Reading], bool]]


def _event(found: Any) -> tuple[Labels, float, bool, int | None]:
    """Return labels, value, state, and time if it has one, of a record that is an alert."""
    labels = found.get("labels") if isinstance(found, dict) else None
    if not isinstance(labels, dict) or found.get("state") not in ("firing", "resolved"):
        raise _InvalidRecordError
    value = found.get("value")
    number = 0.0 if value is None else _number(value)
    texts = {_valid(str(name)): _text(each) for name, each in labels.items()}
    at = found.get("at")
    said_ms = None if at is None else _milliseconds(at)
    return labels_of(texts), number, found["state"] == "firing", said_ms


def _milliseconds(at: Any) -> int:
    try:
        found = datetime.fromisoformat(at)
    except (TypeError, ValueError):
        raise _InvalidRecordError from None
    if found.tzinfo is None:
        raise _InvalidRecordError
    return (found - _EPOCH) // timedelta(milliseconds=1)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _InvalidRecordError
    return float(value)


def _label(path: str) -> str:
    """Return the label that a field becomes: letters, digits and underscores."""
    name = "".join(each if each.isascii() and each.isalnum() else "_" for each in path)
    name = name.strip("_")[:LONGEST_NAME] or "field"
    return f"_{name}" if name[0].isdigit() else name


def _valid(name: str) -> str:
    """Return a name of a label that a record gives, changed if receivers would refuse it."""
    return name if re.fullmatch(LABEL, name) else _label(name)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else orjson.dumps(value).decode()
