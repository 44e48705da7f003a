"""Decide what a lost or damaged catalog contained, from its readable records and notes in folders.

A record or note with a higher catalog offset is newer. Where nothing says a topic's configs, the
topic gets configs that delete nothing. Reads and writes no file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from tidemill.errors import TidemillError
from tidemill.log.disk.checkpoints import TopicNote
from tidemill.log.names import TopicPartition
from tidemill.state.catalog.format import (
    TOPIC,
    Topic,
    decode_key,
    encode_broker_config,
    encode_deletion,
    encode_producer_ids,
    encode_topic,
)
from tidemill.state.catalog.producer_ids import BLOCK_SIZE, ProducerIds
from tidemill.state.catalog.stored import StoredCatalog
from tidemill.state.internal_topics import CATALOG_TOPIC, is_internal
from tidemill.state.outcome import StateRecord

SKIPPED_PRODUCER_IDS = 1 << 40
"""Producer ids that stay unused behind the last known one. No broker gives out as many."""
PLAUSIBLE_PRODUCER_IDS = 1 << 56
"""A higher producer id in a log was not given out by a broker, but invented by a client."""
KEEP_EVERYTHING = {"cleanup.policy": "delete", "retention.bytes": "-1", "retention.ms": "-1"}
"""Configs of a topic whose configs are unknown."""


class StoredRecord(NamedTuple):
    """The last readable record of a key."""

    offset: int
    value: bytes | None


class FoundFolder(NamedTuple):
    """A partition's folder."""

    tp: TopicPartition
    topic_id: UUID | None
    note: TopicNote | None
    has_records: bool


class RebuiltTopic(NamedTuple):
    """A topic of the rebuilt catalog.

    Attributes:
        source: ``catalog``, ``note`` or ``folders``: what says its partitions and configs.
        missing: the partitions that have no folder.
    """

    topic: Topic
    source: str
    missing: tuple[int, ...]


@dataclass
class RebuiltCatalog:
    """A catalog that was rebuilt.

    Attributes:
        topics: sorted by name.
        broker_configs: the dynamic broker configs that are known.
        aside: folders that belong to no topic of the catalog, each with the reason.
        deleted: names by id of topics that were being deleted. The broker deletes their folders.
        unreadable: why records could not be read.
        next_producer_id: the first producer id that will be given out.
        others: records of kinds that only newer versions know.
    """

    topics: list[RebuiltTopic] = field(default_factory=list)
    broker_configs: dict[str, str] = field(default_factory=dict)
    aside: list[tuple[FoundFolder, str]] = field(default_factory=list)
    deleted: dict[UUID, str] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)
    next_producer_id: int = 0
    others: list[StateRecord] = field(default_factory=list)

    def records(self) -> list[StateRecord]:
        """Return the records of the catalog's log."""
        internal_first = sorted(self.topics, key=lambda each: not is_internal(each.topic.name))
        return [
            *(encode_topic(each.topic) for each in internal_first),
            *(encode_broker_config(*each) for each in sorted(self.broker_configs.items())),
            *(encode_deletion(topic_id, name) for topic_id, name in self.deleted.items()),
            encode_producer_ids(self.next_producer_id),
            *self.others,
        ]


def rebuild(
    latest: Mapping[bytes, StoredRecord],
    folders: Sequence[FoundFolder],
    *,
    cluster_id: UUID | None,
    used_producer_ids: Iterable[int],
    internal_configs: Mapping[str, str],
) -> RebuiltCatalog:
    """Return the catalog that fits the records and the folders best.

    Args:
        latest: the last readable record of each key in the catalog's log.
        folders: of all partitions but the catalog's.
        cluster_id: the topic id of the catalog, or None if it is unknown.
        used_producer_ids: ids that occur in logs.
        internal_configs: the configs of the broker's other internal topics.
    """
    return _Rebuilder(latest, cluster_id, internal_configs).run(folders, used_producer_ids)


class _Rebuilder:
    def __init__(
        self,
        latest: Mapping[bytes, StoredRecord],
        cluster_id: UUID | None,
        internal_configs: Mapping[str, str],
    ) -> None:
        self._cluster_id = cluster_id
        self._internal_configs = dict(internal_configs)
        self._stored = StoredCatalog()
        self._claims = ProducerIds()
        self._offsets: dict[str, int] = {}
        """The offset of each topic's last record, which can be its deletion."""
        self._names: dict[UUID, str] = {}
        self._result = RebuiltCatalog()
        for key, record in sorted(latest.items(), key=lambda each: each[1].offset):
            self._replay(key, record)

    def _replay(self, key: bytes, record: StoredRecord) -> None:
        try:
            kind, name = decode_key(key)
            known = self._stored.replay(key, record.value) or self._claims.replay(key, record.value)
        except TidemillError as error:
            self._result.unreadable.append(f"offset {record.offset}: {error}")
            return
        if kind == TOPIC:
            self._offsets[name] = record.offset
        elif not known:
            self._result.others.append(StateRecord(key, record.value))

    def run(
        self, folders: Sequence[FoundFolder], used_producer_ids: Iterable[int]
    ) -> RebuiltCatalog:
        result = self._result
        result.deleted = dict(self._stored.deleted)
        result.broker_configs = dict(self._stored.broker_configs)
        by_name: dict[str, list[FoundFolder]] = {name: [] for name in self._stored.topics}
        for folder in folders:
            if folder.tp.topic == CATALOG_TOPIC or folder.topic_id in result.deleted:
                continue
            if self._is_foreign(folder):
                result.aside.append((folder, "it belongs to another data folder"))
                continue
            by_name.setdefault(folder.tp.topic, []).append(folder)
        for name in sorted(by_name):
            self._topic(name, by_name[name])
        used = [self._claims.claimed - 1]
        used += [each.note.producer_ids - 1 for each in folders if each.note is not None]
        used += [each for each in used_producer_ids if each < PLAUSIBLE_PRODUCER_IDS]
        blocks = (max(used) + SKIPPED_PRODUCER_IDS) // BLOCK_SIZE + 1
        result.next_producer_id = blocks * BLOCK_SIZE
        return result

    def _is_foreign(self, folder: FoundFolder) -> bool:
        return (
            folder.note is not None
            and self._cluster_id is not None
            and folder.note.cluster_id != self._cluster_id
        )

    def _topic(self, name: str, folders: list[FoundFolder]) -> None:
        stored = self._stored.topics.get(name)
        topic_id = self._id_of(name, stored, folders)
        if topic_id is None or self._names.setdefault(topic_id, name) != name:
            other = None if topic_id is None else self._names[topic_id]
            why = f"its topic id is that of {other!r}" if other else "its topic was deleted"
            self._result.aside += [(each, why) for each in folders if each.has_records]
            return
        own = [each for each in folders if each.topic_id in (None, topic_id)]
        self._result.aside += [
            (each, f"it belongs to an earlier topic {name!r}")
            for each in folders
            if each not in own and each.has_records
        ]
        notes = [each.note for each in own if each.note is not None]
        note = max(notes, key=lambda each: each.catalog_end, default=None)
        is_stored = stored is not None and stored.topic_id == topic_id
        if note is not None and not (is_stored and note.catalog_end <= self._offsets[name]):
            topic, source = Topic(name, topic_id, note.partitions, note.configs), "note"
        elif stored is not None and is_stored:
            topic, source = stored, "catalog"
        else:
            configs = self._internal_configs if is_internal(name) else KEEP_EVERYTHING
            count = max(each.tp.partition for each in own) + 1
            topic, source = Topic(name, topic_id, count, configs), "folders"
        count = max(
            [topic.partitions, *(each.tp.partition + 1 for each in own if each.has_records)]
        )
        topic = Topic(name, topic_id, count, topic.configs)
        if topic == stored:
            source = "catalog"
        missing = sorted(set(range(count)) - {each.tp.partition for each in own})
        self._result.topics.append(RebuiltTopic(topic, source, tuple(missing)))

    def _id_of(self, name: str, stored: Topic | None, folders: list[FoundFolder]) -> UUID | None:
        """Return the id of the newest topic of this name; None if it was deleted."""
        last = self._offsets.get(name, -1)
        newest: dict[UUID, int] = {}
        for folder in folders:
            if folder.topic_id is not None:
                end = -1 if folder.note is None else folder.note.catalog_end
                newest[folder.topic_id] = max(end, newest.get(folder.topic_id, -1))
        best = max(newest, key=lambda each: newest[each], default=None)
        if best is not None and newest[best] > last:
            return best
        if stored is not None:
            # A folder of another topic without a note is as good as no folder, unless it is all
            # that there is.
            return best if best and stored.topic_id not in newest else stored.topic_id
        return best if name not in self._offsets else None
