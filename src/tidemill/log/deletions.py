"""Delete the files of segments that retention, DeleteRecords and compaction have removed.

The name of a segment that was removed from the log's start shows recovery that the segment was not
lost. So the name stays until the new start of the log is stored. If the disk is too full to store
it, the file is emptied: that frees its space, and the start can be stored then.

The folder of a partition that is deleted or set aside gets another name first.

Knows files; ``store`` decides when to delete, and ``partition.retention`` what.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace

from tidemill.log.disk.environment import Deletion, Environment
from tidemill.log.names import TopicPartition
from tidemill.log.partition.partition import PartitionLog

_RETRY_MS = 10_000


def is_covered(deletion: Deletion, stored_starts: Mapping[TopicPartition, int]) -> bool:
    """Return whether the log's start is stored, so that the file's name can disappear."""
    return deletion.start_offset <= stored_starts.get(deletion.tp, 0)


def due(env: Environment) -> list[Deletion]:
    """Return the deletions that are due."""
    now = env.clock.monotonic_ms()
    return [each for each in env.deletions if each.due_ms <= now]


def delete_due(
    env: Environment, stored_starts: Mapping[TopicPartition, int], max_items: int
) -> int:
    """Delete files that are due; return how many."""
    removed = 0
    for each in due(env)[:max_items]:
        exists = env.fs.exists(each.path)
        if exists and not is_covered(each, stored_starts):
            _empty(env, each.path)
            env.deletions.append(replace(each, due_ms=each.due_ms + _RETRY_MS))
        elif exists:
            env.fs.remove(each.path)
        env.deletions.remove(each)
        removed += 1
    return removed


def _empty(env: Environment, path: str) -> None:
    with closing(env.fs.open(path)) as raw:
        raw.truncate(0)


def rename_folder(env: Environment, log: PartitionLog | None, folder: str, target: str) -> None:
    """Close a partition and rename its folder. A sync on its way might not find its files."""
    if log is not None:
        log.close()
        log.chain.removed = True
    try:
        env.fs.rename(folder, target)
    except OSError:
        if log is not None:
            log.chain.removed = False
        raise
