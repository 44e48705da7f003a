"""Verifies a store: folds its whole log again, and compares what writers and others have noted.

Each commit carries the position and the chain hash that its writer had folded. A commit that was
changed, removed or inserted behind the back of the store changes the chain, so that the next commit
does not fit. An exported head proves that the log still begins as it did then. Must not know: how
an index is used.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidemill.confluent.clients import Kafka
from tidemill.eventstore import wire
from tidemill.eventstore.fold import Accepted, Repeated
from tidemill.eventstore.index import About, IndexFile
from tidemill.eventstore.index_writing import IndexWriter
from tidemill.eventstore.log import Log, Record
from tidemill.eventstore.state import GENESIS, Head, State

_STEPS = 1000
"""Records that one transaction writes to the temporary index."""
_REMEMBERED = 100_000
"""Positions whose hashes are in memory. What a writer has seen longer ago is not compared."""


@dataclass(frozen=True, slots=True)
class Break:
    """The first place at which a log does not fit together.

    Attributes:
        offset: of the record that does not fit. What was changed is that one, or lies between
            ``after`` and it.
        after: the last position that was confirmed.
        why: what does not fit.
    """

    offset: int
    after: int
    why: str


@dataclass(frozen=True, slots=True)
class Verified:
    """The findings in a log.

    Attributes:
        head: the point up to which it was read. Keep it elsewhere, to compare later.
        accepted, repeated, void, foreign: numbers of records.
        unchecked: commits whose writer had seen a position so long ago that it was not compared.
        first_break: None if all fits together.
    """

    head: Head
    accepted: int
    repeated: int
    void: int
    foreign: int
    unchecked: int
    first_break: Break | None


def verify(
    kafka: Kafka | str,
    topic: str,
    *,
    heads: Sequence[tuple[int, bytes]] = (),
    before: Iterable[Record] = (),
) -> Verified:
    """Read a store from its beginning to its present end, and verify it.

    Args:
        heads: positions with their chain hashes, as noted elsewhere: ``Store.head()``, or a result
            of this function.
        before: the records that were archived, in their order.

    Raises:
        UnsuitableTopicError: there is no such store.
        IndexMismatchError: the log does not have its beginning.
        UnreachableError: no broker answers.
    """
    kafka = Kafka(kafka) if isinstance(kafka, str) else kafka
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(contextlib.closing(Log(kafka, topic)))
        identity = log.prepare(create=False)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidemill-verify-")))
        about = About(identity.cluster, topic, identity.topic_id)
        index = stack.enter_context(contextlib.closing(IndexFile(folder / "index", about)))
        writer = stack.enter_context(contextlib.closing(IndexWriter(index)))
        verifier = _Verifier(State(index), writer, heads)
        following = 0
        for record in before:
            verifier.take(record)
            following = record.offset + 1
        for record in log.scan(following):
            verifier.take(record)
        return verifier.end()


class _Verifier:
    def __init__(
        self, state: State, writer: IndexWriter, heads: Sequence[tuple[int, bytes]]
    ) -> None:
        self._state = state
        self._writer = writer
        self._heads: dict[int, set[bytes]] = {}
        for position, noted in heads:
            self._heads.setdefault(position, set()).add(noted)
        # A commit without events changes the hash, and not the position.
        self._hashes: OrderedDict[int, set[bytes]] = OrderedDict({0: {GENESIS}})
        self._confirmed = 0
        self._break: Break | None = None
        self._counts = {"accepted": 0, "repeated": 0, "void": 0, "foreign": 0, "unchecked": 0}

    def take(self, record: Record) -> None:
        """Fold a record, after its writer's note was compared."""
        commit = wire.decode(record.value)
        if commit is not None:
            self._compare(record.offset, commit)
        before = self._state.position
        outcome = self._state.step(record.offset, record.value, commit, record.time_ms)
        if outcome is None:
            self._counts["foreign"] += 1
        elif isinstance(outcome, Accepted):
            self._counts["accepted"] += 1
            self._note(record.offset, before)
        else:
            self._counts["repeated" if isinstance(outcome, Repeated) else "void"] += 1
        if len(self._state.steps) >= _STEPS:
            self._state.drop(self._writer.write(list(self._state.steps)).head.offset)

    def _compare(self, offset: int, commit: wire.Commit) -> None:
        position, chain = commit.seen
        if not chain:
            self._counts["unchecked"] += 1
        elif position > self._state.position:
            self._found(offset, f"its writer had folded position {position}, which is not there")
        elif position not in self._hashes:
            self._counts["unchecked"] += 1
        elif chain not in self._hashes[position]:
            self._found(offset, f"its writer had folded another history up to position {position}")
        else:
            self._confirmed = max(self._confirmed, position)

    def _note(self, offset: int, before: int) -> None:
        """Note the hash behind an accepted commit; compare it with the noted heads."""
        position = self._state.position
        self._hashes.setdefault(position, set()).add(self._state.hash)
        while len(self._hashes) > _REMEMBERED:
            self._hashes.popitem(last=False)
        for noted in [each for each in self._heads if each <= before and position > before]:
            self._judge(offset, noted)

    def _judge(self, offset: int, noted: int) -> None:
        """Compare a noted head whose position was left behind, or that is at the end."""
        if not self._heads.pop(noted) <= self._hashes.get(noted, set()):
            self._found(offset, f"the noted hash of position {noted} is another one")
        else:
            self._confirmed = max(self._confirmed, noted)

    def _found(self, offset: int, why: str) -> None:
        if self._break is None:
            self._break = Break(offset, self._confirmed, why)

    def end(self) -> Verified:
        """Compare the remaining heads, and return what was found."""
        for noted in sorted(self._heads):
            self._judge(self._state.offset, noted)
        return Verified(self._state.head(), **self._counts, first_break=self._break)
