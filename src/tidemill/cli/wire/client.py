"""Finds the broker for a request: by id, leader or coordinator. Sends it over ``connection``.

Knows FindCoordinator; what other requests are about is for the commands to know.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tidemill.cli.client import REQUEST_SECONDS, Cluster, TopicPartitionKey
from tidemill.cli.wire.connection import Address, Connection
from tidemill.cli.wire.errors import LeaderMovedError, check_error_code, retry_transient
from tidemill.cli.wire.tls import tls_context

FIND_COORDINATOR = 10
_FIND_COORDINATOR_VERSIONS = range(4, 7)
_GROUP, _TRANSACTION = 0, 1
"""The kinds of coordinators."""


class WireClient:
    """Sends requests to the brokers of a cluster. A context manager.

    It opens a connection to a broker when it needs one, and closes all of them at the end.

    Raises:
        UsageError: the cluster's properties ask for SASL, or have an unsupported TLS property.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._tls = tls_context(cluster.properties)
        self._connections: dict[Address, Connection] = {}

    def __enter__(self) -> WireClient:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._connections.values():
            connection.close()

    def brokers(self) -> dict[int, Address]:
        """Return the address of each broker by its id."""
        return _addresses(self._metadata())

    def leaders(self, keys: Iterable[TopicPartitionKey]) -> dict[TopicPartitionKey, Address]:
        """Return the leader of each partition. The partitions must exist.

        Raises:
            LeaderMovedError: a partition has no leader at the moment.
        """
        metadata = self._metadata()
        addresses = _addresses(metadata)
        found: dict[TopicPartitionKey, Address] = {}
        for topic, partition in keys:
            leader = metadata.topics[topic].partitions[partition].leader
            if leader not in addresses:
                raise LeaderMovedError(f"{topic} partition {partition} has no leader at the moment")
            found[topic, partition] = addresses[leader]
        return found

    def _metadata(self) -> Any:
        admin = self._cluster.admin
        return self._cluster.ask("brokers", lambda: admin.list_topics(timeout=REQUEST_SECONDS))

    def coordinators(self, transactional_ids: Sequence[str]) -> dict[str, tuple[int, Address]]:
        """Return id and address of the broker that coordinates each transactional id.

        Raises:
            TidemillError: the cluster does not say.
        """
        return self._coordinators(_TRANSACTION, transactional_ids)

    def group_coordinator(self, group_id: str) -> Address:
        """Return the address of the broker that coordinates a group.

        Raises:
            TidemillError: the cluster does not say.
        """
        return self._coordinators(_GROUP, [group_id])[group_id][1]

    def _coordinators(self, kind: int, keys: Sequence[str]) -> dict[str, tuple[int, Address]]:
        if not keys:
            return {}
        broker = next(iter(self.brokers().values()))
        tree = {"key_type": kind, "coordinator_keys": keys}

        def find() -> dict[str, tuple[int, Address]]:
            response = self.request(broker, FIND_COORDINATOR, _FIND_COORDINATOR_VERSIONS, tree)
            found: dict[str, tuple[int, Address]] = {}
            for each in response["coordinators"]:
                subject = f"the coordinator of {each['key']}"
                check_error_code(each["error_code"], subject, each["error_message"])
                found[each["key"]] = each["node_id"], Address(each["host"], each["port"])
            return found

        return retry_transient(find)

    def version(self, broker: Address, api_key: int, versions: range) -> int:
        """Return the newest of ``versions`` that the broker supports.

        Raises:
            UnsupportedVersionError: it supports none of them.
            UnreachableError: it does not respond.
        """
        return self._connection(broker).version(api_key, versions)

    def request(
        self, broker: Address, api_key: int, versions: range, tree: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Send a request in the newest of ``versions`` that the broker supports.

        Args:
            broker: where to send it.
            api_key: Kafka's number of the API.
            versions: those that the caller knows.
            tree: the request, a dict of kio's field names (``kafka_codec.messages``).

        Returns:
            The response in the same form.

        Raises:
            UnsupportedVersionError: the broker supports none of ``versions``.
            UnreachableError: it does not respond.
            ProtocolError: its response is invalid.
        """
        return self._connection(broker).request(api_key, versions, tree)

    def _connection(self, broker: Address) -> Connection:
        if broker not in self._connections:
            self._connections[broker] = Connection(broker, self._tls)
        return self._connections[broker]


def _addresses(metadata: Any) -> dict[int, Address]:
    return {
        int(broker.id): Address(str(broker.host), int(broker.port))
        for broker in metadata.brokers.values()
    }
