"""Two streaming queries into topics, in a driver that gets killed.

    python -m tests.crash.spark_driver JOB.json

One query copies records: each partition of the source into the partition of the same number. The
other counts the records of each key and writes the counts that changed, through ``foreachBatch``.
A query that fails is restarted. The driver writes a line for each step to a file. When the job's
stop file exists, it reads what is left and ends.

On a local master the queries' own tasks write, and a task that finds the name of its step in the
job's file ``hold`` waits there as long as the file names it, or another one with the task's process
id exists. Knows nothing of how it is killed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.spark_cluster import executor_settings
from tidemill.spark import spark_session, write_batch
from tidemill.spark.sinks.topic.sink import tasks_read, writing
from tidemill.spark.sinks.topic.tasks import ShareWriter

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

WRITING, WRITTEN, COMMITTED = "writing", "written", "committed"
"""Steps of a task: some rows are sent, all rows are sent, the transaction is committed."""
KEYS = 7
"""Counts are kept by value modulo this."""
_LOOK_S = 0.05


@dataclass(frozen=True)
class Job:
    """The work of the driver.

    Attributes:
        folder: for checkpoints and the JVM's log.
        events: file that gets a line per step.
        stop: the driver ends when this file exists.
        master: of Spark.
        hold: file with the step at which tasks wait, on a local master.
        executors: how many executors a driver has on a cluster.
    """

    bootstrap: str
    source: str
    copy: str
    counts: str
    folder: str
    events: str
    stop: str
    master: str
    hold: str
    executors: int = 2

    @classmethod
    def in_folder(
        cls, folder: Path, master: str, bootstrap: str, source: str, copy: str, counts: str
    ) -> Job:
        """Return a job with all its files in a folder."""
        files = (str(folder / name) for name in ("events", "stop", "hold"))
        events, stop, hold = files
        return cls(bootstrap, source, copy, counts, str(folder), events, stop, master, hold)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))


def note(events: str, step: str) -> None:
    """Add a step to the file of events. One write per line: a kill leaves whole lines."""
    file = os.open(events, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, f"{step}\n".encode())
    finally:
        os.close(file)


@dataclass(frozen=True)
class HeldWriter:
    """Writes the rows of a task as the topic sinks do, and waits where the job says.

    Attributes:
        write: The writer of the topic sinks.
        job: Names the file with the step to wait at.
    """

    write: ShareWriter
    job: Job

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        done = self.write(self._watched(batches))
        self._step(COMMITTED)
        return done

    def _watched(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            self._step(WRITING)
        self._step(WRITTEN)

    def _step(self, step: str) -> None:
        mine = Path(f"{self.job.hold}.{os.getpid()}")
        is_held = False
        while self._held() == step or (is_held and mine.exists()):
            if not is_held:
                note(self.job.events, f"held {step} {os.getpid()}")
                is_held = True
            time.sleep(_LOOK_S)

    def _held(self) -> str:
        try:
            return Path(self.job.hold).read_text()
        except FileNotFoundError:
            return ""


class Driver:
    """Starts the queries, and restarts those that fail."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._is_local = tasks_read(job.master)
        self._spark: SparkSession = spark_session(
            "crash",
            master=job.master,
            extra={
                "spark.sql.shuffle.partitions": "2",
                "spark.executor.memory": "512m",
                "spark.cores.max": str(job.executors),  # each has one core
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
                **executor_settings(),
            },
            log_file=Path(job.folder, "jvm.log"),
        )

        # The test looks for lost tasks in the log. Spark logs them as warnings.
        log4j: Any = self._spark.sparkContext._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
        log4j.core.config.Configurator.setLevel(
            "org.apache.spark.scheduler.TaskSetManager", log4j.Level.WARN
        )

    def run(self) -> None:
        self.note("up")
        starts = {"copy": self._copy, "counts": self._counts}
        queries = {name: start() for name, start in starts.items()}
        batches = dict.fromkeys(starts, -1)
        while not os.path.exists(self._job.stop):
            time.sleep(_LOOK_S)
            for name, query in list(queries.items()):
                if not query.isActive:
                    self.note(f"failed {name} {str(query.exception())[:300]!r}")
                    queries[name] = starts[name]()
                progress = query.lastProgress
                if progress is not None and progress.batchId > batches[name]:
                    batches[name] = progress.batchId
                    self.note(f"batch {name} {progress.batchId}")
        for name, query in queries.items():
            if not query.isActive:
                query = starts[name]()
            query.processAllAvailable()
            query.stop()
        self.note("done")

    def note(self, step: str) -> None:
        """Log a step."""
        note(self._job.events, step)

    def _stream(self) -> DataFrame:
        reader = self._spark.readStream.format("tidemill")
        return (
            reader.option("kafka.bootstrap.servers", self._job.bootstrap)
            .option("kafka.isolation.level", "read_committed")
            .option("subscribe", self._job.source)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "10000")
            .load()
        )

    def _copy(self) -> Any:
        records = self._stream().select("value", "partition")
        if self._is_local:
            return self._held(records, self._job.copy, "append")
        writer = records.writeStream.format("tidemill")
        return (
            writer.option("kafka.bootstrap.servers", self._job.bootstrap)
            .option("topic", self._job.copy)
            .option("checkpointLocation", f"{self._job.folder}/copy")
            .trigger(processingTime="50 milliseconds")
            .start()
        )

    def _counts(self) -> Any:
        from pyspark.sql import functions as f

        number = f.col("value").cast("string").cast("long")
        counted = self._stream().groupBy((number % KEYS).cast("string").alias("key")).count()
        records = counted.select("key", f.col("count").cast("string").alias("value"))
        if self._is_local:
            return self._held(records, self._job.counts, "update")
        kafka = {"bootstrap.servers": self._job.bootstrap}

        def write(df: DataFrame, batch_id: int) -> None:
            write_batch(df, batch_id, topic=self._job.counts, sink_id=self._job.counts, kafka=kafka)

        return (
            records.writeStream.foreachBatch(write)
            .outputMode("update")
            .option("checkpointLocation", f"{self._job.folder}/counts")
            .trigger(processingTime="50 milliseconds")
            .start()
        )

    def _held(self, records: DataFrame, topic: str, mode: str) -> Any:
        checkpoint = f"{self._job.folder}/{topic}"
        kafka = {"bootstrap.servers": self._job.bootstrap}
        write = HeldWriter(ShareWriter(topic, kafka, topic, checkpoint), self._job)
        return (
            writing(records, write)
            .outputMode(mode)
            .option("checkpointLocation", checkpoint)
            .trigger(processingTime="50 milliseconds")
            .start()
        )


if __name__ == "__main__":
    Driver(Job(**json.loads(Path(sys.argv[1]).read_text()))).run()
