"""This broker as Kafka clients see it: a cluster of one node.

Plain data. Knows no socket and no engine.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from uuid import UUID

from tidemill.protocols.kafka.settings import KafkaListener
from tidemill.protocols.listeners import NamedListener
from tidemill.settings import Settings


@dataclass(slots=True)
class Node:
    """The id and the address that clients get in metadata.

    Attributes:
        node_id: the broker's id. It is also the controller's and every leader's.
        host: the host that clients connect to. Set when the server is listening.
        port: the port, likewise.
    """

    node_id: int
    host: str
    port: int

    @classmethod
    def of(cls, settings: Settings, listener: KafkaListener | NamedListener) -> Node:
        """Return the node with the address of a listener, before the server listens."""
        host = listener.advertised_host or listener.bind_host(settings.host)
        return cls(settings.node_id, host, listener.advertised_port or listener.port)


def cluster_id_text(cluster_id: UUID) -> str:
    """Return a cluster id in Kafka's form: 22 characters of URL-safe base64."""
    return base64.urlsafe_b64encode(cluster_id.bytes).rstrip(b"=").decode()
