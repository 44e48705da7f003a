"""Makes a data folder of a backup: copies it, recovers it, and ends what the backup has in part.

The engine opens the new folder without sockets: it verifies each batch. Open transactions are
aborted, because their producers do not know this broker. Committed offsets beyond the end of a log
are set to it, so that no group skips records that are written later.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.cli.backup.contents import FILE, BackupError, Contents, read
from tidemill.errors import TidemillError

if TYPE_CHECKING:
    from tidemill.engine.engine import Engine

ABORT_TIMEOUT_MS = 60_000
"""The timeout of the producer that aborts a transaction: any will do."""

Progress = Callable[[str], None]


@dataclass(slots=True)
class Restored:
    """The result of a restore.

    Attributes:
        clipped: group, partition, committed offset, and the offset that it has now.
        beyond: the same, where the offset could not be set: the group had members.
        aborted: transactional ids whose transaction was open.
        left_out: partitions of topics that were created or deleted while the backup was made.
        offline: partitions that are damaged.
        shorter: partitions that end before the backup says, with both offsets.
    """

    contents: Contents
    clipped: list[tuple[str, str, int, int]] = field(default_factory=list)
    beyond: list[tuple[str, str, int, int]] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    offline: list[str] = field(default_factory=list)
    shorter: list[tuple[str, int, int]] = field(default_factory=list)


def restore(backup: Path, data_dir: Path, progress: Progress = lambda _: None) -> Restored:
    """Make a data folder of a backup folder, which stays as it is.

    Raises:
        BackupError: it is not a backup, or the data folder is there and not empty.
        TidemillError: the engine can't open it.
        OSError: a file can't be read or written.
    """
    contents = read(backup)
    if data_dir.exists() and (not data_dir.is_dir() or any(data_dir.iterdir())):
        raise BackupError(
            f"{data_dir} exists, and is not empty",
            hint="Restore into a new folder. Nothing was changed.",
        )
    made = data_dir.with_name(f".{data_dir.name}.restoring")
    shutil.rmtree(made, ignore_errors=True)  # of a restore that was interrupted
    made.mkdir(parents=True, mode=0o700)
    for path in sorted(backup.iterdir()):
        if path.is_dir():
            progress(path.name)
            shutil.copytree(path, made / path.name)  # never a link: the broker appends to files
        elif path.name != FILE:
            shutil.copyfile(path, made / path.name)
    progress("recovery")
    restored = asyncio.run(_complete(made, contents))
    os.sync()  # also the segments that were copied and that recovery did not change
    if data_dir.exists():
        data_dir.rmdir()
    made.rename(data_dir)
    return restored


async def _complete(folder: Path, contents: Contents) -> Restored:
    """Recover a folder, end its open transactions, and clip its committed offsets."""
    from tidemill.engine.authorize import AllowAll
    from tidemill.engine.engine import Engine
    from tidemill.settings import Settings

    restored = Restored(contents)
    engine = Engine(Settings(data_dir=folder), authorizer=AllowAll())
    await engine.start()
    try:
        await _delete_unfinished(engine, restored)
        await _abort_open(engine, restored)
        await _clip(engine, restored)
        await _compare(engine, restored)
    finally:
        await engine.stop()
    return restored


async def _delete_unfinished(engine: Engine, restored: Restored) -> None:
    """Delete topics without any folder: they came and went while the backup was made."""
    copied = {name.rpartition("-")[0] for name in restored.contents.partitions}
    for topic in engine.topics.all():
        if topic.name not in copied:
            (error,) = await engine.topics.delete([topic.name])
            if error is not None:
                raise error
            restored.left_out += [f"{topic.name}-{each}" for each in range(topic.partitions)]


async def _abort_open(engine: Engine, restored: Restored) -> None:
    from tidemill.engine.api import InitProducer
    from tidemill.state.transactions.types import TransactionState

    for each in engine.transactions.listings(states=[TransactionState.ONGOING]):
        await engine.transactions.init(InitProducer(each.transactional_id, ABORT_TIMEOUT_MS))
        restored.aborted.append(each.transactional_id)


async def _clip(engine: Engine, restored: Restored) -> None:
    from tidemill.engine.api import CommitRequest, CommittedOffset, OffsetToCommit

    for group in [each.group_id for each in engine.groups.listings()]:
        for (topic, partition), found in engine.groups.committed(group, None).items():
            end = await _end(engine, topic, partition)
            if not isinstance(found, CommittedOffset) or end is None or found.offset <= end:
                continue
            moved = OffsetToCommit(topic, partition, end, metadata=found.metadata)
            request = CommitRequest(group, -1, "", None, (moved,))
            (error,) = await engine.groups.commit(request)
            known = restored.clipped if error is None else restored.beyond
            known.append((group, f"{topic}-{partition}", found.offset, end))


async def _end(engine: Engine, topic: str, partition: int) -> int | None:
    """Return the end of a partition; None if it is not there, is damaged, or is the broker's."""
    from tidemill.engine.api import Position

    try:
        found = await engine.records.find_offset(topic, partition, Position.LATEST)
    except TidemillError:
        return None
    return None if found is None else found.offset


async def _compare(engine: Engine, restored: Restored) -> None:
    """Find partitions that lack records which the backup says it has."""
    known = {topic.name for topic in engine.topics.all()}
    for name, expected in restored.contents.partitions.items():
        topic, _, number = name.rpartition("-")
        if topic.startswith("__"):
            continue  # the engine does not start without them
        end = await _end(engine, topic, int(number))
        if topic not in known:
            restored.left_out.append(name)
        elif end is None:
            restored.offline.append(name)
        elif end < expected.end:
            restored.shorter.append((name, end, expected.end))
