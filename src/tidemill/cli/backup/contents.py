"""The description in a backup: when it was made, and where each partition ends.

Must not know how it is made.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tidemill.errors import TidemillError

FILE = "backup.json"
VERSION = 1


class BackupError(TidemillError):
    """A backup can't be made or used."""


@dataclass(frozen=True, slots=True)
class CopiedPartition:
    """A partition in a backup.

    Attributes:
        end: the offset behind its last record.
        size: bytes of its segments.
    """

    start: int
    end: int
    size: int


@dataclass(frozen=True, slots=True)
class Contents:
    """The content of a backup.

    Attributes:
        began_ms, ended_ms: when it was made, in milliseconds since the epoch. What was acknowledged
            before it began is in it, and what was acknowledged later can be missing.
        linked, reused: bytes of segments that are links to the data folder's files, or that the
            backup before has, too.
    """

    began_ms: int
    ended_ms: int
    tidemill: str
    linked: int = 0
    reused: int = 0
    partitions: Mapping[str, CopiedPartition] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(each.size for each in self.partitions.values())

    def encode(self) -> str:
        """Return the file."""
        return json.dumps({"version": VERSION, **asdict(self)}, indent=1) + "\n"


def read(folder: Path) -> Contents:
    """Return what is in a backup.

    Raises:
        BackupError: the folder is not a backup, or is not complete.
    """
    path = folder / FILE
    try:
        found = json.loads(path.read_text())
        version = found.pop("version")
        partitions = {
            name: CopiedPartition(**each) for name, each in found.pop("partitions").items()
        }
        contents = Contents(**found, partitions=partitions)
    except FileNotFoundError:
        raise BackupError(
            f"{folder} is not a backup: it has no {FILE}",
            hint="Name a folder or an archive that 'tidemill backup' has made.",
        ) from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise BackupError(f"{path} is damaged: {error}") from error
    if version != VERSION:
        raise BackupError(f"{folder} has version {version!r}, this tidemill supports {VERSION}")
    return contents
