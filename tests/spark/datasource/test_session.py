"""Sessions in a notebook or an environment that is not activated: ``python3`` is another Python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.conftest import broker_at
from tests.support.broker_process import BrokerProcess

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PROGRAM = """
import sys
from pyspark.sql import SparkSession
from pyspark_tidemill import register

# As PySpark's own guide says, and not with tidemill's function.
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.log.level", "OFF").getOrCreate()


def rows():
    reader = spark.read.format("tidemill").option("kafka.bootstrap.servers", sys.argv[1])
    return reader.option("subscribe", "a").load()


try:
    print("before:", rows().count())
except Exception as error:
    print("before:", type(error).__name__)
register(spark)
print("after:", rows().count())

from tidemill.spark import spark_session

session = spark_session("x")
print("same:", session.sparkContext is spark.sparkContext)
try:
    reader = session.read.format("tidemill").option("kafka.bootstrap.servers", sys.argv[1])
    reader.option("subscribe", "a").option("startingOffsets", "nowhere").load().count()
except Exception as error:
    print("error:", str(error).splitlines()[0])
"""


def test_a_session_of_pyspark_s_own_finds_the_data_source_after_register(tmp_path: Path) -> None:
    other = tmp_path / "bin"
    other.mkdir()
    # The first python3 on PATH has PySpark only, as a system's Python in a notebook's kernel.
    (other / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    (other / "python3").chmod(0o755)
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYSPARK_", "TIDEMILL_", "SPARK_CONF_DIR"))
    }
    with BrokerProcess(tmp_path / "broker", settings={"auto_create_topics": "false"}) as broker:
        broker_at(broker.bootstrap).topic(name="a")
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, broker.bootstrap],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
            env=kept | {"PATH": f"{other}{os.pathsep}{os.environ['PATH']}"},
            cwd=tmp_path,
        )
    said = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)

    assert said["after"] == "0", done.stderr
    assert said["before"] != "0"
    assert said["same"] == "True"
    assert "startingOffsets" in said["error"]  # the first line, and not Spark's words
    assert "[PYTHON" not in said["error"]
