"""The notes of the journal: up to which offset the segments of a partition are synced.

What was promised must be provable until the file with the recovery points covers it. The batches of
an entry prove it while the entry is needed, which is until their segment is synced. From then on a
note proves it, and is written again before its entry is overwritten. So recovery takes invalid
bytes below that offset for damage, and not for an unfinished write. A note can have the batches
that were just synced, to restore them. Does no I/O.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from tidemill.log.journal.entry import PIECE_BYTES, Piece

NOTES_TOGETHER = 1024
"""Most owners whose notes one entry has. More would hold up the appends in it."""
BATCH_BYTES = 4 << 20
"""Most bytes of batches in the notes that wait for an entry. Further notes get no batches."""


class Notes:
    """The notes of one journal, by owner. It is used from one thread."""

    __slots__ = ("_bytes", "_taken", "_waiting", "_written")

    def __init__(self) -> None:
        self._waiting: dict[Hashable, list[Piece]] = {}
        self._bytes = 0  # of the batches in them
        self._taken: dict[Hashable, list[Piece]] = {}
        self._written: dict[Hashable, tuple[int, Piece]] = {}  # the oldest entries first

    def add(self, owner: Hashable, note: Piece) -> None:
        """Include a note in the next entry."""
        if self._bytes + note.size > BATCH_BYTES:
            note = without_batches(note)
        self._wait(owner, [*self._waiting.get(owner, ()), note])

    def _wait(self, owner: Hashable, notes: Sequence[Piece]) -> None:
        """Let these notes wait: all batches in them, and the highest offset."""
        last = max(notes, key=lambda each: each.end_offset)
        self._bytes -= batch_bytes(self._waiting.get(owner, ()))
        kept = [each for each in notes if each.size and each is not last]
        self._waiting[owner] = [*kept, last]
        self._bytes += batch_bytes(self._waiting[owner])

    @property
    def are_waiting(self) -> bool:
        """Whether there are notes for the next entry."""
        return bool(self._waiting)

    def take(self, space: int) -> list[Piece]:
        """Take the notes for an entry that has ``space`` bytes for them.

        ``written`` or ``give_back`` must follow.
        """
        self.give_back()
        for owner, notes in self._waiting.items():
            if space < PIECE_BYTES or len(self._taken) == NOTES_TOGETHER:
                break
            if space < notes_bytes(notes):
                notes = [without_batches(notes[-1])]
            self._taken[owner] = notes
            space -= notes_bytes(notes)
        for owner in self._taken:
            self._bytes -= batch_bytes(self._waiting.pop(owner))
        return [each for notes in self._taken.values() for each in notes]

    def give_back(self) -> None:
        """Put the notes that were taken into a later entry: this one can't be written."""
        taken, self._taken = self._taken, {}
        for owner, notes in taken.items():
            self._wait(owner, [*notes, *self._waiting.get(owner, ())])

    def written(self, sequence: int) -> None:
        """Record that the notes that were taken are in this entry."""
        taken, self._taken = self._taken, {}
        for owner, notes in taken.items():
            self._written.pop(owner, None)
            self._written[owner] = sequence, without_batches(notes[-1])

    def renew(self) -> None:
        """Include all notes in the next entries again."""
        written, self._written = self._written, {}
        for owner, (_, note) in written.items():
            self.add(owner, note)

    def forget(self, owner: Hashable) -> None:
        """Drop the notes of an owner: it was deleted, or nothing must be proven any more."""
        self._bytes -= batch_bytes(self._waiting.pop(owner, ()))
        self._taken.pop(owner, None)
        self._written.pop(owner, None)

    def noted(self) -> list[tuple[Hashable, int]]:
        """Return each owner whose latest note is in an entry, and the offset of the note."""
        return [
            (owner, note.end_offset)
            for owner, (_, note) in self._written.items()
            if owner not in self._waiting and owner not in self._taken
        ]


def batch_bytes(notes: Sequence[Piece]) -> int:
    """Return the bytes of the batches in notes."""
    return sum(each.size for each in notes)


def notes_bytes(notes: Sequence[Piece]) -> int:
    """Return the bytes of notes in an entry, with their batches."""
    return PIECE_BYTES * len(notes) + batch_bytes(notes)


def without_batches(note: Piece) -> Piece:
    """Return a note without the batches in it."""
    if not note.size:
        return note
    return Piece(note.topic_id, note.partition, 0, 0, 0, note.end_offset, 0)
