"""Runs a query of either contender while something else is measured.

Must not know: what is measured.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bench.pipelines.declared import SCHEMA, WATERMARK, WINDOW, declared
from bench.pipelines.latency import Failure
from bench.pipelines.plain import as_json, stream
from tidemill.spark import Runner, RunOptions


@contextmanager
def guarded(run: Callable[[], object], stop: Callable[[], object]) -> Iterator[Failure]:
    """Run a function in a thread; yield its failure, and stop it at the end."""
    failure = Failure()

    def work() -> None:
        try:
            run()
        except BaseException as error:
            failure.error = error

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield failure
    finally:
        stop()
        thread.join(60)


def with_tidemill(
    query: str, trigger: str, topic: str, options: RunOptions, measure: Callable[[Failure], Any]
) -> Any:
    """Run a pipeline while ``measure`` runs, and return what that returns."""
    stop = threading.Event()
    runner = Runner(declared(query, trigger, topic), options)
    with guarded(lambda: runner.run(stop), stop.set) as failure:
        return measure(failure)


def with_plain(
    spark: Any,
    brokers: str,
    query: str,
    trigger: str,
    topic: str,
    checkpoint: str,
    measure: Callable[[Failure], Any],
) -> Any:
    """Run a plain query of Spark while ``measure`` runs, and return what that returns."""
    from pyspark.sql import functions as f

    records = stream(spark, brokers, topic, SCHEMA).withWatermark("at", WATERMARK)
    if query == "stateless":
        result, mode, key = records.filter("n >= 0").select("n"), "append", ""
    else:
        counted = records.groupBy(f.window("at", WINDOW)).agg({"n": "max", "*": "count"})
        result = counted.selectExpr("window.start", "`max(n)` AS n", "`count(1)` AS records")
        mode, key = "update", "start"
    running = (
        as_json(result, key)
        .writeStream.format("kafka")
        .outputMode(mode)
        .option("kafka.bootstrap.servers", brokers)
        .option("topic", f"{topic}.out")
        .option("checkpointLocation", checkpoint)
        .trigger(processingTime=trigger)
        .start()
    )
    with guarded(running.awaitTermination, running.stop) as failure:
        return measure(failure)
