"""Which plan of a batch is run: a checkpoint that was put back plans its last batches anew.

Spark writes what a batch reads to ``offsets/<number>`` of its checkpoint before the batch runs, and
goes by that whenever it runs it again. So a batch is the same as another of its number only if the
file is. Must not know: Spark, sinks.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from tidemill.errors import SinkError

_LOCAL = re.compile(r"^file:(?://)?(?=/)")
_LETTERS = 16


@dataclass(frozen=True, slots=True)
class Plan:
    """What a batch reads.

    Attributes:
        batch_id: number of the batch.
        id: the same whenever this plan is run, another for any other plan.
    """

    batch_id: int
    id: str


def plan_of(checkpoint: str | None, batch_id: int | None = None) -> Plan | None:
    """The plan of a batch that is about to run.

    Args:
        checkpoint: Spark's folder, as a path or with ``file:``.
        batch_id: None for the last that is planned.

    Returns:
        None where it can't be read: the folder is in a file system of another kind.
    """
    if not checkpoint:
        return None
    offsets = Path(_LOCAL.sub("", checkpoint)) / "offsets"
    try:
        if batch_id is None:
            batch_id = max(int(each.name) for each in offsets.iterdir() if each.name.isdecimal())
        content = (offsets / str(batch_id)).read_bytes()
    except (OSError, ValueError):
        return None
    return Plan(batch_id, hashlib.sha256(content).hexdigest()[:_LETTERS])


class Begun:
    """The plan that a sink began to write last; on disk before any of it is written.

    Args:
        path: of its file, beside the checkpoint: whoever puts that back puts this back, too.
        checkpoint: Spark's folder.
    """

    def __init__(self, path: Path, checkpoint: str) -> None:
        self._path = path
        self._checkpoint = checkpoint

    def is_new(self, batch_id: int) -> bool:
        """Whether the batch that is about to run was never begun, as far as that is known."""
        plan = plan_of(self._checkpoint, batch_id)
        try:
            before = json.loads(self._path.read_text())
        except (OSError, ValueError):
            return False
        return plan is not None and before != asdict(plan)

    def keep(self, batch_id: int) -> None:
        """Remember that it is begun.

        Raises:
            SinkError: the file can't be written.
        """
        plan = plan_of(self._checkpoint, batch_id)
        if plan is None:
            return
        try:
            temporary = self._path.with_suffix(".tmp")
            with temporary.open("w") as file:
                json.dump(asdict(plan), file)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._path)
            _sync_folder(self._path.parent)
        except OSError as error:
            raise SinkError(f"{self._path} can't be written: {error.strerror}") from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
