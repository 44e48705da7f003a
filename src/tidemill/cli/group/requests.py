"""Requests about consumer groups that several commands send.

This module must not print.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidemill.cli import output
from tidemill.cli.client import REQUEST_SECONDS, Cluster, TopicPartitionKey
from tidemill.state.errors import GroupIdNotFoundError, NonEmptyGroupError


@dataclass(frozen=True)
class Epochs:
    """The epochs of a group.

    Attributes:
        group: grows with each change of members, subscriptions or topics.
        assignment: the group epoch that the target assignment was made for.
        members: by member id, for JSON: epoch, protocol (None if the broker does not say), and the
            partitions that the member is to have.
    """

    group: int
    assignment: int
    members: Mapping[str, Mapping[str, Any]]


def state_text(state: Any) -> str:
    """Return a group's state: empty, stable, preparing-rebalance, completing-rebalance, dead."""
    return (
        str(getattr(state, "name", state))
        .lower()
        .replace("_", "-")
        .replace("rebalancing", "rebalance")
    )


def describe_groups(cluster: Cluster, groups: Sequence[str]) -> dict[str, Any]:
    """Return confluent-kafka's ``ConsumerGroupDescription`` by group. Unknown groups are dead."""
    return {group: describe_group(cluster, group) for group in groups}


def describe_group(cluster: Cluster, group: str) -> Any:
    """Return the description of one group. An unknown group is dead."""

    def call() -> Any:
        futures = cluster.admin.describe_consumer_groups([group], request_timeout=REQUEST_SECONDS)
        return futures[group].result()

    return cluster.ask(f"group {group}", call)


def is_consumer_group(description: Any) -> bool:
    """Return whether the group uses the consumer protocol."""
    return getattr(getattr(description, "type", None), "name", "") == "CONSUMER"


def is_dead(description: Any) -> bool:
    """Return whether the group does not exist."""
    return state_text(description.state) == "dead"


def not_found(group: str) -> GroupIdNotFoundError:
    """Return the error for a group that does not exist."""
    return GroupIdNotFoundError(
        f"group {group} does not exist", hint="List the groups: tidemill group list"
    )


def refuse_if_alive(description: Any) -> None:
    """Check that the group has no members, which would commit over a change of their offsets."""
    members = description.members
    if members:
        clients = sorted({member.client_id for member in members})
        raise NonEmptyGroupError(
            f"group {description.group_id} has {output.plural(len(members), 'live member')} "
            f"({', '.join(clients)})",
            hint="Stop its consumers first. Crashed members leave after their session timeout.",
        )


def committed_offsets(cluster: Cluster, group: str) -> dict[TopicPartitionKey, int]:
    """Return the offsets that the group has committed, by partition."""
    from confluent_kafka import ConsumerGroupTopicPartitions

    def call() -> Any:
        futures = cluster.admin.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group)], request_timeout=REQUEST_SECONDS
        )
        return futures[group].result()

    answer = cluster.ask(f"group {group}", call)
    return {(tp.topic, tp.partition): tp.offset for tp in answer.topic_partitions if tp.offset >= 0}


def owners(description: Any) -> dict[TopicPartitionKey, Any]:
    """Return the member that each assigned partition belongs to."""
    return {
        (tp.topic, tp.partition): member
        for member in description.members
        if member.assignment
        for tp in member.assignment.topic_partitions
    }


def member_dict(member: Any, epochs: Epochs | None = None) -> dict[str, Any]:
    """Return a member for JSON."""
    assigned = member.assignment.topic_partitions if member.assignment else []
    known = epochs.members.get(member.member_id, {}) if epochs else {"protocol": "classic"}
    return {
        "member": member.member_id,
        "client": member.client_id,
        "host": member.host,
        "instance": member.group_instance_id,
        **{name: known.get(name) for name in ("protocol", "epoch", "target")},
        "partitions": sorted(f"{tp.topic}-{tp.partition}" for tp in assigned),
    }
