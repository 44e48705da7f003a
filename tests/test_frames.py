"""Topics as tables in Python."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

import tidemill
from tests.support.hidden_packages import python_without
from tests.support.topics import remove_before, write
from tidemill import extras
from tidemill.confluent.clients import Kafka
from tidemill.errors import (
    DataLossError,
    DurationError,
    OptionError,
    TidemillError,
    UnknownTopicOrPartitionError,
)
from tidemill.frames import ValuesError

HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def broker() -> Iterator[tidemill.Broker]:
    with tidemill.Broker(settings={"log.retention_check_ms": str(24 * HOUR_MS)}) as started:
        yield started


@pytest.fixture
def kafka(broker: tidemill.Broker, monkeypatch: pytest.MonkeyPatch) -> Kafka:
    monkeypatch.setenv("TIDEMILL_BOOTSTRAP_SERVERS", broker.bootstrap_servers)
    return Kafka(broker.bootstrap_servers)


def fill(kafka: Kafka, topic: str, *values: object, partitions: int = 1, **more: Any) -> None:
    kafka.create_topics("test", {topic: (partitions, {})})
    records = ((f"k{number}", value) for number, value in enumerate(values))
    write(kafka.servers, topic, *records, spread=partitions, **more)


def test_a_topic_is_read_with_one_client_for_all_questions(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(kafka, "asked", {"n": 1}, {"n": 2}, partitions=2)
    made, admin = [], Kafka.admin

    def counted(kafka: Kafka, client: str) -> AdminClient:
        made.append(client)
        return admin(kafka, client)

    monkeypatch.setattr(Kafka, "admin", counted)
    found = tidemill.read(
        "asked", since="1 hour", until=datetime.now(UTC) + timedelta(hours=1), partitions=[1]
    )
    assert found.ranges == {1: (0, 1)}
    assert len(made) == 1
    kafka.create_topics("test", {"asked": (2, {}), "more": (1, {})})
    assert len(made) == 2


def test_fields_of_json_are_columns_beside_those_of_the_record(kafka: Kafka) -> None:
    fill(kafka, "orders", {"id": 1, "price": 2.5}, None, {"id": 3, "new": "x"})
    table = tidemill.read("orders").to_arrow()
    assert table.column_names == [
        "id",
        "price",
        "new",
        "_key",
        "_partition",
        "_offset",
        "_timestamp",
        "_headers",
    ]
    assert table["id"].to_pylist() == [1, None, 3]
    assert table["new"].to_pylist() == [None, None, "x"]
    assert table["_key"].to_pylist() == ["k0", "k1", "k2"]
    assert table["_offset"].to_pylist() == [0, 1, 2]


def test_the_same_records_in_pandas_and_duckdb_and_as_objects(kafka: Kafka) -> None:
    fill(kafka, "same", *({"n": n} for n in range(100)), partitions=3, headers=[("h", b"v")])
    records = tidemill.read("same")
    assert len(records) == 100
    assert sorted(records.to_pandas()["n"]) == list(range(100))
    ((total,),) = records.to_duckdb().aggregate("sum(n)").fetchall()
    assert total == 4950
    found = sorted(records, key=lambda each: each.json()["n"])
    assert [each.key for each in found] == [f"k{n}".encode() for n in range(100)]
    assert {each.headers for each in found} == {(("h", b"v"),)}
    assert {each.partition for each in found} == {0, 1, 2}


@pytest.mark.parametrize("name", ["pandas", "polars"])
def test_a_data_frame_without_its_library_says_what_to_install(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    fill(kafka, f"no-{name}", {"n": 1})
    records = tidemill.read(f"no-{name}")
    found = extras.is_installed
    monkeypatch.setattr(extras, "is_installed", lambda module: module != name and found(module))
    with pytest.raises(TidemillError, match=f"the package {name} is not installed") as raised:
        getattr(records, f"to_{name}")()
    assert raised.value.hint == f"Install it: pip install {name}."


def test_a_read_shows_what_was_there_when_it_began(kafka: Kafka) -> None:
    fill(kafka, "snapshot", {"n": 1})
    records = tidemill.read("snapshot")
    fill(kafka, "snapshot", {"n": 2})
    assert records.to_arrow()["n"].to_pylist() == [1]
    assert tidemill.read("snapshot").to_arrow()["n"].to_pylist() == [1, 2]


def test_a_part_is_chosen_by_time_count_and_partition(kafka: Kafka) -> None:
    now = datetime.now(UTC)
    middle = now - timedelta(hours=4), (now - timedelta(hours=2)).isoformat()
    for hours in (5, 3, 1):
        at = int((now - timedelta(hours=hours)).timestamp() * 1000)
        fill(kafka, "times", {"hours": hours}, timestamp=at)

    def found(**chosen: Any) -> list[int]:
        table = tidemill.read("times", **chosen).to_arrow()
        return list(table["hours"].to_pylist()) if table.num_rows else []

    assert found(since="4 hours") == [3, 1]
    assert found(since=timedelta(hours=2)) == [1]
    assert found(until="2 hours") == [5, 3]
    assert found(since=middle[0], until=middle[1]) == [3]
    assert found(since="10 minutes") == []
    assert found(last=2) == [3, 1]
    assert found(limit=2) == [5, 3]
    assert found(partitions=[0], limit=0) == []


def test_aborted_and_open_transactions_are_not_read(kafka: Kafka) -> None:
    fill(kafka, "committed", {"n": 1})
    config = {"bootstrap.servers": kafka.servers, "transactional.id": "writer"}
    producer = Producer(config)
    producer.init_transactions(30)
    for number, end in ((2, producer.abort_transaction), (3, producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce("committed", json.dumps({"n": number}).encode())
        producer.flush(30)
        end(30)
    producer.begin_transaction()
    producer.produce("committed", b'{"n": 4}')
    producer.flush(30)
    assert tidemill.read("committed").to_arrow()["n"].to_pylist() == [1, 3]
    producer.abort_transaction(30)


def test_a_field_with_values_of_several_kinds_is_their_text(kafka: Kafka) -> None:
    at = "2026-01-02T03:04:05Z"
    fill(kafka, "kinds", {"n": 1, "at": at}, *({"n": n} for n in range(1000)), {"n": "x"})
    table = tidemill.read("kinds").to_arrow()
    assert table["n"].to_pylist()[:3] == ["1", "0", "1"]
    assert table["n"].to_pylist()[-1] == "x"
    assert table["at"][0].as_py() == at  # a text stays a text, as in SQL


def test_fields_that_only_a_value_in_the_middle_has_are_found(kafka: Kafka) -> None:
    rows: list[object] = [{"n": n} for n in range(1000)]
    rows[500] = {"n": 1.5, "only": "here"}
    fill(kafka, "middle", *rows)
    table = tidemill.read("middle").to_arrow()
    assert table["n"][500].as_py() == 1.5
    assert table["only"].to_pylist() == [None] * 500 + ["here"] + [None] * 499
    assert len(tidemill.read("middle", limit=3).to_arrow()) == 3


@pytest.mark.parametrize("value", [b"no json", b"[1]", b"{} {}", b"\xff", b"{", b""])
def test_a_value_of_another_kind_is_named_with_its_place(kafka: Kafka, value: bytes) -> None:
    topic = f"mixed-{value.hex()}"
    fill(kafka, topic, {"n": 1}, value)
    with pytest.raises(ValuesError) as raised:
        tidemill.read(topic).to_arrow()
    assert f"{topic}-0 offset 1" in str(raised.value)
    assert "values='text'" in raised.value.hint
    assert f"{topic}: 2 offsets" in repr(tidemill.read(topic))
    assert tidemill.read(topic, values="bytes").to_arrow()["value"].to_pylist()[1] == value


def test_text_that_is_not_utf_8_is_named_with_its_place(kafka: Kafka) -> None:
    fill(kafka, "latin", b"ok", b"\xff")
    with pytest.raises(ValuesError, match="latin-0 offset 1: it is not UTF-8"):
        tidemill.read("latin", values="text").to_arrow()
    assert tidemill.read("latin", values="text", limit=1).to_arrow()["value"].to_pylist() == ["ok"]


def test_a_field_with_the_name_of_a_record_column_stays(kafka: Kafka) -> None:
    fill(kafka, "names", {"_key": "mine"})
    table = tidemill.read("names").to_arrow()
    assert table["value._key"].to_pylist() == ["mine"]
    assert table["_key"].to_pylist() == ["k0"]


def test_it_looks_pleasant_and_escapes_what_is_in_the_topic(kafka: Kafka) -> None:
    fill(kafka, "shown", *({"n": n, "s": "<script>\n" + "x" * 100} for n in range(20)))
    records = tidemill.read("shown")
    text = repr(records)
    assert text.splitlines()[-1] == "shown: 20 offsets in 1 partition; 10 records shown"
    assert len(text.splitlines()) == 12
    html = records._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html


def test_a_time_outside_of_the_years_of_python_is_the_nearest_one(kafka: Kafka) -> None:
    fill(kafka, "past", {"n": 1}, timestamp=-9_000_000_000_000_000)
    records = tidemill.read("past")
    assert [each.timestamp for each in records] == [datetime.min.replace(tzinfo=UTC)]
    assert "0001-01-01 00:00:00.000" in repr(records)


def test_an_empty_topic_is_an_empty_table(kafka: Kafka) -> None:
    fill(kafka, "empty")
    assert tidemill.read("empty").to_arrow().num_rows == 0
    assert "0 records shown" in repr(tidemill.read("empty"))


def test_what_can_not_be_read_is_a_typed_error(kafka: Kafka) -> None:
    fill(kafka, "there", {"n": 1})
    with pytest.raises(UnknownTopicOrPartitionError, match="topic absent does not exist"):
        tidemill.read("absent")
    with pytest.raises(UnknownTopicOrPartitionError, match="no partition 7"):
        tidemill.read("there", partitions=[7])
    with pytest.raises(OptionError, match="limit is -1"):
        tidemill.read("there", limit=-1)
    with pytest.raises(OptionError, match="values is 'xml'"):
        tidemill.read("there", values="xml")  # type: ignore[arg-type]
    with pytest.raises(DurationError, match="1 houur"):
        tidemill.read("there", since="1 houur")
    with pytest.raises(OptionError, match="2026-99-99"):
        tidemill.read("there", since="2026-99-99")


def test_records_that_retention_removes_meanwhile_are_reported(kafka: Kafka) -> None:
    fill(kafka, "removed", {"n": 1}, {"n": 2})
    records = tidemill.read("removed")
    remove_before(kafka.servers, "removed", 1)
    with pytest.raises(DataLossError) as raised:
        records.to_arrow()
    assert "Read the topic again" in raised.value.hint


def test_without_pyarrow_it_says_what_to_install() -> None:
    done = python_without(["pyarrow"], "import tidemill; tidemill.read('t')")
    assert "pip install 'tidemill[arrow]'" in done.stderr


def test_the_package_is_imported_without_its_extras() -> None:
    hidden = ["pyarrow", "duckdb", "pandas", "pytest", "confluent_kafka"]
    done = python_without(hidden, "import tidemill; print(tidemill.__version__)")
    assert done.stdout.strip() == tidemill.__version__, done.stderr


def test_a_table_has_the_types_of_arrow(kafka: Kafka) -> None:
    fill(kafka, "typed", {"n": 1, "x": 1.5, "s": "a", "b": True, "l": [1], "o": {"k": 1}})
    schema = tidemill.read("typed").to_arrow().schema
    assert [schema.field(n).type for n in ("n", "x", "s", "b")] == [
        pa.int64(),
        pa.float64(),
        pa.string(),
        pa.bool_(),
    ]
    assert pa.types.is_list(schema.field("l").type)
    assert pa.types.is_struct(schema.field("o").type)
