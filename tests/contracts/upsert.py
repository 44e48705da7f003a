"""What upserts into any database's table must do. Subclass it and give it ``database``."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tidemill.errors import CheckpointRestoredError, RowError, SchemaError, SinkError
from tidemill.spark.upsert import UpsertTable, name, quoted
from tidemill.spark.upsert_rows import Column, Layout
from tidemill.spark.upsert_version import version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FIRST, SECOND = 1_700_000_000_000, 1_700_000_060_000
"""Two checkpoints: when they were made, in ms."""

Frame = Callable[..., "DataFrame"]
Row = tuple[Any, ...]

ALL_TYPES = (
    "id INT, tiny TINYINT, small SMALLINT, big BIGINT, f FLOAT, d DOUBLE, "
    "price DECIMAL(12, 2), ok BOOLEAN, text STRING, raw BINARY, day DATE, at TIMESTAMP, "
    "local TIMESTAMP_NTZ, point STRUCT<x: INT, y: STRING>, tags ARRAY<STRING>, m MAP<STRING, INT>"
)
ALL_VALUES: Row = (
    *(1, -128, -32768, -(1 << 63), 0.5, 0.1),
    *(Decimal("-1234567890.10"), True, "zwölf 'quoted'", b"\x00\xff"),
    *(date(1969, 12, 31), datetime(2013, 3, 10, 7, 0, 0, 1, UTC)),
    *(datetime(2013, 3, 10, 2, 30), (1, "a"), ["x", None], {"k": 7}),
)


@dataclass
class Database:
    """One database: how its tables are made by the sink, and read by its own client."""

    make: Callable[..., UpsertTable[Any]]
    query: Callable[[str], list[Row]]
    execute: Callable[[str], Any]

    def rows(self, table: str, columns: Sequence[str] = ("id", "text")) -> list[Row]:
        """Rows of a table, ordered by its first column."""
        chosen = ", ".join(map(quoted, columns))
        return [tuple(row) for row in self.query(f"SELECT {chosen} FROM {name(table)} ORDER BY 1")]


class UpsertContract:
    """Batches are upserted by key, whichever of them come twice or late."""

    @pytest.fixture
    @abstractmethod
    def database(self) -> Database:
        raise NotImplementedError

    @pytest.fixture
    @abstractmethod
    def stored(self) -> Row:
        """``ALL_VALUES`` as the database's own client reads them; JSON as text without spaces."""
        raise NotImplementedError

    @pytest.fixture
    def frame(self, spark: SparkSession) -> Frame:
        def make(rows: Sequence[Row], schema: str = "id INT, text STRING") -> DataFrame:
            return spark.createDataFrame(list(rows), schema)

        return make

    @pytest.fixture
    def deletions(self, frame: Frame) -> Callable[..., DataFrame]:
        """Rows (id, text, _deleted)."""

        def make(*rows: Row) -> DataFrame:
            return frame(rows, "id INT, text STRING, _deleted BOOLEAN")

        return make

    # --- what a batch does ------------------------------------------------------------------------

    @pytest.mark.spark
    def test_the_table_is_made_and_rows_are_replaced_by_key(
        self, database: Database, frame: Frame
    ) -> None:
        table = database.make("t", "id")
        assert table.write(frame([]), 0, FIRST) == 0
        assert database.rows("t") == []
        assert table.write(frame([(1, "a"), (2, "b")]), 1, FIRST) == 2
        table.write(frame([(2, "B"), (3, None)]), 2, FIRST)
        assert database.rows("t") == [(1, "a"), (2, "B"), (3, None)]
        versions = [row[0] for row in database.rows("t", ["_version"])]
        assert versions == [version(FIRST, 1), version(FIRST, 2), version(FIRST, 2)]

    @pytest.mark.spark
    def test_types_are_kept(self, database: Database, frame: Frame, stored: Row) -> None:
        table = database.make("typed", "id")
        table.write(frame([ALL_VALUES], ALL_TYPES), 0, FIRST)
        nulls = (2, *[None] * (len(ALL_VALUES) - 1))
        table.write(frame([nulls], ALL_TYPES), 1, FIRST)
        found = database.rows("typed", frame([], ALL_TYPES).columns)
        assert found[0] == stored
        assert found[1] == nulls

    @pytest.mark.spark
    def test_deleted_rows_are_gone_and_no_replay_brings_them_back(
        self, database: Database, deletions: Callable[..., DataFrame]
    ) -> None:
        table = database.make("t", "id")
        first = deletions((1, "a", False), (2, "b", None), (3, "c", False))
        second = deletions((1, None, True), (2, "B", False), (9, None, True))
        table.write(first, 0, FIRST)
        for _ in range(2):
            table.write(second, 1, FIRST)
            assert database.rows("t") == [(2, "B"), (3, "c")]
            table.write(first, 0, FIRST)  # late
            assert database.rows("t") == [(2, "B"), (3, "c")]
        table.write(deletions((9, "late", False)), 0, FIRST)
        table.write(deletions((1, "again", False)), 2, FIRST)
        assert database.rows("t") == [(1, "again"), (2, "B"), (3, "c")]
        table.write(second, 1, FIRST)
        assert database.rows("t") == [(1, "again"), (2, "B"), (3, "c")]

    @pytest.mark.spark
    def test_names_are_any_and_a_key_may_have_several_columns(
        self, database: Database, frame: Frame
    ) -> None:
        schema = '`Select` INT, `a b` STRING, `it\'s "x"` DOUBLE'
        table = database.make("Order by", ["SELECT", "a b"])
        table.write(frame([(1, "x", 1.0), (1, "y", 2.0)], schema), 0, FIRST)
        table.write(frame([(1, "y", 3.0)], schema), 1, FIRST)
        found = database.rows("Order by", ["a b", "Select", 'it\'s "x"'])
        assert found == [("x", 1, 1.0), ("y", 1, 3.0)]

    @pytest.mark.spark
    def test_of_rows_with_one_key_the_greatest_wins_where_an_order_is_named(
        self, database: Database, frame: Frame
    ) -> None:
        rows = [(1, "b"), (1, "c"), (1, "a"), (2, None), (2, "x"), (3, None)]
        database.make("t", "id", order_by="text").write(frame(rows), 0, FIRST)
        assert database.rows("t") == [(1, "c"), (2, "x"), (3, None)]

    # --- any order of batches ---------------------------------------------------------------------

    def test_the_newest_version_of_each_key_stands_whatever_comes_twice_or_late(
        self, database: Database
    ) -> None:
        seed = random.SystemRandom().randrange(1 << 32)
        dice = random.Random(seed)
        table = database.make("t", "id")
        layout = Layout((Column("id", "int"), Column("text", "string")), ("id",), deletes=True)
        batches = [(created, batch) for created in (FIRST, SECOND) for batch in range(8)]
        changes = {
            batch: {i: dice.random() < 0.4 for i in dice.sample(range(8), dice.randint(1, 5))}
            for batch in batches
        }
        expected: dict[int, tuple[int, str] | None] = {}
        for batch in batches:
            for i, gone in changes[batch].items():
                expected[i] = None if gone else (i, str(batch))
        order = batches * 2
        dice.shuffle(order)
        for batch in order:
            ids = list(changes[batch])
            rows = pa.table(
                {
                    "id": pa.array(ids, pa.int32()),
                    "text": [str(batch)] * len(ids),
                    "_deleted": list(changes[batch].values()),
                }
            )
            table.apply(rows, layout, version(*batch))
        there = [row for _, row in sorted(expected.items()) if row is not None]
        assert database.rows("t") == there, f"seed {seed}"

    def test_many_rows_at_once(self, database: Database) -> None:
        table = database.make("t", "id")
        layout = Layout((Column("id", "int"), Column("text", "string")), ("id",))
        count = 25_000
        for batch in range(2):
            rows = pa.table(
                {
                    "id": pa.array(range(batch, batch + count), pa.int32()),
                    "text": [f"{batch}-{i}" for i in range(count)],
                    "_deleted": pa.array([False] * count),
                }
            )
            table.apply(rows, layout, version(FIRST, batch))
        found = database.rows("t")
        assert len(found) == count + 1
        assert found[:2] == [(0, "0-0"), (1, "1-0")]
        assert found[-1] == (count, f"1-{count - 1}")

    @pytest.mark.spark
    def test_a_checkpoint_that_begins_is_refused_where_its_rows_would_be_taken_for_old_ones(
        self, database: Database, deletions: Callable[..., DataFrame]
    ) -> None:
        """Made by another machine, with a clock that is behind: nobody there knew of this one."""
        database.make("t", "id").write(deletions((1, "a", False)), 3, SECOND)
        for created in (FIRST, SECOND, SECOND + 999):
            with pytest.raises(SinkError, match=r"table t .* by a checkpoint made at") as refusal:
                database.make("t", "id").write(deletions((1, "b", False)), 0, created)
            assert "made at 2023-11-14 22:14:20 UTC" in str(refusal.value)
            assert "clock" in refusal.value.hint
        later = SECOND + 1000
        for _ in range(2):  # a first batch that is run again finds itself
            database.make("t", "id").write(deletions((1, "b", False)), 0, later)
        database.make("t", "id").write(deletions((1, None, True)), 1, later)
        with pytest.raises(SinkError, match="by a checkpoint made at"):
            database.make("t", "id").write(deletions((1, "c", False)), 0, later)
        assert database.rows("t") == []

    def test_a_batch_that_is_planned_anew_is_refused_where_it_would_be_taken_for_written(
        self, database: Database
    ) -> None:
        """A checkpoint was put back from a backup that lacks its last batch, or more."""
        layout = Layout((Column("id", "int"),), ("id",), deletes=True)
        begun: list[str] = []

        def write(number: int, *, deleted: bool = False, **how: Any) -> None:
            rows = pa.table({"id": pa.array([1], pa.int32()), "_deleted": [deleted]})
            make = database.make("t", "id")
            make.apply(rows, layout, number, begin=lambda: begun.append("it is"), **how)

        write(version(FIRST, 4), is_new=True)
        for batch, deleted in ((5, False), (6, True)):  # in the table, and among the tombstones
            write(version(FIRST, batch), deleted=deleted, is_new=True)
            write(version(FIRST, batch), deleted=deleted)  # run again, as it was planned
            del begun[:]
            for anew in (4, batch):
                why = f"batch {batch}, .* batch {anew} anew"
                with pytest.raises(CheckpointRestoredError, match=why) as told:
                    write(version(FIRST, anew), is_new=True)
                assert "pipeline reset" in told.value.hint
            assert begun == []
        write(version(SECOND, 9))
        write(version(FIRST, 7), is_new=True)  # it is another checkpoint that is further
        assert begun == ["it is"] * 2

    # --- what is refused --------------------------------------------------------------------------

    @pytest.mark.spark
    def test_rows_without_a_key_or_with_one_twice_are_refused(
        self, database: Database, frame: Frame
    ) -> None:
        table = database.make("t", "id")
        with pytest.raises(RowError, match=r"1 of 2 rows for table t .* have no id") as refusal:
            table.write(frame([(1, "a"), (None, "b")]), 0, FIRST)
        assert "IS NOT NULL" in refusal.value.hint
        with pytest.raises(RowError, match=r"more than one row .* has the key id=1") as refusal:
            table.write(frame([(1, "a"), (1, "b")]), 0, FIRST)
        assert "order_by" in refusal.value.hint

    @pytest.mark.spark
    def test_a_table_that_does_not_fit_is_refused_with_what_to_do(
        self, database: Database, frame: Frame
    ) -> None:
        database.execute('CREATE TABLE other (id INTEGER PRIMARY KEY, "text" VARCHAR(99))')
        with pytest.raises(SchemaError, match="has no column _version") as refusal:
            database.make("other", "id").write(frame([(1, "a")]), 0, FIRST)
        assert "ADD COLUMN _version BIGINT" in refusal.value.hint
        table = database.make("t", "id")
        table.write(frame([(1, "a")]), 0, FIRST)
        with pytest.raises(SchemaError, match="has no column more") as refusal:
            table.write(frame([(1, "a", 1)], "id INT, text STRING, more INT"), 1, FIRST)
        assert 'ADD COLUMN "more" INTEGER' in refusal.value.hint.replace("integer", "INTEGER")
        with pytest.raises(SchemaError, match=r"primary key \(id\), and the sink the key \(text\)"):
            database.make("t", "text").write(frame([(1, "a")]), 1, FIRST)
        assert database.rows("t") == [(1, "a")]

    @pytest.mark.spark
    def test_a_table_of_the_users_may_have_more_columns(
        self, database: Database, frame: Frame
    ) -> None:
        database.execute(
            "CREATE TABLE mine (\"text\" VARCHAR(99), note VARCHAR(9) DEFAULT '-', "
            "id INTEGER PRIMARY KEY, _version BIGINT)"
        )
        database.execute("INSERT INTO mine VALUES ('old', 'kept', 1, NULL)")
        database.make("mine", "id").write(frame([(1, "a"), (2, "b")]), 0, FIRST)
        assert database.rows("mine", ["id", "text", "note"]) == [(1, "a", "kept"), (2, "b", "-")]

    @pytest.mark.spark
    def test_a_batch_that_the_database_refuses_leaves_nothing(
        self, database: Database, frame: Frame
    ) -> None:
        database.execute(
            "CREATE TABLE strict (id INTEGER PRIMARY KEY, "
            '"text" VARCHAR(99) NOT NULL, _version BIGINT)'
        )
        table = database.make("strict", "id")
        with pytest.raises(SinkError, match=r"table strict .* can't be written: "):
            table.write(frame([(1, "a"), (2, None)]), 0, FIRST)
        assert database.rows("strict") == []
        table.write(frame([(1, "a")]), 0, FIRST)
        assert database.rows("strict") == [(1, "a")]
