"""Compacting the folder of a Parquet sink: a copy with the same rows in few files."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.conftest import Broker
from tidemill.spark import compact_parquet
from tidemill.spark.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


class Archive:
    """A folder that a streaming query fills, some rows in a batch."""

    def __init__(self, spark: SparkSession, broker: Broker, folder: Path) -> None:
        self.spark = spark
        self.broker = broker
        self.topic = broker.topic(2)
        self.folder = folder / "archive"
        self.checkpoint = folder / "checkpoint"
        self.rows = 0

    def add(self, count: int) -> None:
        """Write more rows in one batch."""
        numbers = range(self.rows, self.rows + count)
        for partition in range(2):
            self.broker.produce(
                self.topic, [b"%d" % n for n in numbers if n % 2 == partition], partition=partition
            )
        self.rows += count
        frame = self.broker.stream(self.spark, self.topic)
        numbers_read = frame.selectExpr("int(string(value)) AS n", "int(string(value)) % 2 AS odd")
        writer = numbers_read.writeStream.format("parquet").partitionBy("odd")
        writer = writer.option("path", str(self.folder))
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        assert writer.trigger(availableNow=True).start().awaitTermination(120)

    @property
    def files(self) -> int:
        return len(list(self.folder.rglob("*.parquet")))


@pytest.fixture
def archive(spark: SparkSession, tidemill_broker: Broker, tmp_path: Path) -> Archive:
    made = Archive(spark, tidemill_broker, tmp_path)
    for _ in range(3):
        made.add(20)
    return made


def test_all_rows_are_copied_once_into_few_files(archive: Archive, tmp_path: Path) -> None:
    spark, target = archive.spark, tmp_path / "compact"
    # As a task leaves it that was killed, and ran again: readers on Spark do not see this file.
    one = next(archive.folder.rglob("*.parquet"))
    (one.parent / f"part-99999-{one.name}").write_bytes(one.read_bytes())
    before = archive.files
    done = compact_parquet(spark, archive.folder, target)

    assert (done.rows, done.files_before, done.files) == (60, before - 1, 1)
    assert sorted(row.n for row in spark.read.parquet(str(target)).collect()) == list(range(60))
    assert len(list(target.rglob("*.parquet"))) == 1
    assert archive.files == before  # the source is as it was
    archive.add(20)  # and the query continues in it
    assert spark.read.parquet(str(archive.folder)).count() == 80
    assert spark.read.parquet(str(target)).count() == 60

    check_a_part_with_folders(archive, tmp_path)
    check_settings_of_the_session_are_kept(spark)
    check_refusals(archive, tmp_path, target)
    check_while_the_query_runs(archive, tmp_path)


def check_a_part_with_folders(archive: Archive, tmp_path: Path) -> None:
    target = tmp_path / "part"
    done = compact_parquet(
        archive.spark, archive.folder, target, where="n >= 10", partition_by="odd"
    )

    assert (done.rows, done.files) == (70, 2)
    assert {path.name for path in target.glob("odd=*")} == {"odd=0", "odd=1"}
    assert archive.spark.read.parquet(str(target)).where("n < 10 OR n % 2 != odd").count() == 0


def check_settings_of_the_session_are_kept(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.files.openCostInBytes") != "0"


def check_refusals(archive: Archive, tmp_path: Path, existing: Path) -> None:
    spark, empty = archive.spark, tmp_path / "empty"
    (empty / "_spark_metadata").mkdir(parents=True)
    refused = {
        existing: (archive.folder, "already exists"),
        archive.folder / "inner": (archive.folder, "is inside of"),
        archive.folder: (archive.folder, "is inside of"),
        tmp_path / "a": (tmp_path / "nothing", "has no _spark_metadata"),
        tmp_path / "b": (empty, "can't be compacted"),
    }
    for target, (source, message) in refused.items():
        with pytest.raises(PipelineError, match=message) as refusal:
            compact_parquet(spark, source, target)
        assert refusal.value.hint
    with pytest.raises(PipelineError, match="is inside of"):
        compact_parquet(spark, f"file://{archive.folder}", archive.folder / "inner")
    with pytest.raises(PipelineError, match=r"can't be compacted: .*nosuch"):
        compact_parquet(spark, archive.folder, tmp_path / "c", where="nosuch > 1")
    assert spark.read.parquet(str(archive.folder)).count() == archive.rows


def check_while_the_query_runs(archive: Archive, tmp_path: Path) -> None:
    """A copy has whole batches: what was finished before it started, or with it."""
    before = archive.rows
    writer = threading.Thread(target=archive.add, args=(20,))
    writer.start()
    done = compact_parquet(archive.spark, archive.folder, tmp_path / "meanwhile")
    writer.join()

    assert done.rows in (before, archive.rows)
    numbers = archive.spark.read.parquet(str(tmp_path / "meanwhile")).collect()
    assert sorted(row.n for row in numbers) == list(range(done.rows))
