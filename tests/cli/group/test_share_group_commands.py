"""``tidemill group`` with share groups, against a broker process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

pytest.importorskip("confluent_kafka", minversion="2.16", reason="needs ShareConsumer")

from confluent_kafka import ShareConsumer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from tests.cli.conftest import CommandLine

DEADLINE_S = 120


@contextmanager
def member(tidemill: CommandLine, group: str, topic: str) -> Iterator[ShareConsumer]:
    servers = tidemill.env["TIDEMILL_BOOTSTRAP_SERVERS"]
    config = {"bootstrap.servers": servers, "group.id": group, "client.id": "sharer"}
    consumer = ShareConsumer({**config, "log_level": 0})
    consumer.subscribe([topic])
    try:
        yield consumer
    finally:
        consumer.close()


def accept(consumer: ShareConsumer, count: int) -> None:
    """Accept so many records: all that the topic has."""
    deadline = time.monotonic() + DEADLINE_S
    while count > 0:
        assert time.monotonic() < deadline, f"{count} records did not come"
        count -= sum(message.error() is None for message in consumer.poll(timeout=0.2))
    consumer.commit_sync()


@pytest.fixture
def group(tidemill: CommandLine, topic: str) -> str:
    """The name of a group that begins at the start; it does not exist yet."""
    name = f"share-{topic}"
    admin = AdminClient({"bootstrap.servers": tidemill.env["TIDEMILL_BOOTSTRAP_SERVERS"]})
    entry = ConfigEntry(
        "share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ResourceType.GROUP, name, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(60)
    tidemill.ok("topic", "produce", topic, stdin="\n".join(map(str, range(10))))
    return name


@pytest.fixture
def read(tidemill: CommandLine, group: str, topic: str) -> str:
    """A share group without members that has accepted 10 records."""
    with member(tidemill, group, topic) as consumer:
        accept(consumer, 10)
    return group


def start(tidemill: CommandLine, group: str) -> list[int]:
    described = tidemill.json("group", "describe", group)
    return [partition["share_start"] for partition in described["partitions"]]


def test_members_are_shown_and_keep_a_group_from_being_moved_or_deleted(
    tidemill: CommandLine, group: str, topic: str
) -> None:
    with member(tidemill, group, topic) as consumer:
        accept(consumer, 10)
        listed = {row["group"]: row for row in tidemill.json("group", "list")}
        expected = {"group": group, "state": "stable", "type": "share", "members": 1}
        assert listed[group] == expected
        described = tidemill.json("group", "describe", group)
        assert (described["type"], described["state"]) == ("share", "stable")
        (shown,) = described["members"]
        assert (shown["client"], shown["topics"]) == ("sharer", [topic])
        assert shown["partitions"] == [f"{topic}-0"]
        assert "sharer" in tidemill.ok("group", "describe", group)
        for verb in (["seek", group, "--to", "beginning"], ["delete", group]):
            refused = tidemill.run("group", *verb, "--yes")
            assert refused.returncode == 4
            assert "1 live member" in refused.stderr


def test_describe_shows_where_the_group_starts_and_its_lag(
    tidemill: CommandLine, read: str, topic: str
) -> None:
    tidemill.ok("topic", "produce", topic, stdin="a\nb\nc")
    described = tidemill.json("group", "describe", read)
    assert (described["state"], described["members"]) == ("empty", [])
    assert described["lag"] == 3
    expected = {"topic": topic, "partition": 0, "share_start": 10, "start": 0, "end": 13, "lag": 3}
    assert described["partitions"] == [expected]
    text = tidemill.ok("group", "describe", read)
    assert "TOPIC" in text
    assert text.splitlines()[-1].split() == [topic, "0", "10", "13", "3"]


def test_seek_moves_the_start(tidemill: CommandLine, read: str, topic: str) -> None:
    text = tidemill.ok("group", "seek", read, "--to", "4", "--dry-run")
    assert text.splitlines()[1].split() == [topic, "0", "10", "4", "-6"]
    assert start(tidemill, read) == [10]
    assert tidemill.run("group", "seek", read, "--to", "4").returncode == 2
    for flags, expected in (
        (["--to", "4"], 4),
        (["--shift", "2"], 6),
        (["--to", "beginning"], 0),
        (["--to", "end"], 10),
        (["--to", "-3", "--topic", topic], 7),
    ):
        tidemill.ok("group", "seek", read, *flags, "--yes")
        assert start(tidemill, read) == [expected], flags
    with member(tidemill, read, topic) as consumer:
        accept(consumer, 3)
    assert start(tidemill, read) == [10]


def test_delete_forgets_the_group(tidemill: CommandLine, read: str) -> None:
    assert tidemill.ok("group", "delete", read, "--dry-run") == f"would delete {read}\n"
    assert tidemill.ok("group", "delete", read, "--yes") == f"deleted {read}\n"
    assert read not in {row["group"] for row in tidemill.json("group", "list")}
    for command in (["describe", read], ["delete", read, "--yes"]):
        done = tidemill.run("group", *command)
        assert done.returncode == 3
        assert f"error: group {read} does not exist" in done.stderr


def test_delete_with_a_topic_forgets_what_was_read_of_it(
    tidemill: CommandLine, read: str, topic: str
) -> None:
    command = ["group", "delete", read, "--topic", topic]
    text = f"the offsets of {topic} from {read}\n"
    assert tidemill.ok(*command, "--dry-run") == f"would delete {text}"
    assert start(tidemill, read) == [10]
    assert tidemill.run(*command).returncode == 2
    assert tidemill.ok(*command, "--yes") == f"deleted {text}"
    assert start(tidemill, read) == []
    assert read in {row["group"] for row in tidemill.json("group", "list")}
    again = tidemill.run(*command, "--yes")
    assert again.returncode == 3
    assert f"error: group {read} has read nothing of topic {topic}" in again.stderr
    with member(tidemill, read, topic) as consumer:
        accept(consumer, 10)  # as a new group: from the start
        refused = tidemill.run(*command, "--yes")
        assert (refused.returncode, "1 live member" in refused.stderr) == (4, True)
