"""Results as Parquet files: a stream that is stopped and started again has each row once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.conftest import Broker
from tidemill.spark import ParquetSink
from tidemill.spark.errors import PipelineError
from tidemill.spark.sinks.base import CheckpointState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_each_row_is_in_the_files_once_over_restarts_and_a_batch_that_is_run_again(
    spark: SparkSession, tidemill_broker: Broker, tmp_path: Path
) -> None:
    topic, folder, checkpoint = tidemill_broker.topic(), tmp_path / "out", tmp_path / "checkpoint"

    def run() -> None:
        rows = tidemill_broker.stream(spark, topic)
        numbers = rows.selectExpr("int(string(value)) AS n", "int(string(value)) % 2 AS odd")
        writer = numbers.writeStream.format("parquet").partitionBy("odd")
        writer = writer.option("path", str(folder)).option("checkpointLocation", str(checkpoint))
        assert writer.trigger(availableNow=True).start().awaitTermination(120)

    tidemill_broker.produce(topic, [b"%d" % i for i in range(50)])
    run()
    tidemill_broker.produce(topic, [b"%d" % i for i in range(50, 80)])
    run()
    # As if it had been killed after the files were written: Spark does not know that it is done.
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)
    last.unlink()
    run()
    found = spark.read.parquet(str(folder)).collect()
    assert sorted(row.n for row in found) == list(range(80))
    assert {path.name for path in folder.glob("odd=*")} == {"odd=0", "odd=1"}


FRESH, USED = CheckpointState(is_fresh=True), CheckpointState(is_fresh=False)
ADDRESSES = pytest.mark.parametrize("address", ["{}", "file:{}", "file://{}"])


@ADDRESSES
def test_a_folder_with_another_checkpoint_s_batches_is_refused(
    spark: SparkSession, tmp_path: Path, address: str
) -> None:
    df, sink = spark.range(1), ParquetSink(address.format(tmp_path / "a %41+b"))
    sink.check_result(df, FRESH)
    metadata = tmp_path / "a %41+b" / "_spark_metadata"
    metadata.mkdir(parents=True)
    sink.check_result(df, FRESH)  # a query was started, and wrote nothing
    (metadata / "9.compact").touch()

    with pytest.raises(PipelineError, match="contains batches of another checkpoint"):
        sink.check_result(df, FRESH)
    sink.check_result(df, USED)


@ADDRESSES
def test_a_folder_that_lacks_the_checkpoint_s_batches_is_refused(
    spark: SparkSession, tmp_path: Path, address: str
) -> None:
    df, sink = spark.range(1), ParquetSink(address.format(tmp_path / "out"))
    (tmp_path / "out").mkdir()

    with pytest.raises(PipelineError, match="out contains none of the batches") as refusal:
        sink.check_result(df, CheckpointState(is_fresh=False, reset="reset it"))
    assert refusal.value.hint.endswith("or start again with a new checkpoint: reset it")


def test_a_folder_with_a_batch_that_the_checkpoint_has_not_planned_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    df, sink = spark.range(1), ParquetSink(str(tmp_path / "out"))
    metadata = tmp_path / "out" / "_spark_metadata"
    metadata.mkdir(parents=True)
    for number in ("9.compact", "10"):
        (metadata / number).touch()
    for planned in (None, 10, 11):
        sink.check_result(df, CheckpointState(is_fresh=False, last_batch=planned))
    with pytest.raises(
        PipelineError, match=r"contains batch 10, .* planned is 9: .* from a backup"
    ):
        sink.check_result(df, CheckpointState(is_fresh=False, last_batch=9))


def test_a_folder_that_can_t_be_looked_at_is_told(spark: SparkSession) -> None:
    with pytest.raises(PipelineError, match=r"can't read folder nowhere://a/out: .*nowhere"):
        ParquetSink("nowhere://a/out").check_result(spark.range(1), FRESH)
