"""Rows of a changelog in memory, against a few lines of plain Python."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.spark.errors import JoinError
from tidemill.spark.source.captured.positions import Position
from tidemill.spark.tables.changes import Change, TableSpec, canonical, foreign_key_of
from tidemill.spark.tables.rows import Latest, Versions

BY_COLUMN = {"valid_from": "since", "timestamp_format": "epoch_s"}


def change(key: bytes, value: Any, offset: int, at: int = 0, partition: int = 0) -> Change:
    made = None if value is None else json.dumps(value).encode()
    return Change(key, made, partition, offset, at)


def spec(**fields: Any) -> TableSpec:
    return TableSpec("t", ("id",), (), **fields)


def test_the_last_change_of_a_key_counts_whatever_the_order() -> None:
    table = Latest(spec(foreign_key=(("fk", "id"),)))
    table.apply(change(b"a", {"fk": "x"}, 5))
    table.apply(change(b"a", {"fk": "y"}, 3))
    table.apply(change(b"b", {"fk": "x"}, 6))
    assert json.loads(table.get(b"a") or b"") == {"fk": "x"}
    assert table.referring_to(b"x") == {b"a", b"b"}
    assert not table.referring_to(b"y")
    table.apply(change(b"a", {"fk": 7}, 8))
    assert (table.foreign_key(b"a"), table.referring_to(b"x")) == (b"7", {b"b"})
    table.apply(change(b"a", None, 9))
    table.apply(change(b"b", {"fk": None}, 10))
    assert table.get(b"a") is None
    assert table.foreign_key(b"b") is None
    assert not table.referring_to(b"7")
    assert not table.referring_to(b"x")
    table.apply(change(b"b", None, 11))
    table.settle({})
    assert table.size == 0


def test_a_row_that_retention_removed_is_gone() -> None:
    latest, versions = Latest(spec()), Versions(spec(keep=10**18))
    for table in (latest, versions):
        table.apply(change(b"a", {}, 4, at=1))
        table.apply(change(b"b", {}, 5, at=1))
        table.apply(change(b"c", {}, 1, at=1, partition=1))
        table.settle({0: 5})
    assert latest.get(b"a") is None
    assert versions.get(b"a", 9) is None
    assert {latest.get(b"b"), latest.get(b"c"), versions.get(b"b", 9)} == {b"{}"}


def test_the_version_that_held_at_an_instant() -> None:
    table = Versions(spec(keep=10**18))
    for offset, at, value in ((1, 20, 2), (2, 10, 1), (3, 30, None), (4, 40, 3), (5, 40, 4)):
        table.apply(change(b"a", value, offset, at))
    table.settle({})
    held = {at: table.get(b"a", at) for at in (9, 10, 19, 20, 29, 30, 39, 40, 99)}
    assert list(held.values()) == [None, b"1", b"1", b"2", b"2", None, None, b"4", b"4"]
    assert table.get(b"b", 10) is None


def test_versions_are_kept_for_a_period_after_they_were_replaced() -> None:
    table = Versions(spec(keep=10))
    for offset, at in enumerate((0, 50, 89, 95)):
        table.apply(change(b"a", at, offset, at))
    table.apply(change(b"gone", 1, 4, 1))
    table.apply(change(b"gone", None, 5, 2))
    table.apply(change(b"b", 100, 6, 100))
    table.settle({})
    assert [table.get(b"a", at) for at in (49, 88, 89, 94, 95)] == [None, None, b"89", b"89", b"95"]
    assert table.get(b"gone", 1) is None
    far = time.time_ns() // 1000 + 10**15
    table.apply(change(b"a", 1, 9, far))  # a version of the future lets none of now go
    table.settle({})
    assert table.get(b"a", 200) == b"95"


def test_a_version_may_begin_by_a_column() -> None:
    table = Versions(spec(keep=10**18, **BY_COLUMN))
    table.apply(change(b"a", {"since": "1970-01-01T00:00:01.5Z"}, 1, at=99))
    table.apply(change(b"a", {"since": "1970-01-01T02:00:02+02:00"}, 2, at=99))
    table.apply(change(b"a", {"since": 3}, 3, at=99))
    table.apply(change(b"b", {}, 4, at=99))
    found = [table.get(b"a", at) for at in (1_499_999, 1_500_000, 2_000_000, 3_000_000)]
    assert [v and json.loads(v)["since"] for v in found][1:] == [
        "1970-01-01T00:00:01.5Z",
        "1970-01-01T02:00:02+02:00",
        3,
    ]
    assert found[0] is None
    assert table.get(b"b", 99) == b"{}"
    for bad, reason in (
        ({"since": "soon"}, "since is not TIMESTAMP: soon"),
        ([1], "the value is not a JSON object"),
        ({"since": [1]}, r"since is not TIMESTAMP: \[1\]"),
        ({"Since": 1}, "the field Since differs from since only in case"),
    ):
        with pytest.raises(JoinError, match=f"offset 7 of partition 0 can't be parsed: {reason}"):
            table.apply(change(b"c", bad, 7))
    iso = Versions(spec(keep=10**18, valid_from="since"))
    with pytest.raises(JoinError, match="since is not TIMESTAMP: 3"):
        iso.apply(change(b"a", {"since": 3}, 3))


def captured(value: Any, offset: int, at: int, place: int) -> Change:
    position = Position("sqlite/shop", None, (place,), place)
    return replace(change(b"a", value, offset, at), position=position)


NOW = 10**15


def test_a_deletion_is_valid_from_the_commit_and_lets_no_version_of_another_time_go() -> None:
    table = Versions(spec(keep=10**7, captured=(("id", "INT"),), **BY_COLUMN))
    table.apply(captured({"since": 1}, 1, NOW, 1))
    table.apply(captured({"since": 5}, 2, NOW + 1, 2))
    table.apply(captured(None, 3, NOW + 2, 3))
    table.settle({})
    found = [table.get(b"a", at) for at in (999_999, 10**6, 5 * 10**6, NOW + 1, NOW + 2)]
    assert [v and json.loads(v)["since"] for v in found] == [None, 1, 5, 5, None]


def test_a_row_that_is_inserted_again_with_a_time_of_its_own_is_there() -> None:
    table = Versions(spec(keep=10**18, captured=(("id", "INT"),), **BY_COLUMN))
    table.apply(captured({"since": 1}, 1, NOW, 1))
    table.apply(captured(None, 2, NOW + 1, 2))
    repeated = captured({"since": 2}, 3, NOW, 1)
    table.apply(repeated)
    assert table.get(b"a", NOW + 9) is None
    table.apply(captured({"since": 3}, 4, NOW + 3, 4))
    assert json.loads(table.get(b"a", NOW + 9) or b"") == {"since": 3}
    table.apply(captured(None, 5, NOW + 4, 5))
    assert table.get(b"a", NOW + 9) is None


# --- keys that move to another partition ---------------------------------------------------------


def test_a_key_that_moved_to_another_partition_has_its_new_value() -> None:
    table = Latest(spec(foreign_key=(("fk", "id"),)))
    table.apply(change(b"a", {"fk": "old"}, 1000, at=1))
    table.apply(change(b"a", {"fk": "new"}, 5, at=2, partition=1))
    table.settle({})
    assert table.foreign_key(b"a") == b"new"
    assert not table.referring_to(b"old")
    table.apply(change(b"a", None, 6, at=3, partition=1))
    table.settle({})
    assert table.get(b"a") is None
    assert list(table.all()) == []
    table.apply(change(b"a", {"fk": "back"}, 7, at=4, partition=1))
    table.settle({})
    assert table.referring_to(b"back") == {b"a"}


def test_within_a_partition_the_offset_counts_whatever_the_time() -> None:
    latest, versions = (
        Latest(spec()),
        Versions(spec(keep=10**18, **BY_COLUMN)),
    )
    for value, offset, partition, at in ((1, 9, 0, 10), (2, 4, 1, 50), (3, 5, 1, 20)):
        latest.apply(change(b"a", value, offset, at, partition))
        versions.apply(change(b"a", {"since": 0, "n": value}, offset, at, partition))
    assert latest.get(b"a") == b"3"
    assert json.loads(versions.get(b"a", 99) or b"")["n"] == 3


def test_a_row_under_one_that_retention_removed_is_seen_again() -> None:
    table = Latest(spec())
    table.apply(change(b"a", 1, 9, at=1))
    table.apply(change(b"a", 2, 3, at=2, partition=1))
    table.settle({1: 4})
    assert table.get(b"a") == b"1"
    table.settle({0: 10})
    assert (table.get(b"a"), table.size) == (None, 0)


def test_a_deletion_is_remembered_until_all_partitions_have_been_read() -> None:
    for partitions, expected in ((2, None), (1, b"1")):
        latest, versions = Latest(spec()), Versions(spec(keep=0))
        for table in (latest, versions):
            table.apply(change(b"a", None, 7, at=20))
            table.shrink(partitions)
            table.apply(change(b"a", 1, 3, at=10, partition=1))
        assert (latest.get(b"a"), versions.get(b"a", 20)) == (expected, expected)


RECORDS = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.sampled_from([None, 1, 2, 3]),
        st.integers(0, 2),
        st.integers(0, 4),
    ),
    max_size=14,
)


@given(records=RECORDS, data=st.data())
def test_what_is_kept_depends_on_no_order_of_reading(
    records: list[tuple[str, int | None, int, int]], data: st.DataObject
) -> None:
    changes = [
        change(key.encode(), value, offset, at, partition)
        for offset, (key, value, partition, at) in enumerate(records)
    ]
    expected: dict[str, dict[int, bytes | None]] = {}
    for key in "ab":
        of_key = [c for c in changes if c.key == key.encode()]
        last = {c.partition: c for c in of_key}
        newest = max(last.values(), key=lambda c: (c.at, c.partition), default=None)
        expected[key] = {-1: None if newest is None else newest.value}
        for moment in range(5):
            begun = max((c.at for c in of_key if c.at <= moment), default=None)
            last = {c.partition: c for c in of_key if c.at == begun}
            held = last[max(last)].value if last else None
            expected[key][moment] = held
    latest, versions = Latest(spec()), Versions(spec(keep=10**18))
    for each in data.draw(st.permutations(changes)):
        latest.apply(each)
        versions.apply(each)
    for _ in range(2):  # and nothing that counts is forgotten
        for key, held_at in expected.items():
            assert latest.get(key.encode()) == held_at.pop(-1)
            held_at[-1] = latest.get(key.encode())
            assert {moment: versions.get(key.encode(), moment) for moment in range(5)} == {
                moment: value for moment, value in held_at.items() if moment >= 0
            }
        latest.settle({})
        versions.settle({})
    rows = {c.key: c.value for c in latest.all()}
    assert rows == {k.encode(): v[-1] for k, v in expected.items() if v[-1] is not None}
    for shown, since, until in versions.all():
        assert versions.get(shown.key, since) == shown.value
        assert until is None or until > since
    gone = dict.fromkeys(range(3), len(changes))
    latest.settle(gone)
    versions.settle(gone)
    assert latest.size == versions.size == 0


@given(records=RECORDS, keep=st.integers(0, 3), data=st.data())
def test_a_table_that_is_read_on_says_what_one_that_is_read_again_says(
    records: list[tuple[str, int | None, int, int]], keep: int, data: st.DataObject
) -> None:
    def read(table: Versions, changes: list[Change]) -> Versions:
        for each in changes:
            table.apply(each)
        return table

    changes = [
        change(key.encode(), value, offset, at, partition)
        for offset, (key, value, partition, at) in enumerate(records)
    ]
    table, done = Versions(spec(keep=keep)), 0
    for end in sorted({*data.draw(st.lists(st.integers(0, len(changes)))), len(changes)}):
        read(table, changes[done:end])
        reread = read(Versions(spec(keep=keep)), changes[:end])
        if table.is_stale:
            table = read(Versions(spec(keep=keep)), changes[:end])
        for each in (table, reread):
            each.settle({})
        assert not reread.is_stale
        for key in (b"a", b"b"):
            held = [table.get(key, moment) for moment in range(6)]
            assert held == [reread.get(key, moment) for moment in range(6)]
        done = end


def test_only_a_version_from_before_a_deletion_that_was_forgotten_asks_for_reading_anew() -> None:
    table = Versions(spec(keep=10))
    for offset, (key, value, at) in enumerate(
        [(b"a", 1, 10), (b"a", None, 20), (b"b", 1, 25), (b"c", None, 45), (b"b", 2, 50)]
    ):
        table.apply(change(key, value, offset, at))
    assert not table.is_stale
    table.settle({})
    for key, value, at in (
        (b"a", 2, 41),  # after the horizon
        (b"a", None, 15),  # none before was none after
        (b"b", 3, 15),
        (b"c", 3, 15),  # its deletion is still known
        (b"new", 1, 5),
    ):
        table.apply(change(key, value, 9, at))
        assert not table.is_stale, key
    table.apply(change(b"a", 3, 10, 15))
    assert table.is_stale


# --- memory --------------------------------------------------------------------------------------


def test_versions_of_deleted_keys_are_forgotten_when_their_time_has_come() -> None:
    table = Versions(spec(keep=100))
    sizes = []
    for hour in range(0, 1000, 20):
        for name in range(10):
            key = f"{hour}-{name}".encode()
            table.apply(change(key, {}, 2 * hour + name, hour))
            table.apply(change(key, None, 2 * hour + name + 10, hour + 1))
        table.settle({})
        sizes.append(table.size)
    assert max(sizes[10:]) == max(sizes[:10])
    assert table.get(b"980-1", 980) == b"{}"
    table.apply(change(b"x", {}, 9999, 2000))
    table.shrink(1)
    assert [shown.key for shown, _, _ in table.all()] == [b"x"]
    alone = Versions(spec(keep=100))
    alone.apply(change(b"x", {}, 9999, 2000))
    assert table.size == alone.size


def test_a_key_with_many_versions_costs_no_more_per_version() -> None:
    table = Versions(spec(keep=1))
    compared = 0

    class Counted(int):
        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return int(self) == other

        __hash__ = int.__hash__

    for offset in range(2000):
        table.apply(Change(b"a", b"{}", 0, Counted(offset), Counted(offset * 10)))
    table.settle({})
    assert [since for _, since, _ in table.all()] == [19_980, 19_990]
    assert compared < 50_000


# --- keys: equal for Spark is equal here, however they are written ---


def keyed(*columns: tuple[str, str], **fields: Any) -> TableSpec:
    return TableSpec("t", tuple(name for name, _ in columns), (), columns, **fields)


def test_keys_are_equal_whatever_their_spaces_and_their_order() -> None:
    two = keyed(("a", "STRING"), ("b", "INT"))
    assert canonical(b'{"b": 1,  "a": "x"}', two) == canonical(b'{"a":"x","b":1}', two)
    assert canonical(b"anything", keyed(("a", "STRING"))) == b"anything"
    assert {canonical(bad, two) for bad in (b"x", b"[1]", b'{"a":1}')} == {None}


SPELT = [
    ("INT", "7", ["07", "+7", " 7\n"]),
    ("BIGINT", "-7", ["-07"]),
    ("TINYINT", "0", ["-0", "000"]),
    ("BOOLEAN", "true", ["TRUE", "t", "yes", " Y ", "1"]),
    ("BOOLEAN", "false", ["F", "no", "n", "0"]),
    ("DATE", "2024-01-02", ["2024-1-2", " 2024-01-02 ", "2024-01-02T05:00", "2024-1-2 5:00Z"]),
]


@pytest.mark.parametrize(("kind", "plain", "others"), SPELT)
def test_a_key_is_the_same_in_every_spelling(kind: str, plain: str, others: list[str]) -> None:
    one = keyed(("a", kind))
    assert {canonical(text.encode(), one) for text in [plain, *others]} == {plain.encode()}


def test_what_is_no_value_of_the_type_stays_as_it_is() -> None:
    wrong = {"INT": "1.0", "BOOLEAN": "maybe", "DATE": "2024-02-30", "STRING": "01", "DOUBLE": "1"}
    for kind, text in wrong.items():
        assert canonical(text.encode(), keyed(("a", kind))) == text.encode()
    assert canonical(b"\xff", keyed(("a", "INT"))) == b"\xff"


def test_a_foreign_key_is_spelt_as_the_key() -> None:
    def of(value: bytes, *columns: tuple[str, str]) -> bytes | None:
        own = keyed(*columns, foreign_key=tuple((name, f"to_{name}") for name, _ in columns))
        return foreign_key_of(Change(b"k", value, 0, 0, 0), own)

    assert of(b'{"d": "2024-1-2"}', ("d", "DATE")) == b"2024-01-02"
    assert of(b'{"n": 7}', ("n", "INT")) == of(b'{"n": 7}', ("n", "STRING")) == b"7"
    right = keyed(("to_n", "STRING"), ("to_d", "DATE"))
    made = of(b'{"n": 7, "d": "2024-1-2"}', ("n", "STRING"), ("d", "DATE"))
    assert made == canonical(b'{"to_d": "2024-01-02", "to_n": "7"}', right)
    assert of(b'{"n": null}', ("n", "INT")) is None
