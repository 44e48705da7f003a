"""Assembles the state machines of groups, as the broker is set.

Knows the settings, and nothing of what the machines do.
"""

from __future__ import annotations

from tidemill import settings
from tidemill.state.all_groups import AllGroups
from tidemill.state.catalog.group_configs import (
    HEARTBEAT_INTERVAL,
    SESSION_TIMEOUT,
    SHARE_DELIVERY_LIMIT,
    SHARE_HEARTBEAT_INTERVAL,
    SHARE_MAX_RECORD_LOCKS,
    SHARE_RECORD_LOCK,
    SHARE_SESSION_TIMEOUT,
    GroupConfigs,
)
from tidemill.state.consumer_groups.machine import ConsumerGroups
from tidemill.state.consumer_groups.types import MigrationPolicy
from tidemill.state.groups.machine import Groups
from tidemill.state.groups.memory import GroupLimits
from tidemill.state.modern_groups.types import GroupTimes, Topics
from tidemill.state.share_groups.machine import ShareGroups


def group_configs(settings: settings.Groups) -> GroupConfigs:
    """Return the configs of single groups, with the broker's settings as defaults."""
    return GroupConfigs(
        {
            SESSION_TIMEOUT: settings.consumer_session_timeout_ms,
            HEARTBEAT_INTERVAL: settings.consumer_heartbeat_interval_ms,
            SHARE_SESSION_TIMEOUT: settings.share_session_timeout_ms,
            SHARE_HEARTBEAT_INTERVAL: settings.share_heartbeat_interval_ms,
            SHARE_RECORD_LOCK: settings.share_record_lock_ms,
            SHARE_DELIVERY_LIMIT: settings.share_delivery_limit,
            SHARE_MAX_RECORD_LOCKS: settings.share_max_record_locks,
        }
    )


def make_groups(settings: settings.Groups, topics: Topics, configs: GroupConfigs) -> AllGroups:
    """Return the machines of all kinds of groups."""
    limits = GroupLimits(
        settings.max_member_bytes, settings.max_group_bytes, settings.max_total_bytes
    )
    classic = Groups(
        min_session_timeout_ms=settings.min_session_timeout_ms,
        max_session_timeout_ms=settings.max_session_timeout_ms,
        initial_rebalance_delay_ms=settings.initial_rebalance_delay_ms,
        max_size=settings.max_size,
        limits=limits,
    )
    consumers = ConsumerGroups(
        topics,
        times=lambda group_id: GroupTimes(
            configs.number(group_id, SESSION_TIMEOUT), configs.number(group_id, HEARTBEAT_INTERVAL)
        ),
        max_size=settings.consumer_max_size,
        limits=limits,
        other_bytes=lambda: classic.memory_bytes + shares.table.bytes,
    )
    shares = ShareGroups(
        topics,
        times=lambda group_id: GroupTimes(
            configs.number(group_id, SHARE_SESSION_TIMEOUT),
            configs.number(group_id, SHARE_HEARTBEAT_INTERVAL),
        ),
        max_size=settings.share_max_size,
        limits=limits,
        other_bytes=lambda: classic.memory_bytes + consumers.table.bytes,
    )
    return AllGroups(
        classic,
        consumers,
        shares,
        topics,
        policy=MigrationPolicy(settings.consumer_migration_policy),
        classic_max_size=settings.max_size,
    )
