"""Measures latencies and rates in one Spark session, and prints a line of JSON for each turn.

    python -m bench.pipelines.client SETTINGS

SETTINGS is a JSON object: see ``results.Settings``.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
from functools import partial
from pathlib import Path

from bench import machine
from bench.pipelines.latency import Failure, latencies
from bench.pipelines.rates import Rates
from bench.pipelines.results import (
    PLAIN,
    QUERIES,
    TIDEMILL,
    TRIGGERS,
    Latency,
    Rate,
    Settings,
)
from bench.pipelines.running import with_plain, with_tidemill
from bench.run import in_turn
from tidemill.spark import RunOptions, spark_session
from tidemill.spark.base import jvm


class Client:
    """The contenders in one session.

    Args:
        settings: Settings of the client.
        folder: Folder for checkpoints and logs. It must be empty.
    """

    def __init__(self, settings: Settings, folder: Path) -> None:
        self._settings = settings
        self._folder = folder
        self._names = [TIDEMILL, PLAIN] if settings.jars else [TIDEMILL]
        self._turns = 0
        extra = {"spark.driver.extraClassPath": ":".join(settings.jars)} if settings.jars else {}
        self._log = folder / "spark.log"
        self._spark = spark_session("pipelines", extra=extra, log_file=self._log)

    def run(self) -> None:
        """Run all turns and print them."""
        for query in QUERIES:
            for trigger in TRIGGERS:
                for name in in_turn(self._names, self._settings.rounds):
                    _print(self.latency(query, trigger, name))
        rates = Rates(self._spark, self._settings.bootstrap, self._folder)
        source, rows = self._settings.source, self._settings.rows
        for measure in (
            partial(rates.source_stream, topic=source, rows=rows),
            partial(rates.source_batch, topic=source, rows=rows),
            partial(rates.sink, rows=rows),
        ):
            for name in in_turn(self._names, self._settings.runs):
                machine.settle()
                _print(measure(name))

    def latency(self, query: str, trigger: str, contender: str) -> Latency:
        """Measure the latencies of a query that is started for this turn."""
        self._turns += 1
        topic = f"latency.{self._turns}"
        brokers, count = self._settings.bootstrap, self._settings.records

        def measure(failure: Failure) -> list[float]:
            return latencies(brokers, topic, f"{topic}.out", count, failure)

        if contender == TIDEMILL:
            options = RunOptions(brokers, self._folder / "pipelines", log_file=self._log)
            took = with_tidemill(query, trigger, topic, options, measure)
        else:
            checkpoint = str(self._folder / topic)
            took = with_plain(self._spark, brokers, query, trigger, topic, checkpoint, measure)
        return Latency(query, trigger, contender, took)


def _print(result: Latency | Rate) -> None:
    kind = type(result).__name__
    print(json.dumps({"kind": kind, **dataclasses.asdict(result)}), flush=True)


def main() -> None:
    settings = Settings(**json.loads(sys.argv[1]))
    with tempfile.TemporaryDirectory(prefix="spark-", dir=settings.folder) as folder:
        try:
            Client(settings, Path(folder)).run()
        finally:
            jvm.shutdown()


if __name__ == "__main__":
    main()
