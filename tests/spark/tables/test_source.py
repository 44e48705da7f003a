"""The contract of a source of tables, with a source that has only what it must have."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.changelogs import rows
from tests.spark.documented import documented_class
from tidemill.spark import (
    ChangelogTopic,
    Pipeline,
    TableSource,
    TopicSink,
    enrich,
    enrich_as_of,
    join_tables,
)
from tidemill.spark.errors import JoinError, PipelineError
from tidemill.spark.pipelines.check import problems
from tidemill.spark.pipelines.inputs import TableInput
from tidemill.spark.pipelines.resolve import topics_of, topics_to_create

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "tail STRING, seats INT"


SqliteTable: Any = documented_class("SqliteTable")


@pytest.fixture
def planes(tmp_path: Path) -> TableSource:
    """A source with one row."""
    path = tmp_path / "planes.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE planes (tail TEXT PRIMARY KEY, seats INTEGER)")
        database.execute("INSERT INTO planes VALUES ('a', 1)")
        database.commit()
    made: TableSource = SqliteTable(str(path), "planes")
    return made


def pipeline_with(source: TableSource, **options: Any) -> Pipeline:
    """A pipeline with one stream and a table that comes from ``source``."""
    p = Pipeline("flights")
    p.stream("departures", schema="flight STRING, tail STRING", dead_letters=None)
    p.table("planes", source=source, key="tail", schema=SCHEMA, **options)
    p.sql("q", "SELECT flight, seats FROM departures JOIN planes USING (tail)", sink=TopicSink("t"))
    return p


def input_of(p: Pipeline, spark: SparkSession) -> TableInput:
    return TableInput(p.tables[0], spark, {"bootstrap.servers": "localhost:1"})


def test_a_pipeline_reads_a_table_from_any_source(planes: Any) -> None:
    p = pipeline_with(planes)

    assert list(problems(p)) == []
    assert [*topics_of(p.queries[0], p)] == ["departures"]
    assert topics_to_create(p) == ([("departures", False)], [("t", False)])


def test_the_check_of_a_source_is_reported_at_the_line_of_its_table(tmp_path: Path) -> None:
    p = pipeline_with(SqliteTable(str(tmp_path / "no.db"), "planes"))

    [problem] = problems(p)
    assert problem.place == p.tables[0].place
    message = f"table planes: file {tmp_path}/no.db can't be opened: unable to open database file"
    assert problem.message == message


def test_a_table_has_one_source(planes: Any) -> None:
    with pytest.raises(PipelineError, match="table x has both topic= and source="):
        Pipeline("p").table("x", topic="t", source=planes, key="tail", schema=SCHEMA)


def test_a_changelog_topic_is_a_source() -> None:
    p = pipeline_with(ChangelogTopic("aircraft"))

    assert [*topics_of(p.queries[0], p)] == ["departures", "aircraft"]
    assert topics_to_create(p)[0] == [("departures", False), ("aircraft", True)]
    assert ChangelogTopic("aircraft").description == "topic aircraft"
    [problem] = problems(pipeline_with(ChangelogTopic("no such/topic")))
    assert problem.message == "table planes: invalid topic name 'no such/topic'"


@pytest.mark.spark
class TestInSpark:
    """Only ``rows`` is needed for a join; what a source lacks is an error that names it."""

    def test_each_batch_of_a_stream_is_joined_with_the_rows_of_its_time(
        self, spark: SparkSession, planes: Any, tmp_path: Path
    ) -> None:
        table = input_of(pipeline_with(planes), spark)
        folder = tmp_path / "events"
        folder.mkdir()
        (folder / "1.json").write_text(
            '{"flight": "F1", "tail": "a"}\n{"flight": "F2", "tail": "b"}'
        )
        events = spark.readStream.schema("flight STRING, tail STRING").json(str(folder))
        joined = enrich(events, table, "tail").writeStream.format("memory").queryName("joined")
        query = joined.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        try:
            query.processAllAvailable()
            assert rows(spark.table("joined")) == [("F1", "a", 1), ("F2", "b", None)]

            with closing(sqlite3.connect(planes.path)) as database:
                database.execute("INSERT INTO planes VALUES ('b', 2)")
                database.commit()
            (folder / "2.json").write_text('{"flight": "F3", "tail": "b"}')
            query.processAllAvailable()
            found = rows(spark.table("joined"))
            assert found == [("F1", "a", 1), ("F2", "b", None), ("F3", "b", 2)]
        finally:
            query.stop()

    def test_an_inner_join_leaves_out_what_has_no_row(
        self, spark: SparkSession, planes: Any
    ) -> None:
        table = input_of(pipeline_with(planes), spark)
        events = spark.createDataFrame([("F1", "a"), ("F2", "b")], "flight STRING, tail STRING")
        assert rows(enrich(events, table, "tail", "inner")) == [("F1", "a", 1)]

    def test_what_a_source_does_not_support_is_an_error_that_names_it(
        self, spark: SparkSession, planes: Any
    ) -> None:
        table = input_of(pipeline_with(planes, keep_versions="1 day"), spark)
        events = spark.sql("SELECT 'a' AS tail, TIMESTAMP '2026-03-01 12:00:00' AS at")
        name = f"table planes in {planes.path}"

        with pytest.raises(JoinError, match=f"{name} does not keep versions"):
            enrich_as_of(events, table, "tail", "at")
        with pytest.raises(JoinError, match=f"{name} does not keep versions"):
            _ = table.versions
        with pytest.raises(JoinError, match=f"{name} can't be read as a stream of changes"):
            join_tables(table, table, on="tail", right_prefix="other_")
        with pytest.raises(JoinError, match="planes can't be joined on a foreign key"):
            join_tables(table, table, foreign_key="tail", right_prefix="other_")
