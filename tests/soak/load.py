"""What a broker does in a day, in threads: topics, groups, transactions, queues that come and go.

Each job repeats one small piece of work with clients of its own until the load ends. It waits
between two, so that the load is the same on a fast and on a slow machine as long as it keeps up.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import pika
from confluent_kafka import Consumer, KafkaException, Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.protocols.kafka.wire import request

DEADLINE = 120.0
STREAM = [f"stream-{n}" for n in range(20)]
"""Topics with retention, which are written all the time."""
COMPACTED, SHARED = "compacted", "shared"
PARTITIONS = 4
SMALL = {
    "segment.bytes": "1048576",
    "segment.ms": "30000",
    "retention.bytes": "2097152",
    "retention.ms": "60000",
    "file.delete.delay.ms": "1000",
}


class Load:
    """Jobs that run until ``stop``; the first error of one of them ends all."""

    def __init__(self, bootstrap: str, amqp_port: int) -> None:
        self.bootstrap = bootstrap
        self.amqp_port = amqp_port
        self.done: dict[str, int] = {}
        self.failure: BaseException | None = None
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._admin = AdminClient(self._config())
        self._names = itertools.count(1)

    def _config(self, **more: Any) -> dict[str, Any]:
        config = {"bootstrap.servers": self.bootstrap, "log_level": 0}
        return {**config, **{key.replace("_", "."): value for key, value in more.items()}}

    # --- threads ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Create the topics that stay, and start the jobs."""
        self._create(STREAM, PARTITIONS, SMALL)
        self._create([COMPACTED], PARTITIONS, {**SMALL, "cleanup.policy": "compact"})
        self._create([SHARED], PARTITIONS, SMALL)
        jobs: list[tuple[str, Callable[[], object], float]] = [
            ("topics", self._topic_comes_and_goes, 0.5),
            ("classic groups", lambda: self._group_comes_and_goes("classic"), 0.5),
            ("consumer groups", lambda: self._group_comes_and_goes("consumer"), 0.5),
            ("transactions", self._transactions, 0.5),
            ("transactional ids", self._new_transactional_id, 1.0),
            ("share groups", self._share_group, 1.0),
            ("queues", self._queue_comes_and_goes, 0.3),
            ("connections", self._connections, 0.1),
            ("cut connections", self._cut_connections, 0.2),
        ]
        for name, job, pause in jobs:
            self._thread(name, self._repeat(job, pause))
        self._thread("produce", self._produce)
        self._thread("consume", self._consume)
        self._thread("work on a queue", self._work_on_a_queue)

    def _thread(self, name: str, job: Callable[[str], None]) -> None:
        self.done[name] = 0

        def run() -> None:
            try:
                job(name)
            except BaseException as error:  # reported by `check`
                error.add_note(f"in the job {name}")
                self.failure = self.failure or error
                self._stop.set()

        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _repeat(self, job: Callable[[], object], pause: float) -> Callable[[str], None]:
        def run(name: str) -> None:
            while not self._stop.wait(pause):
                job()
                self.done[name] += 1

        return run

    def check(self) -> None:
        """Raise the error that ended a job."""
        if self.failure is not None:
            raise self.failure

    def stop(self) -> None:
        """End all jobs."""
        self._stop.set()
        for thread in self._threads:
            thread.join(DEADLINE)
        self.check()
        assert not [each.name for each in self._threads if each.is_alive()]

    # --- Kafka -----------------------------------------------------------------------------------

    def _create(self, topics: Sequence[str], partitions: int, config: dict[str, str]) -> None:
        new = [NewTopic(name, partitions, 1, config=config) for name in topics]
        for future in self._admin.create_topics(new).values():
            future.result(DEADLINE)

    def _delete_group(self, group: str) -> None:
        with contextlib.suppress(KafkaException):  # it can still have a member that leaves
            for future in self._admin.delete_consumer_groups([group]).values():
                future.result(DEADLINE)

    def _produce(self, name: str) -> None:
        """Write to all topics that stay, with several producers in turn."""
        producers = [Producer(self._config(compression_type=each)) for each in ("none", "zstd")]
        for count in itertools.count():
            if self._stop.wait(0.02):
                break
            producer = producers[count % 2]
            for topic in (STREAM[count % len(STREAM)], COMPACTED, SHARED):
                producer.produce(topic, bytes(2000), str(count % 500), partition=count % PARTITIONS)
            if count % 50 == 0:
                assert producer.flush(DEADLINE) == 0
            if count % 1000 == 999:
                producers[count % 2] = Producer(self._config(compression_type="lz4"))
            self.done[name] += 1
        for producer in producers:
            assert producer.flush(DEADLINE) == 0

    @contextmanager
    def _consumer(self, group: str, topics: list[str], **more: Any) -> Iterator[Consumer]:
        config = self._config(group_id=group, auto_offset_reset="earliest", **more)
        consumer = Consumer(config)
        consumer.subscribe(topics)
        try:
            yield consumer
        finally:
            consumer.close()

    def _consume(self, name: str) -> None:
        """Read all topics that stay, and commit."""
        with self._consumer("stays", [*STREAM, COMPACTED]) as consumer:
            while not self._stop.is_set():
                self.done[name] += len(consumer.consume(500, 0.2))

    def _read_some(self, consumer: Consumer) -> None:
        while not self._stop.is_set():
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                consumer.commit(message=message, asynchronous=False)
                break

    def _group_comes_and_goes(self, protocol: str) -> None:
        group = f"group-{next(self._names)}"
        with self._consumer(group, STREAM[:3], group_protocol=protocol) as consumer:
            self._read_some(consumer)
        if next(self._names) % 2:  # the others expire
            self._delete_group(group)

    def _topic_comes_and_goes(self) -> None:
        topic = f"topic-{next(self._names)}"
        self._create([topic], 6, {"file.delete.delay.ms": "1000"})
        producer = Producer(self._config())
        for n in range(60):
            producer.produce(topic, bytes(5000), partition=n % 6)
        assert producer.flush(DEADLINE) == 0
        with self._consumer(f"of-{topic}", [topic], topic_metadata_refresh_interval_ms=500) as one:
            self._read_some(one)
        for future in self._admin.delete_topics([topic]).values():
            future.result(DEADLINE)

    def _transaction(self, producer: Any, commit: bool) -> None:
        producer.begin_transaction()
        for topic in STREAM[:3]:
            producer.produce(topic, bytes(500))
        if commit:
            producer.commit_transaction(DEADLINE)
        else:
            producer.abort_transaction(DEADLINE)

    def _transactions(self) -> None:
        producer = Producer(self._config(transactional_id="stays"))
        producer.init_transactions(DEADLINE)
        for n in range(20):
            self._transaction(producer, commit=n % 4 != 3)

    def _new_transactional_id(self) -> None:
        producer = Producer(self._config(transactional_id=f"id-{next(self._names)}"))
        producer.init_transactions(DEADLINE)
        self._transaction(producer, commit=True)

    def _share_group(self) -> None:
        consumer = ShareConsumer(self._config(group_id=f"share-{next(self._names) % 5}"))
        consumer.subscribe([SHARED])
        try:
            for _ in range(10):
                for message in consumer.poll(timeout=0.2):
                    assert message.error() is None, message.error()
        finally:
            consumer.close()

    # --- AMQP ------------------------------------------------------------------------------------

    def _amqp(self) -> Any:
        parameters = pika.ConnectionParameters("127.0.0.1", self.amqp_port, heartbeat=30)
        return pika.BlockingConnection(parameters)

    def _queue_comes_and_goes(self) -> None:
        queue = f"queue-{next(self._names)}"
        with closing(self._amqp()) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare(queue, durable=True)
            channel.queue_bind(queue, "amq.topic", f"{queue}.#")
            for n in range(20):
                channel.basic_publish("amq.topic", f"{queue}.{n}", bytes(1000))
            for n, (method, _, _) in enumerate(channel.consume(queue, inactivity_timeout=10), 1):
                assert method is not None, "no message within 10 s"
                channel.basic_ack(method.delivery_tag)
                if n == 20:
                    break
            channel.cancel()
            channel.queue_delete(queue)

    def _work_on_a_queue(self, name: str) -> None:
        """Publish to one queue that stays, get, acknowledge, and return some."""
        with closing(self._amqp()) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("work", durable=True)
            while not self._stop.wait(0.02):
                channel.basic_publish("", "work", bytes(3000))
                self.done[name] += 1
                method, _, _ = channel.basic_get("work")
                if method is not None and self.done[name] % 10:
                    channel.basic_ack(method.delivery_tag)
                elif method is not None:
                    channel.basic_nack(method.delivery_tag, requeue=True)

    # --- connections -----------------------------------------------------------------------------

    def _connections(self) -> None:
        port = int(self.bootstrap.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), DEADLINE) as client:
            client.sendall(request(18, 0, {}))
            assert client.recv(4)

    def _cut_connections(self) -> None:
        """Leave in the middle of a request, and of an AMQP login."""
        port = int(self.bootstrap.rpartition(":")[2])
        for each, data in ((port, b"\0\1\0\0\0\0\0\7" + bytes(1000)), (self.amqp_port, b"AMQP\0")):
            with socket.create_connection(("127.0.0.1", each), DEADLINE) as client:
                client.sendall(data)
