"""Give a partition back what its segments lack of what the journal proves.

Recovery calls it before it reads the log. Bytes that differ are written again and synced.
"""

from __future__ import annotations

from tidemill.log.disk.environment import Environment, Report
from tidemill.log.disk.files import FileSystem, RawFile
from tidemill.log.errors import JournalRestoreError
from tidemill.log.journal.entry import Piece
from tidemill.log.journal.reading import Proof
from tidemill.log.names import LOG, TopicPartition, file_name, parse_file_name


def restore(
    env: Environment,
    tp: TopicPartition,
    folder: str,
    names: dict[str, int],
    proof: Proof,
    *,
    recovery_point: int,
    is_sparse: bool,
) -> None:
    """Write the pieces of the journal into the segments that differ from them.

    Where compaction never removes batches, a segment must have the bytes of the journal as long as
    it is there. If the topic is or was compacted, that is certain for the last segment only, above
    the recovery point: the others are synced, and can be replaced.

    Args:
        names: the folder's files with their sizes, which are updated.
    """
    for base, pieces in _wanted(names, proof, recovery_point, is_sparse).items():
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


def lacking(
    fs: FileSystem,
    folder: str,
    names: dict[str, int],
    proof: Proof,
    *,
    recovery_point: int,
    is_sparse: bool,
) -> list[Piece]:
    """Return the pieces that ``restore`` would write. Changes nothing."""
    found = []
    for base, pieces in _wanted(names, proof, recovery_point, is_sparse).items():
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
