"""The producers of one partition, loaded from their snapshot at first use.

Most partitions have no idempotent producers, so opening a folder reads no snapshots. Knows the
snapshot; what is appended, and when it counts, is decided in ``append`` and ``partition``.
"""

from __future__ import annotations

from tidemill.log.partition.chain import SegmentChain
from tidemill.log.partition.producers import ProducerStates
from tidemill.log.partition.snapshots import load_producers
from tidemill.log.partition.transactions import OpenTransaction


class LazyProducers:
    """The producers and transactions of one partition.

    Attributes:
        loaded: the producers' states, or None if they were not read from their snapshot yet. Then
            no transaction is open.
        snapshot_offset: offset of the snapshot to load; -1 if there are no producers.
    """

    __slots__ = ("_chain", "loaded", "snapshot_offset")

    def __init__(
        self, chain: SegmentChain, states: ProducerStates | None, snapshot_offset: int
    ) -> None:
        self._chain = chain
        self.loaded: ProducerStates | None = None
        self.snapshot_offset = snapshot_offset
        if states is not None:
            self._use(states)

    @property
    def states(self) -> ProducerStates:
        """The producers' states; the first use reads the snapshot."""
        if self.loaded is None:
            return self._use(load_producers(self._chain, self.snapshot_offset))
        return self.loaded

    def _use(self, states: ProducerStates) -> ProducerStates:
        self.loaded = states
        states.show_in(self._chain.head)
        return states

    def expire(self, now_ms: int, expiry_ms: int) -> int:
        """Remove producers without an append for ``expiry_ms``; return how many were removed.

        Producers with an open transaction stay. Producers that are not loaded expire when they are.
        """
        return 0 if self.loaded is None else self.loaded.expire(now_ms, expiry_ms)

    def settle(self, high_watermark: int) -> None:
        """Release transactions whose marker is below the high watermark: it is synced."""
        if self.loaded is not None:
            self.loaded.unstable.settle(high_watermark)

    def stable_offset(self, high_watermark: int) -> int:
        """Return the last stable offset, which ``read_committed`` readers must not reach.

        It is the first offset of the oldest transaction that is open or whose marker is not synced
        yet, or the high watermark if there is no such transaction.
        """
        if self.loaded is not None:
            first = self.loaded.unstable.first_offset()
            if 0 <= first < high_watermark:
                # The transaction's first records can be deleted already.
                return max(first, self._chain.head.start_offset)
        return high_watermark

    @property
    def has_open_transactions(self) -> bool:
        """Whether a transaction has no marker yet. Reads nothing."""
        return self.loaded is not None and bool(self.loaded.unstable.open)

    def open_transactions(self) -> list[OpenTransaction]:
        """Return the transactions without a marker, oldest first."""
        return [] if self.loaded is None else self.loaded.open_transactions()
