"""Runs Spark for ``pipelines`` and prints the seconds of records and runs as JSON.

python -m bench.pipelines_client BROKERS RECORDS TOPIC RUNS FOLDER
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from tidemill.spark import (
    ChangelogSink,
    Pipeline,
    Runner,
    RunOptions,
    TopicSink,
    spark_session,
    tumbling,
)
from tidemill.spark.base import jvm

WARM_UP_RECORDS = 10
"""Most records that are not measured: the first batches load classes and start workers."""
TIMEOUT_S = 300.0


def latency(brokers: str, query: str, count: int, folder: Path) -> list[float]:
    """Return for each record the seconds from before it is produced until its result is read."""
    pipeline = declared(query)
    source, result = f"latency.{query}", f"latency.{query}.out"
    stop, warm_up = threading.Event(), min(WARM_UP_RECORDS, count)
    options = RunOptions(brokers, folder / "pipelines", log_file=folder / "spark.log")
    failure: list[BaseException] = []

    def run() -> None:
        try:
            Runner(pipeline, options).run(stop)
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        producer = Producer({"bootstrap.servers": brokers, "linger.ms": 0})
        with reading(brokers, result) as seen:
            took = []
            for number in range(warm_up + count):
                began = time.perf_counter()
                now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                producer.produce(source, json.dumps({"n": number, "at": now}))
                producer.flush(60)
                seen.wait_for(number, failure)
                took.append(seen.at[number] - began)
                time.sleep(random.uniform(0.2, 0.5))  # independent of the triggers
    finally:
        stop.set()
        thread.join(60)
    return took[warm_up:]


def declared(query: str) -> Pipeline:
    """Return the pipeline that is measured."""
    pipeline = Pipeline(f"latency-{query}")
    pipeline.stream(
        "records",
        topic=f"latency.{query}",
        schema="n BIGINT, at TIMESTAMP",
        event_time="at",
        watermark="1 minute",
        dead_letters=None,
    )
    topic = f"latency.{query}.out"
    if query == "stateless":

        @pipeline.query(sink=TopicSink(topic))
        def stateless(records: Any) -> Any:
            return records.df.filter("n >= 0").select("n")

        return pipeline

    @pipeline.query(sink=ChangelogSink(topic, key="start"), mode="update")
    def windowed(records: Any) -> Any:
        counted = records.df.groupBy(tumbling("at", "10 seconds")).agg({"n": "max", "*": "count"})
        return counted.selectExpr("window.start", "`max(n)` AS n", "`count(1)` AS records")

    return pipeline


class Seen:
    """The times at which results were read, by their number."""

    def __init__(self) -> None:
        self.at: dict[int, float] = {}
        self.changed = threading.Condition()

    def wait_for(self, number: int, failure: list[BaseException]) -> None:
        """Wait until the result of a record was read."""
        deadline = time.monotonic() + TIMEOUT_S
        with self.changed:
            while number not in self.at:
                if failure:
                    raise failure[0]
                if time.monotonic() > deadline:
                    raise TimeoutError(f"no result of record {number} in {TIMEOUT_S} s")
                self.changed.wait(1)


@contextmanager
def reading(brokers: str, topic: str) -> Iterator[Seen]:
    """Read a topic in the background."""
    seen, over = Seen(), threading.Event()
    config = {"group.id": "bench", "isolation.level": "read_committed", "log_level": 2}
    consumer = Consumer({"bootstrap.servers": brokers, "fetch.wait.max.ms": 500, **config})

    def read() -> None:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while not over.is_set():
            message = consumer.poll(0.2)
            if message is None or message.error() is not None:
                continue
            number = json.loads(message.value() or b"{}")["n"]
            with seen.changed:
                seen.at.setdefault(number, time.perf_counter())
                seen.changed.notify_all()

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join(30)
        consumer.close()


def rate(brokers: str, topic: str, count: int, folder: Path) -> list[float]:
    """Return the seconds that one task takes to read a topic, for each run."""
    spark = spark_session("rate", log_file=folder / "spark.log")
    took = []
    for number in range(count):
        query = (
            spark.readStream.format("tidemill")
            .option("kafka.bootstrap.servers", brokers)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(folder / f"checkpoint-{number}"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        batches = [json.loads(each.json) for each in query.recentProgress]
        took.append(sum(each["durationMs"].get("addBatch", 0) for each in batches) / 1000)
    return took


def main() -> None:
    brokers, records, topic, runs, parent = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="spark-", dir=parent) as folder:
        found = {
            query: latency(brokers, query, int(records), Path(folder))
            for query in ("stateless", "windowed")
        }
        found["rate"] = rate(brokers, topic, int(runs), Path(folder))
        jvm.shutdown()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
