"""Topics: the list, a new one, and one topic with its settings, partitions and readers.

Must not know: HTML.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from tidemill.gateway.cluster.state import Snapshot, TopicState
from tidemill.gateway.console.contract import Data, Done, Form, Page, View, address
from tidemill.gateway.console.lists import by_key, listed
from tidemill.gateway.errors import HttpError, invalid, unknown_topic
from tidemill.gateway.parameters import number_of
from tidemill.gateway.topics import is_name

_BROKERS_DEFAULT = -1
MOST_PARTITIONS = 10_000
"""Partitions that the form for a new topic accepts."""
MOST_READERS = 200
"""Groups that the page of a topic shows."""


async def list_(view: View) -> Data:
    """Return the list of topics."""
    snapshot = await view.snapshot()
    with_internal = view.text("internal") == "1"
    rows = [
        each
        for each in snapshot.once("topics", lambda: _rows(snapshot))
        if with_internal or not each["is_internal"]
    ]
    columns = by_key("name", "partitions", "records", "bytes", "per_s", "groups", "lag")
    found = listed(view, rows, columns, search=lambda row: row["name"], sort="name")
    return {
        "topics": found,
        "with_internal": with_internal,
        "hidden": snapshot.once(
            "hidden topics", lambda: sum(each.is_internal for each in snapshot.topics.values())
        ),
    }


def _rows(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Return the topics; ``lag`` is that of the group most behind, None without groups."""
    return [
        {
            "name": each.name,
            "is_internal": each.is_internal,
            "partitions": each.partitions,
            "records": each.records,
            "bytes": each.bytes,
            "per_s": snapshot.rates.get(each.name, 0.0),
            "groups": len(snapshot.readers.get(each.name, ())),
            "lag": max(snapshot.lags.get(each.name, {}).values(), default=None),
        }
        for each in snapshot.topics.values()
    ]


async def create(view: View, form: Form) -> Done:
    """Create a topic.

    Raises:
        HttpError: a field is invalid, or the topic exists.
        TidemillError: the brokers refuse.
    """
    name = form.needed("name")
    if not is_name(name):
        raise invalid(
            f"invalid name {name[:100]!r}: use letters, digits, '.', '_' and '-'",
        )
    given = form.get("partitions", "").strip()
    count = number_of("partitions", given, 1, MOST_PARTITIONS) if given else _BROKERS_DEFAULT
    configs = _configs(form.get("configs", ""))
    made = await asyncio.to_thread(
        view.parts.kafka.create_topics, "tidemill-console", {name: (count, configs)}
    )
    if not made:
        raise HttpError(409, "topic_exists", f"topic {name} exists")
    return Done(address("topic", name=name), f"Topic {name} was created.")


def _configs(text: str) -> dict[str, str]:
    """Return the configs in lines ``name=value``."""
    found: dict[str, str] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, sign, value = line.partition("=")
        if not sign or not name.strip():
            raise invalid(f"invalid setting {line[:100]!r}: write one as NAME=VALUE in each line")
        found[name.strip()] = value.strip()
    return found


async def detail(view: View) -> Data:
    """Return one topic.

    Raises:
        HttpError: it does not exist, or the user can't see it (404).
    """
    name = view.needed("name")
    snapshot = await view.snapshot_with(lambda each: name in each.topics)
    topic = snapshot.topics.get(name)
    if topic is None:
        raise unknown_topic(f"topic {name[:249]}")
    configs = await view.parts.catalog.configs(name)
    readers, left_out = _readers(view, snapshot, name)
    partitions = listed(
        view,
        _partitions(topic),
        by_key("number", "records", "bytes"),
        search=lambda row: str(row["number"]),
        sort="number",
    )
    return {
        "topic": {
            "name": name,
            "is_internal": topic.is_internal,
            "partitions": topic.partitions,
            "replicas": max(topic.replicas, default=0),
            "records": topic.records,
            "bytes": topic.bytes,
            "per_s": snapshot.rates.get(name, 0.0),
        },
        "hour": view.history.rates([name]),
        "partitions": partitions,
        "readers": readers,
        "readers_left_out": left_out,
        "configs": [each for each in configs if each["is_set"]],
        "defaults": [each for each in configs if not each["is_set"]],
    }


def _partitions(topic: TopicState) -> list[dict[str, Any]]:
    """Return the partitions; -1 is what is not known."""
    return [
        {
            "number": number,
            "start": topic.starts[number],
            "end": topic.ends[number],
            "records": max(0, topic.ends[number] - topic.starts[number]),
            "bytes": topic.sizes[number] if topic.sizes[number] >= 0 else None,
            "leader": topic.leaders[number],
            "in_sync": f"{topic.in_sync[number]} of {topic.replicas[number]}",
        }
        for number in range(topic.partitions)
    ]


def _readers(view: View, snapshot: Snapshot, name: str) -> tuple[list[dict[str, Any]], int]:
    """Return the groups that read a topic, the one that is most behind first, and how many more."""
    topics, lags = dict(snapshot.topics), snapshot.lags.get(name, {})
    readers = sorted(snapshot.readers.get(name, ()), key=lambda each: (-lags.get(each, 0), each))
    found = []
    for group_name in readers[:MOST_READERS]:
        group = snapshot.groups[group_name]
        only = replace(group, committed={name: group.committed.get(name, {})})
        lag_s, is_older = view.history.lag_s(only, topics, snapshot.at_ms / 1000)
        found.append(
            {
                "group": group_name,
                "kind": group.kind,
                "state": group.state,
                "members": sum(name in each.partitions for each in group.members),
                "lag": lags.get(group_name, 0),
                "lag_s": lag_s,
                "is_older": is_older,
            }
        )
    return found, max(0, len(readers) - MOST_READERS)


LIST = Page(
    address="topics",
    about="All topics with sizes, rates and readers; search, sort, create.",
    data=list_,
    actions={"create": create},
    section="Cluster",
    live_s=5.0,
)
DETAIL = Page(
    address="topic",
    about="One topic: who reads it and how far behind, partitions, and settings with their origin.",
    data=detail,
    live_s=5.0,
    belongs_to="topics",
)
