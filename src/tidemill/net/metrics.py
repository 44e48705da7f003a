"""Metrics of the listeners: connections, and the memory of requests and responses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tidemill.metrics.definition import counter, gauge
from tidemill.metrics.registry import Family, Registry
from tidemill.net.budget import Budget
from tidemill.net.listener import Listener

CONNECTIONS = gauge("tidemill_connections", "Open connections.", "listener")
MOST = gauge(
    "tidemill_connections_limit", "Connections that a listener allows, with those of its group."
)
ACCEPTED = counter(
    "tidemill_connections_accepted_total", "Connections that were accepted.", "listener"
)
REFUSED = counter(
    "tidemill_connections_refused_total",
    "Connections that were closed because too many were open.",
    "listener",
)
FAILED = counter(
    "tidemill_connections_failed_total",
    "Connections that the broker closed because of an error, by the type of the error.",
    *("listener", "error"),
)
REQUEST_MEMORY = gauge(
    "tidemill_request_memory_bytes", "Bytes of requests that are received or being answered."
)
MEMORY_LIMIT = gauge(
    "tidemill_memory_limit_bytes",
    "Limit of the memory of requests, and of that of responses (limits.total_inflight_bytes).",
)
RESPONSE_MEMORY = gauge(
    "tidemill_response_memory_bytes",
    "Bytes of responses that clients have not read.",
    "listener",
)
WAITING = gauge("tidemill_responses_waiting", "Responses that wait for memory.", "listener")


def add_listeners(registry: Registry, listeners: Sequence[Listener], budget: Budget) -> None:
    """Add the metrics of listeners.

    Args:
        budget: the memory of requests that most of them share.
    """

    def collect() -> Iterator[Family]:
        yield CONNECTIONS, [((each.name,), each.connections) for each in listeners]
        yield MOST, [((), max(each.limits.connections for each in listeners))]
        yield ACCEPTED, [((each.name,), each.accepted) for each in listeners]
        yield REFUSED, [((each.name,), each.refused) for each in listeners]
        yield (
            FAILED,
            [
                ((each.name, kind), count)
                for each in listeners
                for kind, count in each.failed.items()
            ],
        )
        yield REQUEST_MEMORY, [((), budget.used)]
        yield MEMORY_LIMIT, [((), budget.limit)]
        yield RESPONSE_MEMORY, [((each.name,), each.responses.used) for each in listeners]
        yield WAITING, [((each.name,), each.responses.waiting) for each in listeners]

    registry.collect(collect)
