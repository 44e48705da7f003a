"""Follows ``departures.hourly``: what the pipeline has published so far.

Knows a Kafka client and the records' JSON. Polled by the caller; no thread of its own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Self

import orjson
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition

from tidemill.demo.check import WindowFigures, WindowKey
from tidemill.demo.topics import HOURLY, PARTITIONS
from tidemill.errors import TidemillError

_BATCH = 1000


class ResultsError(TidemillError):
    """Published results can't be read, or contradict each other."""


class ResultsFollower:
    """Reads all results from the beginning. Use as a context manager.

    Attributes:
        windows: the figures of each window published so far, in the order of publication.
        repeated: results that were published more than once, with equal figures (writing is at
            least once, so a retried task repeats what it wrote).
    """

    def __init__(self, bootstrap_servers: str) -> None:
        self.windows: dict[WindowKey, WindowFigures] = {}
        self.repeated = 0
        self._next: dict[int, int] = dict.fromkeys(range(PARTITIONS[HOURLY]), 0)
        # No offsets are committed: a group id is only what the client asks for.
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "client.id": "tidemill-demo-results",
                "group.id": "tidemill-demo-results",
                "enable.auto.commit": False,
                "log_level": 2,
            }
        )

    def __enter__(self) -> Self:
        self._consumer.assign(
            [TopicPartition(HOURLY, number, OFFSET_BEGINNING) for number in self._next]
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._consumer.close()

    def poll(self, timeout_s: float) -> list[WindowKey]:
        """Take what has come, waiting up to ``timeout_s`` for something.

        Returns:
            the windows that are new.

        Raises:
            ResultsError: the log can't be read, a record is not a result, or a window was published
                twice with different figures.
        """
        new = []
        for message in self._consumer.consume(_BATCH, timeout_s):
            error = message.error()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF or error.retriable():
                    continue
                raise ResultsError(f"{HOURLY} can't be read: {error.str()}")
            key = self._add(message)
            if key is not None:
                new.append(key)
        return new

    def read_up_to(self, ends: Mapping[tuple[str, int], int], timeout_s: float) -> None:
        """Poll until each partition has been read up to its end.

        Args:
            ends: end offsets of topics' partitions; those of other topics are ignored.
            timeout_s: how long that may take.

        Raises:
            ResultsError: it took longer, or see ``poll``.
        """
        deadline = time.monotonic() + timeout_s
        while any(
            self._next[number] < end for (name, number), end in ends.items() if name == HOURLY
        ):
            if time.monotonic() > deadline:
                raise ResultsError(
                    f"{HOURLY} was not read to its end within {timeout_s:g} s: read {self._next}"
                )
            self.poll(0.1)

    def _add(self, message: Message) -> WindowKey | None:
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        self._next[partition] = offset + 1
        try:
            key, figures = parse_result(message.key() or b"", message.value() or b"")
        except (ValueError, KeyError, TypeError) as error:
            raise ResultsError(
                f"{HOURLY}-{partition} offset {offset} is not a result: {error}"
            ) from error
        known = self.windows.get(key)
        if known is None:
            self.windows[key] = figures
            return key
        if known != figures:
            raise ResultsError(f"window {key} was published as {known} and as {figures}")
        self.repeated += 1
        return None


def parse_result(key: str | bytes, value: str | bytes) -> tuple[WindowKey, WindowFigures]:
    """A record of ``departures.hourly``.

    Raises:
        KeyError, TypeError, ValueError: it is not a result.
    """
    result: dict[str, Any] = orjson.loads(value)
    airport, start = result["airport"], result["window_start"]
    expected_key = f"{airport}|{start}"
    if (key.decode() if isinstance(key, bytes) else key) != expected_key:
        raise ValueError(f"its key is {key!r}, not {expected_key!r}")
    figures = WindowFigures(
        departures=result["departures"],
        delay_minutes=result["delay_minutes"],
        mean_delay_minutes=float(result["mean_delay_minutes"]),
    )
    return (airport, int(datetime.fromisoformat(start).timestamp())), figures
