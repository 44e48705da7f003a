"""Repair one damaged place of a partition that no broker uses.

What can't be read is given up; all other records stay, with their offsets. An empty batch, as
compaction leaves it, takes the offsets of the lost records, so that none of them gets a second
record. The damaged bytes are kept in a folder beside, which is never deleted. Indexes and the state
of producers behind the place are built again by the recovery at the next start.

A crash at any point leaves a partition that is damaged at the same offset, or repaired. ``survey``
finds the damaged places. The caller holds the data folder's lock.
"""

from __future__ import annotations

import itertools
from contextlib import closing, suppress
from uuid import UUID, uuid4

import orjson

from tidemill.clock import SystemClock
from tidemill.log.disk.checkpoints import (
    FIRST_DIRTY,
    LOG_STARTS,
    MANIFEST,
    RECOVERY_POINTS,
    Checkpoint,
    decode_checkpoint,
    encode_checkpoint,
    encode_metadata,
)
from tidemill.log.disk.environment import Environment
from tidemill.log.disk.files import FileSystem, storage_errors, write_fully
from tidemill.log.disk.index import MapCache
from tidemill.log.disk.log_file import HandlePool
from tidemill.log.errors import JournalDamagedError, StorageError
from tidemill.log.format.batch import Buffer, empty_batch
from tidemill.log.journal.reading import disown, read_journal
from tidemill.log.journal.restoring import lacking
from tidemill.log.names import (
    CUT_SUFFIX,
    INDEX,
    LOG,
    SNAPSHOT,
    TIME_INDEX,
    TopicPartition,
    file_name,
    folder_name,
    offsets_of,
)
from tidemill.log.partition.snapshots import snapshot_path
from tidemill.log.partition.sync import METADATA
from tidemill.log.recovery.inspect import topic_id_of
from tidemill.log.recovery.survey import Damage, Survey, survey

COPY_BYTES = 1 << 20
LARGEST_GAP = 1 << 30
"""Most offsets that one repair gives up. A larger gap comes from a damaged checkpoint."""


class PartitionRepair:
    """Repairs of one partition.

    Raises:
        StorageError: a file can't be read.
    """

    def __init__(self, fs: FileSystem, data_dir: str, tp: TopicPartition) -> None:
        self._fs = fs
        self._data_dir = data_dir
        self._tp = tp
        self._folder = f"{data_dir}/{folder_name(tp)}"

    def survey(self) -> Survey:
        """Find all damaged places; change nothing.

        Raises:
            StorageError: a file can't be read, or the journal has records that the log lacks.
        """
        with storage_errors("reading", self._folder):
            self._check_journal()
            return survey(
                self._fs,
                self._folder,
                log_start=self._proven_start(),
                recovery_point=self._checkpoint(RECOVERY_POINTS).offsets.get(self._tp, 0),
                dense=not self._is_sparse(),
            )

    def _check_journal(self) -> None:
        """Refuse to look for damage before the broker has restored what the journal has."""
        fs, path = self._fs, self._data_dir
        if fs.exists(f"{path}/{MANIFEST}") or not fs.exists(self._folder):
            return
        env = Environment(fs, HandlePool(fs, 4), MapCache(fs), SystemClock())
        journal = read_journal(env, path)
        if journal.unproven:
            raise JournalDamagedError(
                f"the journal is damaged: {'; '.join(journal.unproven)}",
                hint="Repair it before its partitions: tidemill doctor --repair journal",
            )
        proof = journal.proof(self._tp, topic_id_of(fs, self._folder))
        if lacking(
            fs,
            self._folder,
            fs.files(self._folder),
            proof,
            recovery_point=self._checkpoint(RECOVERY_POINTS).offsets.get(self._tp, 0),
            is_sparse=self._is_sparse(),
        ):
            raise StorageError(
                f"the journal has records of {self._tp} that the log lacks",
                hint="Start the broker: it restores them. Then repair what is still damaged.",
            )

    def _is_sparse(self) -> bool:
        """Return whether compaction has perhaps removed batches, as a start would decide."""
        found = self._checkpoint(FIRST_DIRTY)
        return self._tp in found.offsets or not found.is_checked

    def _proven_start(self) -> int | None:
        """Return the stored start of the log; None if the first segments are the only evidence."""
        starts = self._checkpoint(LOG_STARTS)
        start = starts.offsets.get(self._tp, 0)
        return start if starts.is_checked and start >= 0 else None

    def _checkpoint(self, name: str) -> Checkpoint:
        path = f"{self._data_dir}/{name}"
        if self._fs.exists(path):
            with suppress(ValueError):  # recovery ignores the file, too, and reports it
                return decode_checkpoint(name, self._fs.read_bytes(path))
        return Checkpoint({}, is_checked=False)

    def apply(self, found: Survey, damage: Damage, topic_id: UUID | None = None) -> str:
        """Repair one damaged place; return the folder that keeps the damaged bytes.

        Args:
            topic_id: the id of the topic, to create a folder that is missing.

        Raises:
            StorageError: a file operation failed. The repair can be started again.
        """
        if damage.base >= 0 and damage.resume - damage.offset > LARGEST_GAP:
            raise StorageError(
                f"{self._tp}: {damage.resume - damage.offset} offsets would be lost, so the file "
                f"{RECOVERY_POINTS} is damaged rather than the log",
                hint="Restore that file from a backup, or remove it.",
            )
        with storage_errors("repairing", self._folder):
            if topic_id is not None and not self._fs.exists(self._folder):
                self._fs.mkdir(self._folder)
                path = f"{self._folder}/{METADATA}"
                self._fs.write_atomic(path, encode_metadata(topic_id, self._tp.partition))
            return self._apply(found, damage)

    def _apply(self, found: Survey, damage: Damage) -> str:
        fs = self._fs
        if fs.exists(f"{self._data_dir}/{MANIFEST}"):
            fs.remove(f"{self._data_dir}/{MANIFEST}")  # it describes the files as they were
            fs.sync_dir(self._data_dir)
        disown(fs, self._data_dir, self._tp)
        aside = f"{self._data_dir}/{folder_name(self._tp)[:200]}.{uuid4().hex}{CUT_SUFFIX}"
        fs.mkdir(aside)
        self._describe(aside, damage)
        self._set_back(aside, damage.offset)
        if damage.base >= 0:
            self._replace(aside, found, damage)
        else:
            self._move_start(found, damage)
        fs.sync_dir(self._folder)
        fs.sync_dir(aside)
        fs.sync_dir(self._data_dir)
        return aside

    def _describe(self, aside: str, damage: Damage) -> None:
        fields = {"partition": str(self._tp), **damage._asdict()}
        data = orjson.dumps(fields, option=orjson.OPT_INDENT_2)
        self._fs.write_atomic(f"{aside}/damage.json", data)

    # --- checkpoints and snapshots ---------------------------------------------------------------

    def _set_back(self, aside: str, offset: int) -> None:
        """Take away what describes records behind the place: recovery builds it again."""
        fs = self._fs
        for each in offsets_of(fs.files(self._folder), SNAPSHOT):
            if each > offset:
                path = snapshot_path(self._folder, each)
                fs.rename(path, f"{aside}/{file_name(each, SNAPSHOT)}")
        if self._checkpoint(FIRST_DIRTY).offsets.get(self._tp, 0) > offset:
            self._store(FIRST_DIRTY, offset)

    def _store(self, name: str, offset: int) -> None:
        offsets = {**self._checkpoint(name).offsets, self._tp: offset}
        self._fs.write_atomic(f"{self._data_dir}/{name}", encode_checkpoint(name, offsets))

    # --- segments --------------------------------------------------------------------------------

    def _move_start(self, found: Survey, damage: Damage) -> None:
        """Let the log begin behind the missing segments."""
        if not found.bases:
            self._fs.write_atomic(f"{self._folder}/{file_name(damage.resume, LOG)}", b"")
        if self._proven_start() is not None:
            self._store(LOG_STARTS, damage.resume)

    def _replace(self, aside: str, found: Survey, damage: Damage) -> None:
        """Put an empty batch in the place of the damaged bytes.

        The batches behind it get a segment of their own. No file is changed in place: it can be a
        hard link, and a backup has the other one.
        """
        fs, path = self._fs, found.path(damage.base)
        size = fs.files(self._folder)[file_name(damage.base, LOG)]
        if damage.end > damage.position:
            name = f"{file_name(damage.offset, LOG)}.{damage.position}-{damage.end}"
            self._copy(path, f"{aside}/{name}", [(damage.position, damage.end)])
            fs.sync_dir(aside)
        for suffix in (INDEX, TIME_INDEX):
            index = f"{self._folder}/{file_name(damage.base, suffix)}"
            if fs.exists(index):
                fs.remove(index)
        if damage.resume == damage.offset:  # foreign bytes between two batches
            self._copy(path, f"{path}.tmp", [(0, damage.position), (damage.end, size)])
            fs.rename(f"{path}.tmp", path)
            return
        if damage.end < size:
            rest = f"{self._folder}/{file_name(damage.resume, LOG)}"
            self._copy(path, f"{rest}.tmp", [(damage.end, size)])
            fs.rename(f"{rest}.tmp", rest)
            fs.sync_dir(self._folder)
        lost = empty_batch(damage.offset, damage.resume - damage.offset, damage.before_ms)
        self._copy(path, f"{path}.tmp", [(0, damage.position)], lost)
        fs.rename(f"{path}.tmp", path)

    def _copy(
        self, source: str, target: str, ranges: list[tuple[int, int]], tail: Buffer = b""
    ) -> None:
        """Copy ranges of bytes into a new file, and more bytes behind them, durably."""
        fs = self._fs
        with closing(fs.open(source)) as old, closing(fs.open(target, create=True)) as new:
            new.truncate(0)
            written = 0
            pieces = (
                old.pread(min(COPY_BYTES, end - at), at)
                for start, end in ranges
                for at in range(start, end, COPY_BYTES)
            )
            for data in itertools.chain(pieces, [tail] if tail else ()):
                written += write_fully(new, (data,), written)
            new.datasync()
