"""``tidemill topic`` against a broker process."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import IO

from tests.cli.conftest import CommandLine


def line_of(stream: IO[bytes] | None) -> bytes:
    assert stream is not None
    return stream.readline()


def test_a_topic_is_created_described_altered_and_deleted(
    tidemill: CommandLine, topic: str
) -> None:
    text = tidemill.ok("topic", "create", topic, "-p", "2", "--set", "retention.ms=60000")
    assert text == f"created {topic}\n"
    described = tidemill.json("topic", "describe", topic)
    assert [p["partition"] for p in described["partitions"]] == [0, 1]
    assert {c["name"]: (c["value"], c["source"]) for c in described["configs"]} == {
        "retention.ms": ("60000", "topic")
    }

    tidemill.ok("topic", "alter", topic, "--partitions", "3", "--unset", "retention.ms")
    described = tidemill.json("topic", "describe", topic)
    assert len(described["partitions"]) == 3
    assert described["configs"] == []

    assert tidemill.ok("topic", "delete", topic, "--yes") == f"deleted {topic} (0 records)\n"
    assert tidemill.run("topic", "describe", topic).returncode == 3


def test_describe_shows_offsets_sizes_and_on_request_all_configs(
    tidemill: CommandLine, topic: str
) -> None:
    tidemill.ok("topic", "produce", topic, stdin="a\nb\n")
    described = tidemill.json("topic", "describe", topic, "--all")
    (partition,) = described["partitions"]
    assert (partition["start_offset"], partition["end_offset"]) == (0, 2)
    assert partition["size_bytes"] > 60
    assert len(described["configs"]) > 20
    text = tidemill.ok("topic", "describe", topic)
    assert "all configs are at their defaults" in text


def test_describe_shows_the_policy_for_a_group_that_is_behind(
    tidemill: CommandLine, topic: str
) -> None:
    policy = ["lag.policy=alert", f"lag.group={topic}", "lag.max.records=1"]
    tidemill.ok("topic", "create", topic, *[part for each in policy for part in ("--set", each)])
    assert tidemill.json("topic", "describe", topic)["lag_policy"] == {
        "policy": "alert",
        "group": topic,
        "limits": {"records": 1},
        "largest_lag": {"records": 0, "bytes": 0, "ms": 0},
        "lost": 0,
        "at_work": False,
    }
    tidemill.ok("topic", "produce", topic, stdin="a\nb\n")
    text = tidemill.ok("topic", "describe", topic)
    assert f"alert when group {topic} is over 1 records behind (now 2 records: the broker" in text
    tidemill.ok("topic", "alter", topic, "--unset", "lag.max.records")
    assert "without effect: set lag.max.records" in tidemill.ok("topic", "describe", topic)


def test_create_conflicts_are_exit_4_unless_they_are_expected(
    tidemill: CommandLine, topic: str
) -> None:
    tidemill.ok("topic", "create", topic)
    again = tidemill.run("topic", "create", topic)
    assert (again.returncode, again.stdout) == (4, "")
    assert f"error: topic {topic} already exists" in again.stderr
    assert "--if-not-exists" in again.stderr
    assert tidemill.ok("topic", "create", topic, "--if-not-exists") == f"{topic} exists\n"


def test_an_error_does_not_hide_the_topics_that_were_created(
    tidemill: CommandLine, topic: str
) -> None:
    tidemill.ok("topic", "create", topic)
    done = tidemill.run("topic", "create", topic, f"{topic}-new", "bad/name", "--json")
    assert done.returncode == 4
    assert json.loads(done.stdout) == [{"topic": f"{topic}-new", "created": True}]
    assert done.stderr.count("error:") == 2


def test_an_impossible_number_of_partitions_leaves_the_configs_alone(
    tidemill: CommandLine, topic: str
) -> None:
    tidemill.ok("topic", "create", topic, "--partitions", "3")
    done = tidemill.run("topic", "alter", topic, "--partitions", "2", "--set", "retention.ms=5")
    assert done.returncode == 1
    assert f"error: topic {topic} has 3 partitions, and the number can only increase" in done.stderr
    assert tidemill.json("topic", "describe", topic)["configs"] == []


def test_a_misspelt_topic_gets_a_suggestion(tidemill: CommandLine, topic: str) -> None:
    tidemill.ok("topic", "create", f"{topic}-flights")
    done = tidemill.run("topic", "consume", f"{topic}-flihgts")
    assert done.returncode == 3
    assert f"Did you mean {topic}-flights?" in done.stderr


def test_dry_runs_change_nothing(tidemill: CommandLine, topic: str) -> None:
    tidemill.ok("topic", "create", topic, "--dry-run")
    assert tidemill.run("topic", "describe", topic).returncode == 3
    tidemill.ok("topic", "create", topic)
    before = tidemill.json("topic", "describe", topic)
    tidemill.ok(
        *("topic", "alter", topic, "--partitions", "5", "--set", "retention.ms=1", "--dry-run")
    )
    assert tidemill.ok("topic", "delete", topic, "--dry-run").startswith(f"would delete {topic}")
    assert tidemill.json("topic", "describe", topic) == before


def test_delete_asks_and_without_a_terminal_needs_yes(tidemill: CommandLine, topic: str) -> None:
    tidemill.ok("topic", "create", topic)
    refused = tidemill.run("topic", "delete", topic, stdin="y\n")
    assert refused.returncode == 2
    assert "--yes" in refused.stderr
    assert tidemill.run("topic", "describe", topic).returncode == 0


def test_list_hides_the_brokers_own_topics_unless_asked(tidemill: CommandLine, topic: str) -> None:
    tidemill.ok("topic", "produce", topic, stdin="a\n")
    tidemill.ok("topic", "consume", topic, "-g", topic, "--from", "beginning", "--until-end")
    listed = {row["topic"]: row for row in tidemill.json("topic", "list")}
    assert listed[topic] == {"topic": topic, "partitions": 1, "records": 1}
    assert not [name for name in listed if name.startswith("__")]
    every = {row["topic"] for row in tidemill.json("topic", "list", "--internal")}
    assert "__consumer_offsets" in every


def test_what_is_produced_is_consumed_with_key_headers_and_time(
    tidemill: CommandLine, topic: str
) -> None:
    tidemill.ok(
        *("topic", "produce", topic, "--key-separator", ":", "--header", "a=1", "--header", "b=é"),
        stdin="k:v\nl:w:x\n",
    )
    first, second = tidemill.records(topic, "--from", "beginning", "--until-end")
    assert (first["key"], first["value"], first["offset"]) == ("k", "v", 0)
    assert (second["key"], second["value"], second["offset"]) == ("l", "w:x", 1)
    assert first["headers"] == [["a", "1"], ["b", "é"]]
    assert first["timestamp"] > 1_700_000_000_000


def test_the_end_of_a_line_is_not_stored(tidemill: CommandLine, topic: str) -> None:
    tidemill.ok("topic", "create", topic, "-p", "1")
    tidemill.ok("topic", "produce", topic, stdin=b"a\r\n\r\nb\rc\r\r\nd\r")
    records = tidemill.records(topic, "--from", "beginning", "--until-end")
    assert [record["value"] for record in records] == ["a", "", "b\rc\r", "d\r"]


def test_consumed_json_can_be_produced_again(tidemill: CommandLine, topic: str) -> None:
    lines = [
        '{"key": "k", "value": {"n": 1}, "partition": 1, "timestamp": "2026-01-01T00:00Z"}',
        '{"key": "k", "value": null}',
        '{"value": "AP8=", "value_encoding": "base64", "headers": [["h", "1"], ["h", "2"]]}',
    ]
    tidemill.ok("topic", "create", topic, f"{topic}-copy", "-p", "2")
    tidemill.ok("topic", "produce", topic, "--format", "json", stdin="\n".join(lines))
    text = tidemill.ok("topic", "consume", topic, "--from", "beginning", "--until-end")
    tidemill.ok("topic", "produce", f"{topic}-copy", "--format", "json", stdin=text)

    def contents(name: str) -> set[str]:
        records = tidemill.records(name, "--from", "beginning", "--until-end")
        return {json.dumps({**record, "topic": "", "offset": 0}) for record in records}

    assert contents(topic) == contents(f"{topic}-copy")
    assert len(contents(topic)) == 3


def test_empty_input_creates_no_topic(tidemill: CommandLine, topic: str) -> None:
    done = tidemill.run("topic", "produce", topic)
    assert (done.returncode, done.stdout) == (3, "")
    assert f"error: topic {topic} does not exist" in done.stderr
    assert topic not in tidemill.ok("topic", "list").split()
    tidemill.ok("topic", "produce", topic, stdin="a\n")  # the broker makes it on first use
    assert tidemill.json("topic", "produce", topic)["delivered"] == 0
    assert [record["value"] for record in tidemill.records(topic, "--from", "0", "-n1")] == ["a"]


def test_records_that_fail_are_named_and_the_others_are_written(
    tidemill: CommandLine, topic: str
) -> None:
    tidemill.ok("topic", "create", topic)
    done = tidemill.run(
        *("topic", "produce", topic, "--format", "json", "--json"),
        stdin='{"value": "a"}\n{"valeu": "b"}\n{"value": "c", "partition": 7}\n{"value": "d"}\n',
    )
    assert done.returncode == 1
    assert "error: line 2: unknown field 'valeu'" in done.stderr
    assert f"error: line 3: topic {topic} has no such partition" in done.stderr
    assert json.loads(done.stdout)["delivered"] == 2
    values = [r["value"] for r in tidemill.records(topic, "--from", "beginning", "--until-end")]
    assert values == ["a", "d"]


def test_a_record_that_the_broker_refuses_is_named(tidemill: CommandLine, topic: str) -> None:
    tidemill.ok("topic", "create", topic, "--set", "max.message.bytes=200")
    done = tidemill.run("topic", "produce", topic, stdin="x" * 1000 + "\n")
    assert done.returncode == 1
    assert "error: line 1: " in done.stderr
    assert "too large" in done.stderr.lower()
    assert f"tidemill topic alter {topic} --set max.message.bytes" in done.stderr


def test_the_topic_limits_the_size_of_a_large_record_that_compresses_well(
    tidemill: CommandLine, topic: str
) -> None:
    tidemill.ok("topic", "create", topic)
    large = "x" * 3_000_000
    assert tidemill.run("topic", "produce", topic, stdin=large).returncode == 1
    tidemill.ok("topic", "produce", topic, "--compression", "zstd", stdin=large)
    (record,) = tidemill.records(topic, "--from", "beginning", "--until-end")
    assert record["value"] == large


def test_codecs_and_acks_can_be_chosen(tidemill: CommandLine, topic: str) -> None:
    for number, codec in enumerate(["none", "gzip", "snappy", "lz4", "zstd"]):
        acks = ["all", "1", "0"][number % 3]
        tidemill.ok(
            "topic", "produce", topic, "--compression", codec, "--acks", acks, stdin=f"{codec}\n"
        )
    records = tidemill.records(topic, "--from", "beginning", "--count", "5")
    assert [r["value"] for r in records] == ["none", "gzip", "snappy", "lz4", "zstd"]


def test_consume_starts_at_each_kind_of_position(tidemill: CommandLine, topic: str) -> None:
    lines = [f'{{"value": "{n}", "timestamp": {1_700_000_000_000 + n * 1000}}}' for n in range(10)]
    tidemill.ok("topic", "produce", topic, "--format", "json", stdin="\n".join(lines))

    def values(position: str) -> list[int]:
        records = tidemill.records(topic, "--from", position, "--until-end")
        return [int(record["value"]) for record in records]

    assert values("beginning") == list(range(10))
    assert values("7") == [7, 8, 9]
    assert values("-2") == [8, 9]
    assert values("-100") == list(range(10))
    assert values("@1700000004500") == [5, 6, 7, 8, 9]
    assert values("2023-11-14T22:13:28Z") == [8, 9]
    assert values("end") == []
    assert values("100") == []


def test_consume_follows_until_a_signal(tidemill: CommandLine, topic: str) -> None:
    tidemill.ok("topic", "create", topic)
    with tidemill.start("topic", "consume", topic, "--from", "beginning") as following:
        for value in ("one", "two"):
            tidemill.ok("topic", "produce", topic, stdin=f"{value}\n")
            assert json.loads(line_of(following.stdout))["value"] == value
        following.send_signal(signal.SIGINT)
        assert following.wait(60) == 0


def test_consume_ends_quietly_when_its_output_is_closed(tidemill: CommandLine, topic: str) -> None:
    tidemill.ok("topic", "produce", topic, stdin="a\nb\n")
    with tidemill.start("topic", "consume", topic, "--from", "beginning") as following:
        assert line_of(following.stdout)
        assert following.stdout is not None
        following.stdout.close()
        following.stdout = None
        _, errors = following.communicate(timeout=60)
    assert (following.returncode, errors) == (0, b"")


def test_bare_values_are_written_as_they_are(tidemill: CommandLine, topic: str) -> None:
    tidemill.ok("topic", "produce", topic, stdin=b"\xff\x00\nb\n")
    done = subprocess.run(
        tidemill.command(
            *("topic", "consume", topic, "--from", "0", "-n", "2", "--format", "values")
        ),
        capture_output=True,
        env=tidemill.env,
        timeout=120,
        check=True,
    )
    assert done.stdout == b"\xff\x00\nb\n"


def test_missing_topics_are_exit_3(tidemill: CommandLine, topic: str) -> None:
    for command in (
        ["topic", "describe", topic],
        ["topic", "alter", topic, "--partitions", "2"],
        ["topic", "delete", topic, "--yes"],
        ["topic", "consume", topic],
    ):
        done = tidemill.run(*command)
        assert (done.returncode, done.stdout) == (3, ""), command
        assert f"error: topic {topic} does not exist" in done.stderr
    tidemill.ok("topic", "create", topic)
    done = tidemill.run("topic", "consume", topic, "--partition", "5")
    assert (done.returncode, done.stdout) == (3, "")
    assert "It has only 0." in done.stderr


def test_an_invalid_name_is_named_once(tidemill: CommandLine) -> None:
    done = tidemill.run("topic", "create", "a b")
    assert done.returncode == 1
    assert done.stderr.count("a b") == 1


def test_a_topic_that_is_named_twice_is_created_and_deleted_once(
    tidemill: CommandLine, topic: str
) -> None:
    assert tidemill.ok("topic", "create", topic, topic) == f"created {topic}\n"
    assert tidemill.ok("topic", "delete", topic, topic, "--yes") == f"deleted {topic} (0 records)\n"


def test_only_configs_of_topics_can_be_unset(tidemill: CommandLine, topic: str) -> None:
    tidemill.ok("topic", "create", topic)
    done = tidemill.run("topic", "alter", topic, "--unset", "retention.m")
    assert (done.returncode, done.stdout) == (1, "")
    assert "unknown topic config 'retention.m'" in done.stderr
    assert "Did you mean retention.ms?" in done.stderr
    done = tidemill.run("topic", "alter", topic, "--unset", "retention.ms")
    assert done.returncode == 0
    assert f"warning: retention.ms is not set on {topic}" in done.stderr


def test_an_offset_after_the_end_warns(tidemill: CommandLine, topic: str) -> None:
    tidemill.ok("topic", "create", topic)
    done = tidemill.run("topic", "consume", topic, "--from", "999", "--until-end")
    assert (done.returncode, done.stdout) == (0, "")
    assert (
        done.stderr == f"warning: offset 999 is after the end of {topic} partition 0: 0 is used\n"
    )


def test_a_header_can_have_several_values(tidemill: CommandLine, topic: str) -> None:
    headers = ("--header", "k=1", "--header", "k=2", "--header", "k=1")
    tidemill.ok("topic", "produce", topic, *headers, stdin="x\n")
    (record,) = tidemill.records(topic, "--from", "beginning", "--until-end")
    assert record["headers"] == [["k", "1"], ["k", "2"], ["k", "1"]]


def test_the_address_can_be_a_property(tidemill: CommandLine, topic: str) -> None:
    tidemill.ok("topic", "create", topic)
    address = tidemill.env["TIDEMILL_BOOTSTRAP_SERVERS"]
    listed = tidemill.ok("topic", "list", "-b", "127.0.0.1:1", "-X", f"bootstrap.servers={address}")
    assert topic in listed


def test_a_file_that_a_property_names_must_exist(tidemill: CommandLine) -> None:
    done = tidemill.run("topic", "list", "-X", "ssl.ca.location=nowhere.pem")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: --property ssl.ca.location=nowhere.pem: no such file\n"
