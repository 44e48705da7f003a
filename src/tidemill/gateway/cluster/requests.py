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
from typing import Any

from tidemill.confluent.clients import Kafka
from tidemill.errors import TidemillError
from tidemill.gateway.cluster.state import GroupState, MemberState, Snapshot, TopicState
from tidemill.kafka_client.brokers import Brokers
from tidemill.kafka_client.connection import Connection
from tidemill.kafka_client.errors import (
    ConnectionFailedError,
    ConnectionRejectedError,
    VersionNotSupportedError,
    text_of,
)
from tidemill.kafka_client.settings import Address, connection_settings

LIST_OFFSETS, METADATA, OFFSET_FETCH, DESCRIBE_GROUPS, LIST_GROUPS = 2, 3, 9, 15, 16
DESCRIBE_LOG_DIRS, DESCRIBE_CONSUMER_GROUPS, DESCRIBE_SHARE_GROUPS = 35, 69, 77
DESCRIBE_SHARE_OFFSETS = 90
_VERSIONS = {
    LIST_OFFSETS: (2, 3),
    METADATA: (4, 4),
    OFFSET_FETCH: (8, 9),
    DESCRIBE_GROUPS: (0, 5),
    LIST_GROUPS: (0, 5),
    DESCRIBE_LOG_DIRS: (1, 4),
    DESCRIBE_CONSUMER_GROUPS: (0, 1),
    DESCRIBE_SHARE_GROUPS: (1, 1),
    DESCRIBE_SHARE_OFFSETS: (0, 1),
}
REQUEST_S = 10.0
"""How long one request can take."""
MOST_PARTITIONS, MOST_GROUPS = 50_000, 5_000
"""Partitions and groups that a snapshot has. The rest is left out, which the snapshot says."""
_LATEST, _EARLIEST = -1, -2


class Cluster:
    """The connections with which snapshots are asked for. One thread at a time uses it.

    Raises:
        UnsupportedSettingError: the client's settings ask for what only librdkafka has.
    """

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        config = {key: str(value) for key, value in kafka.properties.items()}
        config |= {"bootstrap.servers": kafka.servers}
        self._brokers = Brokers(connection_settings(config, "tidemill-console"), {})
        self._starts: dict[tuple[str, int], int] = {}
        self._sizes: dict[tuple[str, int], int] = {}

    def close(self) -> None:
        """Close the connections."""
        self._brokers.close()

    def snapshot(self, *, whole: bool = True) -> Snapshot:
        """Return a new snapshot.

        Args:
            whole: Whether first offsets and sizes on disk are asked for again. If not, they are
                those of the last snapshot, unless there are new partitions.

        Raises:
            UnreachableError: no broker answers.
            TidemillError: the brokers refuse the login.
        """
        began, at_ms = time.monotonic(), time.time_ns() // 1_000_000
        try:
            metadata = self._ask_any(METADATA, {"topics": None, "allow_auto_topic_creation": False})
        except ConnectionFailedError as error:
            raise self._kafka.unreachable("read the state of the cluster", str(error)) from error
        except ConnectionRejectedError as error:
            raise TidemillError(f"the broker refuses the login: {error}") from error
        round_ = _Round({each.node_id: Address(each.host, each.port) for each in metadata.brokers})
        topics = _known(metadata, round_)
        ends = self._offsets(round_, topics, _LATEST)
        places = (
            (topic.name, each.partition_index) for topic in topics for each in topic.partitions
        )
        if whole or not all(place in self._starts for place in places):
            self._starts = self._offsets(round_, topics, _EARLIEST)
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

    # --- requests --------------------------------------------------------------------------------

    def _ask_any(self, api: int, tree: Mapping[str, Any]) -> Any:
        return self._twice(lambda: self._brokers.any(time.monotonic() + REQUEST_S), api, tree)

    def _ask(self, address: Address, api: int, tree: Mapping[str, Any]) -> Any:
        return self._twice(lambda: self._brokers.at(address, REQUEST_S), api, tree)

    def _twice(self, connect: Callable[[], Connection], api: int, tree: Mapping[str, Any]) -> Any:
        """Ask; once more if the connection has failed: brokers close idle ones."""
        for is_last in (False, True):
            connection = None
            try:
                connection = connect()
                connection.agree({api: _VERSIONS[api]})
                return connection.request(api, tree, REQUEST_S)
            except VersionNotSupportedError:
                raise
            except ConnectionFailedError:
                self._brokers.drop(connection)
                if is_last:
                    raise
        raise AssertionError

    def _each(
        self, round_: _Round, what: str, api: int, trees: Mapping[int, Mapping[str, Any]]
    ) -> Iterable[tuple[int, Any]]:
        """Ask brokers by their ids; a broker that does not answer is a problem and no error."""
        for node, tree in trees.items():
            if node not in round_.addresses:
                continue
            try:
                yield node, self._ask(round_.addresses[node], api, tree)
            except VersionNotSupportedError:
                round_.problems.append(f"This broker does not report {what}.")
            except (ConnectionFailedError, ConnectionRejectedError) as error:
                round_.problems.append(f"Broker {node} does not report {what}: {error}")

    def _offsets(
        self, round_: _Round, topics: Sequence[Any], time_: int
    ) -> dict[tuple[str, int], int]:
        by_leader: dict[int, dict[str, list[dict[str, int]]]] = {}
        for topic in topics:
            for each in topic.partitions:
                wanted = {"partition_index": each.partition_index, "timestamp": time_}
                by_leader.setdefault(each.leader_id, {}).setdefault(topic.name, []).append(wanted)
        trees = {
            node: {
                "replica_id": -1,
                "isolation_level": 0,
                "topics": [{"name": name, "partitions": each} for name, each in wanted.items()],
            }
            for node, wanted in by_leader.items()
        }
        found: dict[tuple[str, int], int] = {}
        for _, answer in self._each(round_, "offsets", LIST_OFFSETS, trees):
            for topic in answer.topics:
                for each in topic.partitions:
                    if not each.error_code:
                        found[topic.name, each.partition_index] = each.offset
        return found

    def _ask_sizes(self, round_: _Round) -> dict[tuple[str, int], int]:
        """Return the bytes on disk of the largest replica of each partition."""
        trees = {node: {"topics": None} for node in round_.addresses}
        found: dict[tuple[str, int], int] = {}
        for _, answer in self._each(round_, "sizes on disk", DESCRIBE_LOG_DIRS, trees):
            for folder in answer.results:
                if folder.error_code:
                    round_.note("Sizes on disk are unknown", folder.error_code)
                for topic in folder.topics:
                    for each in topic.partitions:
                        place = topic.name, each.partition_index
                        found[place] = max(found.get(place, 0), each.partition_size)
        return found

    # --- groups ----------------------------------------------------------------------------------

    def _groups(self, round_: _Round) -> dict[str, GroupState]:
        """Return all groups. The broker that lists a group is its coordinator."""
        listed: dict[int, dict[str, list[str]]] = {}
        count = 0
        everything: dict[int, dict[str, Any]] = {node: {} for node in round_.addresses}
        for node, answer in self._each(round_, "groups", LIST_GROUPS, everything):
            if answer.error_code:
                round_.note("Groups are unknown", answer.error_code)
            for each in answer.groups:
                kind = str(getattr(each, "group_type", "") or "classic").lower()
                if getattr(each, "protocol_type", "") not in ("", "consumer", "share"):
                    continue  # Connect's workers, for example, have no offsets
                count += 1
                if count <= MOST_GROUPS:
                    listed.setdefault(node, {}).setdefault(kind, []).append(each.group_id)
        if count > MOST_GROUPS:
            round_.problems.append(f"Only {MOST_GROUPS} of {count} groups are shown.")
        found: dict[str, GroupState] = {}
        for node, kinds in listed.items():
            for kind, names in kinds.items():
                described = self._described(round_, node, kind, names)
                committed = self._committed(round_, node, kind, names)
                for name in names:
                    state, protocol, members = described.get(name, ("unknown", "", ()))
                    offsets = committed.get(name, {})
                    found[name] = GroupState(name, kind, state, protocol, members, offsets)
        return dict(sorted(found.items()))

    def _described(
        self, round_: _Round, node: int, kind: str, names: list[str]
    ) -> dict[str, tuple[str, str, tuple[MemberState, ...]]]:
        known = {"consumer": DESCRIBE_CONSUMER_GROUPS, "share": DESCRIBE_SHARE_GROUPS}
        api = known.get(kind, DESCRIBE_GROUPS)
        tree = {"groups" if api == DESCRIBE_GROUPS else "group_ids": names}
        read = _classic if api == DESCRIBE_GROUPS else _modern
        found: dict[str, tuple[str, str, tuple[MemberState, ...]]] = {}
        for _, answer in self._each(round_, f"members of {kind} groups", api, {node: tree}):
            for each in answer.groups:
                if each.error_code:
                    round_.note("Some groups are unknown", each.error_code)
                else:
                    found[each.group_id] = read(each)
        return found

    def _committed(
        self, round_: _Round, node: int, kind: str, names: list[str]
    ) -> dict[str, dict[str, dict[int, int]]]:
        if kind == "share":
            return self._share_offsets(round_, node, names)
        tree = {"groups": [{"group_id": name, "topics": None} for name in names]}
        found: dict[str, dict[str, dict[int, int]]] = {}
        answers = self._each(round_, "offsets of several groups", OFFSET_FETCH, {node: tree})
        for _, answer in answers:
            for group in answer.groups:
                found[group.group_id] = {
                    topic.name: {
                        each.partition_index: each.committed_offset
                        for each in topic.partitions
                        if each.committed_offset >= 0
                    }
                    for topic in group.topics
                }
        return found

    def _share_offsets(
        self, round_: _Round, node: int, names: list[str]
    ) -> dict[str, dict[str, dict[int, int]]]:
        tree = {"groups": [{"group_id": name, "topics": None} for name in names]}
        found: dict[str, dict[str, dict[int, int]]] = {}
        answers = self._each(
            round_, "offsets of share groups", DESCRIBE_SHARE_OFFSETS, {node: tree}
        )
        for _, answer in answers:
            for group in answer.groups:
                found[group.group_id] = {
                    topic.topic_name: {
                        each.partition_index: each.start_offset
                        for each in topic.partitions
                        if not each.error_code and each.start_offset >= 0
                    }
                    for topic in group.topics
                }
        return found


@dataclass
class _Round:
    """One refresh: the brokers that are asked, and what went wrong."""

    addresses: dict[int, Address]
    problems: list[str] = field(default_factory=list)

    def note(self, what: str, code: int) -> None:
        self.problems.append(f"{what}: {text_of(code).removeprefix('Broker: ')}.")


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


def state_text(state: str) -> str:
    """Return a state such as ``PreparingRebalance`` in lower case with hyphens."""
    words = "".join(f"-{each.lower()}" if each.isupper() else each for each in str(state))
    return words.lstrip("-") or "unknown"


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
