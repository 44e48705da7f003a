"""A connection to any Kafka-compatible broker, with tidemill's errors and time limits.

It wraps confluent-kafka's clients, and imports that library only when it is used. This module must
not know the broker in this package, so that all commands work with Apache Kafka too.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tidemill.cli import output
from tidemill.cli.options import BOOTSTRAP_DEFAULT, Brokers, pairs
from tidemill.cli.output import UsageError
from tidemill.errors import (
    TidemillError,
    TopicExistsError,
    UnknownTopicOrPartitionError,
    UnreachableError,
    lower_first,
)
from tidemill.kafka_client.errors import (
    ConnectionFailedError,
    ConnectionRejectedError,
    UnsupportedSettingError,
)
from tidemill.kafka_client.named import unreachable_names
from tidemill.kafka_client.settings import addresses, connection_settings
from tidemill.kafka_client.who_answers import accepts_tls, explain, wrong_names
from tidemill.log.errors import InvalidConfigError, InvalidTopicError, OffsetOutOfRangeError
from tidemill.state.errors import GroupIdNotFoundError, NonEmptyGroupError

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message, Producer
    from confluent_kafka.admin import AdminClient

    from tidemill.confluent.clients import Kafka

T = TypeVar("T")
OnError = Callable[["KafkaError"], None]
"""Gets an error of a client that is about no single request: its connections are down."""

CONNECT_SECONDS = 3.0
"""How long a broker can take to accept a connection."""
REQUEST_SECONDS = 10.0
"""How long a request can take."""
MAX_PARTITIONS = 100_000
"""The largest number of partitions that the client library can request."""
END_SOON: Mapping[str, Any] = {"fetch_wait_max_ms": 20}
"""Settings of a consumer that waits for the ends of partitions: a broker holds back the answer that
reports an end, by default for 500 ms."""


@dataclass(frozen=True)
class PartitionOffsets:
    """The offsets of a partition: its records are from ``start`` to before ``end``."""

    start: int
    end: int

    @property
    def count(self) -> int:
        """The largest possible number of records: compaction and transactions leave gaps."""
        return max(self.end - self.start, 0)


TopicPartitionKey = tuple[str, int]

_FILES = (
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.keystore.location",
)
_SEARCHED = ("ssl.ca.location", "probe")
"""librdkafka then searches for the certificates of the system."""


@dataclass
class Cluster:
    """A Kafka-compatible cluster.

    Every method raises ``UnreachableError`` if no broker answers.

    Attributes:
        servers: addresses of brokers, with commas.
        properties: librdkafka properties, which override the others.
    """

    servers: str = BOOTSTRAP_DEFAULT
    properties: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def at(cls, brokers: Brokers) -> Cluster:
        """Return the cluster for the flags ``-b`` and ``-X``, after a check that it is reachable.

        Raises:
            UnreachableError: no address accepts a connection, only one side speaks TLS, or the
                broker rejects the login.
            UsageError: a flag is malformed.
        """
        given = pairs(brokers.properties, "--property")
        _check_files(given)
        cluster = cls(given.get("bootstrap.servers", brokers.servers), given)
        cluster.check_reachable()
        cluster.check_tls()
        cluster.check_login()
        return cluster

    def check_tls(self) -> None:
        """Check that both sides speak TLS, or none. librdkafka would try until its timeout."""
        with_tls = self.properties.get("security.protocol", "").lower().endswith("ssl")
        if with_tls and accepts_tls(self.servers, self.properties):
            return  # other questions would be failed handshakes in the broker's log
        found = explain(self.servers, self.properties, "-X ", only_certain=True)
        if found is None and with_tls:
            found = explain(self.servers, self.properties, "-X ")
            if found is not None and self._answers_soon():
                return
        if found is not None:
            text, hint = found
            raise UnreachableError(text, hint=hint)

    def check_login(self) -> None:
        """Check that a broker accepts the user, and warn if it names addresses that do not answer.

        librdkafka itself would try both until its timeout.
        """
        try:
            settings = connection_settings(self.config(), "tidemill-cli")
            found = unreachable_names(settings, CONNECT_SECONDS)
            if found is not None:
                text, hint = wrong_names(self.servers, *found)
                output.warn(f"{text}. {hint}")
        except ConnectionRejectedError as error:
            raise rejected(error) from error
        except (UnsupportedSettingError, ConnectionFailedError, OSError):
            return  # librdkafka knows more settings, and says what is wrong with them

    def _answers_soon(self) -> bool:
        """Return whether a broker answers a request of librdkafka's within a few seconds."""
        from confluent_kafka import KafkaException

        try:
            self.admin.list_topics(timeout=CONNECT_SECONDS)
        except KafkaException:
            return False
        return True

    def check_reachable(self) -> None:
        """Check that a broker accepts connections. librdkafka itself would try again and again.

        Raises:
            UnreachableError: no address accepts a connection.
            UsageError: an address is malformed.
        """
        reasons: list[str] = []
        for address in self.servers.split(","):
            found = next(addresses(address), None)
            if found is None:
                raise UsageError(f"--bootstrap-servers {self.servers}: expected HOST:PORT")
            try:
                socket.create_connection(found, CONNECT_SECONDS).close()
            except OSError as error:
                reasons.append(str(getattr(error, "strerror", None) or error).lower())
            else:
                return
        raise self._unreachable("; ".join(dict.fromkeys(reasons)))

    def no_answer(self, reason: str) -> UnreachableError:
        """Return the error for a broker that accepts connections and does not answer requests."""
        found = explain(self.servers, self.properties, "-X ")
        if found is None:
            return self._unreachable(reason)
        text, hint = found
        return UnreachableError(text, hint=hint)

    def _unreachable(self, reason: str) -> UnreachableError:
        return UnreachableError(
            f"no broker answers at {self.servers} ({reason})",
            hint="Start one with 'tidemill dev', or use another with --bootstrap-servers.",
        )

    # --- clients -----------------------------------------------------------------------------

    def config(self, **more: Any) -> dict[str, Any]:
        """Return librdkafka's configuration. Keywords have underscores for dots; ``-X`` wins."""
        limit = {"socket_connection_setup_timeout_ms": int(CONNECT_SECONDS * 1000)}
        return self.kafka.config("tidemill-cli", **{**limit, **more})

    @cached_property
    def kafka(self) -> Kafka:
        """The cluster, for what makes its own clients."""
        from tidemill.confluent.clients import Kafka

        return Kafka(self.servers, self.properties)

    @cached_property
    def admin(self) -> AdminClient:
        from confluent_kafka.admin import AdminClient

        made: AdminClient = self.kafka.make(AdminClient, self.config())
        return made

    def producer(self, on_error: OnError | None = None, **config: Any) -> Producer:
        """Return a producer. It calls ``on_error`` for errors that are about no record."""
        from confluent_kafka import Producer

        settings = self.config(**config) | ({"error_cb": on_error} if on_error else {})
        made: Producer = self.kafka.make(Producer, settings)
        return made

    def consumer(
        self,
        group: str | None = None,
        on_error: OnError | None = None,
        on_commit: Callable[..., None] | None = None,
        **config: Any,
    ) -> Consumer:
        """Return a consumer. Without ``group`` it commits nothing, and its group id is not used.

        It calls ``on_error`` for errors that are about no partition, and ``on_commit`` with the
        answer to a commit.
        """
        from confluent_kafka import Consumer

        from tidemill.confluent.clients import CONSUMER

        config = {**CONSUMER, "group_id": group or "tidemill-cli", **config}
        settings = self.config(enable_auto_commit=False, **config)
        settings |= {"error_cb": on_error} if on_error else {}
        settings |= {"on_commit": on_commit} if on_commit else {}
        made: Consumer = self.kafka.make(Consumer, settings)
        return made

    # --- requests ----------------------------------------------------------------------------

    def ask(self, subject: str, call: Callable[[], T]) -> T:
        """Send a request. It is retried after temporary errors (a coordinator that is loading).

        Error messages begin with the ``subject``: ``topic a``.

        Raises:
            TidemillError: the broker's error as one of tidemill's types.
        """
        from confluent_kafka import KafkaError, KafkaException

        temporary = {
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
                if failure.code() not in temporary or time.monotonic() > deadline:
                    raise self.translate(failure, subject) from error
                time.sleep(0.1)

    def translate(self, error: KafkaError, subject: str) -> TidemillError:
        """Return librdkafka's error as one of tidemill's types."""
        from confluent_kafka import KafkaError

        code = error.code()
        text = error_text(error)
        # The broker's text often names the thing already.
        named = repr(subject.partition(" ")[2]) in text
        message = text if named else f"{subject}: {text}"
        if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return UnknownTopicOrPartitionError(
                f"{subject} does not exist", hint=self._hint_for_topic(subject)
            )
        if code == KafkaError.GROUP_ID_NOT_FOUND:
            return GroupIdNotFoundError(
                f"{subject} does not exist", hint="List the groups: tidemill group list"
            )
        if code in (
            KafkaError._TRANSPORT,
            KafkaError._ALL_BROKERS_DOWN,
            KafkaError._TIMED_OUT,
            KafkaError._RESOLVE,
        ):
            return self.no_answer(text)
        if code == KafkaError._AUTO_OFFSET_RESET:
            return OffsetOutOfRangeError(
                message, hint="Records were deleted before they were read: start again with --from."
            )
        if code == KafkaError.TOPIC_ALREADY_EXISTS:
            return TopicExistsError(
                f"{subject} already exists",
                hint="Use another name, or --if-not-exists to accept an existing topic.",
            )
        if code in (KafkaError.INVALID_MSG, KafkaError._BAD_MSG):
            return TidemillError(
                f"{subject}: a record batch is damaged",
                hint="The broker's log reports the file and the offset. "
                "After a stop, tidemill doctor --verify does too.",
            )
        kinds: dict[int, type[TidemillError]] = {
            KafkaError.TOPIC_EXCEPTION: InvalidTopicError,
            KafkaError.NON_EMPTY_GROUP: NonEmptyGroupError,
            KafkaError.INVALID_CONFIG: InvalidConfigError,
        }
        hint = ""
        if code == KafkaError.INVALID_CONFIG and subject.startswith("topic "):
            hint = "See the topic configs in docs/settings.md, or those of a topic with "
            hint += "'tidemill topic describe TOPIC --all'."
        return kinds.get(code, TidemillError)(message, hint=hint)

    def _hint_for_topic(self, subject: str) -> str:
        """Return a hint for a ``topic NAME`` that does not exist, possibly with a similar name."""
        from difflib import get_close_matches

        from confluent_kafka import KafkaException

        name = subject.removeprefix("topic ")
        try:
            there = [n for n in self.admin.list_topics(timeout=1).topics if not is_internal(n)]
        except KafkaException:  # the hint is optional
            there = []
        close = get_close_matches(name, there, n=1)
        if close:
            return f"Did you mean {close[0]}? List the topics: tidemill topic list"
        return "List the topics: tidemill topic list"

    def offsets(
        self, partitions: Sequence[TopicPartitionKey]
    ) -> dict[TopicPartitionKey, PartitionOffsets]:
        """Return the first offset and the end offset of each partition."""
        from confluent_kafka.admin import OffsetSpec

        specs: Any = OffsetSpec
        starts = self.list_offsets(dict.fromkeys(partitions, specs.earliest()))
        ends = self.list_offsets(dict.fromkeys(partitions, specs.latest()))
        return {key: PartitionOffsets(starts[key], ends[key]) for key in partitions}

    def list_offsets(
        self, specs: Mapping[TopicPartitionKey, Any], *, committed: bool = False
    ) -> dict[TopicPartitionKey, int]:
        """Return the offset for each partition's ``OffsetSpec``; -1 if nothing matches.

        Args:
            committed: whether the end is the last stable offset, as with read_committed.
        """
        from confluent_kafka import IsolationLevel, TopicPartition

        from tidemill.confluent.clients import has_answered

        if not specs:
            return {}
        isolation = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED

        def call() -> dict[TopicPartitionKey, int]:
            has_answered(self.admin)
            futures = self.admin.list_offsets(
                {TopicPartition(*key): spec for key, spec in specs.items()},
                isolation_level=isolation,
                request_timeout=REQUEST_SECONDS,
            )
            return {(tp.topic, tp.partition): f.result().offset for tp, f in futures.items()}

        topics = sorted({topic for topic, _ in specs})
        return self.ask(f"topic {', '.join(topics)}", call)

    def topics(self) -> dict[str, int]:
        """Return the number of partitions of each topic, internal ones too."""
        metadata = self.ask("topics", lambda: self.admin.list_topics(timeout=REQUEST_SECONDS))
        return {name: len(topic.partitions) for name, topic in sorted(metadata.topics.items())}

    def describe_topic(self, name: str) -> Any:
        """Return confluent-kafka's ``TopicDescription``.

        Raises:
            UnknownTopicOrPartitionError: the topic does not exist.
        """
        from confluent_kafka import TopicCollection

        def call() -> Any:
            futures = self.admin.describe_topics(
                TopicCollection([name]), request_timeout=REQUEST_SECONDS
            )
            return futures[name].result()

        return self.ask(f"topic {name}", call)

    def partitions(self, topic: str, only: Sequence[int] | None = None) -> list[TopicPartitionKey]:
        """Return the topic's partitions, or only those with the numbers in ``only``.

        Raises:
            UnknownTopicOrPartitionError: the topic or a partition does not exist.
        """
        there = sorted(p.id for p in self.describe_topic(topic).partitions)
        for number in only or ():
            if number not in there:
                raise UnknownTopicOrPartitionError(
                    f"topic {topic} has no partition {number}",
                    hint=f"It has partitions 0 to {there[-1]}." if there[1:] else "It has only 0.",
                )
        return [(topic, number) for number in there if not only or number in only]


def _check_files(properties: Mapping[str, str]) -> None:
    """Check that files which properties name exist. librdkafka's error has OpenSSL's numbers."""
    for name, value in properties.items():
        if name in _FILES and not Path(value).exists() and (name, value) != _SEARCHED:
            raise UsageError(f"--property {name}={value}: no such file")


def rejected(error: ConnectionRejectedError) -> UnreachableError:
    """Return the error for a login or a TLS connection that a broker, or this side, rejects."""
    return UnreachableError(
        f"the broker rejects the connection: {error}",
        hint="Check -X security.protocol, sasl.mechanism, sasl.username, sasl.password, and set "
        "ssl.ca.location=FILE to the certificate that signed the broker's.",
    )


def error_text(error: KafkaError) -> str:
    """Return librdkafka's error message without its prefixes."""
    text = error.str().rpartition("Broker: ")[2].rpartition("Local: ")[2] or error.name()
    return lower_first(text).rstrip(".")


def is_internal(topic: str) -> bool:
    """Return whether the topic is internal: its name begins with two underscores."""
    return topic.startswith("__")


def raise_if_failed(cluster: Cluster, message: Message, subject: str) -> None:
    """Raise the error that a polled message has instead of a record."""
    error = message.error()
    if error is not None:
        raise cluster.translate(error, subject)
