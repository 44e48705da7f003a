"""Attempts and dead letters on their way to the log, with a producer that notes what it gets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tidemill.confluent.clients import Kafka
from tidemill.connect.webhooks.attempts import Recorder


class Written:
    """A record on disk. confluent-kafka's own class can't be made with 2.11.0."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def offset(self) -> int:
        return self._offset


class Producer:
    """Reports, at each poll, what it has taken since the one before."""

    def __init__(self, refuses: dict[bytes, Exception]) -> None:
        self.calls: list[bytes | str] = []
        self._refuses = refuses
        self._reports: list[Callable[[], None]] = []

    def produce(self, topic: str, value: bytes, key: bytes, on_delivery: Any) -> None:
        if value in self._refuses:
            raise self._refuses[value]
        message = Written(len(self.calls))
        self.calls.append(value)
        self._reports.append(lambda: on_delivery(None, message))

    def poll(self, _timeout_s: float) -> None:
        self.calls.append("poll")
        reports, self._reports = self._reports, []
        for each in reports:
            each()


async def write(
    monkeypatch: pytest.MonkeyPatch, values: list[bytes], refuses: dict[bytes, Exception]
) -> tuple[Producer, list[int], list[str]]:
    """Write values; return the producer, the offsets of those on disk, and the failures."""
    producer = Producer(refuses)
    monkeypatch.setattr(Kafka, "producer", lambda _self, _client, **_config: producer)
    recorder = Recorder(Kafka("127.0.0.1:1"))
    written: list[int] = []
    failed: list[str] = []
    for value in values:
        recorder.write("t", b"k", value, written.append, lambda error: failed.append(str(error)))
    assert producer.calls == []
    assert recorder.pending == len(values)
    async with asyncio.timeout(30):
        while recorder.pending:
            await asyncio.sleep(0)
    return producer, written, failed


async def test_attempts_of_the_same_moment_are_handed_over_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    producer, written, failed = await write(monkeypatch, [b"1", b"2", b"3"], {})
    assert producer.calls == [b"1", b"2", b"3", "poll"]
    assert (written, failed) == ([0, 1, 2], [])


async def test_a_record_that_is_refused_fails_and_the_others_are_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refuses = {b"1": BufferError("full"), b"2": TypeError("no header")}
    producer, written, failed = await write(monkeypatch, [b"1", b"2", b"3"], refuses)
    assert producer.calls == [b"3", "poll"]
    assert written == [0]
    assert failed == [
        "can't write to topic t: the brokers do not answer",
        "can't write to topic t: no header",
    ]
