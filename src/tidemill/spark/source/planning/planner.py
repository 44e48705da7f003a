"""Plans the batches of a query: where each starts and ends, and which tasks read it.

The position of a query is ``QueryOffsets``: the next offset of each partition, and the ids of the
topics, which change when a topic is deleted and created again. Must not know: Spark, Kafka clients,
Arrow.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tidemill.reading.ranges import (
    OffsetRange,
    Offsets,
    TopicPartition,
    limit_offsets,
    split_ranges,
)
from tidemill.spark.errors import DataLossError, OptionError, OtherTopicError
from tidemill.spark.source.planning.admission import Admission
from tidemill.spark.source.planning.options import (
    EARLIEST,
    LATEST,
    TOPIC_IDS,
    Position,
    SourceOptions,
)
from tidemill.spark.source.planning.topics import Cluster, Topic, missing, unknown

log = logging.getLogger("tidemill.spark")

_OR_OTHER_BROKERS = ", or these are other brokers than before"


@dataclass(frozen=True, slots=True)
class QueryOffsets:
    """The position of a query.

    Attributes:
        offsets: The next offset to read, for each partition.
        topic_ids: The id of each topic, if the broker has ids.
    """

    offsets: Offsets = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)

    def topics(self) -> set[str]:
        """Return the names of the topics."""
        return {topic for topic, _ in self.offsets}

    def to_json(self) -> dict[str, Any]:
        """Return the position as in Spark's checkpoint: like ``startingOffsets``, and the ids.

        The content is sorted, because Spark compares offsets as text.
        """
        content: dict[str, Any] = {}
        if self.topic_ids:
            content[TOPIC_IDS] = dict(sorted(self.topic_ids.items()))
        for (topic, partition), offset in sorted(self.offsets.items()):
            content.setdefault(topic, {})[str(partition)] = offset
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> QueryOffsets:
        """Return the position from the form of ``to_json``. The ids may be missing."""
        return cls(
            {
                (topic, int(partition)): int(offset)
                for topic, partitions in content.items()
                if topic != TOPIC_IDS
                for partition, offset in partitions.items()
            },
            dict(content.get(TOPIC_IDS, {})),
        )


class Planner:
    """Plans the batches of one query.

    Args:
        default_start: Where a query starts if the option is not set.
    """

    def __init__(self, options: SourceOptions, cluster: Cluster, default_start: Position) -> None:
        self._options = options
        self._cluster = cluster
        self._starting = options.starting or default_start
        self._target: QueryOffsets | None = None
        self._newest: QueryOffsets | None = None

    def initial(self) -> QueryOffsets:
        """Return the position where a new query starts.

        Raises:
            UnknownTopicOrPartitionError: A topic or partition in the options does not exist.
            OptionError: ``startingOffsets`` does not name exactly the existing partitions.
            DataLossError: A starting offset is outside of the log (``failOnDataLoss``).
        """
        topics = self._existing_topics()
        return QueryOffsets(self._resolve(self._starting, topics, start=True), _ids(topics))

    def fix_target(self) -> None:
        """Plan no records that are appended after this call (``Trigger.AvailableNow``)."""
        self._target = self._latest_of(self._cluster.describe(self._options.subscription))

    def newest(self) -> QueryOffsets | None:
        """Return the last known ends of the partitions, for progress reports."""
        return self._newest

    def next_end(self, start: QueryOffsets, limit: int | Admission | None) -> QueryOffsets:
        """Return the end of the batch that starts at ``start``; ``start`` if it is empty.

        Args:
            limit: Most offsets, approximately, or what decides about them; None for no limit.

        Raises:
            OtherTopicError: A topic was created again, or the brokers are others
                (``failOnDataLoss``).
            DataLossError: A topic was deleted, or a log has become shorter (``failOnDataLoss``).
            UnknownTopicOrPartitionError: A topic that was not read before does not exist.
        """
        if self._target is not None:
            latest = self._target
        else:
            latest = self._latest_of(self._cluster.describe(self._options.subscription))
        self._newest = latest
        begin = self._begin(start, latest)
        ends = dict(latest.offsets)
        for tp, offset in begin.items():
            if ends[tp] < offset:
                self._lost(
                    f"{_name(tp)} ends at offset {ends[tp]}, but the query is at offset {offset}: "
                    f"its log has become shorter{_OR_OTHER_BROKERS * (not latest.topic_ids)}"
                )
        if isinstance(limit, Admission):
            ends = limit_offsets(begin, ends, limit.next_limit())
            limit.planned(sum(max(0, end - begin[tp]) for tp, end in ends.items()))
        elif limit is not None:
            ends = limit_offsets(begin, ends, limit)
        return QueryOffsets(ends, latest.topic_ids)

    def ranges(self, start: QueryOffsets, end: QueryOffsets) -> list[OffsetRange]:
        """Return the tasks of the batch ``[start, end)``.

        The number of a task depends on the two positions only. If a batch is run again, a sink
        finds by these numbers which tasks are done, so they must be the same although records were
        removed meanwhile. Therefore a range is split as it was planned, and removed records make
        its parts shorter or empty. A new partition, for which no start was planned, is one task.

        Raises:
            DataLossError: Offsets of the batch are no longer in the log (``failOnDataLoss``).
        """
        if not end.offsets or start == end:
            return []
        topics = self._cluster.describe(self._options.subscription)
        wanted: list[TopicPartition] = []
        for tp in sorted(end.offsets):
            topic, partition = tp
            if topic not in topics or partition not in topics[topic].partitions:
                self._lost(f"{_name(tp)} was deleted before it was read")
            elif not _differs(end.topic_ids.get(topic), topics[topic].topic_id):
                wanted.append(tp)
        self._ensure_same(end, _ids(topics))
        first = self._cluster.offsets(dict.fromkeys(wanted, EARLIEST))
        begin = {tp: self._first_offset(tp, start, end, first[tp]) for tp in wanted}
        planned = {tp: _planned(tp, start, end) for tp in end.offsets}
        whole = []
        for tp, last in sorted(end.offsets.items()):
            at = planned[tp]
            # A new partition counts as one offset, which can't be split.
            whole.append(OffsetRange(*tp, max(0, last - 1) if at is None else at, last))
        ranges = []
        for part in self._split(whole):
            tp = part.topic, part.partition
            there = begin.get(tp, part.end)
            if planned[tp] is not None:
                there = max(part.start, there)
            ranges.append(replace(part, start=min(there, part.end)))
        return ranges

    def batch_ranges(self) -> list[OffsetRange]:
        """Return the tasks of a batch query, from its starting to its ending offsets.

        Raises:
            UnknownTopicOrPartitionError: A topic or partition in the options does not exist.
            OptionError: The options do not name exactly the existing partitions, or the query would
                end before it starts.
            DataLossError: An offset is outside of the log (``failOnDataLoss``).
        """
        topics = self._existing_topics()
        starts = self._resolve(self._starting, topics, start=True)
        ends = self._resolve(self._options.ending or Position("latest"), topics, start=False)
        for tp, first in starts.items():
            if first > ends[tp] and self._starting.kind == "offsets":
                raise OptionError(f"{_name(tp)} would start at {first} and end at {ends[tp]}")
        return self._split([OffsetRange(*tp, starts[tp], ends[tp]) for tp in sorted(starts)])

    # --- private methods ---

    def _existing_topics(self) -> dict[str, Topic]:
        topics = self._cluster.describe(self._options.subscription)
        if (error := missing(self._options.subscription, topics)) is not None:
            raise error
        return topics

    def _latest_of(self, topics: Mapping[str, Topic]) -> QueryOffsets:
        ends = self._cluster.offsets(dict.fromkeys(_partitions(topics), LATEST))
        return QueryOffsets(ends, _ids(topics))

    def _begin(self, start: QueryOffsets, latest: QueryOffsets) -> Offsets:
        """Return where the batch starts in each existing partition."""
        known_topics = {topic for topic, _ in start.offsets}
        absent = set(self._options.subscription.topics) - known_topics - latest.topics()
        if absent and self._options.fail_on_data_loss:
            raise unknown(sorted(absent))
        gone = sorted(known_topics - latest.topics())
        if gone:
            what = f"topic {gone[0]} was" if len(gone) == 1 else f"topics {', '.join(gone)} were"
            self._lost(
                f"{what} deleted, or the query does not subscribe to it any more{_OR_OTHER_BROKERS}"
            )
        unnumbered = sorted(
            tp for tp in start.offsets if tp[0] not in gone and tp not in latest.offsets
        )
        if unnumbered:
            self._lost(f"partitions {', '.join(map(_name, unnumbered))} were deleted")
        again = self._ensure_same(start, latest.topic_ids)
        known = {tp: o for tp, o in start.offsets.items() if tp in latest.offsets}
        known = {tp: o for tp, o in known.items() if tp[0] not in again}
        new = [tp for tp in latest.offsets if tp not in known]
        return known | self._cluster.offsets(dict.fromkeys(new, EARLIEST))

    def _ensure_same(self, read: QueryOffsets, ids: Mapping[str, str]) -> list[str]:
        """Return the topics that have another id than when the query read them."""
        known = {topic: each for topic, each in read.topic_ids.items() if each and ids.get(topic)}
        others = sorted(topic for topic, each in known.items() if each != ids[topic])
        if others:
            is_one = len(others) == 1
            what = f"topic {others[0]} is" if is_one else f"topics {', '.join(others)} are"
            which = "the topic" if is_one else "the topics"
            why = f"{'it was' if is_one else 'they were'} deleted and created again"
            # Ids are unique, so brokers that have one of the topics are the same brokers.
            if len(others) == len(known):
                why += _OR_OTHER_BROKERS
            self._lost(f"{what} not {which} that the checkpoint has read: {why}", OtherTopicError)
        return others

    def _first_offset(
        self, tp: TopicPartition, start: QueryOffsets, end: QueryOffsets, first: int
    ) -> int:
        """Return where the range of a partition starts: as planned, or after removed records."""
        planned = _planned(tp, start, end)
        if planned is None:
            is_same = not _differs(start.topic_ids.get(tp[0]), end.topic_ids.get(tp[0]))
            if is_same and tp[0] in start.topics() and first > 0:
                self._lost(f"new partition {_name(tp)} starts at offset {first} instead of 0")
            return first
        if planned < first:
            self._lost(
                f"{_name(tp)} starts at offset {first}, but the query is at offset {planned}: "
                f"{first - planned} offsets were removed before they were read"
            )
        return max(planned, first)

    def _split(self, ranges: list[OffsetRange]) -> list[OffsetRange]:
        return split_ranges(
            ranges,
            min_parts=self._options.min_partitions,
            max_size=self._options.max_records_per_partition,
        )

    def _resolve(self, position: Position, topics: Mapping[str, Topic], *, start: bool) -> Offsets:
        partitions = _partitions(topics)
        if position.kind in ("earliest", "latest"):
            which = EARLIEST if position.kind == "earliest" else LATEST
            return self._cluster.offsets(dict.fromkeys(partitions, which))
        if position.kind == "timestamp":
            return self._resolve_times(dict.fromkeys(partitions, position.at_ms), start=start)
        given = {(t, p): n for t, parts in position.by_partition.items() for p, n in parts.items()}
        if set(given) != set(partitions):
            absent = ", ".join(map(_name, sorted(set(partitions) - set(given))))
            extra = ", ".join(map(_name, sorted(set(given) - set(partitions))))
            what = "startingOffsets" if start else "endingOffsets"
            raise OptionError(
                f"{what} must name each partition"
                + (f"; {absent} is missing" if absent else "")
                + (f"; {extra} does not exist" if extra else ""),
                hint="The offset -2 means the earliest and -1 the latest.",
            )
        if position.kind == "timestamps":
            return self._resolve_times(given, start=start)
        return self._resolve_offsets(given)

    def _resolve_offsets(self, given: Mapping[TopicPartition, int]) -> Offsets:
        first = self._cluster.offsets(dict.fromkeys(given, EARLIEST))
        last = self._cluster.offsets(dict.fromkeys(given, LATEST))
        resolved: Offsets = {}
        for tp, offset in given.items():
            if offset < 0:
                resolved[tp] = first[tp] if offset == EARLIEST else last[tp]
                continue
            if not first[tp] <= offset <= last[tp]:
                self._lost(f"{_name(tp)} has offsets {first[tp]} to {last[tp]}, not {offset}")
            resolved[tp] = min(max(offset, first[tp]), last[tp])
        return resolved

    def _resolve_times(self, times: Mapping[TopicPartition, int], *, start: bool) -> Offsets:
        found = self._cluster.offsets_at(times)
        unmatched = [tp for tp, offset in found.items() if offset is None]
        if unmatched and start and not self._options.no_match_is_latest:
            tp = min(unmatched)
            raise OptionError(
                f"{_name(tp)} has no record at or after timestamp {times[tp]}",
                hint="Set startingOffsetsByTimestampStrategy to latest to start at its end.",
            )
        ends = self._cluster.offsets(dict.fromkeys(unmatched, LATEST))
        return {tp: ends[tp] if o is None else o for tp, o in found.items()}

    def _lost(self, message: str, error: type[DataLossError] = DataLossError) -> None:
        if self._options.fail_on_data_loss:
            raise error(message)
        log.warning("%s; continuing without them because failOnDataLoss is false", message)


def _planned(tp: TopicPartition, start: QueryOffsets, end: QueryOffsets) -> int | None:
    """Return where the batch starts in a partition; None if the partition is new in it."""
    if _differs(start.topic_ids.get(tp[0]), end.topic_ids.get(tp[0])):
        return None  # reported when the end was planned
    return start.offsets.get(tp)


def _partitions(topics: Mapping[str, Topic]) -> list[TopicPartition]:
    return [(name, p) for name, topic in topics.items() for p in topic.partitions]


def _ids(topics: Mapping[str, Topic]) -> dict[str, str]:
    return {name: topic.topic_id for name, topic in topics.items() if topic.topic_id}


def _differs(one: str | None, other: str | None) -> bool:
    """Whether two ids are known and differ."""
    return bool(one) and bool(other) and one != other


def _name(tp: TopicPartition) -> str:
    return f"{tp[0]}-{tp[1]}"
