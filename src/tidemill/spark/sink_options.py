"""Options of the sink, parsed: which topic, how often each row, under which name.

Must not know: Spark, Kafka clients, Arrow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidemill.spark.options import (
    REFUSED_SINK_SETTINGS,
    SINK_OPTIONS,
    SOURCE_OPTIONS,
    TOPIC_NAME,
    check_topic,
    kafka_settings,
    known_options,
    positive,
    refuse,
    whole,
)

EXACTLY_ONCE = "exactly-once"
AT_LEAST_ONCE = "at-least-once"

MAX_SINK_ID = 240
"""Characters; with a task's number it stays as short as a topic's name may be."""

# librdkafka takes 0 for "never": no task would come to an end while no broker answers.
_LIMITS = ("message.timeout.ms", "delivery.timeout.ms", "transaction.timeout.ms")

# Spark hands a sink what it keeps for itself, too.
_CHECKPOINT = "checkpointlocation"
_SPARK_SINK_OPTIONS = frozenset({_CHECKPOINT, "queryname", "outputmode", "path"})


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """All options of a sink, checked.

    Attributes:
        delivery: ``EXACTLY_ONCE``, ``AT_LEAST_ONCE``, or None where the user leaves it open.
        sink_id: None means: of the query.
        batch_id: None means: of the query's batch.
        checkpoint: folder of the query's checkpoint, where it is known.
    """

    topic: str | None
    kafka: Mapping[str, str]
    delivery: str | None = None
    sink_id: str | None = None
    batch_id: int | None = None
    checkpoint: str | None = None


def parse_sink_options(raw: Mapping[str, str]) -> SinkOptions:
    """Check a sink's options.

    Raises:
        OptionError: unknown, malformed or missing.
    """
    given = known_options(raw, SINK_OPTIONS, _SPARK_SINK_OPTIONS, other=SOURCE_OPTIONS, role="sink")
    topic = given.get("topic", "").strip() or None
    if topic is not None:
        check_topic(topic, "topic")
    delivery = given.get("delivery", "").strip().lower() or None
    if delivery not in (None, EXACTLY_ONCE, AT_LEAST_ONCE):
        raise refuse(f"option delivery is {delivery!r}", f"Use {EXACTLY_ONCE} or {AT_LEAST_ONCE}.")
    kafka = kafka_settings(raw, REFUSED_SINK_SETTINGS)
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
    """What exactly-once delivery can't do without.

    Raises:
        OptionError: there is no option topic, or a setting excludes transactions.
    """
    if options.topic is None:
        raise refuse(
            "exactly-once delivery needs the option topic",
            "Set it, or set delivery to at-least-once.",
        )
    _check_settings(options.kafka, "Leave it out, or set delivery to at-least-once.")


def check_pipeline(kafka: Mapping[str, object]) -> None:
    """Whether a pipeline can write to topics with its settings of librdkafka.

    Raises:
        OptionError: it can't.
    """
    # As Spark hands them on.
    raw = {
        f"kafka.{key}": str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in kafka.items()
    }
    options = parse_sink_options({"kafka.bootstrap.servers": "-", **raw})
    _check_settings(options.kafka, "Leave it out: a pipeline writes to topics exactly once.")


def _check_settings(kafka: Mapping[str, str], hint: str) -> None:
    acks = kafka.get("acks", kafka.get("request.required.acks", "all"))
    if acks not in ("all", "-1"):
        raise refuse(f"exactly-once delivery excludes kafka.acks={acks}", hint)
    if kafka.get("enable.idempotence", "true").lower() != "true":
        raise refuse("exactly-once delivery excludes kafka.enable.idempotence=false", hint)


def _sink_id(given: Mapping[str, str]) -> str | None:
    if (text := given.get("sinkId")) is None:
        return None
    if not TOPIC_NAME.fullmatch(text) or len(text) > MAX_SINK_ID:
        raise refuse(
            f"option sinkId is {text!r}",
            f"Letters, digits, '.', '_' and '-', at most {MAX_SINK_ID} of them.",
        )
    return text
