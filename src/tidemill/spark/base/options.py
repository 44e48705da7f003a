"""Names and meaning of the options of source and sink, and the checks that both share.

Names and meaning are those of Spark's own Kafka connector (its "Structured Streaming + Kafka
Integration Guide"), so that ``format("kafka")`` and ``format("tidemill")`` are interchangeable. An
option that Spark's connector silently ignores is an error here. ``source.planning.options`` and
``sinks.topic.options`` parse the values. Must not know: Spark, Kafka clients, Arrow.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping

from tidemill.reading.parse import ISO as ISO
from tidemill.reading.parse import TIMESTAMP_FORMATS as TIMESTAMP_FORMATS
from tidemill.spark.errors import OptionError

TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
TOPIC_NAME_HINT = "Use letters, digits, '.', '_' and '-', at most 249 of them."

SOURCE_OPTIONS: Mapping[str, str] = {
    "subscribe": "Topics to read, separated by commas.",
    "subscribePattern": "Regular expression that a topic's whole name matches.",
    "assign": 'Partitions to read, as JSON: {"topic": [0, 1]}.',
    "startingOffsets": "earliest, latest or JSON {topic: {partition: offset}}; -2 is earliest, "
    "-1 latest. Where a new query starts; a restarted one continues from its checkpoint.",
    "startingOffsetsByTimestamp": "JSON {topic: {partition: ms}}: first record at or after it.",
    "startingTimestamp": "Milliseconds since 1970: the same time for all partitions.",
    "startingOffsetsByTimestampStrategy": "If all records are earlier: error or latest.",
    "endingOffsets": "latest or JSON, exclusive; batch queries only.",
    "endingOffsetsByTimestamp": "JSON {topic: {partition: ms}}; batch queries only.",
    "endingTimestamp": "Milliseconds since 1970; batch queries only.",
    "maxOffsetsPerTrigger": "Most offsets per micro-batch, in proportion to each backlog. Default: "
    "400,000 in the first batch, then as many as take about 15 s.",
    "minPartitions": "At least about this many tasks: ranges of offsets are split.",
    "maxRecordsPerPartition": "Most offsets per task: ranges of offsets are split.",
    "failOnDataLoss": "Whether lost records fail the query (true) or are skipped (false).",
    "includeHeaders": "Whether to add a column with the headers of the records.",
    "groupIdPrefix": "Prefix of the consumer group id at the brokers. Nothing is committed.",
    "kafkaConsumer.pollTimeoutMs": "Longest wait for the next record of a range, in ms.",
    "value.format": "json: the values are parsed into the columns of .schema() or value.schema.",
    "value.schema": "The columns as DDL; .schema() takes precedence.",
    "event.time": "A TIMESTAMP column of the value: a record in which it is null is refused.",
    "timestamp.format": "What a number in a TIMESTAMP column means: epoch_s, epoch_ms, epoch_us, "
    "or iso: it can't be parsed (the default).",
    "mode": "FAILFAST: a record that can't be parsed fails the query. DROPMALFORMED: it is left "
    "out.",
    "rows": "accepted, or refused: the records that can't be parsed, with the reason.",
    "refusals.report": "A Unix socket: tasks report how many records of their range they refused. "
    "Pipelines set it.",
    "columns.used": "A file with a JSON array of columns: others are checked, and are null. "
    "Pipelines set it.",
}
"""Options of the source besides ``kafka.*``."""

SINK_OPTIONS: Mapping[str, str] = {
    "topic": "Topic to write to. It takes precedence over a column named topic.",
    "delivery": "exactly-once or at-least-once. Default: exactly-once in a stream with the option "
    "topic, else at-least-once.",
    "sinkId": "Name of this output for exactly-once delivery, never shared by two checkpoints. "
    "Default in a stream: derived from the query's id.",
    "batchId": "Number of the batch, for exactly-once delivery with df.write in foreachBatch.",
    "includeHeaders": "Accepted for compatibility; headers are written if there is a column.",
}
"""Options of the sink besides ``kafka.*``."""

_JAVA_ONLY = {
    "sasl.jaas.config": "Use kafka.sasl.username and kafka.sasl.password.",
    "ssl.truststore.location": "Use kafka.ssl.ca.location with a PEM file.",
    "ssl.truststore.password": "Use kafka.ssl.ca.location with a PEM file.",
    "ssl.keystore.type": "Use kafka.ssl.certificate.location and kafka.ssl.key.location (PEM).",
    "max.poll.records": "It has no meaning here: use maxOffsetsPerTrigger.",
    "buffer.memory": "Use kafka.queue.buffering.max.kbytes.",
    "max.block.ms": "Use kafka.delivery.timeout.ms.",
}

_FORBIDDEN_FOR_BOTH = {
    "metadata.broker.list": "Use kafka.bootstrap.servers.",
    "interceptor.classes": "Interceptors could change records.",
    "plugin.library.paths": "Client plugins could change records.",
    "key.deserializer": "Keys are read as bytes: cast the column.",
    "value.deserializer": "Values are read as bytes: cast the column.",
    "key.serializer": "Keys are written as bytes or strings: cast the column.",
    "value.serializer": "Values are written as bytes or strings: cast the column.",
}

FORBIDDEN_SOURCE_SETTINGS: Mapping[str, str] = _FORBIDDEN_FOR_BOTH | {
    "auto.offset.reset": "Use startingOffsets: the query keeps track of its position.",
    "enable.auto.commit": "The query keeps its position in its checkpoint.",
    "enable.auto.offset.store": "The query keeps its position in its checkpoint.",
    "enable.partition.eof": "The source needs it to find the end of a range.",
}
"""librdkafka settings that would break the source, and what to do instead."""

FORBIDDEN_SINK_SETTINGS: Mapping[str, str] = _FORBIDDEN_FOR_BOTH | {
    "transactional.id": "The sink sets one for each task; see the options delivery and sinkId.",
    "delivery.report.only.error": "The sink needs it to see failures.",
}
"""librdkafka settings that would break the sink, and what to do instead."""


def known_options(
    raw: Mapping[str, str],
    declared: Mapping[str, str],
    ignored: frozenset[str],
    *,
    other: Mapping[str, str],
    role: str,
) -> dict[str, str]:
    """Return the options that don't start with ``kafka.``, in their declared spelling.

    Args:
        raw: Options as Spark passes them; upper and lower case are the same.
        declared: Known options and their meaning.
        ignored: Options in lower case that are skipped.
        other: Options of the opposite role, for the error message.
        role: ``source`` or ``sink``.
    """
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
        return OptionError(f"option {name} belongs to the {opposite}, not to the {role}")
    if lower in ("bootstrap.servers", "bootstrapservers", "servers"):
        return OptionError(f"unknown option {name}", hint="Did you mean kafka.bootstrap.servers?")
    near = _nearest(lower, [*declared, "kafka.bootstrap.servers"])
    known = ", ".join(sorted(declared, key=str.lower))
    hint = f"Did you mean {near}?" if near else f"Known options are {known} and kafka.*."
    return OptionError(f"unknown option {name} of the {role}", hint=hint)


def _nearest(name: str, known: Iterable[str]) -> str | None:
    spelling = {candidate.lower(): candidate for candidate in known}
    matches = difflib.get_close_matches(name, spelling, n=1, cutoff=0.7)
    return spelling[matches[0]] if matches else None


def kafka_settings(raw: Mapping[str, str], forbidden: Mapping[str, str]) -> dict[str, str]:
    """Return the options ``kafka.*`` as settings of librdkafka, without the prefix.

    Args:
        forbidden: Settings that must not be set, and what to use instead.
    """
    settings: dict[str, str] = {}
    for name, value in raw.items():
        lower = name.lower()
        if not lower.startswith("kafka."):
            continue
        key = lower.removeprefix("kafka.")
        if (instead := forbidden.get(key)) is not None:
            raise OptionError(f"option kafka.{key} can't be set", hint=instead)
        if (instead := _JAVA_ONLY.get(key)) is not None:
            raise OptionError(f"option kafka.{key} exists in the Java client only", hint=instead)
        settings[key] = value
    if not settings.get("bootstrap.servers", "").strip():
        raise OptionError(
            "option kafka.bootstrap.servers is missing", hint='For example "localhost:9092".'
        )
    return settings


def json_object(text: str, expected: str) -> dict[str, object]:
    """Parse a JSON object.

    Args:
        expected: What the option must be, for the message.
    """
    try:
        content = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise OptionError(f"{expected}, not {text!r}: {error}") from error
    if not isinstance(content, dict):
        raise OptionError(f"{expected}, not {text!r}")
    return content


def check_topic(topic: str, option: str) -> None:
    """Check the name of a topic."""
    if not TOPIC_NAME.fullmatch(topic):
        raise OptionError(f"option {option}: invalid topic name {topic!r}", hint=TOPIC_NAME_HINT)


def whole(given: Mapping[str, str], name: str) -> int | None:
    """Return an option as a number from 0, or None if it is not set."""
    if (text := given.get(name)) is None:
        return None
    if not re.fullmatch(r"\d+", text.strip()):
        raise OptionError(f"option {name} must be a whole number, not {text!r}")
    return int(text)


def positive(given: Mapping[str, str], name: str) -> int | None:
    """Return an option as a number from 1, or None if it is not set."""
    if (text := given.get(name)) is None:
        return None
    if not re.fullmatch(r"\d+", text.strip()) or int(text) < 1:
        raise OptionError(f"option {name} must be a positive whole number, not {text!r}")
    return int(text)


def boolean(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Return an option as a boolean."""
    text = given.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise OptionError(f"option {name} must be true or false, not {text!r}")
    return text == "true"
