"""The metrics of a worker as one JSON record, which any process can read and show.

A record has all metrics of one process at one moment. What is read may be from any program, so
every part of it is checked, and what is invalid is left out. Must not know: Kafka.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidemill.metrics.definition import Kind, Metric
from tidemill.metrics.registry import Family, Histogram, Registry, Row, Value

MOST_BYTES = 512 << 10
"""Largest record. Metrics behind it are left out."""
MOST_ROWS = 5_000
"""Series of one process that are shown."""
MOST_PROCESSES = 500
LOST_AFTER_MS = 60_000
"""Metrics of a process that has published nothing for so long are not shown."""
OWN_LABELS = ("worker", "process")
"""Labels that each series gets: the kind of worker with its name, and the process."""

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,199}")
_KINDS: tuple[Kind, ...] = ("counter", "gauge", "histogram")


@dataclass(frozen=True, slots=True)
class Published:
    """The metrics of one process.

    Attributes:
        worker: the kind of worker, and its name if there are several: ``pipeline/flights``.
        process: ``host:process id``.
        at_ms: when they were read, in milliseconds since the epoch.
        supervised: the name that the broker has for it, if the broker started it: it runs one
            process of a name at a time.
    """

    worker: str
    process: str
    at_ms: int
    families: tuple[Family, ...] = field(repr=False)
    supervised: str = ""

    @property
    def key(self) -> str:
        """The key of the record."""
        return f"{self.worker}@{self.process}"


def encode(
    registry: Registry, worker: str, process: str, at_ms: int, supervised: str = ""
) -> bytes:
    """Return the record with all metrics of a registry, cut at ``MOST_BYTES``."""
    families: list[str] = []
    size = rows = 0
    for metric, values in registry.families():
        listed = [[list(labels), _json(value)] for labels, value in values]
        if not listed:
            continue
        text = json.dumps(
            {
                "name": metric.name,
                "type": metric.kind,
                "help": metric.help,
                "labels": list(metric.labels),
                "rows": listed,
            },
            separators=(",", ":"),
        )
        size, rows = size + len(text), rows + len(listed)
        if size > MOST_BYTES or rows > MOST_ROWS:
            break
        families.append(text)
    about: dict[str, object] = {"worker": worker, "process": process, "at_ms": at_ms}
    if supervised:
        about["supervised"] = supervised
    head = json.dumps(about)
    return f'{head[:-1]}, "metrics": [{",".join(families)}]}}'.encode()


def decode(data: bytes) -> Published | None:
    """Return the metrics in a record; None if it is not such a record.

    Single metrics and rows that are invalid are left out.
    """
    if len(data) > 2 * MOST_BYTES:
        return None
    try:
        found = json.loads(data)
        worker, process, at_ms = found["worker"], found["process"], found["at_ms"]
        listed, supervised = list(found["metrics"]), found.get("supervised", "")
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if not (all(map(_is_text, (worker, process, supervised))) and type(at_ms) is int):
        return None
    families: dict[str, Family] = {}
    left = MOST_ROWS
    for each in listed:
        family = _family(each, left)
        if family is not None and family[0].name not in families:
            families[family[0].name] = family
            left -= len(list(family[1]))
    return Published(worker, process, at_ms, tuple(families.values()), supervised)


def without_replaced(processes: Sequence[Published]) -> list[Published]:
    """Return processes without those that a newer one has replaced, e.g. after a kill.

    A broker runs one process of a worker at a time. Processes that no broker has started replace
    none: there may be several of a kind on a machine.
    """

    def place(each: Published) -> tuple[str, str, str]:
        return each.worker, each.process.rpartition(":")[0], each.supervised

    newest: dict[tuple[str, str, str], int] = {}
    for each in processes:
        newest[place(each)] = max(each.at_ms, newest.get(place(each), each.at_ms))
    return [each for each in processes if not each.supervised or each.at_ms == newest[place(each)]]


def merged(processes: Iterable[Published], now_ms: int) -> Iterator[Family]:
    """Yield the metrics of processes together, with labels that name the process.

    Processes that have published nothing for ``LOST_AFTER_MS`` are left out. If two declare the
    same name differently, the one that is read first counts.
    """
    together: dict[str, tuple[Metric, list[Row]]] = {}
    seen: set[str] = set()
    for each in processes:
        if now_ms - each.at_ms > LOST_AFTER_MS or each.key in seen or len(seen) >= MOST_PROCESSES:
            continue
        seen.add(each.key)
        for metric, rows in each.families:
            known = together.get(metric.name)
            if known is None:
                labels = (*OWN_LABELS, *metric.labels)
                own = Metric(metric.name, metric.kind, metric.help, labels, metric.buckets)
                known = together[metric.name] = own, []
            first = known[0]
            if (metric.kind, (*OWN_LABELS, *metric.labels)) == (first.kind, first.labels):
                known[1].extend(((each.worker, each.process, *labels), v) for labels, v in rows)
    yield from together.values()


def _json(value: Value) -> Any:
    if isinstance(value, Histogram):
        return {"bounds": list(value.bounds), "counts": list(value.counts), "sum": value.sum}
    return value if math.isfinite(value) else str(float(value))


def _family(found: Any, most: int) -> Family | None:
    """Return a valid metric with its valid rows, at most so many; else None."""
    try:
        name, kind, text = found["name"], found["type"], found["help"]
        labels, listed = tuple(found["labels"]), list(found["rows"])
    except (TypeError, KeyError):
        return None
    names = (name, *labels)
    if kind not in _KINDS or not _is_text(text) or not all(map(_is_name, names)):
        return None
    if len(set(labels)) != len(labels) or set(labels) & {*OWN_LABELS, "le"}:
        return None
    rows = {row[0]: row for row in (_row(each, kind, len(labels)) for each in listed[:most]) if row}
    return Metric(name, kind, text, labels), list(rows.values())


def _row(found: Any, kind: str, labels: int) -> Row | None:
    try:
        values, value = tuple(found[0]), found[1]
    except (TypeError, KeyError, IndexError):
        return None
    if len(values) != labels or not all(map(_is_text, values)):
        return None
    shown = _histogram(value) if kind == "histogram" else _number(value)
    return None if shown is None else (values, shown)


def _number(value: Any) -> float | None:
    if isinstance(value, str) and value in ("nan", "inf", "-inf"):
        return float(value)
    return value if isinstance(value, (int, float)) and math.isfinite(value) else None


def _histogram(found: Any) -> Histogram | None:
    try:
        bounds, counts, total = tuple(found["bounds"]), list(found["counts"]), found["sum"]
    except (TypeError, KeyError):
        return None
    if len(counts) != len(bounds) + 1 or _number(total) is None:
        return None
    if not all(isinstance(each, (int, float)) for each in bounds) or sorted(bounds) != list(bounds):
        return None
    if not all(type(each) is int and each >= 0 for each in counts):
        return None
    made = Histogram(bounds)
    made.counts, made.sum = counts, total
    return made


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= 2000


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None
