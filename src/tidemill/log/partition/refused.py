"""Keep the order of a new producer's batches after one of them was refused.

A client can have several batches in flight. If the first one is refused with a retriable error, the
client sends it again later. The batches behind it must not be accepted as the producer's first
ones: an unknown producer may start with any sequence (KIP-360), so the retried batch would then be
out of order, or be taken for a duplicate and be lost. So the partition refuses the later batches
with the same error until the first one was appended.

Refusals are kept in memory only. After a restart of the broker there are no open connections, and
clients send all unacknowledged batches again, in order. Knows no files and no protocol. The caller
that answers the client reports the refusal.
"""

from __future__ import annotations

from typing import NamedTuple

from tidemill.errors import TidemillError
from tidemill.log.errors import DiskFullError, StorageError
from tidemill.log.format.batch import SEQUENCES, BatchHeader

KEPT_MS = 600_000
"""Milliseconds after which a refusal expires. A client that still wants the batch has sent it again
by then."""

MAX_PRODUCERS = 4096
"""Most producers with a refusal per partition; the oldest refusals are dropped first."""


class Refusal(NamedTuple):
    """The first batch of a producer's epoch that was refused."""

    epoch: int
    sequence: int
    kind: type[TidemillError]
    message: str
    at_ms: int


class RefusedBatches:
    """The refused batches of one partition.

    Attributes:
        first: the first refused batch of each producer, by producer id.
    """

    __slots__ = ("first",)

    def __init__(self) -> None:
        self.first: dict[int, Refusal] = {}

    def __len__(self) -> int:
        return len(self.first)

    def remember(self, header: BatchHeader, error: TidemillError, now_ms: int) -> None:
        """Record that a batch was refused with ``error``. Only retriable errors count."""
        if not error.retriable or header.producer_id < 0 or header.base_sequence < 0:
            return
        known = self.first.get(header.producer_id)
        if known is not None and (
            header.producer_epoch < known.epoch
            or (
                header.producer_epoch == known.epoch
                and _comes_after(header.base_sequence, known.sequence)
            )
        ):
            return
        self.first.pop(header.producer_id, None)
        if len(self.first) >= MAX_PRODUCERS:
            del self.first[next(iter(self.first))]
        self.first[header.producer_id] = Refusal(
            header.producer_epoch, header.base_sequence, _kind(error), str(error), now_ms
        )

    def check(self, header: BatchHeader) -> None:
        """Check that a batch may be the first one of a producer that the partition does not know.

        Raises:
            TidemillError: an earlier batch was refused with an error of this type.
        """
        first = self.first.get(header.producer_id)
        if (
            first is not None
            and first.epoch == header.producer_epoch
            and _comes_after(header.base_sequence, first.sequence)
        ):
            raise first.kind(
                f"producer {header.producer_id} sent sequence {header.base_sequence}, but sequence "
                f"{first.sequence} was refused and must be sent first: {first.message}"
            )

    def forget(self, producer_id: int) -> None:
        """Drop a producer's refusal: a batch was appended, and its sequences are checked now."""
        self.first.pop(producer_id, None)

    def expire(self, now_ms: int) -> None:
        """Drop refusals that are ``KEPT_MS`` old."""
        for producer_id, first in list(self.first.items()):
            if now_ms - first.at_ms >= KEPT_MS:
                del self.first[producer_id]


def _kind(error: TidemillError) -> type[TidemillError]:
    """Return the type to raise for later batches; special kinds of StorageError become one."""
    if isinstance(error, StorageError) and not isinstance(error, DiskFullError):
        return StorageError
    return type(error)


def _comes_after(sequence: int, first: int) -> bool:
    # Sequences wrap: "after" is the shorter way round.
    return 0 < (sequence - first) % SEQUENCES < SEQUENCES // 2
