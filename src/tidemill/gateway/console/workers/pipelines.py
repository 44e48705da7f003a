"""Pipelines: their queries as a graph, with rates, lag, watermarks and latency, and their batches.

Everything is in the statuses that a run publishes. Must not know: Spark, HTML.
"""

from __future__ import annotations

import contextlib
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tidemill.gateway.cluster.state import Snapshot
from tidemill.gateway.console.contract import Attention, Data, Page, View, address, command_line
from tidemill.gateway.console.lists import by_key, listed
from tidemill.gateway.console.render import duration, number, some_of
from tidemill.gateway.console.workers.graph import Node, picture
from tidemill.gateway.errors import HttpError
from tidemill.spark.pipelines.progress import HISTORY_STEP_S, TOPIC, QueryStatus, decode

RECENT_S = 60
"""The rate of a query is its rows of the last batches within so many seconds."""
_BAD, _BUSY = ("failed", "lost"), ("waiting", "starting")
_URL = re.compile(r"https?://[\w.:\[\]-]+(/[\w./-]*)?", re.ASCII)


@dataclass(frozen=True)
class Shown:
    """A query as pages show it.

    Attributes:
        status: What was published last.
        state: Its state, or ``lost`` if its pipeline is silent for too long.
        rows_per_s: Rows per second within the last minute; 0 if it does not run.
        lag: Records of its streams that it has not read; None if unknown.
        watermark_ms: In milliseconds since the epoch, or None.
        final_up_to: The same for people.
        rates: Pairs of time and rows per second.
        slowest: Pairs of time and the seconds of the slowest batch.
    """

    status: QueryStatus
    state: str
    rows_per_s: float
    lag: int | None
    watermark_ms: int | None
    final_up_to: str
    rates: tuple[tuple[float, float], ...]
    slowest: tuple[tuple[float, float], ...]


async def queries(view: View) -> list[Shown]:
    """Return the queries of all pipelines, by their names. Records of others are left out.

    Raises:
        UnreachableError: no broker answers.
    """
    now = datetime.now(UTC)
    found: list[Shown] = []
    for _, value in sorted((await view.parts.tables.read(TOPIC)).items()):
        with contextlib.suppress(ValueError):  # another program wrote it
            found.append(_shown(decode(value), now))
    return found


def _shown(status: QueryStatus, now: datetime) -> Shown:
    state = "lost" if status.is_lost(now) else status.state
    lags = [each.lag for each in status.sources if each.lag >= 0 or each.read > 0]
    recent = [each for each in status.history if each[0] > now.timestamp() - RECENT_S]
    is_running = status.is_active and state != "lost"
    return Shown(
        status=status,
        state=state,
        rows_per_s=sum(rows for _, _, rows, _ in recent) / RECENT_S if is_running else 0.0,
        lag=None if not lags or -1 in lags else sum(lags),
        watermark_ms=(mark := _milliseconds(status.watermark)),
        final_up_to=_minute(mark),
        rates=tuple((float(at), rows / HISTORY_STEP_S) for at, _, rows, _ in status.history),
        slowest=tuple((float(at), slowest / 1000) for at, _, _, slowest in status.history),
    )


_COLUMNS = by_key(
    *("name", "state", "queries", "rows_per_s", "lag", "latency_ms", "watermark_ms", "restarts")
)


async def _by_pipeline(view: View) -> dict[str, list[Shown]]:
    found: dict[str, list[Shown]] = {}
    for each in await queries(view):
        found.setdefault(each.status.pipeline, []).append(each)
    return found


async def list_(view: View) -> Data:
    """Return the pipelines."""
    rows = [_summary(name, found) for name, found in (await _by_pipeline(view)).items()]
    return {"list": listed(view, rows, _COLUMNS, search=operator.itemgetter("name"), sort="name")}


def _summary(name: str, found: Sequence[Shown]) -> dict[str, Any]:
    lags = [each.lag for each in found if each.lag is not None]
    marks = [each.watermark_ms for each in found if each.watermark_ms is not None]
    latencies = [x for each in found if (x := each.status.latency_p50_ms) is not None]
    return {
        "name": name,
        "state": worst(each.state for each in found),
        "queries": len(found),
        "rows_per_s": sum(each.rows_per_s for each in found),
        "lag": sum(lags) if lags else None,
        "latency_ms": max(latencies, default=None),
        "watermark_ms": min(marks, default=None),
        "final_up_to": _minute(min(marks, default=None)),
        "restarts": sum(each.status.restarts for each in found),
        "late_rows": sum(each.status.late_rows for each in found),
        "errors": _errors(found),
    }


def worst(states: Any) -> str:
    """Return the state that a user must see first."""
    found = set(states)
    order = (*_BAD, *_BUSY, "running", "stopped", "done")
    return next((each for each in order if each in found), min(found, default="stopped"))


def _errors(found: Sequence[Shown]) -> list[dict[str, Any]]:
    """Return the last error of each query that has one: a line, and what helps."""
    return [
        {"query": each.status.query, "lines": each.status.error[:4000].splitlines()}
        for each in found
        if each.status.error
    ]


async def described(view: View) -> Data:
    """Return one pipeline."""
    name = view.needed("name")
    found = [each for each in await queries(view) if each.status.pipeline == name]
    if not found:
        raise HttpError(404, "unknown_pipeline", f"there is no pipeline {name[:200]}")
    times: dict[float, float] = {}
    for at, rate in (pair for each in found for pair in each.rates):
        times[at] = times.get(at, 0.0) + rate
    uis = {each.status.ui for each in found if each.status.ui and each.state in ("running", *_BUSY)}
    return {
        **_summary(name, found),
        "runner": found[0].status.runner,
        "found": found,
        "rates": sorted(times.items()),
        "graph": _graph(found),
        "spark_ui": next((each for each in sorted(uis) if _URL.fullmatch(each)), None),
    }


def _graph(found: Sequence[Shown]) -> Any:
    nodes: dict[str, Node] = {}
    edges: list[tuple[str, str]] = []
    written = {topic for each in found for topic in each.status.writes}
    for each in found:
        status, query = each.status, f"query {each.status.query}"
        for source in status.sources:
            kind = "topic" if source.topic in written else source.kind or "topic"
            title = source.name if source.name and kind != "topic" else source.topic
            lines = (source.topic,) if title != source.topic else ()
            url = address("topic", name=source.topic)
            topic = f"topic {source.topic}"
            nodes.setdefault(topic, Node(topic, kind, title, lines, url=url))
            edges.append((topic, query))
        nodes[query] = Node(query, "query", status.query, _lines(each), each.state, f"#{query}")
        for topic in status.writes:
            id_ = f"topic {topic}"
            nodes[id_] = Node(id_, "topic", topic, url=address("topic", name=topic))
            edges.append((query, id_))
        if not status.writes and status.sink:
            id_ = f"sink {status.query}"
            nodes[id_] = Node(id_, "sink", status.sink[:200])
            edges.append((query, id_))
    return picture(list(nodes.values()), edges)


def _lines(each: Shown) -> tuple[str, ...]:
    """Return what a query's box says below its name."""
    status = each.status
    parts = [f"{number(each.rows_per_s)} rows/s"]
    if each.lag is not None:
        parts.append(f"{number(each.lag)} behind")
    if status.latency_p50_ms is not None:
        parts.append(duration(status.latency_p50_ms / 1000))
    if each.watermark_ms is None:
        return (" · ".join(parts),)
    return " · ".join(parts), f"final up to {each.final_up_to}"


async def check(view: View, snapshot: Snapshot) -> Sequence[Attention]:
    """Find pipelines that have failed, or are silent."""
    if TOPIC not in snapshot.topics:
        return []
    attention: list[Attention] = []
    for name, found in (await _by_pipeline(view)).items():
        url = address("pipeline", name=name)
        command = command_line("pipeline", "describe", name=name)
        failed = [each.status.query for each in found if each.state == "failed"]
        waiting = [each.status.query for each in found if each.state == "waiting"]
        if failed:
            which = some_of("query", "queries", failed)
            text = f"Pipeline {name}: {which} failed, and will not start again."
            attention.append(Attention("problem", text, command, url))
        elif any(each.state == "lost" for each in found):
            text = f"Pipeline {name} has published nothing for a minute: it may have been killed."
            attention.append(Attention("warning", text, command, url))
        elif waiting:
            which = some_of("query", "queries", waiting)
            text = f"Pipeline {name}: {which} failed, and will start again soon."
            attention.append(Attention("warning", text, command, url))
    return attention[:20]


def _minute(at_ms: int | None) -> str:
    """Return a time in UTC to the minute."""
    if at_ms is None or not 0 <= at_ms < 1 << 47:
        return ""
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M}"


def _milliseconds(text: str | None) -> int | None:
    with contextlib.suppress(ValueError, OverflowError):
        return None if text is None else int(datetime.fromisoformat(text).timestamp() * 1000)
    return None


LIST = Page(
    address="pipelines",
    about="Pipelines with their state, rates, lag, watermark and last error.",
    data=list_,
    section="Workers",
    live_s=2.0,
)
ONE = Page(
    address="pipeline",
    about="One pipeline: the graph of what it reads and writes, its queries and their batches.",
    data=described,
    live_s=2.0,
    belongs_to="pipelines",
)
