"""``tidemill group`` against a broker process."""

from __future__ import annotations

import json
import signal
import subprocess
import time

import pytest

from tests.cli.conftest import CommandLine
from tests.support.processes import poll_until
from tests.support.topics import remove_before


@pytest.fixture
def group(tidemill: CommandLine, topic: str) -> str:
    """A group that has read 6 of 10 records, one a second apart, the first 1000 s ago."""
    start = int(time.time() * 1000) - 1_000_000
    lines = [f'{{"value": "{n}", "timestamp": {start + n * 1000}}}' for n in range(10)]
    tidemill.ok("topic", "produce", topic, "--format", "json", stdin="\n".join(lines))
    tidemill.ok("topic", "consume", topic, "-g", f"g-{topic}", "--from", "beginning", "-n", "6")
    return f"g-{topic}"


def committed(tidemill: CommandLine, group: str) -> list[int]:
    return [p["committed"] for p in tidemill.json("group", "describe", group)["partitions"]]


def test_a_group_continues_at_its_committed_offset(
    tidemill: CommandLine, group: str, topic: str
) -> None:
    values = [r["value"] for r in tidemill.records(topic, "-g", group, "--until-end")]
    assert values == ["6", "7", "8", "9"]
    assert tidemill.records(topic, "-g", group, "--until-end") == []


def test_describe_shows_the_lag_in_records_and_in_time(
    tidemill: CommandLine, group: str, topic: str
) -> None:
    described = tidemill.json("group", "describe", group)
    assert (described["state"], described["lag"]) == ("empty", 4)
    (partition,) = described["partitions"]
    assert (partition["committed"], partition["end"], partition["lag"]) == (6, 10, 4)
    assert 994_000 <= partition["lag_ms"] < 1_060_000
    assert described["lag_ms"] == partition["lag_ms"]

    text = tidemill.ok("group", "describe", group)
    assert "4 records" in text
    assert "16m" in text
    tidemill.ok("topic", "consume", topic, "-g", group, "--until-end")
    described = tidemill.json("group", "describe", group)
    assert (described["lag"], described["lag_ms"]) == (0, 0)


def test_a_group_whose_committed_offset_was_deleted_reads_the_remaining_records(
    tidemill: CommandLine, group: str, topic: str
) -> None:
    remove_before(tidemill.env["TIDEMILL_BOOTSTRAP_SERVERS"], topic, 8)
    values = [r["value"] for r in tidemill.records(topic, "-g", group, "--until-end")]
    assert values == ["8", "9"]


def test_a_new_group_starts_at_the_end_by_default(
    tidemill: CommandLine, group: str, topic: str
) -> None:
    assert tidemill.records(topic, "-g", f"{group}-end", "--until-end") == []
    cooperative = ("-X", "partition.assignment.strategy=cooperative-sticky")
    assert tidemill.records(topic, "-g", f"{group}-coop", "--until-end", *cooperative) == []
    records = tidemill.records(topic, "-g", f"{group}-new", "--from", "beginning", "--until-end")
    assert len(records) == 10


def test_describe_shows_unread_records_that_were_deleted(
    tidemill: CommandLine, group: str, topic: str
) -> None:
    remove_before(tidemill.env["TIDEMILL_BOOTSTRAP_SERVERS"], topic, 8)
    (partition,) = tidemill.json("group", "describe", group)["partitions"]
    assert (partition["start"], partition["lag"], partition["lost"]) == (8, 2, 2)


def test_live_members_are_shown_and_keep_a_group_from_being_moved_or_deleted(
    tidemill: CommandLine, group: str, topic: str
) -> None:
    with tidemill.start("topic", "consume", topic, "-g", group) as member:
        assert member.stdout is not None
        assert json.loads(member.stdout.readline())["value"] == "6"
        described = tidemill.json("group", "describe", group)
        (shown,) = described["members"]
        assert shown["client"] == "tidemill-cli"
        assert shown["partitions"] == [f"{topic}-0"]
        assert described["partitions"][0]["member"] == shown["member"]
        assert described["state"] == "stable"
        listed = {row["group"]: row for row in tidemill.json("group", "list")}
        assert (listed[group]["state"], listed[group]["members"]) == ("stable", 1)
        assert "tidemill-cli" in tidemill.ok("group", "describe", group)

        for verb in (["seek", group, "--to", "beginning"], ["delete", group]):
            refused = tidemill.run("group", *verb, "--yes")
            assert refused.returncode == 4
            assert "1 live member" in refused.stderr
            assert "hint: Stop its consumers first" in refused.stderr
        member.send_signal(signal.SIGTERM)
        assert member.wait(60) == 0
    assert committed(tidemill, group) == [10]
    tidemill.ok("group", "seek", group, "--to", "beginning", "--yes")


def test_a_group_that_the_broker_assigns_is_shown_with_its_epochs(
    tidemill: CommandLine, group: str, topic: str
) -> None:
    new = ["-X", "group.protocol=consumer"]
    with tidemill.start("topic", "consume", topic, "-g", group, *new) as member:
        assert member.stdout is not None
        assert json.loads(member.stdout.readline())["value"] == "6"
        described = tidemill.json("group", "describe", group)
        assert (described["type"], described["state"]) == ("consumer", "stable")
        assert (described["epoch"], described["assignment_epoch"]) == (1, 1)
        assert described["assignor"] == "uniform"
        (shown,) = described["members"]
        assert (shown["protocol"], shown["epoch"]) == ("consumer", 1)
        assert shown["partitions"] == shown["target"] == [f"{topic}-0"]
        text = tidemill.ok("group", "describe", group)
        assert "PROTOCOL  EPOCH  PARTITIONS" in text
        listed = {row["group"]: row for row in tidemill.json("group", "list")}
        assert listed[group]["type"] == "consumer"
        member.send_signal(signal.SIGTERM)
        assert member.wait(60) == 0
    assert committed(tidemill, group) == [10]
    described = tidemill.json("group", "describe", group)
    assert (described["state"], described["epoch"], described["members"]) == ("empty", 2, [])


def test_seek_supports_each_kind_of_position(tidemill: CommandLine, group: str) -> None:
    for flags, expected in (
        (["--to", "beginning"], 0),
        (["--to", "end"], 10),
        (["--to", "3"], 3),
        (["--to", "-4"], 6),
        (["--shift", "2"], 8),
        (["--shift", "-5"], 3),
        (["--shift", "-50"], 0),
        (["--to", "99"], 10),
        (["--to", "@0"], 0),
    ):
        tidemill.ok("group", "seek", group, *flags, "--yes")
        assert committed(tidemill, group) == [expected], flags


def test_seek_to_a_time_goes_to_the_first_record_at_or_after_it(
    tidemill: CommandLine, group: str, topic: str
) -> None:
    record = tidemill.records(topic, "--from", "3", "-n", "1")[0]
    tidemill.ok("group", "seek", group, "--to", f"@{record['timestamp'] - 1}", "--yes")
    assert committed(tidemill, group) == [3]
    tidemill.ok("group", "seek", group, "--to", "2099-01-01", "--yes")
    assert committed(tidemill, group) == [10]


def test_seek_shows_the_changes_and_asks(tidemill: CommandLine, group: str, topic: str) -> None:
    text = tidemill.ok("group", "seek", group, "--to", "beginning", "--dry-run")
    assert text.splitlines()[1].split() == [topic, "0", "6", "0", "-6"]
    refused = tidemill.run("group", "seek", group, "--to", "beginning", stdin="y\n")
    assert refused.returncode == 2
    assert committed(tidemill, group) == [6]
    moved = json.loads(
        tidemill.ok("group", "seek", group, "--to", "end", "--yes", "--json"),
    )
    assert moved["partitions"] == [{"topic": topic, "partition": 0, "before": 6, "after": 10}]


def test_seek_shows_the_changes_before_it_asks(
    tidemill: CommandLine, group: str, topic: str
) -> None:
    code, shown = tidemill.on_terminal(
        "group", "seek", group, "--to", "0", until="[y/N]", answer=b"n\n"
    )
    assert code == 1
    table, _, _ = shown.partition("Move ")
    assert table.split()[-5:] == [topic, "0", "6", "0", "-6"]
    assert committed(tidemill, group) == [6]


@pytest.mark.parametrize(
    ("move", "said"),
    [
        (["--to", "99999"], "offset 99999 is after the end of {} partition 0: 10 is used"),
        (["--shift", "5000"], "offset 5006 is after the end of {} partition 0: 10 is used"),
        (["--shift", "-7"], "offset -1 is before the start of {} partition 0: 0 is used"),
        (["--to", "2100-01-01"], "no record is at or after that time: the end is used"),
    ],
)
def test_a_move_to_where_nothing_is_warns(
    tidemill: CommandLine, group: str, topic: str, move: list[str], said: str
) -> None:
    done = tidemill.run("group", "seek", group, *move, "--yes")
    assert (done.returncode, done.stderr) == (0, f"warning: {said.format(topic)}\n")


def test_a_member_says_where_it_starts(tidemill: CommandLine, group: str, topic: str) -> None:
    for name, said in (
        (group, "Reading 1 partition from the committed offsets."),
        (f"new-{group}", "The group has no committed offsets: waiting for new records."),
    ):
        code, shown = tidemill.on_terminal(
            *("topic", "consume", topic, "--group", name),
            until=".",
            act=lambda process: process.send_signal(signal.SIGINT),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        assert code == 0
        assert said in shown


def test_a_group_that_is_named_twice_is_deleted_once(tidemill: CommandLine, group: str) -> None:
    assert tidemill.ok("group", "delete", group, group, "--yes") == f"deleted {group}\n"


def test_delete_with_a_topic_keeps_the_group_and_its_other_topics(
    tidemill: CommandLine, group: str, topic: str
) -> None:
    other = f"{topic}-other"
    tidemill.ok("topic", "create", other)
    tidemill.ok("group", "seek", group, "--topic", other, "--to", "end", "--yes")
    text = f"the offsets of {topic} from {group}\n"
    command = ["group", "delete", group, "--topic", topic]
    assert tidemill.ok(*command, "--dry-run") == f"would delete {text}"
    assert tidemill.ok(*command, "--yes") == f"deleted {text}"
    described = tidemill.json("group", "describe", group)
    assert [each["topic"] for each in described["partitions"]] == [other]
    again = tidemill.run(*command, "--yes")
    assert again.returncode == 3
    assert f"hint: See: tidemill group describe {group}" in again.stderr
    missing = tidemill.run("group", "delete", f"{group}-x", "--topic", topic, "--yes")
    assert (missing.returncode, "does not exist" in missing.stderr) == (3, True)


def test_the_start_of_a_new_group_can_be_set_for_a_named_topic(
    tidemill: CommandLine, group: str, topic: str
) -> None:
    new = f"new-{topic}"
    unknown = tidemill.run("group", "seek", new, "--to", "end", "--yes")
    assert unknown.returncode == 3
    assert "--topic" in unknown.stderr
    tidemill.ok("group", "seek", new, "--to", "7", "--topic", topic, "--yes")
    assert committed(tidemill, new) == [7]
    shifted = tidemill.run("group", "seek", f"{new}2", "--shift", "1", "--topic", topic, "--yes")
    assert shifted.returncode == 2
    assert "has no committed offset" in shifted.stderr


def test_delete_forgets_the_offsets(tidemill: CommandLine, group: str) -> None:
    assert tidemill.ok("group", "delete", group, "--dry-run") == f"would delete {group}\n"
    assert tidemill.run("group", "delete", group).returncode == 2
    assert tidemill.ok("group", "delete", group, "--yes") == f"deleted {group}\n"
    for command in (["describe", group], ["delete", group, "--yes"]):
        done = tidemill.run("group", *command)
        assert done.returncode == 3
        assert f"error: group {group} does not exist" in done.stderr


def shares(tidemill: CommandLine, group: str) -> list[int]:
    """Return the number of partitions of each member; empty if the group does not exist yet."""
    done = tidemill.run("group", "describe", group, "--json")
    members = json.loads(done.stdout)["members"] if done.returncode == 0 else []
    return sorted(len(member["partitions"]) for member in members)


def test_two_members_share_and_the_remaining_one_takes_over(
    tidemill: CommandLine, topic: str
) -> None:
    tidemill.ok("topic", "create", topic, "-p", "2")
    arguments = ["topic", "consume", topic, "-g", f"g-{topic}", "--from", "beginning"]
    arguments += ["-X", "heartbeat.interval.ms=100"]  # a heartbeat reports the rebalance
    with tidemill.start(*arguments) as first, tidemill.start(*arguments) as second:
        poll_until(lambda: shares(tidemill, f"g-{topic}") == [1, 1], 60, "one partition each")
        first.send_signal(signal.SIGTERM)
        assert first.wait(60) == 0
        # A record that is read during the rebalance is possibly read twice.
        poll_until(lambda: shares(tidemill, f"g-{topic}") == [2], 60, "both partitions")
        lines = '{"value": "a", "partition": 0}\n{"value": "b", "partition": 1}\n'
        tidemill.ok("topic", "produce", topic, "--format", "json", stdin=lines)
        assert second.stdout is not None
        values = {json.loads(second.stdout.readline())["value"] for _ in range(2)}
        assert values == {"a", "b"}
        second.send_signal(signal.SIGTERM)
        assert second.wait(60) == 0
    assert committed(tidemill, f"g-{topic}") == [1, 1]
