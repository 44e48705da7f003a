"""The features of the cluster (KIP-584): their levels, and what UpdateFeatures can ask for.

Each feature has one level, because the broker serves old and new clients at the same time: there is
nothing to switch off. An update to that level changes nothing and succeeds; any other level is
outside of the range that is advertised, and is refused as Apache Kafka refuses it.
"""

from __future__ import annotations

from typing import Any

from tidemill.protocols.kafka.apis import field
from tidemill.protocols.kafka.errors import InvalidUpdateVersionError

LEVELS = {
    # Replicas that can lead without a loss (KIP-966): the only replica, here. The cluster has a
    # min.insync.replicas of its own.
    "eligible.leader.replicas.version": 1,
    # Members of groups can use the consumer protocol (KIP-848).
    "group.version": 1,
    # Members of share groups get records one by one (KIP-932).
    "share.version": 1,
    # New producers leave AddPartitionsToTxn out. Older ones can still send it.
    "transaction.version": 2,
}
"""The finalised features."""

_UPGRADE, _UNSAFE_DOWNGRADE = 1, 3
_MOST_SHOWN = 200
"""Characters of a feature's name in a message."""


def check_update(update: Any, node_id: int) -> None:
    """Check one update of a request of any version.

    Raises:
        InvalidUpdateVersionError: the feature can't have this level.
    """
    name, level = update.feature, update.max_version_level
    kind = field(update, "upgrade_type", _UPGRADE)
    known = LEVELS.get(name)
    why = ""
    if level < 0:
        why = "A feature version cannot be less than 0."
    elif not _UPGRADE <= kind <= _UNSAFE_DOWNGRADE:
        why = "The controller does not support the given upgrade type."
    elif known is None and level == 0:
        why = f"Feature {name[:_MOST_SHOWN]} not found."
    elif known is None:
        why = f"Local controller {node_id} does not support this feature."
    elif level < known and kind == _UPGRADE and not field(update, "allow_downgrade", False):
        why = (
            "Can't downgrade the version of this feature without setting the upgrade type to "
            "either safe or unsafe downgrade."
        )
    elif level != known:
        why = f"Local controller {node_id} only supports versions {known}-{known}"
    if why:
        raise InvalidUpdateVersionError(
            "The update failed for all features since the following feature had an error: "
            f"Invalid update version {level} for feature {name[:_MOST_SHOWN]}. {why}"
        )
