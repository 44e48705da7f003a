"""Measures the source and the sink alone. Must not know: latency, pipelines."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from bench import cpu
from bench.pipelines.results import PLAIN, TIDEMILL, Rate

FORMATS = {TIDEMILL: "tidemill", PLAIN: "kafka"}
"""Contender -> its data source."""
VALUE_BYTES = 100


class Rates:
    """The source and the sink of each contender in one session.

    Args:
        spark: The session.
        brokers: Address of the broker.
        folder: Folder for checkpoints and files.
    """

    def __init__(self, spark: Any, brokers: str, folder: Path) -> None:
        self._spark = spark
        self._brokers = brokers
        self._folder = folder
        self._turns = 0

    def source_stream(self, contender: str, topic: str, rows: int) -> Rate:
        """Read a topic with a streaming query, and discard the rows."""
        reader = self._spark.readStream.format(FORMATS[contender])
        writer = self._reading(reader, topic).writeStream.format("noop")
        return self._streamed("source, streaming", contender, rows, writer)

    def source_batch(self, contender: str, topic: str, rows: int) -> Rate:
        """Read a topic with a batch query, and discard the rows."""
        reader = self._spark.read.format(FORMATS[contender])

        def run() -> None:
            loaded = self._reading(reader, topic)
            loaded.write.format("noop").mode("overwrite").save()

        wall, used = _measured(run)
        return Rate("source, batch", contender, rows, wall, used)

    def sink(self, contender: str, rows: int) -> Rate:
        """Write rows from Parquet files to a topic of one partition."""
        topic = f"sink.{self._turns}"
        self._create(topic)
        writer = (
            self._spark.readStream.schema("value BINARY")
            .parquet(str(self._files(rows)))
            .writeStream.format(FORMATS[contender])
            .option("kafka.bootstrap.servers", self._brokers)
            .option("topic", topic)
        )
        return self._streamed("sink", contender, rows, writer)

    def _create(self, topic: str) -> None:
        admin = AdminClient({"bootstrap.servers": self._brokers, "log_level": 4})
        for future in admin.create_topics([NewTopic(topic, 1, 1)]).values():
            future.result(timeout=60)

    def _reading(self, reader: Any, topic: str) -> Any:
        options = {"kafka.bootstrap.servers": self._brokers, "subscribe": topic}
        return reader.options(**options, startingOffsets="earliest").load()

    def _files(self, rows: int) -> Path:
        """Return a folder of Parquet files with rows, written at the first call."""
        folder = self._folder / f"rows-{rows}"
        if not folder.exists():
            text = f"rpad(string(id), {VALUE_BYTES}, 'x')"
            made = self._spark.range(0, rows, 1, 2).selectExpr(f"binary({text}) AS value")
            made.write.parquet(str(folder))
        return folder

    def _streamed(self, part: str, contender: str, rows: int, writer: Any) -> Rate:
        self._turns += 1
        checkpoint = self._folder / f"checkpoint-{self._turns}"
        writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        found: list[dict[str, Any]] = []

        def run() -> None:
            query = writer.start()
            query.awaitTermination()
            found.extend(json.loads(each.json) for each in query.recentProgress)

        _, used = _measured(run)
        read = sum(each["numInputRows"] for each in found)
        if read != rows:
            raise RuntimeError(f"{part}, {contender}: {read} rows instead of {rows}")
        wall = sum(each["durationMs"].get("addBatch", 0) for each in found) / 1000
        return Rate(part, contender, rows, wall, used)


def _measured(run: Callable[[], None]) -> tuple[float, float]:
    """Run a function, and return its wall and processor seconds."""
    used, began = cpu.tree_seconds(), time.perf_counter()
    run()
    return time.perf_counter() - began, cpu.tree_seconds() - used
