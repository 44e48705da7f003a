"""Planning without a broker: starting positions, next batches, and lost data."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping

import pytest

from tidemill.clock import ManualClock
from tidemill.errors import UnknownTopicOrPartitionError
from tidemill.reading.ranges import OffsetRange, Offsets, TopicPartition
from tidemill.spark.errors import DataLossError, OptionError, OtherTopicError
from tidemill.spark.source.planning.admission import AIM_MS, FIRST, Admission
from tidemill.spark.source.planning.options import (
    LATEST,
    Position,
    Subscription,
    parse_source_options,
)
from tidemill.spark.source.planning.planner import Planner, QueryOffsets
from tidemill.spark.source.planning.topics import Topic

SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}


class FakeCluster:
    """A cluster in memory: the id of each topic, and [log start, log end) of each partition."""

    def __init__(self) -> None:
        self.ids: dict[str, str] = {}
        self.logs: dict[TopicPartition, tuple[int, int]] = {}
        self.times: dict[TopicPartition, list[int]] = {}

    def put(self, topic: str, *logs: tuple[int, int], topic_id: str = "one") -> FakeCluster:
        self.drop(topic)
        self.ids[topic] = topic_id
        self.logs |= {(topic, p): log for p, log in enumerate(logs)}
        return self

    def drop(self, topic: str) -> None:
        self.ids.pop(topic, None)
        self.logs = {tp: log for tp, log in self.logs.items() if tp[0] != topic}

    def describe(self, subscription: Subscription) -> dict[str, Topic]:
        import re

        names = subscription.topics or tuple(subscription.partitions)
        if subscription.pattern:
            names = tuple(t for t in self.ids if re.fullmatch(subscription.pattern, t))
        topics = {}
        for name in names:
            if name in self.ids:
                there = tuple(sorted(p for t, p in self.logs if t == name))
                chosen = subscription.partitions.get(name, there)
                topics[name] = Topic(self.ids[name], tuple(p for p in there if p in chosen))
        return topics

    def offsets(self, wanted: Mapping[TopicPartition, int]) -> Offsets:
        return {tp: self.logs[tp][1 if which == LATEST else 0] for tp, which in wanted.items()}

    def offsets_at(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        found: dict[TopicPartition, int | None] = {}
        for tp, at_ms in wanted.items():
            matches = [i for i, ms in enumerate(self.times.get(tp, [])) if ms >= at_ms]
            found[tp] = matches[0] if matches else None
        return found


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster().put("t", (0, 10), (5, 25))


def stream(cluster: FakeCluster, **options: str) -> Planner:
    if not options.keys() & {"subscribePattern", "assign"}:
        options.setdefault("subscribe", "t")
    return Planner(parse_source_options({**SERVERS, **options}), cluster, Position("latest"))


def batch(cluster: FakeCluster, **options: str) -> list[OffsetRange]:
    options = {"subscribe": "t", **options}
    planner = Planner(parse_source_options({**SERVERS, **options}), cluster, Position("earliest"))
    return planner.batch_ranges()


def at(*offsets: int, topic_id: str = "one", topic: str = "t") -> QueryOffsets:
    return QueryOffsets({(topic, p): o for p, o in enumerate(offsets)}, {topic: topic_id})


# --- offsets as text ---


def test_offsets_have_one_spelling_whatever_their_order() -> None:
    there = QueryOffsets({("b", 10): 1, ("b", 2): 2, ("a", 0): 3}, {"b": "x", "a": "y"})
    back = QueryOffsets({("a", 0): 3, ("b", 2): 2, ("b", 10): 1}, {"a": "y", "b": "x"})
    text = json.dumps(there.to_json())
    assert text == json.dumps(back.to_json())
    assert text == ('{"#topicIds": {"a": "y", "b": "x"}, "a": {"0": 3}, "b": {"2": 2, "10": 1}}')
    assert QueryOffsets.from_json(json.loads(text)) == there


# --- where a query starts ---


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, at(10, 25)),
        ({"startingOffsets": "earliest"}, at(0, 5)),
        ({"startingOffsets": '{"t": {"0": 3, "1": -2}}'}, at(3, 5)),
        ({"startingOffsets": '{"t": {"0": -1, "1": 25}}'}, at(10, 25)),
    ],
)
def test_a_stream_starts_where_it_is_told(
    cluster: FakeCluster, options: dict[str, str], expected: QueryOffsets
) -> None:
    assert stream(cluster, **options).initial() == expected


def test_a_start_by_timestamp_takes_the_first_record_that_is_late_enough(
    cluster: FakeCluster,
) -> None:
    cluster.times = {("t", 0): [100, 200, 300], ("t", 1): [50, 60]}
    assert stream(cluster, startingTimestamp="60").initial() == at(0, 1)
    by_partition = stream(cluster, startingOffsetsByTimestamp='{"t": {"0": 201, "1": 1}}')
    assert by_partition.initial() == at(2, 0)


def test_no_record_late_enough_is_an_error_unless_latest_is_asked_for(cluster: FakeCluster) -> None:
    cluster.times = {("t", 0): [100], ("t", 1): [50]}
    with pytest.raises(OptionError, match="t-1 has no record at or after timestamp 70"):
        stream(cluster, startingTimestamp="70").initial()
    lenient = stream(cluster, startingTimestamp="70", startingOffsetsByTimestampStrategy="latest")
    assert lenient.initial() == at(0, 25)


def test_starting_offsets_must_name_each_partition_and_no_other(cluster: FakeCluster) -> None:
    with pytest.raises(OptionError, match="t-1 is missing; t-7 does not exist"):
        stream(cluster, startingOffsets='{"t": {"0": 1, "7": 1}}').initial()


def test_starting_offsets_outside_the_log_are_lost_data(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = '{"t": {"0": 3, "1": 2}}'
    with pytest.raises(DataLossError, match="t-1 has offsets 5 to 25, not 2"):
        stream(cluster, startingOffsets=wanted).initial()
    assert stream(cluster, startingOffsets=wanted, failOnDataLoss="false").initial() == at(3, 5)
    assert "continuing without" in caplog.text


def test_a_topic_that_does_not_exist_is_an_error_that_says_what_to_do(cluster: FakeCluster) -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match="no nope") as refusal:
        stream(cluster, subscribe="t,nope").initial()
    assert "topic create" in refusal.value.hint
    with pytest.raises(UnknownTopicOrPartitionError, match="no t-9"):
        stream(cluster, assign='{"t": [0, 9]}').initial()


def test_assigned_partitions_only(cluster: FakeCluster) -> None:
    assert stream(cluster, assign='{"t": [1]}').initial().offsets == {("t", 1): 25}


# --- the next batch ---


def test_without_news_the_end_is_the_start(cluster: FakeCluster) -> None:
    assert stream(cluster).next_end(at(10, 25), None) == at(10, 25)
    assert stream(cluster).ranges(at(10, 25), at(10, 25)) == []


def test_a_batch_is_what_is_new(cluster: FakeCluster) -> None:
    planner = stream(cluster)
    end = planner.next_end(at(4, 25), None)
    assert end == at(10, 25)
    assert planner.ranges(at(4, 25), end) == [OffsetRange("t", 0, 4, 10)]
    assert planner.newest() == at(10, 25)


def test_a_limit_bounds_the_batch(cluster: FakeCluster) -> None:
    assert stream(cluster).next_end(at(0, 5), 15) == at(5, 15)


def test_an_admission_bounds_each_batch_by_how_long_the_last_one_took(cluster: FakeCluster) -> None:
    cluster.put("t", (0, 1_000_000), (0, 1_000_000))
    planner, clock = stream(cluster), ManualClock(1_700_000_000_370)
    admission = Admission(clock)
    first = planner.next_end(at(0, 0), admission)
    assert first == at(FIRST // 2, FIRST // 2)
    clock.advance(2 * AIM_MS)
    second = planner.next_end(first, admission)
    assert second == at(FIRST * 3 // 4, FIRST * 3 // 4)
    clock.advance(AIM_MS // 8)
    last = planner.next_end(second, admission)
    assert last == at(1_000_000, 1_000_000)
    for _ in range(3):
        clock.advance(60_370)
        assert planner.next_end(last, admission) == last


def test_min_partitions_and_max_records_split_it(cluster: FakeCluster) -> None:
    planner = stream(cluster, minPartitions="3")
    assert len(planner.ranges(at(0, 5), at(10, 25))) == 3
    planner = stream(cluster, maxRecordsPerPartition="10")
    assert [r.size for r in planner.ranges(at(0, 5), at(10, 25))] == [10, 10, 10]


def test_new_partitions_are_read_from_their_earliest_record(cluster: FakeCluster) -> None:
    planner = stream(cluster)
    cluster.put("t", (0, 10), (5, 25), (0, 7))
    end = planner.next_end(at(10, 25), None)
    assert end == at(10, 25, 7)
    assert planner.ranges(at(10, 25), end) == [OffsetRange("t", 2, 0, 7)]


def test_a_new_partition_that_has_lost_records_already_is_reported(cluster: FakeCluster) -> None:
    cluster.put("t", (0, 10), (5, 25), (3, 7))
    with pytest.raises(DataLossError, match="new partition t-2 starts at offset 3"):
        stream(cluster).ranges(at(10, 25), at(10, 25, 7))


def test_topics_that_begin_to_match_the_pattern_are_read_from_their_earliest_record(
    cluster: FakeCluster,
) -> None:
    planner = stream(cluster, subscribePattern="t.*")
    start = planner.initial()
    cluster.put("t2", (4, 6), topic_id="two").put("other", (0, 9))
    end = planner.next_end(start, None)
    assert end.offsets == {("t", 0): 10, ("t", 1): 25, ("t2", 0): 6}
    assert planner.ranges(start, end) == [OffsetRange("t2", 0, 4, 6)]


def test_a_pattern_may_match_nothing_yet(cluster: FakeCluster) -> None:
    planner = stream(cluster, subscribePattern="later.*")
    assert planner.initial() == QueryOffsets()
    assert planner.next_end(QueryOffsets(), None) == QueryOffsets()


# --- AvailableNow ---


def test_available_now_ends_at_what_was_there_when_it_began(cluster: FakeCluster) -> None:
    planner = stream(cluster)
    planner.fix_target()
    cluster.put("t", (0, 99), (5, 99), (0, 9))
    first = planner.next_end(at(0, 5), 15)
    assert first == at(5, 15)
    second = planner.next_end(first, 100)
    assert second == at(10, 25)
    assert planner.next_end(second, 100) == second


# --- lost data ---


def test_records_removed_before_they_were_read_fail_the_query(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.put("t", (8, 10), (5, 25))
    message = "t-0 starts at offset 8, but the query is at offset 4: 4 offsets were removed"
    with pytest.raises(DataLossError, match=message) as refusal:
        stream(cluster).ranges(at(4, 25), at(10, 25))
    assert "failOnDataLoss" in refusal.value.hint
    with caplog.at_level(logging.WARNING, logger="tidemill.spark"):
        ranges = stream(cluster, failOnDataLoss="false").ranges(at(4, 25), at(10, 25))
    assert ranges == [OffsetRange("t", 0, 8, 10)]
    assert message in caplog.text


def test_all_records_of_a_range_removed_leave_an_empty_task(cluster: FakeCluster) -> None:
    cluster.put("t", (50, 60), (5, 25))
    ranges = stream(cluster, failOnDataLoss="false").ranges(at(4, 25), at(10, 25))
    assert ranges == [OffsetRange("t", 0, 10, 10)]


@pytest.mark.parametrize("options", [{}, {"minPartitions": "6"}, {"maxRecordsPerPartition": "4"}])
@pytest.mark.parametrize("removed", [3, 4, 9, 10, 50])
def test_a_batch_that_is_run_again_has_the_same_tasks_whatever_was_removed(
    cluster: FakeCluster, options: dict[str, str], removed: int
) -> None:
    planner = stream(cluster, failOnDataLoss="false", **options)
    before = planner.ranges(at(0, 5), at(10, 25))
    cluster.put("t", (removed, 60), (5, 25))
    again = planner.ranges(at(0, 5), at(10, 25))

    assert [(r.partition, r.end) for r in again] == [(r.partition, r.end) for r in before]
    for first, second in zip(before, again, strict=True):
        assert (
            second.start
            == (min(max(first.start, removed), first.end), first.start)[first.partition]
        )


def test_tasks_of_a_topic_that_is_gone_leave_the_others_their_numbers(cluster: FakeCluster) -> None:
    cluster.put("a", (0, 8), topic_id="a-id")
    planner = stream(cluster, subscribe="a,t", failOnDataLoss="false", maxRecordsPerPartition="10")
    ids = {"a": "a-id", "t": "one"}
    start = QueryOffsets({("a", 0): 0, **at(0, 5).offsets}, ids)
    end = QueryOffsets({("a", 0): 8, **at(10, 25).offsets}, ids)
    before = planner.ranges(start, end)
    cluster.drop("a")

    assert planner.ranges(start, end) == [OffsetRange("a", 0, 8, 8), *before[1:]]


@pytest.mark.parametrize("options", [{}, {"minPartitions": "6"}, {"maxRecordsPerPartition": "4"}])
@pytest.mark.parametrize("removed", [2, 8, 50])
def test_a_partition_that_is_new_in_the_batch_is_one_task_as_nobody_knows_where_it_began(
    cluster: FakeCluster, options: dict[str, str], removed: int
) -> None:
    planner = stream(cluster, subscribePattern="a|t", **options)
    cluster.put("a", (0, 8), topic_id="a-id")
    end = QueryOffsets({("a", 0): 8, **at(10, 25).offsets}, {"a": "a-id", "t": "one"})
    before = planner.ranges(at(0, 5), end)
    assert before[0] == OffsetRange("a", 0, 0, 8)
    cluster.put("a", (removed, 60), topic_id="a-id")

    assert planner.ranges(at(0, 5), end) == [OffsetRange("a", 0, min(removed, 8), 8), *before[1:]]


def test_a_deleted_topic_fails_the_query_or_is_forgotten(cluster: FakeCluster) -> None:
    cluster.put("u", (0, 3), topic_id="u-id")
    start = QueryOffsets({("t", 0): 10, ("t", 1): 25, ("u", 0): 0}, {"t": "one", "u": "u-id"})
    cluster.drop("u")
    with pytest.raises(DataLossError, match="topic u was deleted"):
        stream(cluster, subscribe="t,u").next_end(start, None)
    lenient = stream(cluster, subscribe="t,u", failOnDataLoss="false")
    assert lenient.next_end(start, None) == at(10, 25)


def test_a_topic_added_to_the_subscription_must_exist(cluster: FakeCluster) -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match="no u"):
        stream(cluster, subscribe="t,u").next_end(at(10, 25), None)
    cluster.put("u", (2, 3), topic_id="u-id")
    end = stream(cluster, subscribe="t,u").next_end(at(10, 25), None)
    assert end.offsets == {("t", 0): 10, ("t", 1): 25, ("u", 0): 3}


def test_available_now_goes_on_without_a_deleted_topic_if_it_may(cluster: FakeCluster) -> None:
    planner = stream(cluster, subscribe="t,u", failOnDataLoss="false")
    planner.fix_target()
    start = QueryOffsets({("t", 0): 4, ("t", 1): 25, ("u", 0): 0}, {"t": "one", "u": "u-id"})
    assert planner.next_end(start, None) == at(10, 25)
    assert planner.next_end(at(10, 25), None) == at(10, 25)


def test_a_topic_deleted_between_planning_and_reading_is_reported(cluster: FakeCluster) -> None:
    cluster.drop("t")
    with pytest.raises(DataLossError, match="t-0 was deleted before it was read"):
        stream(cluster).ranges(at(0, 5), at(10, 25))
    ranges = stream(cluster, failOnDataLoss="false").ranges(at(0, 5), at(10, 25))
    assert [r.size for r in ranges] == [0, 0]


def test_a_topic_made_again_fails_the_query_even_with_more_records_than_before(
    cluster: FakeCluster,
) -> None:
    cluster.put("t", (0, 1000), (0, 1000), topic_id="another")
    expected = (
        "topic t is not the topic that the checkpoint has read: it was deleted and created again, "
        "or these are other brokers than before"
    )
    with pytest.raises(OtherTopicError, match=f"^{expected}"):
        stream(cluster).next_end(at(10, 25), None)
    # The batch that was not finished when the pipeline moved is planned first.
    with pytest.raises(OtherTopicError, match=f"^{expected}"):
        stream(cluster).ranges(at(0, 5), at(10, 25))


def test_topics_of_other_brokers_are_named_together(cluster: FakeCluster) -> None:
    cluster.put("t", (0, 1000), (0, 1000), topic_id="another")
    cluster.put("u", (0, 7), topic_id="another, too")
    start = QueryOffsets({("t", 0): 4, ("t", 1): 25, ("u", 0): 0}, {"t": "one", "u": "u-id"})

    with pytest.raises(OtherTopicError, match=r"^topics t, u are not the topics that .* brokers"):
        stream(cluster, subscribe="t,u").next_end(start, None)


def test_brokers_that_have_one_of_the_topics_are_the_same_ones(cluster: FakeCluster) -> None:
    cluster.put("t", (0, 10), (5, 25))
    cluster.put("u", (0, 7), topic_id="another")
    start = QueryOffsets({("t", 0): 4, ("t", 1): 25, ("u", 0): 0}, {"t": "one", "u": "u-id"})

    with pytest.raises(OtherTopicError, match=r"it was deleted and created again\n"):
        stream(cluster, subscribe="t,u").next_end(start, None)


def test_brokers_without_ids_of_topics_may_be_others_if_a_log_is_shorter(
    cluster: FakeCluster,
) -> None:
    cluster.put("t", (0, 6), (5, 25), topic_id="")
    start = QueryOffsets({("t", 0): 10, ("t", 1): 25})

    with pytest.raises(DataLossError, match="has become shorter, or these are other brokers"):
        stream(cluster).next_end(start, None)


def test_a_topic_made_again_is_read_from_its_start_without_fail_on_data_loss(
    cluster: FakeCluster,
) -> None:
    cluster.put("t", (0, 4), (0, 2), topic_id="another")
    planner = stream(cluster, failOnDataLoss="false")
    end = planner.next_end(at(10, 25), None)
    assert end == at(4, 2, topic_id="another")
    assert planner.ranges(at(10, 25), end) == [
        OffsetRange("t", 0, 0, 4),
        OffsetRange("t", 1, 0, 2),
    ]


def test_a_log_that_became_shorter_fails_the_query_or_is_followed(cluster: FakeCluster) -> None:
    cluster.put("t", (0, 6), (5, 25))
    with pytest.raises(DataLossError, match="t-0 ends at offset 6, but the query is at offset 10"):
        stream(cluster).next_end(at(10, 25), None)
    lenient = stream(cluster, failOnDataLoss="false")
    end = lenient.next_end(at(10, 25), None)
    assert end == at(6, 25)
    assert lenient.ranges(at(10, 25), end) == []


def test_removed_partitions_are_reported(cluster: FakeCluster) -> None:
    cluster.put("t", (0, 10))
    with pytest.raises(DataLossError, match="partitions t-1 were deleted"):
        stream(cluster).next_end(at(10, 25), None)


def test_brokers_without_topic_ids_are_read_all_the_same(cluster: FakeCluster) -> None:
    cluster.put("t", (0, 10), (5, 25), topic_id="")
    planner = stream(cluster)
    assert planner.initial().topic_ids == {}
    assert planner.next_end(at(4, 25), None).offsets == {("t", 0): 10, ("t", 1): 25}


# --- batch queries ---


def test_a_batch_query_reads_all_there_is(cluster: FakeCluster) -> None:
    assert batch(cluster) == [OffsetRange("t", 0, 0, 10), OffsetRange("t", 1, 5, 25)]


def test_a_batch_query_reads_from_start_to_end(cluster: FakeCluster) -> None:
    ranges = batch(
        cluster,
        startingOffsets='{"t": {"0": 2, "1": -2}}',
        endingOffsets='{"t": {"0": 4, "1": -1}}',
    )
    assert ranges == [OffsetRange("t", 0, 2, 4), OffsetRange("t", 1, 5, 25)]


def test_a_batch_query_between_timestamps(cluster: FakeCluster) -> None:
    cluster.times = {("t", 0): list(range(10)), ("t", 1): list(range(25))}
    ranges = batch(cluster, startingTimestamp="6", endingTimestamp="12")
    assert ranges == [OffsetRange("t", 0, 6, 10), OffsetRange("t", 1, 6, 12)]


def test_a_batch_query_can_not_end_before_it_starts(cluster: FakeCluster) -> None:
    with pytest.raises(OptionError, match="would start at 9 and end at 3"):
        batch(
            cluster,
            startingOffsets='{"t": {"0": 9, "1": 5}}',
            endingOffsets='{"t": {"0": 3, "1": 25}}',
        )


def test_ending_offsets_beyond_the_log_are_lost_data(cluster: FakeCluster) -> None:
    wanted = '{"t": {"0": 11, "1": 25}}'
    with pytest.raises(DataLossError, match="t-0 has offsets 0 to 10, not 11"):
        batch(cluster, endingOffsets=wanted)
    assert batch(cluster, endingOffsets=wanted, failOnDataLoss="false")[0].end == 10
