"""Read a whole data folder and list all damage in it. Changes nothing.

It finds what a start, a recovery or the first read of a batch finds: damaged and missing batches,
wrong base offsets, gaps between segments, missing segments, and indexes that do not match. Knows
the files only; no broker must use the folder meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

from tidemill.clock import SystemClock
from tidemill.log.disk.aborted_index import decode_aborted
from tidemill.log.disk.checkpoints import (
    MANIFEST,
    ManifestEntry,
    decode_manifest,
    decode_metadata,
    decode_partition,
)
from tidemill.log.disk.environment import Environment
from tidemill.log.disk.files import FileSystem
from tidemill.log.disk.index import OFFSET_ENTRY, TIME_ENTRY, MapCache, offset_entries, time_entries
from tidemill.log.disk.log_file import HandlePool, LogFile
from tidemill.log.disk.scan import BatchScanner, find_batch
from tidemill.log.errors import CorruptLogError
from tidemill.log.journal.reading import JournalContent, Proof, read_journal
from tidemill.log.journal.restoring import lacking
from tidemill.log.names import (
    INDEX,
    LOG,
    TIME_INDEX,
    TXN_INDEX,
    TopicPartition,
    file_name,
    folder_name,
    offsets_of,
    parse_folder_name,
)
from tidemill.log.offset_checkpoints import OffsetCheckpoints
from tidemill.log.partition.sync import METADATA
from tidemill.log.recovery.recovery import StoredLog, check_first_segment, stored_log

OFFLINE_HINT = (
    "The partition will be offline: restore the file from a backup, or see "
    "'tidemill doctor --repair'."
)
JOURNAL_HINT = (
    "The broker does not start. Restore the files of the journal from a copy of the disk, or see "
    "'tidemill doctor --repair journal'."
)
CUT_HINT = (
    "The broker cuts the log there when it starts: the journal proves that nothing from there on "
    "was acknowledged."
)


class Damage(NamedTuple):
    """One damaged place.

    Attributes:
        is_repaired: whether the next start repairs it without a loss of acknowledged records.
    """

    text: str
    hint: str
    is_repaired: bool


@dataclass(frozen=True, slots=True)
class _Batches:
    """The batches of a segment, to compare indexes with.

    Attributes:
        positions: relative last offset and position of each batch.
        times: relative last offset of each batch, and its latest timestamp.
    """

    positions: set[tuple[int, int]]
    times: dict[int, int]


@dataclass(frozen=True, slots=True)
class _Kept:
    """The part of a partition that the next start must keep.

    Attributes:
        point: everything below it was synced or promised.
        is_all: the journal proves that nothing else was promised.
    """

    point: int
    is_all: bool

    def nothing_from(self, offset: int) -> bool:
        """Return whether nothing from an offset on must be kept."""
        return self.is_all and offset >= self.point


def _kept(recovery_point: int, proof: Proof | None) -> _Kept:
    if proof is None:
        return _Kept(recovery_point, is_all=False)
    return _Kept(max(recovery_point, proof.end_offset), proof.is_complete)


class Inspection:
    """One inspection of a data folder.

    Attributes:
        batches: undamaged batches so far.
        size: bytes of all segments so far.
    """

    def __init__(self, fs: FileSystem, data_dir: str) -> None:
        self.batches = 0
        self.size = 0
        self._fs = fs
        self._data_dir = data_dir
        self._env = Environment(fs, HandlePool(fs, 64), MapCache(fs), SystemClock())
        self._journal = JournalContent()

    def run(self) -> Iterator[Damage]:
        """Yield each damaged place.

        Raises:
            OSError, StorageError: a file can't be read.
        """
        names = self._fs.folders(self._data_dir)
        parsed = ((name, parse_folder_name(name)) for name in names)
        found = sorted(tp for name, tp in parsed if tp is not None and folder_name(tp) == name)
        manifest, damage = self._manifest()
        if damage is not None:
            yield damage
        checkpoints = OffsetCheckpoints(self._env, self._data_dir)
        checkpoints.load(found)
        if not manifest:
            self._journal = read_journal(self._env, self._data_dir)
        for text in self._journal.unproven:
            yield Damage(f"the journal is damaged: {text}", JOURNAL_HINT, is_repaired=False)
        for report in self._env.reports:
            yield Damage(f"{report.path}: {report.what}", "", is_repaired=True)
        for tp in found:
            entry = manifest.get(tp)
            point = max(
                checkpoints.recovery_points.get(tp, 0), 0 if entry is None else entry.log_end_offset
            )
            yield from self._partition(tp, stored_log(checkpoints, tp, entry), point)
        for tp in sorted(set(manifest) - set(found)):
            text = f"{self._data_dir}/{folder_name(tp)} is missing, but the last stop has listed it"
            yield Damage(text, "Restore the folder, or delete the topic.", is_repaired=False)

    def _manifest(self) -> tuple[Mapping[TopicPartition, ManifestEntry], Damage | None]:
        path = f"{self._data_dir}/{MANIFEST}"
        if not self._fs.exists(path):
            return {}, None
        try:
            return decode_manifest(self._fs.read_bytes(path)), None
        except (ValueError, KeyError, TypeError) as error:
            hint = "The next start drops it and reads all logs."
            return {}, Damage(f"{path}: {error}", hint, is_repaired=True)

    # --- one partition ---------------------------------------------------------------------------

    def _partition(self, tp: TopicPartition, stored: StoredLog, point: int) -> Iterator[Damage]:
        folder = f"{self._data_dir}/{folder_name(tp)}"
        names = self._fs.files(folder)
        for damage in self._metadata(folder, names):
            yield damage
            if not damage.is_repaired:
                return  # the folder of another partition
        bases = offsets_of(names, LOG)
        if not bases:
            yield Damage(f"{folder} has no segments", OFFLINE_HINT, is_repaired=False)
            return
        try:
            check_first_segment(folder, bases[0], names, stored)
        except CorruptLogError as error:
            yield Damage(str(error), OFFLINE_HINT, is_repaired=False)
        proof = self._journal.proof(tp, topic_id_of(self._fs, folder))
        restored = lacking(
            self._fs, folder, names, proof, recovery_point=point, is_sparse=stored.is_sparse
        )
        if restored is None:
            text = f"{folder}: a version of tidemill without the journal wrote other records there"
            hint = "The next start puts those of the journal aside, and names the file."
            yield Damage(text, hint, is_repaired=True)
            proof, restored = None, []
        if restored:
            offsets = f"{restored[0].first_offset} to {restored[-1].end_offset - 1}"
            text = f"{folder}: the journal has offsets {offsets}, which the log lacks"
            hint = "The broker restores them when it starts. Verify the partition again after that."
            yield Damage(text, hint, is_repaired=True)
        changing = {piece.segment for piece in restored}
        end = bases[0]
        kept = _kept(point, proof)
        for base, following in zip_longest(bases, bases[1:]):
            path = f"{folder}/{file_name(base, LOG)}"
            if base in changing:
                end = base if following is None else following
                last = restored[-1]
                is_end = last.position + last.size >= names[file_name(base, LOG)]
                if following is None and is_end and last.end_offset < kept.point:
                    text = f"{path}: offsets {last.end_offset} to {kept.point - 1} are missing"
                    yield Damage(text, OFFLINE_HINT, is_repaired=False)
                continue
            if base < end:
                text = f"{path}: starts at offset {base}, but the one before ends at {end - 1}"
                yield Damage(text, OFFLINE_HINT, is_repaired=False)
                return
            found, end = self._segment(path, base, names, following, kept, stored)
            yield from found

    def _metadata(self, folder: str, names: Mapping[str, int]) -> Iterator[Damage]:
        path = f"{folder}/{METADATA}"
        if METADATA not in names:
            yield Damage(f"{path} is missing: the topic's id is unknown", "", is_repaired=True)
            return
        data = self._fs.read_bytes(path)
        try:
            decode_metadata(data)
            partition = decode_partition(data)
        except ValueError as error:
            yield Damage(f"{path}: {error}", "", is_repaired=True)
            return
        if partition is not None and not folder.endswith(f"-{partition}"):
            text = f"{folder} has the records of partition {partition} of its topic"
            hint = "The partition will be offline. Give each folder its own name."
            yield Damage(text, hint, is_repaired=False)

    def _segment(
        self,
        path: str,
        base: int,
        names: Mapping[str, int],
        following: int | None,
        kept: _Kept,
        stored: StoredLog,
    ) -> tuple[list[Damage], int]:
        """Read one segment; return its damages, and the offset where the next one must begin."""
        size = names[file_name(base, LOG)]
        file = LogFile(self._env.pool, path, size)
        dense = not stored.is_sparse
        scanner = BatchScanner(file, 0, size, base, limit=following, dense=dense)
        known = _Batches(set(), {})
        for position, header in scanner:
            relative = header.last_offset - base
            known.positions.add((relative, position))
            known.times[relative] = header.max_timestamp
        self.batches += len(known.positions)
        self.size += size
        end = scanner.next_offset
        if scanner.damage is not None:
            damage = self._damage(file, scanner, size, kept, is_last=following is None)
            file.close()
            return [damage], end if following is None else following
        file.close()
        if following is not None and end != following:
            text = f"{path}: ends at offset {end - 1}, but the next segment begins at {following}"
            if kept.nothing_from(end):
                return [Damage(text, CUT_HINT, is_repaired=True)], following
            return [Damage(text, OFFLINE_HINT, is_repaired=False)], following
        if following is None and end < kept.point:
            text = f"{path}: ends at offset {end - 1}, but {kept.point - 1} was acknowledged"
            return [Damage(text, OFFLINE_HINT, is_repaired=False)], end
        return list(self._indexes(path.removesuffix(LOG), names, known, dense=dense)), end

    @staticmethod
    def _damage(
        file: LogFile, scanner: BatchScanner, size: int, kept: _Kept, *, is_last: bool
    ) -> Damage:
        where = f"{file.path}: byte {scanner.position}, offset {scanner.next_offset}"
        behind = find_batch(file, scanner.position + 1, size, scanner.next_offset)
        is_tail = is_last and behind is None and not scanner.misplaced
        if is_tail and scanner.next_offset >= kept.point:
            text = f"{where}: {size - scanner.position} bytes of an unfinished write"
            return Damage(text, "The broker removes it when it starts.", is_repaired=True)
        has_lost_end = is_last or behind is None
        if has_lost_end and kept.nothing_from(scanner.next_offset) and not scanner.misplaced:
            return Damage(f"{where}: {scanner.damage}", CUT_HINT, is_repaired=True)
        hint = OFFLINE_HINT
        if behind is not None:
            hint += f" The next valid batch is at byte {behind[0]}, offset {behind[1].base_offset}."
        return Damage(f"{where}: {scanner.damage}", hint, is_repaired=False)

    # --- indexes ---------------------------------------------------------------------------------

    def _indexes(
        self, stem: str, names: Mapping[str, int], known: _Batches, *, dense: bool
    ) -> Iterator[Damage]:
        hint = "The broker creates it again when it uses it."
        for suffix in (INDEX, TIME_INDEX, TXN_INDEX):
            path = stem + suffix
            if path.rpartition("/")[2] not in names:
                continue  # of the active segment, or of a segment without aborted transactions
            data = self._fs.read_bytes(path)
            if suffix == INDEX:
                fits = len(data) % OFFSET_ENTRY == 0 and known.positions.issuperset(
                    offset_entries(data)
                )
            elif suffix == TIME_INDEX:
                fits = len(data) % TIME_ENTRY == 0 and all(
                    _time_fits(known.times.get(relative), timestamp, dense=dense)
                    for timestamp, relative in time_entries(data)
                )
            else:
                fits = _aborted_fit(data)
            if not fits:
                yield Damage(f"{path} does not match the log", hint, is_repaired=True)


def journal_damage(fs: FileSystem, data_dir: str) -> list[str]:
    """Return why a start refuses the journal of a folder, with the places; see ``read_journal``.

    Raises:
        OSError: a file can't be read.
    """
    if fs.exists(f"{data_dir}/{MANIFEST}"):
        return []
    env = Environment(fs, HandlePool(fs, 4), MapCache(fs), SystemClock())
    return read_journal(env, data_dir).unproven


def topic_id_of(fs: FileSystem, folder: str) -> bytes | None:
    """Return the topic id in a folder, or None if it is lost or damaged."""
    path = f"{folder}/{METADATA}"
    try:
        return decode_metadata(fs.read_bytes(path)).bytes if fs.exists(path) else None
    except ValueError:
        return None


def _time_fits(latest: int | None, timestamp: int, *, dense: bool) -> bool:
    return latest is not None and (timestamp == latest or (timestamp > latest and not dense))


def _aborted_fit(data: bytes) -> bool:
    try:
        decode_aborted(data)
    except ValueError:
        return False
    return True
