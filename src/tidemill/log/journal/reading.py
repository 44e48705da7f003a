"""Read the journal after an unclean stop: what it proves, and what it gives back to a partition.

The newest entry says which entries were still needed. All of them must be there. One that is
missing or damaged is reported, and the others count: each holds all that is needed to restore its
pieces. Only the last entry can be incomplete, and was then not promised to anyone. Older entries
that were not overwritten yet count too: their segments were synced, but can be damaged since.

Before recovery reads a log, ``restore`` writes and syncs the bytes in which its segments differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from uuid import uuid4

from tidemill.errors import TidemillError
from tidemill.log.disk.environment import Environment, Report
from tidemill.log.disk.files import FileSystem, RawFile
from tidemill.log.errors import JournalRestoreError
from tidemill.log.format.batch import HEADER_SIZE, check_batch, iter_headers, parse_header
from tidemill.log.journal.entry import (
    BLOCK,
    CHECKPOINT,
    MAGIC,
    Entry,
    JournalCheckpoint,
    Piece,
    decode_entry,
    decode_journal_checkpoint,
    encode_journal_checkpoint,
    read_place,
)
from tidemill.log.journal.journal import FOLDER
from tidemill.log.names import CUT_SUFFIX, LOG, TopicPartition, file_name, parse_file_name

_REPORTED = 10
"""Most missing entries that are reported one by one."""


@dataclass(slots=True)
class Proof:
    """The part of the journal that proves something of one partition.

    Attributes:
        end_offset: everything below it was promised.
        is_complete: whether nothing else was promised. False if an entry is missing.
        pieces: the batches, in the order in which they were written.
    """

    end_offset: int = 0
    is_complete: bool = True
    pieces: list[Piece] = field(default_factory=list)


@dataclass(slots=True)
class JournalContent:
    """The content of the journal.

    Attributes:
        is_whole: whether it has every entry that is needed. If not, something can be missing that
            was promised, so no partition is repaired by its absence.
        proofs: by topic id and partition.
        without: the partitions whose pieces don't count.
    """

    is_whole: bool = False
    proofs: Mapping[tuple[bytes, int], Proof] = field(default_factory=dict)
    without: frozenset[TopicPartition] = frozenset()

    def proof(self, tp: TopicPartition, topic_id: bytes | None) -> Proof | None:
        """Return what is proven of a partition.

        None if the journal can't say it. Then the log's own files are the only evidence.
        """
        if topic_id is None or tp in self.without:
            return None
        found = self.proofs.get((topic_id, tp.partition))
        if found is None and self.is_whole:
            return Proof()
        return found


def read_journal(env: Environment, data_dir: str) -> JournalContent:
    """Read the journal of a data folder whose last stop was not clean.

    Damage is reported, and is never an error.
    """
    checkpoint = _read_checkpoint(env, data_dir)
    if checkpoint is None:
        return JournalContent()
    folder = f"{data_dir}/{FOLDER}"
    names = sorted(env.fs.files(folder)) if env.fs.exists(folder) else []
    if not names:
        if checkpoint.sequence:
            env.report_file(folder, "the journal is missing: the end of each log is uncertain")
        return JournalContent(not checkpoint.sequence, {}, checkpoint.without)
    found: dict[int, Entry] = {}
    torn: dict[int, str] = {}
    for name in names:
        _read_file(env, f"{folder}/{name}", checkpoint.journal, found, torn)
    is_whole = _check(env, folder, checkpoint, found, torn)
    proofs: dict[tuple[bytes, int], Proof] = {}
    for sequence in sorted(found):
        for piece in found[sequence].pieces:
            proof = proofs.setdefault(
                (piece.topic_id, piece.partition), Proof(is_complete=is_whole)
            )
            proof.end_offset = max(proof.end_offset, piece.end_offset)
            if piece.size:
                proof.pieces.append(piece)
    return JournalContent(is_whole, proofs, checkpoint.without)


def disown(fs: FileSystem, data_dir: str, tp: TopicPartition) -> None:
    """Make the next start ignore what the journal has of a partition, because it was repaired."""
    path = f"{data_dir}/{CHECKPOINT}"
    if not fs.exists(path):
        return
    try:
        checkpoint = decode_journal_checkpoint(fs.read_bytes(path))
    except (ValueError, IndexError):
        return  # the next start ignores the whole journal, and reports it
    repaired = replace(checkpoint, without=checkpoint.without | {tp})
    fs.write_atomic(path, encode_journal_checkpoint(repaired))


def _read_checkpoint(env: Environment, data_dir: str) -> JournalCheckpoint | None:
    path = f"{data_dir}/{CHECKPOINT}"
    if not env.fs.exists(path):
        return None
    try:
        return decode_journal_checkpoint(env.fs.read_bytes(path))
    except (ValueError, IndexError) as error:
        env.report_file(
            path, f"damaged, so the journal is not used and the end of each log uncertain: {error}"
        )
        return None


def _read_file(
    env: Environment, path: str, journal: bytes, found: dict[int, Entry], torn: dict[int, str]
) -> None:
    """Collect the entries of one file, and the places of those that are damaged."""
    data = memoryview(env.fs.read_bytes(path))
    position = 0
    while position < len(data):
        raw = bytes(data[position : position + len(MAGIC)])
        place = read_place(data, position, journal) if raw == MAGIC else None
        entry = None if place is None else decode_entry(data, position, place)
        if entry is not None:
            found[entry.sequence] = entry
            position += entry.size
            continue
        if place is not None:
            torn[place.sequence] = f"{path}, byte {position}"
        position += BLOCK


def _check(
    env: Environment,
    folder: str,
    checkpoint: JournalCheckpoint,
    found: Mapping[int, Entry],
    torn: Mapping[int, str],
) -> bool:
    """Report what is missing; return whether everything is there that is needed."""
    last = max(found, default=0)
    is_whole = True
    if last < checkpoint.sequence:
        env.report_file(
            folder,
            f"the journal is older than its checkpoint: it ends with entry {last}, "
            f"but {checkpoint.sequence} was written; the end of each log is uncertain",
        )
        is_whole = False
    head = found[last].head if last else 1
    missing = list(islice((each for each in range(head, last) if each not in found), _REPORTED))
    for sequence in missing:
        place = torn.get(sequence, folder)
        env.report_file(
            place, f"entry {sequence} of the journal is damaged or missing; the others are used"
        )
    if last + 1 in torn and is_whole:
        env.report_file(
            torn[last + 1],
            f"entry {last + 1} of the journal, the last one, is incomplete: an unfinished write",
        )
    return is_whole and not missing


def restore(
    env: Environment,
    tp: TopicPartition,
    folder: str,
    names: dict[str, int],
    proof: Proof,
    *,
    recovery_point: int,
    is_sparse: bool,
) -> bool:
    """Write the pieces of the journal into the segments that differ from them.

    Where compaction never removes batches, a segment must have the bytes of the journal as long as
    it is there. If the topic is or was compacted, that is certain for the last segment only, above
    the recovery point: the others are synced, and can be replaced.

    Args:
        names: the folder's files with their sizes, which are updated.

    Returns:
        Whether the journal proves something of the partition. If another writer came after it,
        nothing is restored, and its pieces are put aside.
    """
    wanted = _wanted(names, proof, recovery_point, is_sparse)
    superseded = _superseded(env.fs, folder, names, wanted)
    if superseded:
        _set_aside(env, tp, folder, superseded)
        return False
    for base, pieces in wanted.items():
        name = file_name(base, LOG)
        path = f"{folder}/{name}"
        try:
            names[name] = _restore_segment(env, tp, path, names[name], pieces, recovery_point)
        except OSError as error:
            raise JournalRestoreError(
                f"{path} lacks records that were acknowledged, and they can't be restored from the "
                f"journal: {error.strerror or error}",
                hint="Nothing is lost yet: the journal has them. Free disk space, or repair the "
                "disk, and start the broker again. To give them up, move the folder away.",
            ) from error
    return True


def _wanted(
    names: dict[str, int], proof: Proof, recovery_point: int, is_sparse: bool
) -> dict[int, list[Piece]]:
    """Return the pieces that the segments must have, by the segment's base offset.

    Those of a segment are in the order of their positions.
    """
    bases = [each[0] for each in map(parse_file_name, names) if each and each[1] == LOG]
    last = max(bases, default=-1)
    by_segment: dict[int, list[Piece]] = {}
    for piece in proof.pieces:
        is_same = not is_sparse or (piece.segment == last and piece.end_offset > recovery_point)
        if is_same and piece.segment in bases:
            by_segment.setdefault(piece.segment, []).append(piece)
    for pieces in by_segment.values():
        pieces.sort(key=lambda piece: piece.position)
    return by_segment


def is_superseded(
    fs: FileSystem,
    folder: str,
    names: dict[str, int],
    proof: Proof,
    *,
    recovery_point: int,
    is_sparse: bool,
) -> bool:
    """Return whether another writer came after the journal. Changes nothing."""
    wanted = _wanted(names, proof, recovery_point, is_sparse)
    return bool(_superseded(fs, folder, names, wanted))


def _superseded(
    fs: FileSystem, folder: str, names: dict[str, int], wanted: Mapping[int, list[Piece]]
) -> list[Piece]:
    """Return the pieces that the segments lack because another writer came after the journal.

    A version of tidemill without the journal cuts the log at the first batch that a power cut has
    damaged, and appends there: another valid batch with the same offset, or a new segment. Damage
    alone leaves neither.
    """
    bases = [each[0] for each in map(parse_file_name, names) if each and each[1] == LOG]
    differing: list[Piece] = []
    is_found = False
    for base, pieces in wanted.items():
        name = file_name(base, LOG)
        try:
            raw = fs.open(f"{folder}/{name}")
        except OSError:
            continue  # the restore reports it
        try:
            for piece in pieces:
                if raw.pread(piece.size, piece.position) == piece.buffers[0]:
                    continue
                differing.append(piece)
                is_found = (
                    is_found
                    or any(base < other < piece.end_offset for other in bases)
                    or _has_other_batch(raw, names[name], piece)
                )
        except OSError:
            continue
        finally:
            raw.close()
    return differing if is_found else []


def _has_other_batch(raw: RawFile, size: int, piece: Piece) -> bool:
    """Return whether the file has another valid batch in the place of one of a piece's batches."""
    for at, expected in iter_headers(piece.buffers[0]):
        position = piece.position + at
        head = raw.pread(HEADER_SIZE, position)
        if len(head) < HEADER_SIZE:
            return False
        found = parse_header(head)
        is_like_one = found.base_offset == expected.base_offset and found.crc != expected.crc
        if is_like_one and HEADER_SIZE <= found.size <= size - position:
            try:
                check_batch(raw.pread(found.size, position))
            except TidemillError:
                continue
            return True
    return False


def _set_aside(env: Environment, tp: TopicPartition, folder: str, pieces: list[Piece]) -> None:
    """Keep pieces that can't be restored in a folder that is never deleted, and report it."""
    first, last = pieces[0], pieces[-1]
    data_dir, _, name = folder.rpartition("/")
    aside = f"{data_dir}/{name[:200]}.{uuid4().hex}{CUT_SUFFIX}"
    path = f"{aside}/{file_name(first.first_offset, LOG)}"
    try:
        env.fs.mkdir(aside)
        env.fs.write_atomic(path, b"".join(piece.buffers[0] for piece in pieces))
        env.fs.sync_dir(data_dir)
    except OSError as error:
        raise JournalRestoreError(
            f"the journal has records of {tp} that can't be kept in {aside}: "
            f"{error.strerror or error}",
            hint="Nothing is lost yet: the journal has them. Free disk space, or repair the disk, "
            "and start the broker again.",
        ) from error
    what = (
        f"offsets {first.first_offset} to {last.end_offset - 1} of the journal not restored: a "
        "version of tidemill without the journal has appended other records there; those of the "
        "journal are kept in this file"
    )
    env.reports.append(Report(tp, path, what, offset=first.first_offset))


def lacking(
    fs: FileSystem,
    folder: str,
    names: dict[str, int],
    proof: Proof | None,
    *,
    recovery_point: int,
    is_sparse: bool,
) -> list[Piece]:
    """Return the pieces that ``restore`` would write. Changes nothing."""
    if proof is None:
        return []
    found = []
    wanted = _wanted(names, proof, recovery_point, is_sparse)
    if _superseded(fs, folder, names, wanted):
        return []
    for base, pieces in wanted.items():
        name = file_name(base, LOG)
        raw = fs.open(f"{folder}/{name}")
        try:
            size = names[name]
            for piece in pieces:
                if piece.position > size:
                    break
                if raw.pread(piece.size, piece.position) != piece.buffers[0]:
                    found.append(piece)
                size = max(size, piece.position + piece.size)
        finally:
            raw.close()
    return found


def _restore_segment(
    env: Environment,
    tp: TopicPartition,
    path: str,
    size: int,
    pieces: list[Piece],
    recovery_point: int,
) -> int:
    """Write the pieces that differ; return the new size of the file."""
    try:
        raw = env.fs.open(path)
    except OSError:
        if max(piece.end_offset for piece in pieces) > recovery_point:
            raise
        return size
    restored: list[Piece] = []
    try:
        for piece in pieces:
            if piece.position > size:
                # What is between is lost, from the journal too. Recovery tells where the log ends.
                break
            try:
                if _restore_piece(raw, piece):
                    restored.append(piece)
            except OSError:
                if piece.end_offset > recovery_point:
                    raise
                continue  # the partition is recovered without it, and the first read finds damage
            size = max(size, piece.position + piece.size)
        if restored:
            with env.pool.sync_errors(path):
                raw.datasync()
    finally:
        raw.close()
    if restored:
        first, last = restored[0], restored[-1]
        what = (
            f"offsets {first.first_offset} to {last.end_offset - 1} restored from the journal, "
            f"{sum(each.size for each in restored)} bytes from byte {first.position} on"
        )
        env.reports.append(Report(tp, path, what, first.position, 0, first.first_offset))
    return size


def _restore_piece(raw: RawFile, piece: Piece) -> bool:
    """Write a piece if the file has other bytes there; return whether it had."""
    if raw.pread(piece.size, piece.position) == piece.buffers[0]:
        return False
    data, position = memoryview(piece.buffers[0]), piece.position
    while data:
        written = raw.pwrite((data,), position)
        if written == 0:
            raise OSError(28, "No space left on device")
        data, position = data[written:], position + written
    return True
