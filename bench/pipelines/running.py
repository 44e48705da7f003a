"""Runs a query of either contender while something else is measured.

Must not know: what is measured.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from bench.pipelines import plain
from bench.pipelines.declared import SCHEMA, WATERMARK, WINDOW, declared
from bench.pipelines.latency import Failure
from tidemill.spark import Runner, RunOptions


def with_tidemill(
    query: str, trigger: str, topic: str, options: RunOptions, measure: Callable[[Failure], Any]
) -> Any:
    """Run a pipeline while ``measure`` runs, and return what that returns."""
    stop, failure = threading.Event(), Failure()

    def run() -> None:
        try:
            Runner(declared(query, trigger, topic), options).run(stop)
        except BaseException as error:
            failure.error = error

    thread = threading.Thread(target=run)
    thread.start()
    try:
        return measure(failure)
    finally:
        stop.set()
        thread.join(60)


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
    records = plain.stream(spark, brokers, topic, SCHEMA).withWatermark("at", WATERMARK)
    if query == "stateless":
        result, mode, key = records.filter("n >= 0").select("n"), "append", ""
    else:
        result, mode, key = plain.windowed(records, WINDOW), "update", "start"
    writer = plain.as_json(result, key).writeStream.format("kafka").outputMode(mode)
    running = (
        writer.option("kafka.bootstrap.servers", brokers)
        .option("topic", f"{topic}.out")
        .option("checkpointLocation", checkpoint)
        .trigger(processingTime=trigger)
        .start()
    )
    failure = Failure()
    watcher = threading.Thread(target=_watch, args=(running, failure))
    watcher.start()
    try:
        return measure(failure)
    finally:
        running.stop()
        watcher.join(60)


def _watch(running: Any, failure: Failure) -> None:
    try:
        running.awaitTermination()
    except Exception as error:
        failure.error = error
