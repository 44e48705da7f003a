"""Batches that a partition refused for now, of producers that it does not know.

Clients have several batches in flight. Where the first is told to come again, those behind it must
not be taken for the producer's first: sequences begin anywhere where nothing is known of it, and
the one that comes again would then be out of order, or be taken for a repetition, and be lost.
So what comes behind a refused batch is refused with the same error, until that one is there.

Kept in memory only. A broker that starts again has no open connections: clients send again what
they have no answer for, in order. Knows no files and no protocol; whoever refuses says so here.
"""

from __future__ import annotations

from typing import NamedTuple

from tidemill.errors import (
    ConcurrentTransactionsError,
    CoordinatorLoadingError,
    CoordinatorNotAvailableError,
    CorruptBatchError,
    DiskFullError,
    StorageError,
    TidemillError,
)
from tidemill.log.batch import SEQUENCES, BatchHeader

COMES_AGAIN = (
    DiskFullError,
    StorageError,
    ConcurrentTransactionsError,
    CoordinatorNotAvailableError,
    CoordinatorLoadingError,
    CorruptBatchError,
)
"""Refusals that clients answer by sending the batch again. After all others they give it up, or
begin a new epoch."""

KEPT_MS = 600_000
"""A refusal is forgotten after this long. Whoever still wants the batch has sent it again, and it
was accepted or refused anew."""

MOST = 4096
"""Producers that are remembered per partition; the oldest go first."""


class Refusal(NamedTuple):
    """The first batch of a producer's epoch that was refused."""

    epoch: int
    sequence: int
    kind: type[TidemillError]
    message: str
    at_ms: int


class RefusedBatches:
    """Of one partition, by producer id."""

    __slots__ = ("_first",)

    def __init__(self) -> None:
        self._first: dict[int, Refusal] = {}

    def __len__(self) -> int:
        return len(self._first)

    def remember(self, header: BatchHeader, error: TidemillError, now_ms: int) -> None:
        """A client was answered with ``error`` instead of an append; not all errors count."""
        kind = next((each for each in COMES_AGAIN if isinstance(error, each)), None)
        if kind is None or header.producer_id < 0 or header.base_sequence < 0:
            return
        known = self._first.get(header.producer_id)
        if known is not None and (
            header.producer_epoch < known.epoch
            or (
                header.producer_epoch == known.epoch
                and _comes_after(header.base_sequence, known.sequence)
            )
        ):
            return
        self._first.pop(header.producer_id, None)
        if len(self._first) >= MOST:
            del self._first[next(iter(self._first))]
        self._first[header.producer_id] = Refusal(
            header.producer_epoch, header.base_sequence, kind, str(error), now_ms
        )

    def check(self, header: BatchHeader) -> None:
        """Whether a batch may be the first of a producer that the partition does not know.

        Raises:
            TidemillError: one that comes before it was refused with an error of this type.
        """
        first = self._first.get(header.producer_id)
        if (
            first is not None
            and first.epoch == header.producer_epoch
            and _comes_after(header.base_sequence, first.sequence)
        ):
            raise first.kind(
                f"producer {header.producer_id} sends sequence {header.base_sequence}, but "
                f"{first.sequence} was refused and comes first: {first.message}"
            )

    def forget(self, producer_id: int) -> None:
        """A batch of it was appended: from now on its sequences are checked."""
        self._first.pop(producer_id, None)

    def expire(self, now_ms: int) -> None:
        """Forget what was refused ``KEPT_MS`` ago."""
        for producer_id, first in list(self._first.items()):
            if now_ms - first.at_ms >= KEPT_MS:
                del self._first[producer_id]


def _comes_after(sequence: int, first: int) -> bool:
    # Sequences wrap: "after" is the shorter way round.
    return 0 < (sequence - first) % SEQUENCES < SEQUENCES // 2
