"""The settings of the tests' JVMs, and an archive of Spark's classes that halves their start.

    python -m tests.support.spark_archive

makes the archive in the virtual environment if it is missing (a minute, 180 MB): it runs a pipeline
whose JVM records its classes, as the first pipeline of a user does. ``make test`` does that before
the tests. Without it the tests only take longer. ``tests/conftest.py`` sets the variables, so that
the programs that tests start have them, too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.support.broker_process import BrokerProcess
from tests.support.processes import poll_until
from tests.support.topics import create, write
from tidemill.spark.base import class_archive, jvm

SETTINGS = Path(__file__).parent / "spark_conf"
FOLDER = Path(sys.prefix) / "tidemill-tests"
DUMP_TIMEOUT_S = 180.0


def set_variables() -> None:
    """Set the variables for the JVMs of the tests, unless the caller has set them.

    Without an archive, the tests' JVMs must not record one: it would be made beside the tests.
    """
    os.environ.setdefault("SPARK_CONF_DIR", str(SETTINGS))
    folder = str(FOLDER) if list(FOLDER.glob("*.jsa")) else "0"
    os.environ.setdefault(class_archive.SWITCH, folder)


def make() -> None:
    """Make the archive if it is missing."""
    os.environ["SPARK_CONF_DIR"] = str(SETTINGS)
    os.environ[class_archive.SWITCH] = str(FOLDER)
    archive = jvm.class_archive()
    if archive is None or archive.list is None:
        return
    began = time.monotonic()
    for old in FOLDER.glob("*.jsa"):
        old.unlink()
    with tempfile.TemporaryDirectory(prefix="tidemill-archive-") as folder:
        subprocess.run([sys.executable, "-m", __spec__.name, folder], check=False)

    def is_over() -> bool:
        return archive.path.is_file() or archive.failure.is_file()

    try:
        poll_until(is_over, DUMP_TIMEOUT_S, "the archive is made", interval=0.2)
    except TimeoutError:
        print("The archive of Spark's classes was not made: the tests' JVMs start more slowly")
        return
    print(f"Made {archive.path} in {time.monotonic() - began:.0f} s")


def load_classes(folder: Path) -> None:
    """Run a pipeline of several kinds of queries, which loads the classes that tests need."""

    from tidemill.spark import (
        ChangelogSink,
        Pipeline,
        Runner,
        RunOptions,
        TopicSink,
        stream_stream,
        tumbling,
    )

    p = Pipeline("classes")
    schema = "id STRING, at TIMESTAMP"
    p.stream("events", schema=schema, event_time="at", watermark="1 minute")
    p.stream("others", topic="events", schema=schema, event_time="at", watermark="1 minute")

    @p.query(sink=ChangelogSink("counts", key="id"), mode="update")
    def counts(events: Any) -> Any:
        return events.df.groupBy(tumbling("at", "1 hour"), "id").count().drop("window")

    @p.query(sink=TopicSink("pairs"))
    def pairs(events: Any, others: Any) -> Any:
        return stream_stream(
            events.df, others.df.withColumnRenamed("at", "at2"), on="id", within="1 hour"
        )

    with BrokerProcess(folder / "broker") as broker:
        create(broker.bootstrap, "events", "counts", "pairs")
        rows = ({"id": str(n % 3), "at": f"2026-03-01T{n:02}:00:00Z"} for n in range(20))
        write(broker.bootstrap, "events", *rows)
        options = RunOptions(
            broker.bootstrap, folder / "state", until_caught_up=True, log_file=folder / "log"
        )
        errors = [status.error for status in Runner(p, options).run(None) if status.error]
        jvm.shutdown()
    if errors:
        sys.exit("\n".join(errors))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        load_classes(Path(sys.argv[1]))
    else:
        make()
