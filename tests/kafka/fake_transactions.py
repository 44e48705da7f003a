"""The transactional part of the door: canned answers, recorded calls.

``answers`` holds what a method answers (an error is raised); ``calls`` what was asked.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from tidemill.broker.api import (
    InitProducer,
    ProducerIdentity,
    TransactionDescription,
    TransactionListing,
    TransactionState,
    TransactionVersion,
    TxnOffsetCommit,
)
from tidemill.errors import TidemillError
from tidemill.log.names import TopicPartition
from tidemill.log.transactions import Marker

DESCRIBED = TransactionDescription(
    "payments",
    TransactionState.ONGOING,
    ProducerIdentity(7, 3),
    60_000,
    1_700_000_000_000,
    (TopicPartition("orders", 2), TopicPartition("users", 0), TopicPartition("orders", 0)),
)


class FakeTransactions:
    """Mixin: answers from attributes; an exception as an answer is raised."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.answers: dict[str, Any] = {}

    def _answer(self, call: str, arguments: Any, default: Any) -> Any:
        self.calls.append((call, arguments))
        answer = self.answers.get(call, default)
        if isinstance(answer, TidemillError):
            raise answer
        return answer

    async def init_producer_id(self, transactional_id: str | None) -> tuple[int, int]:
        identity: tuple[int, int] = self._answer("init_producer_id", transactional_id, (1000, 0))
        return identity

    async def init_transactional_producer(self, request: InitProducer) -> ProducerIdentity:
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

    async def add_offsets(
        self, transactional_id: str, producer: ProducerIdentity, group_id: str
    ) -> None:
        self._answer("add_offsets", (transactional_id, producer, group_id), None)

    async def commit_transaction_offsets(
        self, request: TxnOffsetCommit
    ) -> list[TidemillError | None]:
        default = [None] * len(request.commit.offsets)
        return list(self._answer("commit_transaction_offsets", request, default))

    async def end_transaction(
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

    def list_transactions(
        self,
        states: Collection[TransactionState] = (),
        producer_ids: Collection[int] = (),
        duration_ms: int = -1,
        id_pattern: str | None = None,
    ) -> list[TransactionListing]:
        arguments = (list(states), list(producer_ids), duration_ms, id_pattern)
        default = [TransactionListing("payments", 7, TransactionState.ONGOING)]
        return list(self._answer("list_transactions", arguments, default))

    def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        described: TransactionDescription = self._answer(
            "describe_transaction", transactional_id, DESCRIBED
        )
        return described

    async def write_markers(
        self, markers: Sequence[tuple[Marker, Sequence[TopicPartition]]]
    ) -> list[list[TidemillError | None]]:
        default = [[None] * len(partitions) for _, partitions in markers]
        return list(self._answer("write_markers", markers, default))
