"""Read the journal after an unclean stop: what it proves, and what of itself is missing.

The newest entry says which entries were still needed, and the extent says which entry must be
there at least (``extent``). All of them must be there. One that is missing or damaged is reported,
and the others count: each holds all that is needed to restore its pieces. If the extent knows what
the missing ones promised, only their partitions go offline. Where nothing shows what is missing,
the journal is not proven, and the broker must not start.

Only an entry behind the extent can be incomplete, and only the last one: it was not promised to
anyone. Older entries that were not overwritten yet count too: their segments were synced, but can
be damaged since. ``restoring`` gives a partition back what it lacks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

from tidemill.log.disk.environment import Environment
from tidemill.log.disk.files import FileSystem
from tidemill.log.journal.checkpoint import (
    CHECKPOINT,
    MISSING,
    JournalCheckpoint,
    encode_journal_checkpoint,
    read_checkpoint,
)
from tidemill.log.journal.correction import corrected_entry
from tidemill.log.journal.entry import BLOCK, MAGIC, Entry, Piece, decode_entry, read_place
from tidemill.log.journal.extent import EXTENT, Extent, read_extent
from tidemill.log.journal.journal import FOLDER
from tidemill.log.names import TopicPartition
from tidemill.log.versions import has_journal_checkpoint

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
        unproven: why acknowledged records of any partition can be missing, with the places. Empty
            if nothing is missing, if it is known of which partitions, or if that was accepted.
    """

    is_whole: bool = False
    proofs: Mapping[tuple[bytes, int], Proof] = field(default_factory=dict)
    without: frozenset[TopicPartition] = frozenset()
    unproven: list[str] = field(default_factory=list)

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


@dataclass(slots=True)
class _Found:
    """The content of the files of the journal.

    Attributes:
        entries: by sequence.
        damaged: the places of damaged entries by sequence.
        unproven: what is missing, and can have had entries.
    """

    entries: dict[int, Entry] = field(default_factory=dict)
    damaged: dict[int, str] = field(default_factory=dict)
    unproven: list[str] = field(default_factory=list)


def read_journal(env: Environment, data_dir: str, *, is_clean: bool = False) -> JournalContent:
    """Read the journal of a data folder whose last stop was not clean.

    Damage is reported, and is never an error here; see ``JournalContent.unproven``.

    Args:
        is_clean: whether the last stop was clean, but for some partitions.
    """
    path, extent = f"{data_dir}/{CHECKPOINT}", read_extent(env.fs, data_dir)
    checkpoint, damage = read_checkpoint(env.fs, data_dir)
    epoch = -1 if checkpoint is None else checkpoint.epoch
    is_named = True
    if checkpoint is not None and not checkpoint.journal and (not extent or not extent.sequence):
        pass  # no journal was in use, or a crash has interrupted its first step
    elif extent is not None and extent.epoch > epoch:
        is_named = False
        state = damage or "is older than the journal"
        env.report(None, path, f"the file {state}: the journal is known from {EXTENT}")
        without = frozenset() if checkpoint is None else checkpoint.without
        checkpoint = JournalCheckpoint(extent.journal, 0, without, extent.epoch)
    elif checkpoint is None:
        must_exist = not is_clean and has_journal_checkpoint(env.fs, data_dir)
        is_lost = must_exist or damage != MISSING
        return JournalContent(unproven=[f"{path} {damage}"] if is_lost else [])
    elif extent is None or extent.epoch < epoch:
        _report_extent(env, f"{data_dir}/{EXTENT}", checkpoint, extent)
        extent = None
    if not checkpoint.journal:
        if checkpoint.is_accepted:
            what = "the file was lost, and no entry is used; a repair has accepted that"
            env.report(None, path, what)
        return JournalContent(without=checkpoint.without)
    found = _read_files(env, f"{data_dir}/{FOLDER}", checkpoint)
    is_whole = _check(env, f"{data_dir}/{FOLDER}", checkpoint, extent, found) and is_named
    if checkpoint.is_accepted:
        for what in found.unproven:
            env.report(None, f"{data_dir}/{FOLDER}", f"{what}; a repair has accepted that")
        found.unproven.clear()
    proofs = _proofs(found, extent, is_whole=is_whole)
    return JournalContent(is_whole, proofs, checkpoint.without, found.unproven)


def _proofs(
    found: _Found, extent: Extent | None, *, is_whole: bool
) -> dict[tuple[bytes, int], Proof]:
    proofs: dict[tuple[bytes, int], Proof] = defaultdict(lambda: Proof(is_complete=is_whole))
    for sequence in sorted(found.entries):
        for piece in found.entries[sequence].pieces:
            proof = proofs[piece.topic_id, piece.partition]
            proof.end_offset = max(proof.end_offset, piece.end_offset)
            if piece.size:
                proof.pieces.append(piece)
    for promise in extent or ():
        proof = proofs[promise.topic_id, promise.partition]
        proof.end_offset = max(proof.end_offset, promise.end_offset)
    return dict(proofs)


# --- repairs -------------------------------------------------------------------------------------


def disown(fs: FileSystem, data_dir: str, tp: TopicPartition) -> None:
    """Make the next start ignore what the journal has of a partition, because it was repaired."""
    checkpoint = read_checkpoint(fs, data_dir)[0]
    if checkpoint is not None and checkpoint.journal:
        _rewrite(fs, data_dir, replace(checkpoint, without=checkpoint.without | {tp}))


def accept_damage(fs: FileSystem, data_dir: str) -> None:
    """Make the next start use what the journal has, although something can be missing."""
    checkpoint = read_checkpoint(fs, data_dir)[0]
    extent = read_extent(fs, data_dir)
    if extent is not None and (checkpoint is None or checkpoint.epoch < extent.epoch):
        checkpoint = JournalCheckpoint(extent.journal, epoch=extent.epoch)
    checkpoint = checkpoint or JournalCheckpoint(b"")
    _rewrite(fs, data_dir, replace(checkpoint, is_accepted=True))


def _rewrite(fs: FileSystem, data_dir: str, checkpoint: JournalCheckpoint) -> None:
    fs.write_atomic(f"{data_dir}/{CHECKPOINT}", encode_journal_checkpoint(checkpoint))


# --- files ---------------------------------------------------------------------------------------


def _report_extent(
    env: Environment, path: str, checkpoint: JournalCheckpoint, extent: Extent | None
) -> None:
    """Report an extent that is not of the journal in use. Earlier versions wrote none."""
    if checkpoint.journal and checkpoint.epoch:
        state = "damaged or missing" if extent is None else "older than the journal"
        what = f"the file is {state}: this start can't notice that the journal has lost its end"
        env.report(None, path, what)


def _read_files(env: Environment, folder: str, checkpoint: JournalCheckpoint) -> _Found:
    """Read all entries, from whatever file: one that was renamed has them too."""
    found = _Found()
    sizes = env.fs.files(folder) if env.fs.exists(folder) else {}
    for name, size in checkpoint.files.items():
        if name not in sizes:
            found.unproven.append(f"{folder}/{name} is missing")
        elif sizes[name] != size:
            found.unproven.append(f"{folder}/{name} has {sizes[name]} bytes instead of {size}")
    for name in sorted(sizes):
        _read_file(env, f"{folder}/{name}", checkpoint.journal, found)
    return found


def _read_file(env: Environment, path: str, journal: bytes, found: _Found) -> None:
    """Collect the entries of one file, and the places of those that are damaged."""
    data = memoryview(env.fs.read_bytes(path))
    position = 0
    while position < len(data):
        raw = bytes(data[position : position + len(MAGIC)])
        place = read_place(data, position, journal) if raw == MAGIC else None
        entry = None if place is None else decode_entry(data, position, place)
        if entry is None and (entry := corrected_entry(data, position, journal)) is not None:
            what = f"a changed bit in entry {entry.sequence} of the journal was corrected"
            env.report(None, f"{path}, byte {position}", what)
        if entry is not None:
            found.entries[entry.sequence] = entry
            position += entry.size
            continue
        if place is not None:
            found.damaged[place.sequence] = f"{path}, byte {position}"
        position += BLOCK


def _check(
    env: Environment,
    folder: str,
    checkpoint: JournalCheckpoint,
    extent: Extent | None,
    found: _Found,
) -> bool:
    """Report what is missing; return whether everything is there that is needed."""
    entries = found.entries
    last = max(entries, default=0)
    known, head = checkpoint.sequence, entries[last].head if last else 1
    if extent is not None:
        known, head = max(known, extent.sequence), max(head, extent.head)
    is_whole = not found.unproven
    if last < known:
        what = f"the journal ends with entry {last}, but entry {known} was written"
        env.report(None, folder, what)
    end = max(last, known)
    first = list(islice((each for each in range(head, end + 1) if each not in entries), _REPORTED))
    for sequence in first:
        place = found.damaged.get(sequence, folder)
        what = f"entry {sequence} of the journal is damaged or missing; the others are used"
        env.report(None, place, what)
    covered = extent.sequence if extent is not None and extent.is_complete else 0
    start = max(head, covered + 1)
    count = end + 1 - start - sum(start <= each <= end for each in entries)
    if count > 0:
        lost = next(each for each in range(start, end + 1) if each not in entries)
        place = found.damaged.get(lost, folder)
        found.unproven.append(f"{place}: entry {lost} is damaged or missing, {count} in all")
    if end + 1 in found.damaged and is_whole and not first:
        env.report(
            None,
            found.damaged[end + 1],
            f"entry {end + 1} of the journal, the last one, is incomplete: an unfinished write",
        )
    return is_whole and not first
