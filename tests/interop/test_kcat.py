"""kcat, as a user types it."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import pytest

from tests.interop.common import BASE_TIMESTAMP, CODECS, DEADLINE
from tests.interop.conftest import MakeTopic

KCAT = shutil.which("kcat") or shutil.which("kafkacat")

pytestmark = pytest.mark.skipif(
    KCAT is None, reason="kcat is not installed (Debian: apt install kcat)"
)


def kcat(bootstrap: str, *arguments: str, stdin: str = "") -> str:
    """Run kcat; its stdout."""
    assert KCAT is not None
    done = subprocess.run(
        [KCAT, "-b", bootstrap, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def consume(bootstrap: str, topic: str, position: str, *arguments: str) -> list[str]:
    """From a position to the end."""
    end_soon = ("-X", "fetch.wait.max.ms=10")  # the broker holds an empty answer back for so long
    output = kcat(bootstrap, "-C", "-t", topic, "-o", position, "-e", "-q", *end_soon, *arguments)
    return output.splitlines()


@pytest.fixture
def twenty(bootstrap: str, make_topic: MakeTopic) -> str:
    topic = make_topic()
    lines = "".join(f"{number}\n" for number in range(20))
    kcat(bootstrap, "-P", "-t", topic, "-p", "0", stdin=lines)
    return topic


@pytest.mark.parametrize("acks", ["0", "1", "all"])
@pytest.mark.parametrize("codec", CODECS)
def test_produce_and_consume(bootstrap: str, topic: str, codec: str, acks: str) -> None:
    lines = [f"key{number}:value {number}" for number in range(50)]
    text = "\n".join(lines) + "\n"
    options = f"-P -t {topic} -p 0 -z {codec} -X acks={acks} -K: -H source=kcat"
    kcat(bootstrap, *options.split(), stdin=text)
    # What was written with acks=0 and 1 is read when it is on disk. On a busy disk that takes
    # longer than a fetch waits, and kcat would end at an answer without records.
    patient = ("-X", "fetch.wait.max.ms=20000")
    found = consume(bootstrap, topic, "beginning", "-c", "50", *patient, "-f", "%k:%s|%h|%o\n")
    assert found == [f"{line}|source=kcat|{offset}" for offset, line in enumerate(lines)]


@pytest.mark.parametrize(
    ("position", "first"), [("beginning", 0), ("0", 0), ("13", 13), ("-5", 15), ("end", 20)]
)
def test_consume_from_a_position(bootstrap: str, twenty: str, position: str, first: int) -> None:
    assert consume(bootstrap, twenty, position) == [str(n) for n in range(first, 20)]


def test_consume_from_a_timestamp(bootstrap: str, twenty: str) -> None:
    stamps = consume(bootstrap, twenty, "beginning", "-f", "%T\n")
    assert consume(bootstrap, twenty, f"s@{stamps[0]}") == [str(n) for n in range(20)]
    assert consume(bootstrap, twenty, f"s@{BASE_TIMESTAMP}")[0] == "0"
    assert consume(bootstrap, twenty, f"s@{int(stamps[-1]) + 60_000}") == []


def test_query_of_offsets(bootstrap: str, twenty: str) -> None:
    assert f"{twenty} [0] offset 0" in kcat(bootstrap, "-Q", "-t", f"{twenty}:0:-2")
    assert f"{twenty} [0] offset 20" in kcat(bootstrap, "-Q", "-t", f"{twenty}:0:-1")


def test_a_group_goes_on_where_it_was(bootstrap: str, twenty: str, group: str) -> None:
    options = ["-X", "auto.offset.reset=earliest", "-q", "-G", group]
    first = kcat(bootstrap, *options, "-c", "8", twenty)
    assert first.split() == [str(n) for n in range(8)]
    rest = kcat(bootstrap, *options, "-c", "12", twenty)
    assert rest.split() == [str(n) for n in range(8, 20)]


def test_metadata(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=3)
    metadata: dict[str, Any] = json.loads(kcat(bootstrap, "-L", "-J", "-t", topic))
    assert [broker["id"] for broker in metadata["brokers"]] == [1]
    (described,) = metadata["topics"]
    assert [p["partition"] for p in described["partitions"]] == [0, 1, 2]
    assert [p["leader"] for p in described["partitions"]] == [1, 1, 1]
