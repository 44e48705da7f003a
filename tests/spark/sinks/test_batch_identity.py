"""The identity of a batch differs from another batch of the same number."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.conftest import Broker
from tests.support.committed import values
from tidemill.spark import ChangelogSink, SqliteSink, TopicSink
from tidemill.spark.errors import SinkError
from tidemill.spark.pipelines.declared import Pipeline
from tidemill.spark.pipelines.progress import QueryStatus
from tidemill.spark.pipelines.runner import Runner, RunOptions
from tidemill.spark.sinks.batch_identity import BatchIdentity, StartedBatch, batch_identity

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def offsets(tmp_path: Path) -> Path:
    folder = tmp_path / "a checkpoint" / "offsets"
    folder.mkdir(parents=True)
    for number in (2, 9, 10):
        (folder / str(number)).write_text(f"v1\n{number}")
        (folder / f".{number}.crc").write_text("of Spark's")
    return folder


@pytest.mark.parametrize("address", ["{}", "file:{}", "file://{}", "{}/"])
def test_the_identity_is_a_fingerprint_of_the_checkpoint_s_file(
    offsets: Path, address: str
) -> None:
    checkpoint = address.format(offsets.parent)
    last = batch_identity(checkpoint)

    assert last is not None
    assert last.batch_id == 10
    assert batch_identity(checkpoint, 10) == last
    (offsets / "10").write_text("v1\nanother")
    again = batch_identity(checkpoint)
    assert isinstance(again, BatchIdentity)
    assert (again.batch_id, again.fingerprint != last.fingerprint) == (10, True)
    assert batch_identity(checkpoint, 9) == batch_identity(str(offsets.parent), 9) != None  # noqa: E711


def test_an_unreadable_checkpoint_has_no_identity(offsets: Path) -> None:
    checkpoint = str(offsets.parent)
    assert batch_identity(None) is None
    assert batch_identity("") is None
    assert batch_identity("s3a://bucket/checkpoint") is None
    assert batch_identity(f"{checkpoint}/elsewhere") is None
    assert batch_identity(checkpoint, 11) is None
    for each in offsets.iterdir():
        each.unlink()
    assert batch_identity(checkpoint) is None


def test_a_batch_is_new_until_it_is_recorded(offsets: Path, tmp_path: Path) -> None:
    started = StartedBatch(tmp_path / "begun.json", f"file://{offsets.parent}")
    assert not started.is_new(9)  # nothing is known: it may be of before this was kept
    started.record(9)
    assert not started.is_new(9)
    assert started.is_new(10)
    assert not started.is_new(11)  # there is no such plan
    started.record(10)
    assert not StartedBatch(tmp_path / "begun.json", str(offsets.parent)).is_new(10)
    (offsets / "10").write_text("v1\nanother")
    assert started.is_new(10)


def test_a_file_that_can_t_be_written_is_an_error(offsets: Path, tmp_path: Path) -> None:
    with pytest.raises(SinkError, match=r"can't write .*no/begun\.json"):
        StartedBatch(tmp_path / "no" / "begun.json", str(offsets.parent)).record(10)


class Place:
    """A pipeline whose data folder is restored from a backup."""

    def __init__(self, broker: Broker, folder: Path) -> None:
        self.broker, self.folder = broker, folder
        self.topic = broker.topic()
        self.options = RunOptions(
            broker.bootstrap, folder / "state", until_caught_up=True, restart=False
        )

    def put(self, *ids: int) -> None:
        self.broker.produce(self.topic, [json.dumps({"id": each}) for each in ids])

    def run(self) -> dict[str, QueryStatus]:
        p = Pipeline(self.topic)
        p.stream("s", topic=self.topic, schema="id INT", dead_letters=None)
        p.sql("each", "SELECT id FROM s", sink=TopicSink(f"{self.topic}.each"))
        total = "SELECT 1 AS k, sum(id) AS total FROM s"
        changelog = ChangelogSink(f"{self.topic}.total", "k")
        p.sql("total", total, sink=changelog, mode="update")
        table = SqliteSink("t", "k", self.folder / "x.db")
        p.sql("table", total, sink=table, mode="update")
        return {each.query: each for each in Runner(p, self.options).run()}

    def found(self) -> tuple[list[Any], list[Any], list[Any]]:
        each, total = (
            [
                json.loads(value or b"")
                for value in values(self.broker.bootstrap, f"{self.topic}.{n}")
            ]
            for n in ("each", "total")
        )
        with closing(sqlite3.connect(self.folder / "x.db")) as connection:
            rows = connection.execute("SELECT total FROM t").fetchall()
        return [row["id"] for row in each], [row["total"] for row in total], rows


@pytest.mark.spark
@pytest.mark.slow
def test_a_restored_checkpoint_drops_no_row_silently(
    spark: SparkSession, tidemill_broker: Broker, tmp_path: Path
) -> None:
    place = Place(tidemill_broker, tmp_path)
    state, backup = tmp_path / "state", tmp_path / "backup"
    place.put(1, 2)
    for each in place.run().values():
        assert (each.state, each.error) == ("done", None)
    assert place.found() == ([1, 2], [3], [(3,)])
    shutil.copytree(state, backup)
    place.put(3)
    place.run()
    before = ([1, 2, 3], [3, 6], [(6,)])
    assert place.found() == before
    for commit in state.glob("*/*/checkpoint/commits/1"):  # as if killed before it stood there
        commit.unlink()
    for each in place.run().values():  # the plan is the same: it is the batch that was written
        assert (each.state, each.error) == ("done", None)
    assert place.found() == before
    shutil.rmtree(state)
    shutil.copytree(backup, state)
    place.put(4, 5)

    for _ in range(2):  # no restart makes the batch the one that was written
        told = place.run()
        assert {name: each.state for name, each in told.items()} == dict.fromkeys(told, "failed")
        for each in told.values():
            assert "planned" in (each.error or "")
            assert "restored from a backup, or copied" in (each.error or "")
            assert "tidemill pipeline reset" in (each.error or "")
        assert place.found() == before
