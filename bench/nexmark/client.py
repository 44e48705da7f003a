"""Runs Nexmark's queries in one Spark session, and prints a line of JSON for each turn.

    python -m bench.nexmark.client SETTINGS

SETTINGS is a JSON object: see ``turns.Settings``. Both contenders use one session, so they have the
same JVM and the same settings. Each contender's first query is not measured.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench import cpu, machine, threads
from bench.nexmark import pipelines, plain
from bench.nexmark.queries import QUERIES
from bench.nexmark.rows import canonical, digest, read_topic
from bench.nexmark.turns import PLAIN, TIDEMILL, Settings, Turn
from bench.run import in_turn
from tidemill.spark import Runner, RunOptions, spark_session
from tidemill.spark.base import jvm

WARM_UP = "q7"


class Client:
    """The contenders in one session.

    Args:
        settings: What to run.
        folder: Folder for checkpoints and logs. It must be empty.
    """

    def __init__(self, settings: Settings, folder: Path) -> None:
        self._settings = settings
        self._folder = folder
        self._log = folder / "spark.log"
        self._turns = 0
        self._contenders: dict[str, Callable[[str, str], None]] = {TIDEMILL: self._tidemill}
        if settings.jars:
            self._contenders[PLAIN] = self._plain
        self._extra = {
            "spark.driver.memory": settings.memory,
            "spark.driver.extraClassPath": ":".join(settings.jars),
        }
        self._spark = spark_session(
            "nexmark", extra={k: v for k, v in self._extra.items() if v}, log_file=self._log
        )

    def run(self) -> None:
        """Run all queries and print the turns."""
        for name in self._contenders:
            self.turn(WARM_UP, name)
        for query in self._settings.queries:
            for name in in_turn(list(self._contenders), self._settings.rounds):
                print(json.dumps(dataclasses.asdict(self.turn(query, name))), flush=True)

    def turn(self, query: str, contender: str) -> Turn:
        """Run one query once, and read its result."""
        self._turns += 1
        topic = f"nexmark.{query}.{self._turns}"
        machine.settle()
        broker = cpu.seconds(self._settings.broker_pid)
        [java] = threads.jvms()
        java_before = threads.times(java)
        used, began = cpu.tree_seconds(), time.perf_counter()
        self._contenders[contender](query, topic)
        wall = time.perf_counter() - began
        used = cpu.tree_seconds() - used
        in_threads = threads.difference(threads.times(java), java_before)
        broker = cpu.seconds(self._settings.broker_pid) - broker
        values = read_topic(self._settings.bootstrap, topic)
        found = digest(canonical(values, QUERIES[query].columns))
        return Turn(query, contender, wall, used, broker, found.rows, found.hash, in_threads)

    def _tidemill(self, query: str, topic: str) -> None:
        options = RunOptions(
            self._settings.bootstrap,
            self._folder / "pipelines",
            until_caught_up=True,
            log_file=self._log,
        )
        for status in Runner(pipelines.pipeline(query, topic), options).run():
            if status.error:
                raise RuntimeError(f"{status.query}: {status.error}")

    def _plain(self, query: str, topic: str) -> None:
        checkpoint = str(self._folder / f"plain-{topic}")
        plain.start(
            self._spark, self._settings.bootstrap, query, topic, checkpoint
        ).awaitTermination()


def main() -> None:
    settings = Settings(**json.loads(sys.argv[1]))
    with tempfile.TemporaryDirectory(prefix="nexmark-", dir=settings.folder) as folder:
        try:
            Client(settings, Path(folder)).run()
        finally:
            jvm.shutdown()


if __name__ == "__main__":
    main()
