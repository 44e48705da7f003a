"""RabbitMQ's objects, with its names and types of fields, of what the broker publishes.

Fields that only Erlang's runtime has (reductions, garbage collection) are left out. Must not know:
routes, lists.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

import orjson

from tidemill.gateway.amqp.state import Entry, View

VHOST = "/"
OFFERED = "3.10.8"
"""The version of RabbitMQ that this API was compared with."""
ERLANG = "25.2.3"
"""The version of Erlang of that RabbitMQ: some clients parse it."""
_TYPES = ("direct", "fanout", "headers", "topic")
_STATS = {
    "publish": "published",
    "deliver_get": "delivered",
    "ack": "acknowledged",
    "redeliver": "redelivered",
}
Json = dict[str, Any]

# What clients expect, and this broker does not have.
_QUEUE: Json = {
    **dict.fromkeys(("policy", "operator_policy", "recoverable_slaves", "head_message_timestamp")),
    **dict.fromkeys(("memory", "messages_ram"), 0),
    "effective_policy_definition": {},
    "exclusive_consumer_tag": None,
}
_CONNECTION: Json = {
    **dict.fromkeys(("ssl_protocol", "ssl_cipher", "ssl_hash", "ssl_key_exchange")),
    **dict.fromkeys(("peer_cert_subject", "peer_cert_issuer", "peer_cert_validity")),
    "send_pend": 0,
}
_NODE_LISTS = ("partitions", "config_files", "log_files", "contexts", "cluster_links")


def _declared(fields: Mapping[str, Any], *more: str) -> Json:
    """Return what a client has declared a queue or an exchange with."""
    return {name: fields[name] for name in ("durable", "auto_delete", "arguments", *more)}


def _rated(name: str, value: float, rate: float = 0.0) -> Json:
    return {name: value, f"{name}_details": {"rate": rate}}


def queue(name: str, entry: Entry, view: View, *, in_detail: bool = False) -> Json:
    """Return a queue; ``in_detail`` adds its consumers."""
    fields, rates = entry.fields, entry.rates
    ready, unacknowledged = fields["ready"], fields["unacknowledged"]
    active = [each[0] for each in fields["consumers"] if each[4]]
    single = fields["arguments"].get("x-single-active-consumer") is True
    stats: Json = {}
    if any(fields[ours] for ours in _STATS.values()):  # before the first message there are none
        for theirs, ours in _STATS.items():
            stats |= _rated(theirs, fields[ours], rates.get(ours, 0.0))
    found = {
        "name": name,
        "vhost": VHOST,
        "type": "classic" if fields["type"] == "topic" else fields["type"],
        **_declared(fields, "exclusive"),
        "node": view.node["name"],
        "state": "running",
        "consumers": fields["consumer_count"],
        "consumer_capacity": 1.0 if fields["consumer_count"] else 0,
        "consumer_utilisation": 1.0 if fields["consumer_count"] else 0,
        "single_active_consumer_tag": active[0] if single and active else None,
        "message_bytes": fields["bytes"],
        "message_bytes_persistent": fields["bytes"],
        "messages_persistent": ready + unacknowledged,
        **_QUEUE,
        **_counts(ready, unacknowledged),
        **({"message_stats": stats} if stats else {}),
    }
    if in_detail:
        found["consumer_details"] = [
            each for each in consumers(view) if each["queue"]["name"] == name
        ]
        found |= {"incoming": [], "deliveries": []}
    return found


def exchange(name: str, entry: Entry, *, in_detail: bool = False) -> Json:
    """Return an exchange."""
    fields = entry.fields
    found = {
        "name": name,
        "vhost": VHOST,
        "type": fields["type"],
        **_declared(fields, "internal"),
        "user_who_performed_action": "tidemill",
    }
    return found | {"incoming": [], "outgoing": []} if in_detail else found


def bindings(view: View) -> Iterator[Json]:
    """Yield all bindings; those of the default exchange, which are implicit, come first."""
    for name in view.queues:
        yield _binding("", name, "queue", name, {})
    keys = ("source", "destination", "destination_type", "routing_key", "arguments")
    for each in view.bindings:
        yield _binding(*(each[key] for key in keys))


def _binding(source: str, destination: str, kind: str, key: str, arguments: Json) -> Json:
    shown = quote(key, safe="") or "~"
    if arguments:
        digest = hashlib.blake2b(orjson.dumps(arguments), digest_size=16).digest()
        shown = f"{quote(key, safe='')}~{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"
    return {
        "source": source,
        "vhost": VHOST,
        "destination": destination,
        "destination_type": kind,
        "routing_key": key,
        "arguments": arguments,
        "properties_key": shown,
    }


def connection(name: str, entry: Entry, view: View) -> Json:
    """Return a connection."""
    fields = dict(entry.fields)
    del fields["i"], fields["at"]
    return {
        "name": name,
        "vhost": VHOST,
        "node": view.node["name"],
        "protocol": "AMQP 0-9-1",
        "type": "network",
        "user_who_performed_action": fields["user"],
        **_CONNECTION,
        **fields,
        **_rated("recv_oct", fields["recv_oct"]),
    }


def channel(name: str, entry: Entry, view: View, *, in_detail: bool = False) -> Json:
    """Return a channel; ``in_detail`` adds its consumers."""
    fields = dict(entry.fields)
    for own in ("i", "at", "consumers", "connection"):
        del fields[own]
    found = {
        "name": name,
        "vhost": VHOST,
        "node": view.node["name"],
        "state": "running",
        "user_who_performed_action": fields["user"],
        "connection_details": _peer(entry, view),
        **fields,
    }
    if in_detail:
        found["consumer_details"] = list(_consumers_of(name, entry, view))
        found |= {"publishes": [], "deliveries": []}
    return found


def _peer(entry: Entry, view: View) -> Json:
    name = entry.fields["connection"]
    there = view.connections.get(name)
    about = {} if there is None else there.fields
    return {
        "name": name,
        "peer_host": about.get("peer_host", ""),
        "peer_port": about.get("peer_port", 0),
    }


def consumers(view: View) -> Iterator[Json]:
    """Yield the consumers of all channels."""
    for name, entry in view.channels.items():
        yield from _consumers_of(name, entry, view)


def _consumers_of(name: str, entry: Entry, view: View) -> Iterator[Json]:
    fields = entry.fields
    peer = _peer(entry, view)
    for tag, queue_name, no_ack, limit in fields["consumers"]:
        yield {
            "consumer_tag": tag,
            "queue": {"name": queue_name, "vhost": VHOST},
            "ack_required": not no_ack,
            "prefetch_count": limit,
            "exclusive": False,
            "active": _is_active(view.queues.get(queue_name), tag),
            "activity_status": "up",
            "arguments": {},
            "channel_details": {
                "name": name,
                "number": fields["number"],
                "connection_name": peer["name"],
                "node": view.node["name"],
                "peer_host": peer["peer_host"],
                "peer_port": peer["peer_port"],
                "user": fields["user"],
            },
        }


def _is_active(entry: Entry | None, tag: str) -> bool:
    found = () if entry is None else entry.fields["consumers"]
    return next((bool(each[4]) for each in found if each[0] == tag), True)


def totals(view: View) -> Json:
    """Return the messages of all queues together."""
    ready = sum(each.fields["ready"] for each in view.queues.values())
    unacknowledged = sum(each.fields["unacknowledged"] for each in view.queues.values())
    return _counts(ready, unacknowledged)


def _counts(ready: int, unacknowledged: int) -> Json:
    return {
        **_rated("messages", ready + unacknowledged),
        **_rated("messages_ready", ready),
        **_rated("messages_unacknowledged", unacknowledged),
    }


def stats(view: View) -> Json:
    """Return the counters of all queues together."""
    found: Json = {}
    for theirs, ours in _STATS.items():
        value = sum(each.fields[ours] for each in view.queues.values())
        rate = sum((each.rates.get(ours, 0.0) for each in view.queues.values()), 0.0)
        found |= _rated(theirs, value, round(rate, 1))
    return found


def overview(view: View) -> Json:
    """Return the broker in figures."""
    node = view.node
    churn: Json = {}
    for theirs, ours in (("created", "opened"), ("closed", "closed")):
        churn |= _rated(f"connection_{theirs}", node[f"connections_{ours}"])
        churn |= _rated(f"channel_{theirs}", node[f"channels_{ours}"])
    return {
        "management_version": OFFERED,
        "rabbitmq_version": OFFERED,
        "product_name": "tidemill",
        "product_version": node["version"],
        "cluster_name": "tidemill",
        "node": node["name"],
        "erlang_version": ERLANG,
        "erlang_full_version": f"Erlang/OTP {ERLANG} (not used)",
        "rates_mode": "basic",
        "sample_retention_policies": {"global": [], "basic": [], "detailed": []},
        "exchange_types": _exchange_types(),
        "disable_stats": False,
        "enable_queue_totals": False,
        "message_stats": stats(view),
        "churn_rates": churn,
        "queue_totals": totals(view),
        "object_totals": {
            "channels": len(view.channels),
            "connections": len(view.connections),
            "consumers": sum(each.fields["consumer_count"] for each in view.queues.values()),
            "exchanges": len(view.exchanges),
            "queues": len(view.queues),
        },
        "statistics_db_event_queue": 0,
        "listeners": [
            {
                "node": node["name"],
                "protocol": protocol,
                "ip_address": host,
                "port": port,
                "socket_opts": {},
            }
            for protocol, host, port in node["listeners"]
        ],
        "contexts": [],
    }


def _exchange_types() -> list[Json]:
    return [
        {"name": name, "description": f"AMQP {name} exchange", "enabled": True} for name in _TYPES
    ]


def node(view: View) -> Json:
    """Return the broker as a node."""
    about = view.node
    return {
        "name": about["name"],
        "type": "disc",
        "running": True,
        "os_pid": about["os_pid"],
        "uptime": max(0, about["at"] - about["started_at"]),
        "rates_mode": "basic",
        "enabled_plugins": ["rabbitmq_management"],
        "exchange_types": _exchange_types(),
        "applications": [
            {"name": "tidemill", "description": "tidemill", "version": about["version"]}
        ],
        **{name: [] for name in _NODE_LISTS},
        "processors": about.get("processors") or 1,
        "mem_limit": about.get("mem_total") or 0,
        "mem_alarm": False,
        "disk_free_alarm": False,
        "disk_free_limit": 0,
        **_rated("mem_used", about.get("mem_used") or 0),
        **_rated("disk_free", about.get("disk_free") or 0),
        **_rated("fd_used", about.get("fd_used") or 0),
        "fd_total": about.get("fd_total") or 0,
        **_rated("sockets_used", len(view.connections)),
        "sockets_total": about.get("fd_total") or 0,
        "proc_used": 1,
        "proc_total": 1,
    }


def vhost(view: View) -> Json:
    """Return the only virtual host."""
    return {
        "name": VHOST,
        "description": "Default virtual host",
        "tags": [],
        "metadata": {"description": "Default virtual host", "tags": []},
        "default_queue_type": "classic",
        "tracing": False,
        "cluster_state": {view.node["name"]: "running"},
        "message_stats": stats(view),
        **totals(view),
    }


def cut(found: Mapping[str, Any], columns: list[list[str]]) -> Json:
    """Return an object with some fields only; ``["message_stats", "ack"]`` is a field of a field.

    A field that does not exist is left out.
    """
    kept: Json = {}
    for path in columns:
        value: Any = found
        for name in path:
            value = value.get(name, _MISSING) if isinstance(value, Mapping) else _MISSING
        if value is _MISSING:
            continue
        place = kept
        for name in path[:-1]:
            inner = place.setdefault(name, {})
            if not isinstance(inner, dict):
                break
            place = inner
        else:
            place[path[-1]] = value
    return kept


_MISSING = object()
