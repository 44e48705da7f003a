"""Three clients behind one small interface: consume, produce and commit in a transaction.

Each does what its own documentation asks of a consume-transform-produce loop. Knows nothing of the
loop itself, nor of how it is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

TIMEOUT_S = 60.0
LOST_S = 20.0
"""After so long, a worker takes a transactional request of kafka-python for lost, and gives up."""
"""How long a call of a client may block. A restart of the broker takes far less."""

DEBUG = os.environ.get("CRASH_DEBUG", "")
"""Debug contexts of librdkafka, e.g. ``eos,cgrp``."""

T = TypeVar("T")


class Record(NamedTuple):
    """A consumed record."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes


@dataclass(frozen=True)
class Job:
    """The work of one worker.

    Attributes:
        client: a key of ``CLIENTS``.
        instance: ``group.instance.id`` (static membership), None for a dynamic member.
        session_ms: the group's session timeout.
        transaction_ms: the transaction timeout.
        most: records in one transaction.
        aborts: the worker aborts every transaction whose number is a multiple of it (0: none).
        stop_at: a step at which the worker stops itself with SIGSTOP, once.
    """

    client: str
    bootstrap: str
    source: str
    target: str
    group: str
    transactional_id: str
    events: str
    output: str
    instance: str | None = None
    session_ms: int = 10_000
    transaction_ms: int = 10_000
    most: int = 50
    aborts: int = 0
    stop_at: str = ""


class Client(Protocol):
    """A consumer and a transactional producer.

    After an exception of ``begin`` to ``commit`` the worker calls ``abort`` and ``rewind``. An
    exception of any other method ends the worker.
    """

    def start(self) -> None:
        """Fence predecessors, then join the group."""

    def poll(self) -> list[Record]:
        """Some records, or none after a short while."""

    def begin(self) -> None: ...

    def send(self, partition: int, key: bytes | None, value: bytes) -> None: ...

    def flush(self) -> None:
        """Wait until the log has all that was sent."""

    def send_offsets(self, positions: Mapping[int, int]) -> None:
        """Make these input positions (next offset by partition) part of the transaction."""

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def rewind(self, firsts: Mapping[int, int]) -> None:
        """Continue at the positions that the group has committed.

        Args:
            firsts: the first offset of the failed transaction by partition.
        """


class Confluent:
    """librdkafka through confluent-kafka."""

    def __init__(self, job: Job) -> None:
        import confluent_kafka as ck

        self._ck = ck
        self._job = job
        common: dict[str, Any] = {
            "bootstrap.servers": job.bootstrap,
            # When librdkafka 2.16 starts from the bootstrap list again, it removes a broker that it
            # can't reach, but keeps it in its cache of coordinators. Then
            # send_offsets_to_transaction waits forever for a connection to the removed broker.
            # Apache Kafka shows the same.
            "metadata.recovery.strategy": "none",
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 50,
            "retry.backoff.ms": 10,
            "socket.timeout.ms": 10_000,
            **({"debug": DEBUG} if DEBUG else {}),
        }
        self._producer = ck.Producer(
            {
                **common,
                "transactional.id": job.transactional_id,
                "transaction.timeout.ms": job.transaction_ms,
                "linger.ms": 0,
            }
        )
        member = {} if job.instance is None else {"group.instance.id": job.instance}
        self._consumer = ck.Consumer(
            {
                **common,
                **member,
                "group.id": job.group,
                "session.timeout.ms": job.session_ms,
                "heartbeat.interval.ms": job.session_ms // 5,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 50,
                "fetch.error.backoff.ms": 10,
            }
        )

    def _repeat(self, call: Any, *arguments: Any) -> None:
        """Repeat a call that timed out until it has a result."""
        while True:
            try:
                call(*arguments, TIMEOUT_S)
                return
            except self._ck.KafkaException as error:
                if not error.args[0].retriable():
                    raise

    def start(self) -> None:
        self._repeat(self._producer.init_transactions)
        self._consumer.subscribe([self._job.source])

    def poll(self) -> list[Record]:
        records = []
        for message in self._consumer.consume(self._job.most, 0.02):
            error = message.error()
            if error is not None and error.fatal():
                raise self._ck.KafkaException(error)
            if error is None:
                records.append(
                    Record(
                        message.partition() or 0,
                        message.offset() or 0,
                        message.key(),
                        message.value() or b"",
                    )
                )
        return records

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, partition: int, key: bytes | None, value: bytes) -> None:
        self._producer.produce(self._job.target, value, key, partition)

    def flush(self) -> None:
        left = self._producer.flush(TIMEOUT_S)
        assert left == 0, f"{left} records are not delivered"

    def send_offsets(self, positions: Mapping[int, int]) -> None:
        offsets = [self._ck.TopicPartition(self._job.source, p, o) for p, o in positions.items()]
        metadata = self._consumer.consumer_group_metadata()
        self._repeat(self._producer.send_offsets_to_transaction, offsets, metadata)

    def commit(self) -> None:
        self._repeat(self._producer.commit_transaction)

    def abort(self) -> None:
        self._repeat(self._producer.abort_transaction)

    def rewind(self, firsts: Mapping[int, int]) -> None:
        owned = {tp.partition for tp in self._consumer.assignment()}
        wanted = [self._ck.TopicPartition(self._job.source, p) for p in firsts if p in owned]
        for found in self._consumer.committed(wanted, TIMEOUT_S):
            found.offset = max(found.offset, 0)
            self._consumer.seek(found)


def give_up_lost_requests() -> None:
    """Let kafka-python's transactional calls raise when their request is lost.

    If the broker is killed in the wrong moment, kafka-python 3.0.12 drops the request: its sender
    then waits without one in flight or in its queue, and the calls wait without a limit.
    """
    from kafka.errors import KafkaTimeoutError
    from kafka.producer.transaction_manager import TransactionalRequestResult

    wait = TransactionalRequestResult.wait

    def wait_for_some_time(result: Any, timeout_ms: float | None = None) -> bool:
        if not wait(result, timeout_ms or LOST_S * 1000):
            raise KafkaTimeoutError("the transactional request is lost")
        return True

    TransactionalRequestResult.wait = wait_for_some_time


class KafkaPython:
    """kafka-python."""

    def __init__(self, job: Job) -> None:
        import kafka

        give_up_lost_requests()
        self._kafka = kafka
        self._job = job
        self._futures: list[Any] = []
        common: dict[str, Any] = {
            "bootstrap_servers": job.bootstrap,
            "reconnect_backoff_ms": 10,
            "reconnect_backoff_max_ms": 50,
            "retry_backoff_ms": 10,
            "request_timeout_ms": 10_000,
        }
        self._producer = kafka.KafkaProducer(
            transactional_id=job.transactional_id,
            transaction_timeout_ms=job.transaction_ms,
            max_block_ms=int(LOST_S * 1000),
            **common,
        )
        self._consumer = kafka.KafkaConsumer(
            group_id=job.group,
            group_instance_id=job.instance,
            session_timeout_ms=job.session_ms,
            heartbeat_interval_ms=job.session_ms // 5,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            max_poll_records=job.most,
            fetch_max_wait_ms=50,
            **common,
        )

    def start(self) -> None:
        self._producer.init_transactions()
        self._consumer.subscribe([self._job.source])

    def poll(self) -> list[Record]:
        # It returns as soon as there are records. kafka-python 3.0.12 never gets an assignment if a
        # poll ends while it joins a group for the second time. Under load a join takes seconds, so
        # the timeout is long.
        found = self._consumer.poll(timeout_ms=30_000)
        return [Record(r.partition, r.offset, r.key, r.value) for rs in found.values() for r in rs]

    def begin(self) -> None:
        self._futures.clear()
        self._producer.begin_transaction()

    def send(self, partition: int, key: bytes | None, value: bytes) -> None:
        self._futures.append(
            self._producer.send(self._job.target, value, key=key, partition=partition)
        )

    def flush(self) -> None:
        self._producer.flush(timeout=TIMEOUT_S)
        for future in self._futures:
            future.get(timeout=TIMEOUT_S)

    def send_offsets(self, positions: Mapping[int, int]) -> None:
        offsets = {
            self._kafka.TopicPartition(self._job.source, p): self._kafka.structs.OffsetAndMetadata(
                o, "", -1
            )
            for p, o in positions.items()
        }
        self._producer.send_offsets_to_transaction(offsets, self._consumer.group_metadata())

    def commit(self) -> None:
        self._producer.commit_transaction()

    def abort(self) -> None:
        self._producer.abort_transaction()

    def rewind(self, firsts: Mapping[int, int]) -> None:
        owned = self._consumer.assignment()
        for partition in firsts:
            place = self._kafka.TopicPartition(self._job.source, partition)
            if place in owned:
                self._consumer.seek(place, self._consumer.committed(place) or 0)


class Aiokafka:
    """aiokafka. Its event loop runs in a thread of its own, so that no heartbeat is late."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._futures: list[Any] = []
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._run(self._make())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(TIMEOUT_S)

    async def _make(self) -> None:
        import aiokafka

        self._aiokafka = aiokafka
        job = self._job
        common: dict[str, Any] = {
            "bootstrap_servers": job.bootstrap,
            "retry_backoff_ms": 10,
            "request_timeout_ms": 10_000,
        }
        self._producer = aiokafka.AIOKafkaProducer(
            transactional_id=job.transactional_id,
            transaction_timeout_ms=job.transaction_ms,
            **common,
        )
        self._consumer = aiokafka.AIOKafkaConsumer(
            job.source,
            group_id=job.group,
            group_instance_id=job.instance,
            session_timeout_ms=job.session_ms,
            heartbeat_interval_ms=job.session_ms // 5,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            fetch_max_wait_ms=50,
            **common,
        )

    def start(self) -> None:
        # It does not ask for stable offsets (KIP-447), so the order of these two matters.
        self._run(self._producer.start())
        self._run(self._consumer.start())

    def poll(self) -> list[Record]:
        found = self._run(self._consumer.getmany(timeout_ms=50, max_records=self._job.most))
        return [Record(r.partition, r.offset, r.key, r.value) for rs in found.values() for r in rs]

    def begin(self) -> None:
        self._futures.clear()
        self._run(self._producer.begin_transaction())

    def send(self, partition: int, key: bytes | None, value: bytes) -> None:
        work = self._producer.send(self._job.target, value, key=key, partition=partition)
        self._futures.append(self._run(work))

    def flush(self) -> None:
        async def gather() -> None:
            await asyncio.gather(*self._futures)

        self._run(gather())

    def send_offsets(self, positions: Mapping[int, int]) -> None:
        offsets = {
            self._aiokafka.TopicPartition(self._job.source, p): o for p, o in positions.items()
        }
        self._run(self._producer.send_offsets_to_transaction(offsets, self._job.group))

    def commit(self) -> None:
        self._run(self._producer.commit_transaction())

    def abort(self) -> None:
        self._run(self._producer.abort_transaction())

    def rewind(self, firsts: Mapping[int, int]) -> None:
        # Not by committed(), which does not ask for stable offsets: Apache Kafka may still give
        # those from before the last commit then.
        async def seek() -> None:
            for partition, offset in firsts.items():
                place = self._aiokafka.TopicPartition(self._job.source, partition)
                with contextlib.suppress(self._aiokafka.errors.IllegalStateError):
                    self._consumer.seek(place, offset)  # else it was taken away meanwhile

        self._run(seek())


CLIENTS: Mapping[str, Callable[[Job], Client]] = {
    "confluent-kafka": Confluent,
    "kafka-python": KafkaPython,
    "aiokafka": Aiokafka,
}
