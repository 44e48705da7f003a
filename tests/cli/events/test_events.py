"""``tidemill events``, on a broker."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import CommandLine
from tests.conftest import BrokerFactory
from tidemill.cli import output

PROGRAM = """
from dataclasses import dataclass
from tidemill.eventstore.app import (
    Codec, ProjectionRunner, Repository, SnapshotFile, SnapshotPolicy,
)
from tidemill.eventstore.app.projections.sqlite import SQLite
from tidemill.eventstore.memory_store import MemoryStore

events = Codec()

@events.event("counted")
@dataclass
class Counted:
    by: int

@dataclass
class Counter:
    total: int = 0
    def apply_counted(self, event: Counted) -> None:
        self.total += event.by

class Totals:
    name, version, tables = "totals", 1, {"total": "stream TEXT, by_ BIGINT"}
    def on_counted(self, event: Counted, stored, db) -> None:
        db.execute("INSERT INTO {total} VALUES (?, ?)", (stored.stream, event.by))

store = MemoryStore()
policy = SnapshotPolicy(Counter, file=SnapshotFile("snapshots.db"))
counters = Repository(store, events, Counter, snapshots=policy)
for name in ("a", "b"):
    counters.execute(name, lambda counter: [Counted(1), Counted(2)])

def totals():
    return ProjectionRunner(store, events, Totals(), SQLite("totals.db"))
"""


@pytest.fixture(autouse=True)
def cache(tidemill: CommandLine, tmp_path: Path) -> None:
    """Keep the indexes of the stores in the test's folder."""
    tidemill.env["XDG_CACHE_HOME"] = str(tmp_path / "cache")


@pytest.fixture
def store(tidemill: CommandLine, topic: str) -> str:
    for number in (1, 2, 3):
        tidemill.ok("events", "append", topic, "count-a", "counted", "-d", f'{{"by": {number}}}')
    tidemill.ok("events", "append", topic, "count-b", "other", "--tag", "x", "--metadata", "m")
    return topic


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(each) for each in text.splitlines()]


def test_append_says_where_the_event_is(tidemill: CommandLine, topic: str) -> None:
    id_ = "8a8b1f7e-50d3-4c4e-9f0e-0d8b5f0f0a01"
    command = ("events", "append", topic, "a-1", "t", "--expected", "none", "--id", id_)
    assert tidemill.ok(*command) == "appended: version 1 of a-1, position 1\n"
    assert tidemill.ok(*command) == "was there already: version 1 of a-1, position 1\n"
    done = tidemill.run("events", "append", topic, "a-1", "t", "--expected", "7")
    assert done.returncode == output.CONFLICT
    assert "has 1 events, expected: 7 events" in done.stderr
    assert tidemill.ok("events", "append", topic, "a-1", "t", "-d", "-", stdin=b"\xff\x00")
    (_, second) = lines(tidemill.ok("events", "read", topic))
    assert (second["data"], second["data_encoding"]) == ("/wA=", "base64")


def test_append_escapes_what_would_change_the_terminal(tidemill: CommandLine, topic: str) -> None:
    printed = tidemill.ok("events", "append", topic, "a\x1b[31m\n", "t")
    assert printed == "appended: version 1 of a\\x1b[31m\\n, position 1\n"


def test_the_hint_for_an_unsuitable_topic_makes_it_suitable(
    tidemill: CommandLine, topic: str
) -> None:
    tidemill.ok("topic", "create", topic, "--set", "retention.ms=1000", "--partitions", "1")
    done = tidemill.run("events", "append", topic, "a", "t")
    assert done.returncode == output.FAILURE
    command = done.stderr.rpartition("hint: tidemill ")[2].split()
    assert command[-1] == "retention.ms=-1"
    tidemill.ok(*command)
    tidemill.ok("events", "append", topic, "a", "t")


@pytest.mark.parametrize(
    "wrong",
    [("--expected", "-1"), ("--expected", "x"), ("--expected", "9" * 30), ("--id", "7")],
)
def test_invalid_options_of_append_are_usage_errors(
    tidemill: CommandLine, topic: str, wrong: tuple[str, str]
) -> None:
    done = tidemill.run("events", "append", topic, "a-1", "t", *wrong)
    assert done.returncode == output.USAGE
    assert "Traceback" not in done.stderr


def test_read_and_streams_select(tidemill: CommandLine, store: str) -> None:
    def read(*options: str) -> list[int]:
        return [each["position"] for each in lines(tidemill.ok("events", "read", store, *options))]

    assert read() == [1, 2, 3, 4]
    assert read("count-a", "--after", "1", "--to", "2") == [2]
    assert read("count-a", "--backwards", "-n", "1") == [3]
    assert read("--type", "other") == read("--tag", "x") == [4]
    assert read("--category", "count", "--after", "3") == [4]
    assert read("--type", "missing") == []
    first = lines(tidemill.ok("events", "read", store))[0]
    assert (first["data"], first["type"], first["version"]) == ({"by": 1}, "counted", 1)
    assert tidemill.run("events", "read", store, "count-a", "--tag", "x").returncode == output.USAGE
    found = tidemill.json("events", "streams", store)
    assert [(each["stream"], each["events"]) for each in found] == [("count-a", 3), ("count-b", 1)]
    assert "count-a" in tidemill.ok("events", "streams", store)
    assert tidemill.json("events", "streams", store, "--category", "x") == []


def test_a_store_that_does_not_exist_is_not_created_by_reading(
    tidemill: CommandLine, topic: str
) -> None:
    for command in (("read", topic), ("streams", topic), ("publish", topic, "--to", "x")):
        done = tidemill.run("events", *command)
        assert done.returncode == output.NOT_FOUND, done
        assert f"store {topic} does not exist" in done.stderr


def test_subscribe_prints_what_is_there_and_ends_by_its_count(
    tidemill: CommandLine, store: str
) -> None:
    found = lines(tidemill.ok("events", "subscribe", store, "--after", "1", "-n", "2"))
    assert [each["position"] for each in found] == [2, 3]


def test_publish_copies_once(tidemill: CommandLine, store: str) -> None:
    to = f"{store}-out"
    for _ in range(2):
        tidemill.ok("events", "publish", store, "--to", to, "--until-end")
    found = tidemill.records(to, "--from", "beginning", "--until-end")
    assert [each["key"] for each in found] == ["count-a"] * 3 + ["count-b"]
    same = tidemill.run("events", "publish", store, "--to", store)
    assert same.returncode == output.USAGE


def test_publish_is_a_worker_beside_the_broker(start_broker: BrokerFactory, tmp_path: Path) -> None:
    file = tmp_path / "tidemill.toml"
    file.write_text('[[publish]]\nstore = "bank"\nto = "bank-events"\npartitions = 2\n')
    broker = start_broker(env={"TIDEMILL_CONFIG": str(file), "XDG_CACHE_HOME": str(tmp_path)})
    tidemill = CommandLine(broker.bootstrap, tmp_path)
    tidemill.env["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    for number in (1, 2, 3):
        tidemill.ok("events", "append", "bank", f"a-{number}", "t")
    deadline = time.monotonic() + 60
    while True:
        done = tidemill.run("topic", "consume", "bank-events", "--from", "beginning", "--until-end")
        if len(done.stdout.splitlines()) == 3:
            break
        assert time.monotonic() < deadline, done
        time.sleep(0.1)
    assert len({each["partition"] for each in lines(done.stdout)}) <= 2


def test_export_and_import(tidemill: CommandLine, store: str, tmp_path: Path) -> None:
    file, target = tmp_path / "events.jsonl", f"{store}-copy"
    tidemill.ok("events", "export", store, str(file))
    again_done = tidemill.run("events", "export", store, str(file))
    assert (again_done.returncode, again_done.stderr) == (
        output.FAILURE,
        f"error: {file}: File exists\n",
    )
    assert "2 streams" in tidemill.ok("events", "import", target, str(file), "--dry-run")
    said = tidemill.ok("events", "import", target, str(file))
    assert said == "imported 4 events, 0 were there already\n"
    assert "4 were there already" in tidemill.ok("events", "import", target, str(file))
    again = lines(tidemill.ok("events", "export", target))
    times = [each.pop("time") for each in again]
    assert len(times) == 4
    expected = lines(file.read_text())
    for each in expected:
        each.pop("time")
    assert again == expected
    file.write_text("{}\n")
    done = tidemill.run("events", "import", target, str(file))
    assert done.returncode == output.FAILURE
    assert "invalid exported event" in done.stderr


def test_rebuild_makes_the_index_again(tidemill: CommandLine, store: str, tmp_path: Path) -> None:
    (index,) = (tmp_path / "cache").rglob(f"{store}.sqlite")
    index.write_bytes(b"damaged" * 1000)
    assert tidemill.run("events", "streams", store).returncode == output.FAILURE
    assert "4 events" in tidemill.ok("events", "rebuild", store)
    assert len(tidemill.json("events", "streams", store)) == 2


def test_snapshots_and_projections_of_a_program(
    tidemill: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"program_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(PROGRAM)
    assert tidemill.ok("events", "snapshot", f"{name}:counters") == "made 2 snapshots\n"
    assert tidemill.ok("events", "snapshot", f"{name}:counters", "a") == "made 0 snapshots\n"
    assert tidemill.ok("events", "replay", f"{name}:totals") == "built again up to position 4\n"
    for wrong in ("x", "missing_module:x", f"{name}:missing", f"{name}:counters"):
        done = tidemill.run("events", "replay", wrong)
        assert done.returncode == output.USAGE, wrong
        assert "error:" in done.stderr
    sys.modules.pop(name)


def test_verify_prints_a_head_that_a_later_run_compares(tidemill: CommandLine, store: str) -> None:
    found = json.loads(tidemill.ok("events", "verify", store, "--json"))
    assert (found["events"], found["accepted"], found["void"]) == (4, 4, 0)
    tidemill.ok("events", "append", store, "count-a", "counted")
    assert "accepted" in tidemill.ok("events", "verify", store, "--head", found["head"])
    broken = tidemill.run("events", "verify", store, "--head", f"1:{'00' * 32}")
    assert broken.returncode == output.FAILURE
    assert "does not fit together" in broken.stderr
    invalid = tidemill.run("events", "verify", store, "--head", "x")
    assert invalid.returncode == output.USAGE


def test_replay_handles_parked_events_again(
    tidemill: CommandLine, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", tidemill.env["XDG_CACHE_HOME"])
    name = f"parking_{store}"
    servers = tidemill.env["TIDEMILL_BOOTSTRAP_SERVERS"]
    (tmp_path / f"{name}.py").write_text(PARKING.format(servers=servers, store=store))
    done = tidemill.run("events", "replay", f"{name}:broken")
    assert (done.returncode, done.stdout) == (output.FAILURE, "handled 0 parked events\n")
    assert "error: 4 events stay parked" in done.stderr
    assert tidemill.ok("events", "replay", f"{name}:repaired") == "handled 4 parked events\n"
    assert tidemill.ok("events", "replay", f"{name}:repaired") == "handled 0 parked events\n"
    sys.modules.pop(name)


PARKING = """
from tidemill.eventstore.deliveries import Backoff
from tidemill.eventstore.groups import Group
from tidemill.eventstore.store import Store

store = Store("{servers}", "{store}")

def fail(event):
    raise ValueError("no")

def broken():
    group = Group(store, "{servers}", "g", backoff=Backoff(attempts=1))
    while len(group.parked()) < 4:
        group.take().park("no")
    return group, fail

def repaired():
    return Group(store, "{servers}", "g"), lambda event: None
"""
