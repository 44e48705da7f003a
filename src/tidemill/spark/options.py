"""Options of the source and the sink: names, meaning, types and bounds, each declared once.

Names and meaning are those of Spark's own Kafka connector (its "Structured Streaming + Kafka
Integration Guide"), so that ``format("kafka")`` and ``format("tidemill")`` can be exchanged. What
it accepts in silence and ignores is an error here. Must not know: Spark, Kafka clients, Arrow.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from tidemill.errors import OptionError, TidemillError

EARLIEST = -2
"""As an offset: the first one that is there (Kafka's ListOffsets)."""
LATEST = -1
"""As an offset: the one that the next record will get (Kafka's ListOffsets)."""

TOPIC_IDS = "#topicIds"
"""Key in a query's offsets under which topic ids stand; ``#`` is in no topic's name."""

PartitionOffsets = dict[str, dict[int, int]]
"""topic -> partition -> offset (or timestamp in ms)."""

Refusal = TypeVar("Refusal", bound=TidemillError)

_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")

# --- what there is -------------------------------------------------------------------------------

SOURCE_OPTIONS: Mapping[str, str] = {
    "subscribe": "Topics to read, separated by commas.",
    "subscribePattern": "Regular expression that a topic's whole name matches.",
    "assign": 'Partitions to read, as JSON: {"topic": [0, 1]}.',
    "startingOffsets": "earliest, latest or JSON {topic: {partition: offset}}; -2 is earliest, "
    "-1 latest. Where a new query starts; a restarted one goes on from its checkpoint.",
    "startingOffsetsByTimestamp": "JSON {topic: {partition: ms}}: first record at or after it.",
    "startingTimestamp": "Milliseconds since 1970: the same instant for all partitions.",
    "startingOffsetsByTimestampStrategy": "If no record is that late: error or latest.",
    "endingOffsets": "latest or JSON, exclusive; batch queries only.",
    "endingOffsetsByTimestamp": "JSON {topic: {partition: ms}}; batch queries only.",
    "endingTimestamp": "Milliseconds since 1970; batch queries only.",
    "maxOffsetsPerTrigger": "Most offsets per micro-batch, shared out by each partition's backlog.",
    "minPartitions": "At least about this many tasks: ranges of offsets are split.",
    "maxRecordsPerPartition": "Most offsets per task: ranges of offsets are split.",
    "failOnDataLoss": "Whether records that are gone fail the query (true) or are passed over.",
    "includeHeaders": "Whether there is a column with the records' headers.",
    "groupIdPrefix": "Prefix of the consumer group id that brokers see; nothing is committed.",
    "kafkaConsumer.pollTimeoutMs": "Longest wait for the next record of a range that has one.",
}
"""Options of the source besides ``kafka.*``."""

SINK_OPTIONS: Mapping[str, str] = {
    "topic": "Topic to write to; wins over a column named topic.",
    "delivery": "exactly-once or at-least-once. Default: exactly-once in a stream with the option "
    "topic, else at-least-once.",
    "sinkId": "Name of this output for exactly-once delivery, never shared by two checkpoints. "
    "Default in a stream: made of the query's id.",
    "batchId": "Number of the batch, for exactly-once delivery by df.write in foreachBatch.",
    "includeHeaders": "Accepted for Spark's sake; headers are written where there is a column.",
}
"""Options of the sink besides ``kafka.*``."""

# Spark hands a sink what it keeps for itself, too.
_SPARK_SINK_OPTIONS = frozenset({"checkpointlocation", "queryname", "outputmode", "path"})

_STRATEGIES = ("subscribe", "subscribePattern", "assign")

_REFUSED_BY_BOTH = {
    "metadata.broker.list": "Use kafka.bootstrap.servers.",
    "interceptor.classes": "Interceptors could change records.",
    "plugin.library.paths": "Client plugins could change records.",
    "key.deserializer": "Keys are read as bytes: cast the column.",
    "value.deserializer": "Values are read as bytes: cast the column.",
    "key.serializer": "Keys are written as bytes or strings: cast the column.",
    "value.serializer": "Values are written as bytes or strings: cast the column.",
}
REFUSED_SOURCE_SETTINGS: Mapping[str, str] = _REFUSED_BY_BOTH | {
    "auto.offset.reset": "Use startingOffsets: the query keeps track of its position.",
    "enable.auto.commit": "The query keeps its position in its checkpoint.",
    "enable.auto.offset.store": "The query keeps its position in its checkpoint.",
    "enable.partition.eof": "The source needs it to find the end of its range.",
}
"""librdkafka settings that would break the source, and what to do instead."""

REFUSED_SINK_SETTINGS: Mapping[str, str] = _REFUSED_BY_BOTH | {
    "transactional.id": "The sink gives each task its own; see the options delivery and sinkId.",
    "delivery.report.only.error": "The sink needs it to learn of failures.",
}
"""librdkafka settings that would break the sink, and what to do instead."""

_JAVA_ONLY = {
    "sasl.jaas.config": "Use kafka.sasl.username and kafka.sasl.password.",
    "ssl.truststore.location": "Use kafka.ssl.ca.location with a PEM file.",
    "ssl.truststore.password": "Use kafka.ssl.ca.location with a PEM file.",
    "ssl.keystore.type": "Use kafka.ssl.certificate.location and kafka.ssl.key.location (PEM).",
    "max.poll.records": "It has no meaning here; batches are bounded by maxOffsetsPerTrigger.",
    "buffer.memory": "Use kafka.queue.buffering.max.kbytes.",
    "max.block.ms": "Use kafka.delivery.timeout.ms.",
}


# --- the parsed forms ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Subscription:
    """Which partitions: exactly one of the three is set."""

    topics: tuple[str, ...] = ()
    pattern: str = ""
    partitions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Position:
    """A place in each partition.

    Attributes:
        kind: ``offsets`` and ``timestamps`` are per partition (``by_partition``), ``timestamp`` is
            one for all (``at_ms``).
    """

    kind: Literal["earliest", "latest", "offsets", "timestamps", "timestamp"]
    by_partition: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """All options of a source, checked.

    Attributes:
        starting: None means the default: latest for a stream, earliest for a batch.
        ending: None means latest.
        no_match_is_latest: what to start from where no record is late enough for a timestamp.
        kafka: settings for librdkafka, without the prefix ``kafka.``.
        poll_timeout_ms: longest wait for the next record of a range.
    """

    subscription: Subscription
    kafka: Mapping[str, str]
    starting: Position | None = None
    ending: Position | None = None
    no_match_is_latest: bool = False
    max_offsets_per_trigger: int | None = None
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    fail_on_data_loss: bool = True
    include_headers: bool = False
    group_id_prefix: str = "tidemill-source"
    poll_timeout_ms: int = 120_000


EXACTLY_ONCE = "exactly-once"
AT_LEAST_ONCE = "at-least-once"


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """All options of a sink, checked.

    Attributes:
        delivery: ``EXACTLY_ONCE``, ``AT_LEAST_ONCE``, or None where the user leaves it open.
        sink_id: None means: of the query.
        batch_id: None means: of the query's batch.
    """

    topic: str | None
    kafka: Mapping[str, str]
    delivery: str | None = None
    sink_id: str | None = None
    batch_id: int | None = None


# --- parsing -------------------------------------------------------------------------------------


def noted(error: Refusal) -> Refusal:
    """The error, with its hint where a traceback shows it: that is all that Spark hands on."""
    if error.hint:
        error.add_note(f"hint: {error.hint}")
    return error


def refuse(message: str, hint: str = "") -> OptionError:
    """The error for a wrong option."""
    return noted(OptionError(message, hint=hint))


def parse_source_options(raw: Mapping[str, str]) -> SourceOptions:
    """Check a source's options; names are matched without regard to case, as Spark does.

    Raises:
        OptionError: unknown, malformed, missing or contradictory.
    """
    given = _known(raw, SOURCE_OPTIONS, frozenset({"path"}), other=SINK_OPTIONS, role="source")
    starting = _position(given, "starting")
    ending = _position(given, "ending")
    strategy = given.get("startingOffsetsByTimestampStrategy", "error").lower()
    if strategy not in ("error", "latest"):
        raise refuse(
            f"option startingOffsetsByTimestampStrategy is {strategy!r}", "Use error or latest."
        )
    return SourceOptions(
        subscription=_subscription(given),
        kafka=_kafka_settings(raw, REFUSED_SOURCE_SETTINGS),
        starting=starting,
        ending=ending,
        no_match_is_latest=strategy == "latest",
        max_offsets_per_trigger=_positive(given, "maxOffsetsPerTrigger"),
        min_partitions=_positive(given, "minPartitions"),
        max_records_per_partition=_positive(given, "maxRecordsPerPartition"),
        fail_on_data_loss=_boolean(given, "failOnDataLoss", default=True),
        include_headers=_boolean(given, "includeHeaders", default=False),
        group_id_prefix=given.get("groupIdPrefix", "tidemill-source"),
        poll_timeout_ms=_positive(given, "kafkaConsumer.pollTimeoutMs") or 120_000,
    )


def parse_sink_options(raw: Mapping[str, str]) -> SinkOptions:
    """Check a sink's options.

    Raises:
        OptionError: unknown, malformed or missing.
    """
    given = _known(raw, SINK_OPTIONS, _SPARK_SINK_OPTIONS, other=SOURCE_OPTIONS, role="sink")
    topic = given.get("topic", "").strip() or None
    if topic is not None:
        _check_topic(topic, "topic")
    delivery = given.get("delivery", "").strip().lower() or None
    if delivery not in (None, EXACTLY_ONCE, AT_LEAST_ONCE):
        raise refuse(f"option delivery is {delivery!r}", f"Use {EXACTLY_ONCE} or {AT_LEAST_ONCE}.")
    options = SinkOptions(
        topic=topic,
        kafka=_kafka_settings(raw, REFUSED_SINK_SETTINGS),
        delivery=delivery,
        sink_id=_sink_id(given),
        batch_id=_whole(given, "batchId"),
    )
    if delivery == EXACTLY_ONCE:
        check_exactly_once(options)
    return options


def check_exactly_once(options: SinkOptions) -> None:
    """What exactly-once delivery can't do without.

    Raises:
        OptionError: there is no option topic, or a setting excludes transactions.
    """
    if options.topic is None:
        raise refuse(
            "exactly-once delivery needs the option topic",
            "Set it, or set delivery to at-least-once.",
        )
    acks = options.kafka.get("acks", options.kafka.get("request.required.acks", "all"))
    if acks not in ("all", "-1"):
        raise refuse(
            f"exactly-once delivery excludes kafka.acks={acks}",
            "Leave it out, or set delivery to at-least-once.",
        )
    if options.kafka.get("enable.idempotence", "true").lower() != "true":
        raise refuse(
            "exactly-once delivery excludes kafka.enable.idempotence=false",
            "Leave it out, or set delivery to at-least-once.",
        )


def _sink_id(given: Mapping[str, str]) -> str | None:
    if (text := given.get("sinkId")) is None:
        return None
    if not _TOPIC_NAME.fullmatch(text):
        raise refuse(
            f"option sinkId is {text!r}", "Letters, digits, '.', '_' and '-', at most 249 of them."
        )
    return text


def check_stream_options(options: SourceOptions) -> None:
    """What a streaming query can't have.

    Raises:
        OptionError: an end is set.
    """
    if options.ending is not None:
        raise refuse(
            "a streaming query has no end: endingOffsets and the like are for batch queries",
            "Remove the option, or use spark.read.",
        )


def check_batch_options(options: SourceOptions) -> None:
    """What a batch query can't have.

    Raises:
        OptionError: it starts at the latest or ends at the earliest offset, or only one of its
            ends names the partitions that the other does.
    """
    starting, ending = options.starting, options.ending
    if starting is not None and _mentions(starting, "latest", LATEST):
        raise refuse("a batch query can't start at latest", "Use earliest, offsets or timestamps.")
    if ending is not None and _mentions(ending, "earliest", EARLIEST):
        raise refuse("a batch query can't end at earliest", "Use latest, offsets or timestamps.")
    if starting is None or ending is None or starting.kind != ending.kind:
        return
    if _pairs(starting) != _pairs(ending):
        raise refuse(
            "startingOffsets and endingOffsets name different partitions: "
            f"{sorted(_pairs(starting) ^ _pairs(ending))}"
        )
    for topic, partition in sorted(_pairs(starting)):
        first = starting.by_partition[topic][partition]
        last = ending.by_partition[topic][partition]
        if first > last >= 0:
            raise refuse(f"{topic}-{partition} would start at {first} and end at {last}")


def _pairs(position: Position) -> set[tuple[str, int]]:
    return {(topic, p) for topic, parts in position.by_partition.items() for p in parts}


def _mentions(position: Position, kind: str, offset: int) -> bool:
    if position.kind == "offsets":
        return any(offset in parts.values() for parts in position.by_partition.values())
    return position.kind == kind


def _known(
    raw: Mapping[str, str],
    declared: Mapping[str, str],
    ignored: frozenset[str],
    *,
    other: Mapping[str, str],
    role: str,
) -> dict[str, str]:
    """The options that are not ``kafka.*``, under their declared spelling."""
    spelling = {name.lower(): name for name in declared}
    given: dict[str, str] = {}
    for name, value in raw.items():
        lower = name.lower()
        if lower.startswith("kafka.") or lower in ignored:
            continue
        if lower not in spelling:
            raise _unknown(name, declared, other, role)
        given[spelling[lower]] = value
    return given


def _unknown(
    name: str, declared: Mapping[str, str], other: Mapping[str, str], role: str
) -> OptionError:
    lower = name.lower()
    if lower in {known.lower() for known in other}:
        opposite = "sink" if role == "source" else "source"
        return refuse(f"option {name} is one of the {opposite}, not of the {role}")
    if lower in ("bootstrap.servers", "bootstrapservers", "servers"):
        return refuse(f"unknown option {name}", "Did you mean kafka.bootstrap.servers?")
    near = _nearest(lower, [*declared, "kafka.bootstrap.servers"])
    known = ", ".join(sorted(declared, key=str.lower))
    hint = f"Did you mean {near}?" if near else f"Known are {known} and kafka.*."
    return refuse(f"unknown option {name} of the {role}", hint)


def _nearest(name: str, known: Iterable[str]) -> str | None:
    spelling = {candidate.lower(): candidate for candidate in known}
    matches = difflib.get_close_matches(name, spelling, n=1, cutoff=0.7)
    return spelling[matches[0]] if matches else None


def _kafka_settings(raw: Mapping[str, str], refused: Mapping[str, str]) -> dict[str, str]:
    settings: dict[str, str] = {}
    for name, value in raw.items():
        lower = name.lower()
        if not lower.startswith("kafka."):
            continue
        key = lower.removeprefix("kafka.")
        if (why := refused.get(key)) is not None:
            raise refuse(f"option kafka.{key} can't be set", why)
        if (instead := _JAVA_ONLY.get(key)) is not None:
            raise refuse(f"option kafka.{key} is one of the Java client only", instead)
        settings[key] = value
    if not settings.get("bootstrap.servers", "").strip():
        raise refuse("option kafka.bootstrap.servers is missing", 'For example "localhost:9092".')
    return settings


def _subscription(given: Mapping[str, str]) -> Subscription:
    chosen = [name for name in _STRATEGIES if name in given]
    if len(chosen) != 1:
        what = " and ".join(chosen) + " exclude each other" if chosen else "no topic is named"
        raise refuse(what, f"Set exactly one of {', '.join(_STRATEGIES)}.")
    value = given[chosen[0]].strip()
    if chosen[0] == "subscribe":
        topics = tuple(dict.fromkeys(t.strip() for t in value.split(",") if t.strip()))
        if not topics:
            raise refuse("option subscribe names no topic")
        for topic in topics:
            _check_topic(topic, "subscribe")
        return Subscription(topics=topics)
    if chosen[0] == "subscribePattern":
        return Subscription(pattern=_pattern(value))
    return Subscription(partitions=_assignment(value))


def _pattern(value: str) -> str:
    if not value:
        raise refuse("option subscribePattern is empty")
    try:
        re.compile(value)
    except re.error as error:
        raise refuse(
            f"option subscribePattern {value!r} is no regular expression: {error}"
        ) from error
    return value


def _assignment(value: str) -> dict[str, tuple[int, ...]]:
    what = 'option assign must be JSON like {"topic": [0, 1]}'
    content = _json_object(value, what)
    assignment: dict[str, tuple[int, ...]] = {}
    for topic, partitions in content.items():
        _check_topic(topic, "assign")
        if not isinstance(partitions, list) or not partitions:
            raise refuse(f"{what}; {topic} has {partitions!r}")
        if not all(type(p) is int and p >= 0 for p in partitions):
            raise refuse(f"{what}; {topic} has {partitions!r}")
        assignment[topic] = tuple(sorted(set(partitions)))
    if not assignment:
        raise refuse(f"{what}; it names no partition")
    return assignment


def _position(given: Mapping[str, str], end: str) -> Position | None:
    """``starting...`` or ``ending...``; the order of preference is the Spark connector's."""
    if (text := given.get(f"{end}Timestamp")) is not None:
        if not re.fullmatch(r"\d+", text.strip()):
            raise refuse(f"option {end}Timestamp is {text!r}", "Milliseconds since 1970.")
        return Position("timestamp", at_ms=int(text))
    name = f"{end}OffsetsByTimestamp"
    if (text := given.get(name)) is not None:
        return Position("timestamps", by_partition=_by_partition(text, name, lowest=0))
    name = f"{end}Offsets"
    if (text := given.get(name)) is None:
        return None
    word = text.strip().lower()
    if word == "earliest":
        return Position("earliest")
    if word == "latest":
        return Position("latest")
    return Position("offsets", by_partition=_by_partition(text, name, lowest=EARLIEST))


def _by_partition(text: str, option: str, *, lowest: int) -> PartitionOffsets:
    unit = "offset" if lowest < 0 else "ms"
    words = "earliest, latest or " if lowest < 0 else ""
    what = f'option {option} must be {words}JSON like {{"topic": {{"0": {unit}}}}}'
    parsed: PartitionOffsets = {}
    for topic, partitions in _json_object(text, what).items():
        if topic == TOPIC_IDS:  # offsets copied from a query's progress
            continue
        if not isinstance(partitions, dict):
            raise refuse(f"{what}; {topic} has {partitions!r}")
        parsed[topic] = {}
        for partition, number in partitions.items():
            if not partition.isdecimal() or type(number) is not int or number < lowest:
                raise refuse(f"{what}; {topic} has {{{partition!r}: {number!r}}}")
            parsed[topic][int(partition)] = number
    return parsed


def _json_object(text: str, what: str) -> dict[str, object]:
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise refuse(f"{what}, not {text!r}: {error}") from error
    if not isinstance(content, dict):
        raise refuse(f"{what}, not {text!r}")
    return content


def _check_topic(topic: str, option: str) -> None:
    if not _TOPIC_NAME.fullmatch(topic):
        raise refuse(
            f"option {option}: {topic!r} is no name of a topic",
            "Letters, digits, '.', '_' and '-', at most 249 of them.",
        )


def _whole(given: Mapping[str, str], name: str) -> int | None:
    if (text := given.get(name)) is None:
        return None
    if not re.fullmatch(r"\d+", text.strip()):
        raise refuse(f"option {name} must be a whole number, not {text!r}")
    return int(text)


def _positive(given: Mapping[str, str], name: str) -> int | None:
    if (text := given.get(name)) is None:
        return None
    if not re.fullmatch(r"\d+", text.strip()) or int(text) < 1:
        raise refuse(f"option {name} must be a positive whole number, not {text!r}")
    return int(text)


def _boolean(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = given.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise refuse(f"option {name} must be true or false, not {text!r}")
    return text == "true"
