"""Captured topics as tables in memory: deletes, key changes, repeats, truncations, versions."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from tests.support import effort
from tidemill.spark.errors import JoinError
from tidemill.spark.tables import rows as table_rows
from tidemill.spark.tables.captured_records import CapturedRecords, Record
from tidemill.spark.tables.changes import TableSpec
from tidemill.spark.tables.rows import Latest, Versions

SPEC = TableSpec(
    "t",
    ("id",),
    (),
    types=(("id", "INT"),),
    captured=(("id", "INT"), ("name", "STRING"), ("big", "STRING")),
    keep=10**15,
)
LATE = 2**62


class Topic:
    """A captured topic in memory, and the table that is read from it."""

    def __init__(self, spec: TableSpec = SPEC, connector: str = "mysql") -> None:
        self.latest, self.versions = Latest(spec), Versions(spec)
        self.readers = (CapturedRecords(spec), CapturedRecords(spec))
        self.connector = connector
        self.ends: dict[int, int] = {}

    def write(self, key: Any, value: Any, partition: int = 0, at: int = 10**15) -> None:
        offset = self.ends[partition] = self.ends.get(partition, -1) + 1
        record = Record(_text(key), _text(value), partition, offset, at)
        self.readers[0].apply(record, self.latest)
        self.readers[1].apply(record, self.versions)

    def event(
        self, op: str, place: int, before: Any = None, after: Any = None, partition: int = 0
    ) -> None:
        """Write the event of a change; its commit time is ``place`` in seconds."""
        row = after or before
        source = _at(place, self.connector)
        value = {"op": op, "before": before, "after": after, "source": source}
        self.write(None if row is None else {"id": row["id"]}, value, partition)

    def delete(self, place: int, number: int) -> None:
        self.event("d", place, {"id": number})
        self.write({"id": number}, None)

    def table(self) -> dict[str, Any]:
        """The table as it is now; both ways of keeping it agree."""
        found = {c.key.decode(): json.loads(c.value or b"")["name"] for c in self.latest.all()}
        at_the_end = {key: self.at(int(key), LATE) for key in found}
        assert {k: v for k, v in at_the_end.items() if v is not None} == found
        return found

    def at(self, number: int, us: int) -> Any:
        value = self.versions.get(str(number).encode(), us)
        return None if value is None else json.loads(value)["name"]


@pytest.fixture
def topic() -> Topic:
    return Topic()


def _text(value: Any) -> bytes | None:
    return None if value is None else json.dumps(value).encode()


def _at(place: int, connector: str = "mysql") -> dict[str, Any]:
    """Return the source block of a change; its commit time is ``place`` in seconds."""
    where = {"lsn": place} if connector == "postgresql" else {"pos": place}
    return {"connector": connector, "name": "d", "file": "b.1", **where, "ts_ms": place * 1000}


def row(number: int, name: str | None = None, **more: Any) -> dict[str, Any]:
    return {"id": number, "name": name, **more}


def test_rows_are_created_changed_and_deleted_once(topic: Topic) -> None:
    topic.event("r", 1, after=row(1, "a"))
    topic.event("c", 2, after=row(2, "b"))
    topic.event("u", 3, after=row(1, "A"))
    assert topic.table() == {"1": "A", "2": "b"}
    topic.delete(4, 1)
    assert topic.table() == {"2": "b"}
    topic.event("c", 5, after=row(1, "again"))
    assert topic.table() == {"1": "again", "2": "b"}
    times = [topic.at(1, s * 1_000_000) for s in range(1, 6)]
    assert times == ["a", "a", "A", None, "again"]


def test_a_tombstone_without_its_delete_deletes(topic: Topic) -> None:
    """Compaction removes the delete before it removes the tombstone."""
    topic.event("c", 1, after=row(1, "a"))
    topic.write({"id": 1}, None)
    assert topic.table() == {}
    topic.event("c", 2, after=row(1, "b"))
    assert topic.table() == {"1": "b"}


@pytest.mark.parametrize("connector", ["mysql", "postgresql"])
def test_repeated_and_older_changes_change_nothing(connector: str) -> None:
    topic = Topic(connector=connector)
    topic.event("r", 4, after=row(1, "snapshot"))
    topic.event("u", 5, after=row(1, "a"))
    topic.event("u", 6, after=row(1, "b"))
    for place, op, name in ((6, "u", "b"), (5, "u", "a"), (4, "r", "snapshot")):
        topic.event(op, place, after=row(1, name))
        assert topic.table() == {"1": "b"}
        topic.latest.settle({})
    topic.delete(7, 1)
    topic.latest.settle({})
    topic.event("u", 6, after=row(1, "b"))
    assert topic.latest.get(b"1") is None
    topic.event("c", 8, after=row(1, "new"))
    topic.delete(7, 1)
    assert topic.table() == {"1": "new"}
    assert [topic.at(1, s * 1_000_000) for s in (4, 5, 6, 7, 8)] == [
        "snapshot", "a", "b", None, "new",
    ]  # fmt: skip


def test_positions_may_begin_again_with_later_commits(topic: Topic) -> None:
    """The source was deleted and created again, or the database was restored."""
    topic.event("u", 900, after=row(1, "before"))

    def again(op: str, place: int, name: str) -> None:
        source = {**_at(place), "ts_ms": (1000 + place) * 1000}
        topic.write({"id": 1}, {"op": op, "after": row(1, name), "source": source})

    again("r", 1, "snapshot")
    assert topic.table() == {"1": "snapshot"}
    again("u", 3, "after")
    again("u", 2, "repeated")
    assert topic.table() == {"1": "after"}


def test_a_row_of_a_postgresql_snapshot_does_not_hide_a_transaction_that_was_open() -> None:
    """It wrote at a lower LSN than that of the snapshot, and committed after it."""
    topic = Topic(connector="postgresql")
    topic.event("r", 100, after=row(1, "snapshot"))
    topic.event("u", 90, after=row(1, "committed later"))
    assert topic.latest.get(b"1") == b'{"id":1,"name":"committed later"}'


def test_a_change_of_the_key_moves_the_row(topic: Topic) -> None:
    topic.event("c", 1, after=row(1, "a"))
    topic.event("d", 2, row(1, "a"))
    topic.write({"id": 1}, None)
    topic.event("c", 2, after=row(2, "a"))
    assert topic.table() == {"2": "a"}
    topic.event("u", 3, before=row(2, "a"), after=row(3, "A"))  # as one event
    assert topic.table() == {"3": "A"}
    assert [topic.at(2, s * 1_000_000) for s in (1, 2, 3)] == [None, "a", None]


def test_a_value_that_an_update_left_out_is_kept(topic: Topic) -> None:
    gone = "__debezium_unavailable_value"
    topic.event("c", 1, after=row(1, "a", big="large"))
    topic.event("u", 2, after=row(1, "b", big=gone))
    assert json.loads(topic.latest.get(b"1") or b"") == row(1, "b", big="large")
    assert json.loads(topic.versions.get(b"1", LATE) or b"")["big"] == "large"
    with pytest.raises(JoinError, match=r"offset 2 .* without big.*REPLICA IDENTITY FULL"):
        topic.event("u", 3, after=row(2, "c", big=gone))


def test_a_truncation_deletes_older_rows_of_all_partitions() -> None:
    for first in (0, 1):  # the partition that is read first
        topic = Topic()

        def rows(partition: int, topic: Topic = topic) -> None:
            topic.event("c", 1, after=row(partition, "old"), partition=partition)
            if partition == 0:
                topic.write(None, {"op": "t", "source": _at(5)}, 0)
            topic.event("c", 6, after=row(partition + 10, "new"), partition=partition)

        rows(first)
        rows(1 - first)
        assert topic.table() == {"10": "new", "11": "new"}
        assert [topic.at(1, s * 1_000_000) for s in (4, 5)] == ["old", None]


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ({"id": 1}, [], "the value is not a JSON object"),
        ({"id": 1}, {"id": 1}, "no op of r, c, u, d"),
        ({"other": 1}, None, "no key of id"),
        (None, None, "no key of id"),
        ({"id": None}, {"op": "d", "before": None}, "no key of id"),
        ("text", None, "the key is not a JSON object"),
    ],
)
def test_a_record_that_is_not_a_change_of_the_table_is_an_error(
    key: Any, value: Any, reason: str
) -> None:
    with pytest.raises(JoinError, match=f"table t: the record at offset 0 .*{reason}") as error:
        Topic().write(key, value)
    assert "primary key" in error.value.hint


def test_a_key_of_several_columns() -> None:
    spec = TableSpec("t", ("b", "a"), (), captured=(("a", "STRING"), ("b", "INT"), ("n", "INT")))
    rows, records = Latest(spec), CapturedRecords(spec)
    value = {"op": "c", "after": {"a": "x", "b": 1, "n": 2}, "source": {}}
    records.apply(Record(b'{"a":"x","b":1}', json.dumps(value).encode(), 0, 0, 0), rows)
    assert rows.get(b'{"b":1,"a":"x"}') is not None
    records.apply(Record(b'{"a":"x","b":1}', None, 0, 1, 0), rows)
    assert rows.get(b'{"b":1,"a":"x"}') is None


def test_deletions_are_dropped_when_there_are_many(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_rows, "KEPT_DELETIONS", 10)
    for number in range(50):
        topic.event("c", 2 * number, after=row(number, "a"))
        topic.delete(2 * number + 1, number)
        topic.latest.settle({})
        assert len(topic.latest._rows) <= 10
    assert topic.latest.size < 10_000


def test_a_log_with_repeats_gives_the_table_of_the_log_without() -> None:
    seed = effort.chosen_seed(11)
    dice = random.Random(seed)
    for _ in range(30):
        model: dict[int, str] = {}
        log: list[tuple[Any, ...]] = []
        for place in range(1, 60):
            number = dice.randrange(6)
            if number in model and dice.random() < 0.4:
                del model[number]
                log.append(("d", place, number))
            else:
                op = "u" if number in model else "c"
                model[number] = str(place)
                log.append((op, place, number))
        topic = Topic(connector=dice.choice(["mysql", "postgresql"]))
        at = 0
        while at < len(log):  # the capture crashes, and begins again some changes before
            op, place, number = log[at]
            if op == "d":
                topic.delete(place, number)
            else:
                topic.event(op, place, after=row(number, str(place)))
            if dice.random() < 0.1:
                topic.latest.settle({})
            at = max(at - dice.randrange(15), 0) if dice.random() < 0.04 else at + 1
        assert topic.table() == {str(k): v for k, v in model.items()}, f"seed {seed}"
