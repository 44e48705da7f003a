"""Keeps the position of a query in the files of a Spark checkpoint.

The files are those that Spark writes for a query with one source: ``offsets/<batch>`` with the end
of a batch, before it runs, and ``commits/<batch>`` after it. So Spark can continue where this
program stopped, and the other way round. A batch starts where the batch before it ends. Must not
know: what is read, Spark's classes. Source: Spark's ``OffsetSeqLog`` and ``CommitLog``, version 1.
"""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from tidemill.spark.errors import PipelineError
from tidemill.system import replace_file

KEPT = 100
"""Batches whose files are kept, as by Spark."""

_VERSION = "v1"
_OFFSETS, _COMMITS, _METADATA = "offsets", "commits", "metadata"


@dataclass(frozen=True, slots=True)
class Batch:
    """A planned batch.

    Attributes:
        start: Where it starts, as JSON; None for the start of the query.
        end: Where it ends, as JSON.
        is_done: Whether it was committed.
    """

    number: int
    start: str | None
    end: str
    is_done: bool


class BatchLog:
    """The batches of one query. A file that can't be read or written raises ``PipelineError``.

    Args:
        folder: Spark's checkpoint folder. It is created if it is missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in (_OFFSETS, _COMMITS):
            try:
                (folder / name).mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise PipelineError(f"{folder} can't be written: {error.strerror}") from error
        self._query_id = self._identify()

    @property
    def query_id(self) -> str:
        """The id that Spark gives the query of this checkpoint."""
        return self._query_id

    def last(self) -> Batch | None:
        """Return the batch that was planned last, or None."""
        number = self._newest(_OFFSETS)
        if number < 0:
            return None
        start = self._end_of(number - 1) if number else None
        is_done = (self.folder / _COMMITS / str(number)).exists()
        return Batch(number, start, self._end_of(number), is_done)

    def plan(self, number: int, end: str) -> None:
        """Write that a batch ends at a position, before it runs."""
        metadata = {"batchWatermarkMs": 0, "batchTimestampMs": time.time_ns() // 1_000_000}
        text = json.dumps({**metadata, "conf": {}}, separators=(",", ":"))
        self._write(_OFFSETS, str(number), f"{_VERSION}\n{text}\n{end}")
        self._remove_old(number - KEPT)

    def commit(self, number: int) -> None:
        """Write that a batch is done."""
        self._write(_COMMITS, str(number), f'{_VERSION}\n{{"nextBatchWatermarkMs":0}}')

    def skip(self, number: int, end: str) -> None:
        """Write a batch that has no rows: only the position changes.

        After a crash between the two files the batch was never planned.
        """
        self.commit(number)
        self.plan(number, end)

    # --- files -----------------------------------------------------------------------------------

    def _identify(self) -> str:
        path = self.folder / _METADATA
        try:
            content = json.loads(path.read_text())
            return str(content["id"])
        except FileNotFoundError:
            made = str(uuid.uuid4())
            self._write("", _METADATA, json.dumps({"id": made}, separators=(",", ":")))
            return made
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise _unreadable(path, error) from error

    def _newest(self, kind: str) -> int:
        try:
            names = [each.name for each in (self.folder / kind).iterdir()]
        except OSError as error:
            raise _unreadable(self.folder / kind, error) from error
        return max((int(name) for name in names if name.isdecimal()), default=-1)

    def _end_of(self, number: int) -> str:
        path = self.folder / _OFFSETS / str(number)
        try:
            return _position(path.read_text())
        except (OSError, ValueError) as error:
            raise _unreadable(path, error) from error

    def _write(self, kind: str, name: str, text: str) -> None:
        folder = self.folder / kind
        path = folder / name
        try:
            # Hadoop would check the file against a checksum of what was there before.
            (folder / f".{name}.crc").unlink(missing_ok=True)
            replace_file(path, text)
        except OSError as error:
            raise PipelineError(f"{path} can't be written: {error.strerror}") from error

    def _remove_old(self, number: int) -> None:
        """Remove the files of a batch, if they are there. Spark removes what it finds later."""
        for kind in (_OFFSETS, _COMMITS):
            for name in (str(number), f".{number}.crc"):
                try:
                    (self.folder / kind / name).unlink(missing_ok=True)
                except OSError as error:
                    path = self.folder / kind / name
                    raise PipelineError(f"{path} can't be removed: {error.strerror}") from error


def _unreadable(path: Path, error: Exception) -> PipelineError:
    return PipelineError(
        f"{path} can't be read: {error}",
        hint="Restore the checkpoint from a backup, or reset the query.",
    )


def _position(text: str) -> str:
    """Return the position in a file of ``offsets``."""
    lines = text.splitlines()
    if len(lines) != 3 or lines[0] != _VERSION:
        raise ValueError(f"it is not a file of version {_VERSION} for one source")
    json.loads(lines[2])
    return lines[2]
