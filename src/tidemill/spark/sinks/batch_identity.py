"""The identity of a batch: its number, and a fingerprint of what it reads.

Spark writes what a batch reads to ``offsets/<number>`` in its checkpoint before the batch runs, and
reads that file whenever it runs the batch again. So two batches of the same number are the same
batch only if that file is the same. A checkpoint that was restored from a backup plans its last
batches again, possibly with other records. The fingerprint shows the difference.

This module must not know: Spark, any one sink.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

from tidemill.spark.errors import SinkError
from tidemill.system import replace_file

_FINGERPRINT_LETTERS = 16
_LOCAL = re.compile(r"^file:(?://)?(?=/[^/])")


@dataclass(frozen=True, slots=True)
class BatchIdentity:
    """Identifies a batch of one checkpoint.

    Attributes:
        batch_id: Number of the batch.
        fingerprint: Equal for two batches of this number that read the same records.
    """

    batch_id: int
    fingerprint: str

    def to_json(self) -> dict[str, object]:
        """Return the identity in the form of the file ``begun.json``."""
        return {"batch_id": self.batch_id, "id": self.fingerprint}


def batch_identity(checkpoint: str | None, batch_id: int | None = None) -> BatchIdentity | None:
    """Read the identity of a planned batch from Spark's checkpoint.

    Args:
        checkpoint: Spark's checkpoint folder, as a path or with the prefix ``file:``.
        batch_id: Number of the batch; None for the last planned batch.

    Returns:
        The identity, or None if the folder can't be read, for example because it is in a file
        system that is not local.
    """
    if not checkpoint:
        return None
    offsets = Path(local_path(checkpoint)) / "offsets"
    try:
        if batch_id is None:
            batch_id = max(int(each.name) for each in offsets.iterdir() if each.name.isdecimal())
        content = (offsets / str(batch_id)).read_bytes()
    except (OSError, ValueError):
        return None
    return BatchIdentity(batch_id, hashlib.sha256(content).hexdigest()[:_FINGERPRINT_LETTERS])


class StartedBatch:
    """The identity of the batch that a sink started last, in a file beside the checkpoint.

    The sink records a batch before it writes any row of it. The file is backed up and restored
    together with the checkpoint.
    """

    def __init__(self, path: Path, checkpoint: str) -> None:
        self._path = path
        self._checkpoint = checkpoint

    def is_new(self, batch_id: int) -> bool:
        """Whether the sink never started this batch. False if that is not known."""
        identity = batch_identity(self._checkpoint, batch_id)
        try:
            recorded = json.loads(self._path.read_text())
        except (OSError, ValueError):
            return False
        return identity is not None and recorded != identity.to_json()

    def record(self, batch_id: int) -> None:
        """Write to the file that the sink starts this batch, and sync it to disk.

        Raises:
            SinkError: The file can't be written.
        """
        identity = batch_identity(self._checkpoint, batch_id)
        if identity is None:
            return
        try:
            replace_file(self._path, json.dumps(identity.to_json()))
        except OSError as error:
            raise SinkError(f"can't write {self._path}: {error.strerror}") from error


def local_path(address: str) -> str:
    """Return a path without the prefix ``file:``, which Spark also accepts.

    Args:
        address: A path, or an address like ``file:/x`` or ``file:///x``. An address of another
            file system, like ``s3a://bucket/x``, is returned unchanged.
    """
    return _LOCAL.sub("", address, count=1)
