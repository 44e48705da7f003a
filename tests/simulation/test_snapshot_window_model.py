"""Snapshots beside the stream, against a table that changes: the watermark method.

A fake source delivers a log of changes. Chunks are read from any state between what was polled and
what is committed. Whatever the order of commits, polls, chunks and crashes, the records by key
equal the table, and no record of a key is older than the one before it.
"""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any, cast

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.effort import examples
from tests.support.snapshots import TABLE, FakeSource, FakeWriter, Record
from tidemill.connect.cdc.contract import (
    Source,
)
from tidemill.connect.cdc.snapshots import Snapshots
from tidemill.connect.cdc.state import WorkerState
from tidemill.connect.cdc.writer import Writer

KEYS = st.integers(0, 2)

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), KEYS, st.booleans(), st.just(True)),
        st.tuples(st.just("commit"), KEYS, st.just(False), st.just(True)),
        st.tuples(st.just("commit"), KEYS, st.booleans(), st.booleans(), st.booleans()),
        st.tuples(st.just("poll"), st.integers(0, 4)),
        st.tuples(st.just("chunk"), st.integers(0, 3)),
        st.tuples(st.just("crash")),
        st.tuples(st.just("snapshot")),
    ),
    max_size=40,
)


# A key whose delete was not captured is created again after its chunk was read: it must stay.
CREATED_AGAIN: list[tuple[Any, ...]] = [
    ("chunk", 0),
    ("poll", 4),
    ("commit", 0, True, False),
    ("poll", 4),
    ("commit", 0, False, True),
    ("chunk", 1),
]

# The stream is behind when a table of the same name has replaced the one that it describes.
FOUND_IN_THE_CATALOG: list[tuple[Any, ...]] = [
    ("commit", 0, False, True),
    ("commit", 0, False, False, True),
    ("poll", 0),
    ("chunk", 0),
    ("poll", 1),
]


@settings(max_examples=examples(300))
@example(before=[0], steps=CREATED_AGAIN, chunk_rows=3)
@example(before=[0], steps=FOUND_IN_THE_CATALOG, chunk_rows=3)
@given(before=st.lists(KEYS, max_size=6), steps=STEPS, chunk_rows=st.integers(1, 4))
def test_the_topic_by_key_equals_the_table(
    before: list[int], steps: list[tuple[Any, ...]], chunk_rows: int
) -> None:
    source = FakeSource()
    for key in before:
        source.commit(key, False, True)
    topic: list[Record] = []
    stored = WorkerState(position=source.start({"n": len(source.states) - 1}))
    stored.request(TABLE.id)
    writer, snapshots = _restart(source, topic, stored, chunk_rows)
    for kind, *arguments in steps:
        if kind == "commit":
            source.commit(*arguments)
        elif kind == "poll":
            batch = source.poll(0, *arguments)
            if batch is not None:
                snapshots.see(batch)
                writer.write(batch)
            writer.commit()
        elif kind == "chunk":
            source.lag_of_chunk = arguments[0]
            snapshots.step()
        elif kind == "snapshot":
            snapshots.request(TABLE.id)
        else:
            snapshots.close()
            writer, snapshots = _restart(source, topic, writer.stored, chunk_rows)
    while snapshots.active or source.read < len(source.states) - 1 or source.told < source.early:
        snapshots.step()
        batch = source.poll(0)
        if batch is not None:
            snapshots.see(batch)
            writer.write(batch)
        writer.commit()
    writer.commit()
    snapshots.close()
    _check(topic, source)


def _restart(
    source: FakeSource, topic: list[Record], stored: WorkerState, chunk_rows: int
) -> tuple[FakeWriter, Snapshots]:
    writer = FakeWriter(topic, deepcopy(stored))
    source.start(stored.position)

    def read_topic(name: str) -> list[tuple[bytes, bytes | None]]:
        return [(key, None if value is None else b"x") for key, value in topic]

    snapshots = Snapshots(
        cast(Source, source), cast(Writer, writer), writer.state, read_topic, chunk_rows
    )
    snapshots.know([TABLE])
    return writer, snapshots


def _check(topic: list[Record], source: FakeSource) -> None:
    latest: dict[bytes, int] = {}
    newest: dict[bytes, int] = {}
    for key, value in topic:
        if value is None:
            latest.pop(key, None)
            continue
        assert value >= newest.get(key, 0), f"{key!r} goes back to {value}"
        latest[key] = newest[key] = value
    table = {json.dumps({"k": k}).encode(): v for k, v in source.states[-1].items()}
    assert latest == table
    captured = [
        change.after["v"]
        for change in source.log[1:]
        if change is not None and change.after is not None
    ]
    assert {value for _, value in topic if value is not None} >= {
        value for value in captured if value in latest.values()
    }
