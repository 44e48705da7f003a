"""Results as Parquet files: a stream that is stopped and started again has each row once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.conftest import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_each_row_is_in_the_files_once_over_restarts_and_a_batch_that_is_run_again(
    spark: SparkSession, tidemill_broker: Broker, tmp_path: Path
) -> None:
    topic, folder, checkpoint = tidemill_broker.topic(), tmp_path / "out", tmp_path / "checkpoint"

    def run() -> None:
        reader = spark.readStream.format("tidemill").option("subscribe", topic)
        reader = reader.option("kafka.bootstrap.servers", tidemill_broker.bootstrap)
        rows = reader.option("startingOffsets", "earliest").load()
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
