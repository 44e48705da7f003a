"""Sinks that follow a captured table, in a pipeline: they agree with the log, also when it is read
again."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
import redis
import tantivy

from tests.spark.changelogs import Capture
from tests.support.elasticsearch import AUTHORIZATION, fake_elasticsearch
from tests.support.processes import skip_if_missing
from tests.support.redis import redis_server
from tidemill.spark import (
    DuckDBHistorySink,
    ElasticsearchSink,
    Pipeline,
    RedisSink,
    SqliteSink,
    TantivySink,
)
from tidemill.spark.pipelines.checkpoint import Checkpoint
from tidemill.spark.pipelines.runner import Runner, RunOptions, find_error

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.conftest import Broker

pytestmark = [pytest.mark.spark, pytest.mark.slow]

Rows = dict[int, str]


class Database(Capture):
    """A table of a database, and the topic to which its changes are written."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self.rows: Rows = {}
        self._place = 0

    def put(self, number: int, name: str) -> None:
        self._change(number, "u" if number in self.rows else "c", {"id": number, "name": name})
        self.rows[number] = name

    def delete(self, number: int) -> None:
        self._change(number, "d", None)
        self.write(number, None)
        del self.rows[number]

    def _change(self, number: int, op: str, after: Any) -> None:
        self._place += 1
        source = {"connector": "sqlite", "name": "d", "change_id": self._place}
        source["ts_ms"] = 1_700_000_000_000 + self._place
        self.write(number, {"before": None, "after": after, "op": op, "source": source})


@contextmanager
def a_redis(folder: Path) -> Iterator[str]:
    with skip_if_missing(), redis_server(folder / "redis.log") as url:
        yield url


def test_all_sinks_agree_with_the_log(
    spark: SparkSession, tidemill_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELASTICSEARCH_API_KEY", AUTHORIZATION.split()[1])
    database = Database(tidemill_broker)
    with a_redis(tmp_path) as url, fake_elasticsearch() as server:
        pipeline = Pipeline(f"p{uuid.uuid4().hex[:6]}")
        pipeline.table(
            "planes",
            topic=database.topic,
            format="debezium",
            key="id",
            schema="id INT, name STRING",
        )
        sinks = {
            "table": SqliteSink("planes", "id", path=tmp_path / "p.db"),
            "history": DuckDBHistorySink("planes", "id", path=tmp_path / "p.duckdb"),
            "cache": RedisSink("id", prefix="planes", url=url),
            "search": TantivySink("id", path=tmp_path / "index", text="name"),
            "elastic": ElasticsearchSink("id", index="planes", url=server.url),
        }
        for name, sink in sinks.items():
            pipeline.query(sink=sink, name=name)(lambda planes: planes.changes)
        options = RunOptions(tidemill_broker.bootstrap, tmp_path / "state", until_caught_up=True)
        client = redis.Redis.from_url(url, decode_responses=True)

        def run() -> None:
            error = find_error(Runner(pipeline, options).run())
            assert error is None, error

        def found() -> dict[str, Rows]:
            with closing(sqlite3.connect(tmp_path / "p.db")) as connection:
                table = dict(connection.execute("SELECT id, name FROM planes").fetchall())
            with duckdb.connect(str(tmp_path / "p.duckdb")) as warehouse:
                present = warehouse.execute("SELECT id, name FROM planes WHERE is_current")
                history = dict(present.fetchall())
            hashes = (client.hgetall(key) for key in client.scan_iter("planes:1:row:*"))
            searcher = tantivy.Index.open(str(tmp_path / "index" / "current")).searcher()
            hits = searcher.search(tantivy.Query.all_query(), 1000).hits
            documents = (searcher.doc(address).to_dict() for _, address in hits)
            rows = server.documents["planes-000001"].values()
            return {
                "table": table,
                "history": history,
                "cache": {int(each["id"]): each["name"] for each in hashes},
                "search": {each["id"][0]: each["name"][0] for each in documents if "id" in each},
                "elastic": {row["id"]: row["name"] for _, row in rows if row is not None},
            }

        for number in range(8):
            database.put(number, f"plane {number}")
        database.put(1, "changed")
        database.delete(2)
        database.flush()
        run()
        assert found() == dict.fromkeys(sinks, database.rows)
        database.put(2, "again")
        database.delete(3)
        database.put(4, "late")
        database.flush()
        for name in sinks:  # all of them read the log again from the beginning
            Checkpoint(options.state, pipeline.name, name).remove()
        run()
        assert found() == dict.fromkeys(sinks, database.rows)
