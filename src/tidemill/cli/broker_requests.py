"""Sends the requests that librdkafka does not offer: to a broker, a leader or a coordinator.

It uses ``kafka_client``, so it takes the same properties of TLS and SASL as librdkafka, except
for Kerberos and OAUTHBEARER. Kafka's error codes become tidemill's errors, and transient ones are
retried. What the requests are about is for the commands to know.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from tidemill.cli.client import (
    CONNECT_SECONDS,
    REQUEST_SECONDS,
    Cluster,
    TopicPartitionKey,
    rejected,
)
from tidemill.cli.output import UsageError
from tidemill.errors import RequestTimedOutError, TidemillError, UnreachableError
from tidemill.kafka_client.brokers import Brokers
from tidemill.kafka_client.connection import Connection
from tidemill.kafka_client.errors import (
    ConnectionFailedError,
    ConnectionRejectedError,
    VersionNotSupportedError,
)
from tidemill.kafka_client.settings import Address, connection_settings
from tidemill.kafka_codec.declared import api_name
from tidemill.protocols.kafka.errors import UnsupportedVersionError
from tidemill.state.errors import (
    ConcurrentTransactionsError,
    CoordinatorLoadingError,
    CoordinatorNotAvailableError,
)

T = TypeVar("T")

RETRY_SECONDS = 0.1
"""Pause before a request is sent again."""
_FIND_COORDINATOR = 10
_FIND_COORDINATOR_VERSIONS = range(4, 7)
_DESCRIBE_CONFIGS, _BROKER = 32, 4
_GROUP, _TRANSACTION = 0, 1
"""The kinds of coordinators."""


class LeaderMovedError(TidemillError):
    """The broker does not lead the partition, or not yet."""


_TRANSIENT = (
    ConcurrentTransactionsError,
    CoordinatorLoadingError,
    CoordinatorNotAvailableError,
    LeaderMovedError,
)


class BrokerRequests:
    """Sends requests to the brokers of a cluster. A context manager.

    It opens a connection to a broker when it needs one, and closes all of them at the end.

    Raises:
        UnsupportedSettingError: the cluster's properties ask for what only librdkafka has.
        UsageError: a certificate or key can't be read.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        try:
            self._brokers = Brokers(connection_settings(cluster.config(), "tidemill-cli"), {})
        except OSError as error:
            raise UsageError(f"--property: TLS can't be set up: {error}") from error

    def __enter__(self) -> BrokerRequests:
        return self

    def __exit__(self, *_: object) -> None:
        self._brokers.close()

    def brokers(self) -> dict[int, Address]:
        """Return the address of each broker by its id."""
        return _addresses(self._metadata())

    def any_broker(self) -> Address:
        """Return the address of a broker."""
        return next(iter(self.brokers().values()))

    def broker_configs(self, names: Sequence[str]) -> dict[str, str | None]:
        """Return the values of configs of a broker, as far as it has them."""
        node_id, address = next(iter(self.brokers().items()))
        resource = {
            "resource_type": _BROKER,
            "resource_name": str(node_id),
            "configuration_keys": list(names),
        }
        tree = {"resources": [resource]}
        (result,) = self.ask(address, _DESCRIBE_CONFIGS, range(1, 5), tree)["results"]
        check_error_code(result["error_code"], "the broker's configs", result["error_message"])
        return {each["name"]: each["value"] for each in result["configs"]}

    def leaders(self, keys: Iterable[TopicPartitionKey]) -> dict[TopicPartitionKey, Address]:
        """Return the leader of each partition. The partitions must exist."""
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
        """Return id and address of the broker that coordinates each transactional id."""
        return self._coordinators(_TRANSACTION, transactional_ids)

    def group_coordinator(self, group_id: str) -> Address:
        """Return the address of the broker that coordinates a group."""
        return self._coordinators(_GROUP, [group_id])[group_id][1]

    def _coordinators(self, kind: int, keys: Sequence[str]) -> dict[str, tuple[int, Address]]:
        if not keys:
            return {}
        broker = next(iter(self.brokers().values()))
        tree = {"key_type": kind, "coordinator_keys": keys}

        def find() -> dict[str, tuple[int, Address]]:
            response = self.ask(broker, _FIND_COORDINATOR, _FIND_COORDINATOR_VERSIONS, tree)
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
        with self._connected(broker) as connection:
            connection.agree({api_key: (versions[0], versions[-1])})
            return connection.versions[api_key]

    def ask(
        self, broker: Address, api_key: int, versions: range, tree: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Send a request in the newest of ``versions`` that the broker supports.

        ``tree`` is the request, a dict of kio's field names (``kafka_codec.messages``). The
        response has the same form.

        Raises:
            UnsupportedVersionError: the broker supports none of ``versions``.
            UnreachableError: it does not respond, its response is invalid, or it rejects the
                connection.
        """
        with self._connected(broker) as connection:
            connection.agree({api_key: (versions[0], versions[-1])})
            response = connection.request(api_key, tree, REQUEST_SECONDS)
        found: dict[str, Any] = response.as_tree()
        return found

    @contextmanager
    def _connected(self, broker: Address) -> Iterator[Connection]:
        """Give a connection to a broker, and word the errors that occur with it."""
        connection = None
        try:
            connection = self._brokers.at(broker, CONNECT_SECONDS)
            yield connection
        except VersionNotSupportedError as error:
            raise UnsupportedVersionError(
                f"the broker at {broker} does not support {api_name(error.api)}",
                hint="Apache Kafka does since 3.0.",
            ) from error
        except ConnectionRejectedError as error:
            raise rejected(error) from error
        except ConnectionFailedError as error:
            self._brokers.drop(connection)
            raise UnreachableError(
                f"no broker answers at {error}",
                hint="The cluster named this address; the one given with -b may be another.",
            ) from error


def _addresses(metadata: Any) -> dict[int, Address]:
    return {
        int(broker.id): Address(str(broker.host), int(broker.port))
        for broker in metadata.brokers.values()
    }


def check_error_code(code: int, subject: str, message: str | None = None, hint: str = "") -> None:
    """Raise the error for a code in a response.

    Args:
        code: Kafka's number; 0 means success.
        subject: the thing that the code is about. The message begins with it.
        message: the broker's text for it, if the response has one.
        hint: of the error.

    Raises:
        TidemillError: the code is not zero. The type is the one that has this code.
    """
    if code:
        raise error_for_code(code, subject, message, hint)


def error_for_code(
    code: int, subject: str, message: str | None = None, hint: str = ""
) -> TidemillError:
    """Return the error for a code. For the arguments see ``check_error_code``."""
    # Imported here: most commands need neither, and kio takes time to load.
    from tidemill.kafka_codec.schema import error_name
    from tidemill.protocols.kafka.error_codes import CODES

    kinds: dict[int, type[TidemillError]] = {
        number: kind for kind, number in reversed(CODES.items())
    }
    # Our own broker never sends these codes, or means something else by them.
    kinds |= {5: LeaderMovedError, 6: LeaderMovedError, 16: CoordinatorNotAvailableError}
    return kinds.get(code, TidemillError)(f"{subject}: {message or error_name(code)}", hint=hint)


def retry_transient(call: Callable[[], T]) -> T:
    """Call again while the error is transient: loading, not available yet, still ending.

    Raises:
        RequestTimedOutError: the error remained for ten seconds.
        TidemillError: any other error of ``call``.
    """
    deadline = time.monotonic() + REQUEST_SECONDS
    while True:
        try:
            return call()
        except _TRANSIENT as error:
            if time.monotonic() > deadline:
                raise RequestTimedOutError(
                    f"{error}, for {REQUEST_SECONDS:.0f} seconds now", hint="Try again later."
                ) from error
            time.sleep(RETRY_SECONDS)
