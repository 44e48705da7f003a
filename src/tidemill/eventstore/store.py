"""A store of events in a topic. Any number of threads and processes use it at the same time.

``append`` checks a commit against what this process has folded, proposes it as one record, and
answers when the record comes back in the tail, folded like everyone else's. Reads see at least what
this process has written. Must not know: how commits are encoded, SQLite.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tidemill.confluent.clients import Kafka
from tidemill.confluent.errors import FAILURES, error_in
from tidemill.errors import TidemillError, UnreachableError
from tidemill.eventstore import wire
from tidemill.eventstore.errors import (
    EventStoreError,
    InvalidCommitError,
    OutcomeUnknownError,
)
from tidemill.eventstore.events import (
    Condition,
    StreamAppend,
)
from tidemill.eventstore.fold import Outcome, decide
from tidemill.eventstore.folded import FoldedStore
from tidemill.eventstore.index import About, IndexFile, mismatch
from tidemill.eventstore.index_files import index_path, remove
from tidemill.eventstore.indexing import STEPS, Indexing
from tidemill.eventstore.log import Log, Record
from tidemill.eventstore.proposals import Answer, Proposals
from tidemill.eventstore.state import Head, State, check_fold, fingerprint

TIMEOUT_S = 15.0
"""How long an append waits for its outcome by default."""
_POLL_S = 0.1
"""How often the tail looks whether the store is closed, or a record could not be sent."""
_BATCH = 64
"""Records that are folded while writers and readers wait."""

_log = logging.getLogger("tidemill.eventstore")


class Store(FoldedStore):
    """A store of events in a topic of one partition.

    Args:
        kafka: the cluster, or its ``bootstrap.servers``.
        topic: the topic. It is created if it is missing.
        create: whether to create it.
        configs: further configs of the topic, if it is created.
        folder: the folder of the index; by default one for each cluster below
            ``~/.cache/tidemill/eventstore`` (or ``XDG_CACHE_HOME``). Processes share it.
        timeout_s: how long an append waits for its outcome, and how long the log may take to be
            read to its end at the start without any progress.

    Attributes:
        topic, folder: as given.
        timeout_s: how long an append waits for its outcome.

    Raises:
        UnsuitableTopicError: the topic can lose commits.
        IndexMismatchError: the index belongs to another log, or to a longer one.
        IndexUnusableError: the index can't be opened or created.
        NewerFoldError: the log asks for rules that this version does not have.
        UnreachableError: no broker answers.
    """

    def __init__(
        self,
        kafka: Kafka | str,
        topic: str,
        *,
        create: bool = True,
        configs: Mapping[str, str] | None = None,
        folder: Path | str | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.topic = topic
        self.folder = folder
        self._pid = os.getpid()
        self._proposals = Proposals(self._decide, self._send)
        self._log = Log(Kafka(kafka) if isinstance(kafka, str) else kafka, topic)
        self.identity = self._log.prepare(create=create, configs=dict(configs or {}))
        about = About(self.identity.cluster, topic, self.identity.topic_id)
        self._index = IndexFile(index_path(self.identity.cluster, topic, folder), about)
        self._indexed = self._index.indexed()
        super().__init__(State(self._index, self._indexed.head), timeout_s)
        self._read = max(self._state.offset, 0)  # the last record is read again, to check it
        self._is_checked = self._state.offset < 0
        self._indexing = Indexing(self._index, self._state, self._changed, self._fail)
        self._thread = threading.Thread(target=self._run, name=f"store {topic}", daemon=True)
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        """Read the log to its end, from the last record on that the index has."""
        end, head = self._log.end(), self._indexed.head
        check_fold(head.fold)  # a newer process can have written the index
        if head.offset >= end:
            raise mismatch(self._index.path, f"has offset {head.offset}, and the log ends at {end}")
        self._log.tail(max(head.offset, 0))
        self._indexing.start()
        self._thread.start()
        self.catch_up()

    # Writing.

    def _propose(
        self,
        appends: Sequence[StreamAppend],
        conditions: Sequence[Condition],
        answer: Answer,
        **more: Any,
    ) -> bytes:
        self._check_usable()
        with self._changed:
            seen = (self._state.position, self._state.hash)
        commit = wire.propose(os.urandom(16), appends, conditions, seen, **more)
        self._proposals.submit(commit, answer)
        return commit.id

    def _decide(self, commit: wire.Commit) -> Outcome:
        with self._changed:
            return decide(self._state, commit)

    def _send(self, commit_id: bytes, value: bytes) -> None:
        self._log.send(value, lambda error: self._proposals.settle(commit_id, error))

    def abandon(self, commit_id: bytes) -> None:
        """Don't wait for the outcome of a commit any more. It may be stored nevertheless."""
        self._proposals.abandon(commit_id)

    # The tail.

    def catch_up(self) -> None:
        """Fold all that is in the log now.

        Raises:
            UnreachableError: no broker answers, or nothing was read for ``timeout_s`` seconds.
        """
        end = self._log.end()
        with self._changed:
            while self._read < end:
                before = self._read
                self._changed.wait_for(self._has_progress(before), self.timeout_s)
                self._check_failure()
                if self._read == before:
                    raise UnreachableError(
                        f"topic {self.topic!r} can't be read to its end: nothing came for "
                        f"{self.timeout_s:g} s at offset {before} of {end}"
                    )

    def _has_progress(self, before: int) -> Callable[[], bool]:
        return lambda: self._read > before or self.failure is not None

    def wait_indexed(self) -> None:
        """Wait until the index has all that is folded."""
        with self._changed:
            offset = self._state.offset
            while self._state.steps and self._state.steps[0].offset <= offset:
                self._check_usable()
                self._changed.wait(_POLL_S)

    def _run(self) -> None:
        """Read and fold the log until the store is closed, or can't be used any more."""
        try:
            while not self.is_closed:
                records = self._behind_index(self._log.poll(_POLL_S))
                while batch := list(itertools.islice(records, _BATCH)):
                    self._fold(batch)
                self._reach(self._log.read())
        except TidemillError as error:
            self._fail(error)
        except FAILURES as error:
            found = error_in(error)
            if found is not None:  # a bare KafkaError has no traceback: it can't be logged as one
                self._fail(EventStoreError(f"the client of the store failed: {found.str()}"))
                return
            _log.exception("the tail of store %s failed", self.topic)
            self._fail(error)

    def _behind_index(self, records: Iterator[Record]) -> Iterator[Record]:
        """Yield the records behind the last one that the index had at the start. Check that one.

        Raises:
            IndexMismatchError: the log has another record there, or none.
        """
        head = self._indexed.head
        for record in records:
            if record.offset == head.offset:
                self._is_checked = fingerprint(record.value) == self._indexed.digest
            if not self._is_checked and record.offset >= head.offset:
                raise mismatch(self._index.path, f"has another record at offset {head.offset}")
            if record.offset > head.offset:
                yield record

    def _fold(self, records: list[Record]) -> None:
        self._wait_for_memory()
        answers = []
        with self._changed:
            for record in records:
                commit = wire.decode(record.value)
                outcome = self._state.step(record.offset, record.value, commit, record.time_ms)
                commit_id = wire.commit_id(record.value)
                if commit_id is not None:
                    answers.append((commit_id, outcome or InvalidCommitError("it is foreign")))
            self._read = self._state.offset + 1
            self.notify()
        for commit_id, found in answers:
            self._proposals.settle(commit_id, found)

    def _wait_for_memory(self) -> None:
        """Wait as long as the memory of what the index lacks is full."""
        if self._indexing.is_full or len(self._state.steps) >= STEPS:
            self._indexing.wake()
        with self._changed:
            while self._indexing.is_full and not self.is_closed:
                self._check_failure()
                self._changed.wait(_POLL_S)
                self._indexing.wake()

    def _reach(self, offset: int) -> None:
        """Note that the log was read to an offset: behind the last record can be others' marks."""
        if offset > self._read:
            with self._changed:
                self._read = offset
                self.notify()

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self.failure = error
            self.notify()
        self._proposals.fail(OutcomeUnknownError(f"the store failed: {error}"))

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise EventStoreError(
                "a store can't be used behind a fork",
                hint="Open a store in each process, for example in a hook of the web server.",
            )
        super()._check_usable()
        if self.is_closed:
            raise EventStoreError("the store is closed")

    def close(self) -> None:
        """End the tail and all that follows the store. What waits for an outcome is not told."""
        with self._changed:
            if self.is_closed:
                return
            self.is_closed = True
            self.notify()
        if os.getpid() == self._pid:
            if self._thread.is_alive():
                self._thread.join()
            self._indexing.close()
            self._index.close()
            self._log.close()
        self._proposals.fail(OutcomeUnknownError("the store was closed"))


def rebuild(
    kafka: Kafka | str,
    topic: str,
    *,
    folder: Path | str | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Head:
    """Delete the index of a topic, and build it again from the log.

    Returns:
        The point up to which the log was read.

    Raises:
        IndexUnusableError: another process uses it.
    """
    kafka = Kafka(kafka) if isinstance(kafka, str) else kafka
    with contextlib.closing(Log(kafka, topic)) as log:
        identity = log.prepare(create=False)
    remove(index_path(identity.cluster, topic, folder))
    with Store(kafka, topic, create=False, folder=folder, timeout_s=timeout_s) as store:
        return store.head()
