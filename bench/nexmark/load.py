"""Writes the events of Nexmark to topics, as JSON. Must not know: Spark, queries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from confluent_kafka import Producer

from bench.nexmark.generator import Events
from bench.nexmark.queries import AUCTIONS, BIDS, PERSONS
from bench.targets import Target

PARTITIONS = 2
"""Partitions of each topic: one for each core of the session."""
FLUSH_TIMEOUT_S = 120.0
_POLL_EVERY = 5000


def load(target: Target, chunks: Iterable[Events]) -> Events:
    """Create the topics, write all events, and return them as one.

    Raises:
        RuntimeError: A record was not acknowledged.
        confluent_kafka.KafkaException: A topic can't be created.
    """
    for topic in (PERSONS, AUCTIONS, BIDS):
        target.create_topic(topic, PARTITIONS)
    producer = Writer(target.bootstrap)
    seen: list[Events] = []
    for chunk in chunks:
        producer.write(PERSONS, person_values(chunk.persons))
        producer.write(AUCTIONS, auction_values(chunk.auctions))
        producer.write(BIDS, bid_values(chunk.bids))
        seen.append(chunk)
    producer.flush()
    return Events(
        pa.concat_tables([each.persons for each in seen]),
        pa.concat_tables([each.auctions for each in seen]),
        pa.concat_tables([each.bids for each in seen]),
    )


class Writer:
    """A producer that gives each partition of a topic the next record in turn.

    Args:
        bootstrap: Address of the broker.
    """

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "linger.ms": 20,
                "batch.num.messages": 10_000,
                "queue.buffering.max.messages": 500_000,
                "delivery.report.only.error": True,
                "log_level": 3,
            }
        )
        self._written: dict[str, int] = {}
        self._failed: list[str] = []

    def write(self, topic: str, values: Iterable[str]) -> None:
        """Send records; wait while the producer's queue is full."""
        count = self._written.get(topic, 0)
        for value in values:
            if count % _POLL_EVERY == 0:
                self._producer.poll(0)
            while True:
                try:
                    self._producer.produce(
                        topic, value, partition=count % PARTITIONS, on_delivery=self._delivered
                    )
                    break
                except BufferError:
                    self._producer.poll(0.1)
            count += 1
        self._written[topic] = count

    def flush(self) -> None:
        """Wait until all records are acknowledged.

        Raises:
            RuntimeError: A record was not acknowledged.
        """
        if left := self._producer.flush(FLUSH_TIMEOUT_S):
            raise RuntimeError(f"{left} records were not acknowledged in {FLUSH_TIMEOUT_S:g} s")
        if self._failed:
            raise RuntimeError(f"{len(self._failed)} records failed: {self._failed[0]}")

    def _delivered(self, error: object, _message: object) -> None:
        if error is not None:
            self._failed.append(str(error))


def person_values(persons: pa.Table) -> Iterator[str]:
    """Return persons as JSON. The generator's strings need no escapes."""
    for number, name, mail, card, city, state, at, extra in _rows(persons):
        yield (
            f'{{"id":{number},"name":"{name}","emailAddress":"{mail}","creditCard":"{card}",'
            f'"city":"{city}","state":"{state}","dateTime":"{time_text(at)}","extra":"{extra}"}}'
        )


def auction_values(auctions: pa.Table) -> Iterator[str]:
    """Return auctions as JSON."""
    for row in _rows(auctions):
        number, item, about, first, reserve, at, expires, seller, category, extra = row
        yield (
            f'{{"id":{number},"itemName":"{item}","description":"{about}","initialBid":{first},'
            f'"reserve":{reserve},"dateTime":"{time_text(at)}","expires":"{time_text(expires)}",'
            f'"seller":{seller},"category":{category},"extra":"{extra}"}}'
        )


def bid_values(bids: pa.Table) -> Iterator[str]:
    """Return bids as JSON."""
    known: tuple[int, str] = (-1, "")
    for auction, bidder, price, channel, url, at, extra in _rows(bids):
        if known[0] != at:  # ten events have the same time
            known = (at, time_text(at))
        yield (
            f'{{"auction":{auction},"bidder":{bidder},"price":{price},"channel":"{channel}",'
            f'"url":"{url}","dateTime":"{known[1]}","extra":"{extra}"}}'
        )


def time_text(ms: int) -> str:
    """Return milliseconds since 1970 as text: ``2026-01-01T00:00:00.000Z``."""
    second = datetime.fromtimestamp(ms // 1000, UTC)
    return f"{second:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}Z"


def _rows(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    return zip(*(column.to_pylist() for column in table.columns), strict=True)
