"""Give partitions back what their segments lack and the journal has.

Before recovery reads a log, ``restore`` writes and syncs the bytes in which its segments differ. If
another writer came after the journal, nothing is restored, and what the journal has is put aside.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing, suppress
from itertools import pairwise
from uuid import uuid4

from tidemill.errors import TidemillError
from tidemill.log.disk.environment import Environment
from tidemill.log.disk.files import FileSystem, RawFile, write_fully
from tidemill.log.errors import JournalRestoreError
from tidemill.log.format.batch import HEADER_SIZE, check_batch, iter_headers, parse_header
from tidemill.log.journal.entry import Piece
from tidemill.log.journal.reading import Proof
from tidemill.log.names import CUT_SUFFIX, LOG, TopicPartition, file_name, offsets_of


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
    superseded = _superseded(env.fs, folder, names, _compared(names, proof, wanted))
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
    names: Mapping[str, int], proof: Proof, recovery_point: int, is_sparse: bool
) -> dict[int, list[Piece]]:
    """Return the pieces that the segments must have, by the segment's base offset.

    Those of a segment are in the order of their positions.
    """
    bases = offsets_of(names, LOG)
    last = max(bases, default=-1)
    by_segment: dict[int, list[Piece]] = {}
    for piece in proof.pieces:
        is_same = not is_sparse or (piece.segment == last and piece.end_offset > recovery_point)
        if is_same and piece.segment in bases:
            by_segment.setdefault(piece.segment, []).append(piece)
    for pieces in by_segment.values():
        pieces.sort(key=lambda piece: piece.position)
    return by_segment


def _compared(
    names: Mapping[str, int], proof: Proof, wanted: Mapping[int, list[Piece]]
) -> dict[int, list[Piece]]:
    """Return the pieces that show whether another writer came after the journal.

    These are the wanted ones and those directly before them in the last segment: another writer can
    have stored a recovery point above the place where it began. If its point is above all pieces,
    each of that segment is compared. And those that reach into the next segment, where the journal
    never ends a piece.
    """
    bases = offsets_of(names, LOG)
    compared = {base: list(pieces) for base, pieces in wanted.items()}
    if not bases:
        return compared
    last = bases[-1]
    in_last = [each for each in proof.pieces if each.segment == last]
    if last not in compared:
        compared[last] = sorted(in_last, key=lambda each: each.position)
    before = {each.position + each.size: each for each in in_last}
    pieces = compared[last]
    while pieces and (piece := before.get(pieces[0].position)) is not None:
        pieces.insert(0, piece)
    following = dict(pairwise(bases))
    for piece in proof.pieces:
        if piece.end_offset > following.get(piece.segment, piece.end_offset):
            pieces = compared.setdefault(piece.segment, [])
            if not any(each is piece for each in pieces):
                pieces.append(piece)
    return {base: pieces for base, pieces in compared.items() if pieces}


def _superseded(
    fs: FileSystem, folder: str, names: dict[str, int], wanted: Mapping[int, list[Piece]]
) -> list[Piece]:
    """Return the pieces that the segments lack because another writer came after the journal.

    A version of tidemill without the journal cuts the log at the first batch that a power cut has
    damaged, and appends there: another valid batch with the same offset, or a new segment. Damage
    alone leaves neither.
    """
    bases = offsets_of(names, LOG)
    differing: list[Piece] = []
    is_found = False
    for base, pieces in wanted.items():
        name = file_name(base, LOG)
        with suppress(OSError), closing(fs.open(f"{folder}/{name}")) as raw:  # restore reports it
            for piece in pieces:
                if raw.pread(piece.size, piece.position) == piece.buffers[0]:
                    continue
                differing.append(piece)
                is_found = (
                    is_found
                    or any(base < other < piece.end_offset for other in bases)
                    or _has_other_batch(raw, names[name], piece)
                )
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
    env.report(tp, path, what, offset=first.first_offset)


def lacking(
    fs: FileSystem,
    folder: str,
    names: dict[str, int],
    proof: Proof | None,
    *,
    recovery_point: int,
    is_sparse: bool,
) -> list[Piece] | None:
    """Return the pieces that ``restore`` would write; None if it would put them aside.

    Changes nothing.
    """
    if proof is None:
        return []
    found = []
    wanted = _wanted(names, proof, recovery_point, is_sparse)
    if _superseded(fs, folder, names, _compared(names, proof, wanted)):
        return None
    for base, pieces in wanted.items():
        name = file_name(base, LOG)
        with closing(fs.open(f"{folder}/{name}")) as raw:
            size = names[name]
            for piece in pieces:
                if piece.position > size:
                    break
                if raw.pread(piece.size, piece.position) != piece.buffers[0]:
                    found.append(piece)
                size = max(size, piece.position + piece.size)
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
    with closing(raw):
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
    if restored:
        first, last = restored[0], restored[-1]
        what = (
            f"offsets {first.first_offset} to {last.end_offset - 1} restored from the journal, "
            f"{sum(each.size for each in restored)} bytes from byte {first.position} on"
        )
        env.report(tp, path, what, offset=first.first_offset)
    return size


def _restore_piece(raw: RawFile, piece: Piece) -> bool:
    """Write a piece if the file has other bytes there; return whether it had."""
    if raw.pread(piece.size, piece.position) == piece.buffers[0]:
        return False
    write_fully(raw, piece.buffers, piece.position)
    return True
