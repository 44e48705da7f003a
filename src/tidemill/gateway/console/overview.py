"""The overview: what runs, rates now and over the last hour, and what needs attention.

Must not know: HTML.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from tidemill.errors import TidemillError
from tidemill.gateway.cluster.state import Snapshot
from tidemill.gateway.console.contract import Attention, Data, Page, View, address, command_line
from tidemill.gateway.console.render import plural, some_of
from tidemill.kafka_client.errors import UnsupportedSettingError
from tidemill.metrics.published import LOST_AFTER_MS

BUSIEST = 8
"""Topics and groups that the overview lists."""
_LEFT_OUT = "Not all could be looked at: {}."
_LAG_S = 300.0
"""A group whose oldest unread record is older needs attention."""


async def data(view: View) -> Data:
    """Return the overview."""
    try:
        snapshot = await view.snapshot()
    except UnsupportedSettingError as error:  # what needs no snapshot is shown
        snapshot = Snapshot(0, 0.0, "", -1, {}, {}, {}, problems=(_LEFT_OUT.format(error),))
    topics = [each for each in snapshot.topics.values() if not each.is_internal]
    attention = await attention_of(view, snapshot)
    try:
        workers = await _workers(view)
    except TidemillError as error:  # as in ``attention_of``
        workers = []
        attention.append(Attention("note", f"Workers are not known: {error}."))
    known = [each.bytes for each in snapshot.topics.values() if each.bytes is not None]
    busiest = sorted(topics, key=lambda each: -snapshot.rates.get(each.name, 0.0))[:BUSIEST]
    return {
        "has_snapshot": view.shown is not None,
        "cluster": {
            "id": snapshot.cluster_id,
            "brokers": snapshot.brokers,
            "topics": len(topics),
            "partitions": sum(each.partitions for each in topics),
            "records": sum(each.records for each in topics),
            "bytes": sum(known) if known else None,
            "groups": len(snapshot.groups),
            "lag": sum(each.lag for each in snapshot.groups.values()),
        },
        "written_per_s": sum(snapshot.rates.get(each.name, 0.0) for each in topics),
        "read_per_s": sum(snapshot.read_rates.values()),
        "written": view.history.rates(each.name for each in topics),
        "read": view.history.read_rates(snapshot.groups),
        "attention": attention,
        "busiest": [
            {
                "topic": each.name,
                "per_s": snapshot.rates.get(each.name, 0.0),
                "records": each.records,
                "hour": view.history.rates([each.name]),
            }
            for each in busiest
        ],
        "workers": workers,
    }


async def attention_of(view: View, snapshot: Snapshot) -> list[Attention]:
    """Return what all checks find, the worst first. A check that fails is a note, and no error.

    A user who can see a topic of workers and must not read it still has an overview.
    """
    found: list[Attention] = []
    for each_check in view.checks:
        try:
            found += await each_check(view, snapshot)
        except TidemillError as error:
            found.append(Attention("note", _LEFT_OUT.format(error)))
    order = ("problem", "warning", "note")
    return sorted(dict.fromkeys(found), key=lambda each: order.index(each.level))


async def _workers(view: View) -> list[dict[str, Any]]:
    """Return the processes that publish metrics.

    A lost one is left out if another process of the same worker was seen after it.

    Raises:
        TidemillError: their topic can't be read.
    """
    found = await view.parts.metrics.published()
    now_ms = time.time_ns() // 1_000_000
    latest: dict[str, int] = {}
    for each in found:
        latest[each.worker] = max(each.at_ms, latest.get(each.worker, each.at_ms))
    return [
        {
            "name": each.worker,
            "process": each.process,
            "at_ms": each.at_ms,
            "is_lost": now_ms - each.at_ms > LOST_AFTER_MS,
        }
        for each in found
        if now_ms - each.at_ms <= LOST_AFTER_MS or each.at_ms == latest[each.worker]
    ]


async def check(view: View, snapshot: Snapshot) -> Sequence[Attention]:
    """Find what topics and groups need attention."""
    found: list[Attention] = []
    without = [each.name for each in snapshot.topics.values() if -1 in each.leaders]
    if without:
        topics = some_of("Topic", "Topics", without)
        text = f"{topics}: partitions have no leader, and can't be read or written."
        command = command_line("topic", "describe", name=without[0])
        found.append(Attention("problem", text, command, _topic_url(without[0])))
    behind = [each.name for each in snapshot.topics.values() if each.under_replicated]
    if behind:
        text = f"{some_of('Topic', 'Topics', behind)}: replicas are not in sync."
        command = command_line("topic", "describe", name=behind[0])
        found.append(Attention("warning", text, command, _topic_url(behind[0])))
    for group in sorted(snapshot.groups.values(), key=lambda each: -(each.lag_s or 0)):
        if group.lag and (group.lag_s or 0) > _LAG_S:
            stopped = "" if group.members else " It has no members."
            minutes = int((group.lag_s or 0) // 60)
            older = "more than " if group.is_older else ""
            text = (
                f"Group {group.name} is {plural(group.lag, 'record')} behind; the oldest is "
                f"{older}{minutes} min old.{stopped}"
            )
            command = command_line("group", "describe", name=group.name)
            url = address("group", name=group.name)
            found.append(Attention("warning", text, command, url))
        if len(found) >= 20:
            break
    found += [Attention("note", each) for each in snapshot.problems]
    return found


def _topic_url(name: str) -> str:
    return address("topic", name=name)


PAGE = Page(
    address="overview",
    about="What runs, rates now and over the last hour, and what needs attention.",
    data=data,
    section="Cluster",
    live_s=5.0,
)
