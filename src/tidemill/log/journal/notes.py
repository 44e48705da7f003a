"""The notes of the journal: up to which offset the segments of a partition are synced.

What was promised must be provable until the file with the recovery points covers it. The batches of
an entry prove it while the entry is needed, which is until their segment is synced. From then on a
note proves it, and is written again before its entry is overwritten. So recovery takes invalid
bytes below that offset for damage, and not for an unfinished write. A note can have the batches
that were just synced, to restore them. Does no I/O.
"""

from __future__ import annotations

from collections.abc import Hashable

from tidemill.log.journal.entry import PIECE_BYTES, Piece

NOTES_TOGETHER = 1024
"""Most notes of one entry. More would hold up the appends in it."""
BATCH_BYTES = 4 << 20
"""Most bytes of batches in the notes that wait for an entry. Further notes get no batches."""


class Notes:
    """The notes of one journal, by owner. It is used from one thread."""

    __slots__ = ("_bytes", "_taken", "_waiting", "_written")

    def __init__(self) -> None:
        self._waiting: dict[Hashable, Piece] = {}
        self._bytes = 0  # of the batches in them
        self._taken: dict[Hashable, Piece] = {}
        self._written: dict[Hashable, tuple[int, Piece]] = {}  # the oldest entries first

    def add(self, owner: Hashable, note: Piece) -> None:
        """Include a note in the next entry."""
        waiting = self._waiting.get(owner)
        if waiting is not None:
            if waiting.end_offset >= note.end_offset:
                return
            self._bytes -= waiting.size
        if self._bytes + note.size > BATCH_BYTES:
            note = without_batches(note)
        self._waiting[owner] = note
        self._bytes += note.size

    @property
    def are_waiting(self) -> bool:
        """Whether there are notes for the next entry."""
        return bool(self._waiting)

    def take(self, room: int) -> list[Piece]:
        """Take notes for an entry that has ``room`` bytes for them.

        ``written`` or ``give_back`` must follow.
        """
        for owner, note in self._waiting.items():
            if room < PIECE_BYTES or len(self._taken) == NOTES_TOGETHER:
                break
            has_room = room >= PIECE_BYTES + note.size
            self._taken[owner] = note if has_room else without_batches(note)
            room -= PIECE_BYTES + self._taken[owner].size
        for owner in self._taken:
            self._bytes -= self._waiting.pop(owner).size
        return list(self._taken.values())

    def give_back(self) -> None:
        """Put the notes that were taken into a later entry: this one can't be written."""
        taken, self._taken = self._taken, {}
        for owner, note in taken.items():
            self.add(owner, note)

    def written(self, sequence: int) -> None:
        """Record that the notes that were taken are in this entry."""
        taken, self._taken = self._taken, {}
        for owner, note in taken.items():
            self._written.pop(owner, None)
            self._written[owner] = sequence, without_batches(note)

    def renew(self, sequence: int) -> None:
        """Include the notes of older entries in the next entry again."""
        for owner, (written, note) in list(self._written.items()):
            if written >= sequence:
                break
            del self._written[owner]
            self.add(owner, note)

    def forget(self, owner: Hashable) -> None:
        """Drop the note of an owner: it was deleted, or nothing must be proven any more."""
        waiting = self._waiting.pop(owner, None)
        if waiting is not None:
            self._bytes -= waiting.size
        self._taken.pop(owner, None)
        self._written.pop(owner, None)

    def proven(self) -> list[tuple[Hashable, int]]:
        """Return each owner whose only note is in an entry, and the offset of the note."""
        return [
            (owner, note.end_offset)
            for owner, (_, note) in self._written.items()
            if owner not in self._waiting and owner not in self._taken
        ]


def without_batches(note: Piece) -> Piece:
    """Return a note without the batches in it."""
    if not note.size:
        return note
    return Piece(note.topic_id, note.partition, 0, 0, 0, note.end_offset, 0)
