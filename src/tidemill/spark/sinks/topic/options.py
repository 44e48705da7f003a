"""Parses the options of the sink: topic, delivery, sink id.

Must not know: Spark, Kafka clients, Arrow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidemill.spark.base.options import (
    FORBIDDEN_SINK_SETTINGS,
    SINK_OPTIONS,
    SOURCE_OPTIONS,
    TOPIC_NAME,
    check_topic,
    kafka_settings,
    known_options,
    positive,
    whole,
)
from tidemill.spark.errors import OptionError

EXACTLY_ONCE = "exactly-once"
AT_LEAST_ONCE = "at-least-once"

MAX_SINK_ID = 240
"""Most characters. With the number of a task it must not be longer than a topic name."""

# For librdkafka 0 means no limit: a task would never end while no broker answers.
_LIMITS = ("message.timeout.ms", "delivery.timeout.ms", "transaction.timeout.ms")

# Spark passes its own options to a sink as well.
_CHECKPOINT = "checkpointlocation"
_SPARK_SINK_OPTIONS = frozenset({_CHECKPOINT, "queryname", "outputmode", "path"})


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The checked options of a sink.

    Attributes:
        topic: Topic for all rows; None for the topic in each row.
        kafka: Settings of librdkafka, without the prefix ``kafka.``.
        delivery: ``EXACTLY_ONCE``, ``AT_LEAST_ONCE``, or None if it is not set.
        sink_id: Name of the output; None to derive it from the query.
        batch_id: Number of the batch; None for the number that Spark gives it.
        checkpoint: Folder of the query's checkpoint, or None if it is not known.
    """

    topic: str | None
    kafka: Mapping[str, str]
    delivery: str | None = None
    sink_id: str | None = None
    batch_id: int | None = None
    checkpoint: str | None = None


def parse_sink_options(raw: Mapping[str, str]) -> SinkOptions:
    """Parse and check the options of a sink.

    Args:
        raw: Options as Spark passes them; upper and lower case are the same.

    Raises:
        OptionError: An option is unknown, invalid or missing.
    """
    given = known_options(raw, SINK_OPTIONS, _SPARK_SINK_OPTIONS, other=SOURCE_OPTIONS, role="sink")
    topic = given.get("topic", "").strip() or None
    if topic is not None:
        check_topic(topic, "topic")
    delivery = given.get("delivery", "").strip().lower() or None
    if delivery not in (None, EXACTLY_ONCE, AT_LEAST_ONCE):
        raise OptionError(
            f"invalid option delivery {delivery!r}", hint=f"Use {EXACTLY_ONCE} or {AT_LEAST_ONCE}."
        )
    kafka = kafka_settings(raw, FORBIDDEN_SINK_SETTINGS)
    for name in _LIMITS:
        positive({f"kafka.{key}": value for key, value in kafka.items()}, f"kafka.{name}")
    options = SinkOptions(
        topic=topic,
        kafka=kafka,
        delivery=delivery,
        sink_id=_sink_id(given),
        batch_id=whole(given, "batchId"),
        checkpoint=next((v for k, v in raw.items() if k.lower() == _CHECKPOINT), None),
    )
    if delivery == EXACTLY_ONCE:
        check_exactly_once(options)
    return options


def check_exactly_once(options: SinkOptions) -> None:
    """Check that the options allow exactly-once delivery.

    Raises:
        OptionError: The option topic is missing, or a setting excludes transactions.
    """
    if options.topic is None:
        raise OptionError(
            "exactly-once delivery needs the option topic",
            hint="Set it, or set delivery to at-least-once.",
        )
    _check_settings(options.kafka, "Remove it, or set delivery to at-least-once.")


def check_pipeline(kafka: Mapping[str, object]) -> None:
    """Check that a pipeline can write to topics with its settings of librdkafka.

    Args:
        kafka: Settings, as the user wrote them.
    """
    # In the form in which Spark passes them on.
    raw = {
        f"kafka.{key}": str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in kafka.items()
    }
    options = parse_sink_options({"kafka.bootstrap.servers": "-", **raw})
    _check_settings(options.kafka, "Remove it: a pipeline writes to topics exactly once.")


def _check_settings(kafka: Mapping[str, str], hint: str) -> None:
    acks = kafka.get("acks", kafka.get("request.required.acks", "all"))
    if acks not in ("all", "-1"):
        raise OptionError(f"exactly-once delivery excludes kafka.acks={acks}", hint=hint)
    if kafka.get("enable.idempotence", "true").lower() != "true":
        raise OptionError(
            "exactly-once delivery excludes kafka.enable.idempotence=false", hint=hint
        )


def _sink_id(given: Mapping[str, str]) -> str | None:
    if (text := given.get("sinkId")) is None:
        return None
    if not TOPIC_NAME.fullmatch(text) or len(text) > MAX_SINK_ID:
        raise OptionError(
            f"invalid option sinkId {text!r}",
            hint=f"Use letters, digits, '.', '_' and '-', at most {MAX_SINK_ID} of them.",
        )
    return text
