"""Options of the source and the sink: their names and meaning, and what both check alike.

Names and meaning are those of Spark's own Kafka connector (its "Structured Streaming + Kafka
Integration Guide"), so that ``format("kafka")`` and ``format("tidemill")`` can be exchanged. What
it accepts in silence and ignores is an error here. Values are parsed in ``source_options`` and
``sink_options``. Must not know: Spark, Kafka clients, Arrow.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

from tidemill.errors import OptionError, TidemillError

Refusal = TypeVar("Refusal", bound=TidemillError)

TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")

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

_JAVA_ONLY = {
    "sasl.jaas.config": "Use kafka.sasl.username and kafka.sasl.password.",
    "ssl.truststore.location": "Use kafka.ssl.ca.location with a PEM file.",
    "ssl.truststore.password": "Use kafka.ssl.ca.location with a PEM file.",
    "ssl.keystore.type": "Use kafka.ssl.certificate.location and kafka.ssl.key.location (PEM).",
    "max.poll.records": "It has no meaning here; batches are bounded by maxOffsetsPerTrigger.",
    "buffer.memory": "Use kafka.queue.buffering.max.kbytes.",
    "max.block.ms": "Use kafka.delivery.timeout.ms.",
}

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


def noted(error: Refusal) -> Refusal:
    """The error, with its hint where a traceback shows it: that is all that Spark hands on."""
    if error.hint:
        error.add_note(f"hint: {error.hint}")
    return error


def refuse(message: str, hint: str = "") -> OptionError:
    """The error for a wrong option."""
    return noted(OptionError(message, hint=hint))


def known_options(
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


def kafka_settings(raw: Mapping[str, str], refused: Mapping[str, str]) -> dict[str, str]:
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


def json_object(text: str, what: str) -> dict[str, object]:
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise refuse(f"{what}, not {text!r}: {error}") from error
    if not isinstance(content, dict):
        raise refuse(f"{what}, not {text!r}")
    return content


def check_topic(topic: str, option: str) -> None:
    if not TOPIC_NAME.fullmatch(topic):
        raise refuse(
            f"option {option}: {topic!r} is no name of a topic",
            "Letters, digits, '.', '_' and '-', at most 249 of them.",
        )


def whole(given: Mapping[str, str], name: str) -> int | None:
    if (text := given.get(name)) is None:
        return None
    if not re.fullmatch(r"\d+", text.strip()):
        raise refuse(f"option {name} must be a whole number, not {text!r}")
    return int(text)


def positive(given: Mapping[str, str], name: str) -> int | None:
    if (text := given.get(name)) is None:
        return None
    if not re.fullmatch(r"\d+", text.strip()) or int(text) < 1:
        raise refuse(f"option {name} must be a positive whole number, not {text!r}")
    return int(text)


def boolean(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = given.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise refuse(f"option {name} must be true or false, not {text!r}")
    return text == "true"
