"""Sends single requests to a broker, a leader or a coordinator, and checks the answers.

One thread at a time uses a ``BrokerRequests``. Must not know: what the requests are about, and how
its users name their settings.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tidemill.errors import RequestTimedOutError, TidemillError
from tidemill.kafka_client.brokers import LEADER_NOT_AVAILABLE, Brokers
from tidemill.kafka_client.connection import Connection
from tidemill.kafka_client.errors import (
    ConnectionFailedError,
    ConnectionRejectedError,
    RefusedError,
    RequestNotSupportedError,
    VersionNotSupportedError,
)
from tidemill.kafka_client.settings import Address, ConnectionSettings
from tidemill.kafka_codec.declared import FIND_COORDINATOR, METADATA, api_name

T = TypeVar("T")
Place = tuple[str, int]
"""A topic and the number of a partition."""
Report = Callable[[RefusedError], None]
"""Gets the error of one element of an answer. Raise it, or note it and continue."""

REQUEST_S = 10.0
"""How long a request can take, and how long transient errors are retried."""
RETRY_S = 0.1
"""Pause before a request is sent again."""
GROUP, TRANSACTION = 0, 1
"""The kinds of coordinators."""
TRANSIENT = (5, 6, 14, 15, 16, 51)
"""Leaders and coordinators that move or load, and transactions that are being ended."""
_DESCRIBE_CONFIGS, _BROKER = 32, 4


@dataclass(frozen=True, slots=True)
class Wording:
    """Makes the errors of connections: each caller names its own flags or settings.

    Attributes:
        unreachable: Returns the error if a broker does not answer. It gets the cause, and the
            address that the cluster has named, or None for the addresses of the settings.
        rejected: Returns the error if the login or TLS is rejected.
    """

    unreachable: Callable[[ConnectionFailedError, Address | None], TidemillError]
    rejected: Callable[[ConnectionRejectedError], TidemillError]


def raise_refusal(error: RefusedError) -> None:
    """Raise the error of an element of an answer."""
    raise error


class BrokerRequests:
    """Sends requests to the brokers of a cluster. A context manager.

    It opens a connection to a broker when it needs one, and closes all of them at the end.

    Args:
        connect_s: How long a broker can take to accept a connection, in seconds.

    Raises:
        OSError: A certificate or key can't be read.
    """

    def __init__(
        self, settings: ConnectionSettings, wording: Wording, connect_s: float = REQUEST_S
    ) -> None:
        self._brokers = Brokers(settings, {})
        self._wording = wording
        self._connect_s = connect_s
        self._used: weakref.WeakSet[Connection] = weakref.WeakSet()

    def __enter__(self) -> BrokerRequests:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._brokers.close()

    # --- any request -----------------------------------------------------------------------------

    def ask(
        self, broker: Address | None, api: int, versions: tuple[int, int], tree: Mapping[str, Any]
    ) -> Any:
        """Send a request, and return the answer.

        A request is sent again if a connection that was used before is closed: brokers close idle
        ones. So a request must have the same effect twice as once.

        Args:
            broker: The broker; None for any one.
            versions: The least and greatest version that the caller knows. The newest one that the
                broker supports is used.
            tree: The request, a dict of kio's field names (``kafka_codec.messages``).

        Returns:
            A message with kio's field names as attributes. Its version might lack some.

        Raises:
            RequestNotSupportedError: The broker supports none of the versions.
            TidemillError: No broker answers, or it rejects the login, as ``Wording`` has it.
        """

        def send(connection: Connection, left_s: float) -> Any:
            connection.agree({api: versions})
            return connection.request(api, tree, left_s)

        return self._with_connection(broker, send)

    def version(self, broker: Address, api: int, versions: tuple[int, int]) -> int:
        """Return the newest of ``versions`` that the broker supports.

        Raises:
            RequestNotSupportedError: It supports none of them. For others see ``ask``.
        """

        def agree(connection: Connection, _: float) -> int:
            connection.agree({api: versions})
            return connection.versions[api]

        return self._with_connection(broker, agree)

    def _with_connection(self, broker: Address | None, call: Callable[[Connection, float], T]) -> T:
        """Call with a connection and the seconds that are left, and word the errors."""
        try:
            return self._retried(broker, call)
        except VersionNotSupportedError as error:
            raise RequestNotSupportedError(
                f"the broker at {error.broker} does not support {api_name(error.api)}",
                hint="Apache Kafka does since 3.0.",
            ) from error
        except ConnectionRejectedError as error:
            raise self._wording.rejected(error) from error
        except ConnectionFailedError as error:
            raise self._wording.unreachable(error, broker) from error

    def _retried(self, broker: Address | None, call: Callable[[Connection, float], T]) -> T:
        deadline = time.monotonic() + REQUEST_S
        while True:
            connection = None
            try:
                if broker is None:
                    connection = self._brokers.any(time.monotonic() + self._connect_s)
                else:
                    connection = self._brokers.at(broker, self._connect_s)
                answer = call(connection, max(0.001, deadline - time.monotonic()))
            except VersionNotSupportedError:
                raise
            except ConnectionFailedError:
                self._brokers.drop(connection)
                # A new connection is not in `_used`, so this ends.
                if connection not in self._used or time.monotonic() > deadline:
                    raise
            else:
                self._used.add(connection)
                return answer

    # --- which broker ----------------------------------------------------------------------------

    def metadata(self, topics: Collection[str] | None = None) -> Any:
        """Return the brokers, and topics with their leaders; None for all topics."""
        wanted = None if topics is None else [{"name": name} for name in topics]
        tree = {"topics": wanted, "allow_auto_topic_creation": False}
        return self.ask(None, METADATA, (4, 4), tree)

    def brokers(self) -> dict[int, Address]:
        """Return the address of each broker by its id."""
        return addresses_in(self.metadata([]))

    def leaders(
        self, places: Collection[Place], *, report: Report = raise_refusal
    ) -> dict[Place, Address]:
        """Return the leader of each partition.

        Args:
            report: Gets the errors of topics that don't exist, and of partitions without a leader.
                They are left out.
        """
        metadata = self.metadata(sorted({topic for topic, _ in places}))
        for topic in metadata.topics:
            check_error_code(topic.error_code, f"topic {topic.name}", report=report)
        known = leaders_in(metadata)
        for topic, partition in places:
            if (topic, partition) not in known:
                subject = f"{topic} partition {partition}"
                report(RefusedError(LEADER_NOT_AVAILABLE, subject, "no leader at the moment"))
        return {place: known[place] for place in places if place in known}

    def transaction_coordinator(self, transactional_id: str) -> tuple[int, Address]:
        """Return id and address of the broker that coordinates a transactional id."""
        return self._coordinator(TRANSACTION, transactional_id)

    def group_coordinator(self, group: str) -> Address:
        """Return the address of the broker that coordinates a group."""
        return self._coordinator(GROUP, group)[1]

    def _coordinator(self, kind: int, key: str) -> tuple[int, Address]:
        tree = {"key_type": kind, "coordinator_keys": [key]}

        def find() -> tuple[int, Address]:
            (found,) = self.ask(None, FIND_COORDINATOR, (4, 6), tree).coordinators
            check_error_code(found.error_code, f"the coordinator of {key}", found.error_message)
            return found.node_id, Address(found.host, found.port)

        return retry_transient(find)

    def broker_configs(self, names: Sequence[str]) -> dict[str, str | None]:
        """Return the values of configs of a broker, as far as it has them."""
        node, address = next(iter(self.brokers().items()))
        resource = {
            "resource_type": _BROKER,
            "resource_name": str(node),
            "configuration_keys": list(names),
        }
        (result,) = self.ask(address, _DESCRIBE_CONFIGS, (1, 4), {"resources": [resource]}).results
        check_error_code(result.error_code, "the broker's configs", result.error_message)
        return {each.name: each.value for each in result.configs}


def addresses_in(metadata: Any) -> dict[int, Address]:
    """Return the address of each broker by its id."""
    return {each.node_id: Address(each.host, each.port) for each in metadata.brokers}


def leaders_in(metadata: Any) -> dict[Place, Address]:
    """Return the leader of each partition that has one."""
    addresses = addresses_in(metadata)
    return {
        (topic.name, each.partition_index): addresses[each.leader_id]
        for topic in metadata.topics
        if not topic.error_code
        for each in topic.partitions
        if each.leader_id in addresses
    }


def by_leader(leaders: Mapping[Place, Address]) -> dict[Address, list[Place]]:
    """Return the partitions that each broker leads."""
    found: dict[Address, list[Place]] = {}
    for place, leader in leaders.items():
        found.setdefault(leader, []).append(place)
    return found


def by_topic(places: Iterable[Place]) -> dict[str, list[int]]:
    """Return the numbers of partitions by topic, as requests have them."""
    found: dict[str, list[int]] = {}
    for topic, partition in places:
        found.setdefault(topic, []).append(partition)
    return found


# --- errors --------------------------------------------------------------------------------------


def check_error_code(
    code: int,
    subject: str,
    message: str | None = None,
    *,
    report: Report = raise_refusal,
) -> bool:
    """Return whether a code of an answer means success, and report it if not.

    Args:
        code: Kafka's number; 0 means success.
        subject: The thing that the code is about. The error begins with it.
        message: The broker's text for it, if the answer has one.
        report: Gets the error; by default, it is raised.

    Raises:
        RefusedError: The code is not zero.
    """
    if not code:
        return True
    if not message:
        from tidemill.kafka_codec.schema import error_name  # kio takes time to load

        message = error_name(code)
    report(RefusedError(code, subject, message))
    return False


def retry_transient(call: Callable[[], T]) -> T:
    """Call again while the error is transient: loading, not available yet, still ending.

    Raises:
        RequestTimedOutError: The error remained for ten seconds.
        TidemillError: Any other error of ``call``.
    """
    deadline = time.monotonic() + REQUEST_S
    while True:
        try:
            return call()
        except RefusedError as error:
            if error.code not in TRANSIENT:
                raise
            if time.monotonic() > deadline:
                raise RequestTimedOutError(
                    f"{error}, for {REQUEST_S:.0f} seconds now", hint="Try again later."
                ) from error
            time.sleep(RETRY_S)
