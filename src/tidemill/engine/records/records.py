"""The part of the door that appends and reads records. Knows no protocol."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from tidemill.engine.access import Check, Part, Question, Row, asks
from tidemill.engine.api import (
    Durability,
    PartitionWrite,
    PendingWrites,
    ReadQuery,
    ReadResult,
    TransactionVersion,
    WriteResult,
)
from tidemill.engine.authorize import TOPIC, TRANSACTIONAL_ID, Access, Operation
from tidemill.engine.records.append import Appender
from tidemill.engine.records.append_runs import RunAppender
from tidemill.engine.records.backpressure import Backpressure
from tidemill.engine.records.checks import WriteOrder
from tidemill.engine.records.positions import Positions
from tidemill.engine.records.read import Reader
from tidemill.engine.runs import RunWrite

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class RecordServices:
    """The classes behind ``Records``, shared by all principals."""

    appender: Appender
    reader: Reader
    positions: Positions
    backpressure: Backpressure
    runs: RunAppender


class Records(Part):
    """Appends and reads records for one principal.

    What each produce and fetch calls is written by hand: a row costs a call more.
    """

    def __init__(self, services: RecordServices, access: Access) -> None:
        super().__init__(access, services.positions)
        self._order = WriteOrder()
        self._appender = services.appender
        self._reader = services.reader
        self._backpressure = services.backpressure
        self._runs = services.runs

    # --- append ----------------------------------------------------------------------------------

    @asks(
        Question(Operation.WRITE, TRANSACTIONAL_ID),
        Question(Operation.WRITE, TOPIC),
    )
    def append(
        self,
        writes: Sequence[PartitionWrite],
        durability: Durability = Durability.SYNCED,
        transactional_id: str | None = None,
        version: TransactionVersion = TransactionVersion.V1,
    ) -> list[WriteResult] | Awaitable[list[WriteResult]]:
        """Append encoded record batches, in order, and after all that was passed before.

        Short ones are appended during the call, others after their check in slices.

        A batch of a transaction needs the transactional id, and the coordinator must admit it.

        Returns:
            One result per write, in order. An awaitable of that, where the check takes long or the
            results must wait for fdatasync (``Durability.SYNCED``).

        Raises:
            TransactionalIdAuthorizationError: the principal can't use the transactional id.
        """
        if self._access.is_unrestricted:
            return self._appender.append(writes, durability, transactional_id, version, self._order)
        if transactional_id is not None:
            self._access.check(Operation.WRITE, TRANSACTIONAL_ID, transactional_id)
        refused = self._access.refusals(Operation.WRITE, TOPIC, (w.topic for w in writes))
        allowed = [w for w, error in zip(writes, refused, strict=True) if error is None]
        answer = self._appender.append(allowed, durability, transactional_id, version, self._order)
        if isinstance(answer, list):
            return _merged(refused, answer)
        return _merged_later(refused, answer)

    @property
    def takes_runs(self) -> bool:
        """Whether ``append_run`` can be used: nothing is to be waited for before."""
        return self._order.is_free and not self._backpressure.is_holding

    @asks(Question(Operation.WRITE, TOPIC))
    def append_run(
        self, run: list[RunWrite], durability: Durability, ends: Sequence[int]
    ) -> tuple[list[WriteResult], PendingWrites | None]:
        """Append checked ordinary batches; see ``RunAppender.append``. Only if ``takes_runs``.

        Args:
            durability: when they count as appended.
            ends: the number of batches up to the end of each request, which is appended as a whole.

        Returns:
            A result per batch at the front of the run that was appended or failed, and what they
            wait for. The rest are for ``append``: all, if one is for a topic that is refused.
        """
        if not self.takes_runs or not (
            self._access.is_unrestricted
            or self._access.allows_all(Operation.WRITE, TOPIC, (each[0].tp.topic for each in run))
        ):
            return [], None
        return self._runs.append(run, durability, ends)

    @asks()
    def hold_ms(self, partitions: Iterable[tuple[str, int]]) -> int:
        """Return how long a producer that wrote to these partitions must wait, in milliseconds.

        It is 0 unless a topic has the policy ``throttle`` and its group is too far behind (see
        ``engine.records.backpressure``). The caller should ask again before the time is over.
        """
        return self._backpressure.hold_ms(partitions)

    # --- read ------------------------------------------------------------------------------------

    @asks(Question(Operation.READ, TOPIC))
    def read_now(self, query: ReadQuery) -> list[ReadResult] | None:
        """Read stored batches from a few partitions without waiting.

        Returns:
            What ``read`` returns; None if that must wait, or if a topic is refused.
        """
        if self._access.is_unrestricted or self._access.allows_all(
            Operation.READ, TOPIC, (each.topic for each in query.partitions)
        ):
            return self._reader.read_now(query)
        return None

    @asks(Question(Operation.READ, TOPIC))
    async def read(self, query: ReadQuery) -> list[ReadResult]:
        """Read stored batches from many partitions.

        The call waits while fewer than ``min_bytes`` are there, up to ``max_wait_ms``. A partition
        with an error ends the wait.

        Returns:
            One result per partition, in the order of the query.
        """
        if self._access.is_unrestricted:
            return await self._reader.read(query)
        parts = query.partitions
        if self._access.allows_all(Operation.READ, TOPIC, (part.topic for part in parts)):
            return await self._reader.read(query)
        refused = self._access.refusals(Operation.READ, TOPIC, (part.topic for part in parts))
        errors = [None if error is None else ReadResult(error=error) for error in refused]
        if any(refused):
            allowed = [p for p, error in zip(parts, refused, strict=True) if error is None]
            query = replace(query, partitions=allowed, max_wait_ms=0)
        return _merged(errors, await self._reader.read(query))

    # --- the rest --------------------------------------------------------------------------------

    find_now = Row(Positions.find_now, Check(Operation.DESCRIBE, TOPIC, "topic"))
    find_offset = Row(Positions.find, Check(Operation.DESCRIBE, TOPIC, "topic"))
    is_awaited = Row(Positions.is_awaited, Check(Operation.DESCRIBE, TOPIC, "topic"))
    delete_before = Row(Positions.delete_before, Check(Operation.DELETE, TOPIC, "topic"))
    end_of_epoch = Row(Positions.end_of_epoch, Check(Operation.DESCRIBE, TOPIC, "topic"))
    producers = Row(Positions.producers, Check(Operation.READ, TOPIC, "topic"))


def _merged(errors: Sequence[R | None], results: Sequence[R]) -> list[R]:
    """Return the errors, with the results of the others in their places."""
    following = iter(results)
    return [next(following) if error is None else error for error in errors]


async def _merged_later(errors: Sequence[R | None], work: Awaitable[Sequence[R]]) -> list[R]:
    return _merged(errors, await work)
