"""The client side: a connection to any Kafka-compatible broker, with our errors and time limits.

Wraps confluent-kafka's admin client. Knows nothing of the broker in this package, so that every
command built on it works against Apache Kafka too. Imports the client library only when used.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from tidemill.cli.output import UsageError
from tidemill.errors import (
    GroupIdNotFoundError,
    InvalidConfigError,
    InvalidTopicError,
    NonEmptyGroupError,
    OffsetOutOfRangeError,
    TidemillError,
    TopicExistsError,
    UnknownTopicOrPartitionError,
    UnreachableError,
)

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message, Producer
    from confluent_kafka.admin import AdminClient

T = TypeVar("T")

CONNECT_SECONDS = 3.0
"""How long a broker may take to accept a connection."""
REQUEST_SECONDS = 10.0
"""How long a request may take."""

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap-servers",
        "-b",
        metavar="HOST:PORT",
        envvar="TIDEMILL_BOOTSTRAP_SERVERS",
        help="The broker, or several with commas.",
    ),
]
BOOTSTRAP_DEFAULT = "localhost:9092"
Property = Annotated[
    list[str] | None,
    typer.Option(
        "--property",
        "-X",
        metavar="KEY=VALUE",
        help="Property of librdkafka, e.g. security.protocol=SSL.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="JSON for machines.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done.")]


def pairs(values: Iterable[str] | None, flag: str) -> dict[str, str]:
    """``KEY=VALUE`` flags as a dict.

    Raises:
        UsageError: one has no ``=`` or no key.
    """
    result: dict[str, str] = {}
    for text in values or ():
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UsageError(f"{flag} {text}: expected KEY=VALUE")
        result[key] = value
    return result


@dataclass(frozen=True)
class PartitionOffsets:
    """What a partition holds: records from ``start`` to before ``end``."""

    start: int
    end: int

    @property
    def count(self) -> int:
        """Records at most: compaction and transactions leave gaps."""
        return max(self.end - self.start, 0)


TopicPartitionKey = tuple[str, int]


@dataclass
class Cluster:
    """A Kafka-compatible cluster, reached through ``servers``.

    Every method raises ``UnreachableError`` where nobody answers.
    """

    servers: str = BOOTSTRAP_DEFAULT
    properties: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def at(cls, servers: str, properties: list[str] | None = None) -> Cluster:
        """The cluster that the flags ``-b`` and ``-X`` name; checks that somebody listens."""
        cluster = cls(servers, pairs(properties, "--property"))
        cluster.check_reachable()
        return cluster

    def check_reachable(self) -> None:
        """Find out fast: librdkafka itself would go on trying.

        Raises:
            UnreachableError: no address accepts a connection.
            UsageError: an address is malformed.
        """
        reasons: list[str] = []
        for address in self.servers.split(","):
            host, colon, port = address.strip().rpartition("://")[2].rpartition(":")
            if not colon:
                host, port = port, "9092"
            if not port.isdigit() or not host:
                raise UsageError(f"--bootstrap-servers {self.servers}: expected host:port")
            try:
                socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
            except (OSError, OverflowError) as error:
                reasons.append(str(getattr(error, "strerror", None) or error).lower())
            else:
                return
        raise self._unreachable("; ".join(dict.fromkeys(reasons)))

    def _unreachable(self, reason: str) -> UnreachableError:
        return UnreachableError(
            f"no broker answers at {self.servers} ({reason})",
            hint="Start one with 'tidemill dev', or name another with --bootstrap-servers.",
        )

    # --- clients -----------------------------------------------------------------------------

    def config(self, **more: Any) -> dict[str, Any]:
        """librdkafka's configuration; keywords take underscores for dots, ``-X`` wins."""
        quiet = logging.getLogger("tidemill.librdkafka")
        quiet.propagate = False
        quiet.addHandler(logging.NullHandler())
        config: dict[str, Any] = {
            "bootstrap.servers": self.servers,
            "client.id": "tidemill-cli",
            "socket.connection.setup.timeout.ms": int(CONNECT_SECONDS * 1000),
            "log_level": 0,
            "logger": quiet,
        }
        config.update({key.replace("_", "."): value for key, value in more.items()})
        return config | dict(self.properties)

    @cached_property
    def admin(self) -> AdminClient:
        from confluent_kafka.admin import AdminClient

        return self._client(lambda: AdminClient(self.config()))

    def producer(self, **config: Any) -> Producer:
        from confluent_kafka import Producer

        return self._client(lambda: Producer(self.config(**config)))

    def consumer(self, group: str | None = None, **config: Any) -> Consumer:
        """A consumer; without ``group`` it commits nothing and its group id is not used."""
        from confluent_kafka import Consumer

        settings = self.config(group_id=group or "tidemill-cli", enable_auto_commit=False, **config)
        return self._client(lambda: Consumer(settings))

    def _client(self, make: Callable[[], T]) -> T:
        from confluent_kafka import KafkaException

        try:
            return make()
        except KafkaException as error:
            raise UsageError(f"--property: {error.args[0].str()}") from error

    # --- questions ---------------------------------------------------------------------------

    def ask(self, subject: str, call: Callable[[], T]) -> T:
        """Run a request; answers that pass (a coordinator still loading) are asked again.

        Raises:
            TidemillError: what the broker refused, as our type; ``subject`` names the thing.
        """
        from confluent_kafka import KafkaError, KafkaException

        passing = {
            KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
            KafkaError.COORDINATOR_NOT_AVAILABLE,
            KafkaError.NOT_COORDINATOR,
            KafkaError.NOT_LEADER_FOR_PARTITION,
            KafkaError.LEADER_NOT_AVAILABLE,
        }
        deadline = time.monotonic() + REQUEST_SECONDS
        while True:
            try:
                return call()
            except KafkaException as error:
                failure: KafkaError = error.args[0]
                if failure.code() not in passing or time.monotonic() > deadline:
                    raise self.translate(failure, subject) from error
                time.sleep(0.1)

    def translate(self, error: KafkaError, subject: str) -> TidemillError:
        """librdkafka's error as one of ours."""
        from confluent_kafka import KafkaError

        code = error.code()
        text = error_text(error)
        message = f"{subject}: {text}"
        if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return UnknownTopicOrPartitionError(
                f"{subject} does not exist", hint=self._hint_for_topic(subject)
            )
        if code == KafkaError.GROUP_ID_NOT_FOUND:
            return GroupIdNotFoundError(
                f"{subject} does not exist", hint="See what there is: tidemill group list"
            )
        if code in (
            KafkaError._TRANSPORT,
            KafkaError._ALL_BROKERS_DOWN,
            KafkaError._TIMED_OUT,
            KafkaError._RESOLVE,
        ):
            return self._unreachable(text)
        if code == KafkaError._AUTO_OFFSET_RESET:
            return OffsetOutOfRangeError(
                message, hint="Records were deleted before they were read; start again with --from."
            )
        if code == KafkaError.TOPIC_ALREADY_EXISTS:
            return TopicExistsError(
                f"{subject} exists",
                hint="Add --if-not-exists if that is no error, or pick another name.",
            )
        if code in (KafkaError.INVALID_MSG, KafkaError._BAD_MSG):
            return TidemillError(
                f"{subject}: a record batch is damaged",
                hint="The broker's log names file and offset; "
                "so does tidemill doctor --verify, where the broker is stopped.",
            )
        kinds: dict[int, type[TidemillError]] = {
            KafkaError.TOPIC_EXCEPTION: InvalidTopicError,
            KafkaError.NON_EMPTY_GROUP: NonEmptyGroupError,
            KafkaError.INVALID_CONFIG: InvalidConfigError,
        }
        hint = ""
        if code == KafkaError.INVALID_CONFIG and subject.startswith("topic "):
            hint = "See all configs: tidemill topic describe TOPIC --all; docs/settings.md."
        return kinds.get(code, TidemillError)(message, hint=hint)

    def _hint_for_topic(self, subject: str) -> str:
        """What may have been meant by the ``topic NAME`` that is not there."""
        from difflib import get_close_matches

        from confluent_kafka import KafkaException

        name = subject.removeprefix("topic ")
        try:
            there = [n for n in self.admin.list_topics(timeout=1).topics if not is_internal(n)]
        except KafkaException:  # the answer that matters is there already
            there = []
        close = get_close_matches(name, there, n=1)
        if close:
            return f"Did you mean {close[0]}? See what there is: tidemill topic list"
        return "See what there is: tidemill topic list"

    def offsets(
        self, partitions: Sequence[TopicPartitionKey]
    ) -> dict[TopicPartitionKey, PartitionOffsets]:
        """First offset and end offset of each partition."""
        from confluent_kafka.admin import OffsetSpec

        specs: Any = OffsetSpec
        starts = self.list_offsets(dict.fromkeys(partitions, specs.earliest()))
        ends = self.list_offsets(dict.fromkeys(partitions, specs.latest()))
        return {key: PartitionOffsets(starts[key], ends[key]) for key in partitions}

    def list_offsets(
        self, specs: Mapping[TopicPartitionKey, Any], *, committed: bool = False
    ) -> dict[TopicPartitionKey, int]:
        """Offset that each partition has for its ``OffsetSpec``; -1 where nothing matches.

        Args:
            committed: as readers with read_committed see it: the end is the last stable offset.
        """
        from confluent_kafka import IsolationLevel, TopicPartition

        if not specs:
            return {}
        isolation = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED

        def call() -> dict[TopicPartitionKey, int]:
            futures = self.admin.list_offsets(
                {TopicPartition(*key): spec for key, spec in specs.items()},
                isolation_level=isolation,
                request_timeout=REQUEST_SECONDS,
            )
            return {(tp.topic, tp.partition): f.result().offset for tp, f in futures.items()}

        topics = sorted({topic for topic, _ in specs})
        return self.ask(f"topic {', '.join(topics)}", call)

    def topics(self) -> dict[str, int]:
        """Number of partitions of each topic, internal ones too."""
        metadata = self.ask("topics", lambda: self.admin.list_topics(timeout=REQUEST_SECONDS))
        return {name: len(topic.partitions) for name, topic in sorted(metadata.topics.items())}

    def describe_topic(self, name: str) -> Any:
        """confluent-kafka's ``TopicDescription``.

        Raises:
            UnknownTopicOrPartitionError: there is no such topic.
        """
        from confluent_kafka import TopicCollection

        def call() -> Any:
            futures = self.admin.describe_topics(
                TopicCollection([name]), request_timeout=REQUEST_SECONDS
            )
            return futures[name].result()

        return self.ask(f"topic {name}", call)

    def partitions(self, topic: str, only: Sequence[int] | None = None) -> list[TopicPartitionKey]:
        """The topic's partitions, or those of ``only``.

        Raises:
            UnknownTopicOrPartitionError: there is no such topic or partition.
        """
        there = sorted(p.id for p in self.describe_topic(topic).partitions)
        for number in only or ():
            if number not in there:
                raise UnknownTopicOrPartitionError(
                    f"topic {topic} has no partition {number}",
                    hint=f"It has partitions 0 to {there[-1]}." if there[1:] else "It has only 0.",
                )
        return [(topic, number) for number in there if not only or number in only]


def error_text(error: KafkaError) -> str:
    """What librdkafka says, without its prefixes."""
    text = error.str().rpartition("Broker: ")[2].rpartition("Local: ")[2] or error.name()
    return (text[:1].lower() + text[1:]).rstrip(".")


def is_internal(topic: str) -> bool:
    """Topics that brokers keep for themselves start with two underscores."""
    return topic.startswith("__")


def raise_if_failed(cluster: Cluster, message: Message, subject: str) -> None:
    """Raise what a polled message carries instead of a record.

    Raises:
        TidemillError: the message is an error.
    """
    error = message.error()
    if error is not None:
        raise cluster.translate(error, subject)
