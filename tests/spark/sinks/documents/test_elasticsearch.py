"""Documents in Elasticsearch keep the contract, against a server that enforces documented rules."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from tests.contracts.documents import DocumentContract, Documents
from tests.contracts.upsert import follow
from tests.support.elasticsearch import AUTHORIZATION, FakeElasticsearch, fake_elasticsearch
from tidemill.spark import ElasticsearchSink, Pipeline
from tidemill.spark.errors import SinkError
from tidemill.spark.pipelines.check import problems
from tidemill.spark.sinks.documents import elasticsearch
from tidemill.spark.sinks.documents.store import Document


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeElasticsearch]:
    monkeypatch.setenv("ELASTICSEARCH_API_KEY", AUTHORIZATION.split()[1])
    monkeypatch.setattr(elasticsearch, "_PAUSE_S", 0.001)
    with fake_elasticsearch() as found:
        yield found


class TestElasticsearch(DocumentContract):
    @pytest.fixture
    def documents(self, server: FakeElasticsearch) -> Documents:
        def sink(key: str, **options: Any) -> ElasticsearchSink:
            return ElasticsearchSink(key, index="planes", url=server.url, **options)

        def texts() -> dict[str, str]:
            index = server.aliases.get("planes")
            rows = server.documents.get(index or "", {})
            return {key: row["text"] for key, (_, row) in rows.items() if row is not None}

        return Documents(sink, texts)


@pytest.fixture
def sink(server: FakeElasticsearch) -> ElasticsearchSink:
    return ElasticsearchSink("id", index="planes", url=server.url, keep_deleted="3d")


def test_the_index_is_made_with_its_alias_and_keeps_versions_of_deletions(
    server: FakeElasticsearch, sink: ElasticsearchSink
) -> None:
    follow(sink.store(), (1, "a", 5), (2, None, 6))
    assert server.aliases == {"planes": "planes-000001"}
    assert server.settings["planes-000001"] == {"index": {"gc_deletes": "3d"}}
    assert server.documents["planes-000001"] == {
        "1": (5, {"id": 1, "text": "a", "_tidemill_version": 5}),
        "2": (6, None),
    }


def test_a_rebuild_removes_the_old_index_in_the_request_that_moves_the_alias(
    server: FakeElasticsearch, sink: ElasticsearchSink
) -> None:
    follow(sink.store(), (1, "old", 5))
    follow(sink.beside().store(), (1, "new", 5))
    del server.requests[:]
    sink.switch()
    assert [each for each in server.requests if each[0] not in ("GET", "HEAD")] == [
        ("POST", "/_aliases")
    ]
    assert server.aliases == {"planes": "planes-000002"}
    assert list(server.documents) == ["planes-000002"]


def test_documents_that_a_busy_server_rejects_are_sent_again(
    server: FakeElasticsearch, sink: ElasticsearchSink
) -> None:
    server.busy += [429, {0, 2}, {1}]
    follow(sink.store(), (1, "a", 1), (2, "b", 2), (3, "c", 3))
    assert sorted(server.documents["planes-000001"]) == ["1", "2", "3"]
    server.busy += [429] * elasticsearch.ATTEMPTS
    with pytest.raises(SinkError, match="the server is too busy"):
        follow(sink.store(), (1, "a", 9))


def test_values_become_json() -> None:
    fields = {
        "n": Decimal("1.50"), "at": datetime(2013, 1, 1, tzinfo=UTC), "raw": b"\x00", "ok": True,
        "nan": float("nan"), "i": 1 << 60, "f": 0.5, "t": "é",
    }  # fmt: skip
    line = elasticsearch._line(Document("k", 7, fields), "x")
    action, row = line.decode().splitlines()
    assert action == '{"index": {"_id": "k", "version": 7, "version_type": "external_gte"}}'
    assert row == (
        '{"n": "1.50", "at": "2013-01-01T00:00:00Z", "raw": "AA==", "ok": true, "nan": null, '
        '"i": 1152921504606846976, "f": 0.5, "t": "é", "_tidemill_version": 7}'
    )


def test_what_the_server_refuses_and_a_server_that_is_away_are_typed_errors(
    server: FakeElasticsearch, sink: ElasticsearchSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SinkError, match=r"failed to parse field \[text\] \(status 400\)"):
        follow(sink.store(), (1, "a", 1), (2, "refused", 2))
    with pytest.raises(SinkError, match="more than 512 bytes"):
        sink.store().write(iter([Document("x" * 513, 1, {})]), 1)
    server.documents["taken"] = {}
    with pytest.raises(SinkError, match="is an index, and the sink needs the name of an alias"):
        follow(ElasticsearchSink("id", index="taken", url=server.url).store(), (1, "a", 1))
    monkeypatch.setenv("ELASTICSEARCH_API_KEY", "wrong-word")
    with pytest.raises(SinkError, match=r"missing authentication \(status 401\)") as error:
        follow(sink.store(), (1, "a", 1))
    assert "ELASTICSEARCH_API_KEY" in error.value.hint
    away = ElasticsearchSink("id", index="planes", url="http://me:secret-word@127.0.0.1:1")
    with pytest.raises(SinkError, match="can't write index planes in Elasticsearch") as error:
        follow(away.store(), (1, "a", 1))
    assert "server runs" in error.value.hint
    assert "word" not in f"{error.value}"


def test_a_declaration_is_checked_and_shows_no_password() -> None:
    sink = ElasticsearchSink("id", index="Planes", url="me:secret-word@h", keep_deleted="7 days")
    pipeline = Pipeline("p")
    pipeline.stream("s", schema="id INT")
    pipeline.sql("q", "SELECT * FROM s", sink=sink)
    found = [str(each) for each in problems(pipeline)]
    assert len(found) == 3
    assert "secret-word" not in f"{sink} {found} {sink.target}"
