"""Committed offsets of groups: commit, fetch, delete, expire, as a pure state machine.

Only ``replay`` changes what is stored: a commit is seen by ``fetch`` once its record has been
written and replayed. Asks ``groups`` who may commit and what may expire. Knows no clock.

Source: KIP-186, KIP-211 (expiry), KIP-496 (OffsetDelete); Apache Kafka's group coordinator.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from tidemill.errors import (
    GroupIdNotFoundError,
    GroupSubscribedToTopicError,
    NonEmptyGroupError,
    OffsetMetadataTooLargeError,
    TidemillError,
)
from tidemill.state.group import Group, GroupState
from tidemill.state.groups import Groups
from tidemill.state.offsets_format import (
    OffsetKey,
    OffsetValue,
    decode_key,
    decode_offset_value,
    encode_offset_key,
    encode_offset_value,
)
from tidemill.state.outcome import Outcome, StateRecord, nothing
from tidemill.state.types import CommitRequest, CommittedOffset

Position = tuple[str, int]
"""(topic, partition)"""


class Offsets:
    """Committed offsets of all groups.

    Args:
        groups: the groups that commit.
        retention_ms: how long offsets outlive the group's last member, or (simple consumers)
            their commit.
        metadata_max_bytes: longest metadata string of an offset, in bytes of UTF-8.
    """

    def __init__(
        self, groups: Groups, *, retention_ms: int = 604_800_000, metadata_max_bytes: int = 4096
    ) -> None:
        self._groups = groups
        self._retention_ms = retention_ms
        self._metadata_max_bytes = min(metadata_max_bytes, 0x7FFF)  # what a record holds
        self._offsets: dict[str, dict[Position, OffsetValue]] = {}

    # --- what survives a restart -----------------------------------------------------------------

    def replay(self, key: bytes, value: bytes | None) -> bool:
        """Apply one record of ``__consumer_offsets``; False (and no effect) if it is not an
        offset's. Used for each record that was written, and for all of them at start.

        Raises:
            InvalidRecordError, FormatVersionError: the record can't be read.
        """
        offset_key = decode_key(key)
        if not isinstance(offset_key, OffsetKey):
            return False
        group_id = offset_key.group_id
        position = (offset_key.topic, offset_key.partition)
        if value is not None:
            decoded = decode_offset_value(value)
            self._offsets.setdefault(group_id, {})[position] = decoded
            self._groups.ensure(group_id, decoded.commit_timestamp_ms)
            return True
        positions = self._offsets.get(group_id)
        if positions is not None:
            positions.pop(position, None)
            if not positions:
                del self._offsets[group_id]
        return True

    def loaded(self, now_ms: int) -> None:
        """All records have been replayed at start; call it after the groups' ``loaded``."""
        for group_id in self._offsets:
            self._groups.ensure(group_id, now_ms)
        for group in self._groups:
            if group.group_id not in self._offsets:  # all it had was deleted
                self._groups.forget(group.group_id)

    # --- commands --------------------------------------------------------------------------------

    def commit(self, request: CommitRequest, now_ms: int) -> Outcome[list[TidemillError | None]]:
        """Commit offsets; the result has an error or None for each, in order.

        Raises:
            UnknownMemberIdError, IllegalGenerationError, FencedInstanceIdError,
            RebalanceInProgressError: the sender may not commit (see ``Groups.check_commit``).
        """
        self._groups.check_commit(request, now_ms)
        expires = now_ms + request.retention_ms if request.retention_ms >= 0 else None
        result: list[TidemillError | None] = []
        records = []
        for item in request.offsets:
            metadata = item.metadata or ""
            if len(metadata.encode()) > self._metadata_max_bytes:
                result.append(
                    OffsetMetadataTooLargeError(
                        f"the metadata of {item.topic}-{item.partition} is longer than "
                        f"{self._metadata_max_bytes} bytes"
                    )
                )
                continue
            value = OffsetValue(item.offset, item.leader_epoch, metadata, now_ms, expires)
            key = OffsetKey(request.group_id, item.topic, item.partition)
            records.append(StateRecord(encode_offset_key(key), encode_offset_value(value)))
            result.append(None)
        return Outcome(result, records)

    def delete(
        self, group_id: str, positions: Sequence[Position]
    ) -> Outcome[list[TidemillError | None]]:
        """Delete offsets (KIP-496); the result has an error or None for each, in order. What is
        not stored counts as deleted.

        Raises:
            GroupIdNotFoundError: there is no such group.
            NonEmptyGroupError: it has members that are not consumers, so their topics are unknown.
        """
        group = self._groups.get(group_id)
        if group is None:
            raise GroupIdNotFoundError(f"there is no group {group_id!r}")
        if not group.is_in(GroupState.EMPTY) and not group.uses_consumer_protocol:
            raise NonEmptyGroupError(f"group {group_id!r} has members")
        stored = self._offsets.get(group_id, {})
        out = Outcome[list[TidemillError | None]]([])
        for topic, partition in positions:
            if group.is_subscribed(topic):
                out.result.append(
                    GroupSubscribedToTopicError(
                        f"group {group_id!r} is subscribed to {topic!r}",
                        hint="Stop the consumers that read it.",
                    )
                )
                continue
            out.result.append(None)
            if (topic, partition) in stored:
                out.records.append(_tombstone(group_id, (topic, partition)))
        return out

    def delete_group(self, group_id: str) -> Outcome[None]:
        """Delete an empty group with all its offsets.

        Raises:
            GroupIdNotFoundError, NonEmptyGroupError: as their names say.
        """
        self._groups.check_removable(group_id)
        records = [_tombstone(group_id, at) for at in self._offsets.get(group_id, {})]
        return Outcome(None, [*records, self._groups.tombstone(group_id)])

    def topics_deleted(self, topics: Collection[str]) -> Outcome[None]:
        """Forget the offsets of topics that are gone, in every group."""
        gone = set(topics)
        out = nothing()
        for group_id, positions in self._offsets.items():
            out.records += [_tombstone(group_id, at) for at in positions if at[0] in gone]
        return out

    def expire(self, now_ms: int) -> Outcome[None]:
        """Expire offsets that are due, and remove groups that are empty of members and offsets."""
        out = nothing()
        self.loaded(now_ms)  # offsets committed while their group was being removed have none
        for group in self._groups:
            positions = self._offsets.get(group.group_id, {})
            due = [at for at in positions if self._is_due(group, at[0], positions[at], now_ms)]
            out.records += [_tombstone(group.group_id, at) for at in due]
            if len(due) == len(positions) and group.is_removable:
                if due or self._groups.needs_tombstone(group.group_id):
                    out.records.append(self._groups.tombstone(group.group_id))
                else:
                    self._groups.forget(group.group_id)
        return out

    def _is_due(self, group: Group, topic: str, value: OffsetValue, now_ms: int) -> bool:
        since = _retained_since(group)
        if since is None or group.is_subscribed(topic):
            return False
        if value.expire_timestamp_ms is not None:
            return now_ms >= value.expire_timestamp_ms
        return now_ms - since(value) >= self._retention_ms

    # --- views -----------------------------------------------------------------------------------

    def fetch(
        self, group_id: str, positions: Iterable[Position] | None = None
    ) -> dict[Position, CommittedOffset]:
        """Committed offsets of a group: those asked for that exist, or (None) all."""
        stored = self._offsets.get(group_id, {})
        wanted = stored if positions is None else positions
        return {at: _committed(stored[at]) for at in wanted if at in stored}

    def stored(self) -> Iterator[tuple[OffsetKey, OffsetValue]]:
        """What survives a restart."""
        for group_id, positions in self._offsets.items():
            for (topic, partition), value in positions.items():
                yield OffsetKey(group_id, topic, partition), value


def _retained_since(group: Group) -> Callable[[OffsetValue], int] | None:
    """From when on an offset's retention counts; None: nothing of the group expires now.

    An Empty group's offsets count from when it became Empty (old records do not say: from the
    commit), a simple consumer's from the commit. While consumers are in the group and Stable,
    those of topics that nobody reads any longer count from the commit.
    """
    if group.protocol_type is None:
        return lambda value: value.commit_timestamp_ms
    if group.is_in(GroupState.EMPTY):
        if group.state_since_ms < 0:
            return lambda value: value.commit_timestamp_ms
        return lambda _: group.state_since_ms
    if group.is_in(GroupState.STABLE) and group.uses_consumer_protocol:
        return lambda value: value.commit_timestamp_ms
    return None


def _tombstone(group_id: str, position: Position) -> StateRecord:
    return StateRecord(encode_offset_key(OffsetKey(group_id, *position)), None)


def _committed(value: OffsetValue) -> CommittedOffset:
    return CommittedOffset(
        value.offset, value.leader_epoch, value.metadata, value.commit_timestamp_ms
    )
