"""Committed offsets of groups (commit, fetch, delete, expire), as a pure state machine.

Only ``replay`` and ``end_transaction`` change what is stored. ``fetch`` returns a commit after its
record was written and replayed, and a commit in a transaction after the transaction's marker was.
If a position has both, the later record in the log wins, because compaction keeps that one.

The machine asks ``groups`` who may commit and what may expire. This module must not know a clock.

Source: KIP-98 and KIP-447 (transactions), KIP-186, KIP-211 (expiry), KIP-496 (OffsetDelete);
Apache Kafka's group coordinator.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from tidemill.errors import TidemillError
from tidemill.log.format.batch import NO_PRODUCER_ID
from tidemill.state.errors import (
    GroupIdNotFoundError,
    GroupSubscribedToTopicError,
    NonEmptyGroupError,
    OffsetMetadataTooLargeError,
    UnstableOffsetCommitError,
)
from tidemill.state.groups.format import (
    OffsetKey,
    decode_key,
    decode_offset_value,
    encode_offset_key,
    encode_offset_value,
)
from tidemill.state.offsets.owners import OffsetOwner, OffsetOwners
from tidemill.state.offsets.pending import LoggedOffset, PendingOffsets, Position
from tidemill.state.outcome import Outcome, StateRecord, nothing
from tidemill.state.types import CommitRequest, CommittedOffset, TxnOffsetCommit

FetchedOffset = CommittedOffset | UnstableOffsetCommitError
"""The result of a fetch for a position. The error occurs only if stable offsets are required."""


class Offsets:
    """Committed offsets of all groups.

    Args:
        retention_ms: how long offsets are kept after the last member left the group, or after the
            commit if no member ever joined.
        metadata_max_bytes: the longest metadata string of an offset, in bytes of UTF-8.
    """

    def __init__(
        self,
        groups: OffsetOwners,
        *,
        retention_ms: int = 604_800_000,
        metadata_max_bytes: int = 4096,
    ) -> None:
        self._groups = groups
        self._retention_ms = retention_ms
        self._metadata_max_bytes = min(metadata_max_bytes, 0x7FFF)  # the limit of the record format
        self._offsets: dict[str, dict[Position, LoggedOffset]] = {}
        self._pending = PendingOffsets()

    # --- state that survives a restart -----------------------------------------------------------

    def replay(
        self,
        key: bytes,
        value: bytes | None,
        log_offset: int,
        producer_id: int = NO_PRODUCER_ID,
    ) -> bool:
        """Apply one record of ``__consumer_offsets``: each that was written, and all at start.

        Args:
            log_offset: the offset of the record in the log.
            producer_id: the producer of the transaction that it belongs to; -1: no transaction.

        Returns:
            False if the record is not about a committed offset. Then nothing changes.
        """
        offset_key = decode_key(key)
        if not isinstance(offset_key, OffsetKey):
            return False
        group_id = offset_key.group_id
        position = (offset_key.topic, offset_key.partition)
        if value is None:
            self._delete(group_id, position)
            return True
        logged = LoggedOffset(decode_offset_value(value), log_offset)
        if producer_id == NO_PRODUCER_ID:
            self._store(group_id, position, logged)
        else:
            self._pending.add(producer_id, group_id, position, logged)
            self._groups.ensure(group_id, logged.value.commit_timestamp_ms)
        return True

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """Apply a transaction's marker: store its offsets, or forget them (abort).

        An offset is not stored if the log has a later record of its position.
        """
        for (group_id, position), logged in self._pending.take(producer_id).items():
            stored = self._offsets.get(group_id, {}).get(position)
            if commit and (stored is None or stored.log_offset < logged.log_offset):
                self._store(group_id, position, logged)

    def _store(self, group_id: str, position: Position, logged: LoggedOffset) -> None:
        self._offsets.setdefault(group_id, {})[position] = logged
        self._groups.ensure(group_id, logged.value.commit_timestamp_ms)

    def _delete(self, group_id: str, position: Position) -> None:
        self._pending.drop(group_id, position)
        positions = self._offsets.get(group_id)
        if positions is not None:
            positions.pop(position, None)
            if not positions:
                del self._offsets[group_id]

    def loaded(self, now_ms: int) -> None:
        """Add and remove groups after all records were replayed at start.

        Call it after ``Groups.loaded``.
        """
        for group_id in (*self._offsets, *self._pending):
            self._groups.ensure(group_id, now_ms)
        for group in self._groups:
            if not self._has_offsets(group.group_id):  # all its offsets were deleted
                self._groups.forget(group.group_id)

    def _has_offsets(self, group_id: str) -> bool:
        return group_id in self._offsets or group_id in self._pending

    # --- commands --------------------------------------------------------------------------------

    def commit(self, request: CommitRequest, now_ms: int) -> Outcome[list[TidemillError | None]]:
        """Commit offsets. The result has an error or None for each, in order.

        Raises:
            UnknownMemberIdError, IllegalGenerationError, FencedInstanceIdError,
            RebalanceInProgressError: the sender must not commit (see ``groups.commits``).
        """
        self._groups.check_commit(request, now_ms)
        expires = now_ms + request.retention_ms if request.retention_ms >= 0 else None
        return self._commit(request, now_ms, expires)

    def commit_in_transaction(
        self, request: TxnOffsetCommit, now_ms: int
    ) -> Outcome[list[TidemillError | None]]:
        """Commit offsets in a transaction. The result has an error or None for each, in order.

        The records must be written as part of the producer's transaction. Its marker stores or
        drops them.

        Raises:
            InvalidGroupIdError, UnknownMemberIdError, IllegalGenerationError,
            FencedInstanceIdError: the sender must not commit (see ``groups.commits``).
        """
        self._groups.check_transactional_commit(request.commit)
        return self._commit(request.commit, now_ms, None)

    def _commit(
        self, request: CommitRequest, now_ms: int, expires: int | None
    ) -> Outcome[list[TidemillError | None]]:
        result: list[TidemillError | None] = []
        records = []
        for item in request.offsets:
            metadata = item.metadata or ""
            if len(metadata.encode()) > self._metadata_max_bytes:
                result.append(
                    OffsetMetadataTooLargeError(
                        f"offset metadata too large: {item.topic}-{item.partition} has more than "
                        f"{self._metadata_max_bytes} bytes"
                    )
                )
                continue
            value = CommittedOffset(item.offset, item.leader_epoch, metadata, now_ms, expires)
            key = OffsetKey(request.group_id, item.topic, item.partition)
            records.append(StateRecord(encode_offset_key(key), encode_offset_value(value)))
            result.append(None)
        return Outcome(result, records)

    def delete(
        self, group_id: str, positions: Sequence[Position]
    ) -> Outcome[list[TidemillError | None]]:
        """Delete offsets (KIP-496). The result has an error or None for each, in order.

        Deleting an offset that is not stored succeeds.

        Raises:
            GroupIdNotFoundError: the group does not exist.
            NonEmptyGroupError: it has members that are not consumers, so their topics are unknown.
        """
        group = self._groups.get(group_id)
        if group is None:
            raise GroupIdNotFoundError(f"group {group_id!r} does not exist")
        if not group.is_empty and not group.uses_consumer_protocol:
            raise NonEmptyGroupError(f"group {group_id!r} is not empty: it has members")
        known = self._known(group_id)
        out = Outcome[list[TidemillError | None]]([])
        for topic, partition in positions:
            if group.is_subscribed(topic):
                out.result.append(
                    GroupSubscribedToTopicError(
                        f"group {group_id!r} is subscribed to topic {topic!r}",
                        hint="Stop the consumers that read it.",
                    )
                )
                continue
            out.result.append(None)
            if (topic, partition) in known:
                out.records.append(_tombstone(group_id, (topic, partition)))
        return out

    def delete_group(self, group_id: str) -> Outcome[None]:
        """Delete an empty group with all its offsets, also those of open transactions.

        Raises:
            GroupIdNotFoundError: the group does not exist.
            NonEmptyGroupError: it has members.
        """
        self._groups.check_removable(group_id)
        records = [_tombstone(group_id, at) for at in self._known(group_id)]
        return Outcome(None, [*records, *self._groups.tombstones(group_id)])

    def topics_deleted(self, topics: Collection[str]) -> Outcome[None]:
        """Delete the offsets of deleted topics, in all groups and open transactions."""
        gone = set(topics)
        out = nothing()
        for group_id in dict.fromkeys([*self._offsets, *self._pending]):
            known = self._known(group_id)
            out.records += [_tombstone(group_id, at) for at in known if at[0] in gone]
        return out

    def _known(self, group_id: str) -> dict[Position, None]:
        """Return the positions that are stored, or will be if a transaction commits."""
        stored = self._offsets.get(group_id, ())
        return dict.fromkeys([*stored, *self._pending.positions(group_id)])

    def expire(self, now_ms: int) -> Outcome[None]:
        """Delete offsets whose retention is over, and groups without members and offsets.

        Offsets that an open transaction has committed stay, and so does their group.
        """
        out = nothing()
        self.loaded(now_ms)  # a commit can follow the removal of its group: create the group again
        for group in self._groups:
            positions = self._offsets.get(group.group_id, {})
            due = [at for at in positions if self._is_due(group, at, positions[at].value, now_ms)]
            out.records += [_tombstone(group.group_id, at) for at in due]
            if group.group_id in self._pending:
                continue
            if len(due) == len(positions) and group.is_removable:
                if due or self._groups.needs_tombstone(group.group_id):
                    out.records += self._groups.tombstones(group.group_id)
                else:
                    self._groups.forget(group.group_id)
        return out

    def _is_due(
        self, group: OffsetOwner, at: Position, value: CommittedOffset, now_ms: int
    ) -> bool:
        since = group.retained_since_ms(value.commit_timestamp_ms)
        if since is None or group.is_subscribed(at[0]) or self._pending.has(group.group_id, at):
            return False
        if value.expire_timestamp_ms is not None:
            return now_ms >= value.expire_timestamp_ms
        return now_ms - since >= self._retention_ms

    # --- views -----------------------------------------------------------------------------------

    def fetch(
        self,
        group_id: str,
        positions: Iterable[Position] | None = None,
        *,
        require_stable: bool = False,
    ) -> dict[Position, FetchedOffset]:
        """Return the committed offsets of a group. Positions without an offset are left out.

        Args:
            positions: the positions to fetch; None: all.
            require_stable: return an UnstableOffsetCommitError for a position that an open
                transaction has committed. If ``positions`` are given, this includes positions
                without a stored offset.
        """
        stored = self._offsets.get(group_id, {})
        found: dict[Position, FetchedOffset] = {}
        for at in stored if positions is None else positions:
            if require_stable and self._pending.has(group_id, at):
                found[at] = UnstableOffsetCommitError(
                    f"an open transaction has committed {at[0]}-{at[1]} of group {group_id!r}",
                    hint="Try again when the transaction has ended.",
                )
            elif at in stored:
                found[at] = stored[at].value
        return found

    def positions(self, group_id: str) -> list[Position]:
        """Return the positions for which a group has committed offsets, in no order."""
        return list(self._offsets.get(group_id, ()))

    def group_ids(self) -> list[str]:
        """Return the groups that have committed offsets."""
        return list(self._offsets)

    def stored(self) -> Iterator[tuple[OffsetKey, LoggedOffset]]:
        """Yield the offsets of plain commits and ended transactions, which survive a restart."""
        for group_id, positions in self._offsets.items():
            for (topic, partition), logged in positions.items():
                yield OffsetKey(group_id, topic, partition), logged

    def pending(self) -> dict[int, dict[tuple[str, Position], LoggedOffset]]:
        """Return the offsets of open transactions by producer id, which survive a restart."""
        return self._pending.stored()


def _tombstone(group_id: str, position: Position) -> StateRecord:
    return StateRecord(encode_offset_key(OffsetKey(group_id, *position)), None)
