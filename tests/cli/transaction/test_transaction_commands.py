"""``tidemill transaction`` against a broker process.

With ``APACHE_KAFKA_TESTS=1`` in the environment also against Apache Kafka: these commands may know
nothing that only tidemill offers.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer

from tests.cli.conftest import CommandLine
from tests.support.apache_kafka import ApacheKafka
from tests.support.broker_process import BrokerProcess
from tests.support.librdkafka import ready_for_id
from tests.support.processes import poll_until
from tidemill.cli.broker_requests import requests_to
from tidemill.cli.client import Cluster
from tidemill.log.format.records import NewRecord, encode_batch

ON_DEMAND = bool(os.environ.get("APACHE_KAFKA_TESTS"))
Opener = Callable[..., Producer]


@pytest.fixture(scope="module", params=["tidemill", "kafka"] if ON_DEMAND else ["tidemill"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess | ApacheKafka]:
    folder = tmp_path_factory.mktemp("server")
    if request.param == "tidemill":
        with BrokerProcess(folder) as broker:
            yield broker
    else:
        # Without it nothing hangs there any more: a test makes what old brokers left behind.
        unchecked = {"transaction.partition.verification.enable": "false"}
        with ApacheKafka(folder, properties=unchecked) as kafka:
            yield kafka


@pytest.fixture
def tidemill(server: BrokerProcess | ApacheKafka, tmp_path: Path) -> CommandLine:
    return CommandLine(server.bootstrap, tmp_path)


@pytest.fixture
def transaction(tidemill: CommandLine, topic: str) -> Opener:
    """Opens a transaction that has written ``count`` records to the topic's partition 0."""
    tidemill.ok("topic", "create", topic, "-p", "2")

    def begin(transactional_id: str, count: int = 2, timeout_ms: int = 300_000) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": tidemill.env["TIDEMILL_BOOTSTRAP_SERVERS"],
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "log_level": 0,
            }
        )
        ready_for_id(producer).init_transactions(60)
        producer.begin_transaction()
        for number in range(count):
            producer.produce(topic, f"{transactional_id} {number}", partition=0)
        assert producer.flush(60) == 0
        return producer

    return begin


def test_list_shows_each_id_with_its_state(
    tidemill: CommandLine, transaction: Opener, topic: str
) -> None:
    one, other = f"{topic}-a", f"{topic}-b"
    still_open, ended = transaction(one), transaction(other)
    ended.commit_transaction(60)
    rows: dict[str, dict[str, Any]] = {}

    def is_complete() -> bool:  # Apache Kafka answers a commit before its markers are written
        rows.update({r["transactional_id"]: r for r in tidemill.json("transaction", "list")})
        return bool(rows[other]["state"] == "complete-commit")

    poll_until(is_complete, 30, "the commit is complete")
    assert rows[one]["state"] == "ongoing"
    assert 0 <= rows[one]["open_ms"] < 600_000
    assert rows[other]["state"] == "complete-commit"
    assert rows[other]["open_ms"] is None
    assert rows[one]["producer_id"] != rows[other]["producer_id"]

    header, *lines = tidemill.ok("transaction", "list").splitlines()
    assert header.split() == ["TRANSACTION", "STATE", "PRODUCER", "COORDINATOR", "OPEN"]
    assert [line.split()[:2] for line in lines if line.startswith(topic)] == [
        [one, "ongoing"],
        [other, "complete-commit"],
    ]
    still_open.abort_transaction(60)


def test_list_filters_by_state_producer_age_and_pattern(
    tidemill: CommandLine, transaction: Opener, topic: str
) -> None:
    one, other = f"{topic}-a", f"{topic}-b"
    still_open, ended = transaction(one), transaction(other)
    ended.abort_transaction(60)
    mine = ("--id-pattern", f"{topic}-.*")

    def ids(*options: str) -> list[str]:
        rows = tidemill.json("transaction", "list", *options)
        return [row["transactional_id"] for row in rows if row["transactional_id"][:-2] == topic]

    assert ids() == ids(*mine) == [one, other]
    assert ids("--id-pattern", f"{topic}-[b-z]") == [other]
    assert ids("--state", "ongoing") == [one]
    assert ids("--state", "complete-abort", *mine) == [other]
    assert ids("--state", "ongoing", "--state", "complete-abort") == [one, other]
    (row,) = tidemill.json("transaction", "list", "--id-pattern", one)
    assert ids("--producer-id", str(row["producer_id"])) == [one]
    poll_until(lambda: ids("--open-longer-than", "10ms") == [one], 30, "open for 10 ms")
    assert ids("--open-longer-than", "1h") == []
    assert ids("--open-longer-than", "0s", "--state", "complete-abort") == []
    still_open.abort_transaction(60)


def test_a_pattern_is_matched_with_ids_as_a_whole(
    tidemill: CommandLine, transaction: Opener, topic: str
) -> None:
    transaction(f"{topic}-a").commit_transaction(60)
    begins = ("transaction", "list", "--id-pattern", f"^{topic}-")
    assert tidemill.json(*begins) == []
    (row,) = tidemill.json(*begins[:-1], f"{begins[-1]}.*")
    assert row["transactional_id"] == f"{topic}-a"
    code, shown = tidemill.on_terminal(*begins)
    assert code == 0
    assert "No id matches. --id-pattern must match an id as a whole" in shown


def test_an_invalid_pattern_is_refused_with_a_reason_and_a_hint(tidemill: CommandLine) -> None:
    refused = tidemill.run("transaction", "list", "--id-pattern", "(")
    assert refused.returncode == 2
    first, hint = refused.stderr.splitlines()
    assert first == "error: --id-pattern: invalid regular expression '(': missing ): ("
    assert hint.startswith("hint: The pattern must match the whole text, e.g. 'shop-.*'. ")


def test_describe_shows_the_producer_and_what_it_has_written_to(
    tidemill: CommandLine, transaction: Opener, topic: str
) -> None:
    producer = transaction(f"{topic}-a", timeout_ms=90_000)
    now = int(time.time() * 1000)
    found = tidemill.json("transaction", "describe", f"{topic}-a")
    assert found["state"] == "ongoing"
    assert found["timeout_ms"] == 90_000
    assert found["producer_id"] >= 0
    assert found["producer_epoch"] >= 0
    assert now - 600_000 < found["started_ms"] < now + 60_000
    assert found["partitions"] == [{"topic": topic, "partition": 0}]

    text = tidemill.ok("transaction", "describe", f"{topic}-a")
    fields = dict(line.split(maxsplit=1) for line in text.partition("\n\n")[0].splitlines())
    assert fields["transaction"] == f"{topic}-a"
    assert fields["timeout"] == "1m 30s"
    assert fields["started"].endswith("UTC")
    assert text.splitlines()[-1].split() == [topic, "0"]

    producer.commit_transaction(60)
    found = tidemill.json("transaction", "describe", f"{topic}-a")
    assert (found["state"], found["partitions"]) == ("complete-commit", [])
    assert (found["started_ms"], found["open_ms"]) == (None, None)


def test_an_unknown_id_is_not_found(tidemill: CommandLine) -> None:
    for verb in (["describe", "unknown"], ["abort", "unknown", "--yes"]):
        done = tidemill.run("transaction", *verb)
        assert done.returncode == 3
        assert "error: transactional id unknown does not exist" in done.stderr
        assert "hint: List the ids: tidemill transaction list" in done.stderr


def test_find_shows_the_transactions_that_hold_readers_back(
    tidemill: CommandLine, transaction: Opener, topic: str
) -> None:
    ended, oldest, newest = (transaction(f"{topic}-{name}") for name in "abc")
    ended.commit_transaction(60)  # offsets 0, 1; its marker comes behind the others
    rows = tidemill.json("transaction", "find", topic)
    assert [(r["transactional_id"], r["state"], r["first_offset"]) for r in rows] == [
        (f"{topic}-b", "ongoing", 2),
        (f"{topic}-c", "ongoing", 4),
    ]
    assert {(r["partition"], r["stable_offset"], r["end_offset"]) for r in rows} == {(0, 2, 7)}
    assert all(0 <= row["idle_ms"] < 600_000 for row in rows)
    assert {r["transactional_id"] for r in tidemill.json("transaction", "find")} >= {f"{topic}-b"}
    assert tidemill.json("transaction", "find", topic, "--partition", "1") == []

    oldest.abort_transaction(60)
    text = tidemill.ok("transaction", "find", topic)
    header, line = text.splitlines()
    assert header.split()[:4] == ["TOPIC", "PARTITION", "STABLE", "END"]
    assert line.split()[:6] == [topic, "0", "4", "8", f"{topic}-c", "ongoing"]
    newest.abort_transaction(60)
    assert tidemill.json("transaction", "find", topic) == []
    assert tidemill.run("transaction", "find", f"no-{topic}").returncode == 3


def test_abort_ends_the_open_transaction_and_fences_the_producer(
    tidemill: CommandLine, transaction: Opener, topic: str
) -> None:
    producer = transaction(f"{topic}-a")
    before = tidemill.json("transaction", "describe", f"{topic}-a")

    would = tidemill.ok("transaction", "abort", f"{topic}-a", "--dry-run")
    assert would.startswith(f"would abort {topic}-a (1 partition, open for ")
    refused = tidemill.run("transaction", "abort", f"{topic}-a", stdin="y\n")
    assert refused.returncode == 2
    assert "confirmation needed" in refused.stderr
    assert tidemill.json("transaction", "describe", f"{topic}-a")["state"] == "ongoing"

    aborted = tidemill.ok("transaction", "abort", f"{topic}-a", "--yes")
    assert aborted.startswith(f"aborted {topic}-a (1 partition, open for ")
    assert f"  {topic} partition 0\n" in aborted
    producer_id, epoch = before["producer_id"], before["producer_epoch"]
    assert f"its producer {producer_id} with epoch {epoch} is fenced" in aborted
    assert tidemill.json("transaction", "find", topic) == []
    assert tidemill.records(topic, "--until-end", "--from", "beginning") == []

    with pytest.raises(KafkaException) as fenced:
        producer.commit_transaction(60)
    assert fenced.value.args[0].fatal()


def test_abort_says_as_json_what_it_did(
    tidemill: CommandLine, transaction: Opener, topic: str
) -> None:
    producer = transaction(f"{topic}-a")
    before = tidemill.json("transaction", "describe", f"{topic}-a")
    done = tidemill.json("transaction", "abort", f"{topic}-a", "--yes")
    assert done["aborted"] is True
    assert done["partitions"] == [{"topic": topic, "partition": 0}]
    assert done["fenced"] == {key: before[key] for key in ("producer_id", "producer_epoch")}
    del producer


def test_abort_without_an_open_transaction_is_an_error(
    tidemill: CommandLine, transaction: Opener, topic: str
) -> None:
    producer = transaction(f"{topic}-a")
    producer.commit_transaction(60)
    refused = tidemill.run("transaction", "abort", f"{topic}-a", "--yes")
    assert refused.returncode == 4
    assert f"transactional id {topic}-a has no open transaction (complete-commit)" in refused.stderr
    producer.begin_transaction()  # it was not fenced
    producer.produce(topic, "again", partition=1)
    producer.commit_transaction(60)
    assert len(tidemill.records(topic, "--until-end", "--from", "beginning")) == 3


def test_an_abort_leaves_the_time_out_of_the_id_as_it_was(
    tidemill: CommandLine, transaction: Opener, topic: str
) -> None:
    producer = transaction(f"{topic}-a", timeout_ms=90_000)
    tidemill.ok("transaction", "abort", f"{topic}-a", "--yes")
    found = tidemill.json("transaction", "describe", f"{topic}-a")
    assert (found["state"], found["timeout_ms"]) == ("empty", 90_000)
    del producer


def test_on_a_terminal_abort_asks(tidemill: CommandLine, transaction: Opener, topic: str) -> None:
    producer = transaction(f"{topic}-a")
    code, question = tidemill.on_terminal(
        "transaction", "abort", f"{topic}-a", until="[y/N]", answer=b"n\n"
    )
    assert code == 1
    assert f"Abort {topic}-a (1 partition, open for " in question
    producer.commit_transaction(60)


def test_the_transaction_that_was_asked_about_is_aborted_and_no_later_one(
    tidemill: CommandLine, transaction: Opener, topic: str
) -> None:
    producer = transaction(f"{topic}-a")

    def another(_: object) -> None:
        producer.commit_transaction(60)
        producer.begin_transaction()
        producer.produce(topic, "later")
        assert producer.flush(60) == 0

    assert (
        tidemill.on_terminal(
            "transaction", "abort", f"{topic}-a", until="[y/N]", act=another, answer=b"y\n"
        )[0]
        == 4
    )
    producer.commit_transaction(60)
    assert len(tidemill.records(topic, "--until-end", "--from", "beginning")) == 3


def test_a_reader_at_the_last_stable_offset_ends_and_has_no_lag(
    tidemill: CommandLine, transaction: Opener, topic: str
) -> None:
    everything = (topic, "-g", f"g-{topic}", "--from", "beginning", "--until-end")
    first = transaction(f"{topic}-a")
    first.commit_transaction(60)
    second = transaction(f"{topic}-b")
    assert len(tidemill.records(*everything)) == 2  # the end is where the open one begins
    described = tidemill.json("group", "describe", f"g-{topic}")
    assert described["lag"] > 0
    second.abort_transaction(60)
    assert tidemill.records(*everything) == []
    described = tidemill.json("group", "describe", f"g-{topic}")
    assert (described["lag"], described["lag_ms"]) == (0, 0)


@pytest.mark.slow
def test_reading_to_the_end_notes_an_open_transaction(
    tidemill: CommandLine, transaction: Opener, topic: str
) -> None:
    waiting = f"Records of {topic} wait for an open transaction: tidemill transaction find {topic}"
    everything = ("topic", "consume", topic, "--from", "beginning", "--until-end")
    producer = transaction(f"{topic}-a")
    for options in ([], ["--partition", "0"], ["--group", f"g-{topic}"]):
        code, shown = tidemill.on_terminal(*everything, *options)
        assert code == 0
        assert "0 records" in shown, options
        assert waiting in shown, options
    for options in (["--partition", "1"], ["-X", "isolation.level=read_uncommitted"]):
        assert waiting not in tidemill.on_terminal(*everything, *options)[1], options
    producer.commit_transaction(60)  # the end is now behind its marker, and nothing waits
    code, shown = tidemill.on_terminal(*everything)
    assert (code, shown.count('"value"')) == (0, 2)
    assert waiting not in shown


@pytest.mark.slow
def test_describe_notes_an_open_transaction_that_holds_a_group_back(
    tidemill: CommandLine, transaction: Opener, topic: str
) -> None:
    group = f"g-{topic}"
    waiting = f"Records of {topic} wait for an open transaction: tidemill transaction find {topic}"
    first = transaction(f"{topic}-a")
    first.commit_transaction(60)
    tidemill.records(topic, "-g", group, "--from", "beginning", "--until-end")
    assert waiting not in tidemill.on_terminal("group", "describe", group)[1]
    second = transaction(f"{topic}-b")
    held, *_ = tidemill.json("group", "describe", group)["partitions"]
    assert (held["stable"], held["end"]) == (3, 5)
    assert waiting in tidemill.on_terminal("group", "describe", group)[1]
    second.abort_transaction(60)
    ended, *_ = tidemill.json("group", "describe", group)["partitions"]
    assert (ended["stable"], ended["end"]) == (6, 6)
    assert waiting not in tidemill.on_terminal("group", "describe", group)[1]


def test_a_transaction_with_an_owner_is_aborted_only_as_a_whole(
    tidemill: CommandLine, transaction: Opener, topic: str
) -> None:
    producer = transaction(f"{topic}-a")
    (row,) = tidemill.json("transaction", "find", topic)
    place = ("--topic", topic, "--partition", "0", "--producer-id", str(row["producer_id"]))
    refused = tidemill.run("transaction", "abort", *place, "--yes")
    assert refused.returncode == 4
    assert f"is not hanging: it belongs to {topic}-a (ongoing)" in refused.stderr
    assert f"hint: Abort it as a whole: tidemill transaction abort {topic}-a" in refused.stderr
    producer.commit_transaction(60)
    gone = tidemill.run("transaction", "abort", *place, "--yes")
    assert gone.returncode == 3
    assert "has no open transaction on" in gone.stderr


@pytest.mark.skipif(not ON_DEMAND, reason="nothing hangs on tidemill; APACHE_KAFKA_TESTS=1 only")
def test_a_hanging_transaction_is_found_and_aborted(
    server: BrokerProcess | ApacheKafka, tidemill: CommandLine, topic: str
) -> None:
    if isinstance(server, BrokerProcess):
        return  # it refuses the write, which tests/broker proves
    tidemill.ok("topic", "create", topic)
    write_in_no_transaction(server.bootstrap, topic, producer_id=77_000)
    (row,) = tidemill.json("transaction", "find", topic)
    assert (row["state"], row["producer_id"], row["stable_offset"]) == ("hanging", 77_000, 0)
    place = ("--topic", topic, "--partition", "0", "--producer-id", "77000")
    would = tidemill.ok("transaction", "abort", *place, "--dry-run")
    assert would == f"would abort producer 77000 on {topic} partition 0, from offset 0 on\n"
    done = json.loads(tidemill.ok("transaction", "abort", *place, "--yes", "--json"))
    assert done["aborted"] is True
    assert tidemill.json("transaction", "find", topic) == []


def write_in_no_transaction(bootstrap: str, topic: str, producer_id: int) -> None:
    """Write a transaction that no coordinator knows, as a late zombie does on old brokers."""
    batch = encode_batch(
        [NewRecord(None, b"late")],
        timestamp_ms=int(time.time() * 1000),
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    data = [{"name": topic, "partition_data": [{"index": 0, "records": bytes(batch)}]}]
    with requests_to(Cluster(bootstrap)) as requests:
        answer = requests.ask(
            requests.leaders([(topic, 0)])[topic, 0],
            0,
            (9, 9),
            {"transactional_id": "late", "acks": -1, "timeout": 10_000, "topic_data": data},
        )
    ((partition,),) = (each.partition_responses for each in answer.responses)
    assert partition.error_code == 0
