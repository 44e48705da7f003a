"""Options of source and sink: accepted values, their meaning, and errors."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tidemill.spark.base.options import FORBIDDEN_SINK_SETTINGS, FORBIDDEN_SOURCE_SETTINGS
from tidemill.spark.errors import OptionError
from tidemill.spark.sinks.topic.options import (
    AT_LEAST_ONCE,
    EXACTLY_ONCE,
    SinkOptions,
    check_pipeline,
    parse_sink_options,
)
from tidemill.spark.source.planning.options import (
    EARLIEST,
    LATEST,
    Position,
    SourceOptions,
    Subscription,
    check_batch_options,
    check_stream_options,
    parse_source_options,
)

SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}
MINIMAL = {**SERVERS, "subscribe": "flights"}


def source(**options: str) -> SourceOptions:
    return parse_source_options({**MINIMAL, **options})


def test_minimal_source_has_sparks_defaults() -> None:
    options = source()
    assert options.subscription == Subscription(topics=("flights",))
    assert options.kafka == {"bootstrap.servers": "localhost:9092"}
    assert options.starting is None
    assert options.ending is None
    assert options.fail_on_data_loss
    assert not options.include_headers
    assert options.max_offsets_per_trigger is None


def test_names_are_matched_without_regard_to_case_as_spark_lowers_them() -> None:
    options = source(startingoffsets="earliest", MAXOFFSETSPERTRIGGER="7", failondataloss="FALSE")
    assert options.starting == Position("earliest")
    assert options.max_offsets_per_trigger == 7
    assert not options.fail_on_data_loss


def test_kafka_settings_go_to_librdkafka_without_their_prefix() -> None:
    options = source(**{"kafka.isolation.level": "read_committed", "kafka.sasl.username": "u"})
    assert options.kafka["isolation.level"] == "read_committed"
    assert options.kafka["sasl.username"] == "u"


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({"subscribe": "a, b ,a,"}, Subscription(topics=("a", "b"))),
        ({"subscribePattern": "dep.*"}, Subscription(pattern="dep.*")),
        (
            {"assign": '{"a": [1, 0, 1], "b": [2]}'},
            Subscription(partitions={"a": (0, 1), "b": (2,)}),
        ),
    ],
)
def test_each_way_to_name_partitions(raw: dict[str, str], expected: Any) -> None:
    assert parse_source_options({**SERVERS, **raw}).subscription == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingOffsets": "Earliest"}, Position("earliest")),
        ({"startingOffsets": " latest "}, Position("latest")),
        (
            {"startingOffsets": '{"flights": {"0": 23, "1": -2, "2": -1}}'},
            Position("offsets", by_partition={"flights": {0: 23, 1: EARLIEST, 2: LATEST}}),
        ),
        (
            {"startingOffsets": '{"#topicIds": {"flights": "id"}, "flights": {"0": 1}}'},
            Position("offsets", by_partition={"flights": {0: 1}}),
        ),
        (
            {"startingOffsetsByTimestamp": '{"flights": {"0": 1000}}'},
            Position("timestamps", by_partition={"flights": {0: 1000}}),
        ),
        ({"startingTimestamp": "1357000000000"}, Position("timestamp", at_ms=1357000000000)),
    ],
)
def test_each_way_to_name_a_start(options: dict[str, str], expected: Any) -> None:
    assert source(**options).starting == expected


def test_a_timestamp_wins_over_offsets_as_in_sparks_connector() -> None:
    both = source(startingOffsets="latest", startingTimestamp="5")
    assert both.starting == Position("timestamp", at_ms=5)


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ({"subscrbe": "x"}, "unknown option subscrbe", "Did you mean subscribe?"),
        ({"startingOffset": "latest"}, "unknown option startingOffset", "startingOffsets?"),
        ({"maxRowsEver": "1"}, "unknown option maxRowsEver", "Known options are"),
        ({"bootstrap.servers": "x"}, "unknown option", "kafka.bootstrap.servers"),
        ({"topic": "x"}, "belongs to the sink", ""),
        (
            {"subscribePattern": "x"},
            "only one of subscribe, subscribePattern can be set",
            "exactly one",
        ),
        ({"subscribe": " , "}, "names no topic", ""),
        ({"subscribe": "a b"}, "invalid topic name 'a b'", "Use letters"),
        ({"startingOffsets": "yesterday"}, "not 'yesterday'", ""),
        ({"startingOffsets": '{"flights": {"0": -3}}'}, "-3", ""),
        ({"startingOffsets": '{"flights": {"0": true}}'}, "True", ""),
        ({"startingOffsets": '{"flights": {"zero": 1}}'}, "zero", ""),
        ({"startingOffsets": '{"flights": [1]}'}, "[1]", ""),
        ({"startingOffsets": '{"a":' * 100_000}, "recursion", ""),
        ({"startingOffsets": "[1]"}, "must be earliest, latest or JSON", ""),
        ({"startingOffsetsByTimestamp": '{"flights": {"0": -1}}'}, "-1", ""),
        ({"startingTimestamp": "soon"}, "'soon'", "milliseconds"),
        ({"startingOffsetsByTimestampStrategy": "guess"}, "guess", "error or latest"),
        ({"maxOffsetsPerTrigger": "0"}, "positive whole number", ""),
        ({"minPartitions": "-1"}, "positive whole number", ""),
        ({"minPartitions": "many"}, "positive whole number", ""),
        ({"failOnDataLoss": "perhaps"}, "true or false", ""),
        ({"kafka.max.poll.records": "1"}, "Java client only", "maxOffsetsPerTrigger"),
        ({"kafka.sasl.jaas.config": "x"}, "Java client only", "kafka.sasl.username"),
    ],
)
def test_a_wrong_source_option_is_refused_with_what_to_do(
    options: dict[str, str], message: str, hint: str
) -> None:
    with pytest.raises(OptionError) as refusal:
        source(**options)
    assert message in str(refusal.value)
    assert hint in refusal.value.hint
    if refusal.value.hint:  # Spark shows the traceback only
        assert refusal.value.__notes__ == [f"hint: {refusal.value.hint}"]


@pytest.mark.parametrize("setting", sorted(FORBIDDEN_SOURCE_SETTINGS))
def test_kafka_settings_that_would_break_the_source_are_refused(setting: str) -> None:
    with pytest.raises(OptionError, match="can't be set"):
        source(**{f"kafka.{setting}": "x"})


@pytest.mark.parametrize("setting", sorted(FORBIDDEN_SINK_SETTINGS))
def test_kafka_settings_that_would_break_the_sink_are_refused(setting: str) -> None:
    with pytest.raises(OptionError, match="can't be set"):
        parse_sink_options({**SERVERS, "topic": "t", f"kafka.{setting}": "x"})


@pytest.mark.parametrize("servers", [{}, {"kafka.bootstrap.servers": "  "}])
def test_servers_must_be_named(servers: dict[str, str]) -> None:
    with pytest.raises(OptionError, match=r"kafka\.bootstrap\.servers is missing"):
        parse_source_options({**servers, "subscribe": "flights"})
    with pytest.raises(OptionError, match=r"kafka\.bootstrap\.servers is missing"):
        parse_sink_options({**servers, "topic": "flights"})


def test_some_topic_must_be_named() -> None:
    with pytest.raises(OptionError, match="no topic is named"):
        parse_source_options(SERVERS)


@pytest.mark.parametrize("pattern", ["", "(", "*"])
def test_a_pattern_must_be_a_regular_expression(pattern: str) -> None:
    with pytest.raises(OptionError, match="subscribePattern"):
        parse_source_options({**SERVERS, "subscribePattern": pattern})


@pytest.mark.parametrize(
    "assignment", ["a", "[]", "{}", '{"a": []}', '{"a": [-1]}', '{"a": ["0"]}', '{"a": 0}']
)
def test_an_assignment_must_name_partitions(assignment: str) -> None:
    with pytest.raises(OptionError, match="assign"):
        parse_source_options({**SERVERS, "assign": assignment})


@pytest.mark.parametrize("ending", [{"endingOffsets": "latest"}, {"endingTimestamp": "1"}])
def test_a_stream_has_no_end(ending: dict[str, str]) -> None:
    with pytest.raises(OptionError, match="has no end"):
        check_stream_options(source(**ending))
    check_batch_options(source(**ending))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": "latest"}, "can't start at latest"),
        ({"startingOffsets": '{"flights": {"0": -1}}'}, "can't start at latest"),
        ({"endingOffsets": "earliest"}, "can't end at earliest"),
        ({"endingOffsets": '{"flights": {"0": -2}}'}, "can't end at earliest"),
        (
            {
                "startingOffsets": '{"flights": {"0": 1}}',
                "endingOffsets": '{"flights": {"1": 2}}',
            },
            "different partitions",
        ),
        (
            {
                "startingOffsets": '{"flights": {"0": 3}}',
                "endingOffsets": '{"flights": {"0": 2}}',
            },
            "would start at 3 and end at 2",
        ),
    ],
)
def test_a_batch_has_two_ends_that_fit(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        check_batch_options(source(**options))


def test_a_batch_may_end_at_latest_whatever_it_starts_at() -> None:
    check_batch_options(
        source(startingOffsets='{"flights": {"0": 3}}', endingOffsets='{"flights": {"0": -1}}')
    )


def test_a_sink_takes_what_spark_passes_along() -> None:
    options = parse_sink_options(
        {**SERVERS, "topic": " out ", "checkpointlocation": "/tmp/c", "queryname": "q"}
    )
    assert options.topic == "out"
    assert parse_sink_options(SERVERS).topic is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topics": "x"}, "unknown option topics"),
        ({"subscribe": "x"}, "belongs to the source"),
        ({"topic": "no/slash"}, "invalid topic name"),
    ],
)
def test_a_wrong_sink_option_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_sink_options({**SERVERS, **options})


def sink(**options: str) -> SinkOptions:
    return parse_sink_options({**SERVERS, "topic": "out", **options})


def test_delivery_is_left_open_unless_it_is_named() -> None:
    assert sink().delivery is None
    assert sink(delivery=" Exactly-Once ").delivery == EXACTLY_ONCE
    assert sink(DELIVERY="at-least-once").delivery == AT_LEAST_ONCE


def test_a_batch_of_a_sink_is_named_by_two_options() -> None:
    options = sink(sinkid="hourly.v2", batchid=" 7 ")
    assert (options.sink_id, options.batch_id) == ("hourly.v2", 7)
    assert (sink().sink_id, sink().batch_id) == (None, None)


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ({"delivery": "at-most-once"}, "invalid option delivery 'at-most-once'", "exactly-once or"),
        ({"sinkId": ""}, "invalid option sinkId ''", "Use letters"),
        ({"sinkId": "a b"}, "invalid option sinkId 'a b'", "Use letters"),
        ({"sinkId": "x" * 250}, "sinkId", "at most 240"),
        ({"batchId": "-1"}, "batchId must be a whole number, not '-1'", ""),
        ({"batchId": "1.0"}, "batchId", ""),
        ({"sinkid_": "x"}, "unknown option sinkid_", "sinkId"),
    ],
)
def test_a_wrong_name_of_a_batch_is_refused(
    options: dict[str, str], message: str, hint: str
) -> None:
    with pytest.raises(OptionError) as refusal:
        sink(**options)
    assert message in str(refusal.value)
    assert hint in refusal.value.hint


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": " "}, "needs the option topic"),
        ({"kafka.acks": "1"}, "excludes kafka.acks=1"),
        ({"kafka.request.required.acks": "0"}, "excludes kafka.acks=0"),
        ({"kafka.enable.idempotence": "False"}, "excludes kafka.enable.idempotence"),
    ],
)
def test_exactly_once_refuses_what_excludes_it(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message) as refusal:
        sink(delivery=EXACTLY_ONCE, **options)
    assert AT_LEAST_ONCE in refusal.value.hint
    assert sink(delivery=AT_LEAST_ONCE, **options).delivery == AT_LEAST_ONCE


def test_exactly_once_takes_what_asks_for_no_less() -> None:
    settings = {"kafka.acks": "-1", "kafka.enable.idempotence": "TRUE"}
    assert sink(delivery=EXACTLY_ONCE, **settings).kafka["acks"] == "-1"


@pytest.mark.parametrize(
    "name", ["message.timeout.ms", "delivery.timeout.ms", "transaction.timeout.ms"]
)
@pytest.mark.parametrize("value", ["2m", "0", "-1", "", "1.5"])
@pytest.mark.parametrize("delivery", [EXACTLY_ONCE, AT_LEAST_ONCE])
def test_a_task_that_writes_has_an_end(name: str, value: str, delivery: str) -> None:
    """For librdkafka 0 means no limit: a flush would wait forever."""
    message = re.escape(f"option kafka.{name} must be a positive whole number, not {value!r}")
    with pytest.raises(OptionError, match=message):
        sink(delivery=delivery, **{f"kafka.{name}": value})
    assert sink(delivery=delivery, **{f"kafka.{name}": "90000"}).kafka[name] == "90000"


@pytest.mark.parametrize(
    ("settings", "message", "hint"),
    [
        ({"acks": "1"}, "exactly-once delivery excludes kafka.acks=1", "Remove it: a pipeline"),
        ({"acks": 1}, "exactly-once delivery excludes kafka.acks=1", "Remove it: a pipeline"),
        (
            {"enable.idempotence": False},
            "exactly-once delivery excludes kafka.enable.idempotence=false",
            "Remove it: a pipeline writes to topics exactly once.",
        ),
        ({"message.timeout.ms": "2m"}, "option kafka.message.timeout.ms must be a positive", ""),
        ({"transactional.id": "x"}, "option kafka.transactional.id can't be set", "The sink"),
    ],
)
def test_settings_with_which_a_pipeline_can_t_write_are_refused(
    settings: dict[str, Any], message: str, hint: str
) -> None:
    with pytest.raises(OptionError) as refusal:
        check_pipeline(settings)

    assert str(refusal.value).startswith(message)
    assert refusal.value.hint.startswith(hint)
    assert "delivery to" not in refusal.value.hint  # a pipeline has no such option
    check_pipeline({"acks": "all", "linger.ms": 5, "enable.idempotence": True})
