"""Files that a crash left half done in a partition's folder: finished or dropped.

Removed segments (``.deleted``) and temporary files go; what a compaction left (``.cleaned``,
``.swap``) is ``swap``'s business.
"""

from __future__ import annotations

from tidemill.log.environment import Environment, Report
from tidemill.log.names import CLEANED, DELETED, SEGMENT_SUFFIXES, SNAPSHOT, SWAP, TopicPartition
from tidemill.log.swap import finish_swaps
from tidemill.log.syncing import METADATA

TEMPORARY = ".tmp"


def clear_leftovers(env: Environment, tp: TopicPartition, folder: str) -> dict[str, int]:
    """Finish or drop what was left; returns the folder's files with their sizes.

    Raises:
        OSError: the file system refuses.
        CorruptLogError: a cleaned segment that is to be swapped in is damaged.
    """
    names = env.fs.files(folder)
    if all(name.endswith((*SEGMENT_SUFFIXES, SNAPSHOT, METADATA)) for name in names):
        return names
    if any(name.endswith((CLEANED, SWAP)) for name in names):
        env.reports.extend(Report(tp, folder, done) for done in finish_swaps(env, folder))
    for name in names:
        if name.endswith((DELETED, TEMPORARY)):
            env.fs.remove(f"{folder}/{name}")
    env.fs.sync_dir(folder)
    return env.fs.files(folder)
