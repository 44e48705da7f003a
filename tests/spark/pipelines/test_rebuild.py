"""Rebuilding the sink of a query: beside the old one, then switched, also after a crash."""

from __future__ import annotations

import json
import shutil
import sqlite3
import uuid
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tidemill.spark import Pipeline, SqliteSink, TopicSink
from tidemill.spark.errors import PipelineError, PipelineRunningError
from tidemill.spark.pipelines.checkpoint import Checkpoint, Fingerprint, PipelineLock
from tidemill.spark.pipelines.rebuild import Rebuild
from tidemill.spark.pipelines.resolve import all_queries
from tidemill.spark.pipelines.runner import Runner, RunOptions, find_error
from tidemill.spark.pipelines.status_topic import read_statuses

if TYPE_CHECKING:
    from tests.spark.conftest import Broker

FINGERPRINT = Fingerprint(("topic t",), "append", ())


def checkpoint(root: Path, pipeline: str, batches: int, text: str) -> Checkpoint:
    """A checkpoint as Spark and a sink leave it."""
    made = Checkpoint(root, pipeline, "q")
    made.begin(FINGERPRINT)
    offsets = made.spark_folder / "offsets"
    offsets.mkdir(parents=True)
    for batch in range(batches):
        (offsets / str(batch)).write_text(text)
    made.begun_file.write_text(text)
    return made


def test_a_checkpoint_takes_the_place_of_another_one_wherever_it_breaks_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    for step in range(20):
        root = tmp_path / str(step)
        old, new = checkpoint(root, "p", 3, "old"), checkpoint(root, "p.rebuild", 2, "new")
        identity = new._read()
        left = step

        def counted(plain: Any) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                nonlocal left
                left -= 1
                if left < 0:
                    raise Killed
                return plain(*args, **kwargs)

            return call

        old.begin_switch()
        with monkeypatch.context() as patched:
            for name in ("rename", "replace", "unlink"):
                patched.setattr(Path, name, counted(getattr(Path, name)))
            for name in ("rmtree", "copyfile"):
                patched.setattr(shutil, name, counted(getattr(shutil, name)))
            try:
                old.adopt(new)
                completed = True
            except Killed:
                completed = False
        if not completed:
            with pytest.raises(PipelineError, match="rebuild of its sink was interrupted"):
                old.check(FINGERPRINT)
            old.adopt(new)
        assert not old.is_switching
        assert old._read() == identity
        assert {each.read_text() for each in (old.spark_folder / "offsets").iterdir()} == {"new"}
        assert old.begun_file.read_text() == "new"
        assert not new.folder.exists()
        if completed:
            break
    else:
        raise AssertionError("adopt has more steps than this test kills")
    assert step > 5


def declared(sink: Any, topic: str = "t") -> Pipeline:
    pipeline = Pipeline(f"p{uuid.uuid4().hex[:6]}")
    pipeline.stream("s", topic=topic, schema="id INT, text STRING")
    pipeline.sql("q", "SELECT id, max(text) AS text FROM s GROUP BY id", sink=sink, mode="update")
    pipeline.sql("other", "SELECT * FROM s", sink=TopicSink("results"))
    return pipeline


def test_a_rebuild_is_refused_before_anything_starts(tmp_path: Path) -> None:
    pipeline = declared(SqliteSink("t", "id", path=tmp_path / "out.db"))
    options = RunOptions("localhost:1", tmp_path)
    with pytest.raises(PipelineError, match="has no query qq") as error:
        Rebuild(pipeline, "qq", options)
    assert "q" in error.value.hint
    with pytest.raises(PipelineError, match="TopicSink can't be rebuilt"):
        Rebuild(pipeline, "other", options)
    alone = Rebuild(pipeline, "q", options)._alone
    assert [each.name for each in all_queries(alone)] == ["q"]
    assert [each.name for each in all_queries(pipeline)] == ["q", "other", "s.dlq"]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_a_table_is_rebuilt_switched_and_continued(
    tidemill_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, database = tidemill_broker.topic(), tmp_path / "out.db"
    pipeline = declared(SqliteSink("t", "id", path=database), topic)
    pipeline.queries = pipeline.queries[:1]
    options = RunOptions(tidemill_broker.bootstrap, tmp_path / "state", until_caught_up=True)

    def send(*rows: tuple[int, str]) -> None:
        values = [json.dumps({"id": number, "text": text}).encode() for number, text in rows]
        tidemill_broker.produce(topic, values)

    def rows(table: str = "t") -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(database)) as connection:
            return connection.execute(f"SELECT id, text FROM {table} ORDER BY 1").fetchall()

    def run() -> None:
        error = find_error(Runner(pipeline, options).run())
        assert error is None, error

    send((1, "a"), (2, "b"))
    run()
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("UPDATE t SET text = 'damaged'")
        connection.execute("INSERT INTO t VALUES (9, 'not from the log', 1)")
        connection.commit()
    send((3, "c"))
    # While the pipeline runs, the sink is rebuilt beside it.
    lock = PipelineLock(options.state, pipeline.name)
    with lock, pytest.raises(PipelineRunningError, match="is rebuilt, but another process"):
        Rebuild(pipeline, "q", options).run()
    assert rows() == [(1, "damaged"), (2, "damaged"), (9, "not from the log")]
    assert rows("t__rebuild") == [(1, "a"), (2, "b"), (3, "c")]
    # It is killed after the tables were switched.
    send((4, "d"))
    with monkeypatch.context() as patched:
        patched.setattr(Checkpoint, "adopt", None)
        with pytest.raises(TypeError):
            Rebuild(pipeline, "q", options).run()
    assert rows() == [(1, "a"), (2, "b"), (3, "c"), (4, "d")]
    with pytest.raises(PipelineError, match="rebuild of its sink was interrupted"):
        Runner(pipeline, options).run()
    assert Rebuild(pipeline, "q", options).run().is_switched
    assert [
        each.pipeline for each in read_statuses(tidemill_broker.kafka, f"{pipeline.name}.rebuild")
    ] == []
    send((2, "z"), (5, "e"))
    run()
    assert rows() == [(1, "a"), (2, "z"), (3, "c"), (4, "d"), (5, "e")]
    assert sorted(each.name for each in (options.state / f"{pipeline.name}.rebuild").iterdir()) == [
        ".lock"
    ]
