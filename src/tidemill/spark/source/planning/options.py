"""Parses the options of the source: partitions, starting and ending positions, batch sizes.

Must not know: Spark, Kafka clients, Arrow.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tidemill.spark.base.options import (
    FORBIDDEN_SOURCE_SETTINGS,
    SINK_OPTIONS,
    SOURCE_OPTIONS,
    boolean,
    check_topic,
    json_object,
    kafka_settings,
    known_options,
    positive,
)
from tidemill.spark.errors import OptionError
from tidemill.spark.source.planning.parsing import RowPlan, parsing_options

EARLIEST = -2
"""An offset that means the first one in the log (Kafka's ListOffsets)."""

LATEST = -1
"""An offset that means the one of the next record (Kafka's ListOffsets)."""

TOPIC_IDS = "#topicIds"
"""The key of the topic ids in a query's offsets. A topic name can't contain ``#``."""

PartitionOffsets = dict[str, dict[int, int]]
"""topic -> partition -> offset (or timestamp in ms)."""

_STRATEGIES = ("subscribe", "subscribePattern", "assign")


@dataclass(frozen=True, slots=True)
class Subscription:
    """The partitions to read. Exactly one of the three is set.

    Attributes:
        topics: Names of topics.
        pattern: Regular expression for names of topics.
        partitions: Names of topics and numbers of their partitions.
    """

    topics: tuple[str, ...] = ()
    pattern: str = ""
    partitions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Position:
    """A position in each partition.

    Attributes:
        kind: ``offsets`` and ``timestamps`` have a value for each partition (``by_partition``),
            ``timestamp`` has one for all (``at_ms``).
        by_partition: topic -> partition -> offset, or timestamp in milliseconds since 1970.
        at_ms: Timestamp in milliseconds since 1970.
    """

    kind: Literal["earliest", "latest", "offsets", "timestamps", "timestamp"]
    by_partition: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The checked options of a source.

    Attributes:
        subscription: The partitions to read.
        kafka: Settings of librdkafka, without the prefix ``kafka.``.
        starting: None for the default: latest for a stream, earliest for a batch.
        ending: None for latest.
        no_match_is_latest: Whether a timestamp after the last record means the end of the log.
        max_offsets_per_trigger: Most offsets of a micro-batch; None for no limit.
        min_partitions: Least number of tasks; None for one task per partition.
        max_records_per_partition: Most offsets of a task; None for no limit.
        fail_on_data_loss: Whether lost records fail the query.
        include_headers: Whether to add the column ``headers``.
        group_id_prefix: Prefix of the consumer group id.
        poll_timeout_ms: Longest wait for the next record of a range.
        parsing: How values are parsed; None if they are not.
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
    parsing: RowPlan | None = None


def parse_source_options(raw: Mapping[str, str]) -> SourceOptions:
    """Parse and check the options of a source.

    Args:
        raw: Options as Spark passes them; upper and lower case are the same.

    Raises:
        OptionError: An option is unknown, invalid, missing or contradicts another.
    """
    given = known_options(
        raw, SOURCE_OPTIONS, frozenset({"path"}), other=SINK_OPTIONS, role="source"
    )
    starting = _position(given, "starting")
    ending = _position(given, "ending")
    strategy = given.get("startingOffsetsByTimestampStrategy", "error").lower()
    if strategy not in ("error", "latest"):
        raise OptionError(
            f"invalid option startingOffsetsByTimestampStrategy {strategy!r}",
            hint="Use error or latest.",
        )
    return SourceOptions(
        subscription=_subscription(given),
        kafka=kafka_settings(raw, FORBIDDEN_SOURCE_SETTINGS),
        starting=starting,
        ending=ending,
        no_match_is_latest=strategy == "latest",
        max_offsets_per_trigger=positive(given, "maxOffsetsPerTrigger"),
        min_partitions=positive(given, "minPartitions"),
        max_records_per_partition=positive(given, "maxRecordsPerPartition"),
        fail_on_data_loss=boolean(given, "failOnDataLoss", default=True),
        include_headers=boolean(given, "includeHeaders", default=False),
        group_id_prefix=given.get("groupIdPrefix", "tidemill-source"),
        poll_timeout_ms=positive(given, "kafkaConsumer.pollTimeoutMs") or 120_000,
        parsing=parsing_options(given),
    )


def check_stream_options(options: SourceOptions) -> None:
    """Check that a streaming query has no ending position."""
    if options.ending is not None:
        raise OptionError(
            "a streaming query has no end: options like endingOffsets are for batch queries only",
            hint="Remove the option, or use spark.read.",
        )


def check_batch_options(options: SourceOptions) -> None:
    """Check the starting and ending positions of a batch query.

    Raises:
        OptionError: It starts at the latest or ends at the earliest offset, it ends before it
            starts, or both positions name different partitions.
    """
    starting, ending = options.starting, options.ending
    if starting is not None and _mentions(starting, "latest", LATEST):
        raise OptionError(
            "a batch query can't start at latest", hint="Use earliest, offsets or timestamps."
        )
    if ending is not None and _mentions(ending, "earliest", EARLIEST):
        raise OptionError(
            "a batch query can't end at earliest", hint="Use latest, offsets or timestamps."
        )
    if starting is None or ending is None or starting.kind != ending.kind:
        return
    if _pairs(starting) != _pairs(ending):
        raise OptionError(
            "startingOffsets and endingOffsets name different partitions: "
            f"{sorted(_pairs(starting) ^ _pairs(ending))}"
        )
    for topic, partition in sorted(_pairs(starting)):
        first = starting.by_partition[topic][partition]
        last = ending.by_partition[topic][partition]
        if first > last >= 0:
            raise OptionError(f"{topic}-{partition} would start at {first} and end at {last}")


def _pairs(position: Position) -> set[tuple[str, int]]:
    return {(topic, p) for topic, parts in position.by_partition.items() for p in parts}


def _mentions(position: Position, kind: str, offset: int) -> bool:
    if position.kind == "offsets":
        return any(offset in parts.values() for parts in position.by_partition.values())
    return position.kind == kind


def _subscription(given: Mapping[str, str]) -> Subscription:
    chosen = [name for name in _STRATEGIES if name in given]
    if len(chosen) != 1:
        what = f"only one of {', '.join(chosen)} can be set" if chosen else "no topic is named"
        raise OptionError(what, hint=f"Set exactly one of {', '.join(_STRATEGIES)}.")
    value = given[chosen[0]].strip()
    if chosen[0] == "subscribe":
        topics = tuple(dict.fromkeys(t.strip() for t in value.split(",") if t.strip()))
        if not topics:
            raise OptionError("option subscribe names no topic")
        for topic in topics:
            check_topic(topic, "subscribe")
        return Subscription(topics=topics)
    if chosen[0] == "subscribePattern":
        return Subscription(pattern=_pattern(value))
    return Subscription(partitions=_assignment(value))


def _pattern(value: str) -> str:
    if not value:
        raise OptionError("option subscribePattern is empty")
    try:
        re.compile(value)
    except re.error as error:
        raise OptionError(
            f"option subscribePattern {value!r} is not a regular expression: {error}"
        ) from error
    return value


def _assignment(value: str) -> dict[str, tuple[int, ...]]:
    what = 'option assign must be JSON like {"topic": [0, 1]}'
    content = json_object(value, what)
    assignment: dict[str, tuple[int, ...]] = {}
    for topic, partitions in content.items():
        check_topic(topic, "assign")
        if not isinstance(partitions, list) or not partitions:
            raise OptionError(f"{what}; {topic} has {partitions!r}")
        if not all(type(p) is int and p >= 0 for p in partitions):
            raise OptionError(f"{what}; {topic} has {partitions!r}")
        assignment[topic] = tuple(sorted(set(partitions)))
    if not assignment:
        raise OptionError(f"{what}; it names no partition")
    return assignment


def _position(given: Mapping[str, str], end: str) -> Position | None:
    """Parse the options ``starting...`` or ``ending...``. Precedence is as in Spark's connector."""
    if (text := given.get(f"{end}Timestamp")) is not None:
        if not re.fullmatch(r"\d+", text.strip()):
            raise OptionError(
                f"invalid option {end}Timestamp {text!r}", hint="Use milliseconds since 1970."
            )
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
    for topic, partitions in json_object(text, what).items():
        if topic == TOPIC_IDS:  # the offsets were copied from the progress of a query
            continue
        if not isinstance(partitions, dict):
            raise OptionError(f"{what}; {topic} has {partitions!r}")
        parsed[topic] = {}
        for partition, number in partitions.items():
            if not partition.isdecimal() or type(number) is not int or number < lowest:
                raise OptionError(f"{what}; {topic} has {{{partition!r}: {number!r}}}")
            parsed[topic][int(partition)] = number
    return parsed
