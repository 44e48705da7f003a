"""Share groups: requests of their members."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from tests.protocols.kafka.trees import Tree, picked
from tests.protocols.kafka.wire import Client

HEARTBEAT, FETCH, ACKNOWLEDGE = 76, 78, 79
NONE = 0


class Group:
    """The members of a share group, which share one connection.

    Attributes:
        epochs: of the share session of each member.
    """

    def __init__(self, client: Client, topic_id: UUID, group_id: str = "g") -> None:
        self.client = client
        self.topic_id = topic_id
        self.group_id = group_id
        self.epochs: dict[str, int] = {}

    async def join(self, member: str) -> None:
        tree = {"member_id": member, "member_epoch": 0, "subscribed_topic_names": ["t"]}
        answer = await self.client.call(HEARTBEAT, 1, tree | {"group_id": self.group_id})
        assert answer["error_code"] == NONE
        self.epochs[member] = 0

    def _session(self, member: str) -> Tree:
        epoch = self.epochs[member]
        return {"group_id": self.group_id, "member_id": member, "share_session_epoch": epoch}

    async def fetch(self, member: str, **changed: Any) -> Tree:
        partitions = [{"partition_index": 0, "acknowledgement_batches": []}]
        limits = {"max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 20}
        tree = {
            **self._session(member),
            **limits,
            "max_records": 100,
            "batch_size": 100,
            "topics": [{"topic_id": self.topic_id, "partitions": partitions}],
        }
        answer = await self.client.call(FETCH, 1, tree | changed)
        if answer["error_code"] == NONE:
            self.epochs[member] += 1
        return answer

    async def acquired(self, member: str, **changed: Any) -> list[tuple[int, int]]:
        """Fetch; return first and last offset of what the member acquired."""
        answer = await self.fetch(member, **changed)
        ((part,),) = (topic["partitions"] for topic in answer["responses"])
        return picked(part["acquired_records"], "first_offset", "last_offset")

    async def acknowledge(
        self,
        member: str,
        batches: list[tuple[int, int, list[int]]],
        partition: int = 0,
        topic_id: UUID | None = None,
        **changed: Any,
    ) -> int:
        """Return the error of the request, or else that of its partition.

        Args:
            batches: first and last offset, and the types.
        """
        acknowledged = [
            {"first_offset": first, "last_offset": last, "acknowledge_types": types}
            for first, last, types in batches
        ]
        parts = [{"partition_index": partition, "acknowledgement_batches": acknowledged}]
        topics = [{"topic_id": topic_id or self.topic_id, "partitions": parts}]
        tree = {**self._session(member), "is_renew_ack": False, "topics": topics}
        answer = await self.client.call(ACKNOWLEDGE, 2, tree | changed)
        if answer["error_code"] != NONE:
            return int(answer["error_code"])
        self.epochs[member] += 1
        ((found,),) = (each["partitions"] for each in answer["responses"])
        return int(found["error_code"])
