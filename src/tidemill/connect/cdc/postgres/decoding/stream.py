"""Turns the messages of pgoutput into committed changes, in commit order.

It holds the place in the stream: transactions that are complete, and how far a transaction was
delivered, so that a large one can continue after a crash at the change where it stopped.
Must not know: sockets, the catalog, Kafka.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from dataclasses import replace
from struct import Struct, error
from typing import NamedTuple

from tidemill.connect.cdc.contract import Change, Table, TransactionEnd
from tidemill.connect.cdc.packed import Changes
from tidemill.connect.cdc.postgres.decoding import messages
from tidemill.connect.cdc.postgres.decoding.messages import Commit
from tidemill.connect.cdc.postgres.decoding.packed_rows import (
    Run,
    Scan,
    Transaction,
    decode_change,
    scan,
)
from tidemill.connect.cdc.postgres.decoding.shapes import Shape, Shapes
from tidemill.connect.cdc.postgres.decoding.spool import Spool, Spools
from tidemill.connect.cdc.postgres.errors import ProtocolError
from tidemill.connect.cdc.postgres.lsn import POSTGRES_EPOCH_US, Place

OWN_PREFIX = "tidemill"
"""Logical messages with this prefix are heartbeats of ours, and never delivered."""

_u32 = Struct(">I").unpack_from
_u64 = Struct(">Q").unpack_from
_i64 = Struct(">q").unpack_from
_KIND = 25
_MOST_KEYS = 100_000
"""Most keys of a transaction that are remembered for tables with a deferrable key."""

_ROWS = frozenset((messages.INSERT, messages.UPDATE, messages.DELETE))


class Collected(NamedTuple):
    """Changes, the transactions that ended with them, and ids of tables that were truncated."""

    changes: Changes
    ended: list[TransactionEnd]
    truncated: list[str]


class Stream:
    """Takes messages and collects changes.

    Args:
        shapes: The tables of the stream.
        place: Where the stream starts; changes up to there are skipped.
        spool_dir: Folder for large transactions.

    Attributes:
        changes: Changes that were collected since the last ``take``.
        incomplete: Those of them whose new row lacks values that are stored out of line.
        contested: Those deletes whose key another row possibly has, with their tables.
        ended: Transactions that ended since then.
        truncated: Ids of tables that were truncated since then.
        size: Bytes of the messages of these changes.
        delivered: Numbers of transactions that were delivered lately, for ``visibility``.
    """

    def __init__(self, shapes: Shapes, place: Place, spool_dir: str | None = None) -> None:
        self._shapes = shapes
        self._lsn = place.lsn
        self._resume: Place | None = place if place.commit else None
        self._spools = Spools(spool_dir)
        self._streamed = 0  # number of the transaction whose part is being received
        self._replayed: Iterator[None] | None = None
        self._commit = 0
        self._change = 0
        self._count = 0
        self._is_skipped = False
        self._has_changes = False
        self._xid = 0
        self._id = ""
        self._ts_ms = 0
        self.changes = Changes()
        self.incomplete: list[tuple[Change, Table]] = []
        self.contested: list[tuple[Change, Table]] = []
        self._keys: set[str] | None = set()  # that rows got in this transaction; None: unknown
        self.ended: list[TransactionEnd] = []
        self.truncated: list[str] = []
        self.delivered: set[int] = set()
        self.size = 0

    @property
    def place(self) -> Place:
        """The place behind everything that was collected, here or before a restart.

        It never goes back. Until the transaction that was delivered in part is sent again, and past
        the changes that are skipped in it, it is the place where the stream was started.
        """
        here = Place(self._lsn)
        if self._commit and self._change and not self._is_skipped:
            here = Place(self._lsn, self._commit, self._change, self._count)
        return here if self._resume is None else max(here, self._resume)

    @property
    def is_replaying(self) -> bool:
        """Whether a large transaction has more changes to deliver before the next message."""
        return self._replayed is not None

    def keepalive(self, lsn: int) -> None:
        """Take note that the server has nothing more up to this place."""
        if not self._commit:
            self._lsn = max(self._lsn, lsn)

    def take(self) -> Collected:
        """Return what was collected since the last call."""
        found = Collected(self.changes, self.ended, self.truncated)
        self.changes, self.incomplete, self.ended, self.truncated = Changes(), [], [], []
        self.contested = []
        self.size = 0
        return found

    def replay(self, changes: int, size: int) -> None:
        """Deliver a large transaction until so many changes or bytes are collected."""
        while self._replayed is not None and len(self.changes) < changes and self.size < size:
            next(self._replayed, None)

    def feed_all(self, received: list[bytes], at: int) -> int:
        """Take messages with their headers until a large transaction has to be replayed.

        Rows that need no decision are kept as they are.

        Args:
            received: The messages. They must not be changed afterwards.
            at: The first one.

        Returns:
            The place behind the last message that was taken.
        """
        while at < len(received) and self._replayed is None:
            if not (self._streamed or self._is_skipped or self._resume):
                found = scan(self._shapes.layouts().counts, received, at)
                if found.end > at and self._commit:
                    self._take_run(received, at, found)
                    at = found.end
                    continue
            self.feed(received[at])
            at += 1
        return at

    def _take_run(self, received: list[bytes], at: int, found: Scan) -> None:
        layouts = self._shapes.layouts()
        self.changes.add(Run(layouts, received, at, found.end, self._transaction()))
        is_same = found.same == found.end - at and found.lsn == self._change
        self._count = found.same + (self._count if is_same else 0)
        self._change = found.lsn
        self._has_changes = True
        self.size += found.size

    def feed(self, data: bytes) -> None:
        """Take one message with its header."""
        try:
            self._feed(data)
        except (IndexError, ValueError, error) as fault:
            raise ProtocolError(
                f"a message of {len(data)} bytes can't be decoded: {fault}"
            ) from fault

    def _feed(self, data: bytes) -> None:
        kind = data[_KIND]
        if not self._streamed and kind in _ROWS:  # nearly all messages
            self._apply(data, _KIND, _u64(data, 1)[0])
        elif kind == messages.STREAM_STOP:
            self._streamed = 0
        elif kind == messages.STREAM_START:
            self._streamed = messages.xid_of(data, _KIND + 1)
        elif self._streamed:
            self._keep(data, kind)
        elif kind == messages.STREAM_COMMIT:
            xid, commit = messages.stream_commit(data, _KIND + 1)
            self._begin(commit.commit_lsn, commit.commit_us, xid)
            self._replayed = self._replay(self._spools.take(xid), commit)
        elif kind == messages.STREAM_ABORT:
            self._spools.abort(*messages.stream_abort(data, _KIND + 1))
        else:
            self._apply(data, _KIND, _u64(data, 1)[0])

    def close(self) -> None:
        """Drop what is spooled."""
        self._replayed = None
        self._spools.close()

    def _keep(self, data: bytes, kind: int) -> None:
        if kind == messages.MESSAGE and not data[_KIND + 5] & 1:  # it belongs to no transaction
            self._message(data[_KIND + 5 :], 0, _u64(data, 1)[0], data)
            return
        sub = messages.xid_of(data, _KIND + 1)
        message = data[_KIND : _KIND + 1] + data[_KIND + 5 :]
        self._spools.of(self._streamed).add(sub, _u64(data, 1)[0], message)

    def _replay(self, spool: Spool | None, commit: Commit) -> Iterator[None]:
        try:
            if spool is not None:
                yield from self._replay_messages(spool)
        finally:
            if spool is not None:
                spool.close()
        self._replayed = None
        self._end(commit)

    def _replay_messages(self, spool: Spool) -> Iterator[None]:
        descriptions = (messages.RELATION, messages.TYPE)
        for sub, lsn, message in spool.messages():
            # The server describes a table once for a transaction, possibly in a savepoint that
            # was rolled back later. So descriptions count always.
            if sub in spool.aborted and message[0] not in descriptions:
                continue
            self._apply(message, 0, lsn)
            yield

    def _apply(self, data: bytes, at: int, lsn: int) -> None:
        kind = data[at]
        if kind in _ROWS:
            shape = self._shapes[_u32(data, at + 1)[0]]
            if self._passes(lsn) and shape.table is not None:
                self._row(shape, shape.table, data, at, lsn)
                self.size += len(data)
        elif kind == messages.BEGIN:
            begun = messages.begin(data, at + 1)
            self._begin(begun.commit_lsn, begun.commit_us, begun.xid)
        elif kind == messages.COMMIT:
            self._end(messages.commit(data, at + 1))
        elif kind == messages.RELATION:
            self._shapes.describe(messages.relation(data, at + 1), lsn, self._commit)
        elif kind == messages.TRUNCATE:
            self._truncate(messages.truncate(data, at + 1), lsn)
        elif kind == messages.MESSAGE:
            self._message(data, at + 1, lsn, data)
        elif kind not in (messages.TYPE, messages.ORIGIN):
            raise ProtocolError(f"unknown message {chr(kind)!r} of pgoutput")

    def _begin(self, commit_lsn: int, commit_us: int, xid: int) -> None:
        self._is_skipped = commit_lsn < self._lsn
        self._commit, self._change, self._count = commit_lsn, 0, 0
        self._lsn = max(self._lsn, commit_lsn)
        self._has_changes = False
        is_resumed = self._resume is not None and self._resume.commit == commit_lsn
        self._keys = None if is_resumed else set()
        self._xid, self._id = xid, f"{xid}:{commit_lsn}"
        self.delivered.add(xid)
        self._ts_ms = commit_us // 1000

    def _end(self, commit: Commit) -> None:
        if self._has_changes and not self._is_skipped:
            self.ended.append(TransactionEnd(self._id, self._ts_ms))
        if self._resume is not None and self._resume.commit <= commit.commit_lsn:
            self._resume = None
        self._commit = self._change = self._count = 0
        self._is_skipped = False
        self._lsn = max(self._lsn, commit.end_lsn)

    def _passes(self, lsn: int) -> bool:
        """Count a change; return whether it was not delivered before."""
        if lsn == self._change:
            self._count += 1
        else:
            self._change, self._count = lsn, 1
        self._has_changes = True
        if self._is_skipped:
            return False
        resume = self._resume
        return (
            resume is None
            or resume.commit != self._commit
            or (lsn, self._count) > (resume.change, resume.count)
        )

    def _row(self, shape: Shape, table: Table, data: bytes, at: int, lsn: int) -> None:
        change = decode_change(data, at, lsn, shape, table, self._transaction())
        after = change.after
        if after is not None and len(after) != len(shape.names):
            # Under REPLICA IDENTITY FULL the old row has the values that were not changed.
            known = {**(change.before or {}), **after}
            change.after = {name: known[name] for name in shape.names if name in known}
            if len(change.after) != len(shape.names):
                self.incomplete.append((change, table))
        if shape.has_deferrable_key and table.key:
            self._watch_key(change, table)
        self.changes.append(change)

    def _watch_key(self, change: Change, table: Table) -> None:
        """Collect a delete of a key that another row got before in this transaction.

        A change of such a key becomes two changes: the delete and the create.
        """
        before, after = change.before, change.after
        new = None if after is None else repr([table.id, *(after.get(each) for each in table.key)])
        old = (
            None if before is None else repr([table.id, *(before.get(each) for each in table.key)])
        )
        if old is not None and old != new and (self._keys is None or old in self._keys):
            gone = change
            if change.op == "u":
                gone = replace(change, op="d", after=None)
                change.op, change.before = "c", None
                self.changes.append(gone)
            self.contested.append((gone, table))
        if self._keys is not None and new is not None and new != old:
            self._keys.add(new)
            if len(self._keys) > _MOST_KEYS:
                self._keys = None

    def _transaction(self) -> Transaction:
        return Transaction(self._commit, self._xid, self._id, self._ts_ms)

    def _truncate(self, oids: list[int], lsn: int) -> None:
        for oid in oids:
            table = self._shapes[oid].table
            if self._passes(lsn) and table is not None:
                source = {"lsn": lsn, "commit_lsn": self._commit, "txId": self._xid}
                self.changes.append(Change(table, "t", None, None, self._ts_ms, source, self._id))
                self.truncated.append(table.id)

    def _message(self, data: bytes, at: int, lsn: int, whole: bytes) -> None:
        found = messages.message(data, at)
        if found.is_transactional:
            passes = self._passes(lsn)
            ts_ms, source = self._ts_ms, {"lsn": lsn, "commit_lsn": self._commit, "txId": self._xid}
        else:
            passes = found.lsn > self._lsn
            self.keepalive(found.lsn)
            ts_ms = (_i64(whole, 17)[0] + POSTGRES_EPOCH_US) // 1000
            source = {"lsn": found.lsn}
        if not passes or found.prefix.partition(".")[0] == OWN_PREFIX:
            return
        after = {"prefix": found.prefix, "content": b64encode(found.content).decode("ascii")}
        transaction = self._id if found.is_transactional else None
        self.changes.append(Change(None, "m", None, after, ts_ms, source, transaction))
