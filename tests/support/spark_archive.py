"""The settings of the tests' JVMs, and an archive of Spark's classes that halves their start.

    python -m tests.support.spark_archive

makes the archive in the virtual environment if it is missing (a minute, 180 MB). ``make test`` does
that beside the first tests. A JVM that starts later uses the archive, and ignores one that does not
match; without it the tests only take longer. ``tests/conftest.py`` points SPARK_CONF_DIR to the
settings, so that the programs that tests start have them, too.

Source: JEP 350 (dynamic class data sharing archives).
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.support.broker_process import BrokerProcess
from tidemill.spark.base import jvm
from tidemill.spark.base.java import find_java

STATIC = Path(__file__).parent / "spark_conf" / "spark-defaults.conf"
FOLDER = Path(sys.prefix) / "tidemill-tests"
DUMP_TIMEOUT_S = 180.0
_OPTIONS = "spark.driver.defaultJavaOptions"
_QUIET = "-Xlog:disable -Xlog:all=error:stderr"


def archive() -> Path:
    """Return the file of the archive for this Java, this Spark and these settings.

    Raises:
        JavaNotFoundError: there is no Java.
    """
    from pyspark.version import __version__ as spark

    path = find_java().path.resolve()
    of = f"{path} {path.stat().st_mtime_ns} {spark} {STATIC.read_text()}"
    return FOLDER / f"spark-{hashlib.sha256(of.encode()).hexdigest()[:12]}.jsa"


def conf_dir() -> Path:
    """Return the folder for SPARK_CONF_DIR: the tests' settings, with the archive if there is one.

    ``make`` updates the file in it, so that JVMs that start later use the archive.
    """
    folder = FOLDER / "spark_conf"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fresh = folder / f"{os.getpid()}.tmp"
        fresh.write_text(_settings())
        fresh.replace(folder / STATIC.name)
    except OSError:  # an environment that belongs to another user
        return STATIC.parent
    return folder


def _settings() -> str:
    archives = list(FOLDER.glob("*.jsa"))
    # A JVM prints a warning about an archive that does not match to stdout, which tests read.
    use = f" -XX:SharedArchiveFile={archives[0]} {_QUIET}" if archives else ""
    return "".join(
        f"{line}{use}\n" if line.startswith(_OPTIONS) else f"{line}\n"
        for line in STATIC.read_text().splitlines()
    )


def make() -> None:
    """Make the archive if it is missing, and delete older ones."""
    path = archive()
    if path.is_file():
        return
    began = time.monotonic()
    FOLDER.mkdir(parents=True, exist_ok=True)
    for old in FOLDER.glob("*.jsa"):
        old.unlink()
    fresh = path.with_suffix(".tmp")
    fresh.unlink(missing_ok=True)
    options = f"{_options()} -XX:ArchiveClassesAtExit={fresh} {_QUIET}"
    with tempfile.TemporaryDirectory(prefix="tidemill-archive-") as folder:
        conf = Path(folder, "conf")
        conf.mkdir()
        (conf / STATIC.name).write_text(f"{_OPTIONS} {options}\n")
        env = {**os.environ, "SPARK_CONF_DIR": str(conf)}
        done = subprocess.run([sys.executable, "-m", __spec__.name, folder], env=env, check=False)
    if done.returncode == 0 and fresh.is_file():
        fresh.replace(path)
        conf_dir()
        print(f"Made {path} in {time.monotonic() - began:.0f} s")
    else:
        fresh.unlink(missing_ok=True)
        print("The archive of Spark's classes could not be made: the tests' JVMs start more slowly")


def _options() -> str:
    (line,) = (each for each in STATIC.read_text().splitlines() if each.startswith(_OPTIONS))
    return line.removeprefix(_OPTIONS).strip()


def load_classes(folder: Path) -> None:
    """Run a pipeline of several kinds of queries, which loads the classes that tests need."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

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
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        names = ("events", "counts", "pairs")
        for future in admin.create_topics([NewTopic(name, 1, 1) for name in names]).values():
            future.result(30)
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for number in range(20):
            row = {"id": str(number % 3), "at": f"2026-03-01T{number:02}:00:00Z"}
            producer.produce("events", json.dumps(row))
        assert producer.flush(30) == 0
        options = RunOptions(
            broker.bootstrap, folder / "state", until_caught_up=True, log_file=folder / "log"
        )
        errors = [status.error for status in Runner(p, options).run(None) if status.error]
        jvm.shutdown(DUMP_TIMEOUT_S)
        del admin, producer  # before the broker ends: they would log that it is gone
    if errors:
        sys.exit("\n".join(errors))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        load_classes(Path(sys.argv[1]))
    else:
        make()
