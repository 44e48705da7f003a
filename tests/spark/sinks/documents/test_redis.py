"""Hashes in Redis keep the contract, against a server from its binary."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.contracts.documents import DocumentContract, Documents
from tests.contracts.upsert import follow
from tests.support.processes import skip_if_missing
from tests.support.redis import redis_server
from tidemill.spark import Pipeline, RedisSink
from tidemill.spark.errors import OptionError, SinkError
from tidemill.spark.pipelines.check import problems
from tidemill.spark.sinks.documents.store import Document, key_text

PASSWORD = "hidden-word"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with skip_if_missing(), redis_server(tmp_path_factory.mktemp("redis") / "log", PASSWORD) as url:
        yield url


@pytest.fixture
def client(server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An empty server. The password is in the environment."""
    monkeypatch.setenv("REDISCLI_AUTH", PASSWORD)
    with redis.Redis.from_url(server, password=PASSWORD, decode_responses=True) as found:
        found.flushall()
        yield found


def texts(client: Any) -> dict[str, str]:
    prefix = f"a*:b:{client.get('a*:b:current') or 1}:row:"
    found = (key for key in client.scan_iter() if key.startswith(prefix))
    return {key.removeprefix(prefix): client.hget(key, "text") for key in found}


class TestRedis(DocumentContract):
    @pytest.fixture
    def documents(self, client: Any, server: str) -> Documents:
        client.set("a-other:1:row:1", "not ours")

        def sink(key: str, **options: Any) -> RedisSink:
            return RedisSink(key, prefix="a*:b", url=server, **options)

        return Documents(sink, lambda: texts(client))


def test_a_hash_has_the_columns_and_the_version(client: Any, server: str) -> None:
    store = RedisSink("id", prefix="a", url=server).store()
    follow(store, (1, "é", 7))
    assert client.hgetall("a:1:row:1") == {"id": "1", "text": "é", "_version": "7"}
    store.write(iter([Document("1", 8, {"id": 1, "ok": True, "raw": b"ab", "x": 0.1})]), 8)
    assert client.hgetall("a:1:row:1") == {
        "id": "1", "ok": "true", "raw": "ab", "x": "0.1", "_version": "8",
    }  # fmt: skip
    store.close()


def test_the_version_of_a_deletion_expires(client: Any, server: str) -> None:
    store = RedisSink("id", prefix="a", url=server, keep_deleted="300 milliseconds").store()
    follow(store, (1, "a", 5))
    follow(store, (1, None, 6))
    assert 0 < client.pttl("a:1:deleted:1") <= 300
    deadline = time.monotonic() + 90
    while client.exists("a:1:deleted:1") and time.monotonic() < deadline:
        pass
    follow(store, (1, "older", 5))
    assert client.hget("a:1:row:1", "text") == "older"
    store.close()


def test_a_rebuild_leaves_nothing_of_the_old_generation(client: Any, server: str) -> None:
    sink = RedisSink("id", prefix="a", url=server)
    for each, text in ((sink, "old"), (sink.beside(), "new")):
        store = each.store()
        follow(store, *((i, text, i) for i in range(1500)))
        store.close()
    sink.switch()
    assert client.get("a:current") == "2"
    assert {key.split(":")[1] for key in client.scan_iter()} == {"2", "current"}
    assert client.hget("a:2:row:7", "text") == "new"


def test_a_server_that_is_away_and_a_wrong_password_are_typed_errors(
    client: Any, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = RedisSink("id", prefix="a", url=f"unix://:secret-word@{tmp_path}/no?db=0").store()
    with pytest.raises(SinkError, match="can't write hashes a in Redis") as error:
        follow(away, (1, "a", 1))
    assert "server runs" in error.value.hint
    monkeypatch.setenv("REDISCLI_AUTH", "wrong-word")
    with pytest.raises(SinkError, match="can't write hashes a in Redis") as error:
        follow(RedisSink("id", prefix="a", url=server).store(), (1, "a", 1))
    assert "REDISCLI_AUTH" in error.value.hint
    assert "word" not in str(error.value).replace("password", "")


def test_a_declaration_is_checked_and_shows_no_password() -> None:
    sink = RedisSink("id", prefix="a", url="http://:secret-word@h:1")
    pipeline = Pipeline("p")
    pipeline.stream("s", schema="id INT")
    pipeline.sql("q", "SELECT * FROM s", sink=sink)
    found = [str(each) for each in problems(pipeline)]
    assert len(found) == 1
    assert "can't parse the url" in found[0]
    assert "secret-word" not in f"{sink} {found} {sink.target}"
    with pytest.raises(OptionError):
        sink.store()


def test_keys_of_several_columns_are_never_the_same() -> None:
    assert key_text(["a b/c"]) == "a b/c"
    assert key_text(["a:b", "c"]) == "a%3Ab:c"
    assert key_text(["a", "b:c"]) == "a:b%3Ac"
    assert key_text(["a%3Ab", "c"]) == "a%253Ab:c"
