"""Starts one pipeline in this process, and prints the seconds of each phase as JSON.

    python -m bench.pipelines.start_client BROKERS FOLDER SOURCE RESULT

The topic SOURCE must have records. A phase has its wall seconds and the processor seconds of this
process, the JVM and its Python workers.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

import psutil

from bench import cpu
from bench.pipelines.declared import declared
from bench.pipelines.latency import reading
from bench.pipelines.results import PHASES
from bench.pipelines.running import guarded
from tidemill.spark import Runner, RunOptions, spark_session
from tidemill.spark.base import jvm

_POLL_S = 0.02


class Phases:
    """Wall and processor seconds of phases that follow each other."""

    def __init__(self) -> None:
        self.took: dict[str, list[float]] = {}
        self._wall, self._cpu = psutil.Process().create_time(), 0.0

    def end(self, name: str) -> None:
        """End a phase; the next one begins."""
        wall, used = time.time(), cpu.tree_seconds()
        self.took[name] = [wall - self._wall, used - self._cpu]
        self._wall, self._cpu = wall, used


def main() -> None:
    brokers, folder, source, result = sys.argv[1:]
    phases = Phases()
    pipeline = declared("stateless", "200 milliseconds", source)
    options = RunOptions(brokers, Path(folder), log_file=Path(folder) / "spark.log")
    phases.end(PHASES[0])
    spark = spark_session(f"tidemill {pipeline.name}", log_file=options.log_file)
    phases.end(PHASES[1])
    stop = threading.Event()
    runner = Runner(pipeline, options)
    try:
        with guarded(lambda: runner.run(stop), stop.set) as failure:
            while not spark.streams.active:
                failure.check()
                time.sleep(_POLL_S)  # poll: Spark has no event for it in Python
            phases.end(PHASES[2])
            with reading(brokers, result) as seen:
                seen.wait_for(0, failure)
            phases.end(PHASES[3])
    finally:
        jvm.shutdown()
    print(json.dumps(phases.took))


if __name__ == "__main__":
    main()
