"""Read the journal after an unclean stop: what it proves of each partition.

The newest entry says which entries were still needed. All of them must be there. One that is
missing or damaged is reported, and the others count: each holds all that is needed to restore its
pieces. Only the last entry can be incomplete, and was then not promised to anyone. Older entries
that were not overwritten yet count too: their segments were synced, but can be damaged since.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

from tidemill.log.disk.environment import Environment
from tidemill.log.disk.files import FileSystem
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
from tidemill.log.names import TopicPartition

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
