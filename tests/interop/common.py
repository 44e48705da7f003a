"""What all clients are put through: the same records, codecs and questions."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
DEADLINE = 90.0
"""Seconds after which a client that waits for something is given up."""

BASE_TIMESTAMP = 1_700_000_000_000


@dataclass(frozen=True)
class Rec:
    """A record as every client can write and read it."""

    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...] = ()


def sample_records(count: int) -> list[Rec]:
    """Records with all that a record may be: no key, no value, empty ones, headers, large ones."""
    shapes = [
        (b"key", b"value", (("h", b"1"), ("h", b"2"), ("empty", b""))),
        (None, b"no key", ()),
        (b"tombstone", None, ()),
        (b"", b"", ()),
        (b"large", b"0123456789" * 1000, ()),
        ("schlüssel".encode(), "wert €".encode(), (("ü", "€".encode()),)),
    ]
    return [
        Rec(key, value, BASE_TIMESTAMP + number * 10, headers)
        for number in range(count)
        for key, value, headers in [shapes[number % len(shapes)]]
    ]


CONSUMER_DEFAULTS = {
    "auto_offset_reset": "earliest",
    "enable_auto_commit": False,
    "fetch_max_wait_ms": 50,
    "session_timeout_ms": 6000,
    "heartbeat_interval_ms": 300,
}
"""Settings of consumers of kafka-python and aiokafka."""


def assert_same(found: list[Any], records: list[Rec]) -> None:
    """Compare what a consumer of kafka-python or aiokafka has read with what was written."""
    assert [(r.offset, r.key, r.value, r.timestamp, tuple(r.headers)) for r in found] == [
        (offset, rec.key, rec.value, rec.timestamp, rec.headers)
        for offset, rec in enumerate(records)
    ]


def wait_for(condition: Callable[[], Any], what: str, timeout: float = DEADLINE) -> Any:
    """Ask until the answer is true (the clients' own calls do the waiting); returns it.

    Raises:
        AssertionError: not in time.
    """
    deadline = time.monotonic() + timeout
    while True:
        answer = condition()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"not within {timeout} s: {what}"


class GroupMemberProcess:
    """A consumer of a group in a process of its own, that can die for real.

    It commits after each record and prints the record as a JSON line. See ``member_main``.
    """

    def __init__(self, client: str, bootstrap: str, group: str, topic: str, log: Path) -> None:
        self._out = log
        program = [sys.executable, "-m", "tests.interop.member_main"]
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [*program, client, bootstrap, group, topic],
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=Path(__file__).parents[2],
            )

    def seen(self) -> list[tuple[int, int]]:
        """(partition, offset) of what it has committed so far."""
        assert self._process.poll() is None, self._out.read_text(errors="replace")
        lines = self._out.read_text(errors="replace").split("\n")[:-1]
        found = [json.loads(line) for line in lines if line.startswith("[")]
        if not found:
            time.sleep(0.02)
        return [(partition, offset) for partition, offset in found]

    def kill(self) -> None:
        """SIGKILL: no goodbye to the group."""
        self._process.kill()
        self._process.wait(timeout=60)

    def __enter__(self) -> GroupMemberProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
