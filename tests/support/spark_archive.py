"""An archive of Spark's loaded classes, which takes a third off the start of a JVM.

    python -m tests.support.spark_archive

makes it in the virtual environment, where it is not there yet (a minute, 180 MB). Without it
the tests take longer, and nothing else: a JVM takes no notice of an archive that does not fit it.
``make test`` makes it; ``tests/conftest.py`` has the tests' JVMs use it.

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
from tidemill.spark import jvm

STATIC = Path(__file__).parent / "spark_conf" / "spark-defaults.conf"
FOLDER = Path(sys.prefix) / "tidemill-tests"
DUMP_TIMEOUT_S = 180.0
_OPTIONS = "spark.driver.defaultJavaOptions"
_QUIET = "-Xlog:disable -Xlog:all=error:stderr"


def archive() -> Path:
    """Where the archive for this Java and this Spark stands, if it is there.

    Raises:
        JavaNotFoundError: there is no Java.
    """
    from pyspark.version import __version__ as spark

    path = jvm.find_java().path.resolve()
    of = f"{path} {path.stat().st_mtime_ns} {spark} {STATIC.read_text()}"
    return FOLDER / f"spark-{hashlib.sha256(of.encode()).hexdigest()[:12]}.jsa"


def conf_dir() -> Path:
    """A folder for SPARK_CONF_DIR: the tests' settings, with the archive where there is one."""
    made = list(FOLDER.glob("*.jsa")) if FOLDER.is_dir() else []
    if not made:
        return STATIC.parent
    # What does not fit is ignored; told on standard output, it would stand between what tests read.
    use = f"-XX:SharedArchiveFile={made[0]} {_QUIET}"
    text = "\n".join(
        f"{line} {use}" if line.startswith(_OPTIONS) else line
        for line in STATIC.read_text().splitlines()
    )
    folder = FOLDER / "spark_conf"
    folder.mkdir(exist_ok=True)
    fresh = folder / f"{os.getpid()}.tmp"
    fresh.write_text(text + "\n")
    fresh.replace(folder / STATIC.name)
    return folder


def make() -> None:
    """Make the archive if it is not there; older ones go."""
    path = archive()
    if path.is_file():
        return
    began = time.monotonic()
    FOLDER.mkdir(exist_ok=True)
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
        print(f"Made {path} in {time.monotonic() - began:.0f} s")
    else:
        fresh.unlink(missing_ok=True)
        print("No archive of Spark's classes could be made: the tests' JVMs start more slowly")


def _options() -> str:
    (line,) = (each for each in STATIC.read_text().splitlines() if each.startswith(_OPTIONS))
    return line.removeprefix(_OPTIONS).strip()


def load_classes(folder: Path) -> None:
    """Run a pipeline of several kinds of queries, so that what tests need is loaded."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    from tidemill.spark.joins import stream_stream
    from tidemill.spark.pipeline import Pipeline
    from tidemill.spark.runner import Runner, RunOptions
    from tidemill.spark.sinks import ChangelogSink, TopicSink
    from tidemill.spark.windows import tumbling

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
        del admin, producer  # before the broker goes, of which they would complain
    if errors:
        sys.exit("\n".join(errors))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        load_classes(Path(sys.argv[1]))
    else:
        make()
