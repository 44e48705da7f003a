"""The contract of upserts into a table of any database. Subclass it and give it ``database``.

Batches are Arrow tables. Only ``test_types_are_kept`` needs Spark: it turns nested types to JSON.
"""

from __future__ import annotations

import random
import re
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql.types import StructType

from tests.support import effort
from tidemill.spark.errors import CheckpointRestoredError, RowError, SchemaError, SinkError
from tidemill.spark.sinks.base import Run
from tidemill.spark.sinks.database.rows import Column, Layout, prepare
from tidemill.spark.sinks.database.sink import TableWriter, Target
from tidemill.spark.sinks.database.upsert import UpsertTable, name, quoted
from tidemill.spark.sinks.database.version import version
from tidemill.spark.sinks.documents.store import DocumentStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST, SECOND = 1_700_000_000_000, 1_700_000_060_000
"""Creation times of two checkpoints, in ms."""

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


ARROW = {"INT": pa.int32(), "STRING": pa.string(), "DOUBLE": pa.float64(), "BOOLEAN": pa.bool_()}
"""Type in a schema -> Arrow's type."""
_FIELD = re.compile(r"(?:`([^`]+)`|(\w+)) (\w+)")


def schema_of(*columns: tuple[str, Any]) -> StructType:
    """Return a schema, made without a JVM, of names and Spark's JSON types."""
    fields = [{"name": n, "type": kind, "nullable": True, "metadata": {}} for n, kind in columns]
    return StructType.fromJson({"fields": fields})


class Frame:
    """The rows of a batch with the methods of a DataFrame that a sink uses.

    Args:
        rows: Rows as tuples.
        ddl: Columns as DDL, with types of ``ARROW``.
    """

    def __init__(self, rows: Sequence[Row], ddl: str = "id INT, text STRING") -> None:
        fields = [(quoted or plain, kind) for quoted, plain, kind in _FIELD.findall(ddl)]
        names = {"INT": "integer", "STRING": "string", "DOUBLE": "double", "BOOLEAN": "boolean"}
        self.schema = schema_of(*((name, names[kind]) for name, kind in fields))
        columns = list(zip(*rows, strict=True)) or [()] * len(fields)
        self._rows = pa.table(
            [pa.array(c, ARROW[kind]) for c, (_, kind) in zip(columns, fields, strict=True)],
            names=[name for name, _ in fields],
        )

    def selectExpr(self, *expressions: str) -> Frame:  # noqa: N802
        """Check that all columns are selected, and replace nulls in ``_deleted`` by false."""
        *names, last = expressions
        if last == "coalesce(_deleted, false) AS _deleted":
            at = self._rows.schema.get_field_index("_deleted")
            filled = pc.fill_null(self._rows.column(at), False)
            self._rows = self._rows.set_column(at, "_deleted", filled)
            last = "`_deleted`"
        assert [*names, last] == [f"`{name}`" for name in self._rows.column_names]
        return self

    def toArrow(self) -> pa.Table:  # noqa: N802
        """Return the rows."""
        return self._rows


def deletions(*rows: Row) -> Frame:
    """Rows (id, text, _deleted)."""
    return Frame(rows, "id INT, text STRING, _deleted BOOLEAN")


def writer_of(table: Target, created_ms: int) -> TableWriter:
    """The writer of a query that starts with a checkpoint created at ``created_ms``."""
    return TableWriter(table, Run("p", "q", "update", "nowhere", "id", created_ms))


@dataclass
class Writing:
    """A table with a writer for each checkpoint that writes to it."""

    table: UpsertTable[Any]
    writers: dict[int, TableWriter] = field(default_factory=dict)

    def write(self, frame: Any, batch_id: int, created_ms: int) -> None:
        if created_ms not in self.writers:
            self.writers[created_ms] = writer_of(self.table, created_ms)
        self.writers[created_ms].write(frame, batch_id)


@dataclass
class Database:
    """One database: how the sink creates its tables, and how its own client reads them."""

    make: Callable[..., UpsertTable[Any]]
    query: Callable[[str], list[Row]]
    execute: Callable[[str], Any]

    def writing(self, *args: Any, **kwargs: Any) -> Writing:
        """A table that batches are written to."""
        return Writing(self.make(*args, **kwargs))

    def rows(self, table: str, columns: Sequence[str] = ("id", "text")) -> list[Row]:
        """Rows of a table, ordered by its first column."""
        chosen = ", ".join(map(quoted, columns))
        return [tuple(row) for row in self.query(f"SELECT {chosen} FROM {name(table)} ORDER BY 1")]


FOLLOWED = Layout(
    (Column("id", "int"), Column("text", "string")), ("id",), deletes=True, versioned=True
)
Followable = UpsertTable[Any] | DocumentStore
Change = tuple[int, str | None, int | None]
"""Id, text (None: deleted), version."""


def follow(table: Followable, *changes: Change) -> None:
    """Write changes as one batch."""
    ids, texts, versions = zip(*changes, strict=True)
    rows = pa.table(
        {
            "id": pa.array(ids, pa.int32()),
            "text": pa.array(texts, pa.string()),
            "_version": pa.array(versions, pa.int64()),
            "_deleted": [text is None for text in texts],
        }
    )
    table.apply(prepare(rows, FOLLOWED, table.target), FOLLOWED, version(FIRST, 0), is_new=True)


@dataclass
class Followed:
    """What follows a log of changes, and the texts that it holds by id."""

    table: Followable
    texts: Callable[[], dict[int, str]]


class FollowContract:
    """Rows with versions of their own: the newest one of each key is kept."""

    @pytest.fixture
    @abstractmethod
    def followed(self) -> Followed:
        raise NotImplementedError

    def test_rows_with_versions_of_their_own_are_never_replaced_by_older_ones(
        self, followed: Followed
    ) -> None:
        table, big = followed.table, (1 << 60) + 1  # a double can't tell it from its neighbours
        follow(table, (1, "a", big), (2, "b", 5), (3, "c", 99))
        follow(table, (1, "old", big - 1), (2, "B", 6), (3, None, 100))
        follow(table, (1, "A", big), (3, "old", 99), (4, None, 9))
        assert followed.texts() == {1: "A", 2: "B"}
        follow(table, (2, None, 5), (3, "again", 1000), (4, "old", 8))
        assert followed.texts() == {1: "A", 2: "B", 3: "again"}

    def test_a_deletion_without_a_version_deletes_whatever_is_there(
        self, followed: Followed
    ) -> None:
        table = followed.table
        follow(table, (1, "a", 5), (2, "b", 5))
        follow(table, (1, None, None), (9, None, None))
        follow(table, (1, "old", 4))
        assert followed.texts() == {2: "b"}
        follow(table, (1, "new", 6), (2, "b", 6), (2, None, None))
        assert followed.texts() == {1: "new"}
        follow(table, (2, "old", 5))
        assert followed.texts() == {1: "new"}

    def test_a_log_that_is_followed_again_from_any_place_leads_to_the_same_rows(
        self, followed: Followed
    ) -> None:
        seed = effort.chosen_seed(3)
        dice = random.Random(seed)
        log: list[Change] = [
            (dice.randrange(6), None if dice.random() < 0.3 else str(place), place)
            for place in range(30)
        ]
        at = 0
        while at < len(log):
            end = at + dice.randint(1, 9)
            follow(followed.table, *log[at:end])
            at = dice.randrange(end) if dice.random() < 0.3 else end
        last = {key: text for key, text, _ in log}
        there = {key: text for key, text in last.items() if text is not None}
        assert followed.texts() == there, f"seed {seed}"


class UpsertContract(FollowContract):
    """Batches are upserted by key, also if some of them are repeated or late."""

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
    def followed(self, database: Database) -> Followed:
        return Followed(database.make("t", "id"), lambda: dict(database.rows("t")))

    # --- what a batch does ------------------------------------------------------------------------

    def test_the_table_is_made_and_rows_are_replaced_by_key(self, database: Database) -> None:
        table = database.writing("t", "id")
        table.write(Frame([]), 0, FIRST)
        assert database.rows("t") == []
        table.write(Frame([(1, "a"), (2, "b")]), 1, FIRST)
        table.write(Frame([(2, "B"), (3, None)]), 2, FIRST)
        assert database.rows("t") == [(1, "a"), (2, "B"), (3, None)]
        versions = [row[0] for row in database.rows("t", ["_version"])]
        assert versions == [version(FIRST, 1), version(FIRST, 2), version(FIRST, 2)]

    @pytest.mark.spark
    def test_types_are_kept(self, database: Database, spark: SparkSession, stored: Row) -> None:
        table = database.writing("typed", "id")
        table.write(spark.createDataFrame([ALL_VALUES], ALL_TYPES), 0, FIRST)
        nulls = (2, *[None] * (len(ALL_VALUES) - 1))
        table.write(spark.createDataFrame([nulls], ALL_TYPES), 1, FIRST)
        found = database.rows("typed", spark.createDataFrame([], ALL_TYPES).columns)
        assert found[0] == stored
        assert found[1] == nulls

    def test_deleted_rows_are_gone_and_no_replay_brings_them_back(self, database: Database) -> None:
        table = database.writing("t", "id")
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

    def test_names_are_any_and_a_key_may_have_several_columns(self, database: Database) -> None:
        schema = '`Select` INT, `a b` STRING, `it\'s "x"` DOUBLE'
        table = database.writing("Order by", ["SELECT", "a b"])
        table.write(Frame([(1, "x", 1.0), (1, "y", 2.0)], schema), 0, FIRST)
        table.write(Frame([(1, "y", 3.0)], schema), 1, FIRST)
        found = database.rows("Order by", ["a b", "Select", 'it\'s "x"'])
        assert found == [("x", 1, 1.0), ("y", 1, 3.0)]

    def test_of_rows_with_one_key_the_greatest_wins_where_an_order_is_named(
        self, database: Database
    ) -> None:
        rows = [(1, "b"), (1, "c"), (1, "a"), (2, None), (2, "x"), (3, None)]
        database.writing("t", "id", order_by="text").write(Frame(rows), 0, FIRST)
        assert database.rows("t") == [(1, "c"), (2, "x"), (3, None)]

    # --- any order of batches ---------------------------------------------------------------------

    def test_the_newest_version_of_each_key_stands_whatever_comes_twice_or_late(
        self, database: Database
    ) -> None:
        seed = effort.chosen_seed(2)
        dice = random.Random(seed)
        table = database.writing("t", "id")
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
            table.table.apply(rows, layout, version(*batch))
        there = [row for _, row in sorted(expected.items()) if row is not None]
        assert database.rows("t") == there, f"seed {seed}"

    def test_many_rows_at_once(self, database: Database) -> None:
        table = database.writing("t", "id")
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
            table.table.apply(rows, layout, version(FIRST, batch))
        found = database.rows("t")
        assert len(found) == count + 1
        assert found[:2] == [(0, "0-0"), (1, "1-0")]
        assert found[-1] == (count, f"1-{count - 1}")

    def test_a_new_checkpoint_whose_rows_would_look_old_is_an_error(
        self, database: Database
    ) -> None:
        """Another machine, whose clock is behind, created the checkpoint."""
        database.writing("t", "id").write(deletions((1, "a", False)), 3, SECOND)
        for created in (FIRST, SECOND, SECOND + 999):
            with pytest.raises(
                SinkError, match=r"table t .* of a checkpoint created at"
            ) as refusal:
                database.writing("t", "id").write(deletions((1, "b", False)), 0, created)
            assert "created at 2023-11-14 22:14:20 UTC" in str(refusal.value)
            assert "clock" in refusal.value.hint
        later = SECOND + 1000
        for _ in range(2):  # the first batch may be repeated
            database.writing("t", "id").write(deletions((1, "b", False)), 0, later)
        database.writing("t", "id").write(deletions((1, None, True)), 1, later)
        with pytest.raises(SinkError, match="of a checkpoint created at"):
            database.writing("t", "id").write(deletions((1, "c", False)), 0, later)
        assert database.rows("t") == []

    def test_a_batch_that_was_planned_again_is_an_error_if_its_rows_would_be_ignored(
        self, database: Database
    ) -> None:
        """The checkpoint was restored from a backup that lacks its last batch, or more."""
        layout = Layout((Column("id", "int"),), ("id",), deletes=True)
        started: list[int] = []

        def write(number: int, *, deleted: bool = False, **how: Any) -> None:
            rows = pa.table({"id": pa.array([1], pa.int32()), "_deleted": [deleted]})
            table = database.make("t", "id")
            table.apply(rows, layout, number, on_start=lambda: started.append(number), **how)

        write(version(FIRST, 4), is_new=True)
        for batch, deleted in (
            (5, False),
            (6, True),
        ):  # in the table, and in the table of deleted keys
            write(version(FIRST, batch), deleted=deleted, is_new=True)
            write(version(FIRST, batch), deleted=deleted)  # the same batch is repeated
            del started[:]
            for again in (4, batch):
                why = f"batch {batch}, .* batch {again} again"
                with pytest.raises(CheckpointRestoredError, match=why) as error:
                    write(version(FIRST, again), is_new=True)
                assert "pipeline reset" in error.value.hint
            assert started == []
        write(version(SECOND, 9))
        write(version(FIRST, 7), is_new=True)  # a newer batch of another checkpoint
        assert started == [version(SECOND, 9), version(FIRST, 7)]

    def test_versions_of_rows_and_of_batches_are_not_mixed(self, database: Database) -> None:
        database.writing("t", "id").write(Frame([(1, "a")]), 0, FIRST)
        with pytest.raises(SinkError, match="version is that of a batch") as refusal:
            follow(database.make("t", "id"), (1, "b", 5))
        assert "rebuild" in refusal.value.hint
        follow(database.make("own", "id"), (1, "a", 5))
        assert database.rows("own", ["id", "_version"]) == [(1, 5)]
        for bad in (-1, 1 << 61, None):
            with pytest.raises(RowError, match="version"):
                follow(database.make("other", "id"), (1, "b", bad))

    # --- a rebuild ------------------------------------------------------------------------------

    def test_a_table_takes_the_place_of_another_one_in_one_step(self, database: Database) -> None:
        table, other = database.make("t", "id"), database.make("t__rebuild", "id")
        follow(table, (1, "old", 5), (2, None, 5))
        table.switch("t__rebuild")
        assert database.rows("t") == [(1, "old")]
        follow(other, (1, "new", 4), (3, None, 9))
        for _ in range(2):
            table.switch("t__rebuild")
            assert database.rows("t") == [(1, "new")]
        follow(table, (1, "older", 3), (3, "older", 8), (2, "b", 1))
        assert database.rows("t") == [(1, "new"), (2, "b")]
        follow(other, (1, "left over", 9))
        table.drop("t__rebuild")
        table.switch("t__rebuild")
        assert database.rows("t") == [(1, "new"), (2, "b")]
        follow(other, (7, "x", 1))  # a rebuild without deletions
        table.switch("t__rebuild")
        assert database.rows("t") == [(7, "x")]

    # --- what is refused --------------------------------------------------------------------------

    def test_rows_without_a_key_or_with_one_twice_are_refused(self, database: Database) -> None:
        table = database.writing("t", "id")
        with pytest.raises(RowError, match=r"1 of 2 rows for table t .* have no id") as refusal:
            table.write(Frame([(1, "a"), (None, "b")]), 0, FIRST)
        assert "IS NOT NULL" in refusal.value.hint
        with pytest.raises(RowError, match=r"more than one row .* has the key id=1") as refusal:
            table.write(Frame([(1, "a"), (1, "b")]), 0, FIRST)
        assert "order_by" in refusal.value.hint

    def test_a_table_that_does_not_fit_is_refused_with_what_to_do(self, database: Database) -> None:
        database.execute('CREATE TABLE other (id INTEGER PRIMARY KEY, "text" VARCHAR(99))')
        with pytest.raises(SchemaError, match="has no column _version") as refusal:
            database.writing("other", "id").write(Frame([(1, "a")]), 0, FIRST)
        assert "ADD COLUMN _version BIGINT" in refusal.value.hint
        table = database.writing("t", "id")
        table.write(Frame([(1, "a")]), 0, FIRST)
        with pytest.raises(SchemaError, match="has no column more") as refusal:
            table.write(Frame([(1, "a", 1)], "id INT, text STRING, more INT"), 1, FIRST)
        assert 'ADD COLUMN "more" INTEGER' in refusal.value.hint.replace("integer", "INTEGER")
        with pytest.raises(
            SchemaError, match=r"primary key \(id\), and the sink has the key \(text\)"
        ):
            database.writing("t", "text").write(Frame([(1, "a")]), 1, FIRST)
        assert database.rows("t") == [(1, "a")]

    def test_a_table_of_the_users_may_have_more_columns(self, database: Database) -> None:
        database.execute(
            "CREATE TABLE mine (\"text\" VARCHAR(99), note VARCHAR(9) DEFAULT '-', "
            "id INTEGER PRIMARY KEY, _version BIGINT)"
        )
        database.execute("INSERT INTO mine VALUES ('old', 'kept', 1, NULL)")
        database.writing("mine", "id").write(Frame([(1, "a"), (2, "b")]), 0, FIRST)
        assert database.rows("mine", ["id", "text", "note"]) == [(1, "a", "kept"), (2, "b", "-")]

    def test_a_batch_that_the_database_refuses_leaves_nothing(self, database: Database) -> None:
        database.execute(
            "CREATE TABLE strict (id INTEGER PRIMARY KEY, "
            '"text" VARCHAR(99) NOT NULL, _version BIGINT)'
        )
        table = database.writing("strict", "id")
        with pytest.raises(SinkError, match=r"can't write table strict .*: "):
            table.write(Frame([(1, "a"), (2, None)]), 0, FIRST)
        assert database.rows("strict") == []
        table.write(Frame([(1, "a")]), 0, FIRST)
        assert database.rows("strict") == [(1, "a")]
