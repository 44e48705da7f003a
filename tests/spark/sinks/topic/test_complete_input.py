"""A task that misses rows commits nothing, and the next attempt writes all of them."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.support.committed import values
from tidemill.spark import write_batch
from tidemill.spark.errors import DeliveryError
from tidemill.spark.sinks.topic import complete_input

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.conftest import Broker

ROWS = 1000


def arrow_stream(batches: int, *, ended: bool) -> bytes:
    """An Arrow stream as Spark sends it."""
    out = io.BytesIO()
    column = pa.array([b"some bytes"] * 5, pa.binary())
    writer = pa.ipc.new_stream(out, pa.schema([("value", pa.binary())]))
    for _ in range(batches):
        writer.write_batch(pa.record_batch({"value": column}))
    if ended:
        writer.close()
    return out.getvalue()


@pytest.mark.parametrize("batches", [0, 1, 3])
def test_a_stream_is_broken_off_where_it_has_no_end_mark(batches: int) -> None:
    for ended in (True, False):
        behind = b"what comes next"
        content = arrow_stream(batches, ended=ended) + (behind if ended else b"")
        source = io.BufferedReader(io.BytesIO(content))
        watched = complete_input.WatchedStream(source)
        found = list(pa.ipc.open_stream(watched)) if batches or ended else []
        if not batches and not ended:
            assert watched.read(8) == b""
        assert len(found) == batches
        assert watched.is_truncated is not ended
        assert source.read() == (behind if ended else b"")  # not a byte too much was taken


def test_where_nobody_can_tell_nothing_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(complete_input, "_current", None)
    with pytest.raises(DeliveryError, match="this release of PySpark"):
        complete_input.ensure_complete()
    watched = complete_input.WatchedStream(io.BytesIO(b"1234"))
    monkeypatch.setattr(complete_input, "_current", watched)
    assert watched.read(4) == b"1234"
    complete_input.ensure_complete()
    assert watched.read(4) == b""
    with pytest.raises(DeliveryError, match="are incomplete: none of them"):
        complete_input.ensure_complete()


# --- in Spark ------------------------------------------------------------------------------------


def numbers(spark: SparkSession, fails: bool) -> DataFrame:
    """Values from 0 in one task, which may fail shortly before the end."""
    from pyspark.sql import functions as f

    value = f.col("id").cast("string")
    if fails:
        error = f.raise_error(f.lit("broken above")).cast("string")
        value = f.when(f.col("id") == ROWS - 50, error).otherwise(value)
    return spark.range(0, ROWS, 1, 1).select(value.alias("value"))


@pytest.mark.spark
@pytest.mark.usefixtures("small_batches")
def test_a_batch_that_failed_above_the_sink_is_written_whole_when_it_is_run_again(
    spark: SparkSession, broker: Broker
) -> None:
    topic = broker.topic()
    with pytest.raises(Exception, match="broken above"):
        write_batch(numbers(spark, True), 0, topic=topic, sink_id=topic, kafka=broker.kafka)
    write_batch(numbers(spark, False), 0, topic=topic, sink_id=topic, kafka=broker.kafka)

    expected = [str(n).encode() for n in range(ROWS)]
    assert values(broker.bootstrap, topic, 0) == expected


@pytest.mark.spark
@pytest.mark.usefixtures("small_batches")
def test_a_stream_that_failed_above_the_sink_loses_nothing(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    source, target = broker.topic(), broker.topic()
    broker.produce(source, [b"%d" % n for n in range(ROWS)])
    mended = tmp_path / "mended"

    def above(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            if b"%d" % (ROWS - 50) in batch.column("value").to_pylist() and not mended.exists():
                raise ValueError("broken above")
            yield batch

    def run() -> None:
        query = (
            broker.stream(spark, source)
            .select("value")
            .mapInArrow(above, "value binary")
            .writeStream.format("tidemill")
            .option("kafka.bootstrap.servers", broker.bootstrap)
            .option("topic", target)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    with pytest.raises(Exception, match="broken above"):
        run()
    mended.touch()
    run()
    assert values(broker.bootstrap, target, 0) == [b"%d" % n for n in range(ROWS)]


@pytest.mark.spark
def test_one_sink_id_writes_one_output_of_a_batch(spark: SparkSession, broker: Broker) -> None:
    from pyspark.sql import functions as f

    one, two, again = broker.topic(), broker.topic(), broker.topic()
    refused: list[DeliveryError] = []

    def write(df: DataFrame, batch_id: int) -> None:
        rows = df.select(f.col("value").cast("string").alias("value"))
        for topic in (one, two, again):  # a topic each: nothing is taken for written
            write_batch(rows, batch_id, topic=topic, sink_id=one, kafka=broker.kafka)
        try:
            write_batch(rows, batch_id, topic=again, sink_id=one, kafka=broker.kafka)
        except DeliveryError as error:
            refused.append(error)

    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10)
    stream = stream.option("numPartitions", 1)
    query = stream.load().writeStream.foreachBatch(write).trigger(availableNow=True).start()
    query.awaitTermination()
    for topic in (one, two, again):
        assert len(values(broker.bootstrap, topic, 0)) == 10, topic
    assert "a different sink_id" in refused[0].hint
