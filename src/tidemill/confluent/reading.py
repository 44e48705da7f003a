"""Read topics with librdkafka: follow partitions, or read them to their present end.

For topics whose records are looked at one by one: state, orders, statuses, results. What needs
Arrow's speed reads with ``kafka_client``. Must not know: what the records mean.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import methodcaller
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tidemill.confluent.clients import REQUEST_S, Kafka
from tidemill.errors import TidemillError, UnreachableError

READ_S = 60.0
"""How long a read can go without a record before it fails."""
_BATCH = 2000

Partition = tuple[str, int]
Headers = list[tuple[str, bytes | None]]


# confluent-kafka returns a result and leaves an exception set, which Python raises anywhere later
# if it calls the method itself: only calls from C are checked.
_headers = methodcaller("headers")


def headers_of(message: Message) -> Headers:
    """Return the headers of a record; none if confluent-kafka can't read them.

    That is so if a name is not UTF-8. Brokers store such names, and one must not stop a reader.
    """
    try:
        found: Any = _headers(message)
    except (SystemError, UnicodeDecodeError):
        return []
    return found or []


def arrived(consumer: Consumer, timeout_s: float, most: int = _BATCH) -> Iterator[Message]:
    """Yield messages that have arrived: records, ends and errors. Wait for the first one only."""
    first = consumer.poll(timeout_s)
    if first is not None:
        yield first
        if most > 1:
            yield from consumer.consume(min(most - 1, _BATCH), 0)


class Follower:
    """Follows partitions from given offsets on, and commits nothing. One thread uses it.

    Args:
        consumer: a consumer with ``enable.partition.eof``. It is closed with the follower.
        starts: the partitions, with the offset of the first record to read.

    Attributes:
        positions: by partition, the offset behind what was read, with the markers of transactions
            at the end.
    """

    def __init__(self, consumer: Consumer, starts: Mapping[Partition, int]) -> None:
        self._consumer = consumer
        self.positions = dict(starts)
        consumer.assign([TopicPartition(*place, offset) for place, offset in starts.items()])

    @classmethod
    def of(
        cls,
        kafka: Kafka,
        client: str,
        partitions: Iterable[Partition],
        isolation: str = "read_committed",
        starts: Mapping[Partition, int] | None = None,
        reset: str = "earliest",
        **config: Any,
    ) -> Follower:
        """Return a follower of partitions, from their beginning or from given offsets.

        Args:
            isolation: ``read_committed`` or ``read_uncommitted``.
            starts: the first offset of partitions; default: the beginning.
            reset: what happens if an offset does not exist any more (``auto.offset.reset``).
            config: more of librdkafka's configuration, with underscores for dots.
        """
        consumer = kafka.consumer(
            client,
            isolation_level=isolation,
            enable_partition_eof=True,
            auto_offset_reset=reset,
            **config,
        )
        return cls(consumer, {place: (starts or {}).get(place, 0) for place in partitions})

    def poll(self, timeout_s: float) -> Iterator[Message]:
        """Yield the records that have arrived. Wait for the first one only.

        Raises:
            KafkaException: a partition can't be read. It is raised behind the records.
        """
        failed: KafkaError | None = None
        for message in arrived(self._consumer, timeout_s):
            error, offset = message.error(), int(message.offset() or 0)
            place = str(message.topic()), int(message.partition() or 0)
            if error is None:
                yield message
                if place in self.positions:
                    self.positions[place] = offset + 1
            elif error.code() == KafkaError._PARTITION_EOF:
                # The end of what is committed, behind the control records.
                if place in self.positions:
                    self.positions[place] = offset
            elif not error.retriable() and error.code() != KafkaError._ALL_BROKERS_DOWN:
                failed = failed or error
        if failed is not None:
            raise KafkaException(failed)

    def take(self, timeout_s: float) -> list[Message]:
        """Return the records that have arrived; for many of them this is faster than ``poll``.

        Wait for the first one only. The positions are behind them.

        Raises:
            KafkaException: a partition can't be read, and no record has arrived.
        """
        found = list(arrived(self._consumer, timeout_s))
        records = [each for each in found if each.error() is None]
        last = {(each.topic(), each.partition()): each.offset() for each in records}
        for (topic, number), offset in last.items():
            self._reach((str(topic), int(number or 0)), int(offset or 0) + 1)
        for each in found if len(records) < len(found) else ():
            error = each.error()
            if error is None:
                continue
            if error.code() == KafkaError._PARTITION_EOF:
                self._reach((str(each.topic()), int(each.partition() or 0)), each.offset() or 0)
            elif not (error.retriable() or error.code() == KafkaError._ALL_BROKERS_DOWN or records):
                raise KafkaException(error)
        return records

    def _reach(self, place: Partition, offset: int) -> None:
        if place in self.positions:
            self.positions[place] = max(self.positions[place], offset)

    def add(self, starts: Mapping[Partition, int]) -> None:
        """Follow more partitions, from given offsets on."""
        self.positions.update(starts)
        self._consumer.incremental_assign(
            [TopicPartition(*place, offset) for place, offset in starts.items()]
        )

    def remove(self, partitions: Iterable[Partition]) -> None:
        """Do not follow these partitions any more."""
        gone = [place for place in partitions if self.positions.pop(place, None) is not None]
        self._consumer.incremental_unassign([TopicPartition(*place) for place in gone])

    def behind(self, ends: Mapping[Partition, int]) -> list[Partition]:
        """Return the partitions that were not read to these ends."""
        return [place for place, read in self.positions.items() if read < ends.get(place, 0)]

    def to_end(self, ends: Mapping[Partition, int]) -> Iterator[Message]:
        """Yield the records until all partitions were read to these ends.

        Raises:
            UnreachableError: for ``READ_S`` no record has come.
            KafkaException: a partition can't be read.
        """
        deadline = time.monotonic() + READ_S
        while behind := self.behind(ends):
            if time.monotonic() > deadline:
                raise UnreachableError(
                    f"topic {behind[0][0]} can't be read to its end within {READ_S:g} s",
                    hint="A transaction that is still open holds readers back: tidemill "
                    "transaction find",
                )
            for message in self.poll(0.05):
                deadline = time.monotonic() + READ_S
                yield message

    def close(self) -> None:
        """Close the client."""
        self._consumer.close()


@dataclass
class Extract:
    """Records of a partition, from an offset on.

    Attributes:
        following: The offset to continue with.
        end: The offset behind the partition's last record.
    """

    records: list[Message]
    following: int
    end: int


class OutOfRangeError(TidemillError):
    """The partition does not have this offset: it was deleted, or is not written yet.

    Attributes:
        start: The first offset that the partition still has.
        end: The offset behind its last record.
    """

    def __init__(self, place: Partition, offset: int, start: int, end: int) -> None:
        where = f"topic {place[0]} partition {place[1]}"
        super().__init__(f"{where} has offsets {start} to {end}, and not {offset}")
        self.start, self.end = start, end


class ExtractReader:
    """Reads some records from explicit positions, again and again. One thread uses it.

    Args:
        consumer: A consumer with ``enable.partition.eof``, whose ``auto.offset.reset`` is
            ``error``.
    """

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    @classmethod
    def of(cls, kafka: Kafka, client: str) -> ExtractReader:
        """Return a reader of what is committed, which does not read far ahead."""
        consumer = kafka.consumer(
            client,
            isolation_level="read_committed",
            enable_partition_eof=True,
            auto_offset_reset="error",
            fetch_wait_max_ms=10,
            fetch_queue_backoff_ms=1,
            queued_min_messages=100,
            queued_max_messages_kbytes=1024,
            fetch_message_max_bytes=262_144,
        )
        return cls(consumer)

    def read(
        self,
        place: Partition,
        offset: int,
        most: int,
        most_bytes: int,
        timeout_s: float,
    ) -> Extract:
        """Return the records from an offset on, or none if there are none yet.

        Args:
            most: The most records.
            most_bytes: Stop when keys and values have so many bytes.

        Raises:
            OutOfRangeError: The partition does not have the offset.
            KafkaException: The partition can't be read.
        """
        self._consumer.assign([TopicPartition(*place, offset)])
        found = Extract([], offset, -1)
        size, is_at_end, deadline = 0, False, time.monotonic() + timeout_s
        try:
            while not is_at_end and len(found.records) < most and size < most_bytes:
                left = deadline - time.monotonic()
                if left <= 0:
                    if found.records:
                        break
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
                for message in arrived(self._consumer, min(left, 1.0), most - len(found.records)):
                    is_at_end = self._take(place, offset, message, found) or is_at_end
                    size += len(message.value() or b"") + len(message.key() or b"")
                    if size >= most_bytes:
                        break
            there = TopicPartition(*place)
            found.end = self._consumer.get_watermark_offsets(there, cached=True)[1]
            return found
        finally:
            self._consumer.unassign()

    def read_several(
        self,
        starts: Mapping[Partition, int],
        take: Callable[[Message], None],
        most: int,
        most_bytes: int,
        timeout_s: float,
    ) -> tuple[dict[Partition, int], set[Partition]]:
        """Read several partitions together, from an offset on each, in the order of arrival.

        Args:
            take: Gets each record. It keeps what it needs, so that large ones take no memory.
            most: The most records.
            most_bytes: Stop when keys and values have so many bytes.
            timeout_s: Stop after so many seconds, with what has arrived.

        Returns:
            The offsets to continue with, and the partitions whose end was reached. Those that do
            not have their offset any more are among the latter.

        Raises:
            KafkaException: A partition can't be read.
        """
        positions, ended = dict(starts), set[Partition]()
        count = size = 0
        deadline = time.monotonic() + timeout_s
        self._consumer.assign([TopicPartition(*place, offset) for place, offset in starts.items()])
        try:
            while len(ended) < len(starts) and count < most and size < most_bytes:
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                for message in arrived(self._consumer, left, most - count):
                    place = str(message.topic()), int(message.partition() or 0)
                    error, offset = message.error(), int(message.offset() or 0)
                    if error is None:
                        take(message)
                        count += 1
                        size += len(message.value() or b"") + len(message.key() or b"")
                        positions[place] = offset + 1
                    elif error.code() == KafkaError._PARTITION_EOF:
                        positions[place] = offset  # behind the control records
                        ended.add(place)
                    elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                        ended.add(place)
                    elif not error.retriable() and error.code() != KafkaError._ALL_BROKERS_DOWN:
                        raise KafkaException(error)
                    if size >= most_bytes:
                        break
            return positions, ended
        finally:
            self._consumer.unassign()

    def _take(self, place: Partition, offset: int, message: Message, found: Extract) -> bool:
        """Add a message to what was found; return whether the end was reached."""
        error = message.error()
        if error is None:
            found.records.append(message)
            found.following = int(message.offset() or 0) + 1
            return False
        if error.code() == KafkaError._PARTITION_EOF:
            found.following = int(message.offset() or 0)  # behind the control records
            return True
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            there = TopicPartition(*place)
            start, end = self._consumer.get_watermark_offsets(there, timeout=REQUEST_S)
            raise OutOfRangeError(place, offset, start, end)
        if not error.retriable() and error.code() != KafkaError._ALL_BROKERS_DOWN:
            raise KafkaException(error)
        return False

    def close(self) -> None:
        """Close the client."""
        self._consumer.close()


def read_table(
    kafka: Kafka, client: str, topic: str, *, committed: bool = True
) -> dict[bytes, bytes]:
    """Return the last value of each key of a topic. Deleted keys are left out.

    Args:
        topic: the topic; if it does not exist, the result is empty.
        committed: whether to leave out records of transactions that are not committed.

    Raises:
        UnreachableError: the topic can't be read to its end.
    """
    latest: dict[bytes, bytes] = {}
    for key, value in read_to_end(kafka, client, topic, committed=committed):
        if value is None:
            latest.pop(key, None)
        else:
            latest[key] = value
    return latest


def read_to_end(
    kafka: Kafka,
    client: str,
    topic: str,
    *,
    committed: bool = True,
    starts: Mapping[Partition, int] | None = None,
) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield (key, value) of each record up to the end that the topic has now.

    The arguments and errors are those of ``messages_to_end``.
    """
    for message in messages_to_end(kafka, client, topic, committed=committed, starts=starts):
        yield message.key() or b"", message.value()


def messages_to_end(
    kafka: Kafka,
    client: str,
    topic: str,
    *,
    committed: bool = True,
    starts: Mapping[Partition, int] | None = None,
    ends: Mapping[Partition, int] | None = None,
) -> Iterator[Message]:
    """Yield each record up to the end that the topic has now.

    With ``committed``, it waits until open transactions below that end are decided.

    Args:
        starts: the first offset of partitions; default: the beginning.
        ends: the end of each partition that has records, if it is known.

    Raises:
        UnreachableError: the topic can't be read to its end.
        TidemillError: it can't be read.
    """
    ends = end_offsets(kafka, client, topic) if ends is None else ends
    if not ends:
        return
    isolation = "read_committed" if committed else "read_uncommitted"
    follower = Follower.of(kafka, client, ends, isolation, starts, fetch_wait_max_ms=50)
    with contextlib.closing(follower):
        try:
            yield from follower.to_end(ends)
        except KafkaException as error:
            raise kafka.translate(error.args[0], f"read topic {topic}") from error


def end_offsets(kafka: Kafka, client: str, topic: str) -> dict[Partition, int]:
    """Return the offset behind the last record of each partition that has some.

    Args:
        topic: the topic; if it does not exist, the result is empty.

    Raises:
        UnreachableError: no broker answers.
    """
    admin = kafka.admin(client)
    places = kafka.partitions(client, topic, admin)
    ends = kafka.end_offsets(client, places, admin=admin)
    return {place: end for place, end in ends.items() if end > 0}
