"""The operations that a client is allowed to do, as Kafka's bit fields (KIP-430).

Knows the engine's access checks, and the numbers of Kafka's ACL operations.
"""

from __future__ import annotations

from tidemill.engine.authorize import CLUSTER, GROUP, TOPIC, Access, Operation, ResourceKind

_O = Operation
_IDEMPOTENT_WRITE = 12

_CODES: dict[ResourceKind, dict[int, Operation]] = {
    TOPIC: {
        3: _O.READ,
        4: _O.WRITE,
        5: _O.CREATE,
        6: _O.DELETE,
        7: _O.ALTER,
        8: _O.DESCRIBE,
        10: _O.DESCRIBE_CONFIGS,
        11: _O.ALTER_CONFIGS,
    },
    GROUP: {
        3: _O.READ,
        6: _O.DELETE,
        8: _O.DESCRIBE,
        10: _O.DESCRIBE_CONFIGS,
        11: _O.ALTER_CONFIGS,
    },
    CLUSTER: {
        5: _O.CREATE,
        7: _O.ALTER,
        8: _O.DESCRIBE,
        9: _O.CLUSTER_ACTION,
        10: _O.DESCRIBE_CONFIGS,
        11: _O.ALTER_CONFIGS,
        _IDEMPOTENT_WRITE: _O.WRITE,
    },
}
"""Kind of resource -> number of Kafka's operation -> ours."""

TOPIC_OPERATIONS, GROUP_OPERATIONS, CLUSTER_OPERATIONS = (
    sum(1 << code for code in _CODES[kind]) for kind in (TOPIC, GROUP, CLUSTER)
)
"""All operations on a resource of the kind."""

NOT_ASKED = -2147483648
"""In a response: the client did not ask for the operations."""


def allowed_operations(access: Access, kind: ResourceKind, name: str = "") -> int:
    """Return the operations that the principal is allowed to do on the resource."""
    return sum(
        1 << code
        for code, operation in _CODES[kind].items()
        if access.allows(operation, kind, name)
    )
