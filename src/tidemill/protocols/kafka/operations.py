"""Kafka's numbers in rules of access: operations, kinds of resources, patterns, effects.

Also the operations that a client is allowed to do, as bit fields (KIP-430). Knows the engine's
access checks.

Source: KIP-11, KIP-290; org.apache.kafka.common.acl.AclOperation, common.resource.ResourceType.
"""

from __future__ import annotations

from tidemill.engine.authorize import CLUSTER, GROUP, TOPIC, Access, Operation, ResourceKind
from tidemill.state.security.types import Pattern

_O = Operation
ANY, MATCH = 1, 2
"""In a filter: everything; and of patterns, those that match the name."""

OPERATIONS = {
    2: _O.ALL,
    3: _O.READ,
    4: _O.WRITE,
    5: _O.CREATE,
    6: _O.DELETE,
    7: _O.ALTER,
    8: _O.DESCRIBE,
    9: _O.CLUSTER_ACTION,
    10: _O.DESCRIBE_CONFIGS,
    11: _O.ALTER_CONFIGS,
    12: _O.IDEMPOTENT_WRITE,
    13: _O.CREATE_TOKENS,
    14: _O.DESCRIBE_TOKENS,
    15: _O.TWO_PHASE_COMMIT,
}
KINDS = {
    2: ResourceKind.TOPIC,
    3: ResourceKind.GROUP,
    4: ResourceKind.CLUSTER,
    5: ResourceKind.TRANSACTIONAL_ID,
    6: ResourceKind.DELEGATION_TOKEN,
    7: ResourceKind.USER,
}
PATTERNS = {3: Pattern.LITERAL, 4: Pattern.PREFIXED}
EFFECTS = {2: False, 3: True}
"""DENY and ALLOW."""

_ASKED: dict[ResourceKind, tuple[int, ...]] = {
    TOPIC: (3, 4, 5, 6, 7, 8, 10, 11),
    GROUP: (3, 6, 8, 10, 11),
    CLUSTER: (5, 7, 8, 9, 10, 11, 12),
}
"""Kind of resource -> the operations that a bit field has."""

NOT_ASKED = -2147483648
"""In a response: the client did not ask for the operations."""


def allowed_operations(asked: bool, access: Access, kind: ResourceKind, name: str = "") -> int:
    """Return the operations that the principal is allowed to do on the resource, if asked for."""
    if not asked:
        return NOT_ASKED
    return sum(1 << code for code in _ASKED[kind] if access.allows(OPERATIONS[code], kind, name))
