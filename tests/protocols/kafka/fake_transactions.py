"""A fake of the engine's transactions: canned answers, recorded calls."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from tidemill.engine.api import (
    InitProducer,
    ProducerIdentity,
    TransactionDescription,
    TransactionListing,
    TransactionState,
    TransactionVersion,
    TxnOffsetCommit,
)
from tidemill.errors import TidemillError
from tidemill.log.format.markers import Marker
from tidemill.log.names import TopicPartition

DESCRIBED = TransactionDescription(
    "payments",
    TransactionState.ONGOING,
    ProducerIdentity(7, 3),
    60_000,
    1_700_000_000_000,
    (TopicPartition("orders", 2), TopicPartition("users", 0), TopicPartition("orders", 0)),
)


class Answers:
    """Canned answers and recorded calls.

    Attributes:
        answers: name of a call -> its answer. An error is raised.
        calls: (name, arguments) of all calls.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.answers: dict[str, Any] = {}

    def answer(self, call: str, arguments: Any, default: Any) -> Any:
        """Record a call and return its answer, or raise it."""
        self.calls.append((call, arguments))
        answer = self.answers.get(call, default)
        if isinstance(answer, TidemillError):
            raise answer
        return answer


class FakeTransactions:
    """Answers like ``engine.transactions``."""

    def __init__(self, answers: Answers) -> None:
        self._answer = answers.answer
        self._producers = 0

    async def new_producer(self) -> ProducerIdentity:
        self._producers += 1
        new = ProducerIdentity(1000 + self._producers, 0)
        identity: ProducerIdentity = self._answer("new_producer", None, new)
        return identity

    async def init(self, request: InitProducer) -> ProducerIdentity:
        identity: ProducerIdentity = self._answer(
            "init_transactional_producer", request, ProducerIdentity(7, 3)
        )
        return identity

    async def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Sequence[tuple[str, int]],
    ) -> list[TidemillError | None]:
        arguments = (transactional_id, producer, list(partitions))
        return list(self._answer("add_partitions", arguments, [None] * len(partitions)))

    async def verify_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Sequence[tuple[str, int]],
    ) -> list[TidemillError | None]:
        arguments = (transactional_id, producer, list(partitions))
        return list(self._answer("verify_partitions", arguments, [None] * len(partitions)))

    async def add_group(
        self, transactional_id: str, producer: ProducerIdentity, group_id: str
    ) -> None:
        self._answer("add_offsets", (transactional_id, producer, group_id), None)

    async def commit_offsets(self, request: TxnOffsetCommit) -> list[TidemillError | None]:
        default = [None] * len(request.commit.offsets)
        return list(self._answer("commit_transaction_offsets", request, default))

    async def end(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        commit: bool,
        version: TransactionVersion,
    ) -> ProducerIdentity:
        arguments = (transactional_id, producer, commit, version)
        bumped = ProducerIdentity(producer.producer_id, min(producer.epoch + 1, 32_767))
        identity: ProducerIdentity = self._answer("end_transaction", arguments, bumped)
        return identity

    def listings(
        self,
        states: Collection[TransactionState] = (),
        producer_ids: Collection[int] = (),
        min_duration_ms: int | None = None,
        id_pattern: str | None = None,
    ) -> list[TransactionListing]:
        arguments = (list(states), list(producer_ids), min_duration_ms, id_pattern)
        default = [TransactionListing("payments", 7, TransactionState.ONGOING)]
        return list(self._answer("list_transactions", arguments, default))

    def describe(self, transactional_id: str) -> TransactionDescription:
        described: TransactionDescription = self._answer(
            "describe_transaction", transactional_id, DESCRIBED
        )
        return described

    async def write_markers(
        self, markers: Sequence[tuple[Marker, Sequence[TopicPartition]]]
    ) -> list[list[TidemillError | None]]:
        default = [[None] * len(partitions) for _, partitions in markers]
        return list(self._answer("write_markers", markers, default))
