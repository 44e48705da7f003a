"""Facts about AMQP as the broker publishes them, for tests without a broker."""

from __future__ import annotations

from typing import Any

from tidemill.gateway.amqp.state import Entry, View

CONNECTION = "127.0.0.1:50210 -> 127.0.0.1:5672"
CHANNEL = f"{CONNECTION} (1)"


def queue(**fields: Any) -> Entry:
    """Return a queue."""
    return Entry(
        1000,
        {
            "i": "a",
            "at": 1000,
            "topic": "orders",
            "type": "classic",
            "durable": True,
            "exclusive": False,
            "auto_delete": False,
            "arguments": {"x-max-length": 10},
            "ready": 3,
            "unacknowledged": 2,
            "bytes": 400,
            "oldest_ms": 900,
            "published": 5,
            "delivered": 2,
            "acknowledged": 1,
            "redelivered": 0,
            "dead": 0,
            "consumer_count": 1,
            "consumers": [["t", "127.0.0.1:50210", 2, 0, True]],
            **fields,
        },
        {"published": 2.5},
    )


def view(**queues: Entry) -> View:
    """Return facts: the queues, one connection with a channel that consumes from ``orders``."""
    connection = {
        "i": "a",
        "at": 1000,
        "user": "guest",
        "auth_mechanism": "PLAIN",
        "client_properties": {"product": "pika"},
        "channel_max": 2047,
        "frame_max": 131072,
        "timeout": 60,
        "connected_at": 500,
        "channels": 1,
        "host": "127.0.0.1",
        "port": 5672,
        "peer_host": "127.0.0.1",
        "peer_port": 50210,
        "ssl": False,
        "recv_oct": 231,
        "state": "running",
    }
    channel = {
        "i": "a",
        "at": 1000,
        "connection": CONNECTION,
        "number": 1,
        "user": "guest",
        "prefetch_count": 5,
        "global_prefetch_count": 0,
        "consumer_count": 1,
        "messages_unacknowledged": 2,
        "consumers": [["t", "orders", False, 5]],
        "confirm": True,
        "messages_unconfirmed": 0,
        "transactional": False,
        "messages_uncommitted": 0,
        "acks_uncommitted": 0,
    }
    exchange = {
        "i": "a",
        "at": 1000,
        "type": "topic",
        "durable": True,
        "auto_delete": False,
        "internal": False,
        "arguments": {},
    }
    node = {
        "i": "a",
        "at": 2000,
        "name": "tidemill@here",
        "version": "1.0",
        "started_at": 0,
        "os_pid": "17",
        "connections_opened": 3,
        "connections_closed": 2,
        "channels_opened": 3,
        "channels_closed": 2,
        "listeners": [["amqp", "127.0.0.1", 5672]],
        "left_out": 0,
        "mem_used": 80_000_000,
        "fd_used": 30,
        "fd_total": 1024,
        "disk_free": 1 << 30,
        "mem_total": 1 << 34,
        "processors": 2,
    }
    binding = {
        "i": "a",
        "source": "ex",
        "destination": "orders",
        "destination_type": "queue",
        "routing_key": "a.#",
        "arguments": {},
    }
    return View(
        node,
        queues or {"a/b": queue(consumer_count=0, consumers=[]), "orders": queue()},
        {CONNECTION: Entry(1000, connection)},
        {CHANNEL: Entry(1000, channel)},
        {"": Entry(1000, {**exchange, "type": "direct"}), "ex": Entry(1000, exchange)},
        [binding, {**binding, "arguments": {"x-match": "all"}}],
    )
