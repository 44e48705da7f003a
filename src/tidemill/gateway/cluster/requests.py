"""Asks the brokers for everything that a snapshot has, in batches.

librdkafka asks per group; these requests name all of them. Each broker gets one request of a kind.
It runs in a thread. Sources: KIP-222 (groups), KIP-709 (offsets of several groups), KIP-113
(sizes), KIP-848 and KIP-932 (groups whose members the broker assigns).
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tidemill.confluent.clients import Kafka
from tidemill.errors import NotAllowedError, UnreachableError
from tidemill.gateway.cluster.asking import requests_to
from tidemill.gateway.cluster.state import GroupState, MemberState, Snapshot, TopicState
from tidemill.kafka_client.admin.partitions import EARLIEST, LATEST, offsets, sizes_on_disk
from tidemill.kafka_client.admin.requests import Place, addresses_in, check_error_code
from tidemill.kafka_client.admin.share_groups import share_starts
from tidemill.kafka_client.admin.transactions import state_text
from tidemill.kafka_client.errors import RefusedError, RequestNotSupportedError
from tidemill.kafka_client.settings import Address

OFFSET_FETCH, DESCRIBE_GROUPS, LIST_GROUPS = 9, 15, 16
DESCRIBE_CONSUMER_GROUPS, DESCRIBE_SHARE_GROUPS = 69, 77
_VERSIONS = {
    OFFSET_FETCH: (8, 9),
    DESCRIBE_GROUPS: (0, 5),
    LIST_GROUPS: (0, 5),
    DESCRIBE_CONSUMER_GROUPS: (0, 1),
    DESCRIBE_SHARE_GROUPS: (1, 1),
}
MOST_PARTITIONS, MOST_GROUPS = 50_000, 5_000
"""Partitions and groups that a snapshot has. The rest is left out, which the snapshot says."""

T = TypeVar("T")
Described = Mapping[str, tuple[str, str, tuple[MemberState, ...]]]
"""State, protocol and members of groups, by name."""
Committed = Mapping[str, Mapping[str, Mapping[int, int]]]
"""Offsets of groups, by name, topic and partition."""


class Cluster:
    """The connections with which snapshots are asked for. One thread at a time uses it.

    Raises:
        UnsupportedSettingError: the client's settings ask for what only librdkafka has.
    """

    def __init__(self, kafka: Kafka) -> None:
        self._requests = requests_to(kafka)
        self._starts: dict[Place, int] = {}
        self._sizes: dict[Place, int] = {}

    def close(self) -> None:
        """Close the connections."""
        self._requests.close()

    def snapshot(self, *, whole: bool = True) -> Snapshot:
        """Return a new snapshot.

        Args:
            whole: Whether first offsets and sizes on disk are asked for again. If not, they are
                those of the last snapshot, unless there are new partitions or topics.

        Raises:
            UnreachableError: no broker answers.
            NotAllowedError: the brokers refuse the login.
        """
        began, at_ms = time.monotonic(), time.time_ns() // 1_000_000
        metadata = self._requests.metadata()
        round_ = _Round(addresses_in(metadata))
        topics = _known(metadata, round_)
        ends = self._offsets(round_, topics, LATEST)
        # A topic that was created again can end before its first offset of before.
        if whole or not all(self._starts.get(place, end + 1) <= end for place, end in ends.items()):
            self._starts = self._offsets(round_, topics, EARLIEST)
            self._sizes = self._ask_sizes(round_)
        found = {
            each.name: _topic(each, self._starts, ends, self._sizes)
            for each in sorted(topics, key=lambda each: str(each.name))
        }
        groups = self._groups(round_)
        return Snapshot(
            at_ms=at_ms,
            took_s=time.monotonic() - began,
            cluster_id=metadata.cluster_id or "",
            controller=metadata.controller_id,
            brokers={node: str(address) for node, address in sorted(round_.addresses.items())},
            topics=found,
            groups=groups,
            problems=tuple(dict.fromkeys(round_.problems)),
            readers=_readers(groups.values()),
        )

    # --- partitions ------------------------------------------------------------------------------

    def _offsets(self, round_: _Round, topics: Sequence[Any], time_: int) -> dict[Place, int]:
        by_leader: dict[int, list[Place]] = {}
        for topic in topics:
            for each in topic.partitions:
                place = topic.name, each.partition_index
                by_leader.setdefault(each.leader_id, []).append(place)

        found: dict[Place, int] = {}
        for node, places in by_leader.items():

            def ask(broker: Address, places: Sequence[Place] = places) -> dict[Place, int]:
                return offsets(self._requests, broker, places, time_, report=_left_out)

            found |= round_.ask(node, "offsets", ask) or {}
        return found

    def _ask_sizes(self, round_: _Round) -> dict[Place, int]:
        """Return the bytes on disk of the largest replica of each partition."""

        def ask(broker: Address) -> dict[Place, int]:
            report = round_.noting("Sizes on disk are unknown")
            return sizes_on_disk(self._requests, broker, report=report)

        found: dict[Place, int] = {}
        for node in round_.addresses:
            for place, size in (round_.ask(node, "sizes on disk", ask) or {}).items():
                found[place] = max(found.get(place, 0), size)
        return found

    # --- groups ----------------------------------------------------------------------------------

    def _groups(self, round_: _Round) -> dict[str, GroupState]:
        """Return all groups. The broker that lists a group is its coordinator."""
        found: dict[str, GroupState] = {}
        for node, kinds in self._listed(round_).items():
            for kind, names in kinds.items():
                described = self._described(round_, node, kind, names)
                committed = self._committed(round_, node, kind, names)
                for name in names:
                    state, protocol, members = described.get(name, ("unknown", "", ()))
                    found[name] = GroupState(
                        name, kind, state, protocol, members, committed.get(name, {})
                    )
        return dict(sorted(found.items()))

    def _listed(self, round_: _Round) -> dict[int, dict[str, list[str]]]:
        """Return the names of groups, by coordinator and kind."""
        listed: dict[int, dict[str, list[str]]] = {}
        count = 0
        for node in round_.addresses:
            answer = self._ask(round_, node, "groups", LIST_GROUPS, {})
            if answer is None:
                continue
            report = round_.noting("Groups are unknown")
            check_error_code(answer.error_code, f"broker {node}", report=report)
            for each in answer.groups:
                kind = str(getattr(each, "group_type", "") or "classic").lower()
                if getattr(each, "protocol_type", "") not in ("", "consumer", "share"):
                    continue  # Connect's workers, for example, have no offsets
                count += 1
                if count <= MOST_GROUPS:
                    listed.setdefault(node, {}).setdefault(kind, []).append(each.group_id)
        if count > MOST_GROUPS:
            round_.problems.append(f"Only {MOST_GROUPS} of {count} groups are shown.")
        return listed

    def _described(self, round_: _Round, node: int, kind: str, names: list[str]) -> Described:
        known = {"consumer": DESCRIBE_CONSUMER_GROUPS, "share": DESCRIBE_SHARE_GROUPS}
        api = known.get(kind, DESCRIBE_GROUPS)
        tree = {"groups" if api == DESCRIBE_GROUPS else "group_ids": names}
        read = _classic if api == DESCRIBE_GROUPS else _modern
        answer = self._ask(round_, node, f"members of {kind} groups", api, tree)
        report = round_.noting("Some groups are unknown")
        return {
            each.group_id: read(each)
            for each in (() if answer is None else answer.groups)
            if check_error_code(each.error_code, f"group {each.group_id}", report=report)
        }

    def _committed(self, round_: _Round, node: int, kind: str, names: list[str]) -> Committed:
        if kind == "share":
            return self._share_offsets(round_, node, names)
        tree = {"groups": [{"group_id": name, "topics": None} for name in names]}
        answer = self._ask(round_, node, "offsets of several groups", OFFSET_FETCH, tree)
        return {
            group.group_id: {
                topic.name: {
                    each.partition_index: each.committed_offset
                    for each in topic.partitions
                    if each.committed_offset >= 0
                }
                for topic in group.topics
            }
            for group in (() if answer is None else answer.groups)
        }

    def _share_offsets(self, round_: _Round, node: int, names: list[str]) -> Committed:
        def ask(broker: Address) -> dict[str, dict[str, dict[int, int]]]:
            found: dict[str, dict[str, dict[int, int]]] = {}
            starts = share_starts(self._requests, broker, names, report=_left_out)
            for group, by_place in starts.items():
                topics = found.setdefault(group, {})
                for (topic, partition), each in by_place.items():
                    if each.start is not None:
                        topics.setdefault(topic, {})[partition] = each.start
            return found

        return round_.ask(node, "offsets of share groups", ask) or {}

    def _ask(
        self, round_: _Round, node: int, what: str, api: int, tree: Mapping[str, Any]
    ) -> Any | None:
        return round_.ask(
            node, what, lambda broker: self._requests.ask(broker, api, _VERSIONS[api], tree)
        )


@dataclass
class _Round:
    """One refresh: the brokers that are asked, and what went wrong."""

    addresses: dict[int, Address]
    problems: list[str] = field(default_factory=list)

    def ask(self, node: int, what: str, call: Callable[[Address], T]) -> T | None:
        """Ask a broker. If it does not answer, that is a problem and no error."""
        if node not in self.addresses:
            return None
        try:
            return call(self.addresses[node])
        except RequestNotSupportedError:
            self.problems.append(f"This broker does not report {what}.")
        except (UnreachableError, NotAllowedError) as error:
            self.problems.append(f"Broker {node} does not report {what}: {error}")
        return None

    def noting(self, what: str) -> Callable[[RefusedError], None]:
        """Return what notes the error of an element of an answer."""
        return lambda error: self.problems.append(f"{what}: {error.reason}.")


def _left_out(_: RefusedError) -> None:
    """Leave out what a broker does not answer, which is shown as unknown."""


def _known(metadata: Any, round_: _Round) -> list[Any]:
    """Return the topics that a snapshot has."""
    kept, count = [], 0
    for each in metadata.topics:
        count += len(each.partitions)
        if not each.error_code and count <= MOST_PARTITIONS:
            kept.append(each)
    if count > MOST_PARTITIONS:
        round_.problems.append(f"Only {MOST_PARTITIONS} of {count} partitions are shown.")
    return kept


Found = Mapping[tuple[str, int], int]


def _topic(about: Any, starts: Found, ends: Found, sizes: Found) -> TopicState:
    name = about.name
    parts = sorted(about.partitions, key=lambda each: int(each.partition_index))
    places = [(name, each.partition_index) for each in parts]
    return TopicState(
        name=name,
        is_internal=bool(about.is_internal) or name.startswith("__"),
        starts=tuple(starts.get(place, -1) for place in places),
        ends=tuple(ends.get(place, -1) for place in places),
        sizes=tuple(sizes.get(place, -1) for place in places),
        leaders=tuple(each.leader_id for each in parts),
        replicas=tuple(len(each.replica_nodes) for each in parts),
        in_sync=tuple(len(each.isr_nodes) for each in parts),
    )


def _classic(about: Any) -> tuple[str, str, tuple[MemberState, ...]]:
    members = tuple(
        MemberState(
            each.member_id,
            each.client_id,
            each.client_host,
            parse_assignment(bytes(each.member_assignment)),
        )
        for each in about.members
    )
    return state_text(about.group_state), str(about.protocol_data), members


def _modern(about: Any) -> tuple[str, str, tuple[MemberState, ...]]:
    members = tuple(
        MemberState(
            each.member_id,
            each.client_id,
            each.client_host,
            {one.topic_name: tuple(one.partitions) for one in each.assignment.topic_partitions},
        )
        for each in about.members
    )
    return state_text(about.group_state), str(about.assignor_name), members


def parse_assignment(data: bytes) -> dict[str, tuple[int, ...]]:
    """Return the partitions in an assignment of the classic protocol; none if it is malformed.

    A member of the group has written it, so each count is checked against the bytes that are there.
    """
    found: dict[str, tuple[int, ...]] = {}
    try:
        (count,) = struct.unpack_from(">i", data, 2)
        at = 6
        for _ in range(min(count, len(data))):
            (length,) = struct.unpack_from(">h", data, at)
            name = data[at + 2 : at + 2 + length].decode()
            at += 2 + length
            (size,) = struct.unpack_from(">i", data, at)
            if not 0 <= size <= (len(data) - at) // 4:
                return {}
            found[name] = struct.unpack_from(f">{size}i", data, at + 4)
            at += 4 + 4 * size
    except (struct.error, UnicodeDecodeError):
        return {}
    return found


def _readers(groups: Iterable[GroupState]) -> dict[str, tuple[str, ...]]:
    found: dict[str, dict[str, None]] = {}
    for group in groups:
        held = {topic for member in group.members for topic in member.partitions}
        for topic in (*group.committed, *held):
            found.setdefault(topic, {})[group.name] = None
    return {topic: tuple(names) for topic, names in found.items()}
