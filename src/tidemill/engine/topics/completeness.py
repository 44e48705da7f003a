"""Check after an unclean stop that the catalog has lost no records.

The folders are the evidence: a partition with records had its topic in the catalog, and a note in a
folder says how far the catalog's synced records reached when it was written. A topic that was being
deleted leaves a record of that, so its remaining folders are not evidence. Changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from uuid import UUID

from tidemill.engine.errors import CatalogLostError
from tidemill.engine.internal_topics import CATALOG
from tidemill.engine.topics.folder_metadata import FolderMetadata, read_folder
from tidemill.log.names import LOG, TopicPartition, folder_name
from tidemill.log.recovery.recovery import MissingSegmentsError
from tidemill.log.store import LogStore
from tidemill.state.catalog.catalog import Catalog

NAMED_TOPICS = 10
"""Topics that an error names. It counts the others."""


def check_exists(store: LogStore) -> None:
    """Check that the catalog's folder exists if there are other topics.

    The catalog's folder is the first one. A crash soon after can leave empty folders of internal
    topics, whose notes were written before the catalog had a record.
    """
    path = f"{store.path}/{folder_name(CATALOG)}"
    damage = store.offline.get(CATALOG)
    if isinstance(damage, MissingSegmentsError) and store.is_alone(CATALOG):
        return  # the first start ended while it created the folder
    if damage is not None:
        raise CatalogLostError(f"the catalog of topics can't be read: {damage}") from damage
    if CATALOG in store.partitions:
        return
    lost: Counter[str] = Counter()
    for tp, found in _others(store):
        if _has_records(store, tp) or (found.note is not None and found.note.catalog_end > 0):
            lost[tp.topic] += 1
    if lost:
        raise CatalogLostError(f"the catalog of topics is missing: {path}. {_topics(lost)}")


def check_complete(
    store: LogStore,
    catalog: Catalog,
    catalog_end: int,
    cluster_id: UUID,
    deleted_names: Collection[str],
) -> None:
    """Check the catalog against the folders.

    Args:
        catalog_end: the end offset of the catalog.
        cluster_id: the topic id of the catalog. Folders of other brokers are not evidence.
        deleted_names: topics whose last record is their deletion.
    """
    lost: Counter[str] = Counter()
    expected_end = 0
    for tp, found in _others(store):
        if found.topic_id in catalog.deleted or _is_foreign(found, cluster_id):
            continue
        if found.note is not None:
            expected_end = max(expected_end, found.note.catalog_end)
        elif tp.topic in deleted_names:  # an older version wrote no note, and no topic id
            continue
        if not _is_owned(tp, catalog) and _has_records(store, tp):
            lost[tp.topic] += 1
    if not lost and expected_end <= catalog_end:
        return
    what = f"the catalog of topics ({store.path}/{folder_name(CATALOG)}) has lost records"
    if expected_end > catalog_end:
        what += f": it ends at offset {catalog_end}, and it had all offsets below {expected_end}"
    raise CatalogLostError(f"{what}. {_topics(lost)}".strip())


def _others(store: LogStore) -> Iterator[tuple[TopicPartition, FolderMetadata]]:
    """Yield all partitions but the catalog's, also damaged ones, with what their folders say."""
    for tp in {**store.partitions, **store.offline}:
        if tp != CATALOG:
            yield tp, read_folder(store, tp)


def _is_foreign(found: FolderMetadata, cluster_id: UUID) -> bool:
    return found.note is not None and cluster_id.int != 0 and found.note.cluster_id != cluster_id


def _is_owned(tp: TopicPartition, catalog: Catalog) -> bool:
    return tp.topic in catalog and tp.partition < catalog.topic(tp.topic).partitions


def _has_records(store: LogStore, tp: TopicPartition) -> bool:
    """Return whether the partition has or had records. Clients write to committed topics only."""
    log = store.partitions.get(tp)
    if log is not None:
        return log.log_end_offset > 0
    fs, folder = store.environment.fs, f"{store.path}/{folder_name(tp)}"
    if not fs.exists(folder):
        return False
    return any(size for name, size in fs.files(folder).items() if name.endswith(LOG))


def _topics(lost: Counter[str]) -> str:
    if not lost:
        return ""
    named = [f"{name} ({count})" for name, count in sorted(lost.items())[:NAMED_TOPICS]]
    more = f" and {len(lost) - NAMED_TOPICS} more" if len(lost) > NAMED_TOPICS else ""
    return f"Folders of these topics (partitions) are not in it: {', '.join(named)}{more}"
