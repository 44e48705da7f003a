"""Where a query stands and what it reads next: the decisions of the source, without Spark.

A query's position is ``QueryOffsets``: the next offset of each partition, and the ids of the
topics, by which a topic that was deleted and made again is told from the old one. Must not know:
Spark, Kafka clients, Arrow.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tidemill.errors import DataLossError
from tidemill.spark.options import noted, refuse
from tidemill.spark.ranges import (
    OffsetRange,
    Offsets,
    TopicPartition,
    limit_offsets,
    split_ranges,
)
from tidemill.spark.source_options import EARLIEST, LATEST, TOPIC_IDS, Position, SourceOptions
from tidemill.spark.topics import Cluster, Topic, missing, unknown

log = logging.getLogger("tidemill.spark")


@dataclass(frozen=True, slots=True)
class QueryOffsets:
    """The next offset to read, per partition, and the topics' ids."""

    offsets: Offsets = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)

    def topics(self) -> set[str]:
        """Names of the topics."""
        return {topic for topic, _ in self.offsets}

    def to_json(self) -> dict[str, Any]:
        """As Spark's checkpoint holds it: the form of the ``startingOffsets`` option, and ids.

        Sorted: Spark compares offsets as text.
        """
        content: dict[str, Any] = {}
        if self.topic_ids:
            content[TOPIC_IDS] = dict(sorted(self.topic_ids.items()))
        for (topic, partition), offset in sorted(self.offsets.items()):
            content.setdefault(topic, {})[str(partition)] = offset
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> QueryOffsets:
        """The inverse of ``to_json``; a map without ids is fine."""
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
        options: of the source.
        cluster: where the topics are.
        default_start: what a query starts from where the option is not set.
    """

    def __init__(self, options: SourceOptions, cluster: Cluster, default_start: Position) -> None:
        self._options = options
        self._cluster = cluster
        self._starting = options.starting or default_start
        self._target: QueryOffsets | None = None
        self._newest: QueryOffsets | None = None

    def initial(self) -> QueryOffsets:
        """Where a new query starts.

        Raises:
            UnknownTopicOrPartitionError: a topic or partition that was named does not exist.
            OptionError: ``startingOffsets`` names other partitions than there are.
            DataLossError: a starting offset is outside the log (``failOnDataLoss``).
        """
        topics = self._existing_topics()
        return QueryOffsets(self._resolve(self._starting, topics, start=True), _ids(topics))

    def fix_target(self) -> None:
        """From now on nothing newer than now is planned (``Trigger.AvailableNow``)."""
        self._target = self._latest_of(self._cluster.describe(self._options.subscription))

    def newest(self) -> QueryOffsets | None:
        """The ends of the partitions when last looked at; for progress reports."""
        return self._newest

    def next_end(self, start: QueryOffsets, limit: int | None) -> QueryOffsets:
        """Where the batch that begins at ``start`` ends; equal to ``start`` if there is nothing.

        Args:
            limit: most offsets to take, about; None for all there are.

        Raises:
            DataLossError: a topic is gone or was made again, or a log has become shorter
                (``failOnDataLoss``).
            UnknownTopicOrPartitionError: a topic that was not read before does not exist.
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
                    f"{_name(tp)} ends at offset {ends[tp]}, but {offset} was read or is to be "
                    "read next: its log has become shorter"
                )
        if limit is not None:
            ends = limit_offsets(begin, ends, limit)
        return QueryOffsets(ends, latest.topic_ids)

    def ranges(self, start: QueryOffsets, end: QueryOffsets) -> list[OffsetRange]:
        """The tasks of the batch ``[start, end)``.

        Their numbers are a function of the two alone: whoever runs the batch again, and finds by
        number what is done, must find the same tasks, though records are gone meanwhile. So a range
        is cut as it was planned, and what is gone leaves parts that are shorter, or empty. Where
        nothing was planned, in a partition that is new, the range is one task.

        Raises:
            DataLossError: offsets of the batch are no longer in the log (``failOnDataLoss``).
        """
        if not end.offsets or start == end:
            return []
        topics = self._cluster.describe(self._options.subscription)
        wanted: list[TopicPartition] = []
        for tp in sorted(end.offsets):
            topic, partition = tp
            if topic not in topics or partition not in topics[topic].partitions:
                self._lost(f"{_name(tp)} was deleted before it was read")
            elif _differs(end.topic_ids.get(topic), topics[topic].topic_id):
                self._lost(f"topic {topic} was deleted and made again before it was read")
            else:
                wanted.append(tp)
        first = self._cluster.offsets(dict.fromkeys(wanted, EARLIEST))
        begin = {tp: self._first_offset(tp, start, end, first[tp]) for tp in wanted}
        planned = {tp: _planned(tp, start, end) for tp in end.offsets}
        whole = []
        for tp, last in sorted(end.offsets.items()):
            at = planned[tp]
            # What is new counts as one offset, which nothing can cut.
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
        """The tasks of a batch query: from its starting to its ending offsets.

        Raises:
            as ``initial``; OptionError: it would end before it starts.
        """
        topics = self._existing_topics()
        starts = self._resolve(self._starting, topics, start=True)
        ends = self._resolve(self._options.ending or Position("latest"), topics, start=False)
        for tp, first in starts.items():
            if first > ends[tp] and self._starting.kind == "offsets":
                raise refuse(f"{_name(tp)} would start at {first} and end at {ends[tp]}")
        return self._split([OffsetRange(*tp, starts[tp], ends[tp]) for tp in sorted(starts)])

    # --- inside ---

    def _existing_topics(self) -> dict[str, Topic]:
        topics = self._cluster.describe(self._options.subscription)
        if (error := missing(self._options.subscription, topics)) is not None:
            raise error
        return topics

    def _latest_of(self, topics: Mapping[str, Topic]) -> QueryOffsets:
        ends = self._cluster.offsets(dict.fromkeys(_partitions(topics), LATEST))
        return QueryOffsets(ends, _ids(topics))

    def _begin(self, start: QueryOffsets, latest: QueryOffsets) -> Offsets:
        """For each partition there is now, where the batch begins in it."""
        known_topics = {topic for topic, _ in start.offsets}
        absent = set(self._options.subscription.topics) - known_topics - latest.topics()
        if absent and self._options.fail_on_data_loss:
            raise unknown(sorted(absent))
        gone = sorted(known_topics - latest.topics())
        if gone:
            what = f"topic {gone[0]} is" if len(gone) == 1 else f"topics {', '.join(gone)} are"
            self._lost(f"{what} gone, or no longer subscribed to")
        unnumbered = sorted(
            tp for tp in start.offsets if tp[0] not in gone and tp not in latest.offsets
        )
        if unnumbered:
            self._lost(f"partitions {', '.join(map(_name, unnumbered))} are gone")
        again = sorted(
            topic
            for topic, topic_id in start.topic_ids.items()
            if _differs(topic_id, latest.topic_ids.get(topic))
        )
        if again:
            what = f"topic {again[0]} was" if len(again) == 1 else f"topics {', '.join(again)} were"
            self._lost(f"{what} deleted and made again")
        known = {tp: o for tp, o in start.offsets.items() if tp in latest.offsets}
        known = {tp: o for tp, o in known.items() if tp[0] not in again}
        new = [tp for tp in latest.offsets if tp not in known]
        return known | self._cluster.offsets(dict.fromkeys(new, EARLIEST))

    def _first_offset(
        self, tp: TopicPartition, start: QueryOffsets, end: QueryOffsets, first: int
    ) -> int:
        """Where a partition's range begins: as planned, or later if records are gone."""
        planned = _planned(tp, start, end)
        if planned is None:
            is_same = not _differs(start.topic_ids.get(tp[0]), end.topic_ids.get(tp[0]))
            if is_same and tp[0] in start.topics() and first > 0:
                self._lost(f"new partition {_name(tp)} starts at offset {first} instead of 0")
            return first
        if planned < first:
            self._lost(
                f"{_name(tp)} starts at offset {first}, but {planned} is to be read next: "
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
            raise refuse(
                f"{what} must name each partition"
                + (f"; without {absent}" if absent else "")
                + (f"; there is no {extra}" if extra else ""),
                "As an offset, -2 is the earliest and -1 the latest.",
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
                self._lost(f"{_name(tp)} holds offsets {first[tp]} to {last[tp]}, not {offset}")
            resolved[tp] = min(max(offset, first[tp]), last[tp])
        return resolved

    def _resolve_times(self, times: Mapping[TopicPartition, int], *, start: bool) -> Offsets:
        found = self._cluster.offsets_at(times)
        unmatched = [tp for tp, offset in found.items() if offset is None]
        if unmatched and start and not self._options.no_match_is_latest:
            tp = min(unmatched)
            raise refuse(
                f"{_name(tp)} has no record at or after timestamp {times[tp]}",
                "Set startingOffsetsByTimestampStrategy to latest to start at its end.",
            )
        ends = self._cluster.offsets(dict.fromkeys(unmatched, LATEST))
        return {tp: ends[tp] if o is None else o for tp, o in found.items()}

    def _lost(self, message: str) -> None:
        if self._options.fail_on_data_loss:
            raise noted(DataLossError(message))
        log.warning("%s; failOnDataLoss is false: going on without", message)


def _planned(tp: TopicPartition, start: QueryOffsets, end: QueryOffsets) -> int | None:
    """Where the batch begins in a partition; None where the partition is new in it."""
    if _differs(start.topic_ids.get(tp[0]), end.topic_ids.get(tp[0])):
        return None  # reported when the end was planned
    return start.offsets.get(tp)


def _partitions(topics: Mapping[str, Topic]) -> list[TopicPartition]:
    return [(name, p) for name, topic in topics.items() for p in topic.partitions]


def _ids(topics: Mapping[str, Topic]) -> dict[str, str]:
    return {name: topic.topic_id for name, topic in topics.items() if topic.topic_id}


def _differs(one: str | None, other: str | None) -> bool:
    """Whether two ids are known and not the same."""
    return bool(one) and bool(other) and one != other


def _name(tp: TopicPartition) -> str:
    return f"{tp[0]}-{tp[1]}"
