"""Requests that librdkafka does not offer, over a plain or TLS socket: synchronous, one at a time.

The answers come from brokers that the user named, but a frame is bounded all the same. Knows how
to reach and to ask a broker, and what its error codes mean; nothing of what is asked.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from tidemill.cli.client import CONNECT_SECONDS, REQUEST_SECONDS, Cluster, TopicPartitionKey
from tidemill.cli.output import UsageError
from tidemill.errors import (
    ConcurrentTransactionsError,
    CoordinatorLoadingError,
    CoordinatorNotAvailableError,
    ProtocolError,
    RequestTimedOutError,
    TidemillError,
    UnreachableError,
    UnsupportedVersionError,
)

T = TypeVar("T")

MAX_ANSWER_BYTES = 64 * 1024 * 1024
CLIENT_ID = "tidemill-cli"
AGAIN_SECONDS = 0.1
"""Pause before a question that could not be answered yet is asked again."""

API_VERSIONS, FIND_COORDINATOR = 18, 10
_FIND_COORDINATOR_VERSIONS = range(4, 7)
_TRANSACTION = 1
"""Kind of coordinator."""


class LeaderMovedError(TidemillError):
    """The broker does not lead the partition, or not yet."""


_PASSING = (
    ConcurrentTransactionsError,
    CoordinatorLoadingError,
    CoordinatorNotAvailableError,
    LeaderMovedError,
)


class Address(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Wire:
    """Asks the brokers of a cluster; a connection to each is opened when needed. A context manager.

    Raises:
        UsageError: the cluster's properties ask for SASL, or for TLS in a way not known here.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._tls = tls_context(cluster.properties)
        self._connections: dict[Address, _Connection] = {}

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._connections.values():
            connection.close()

    def brokers(self) -> dict[int, Address]:
        """The address of each broker, by its id."""
        return _addresses(self._metadata())

    def leaders(self, keys: Iterable[TopicPartitionKey]) -> dict[TopicPartitionKey, Address]:
        """The broker that leads each of the partitions, which exist.

        Raises:
            LeaderMovedError: one has none at the moment.
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
        """Id and address of the broker that coordinates each transactional id.

        Raises:
            TidemillError: the cluster can't tell.
        """
        if not transactional_ids:
            return {}
        broker = next(iter(self.brokers().values()))
        request = {"key_type": _TRANSACTION, "coordinator_keys": transactional_ids}

        def call() -> dict[str, tuple[int, Address]]:
            answer = self.ask(broker, FIND_COORDINATOR, _FIND_COORDINATOR_VERSIONS, request)
            found: dict[str, tuple[int, Address]] = {}
            for each in answer["coordinators"]:
                subject = f"the coordinator of {each['key']}"
                check(each["error_code"], subject, each["error_message"])
                found[each["key"]] = each["node_id"], Address(each["host"], each["port"])
            return found

        return until_settled(call)

    def version(self, broker: Address, api_key: int, versions: range) -> int:
        """The newest of ``versions`` that the broker knows.

        Raises:
            UnsupportedVersionError: it knows none.
            UnreachableError: it does not answer.
        """
        return self._connection(broker).version(api_key, versions)

    def ask(
        self, broker: Address, api_key: int, versions: range, request: Mapping[str, Any]
    ) -> dict[str, Any]:
        """One request and its answer, in the newest of ``versions`` that the broker knows.

        Raises:
            UnsupportedVersionError: it knows none of them.
            UnreachableError: it does not answer.
            ProtocolError: it answers something else.
        """
        return self._connection(broker).ask(api_key, versions, request)

    def _connection(self, broker: Address) -> _Connection:
        if broker not in self._connections:
            self._connections[broker] = _Connection(broker, self._tls)
        return self._connections[broker]


def _addresses(metadata: Any) -> dict[int, Address]:
    return {
        int(broker.id): Address(str(broker.host), int(broker.port))
        for broker in metadata.brokers.values()
    }


class _Connection:
    """One socket, and what the broker at its other end can do."""

    def __init__(self, broker: Address, tls: ssl.SSLContext | None) -> None:
        self._broker = broker
        self._correlation_id = 0
        self._versions: dict[int, range] = {}
        try:
            self._socket = socket.create_connection(broker, CONNECT_SECONDS)
            if tls is not None:
                self._socket = tls.wrap_socket(self._socket, server_hostname=broker.host)
        except OSError as error:
            raise self._unreachable(error) from error
        self._socket.settimeout(REQUEST_SECONDS)

    def close(self) -> None:
        self._socket.close()

    def version(self, api_key: int, versions: range) -> int:
        if not self._versions:
            answer = self._exchange(API_VERSIONS, 0, {})
            self._versions = {
                each["api_key"]: range(each["min_version"], each["max_version"] + 1)
                for each in answer["api_keys"]
            }
        known = self._versions.get(api_key, range(0))
        common = [version for version in versions if version in known]
        if not common:
            from kio.schema.index import api_key_map

            name = api_key_map[api_key].title().replace("_", "")
            raise UnsupportedVersionError(
                f"the broker at {self._broker} does not offer {name}",
                hint="Apache Kafka does from 3.0 on.",
            )
        return max(common)

    def ask(self, api_key: int, versions: range, request: Mapping[str, Any]) -> dict[str, Any]:
        return self._exchange(api_key, self.version(api_key, versions), request)

    def _exchange(self, api_key: int, version: int, request: Mapping[str, Any]) -> dict[str, Any]:
        from tidemill.cli.wire_messages import decode_response, encode_request

        self._correlation_id += 1
        frame = encode_request(api_key, version, self._correlation_id, CLIENT_ID, request)
        try:
            self._socket.sendall(struct.pack(">i", len(frame)) + frame)
            (length,) = struct.unpack(">i", self._receive(4))
            if not 0 <= length <= MAX_ANSWER_BYTES:
                raise ProtocolError(f"the broker at {self._broker} answers with {length} bytes")
            answer = self._receive(length)
        except OSError as error:
            raise self._unreachable(error) from error
        correlation_id, body = decode_response(api_key, version, answer)
        if correlation_id != self._correlation_id:
            raise ProtocolError(f"the broker at {self._broker} answers another request")
        return body

    def _receive(self, length: int) -> bytes:
        data = bytearray()
        while len(data) < length:
            chunk = self._socket.recv(min(length - len(data), 1 << 20))
            if not chunk:
                raise ConnectionError("it closed the connection")
            data += chunk
        return bytes(data)

    def _unreachable(self, error: OSError) -> UnreachableError:
        said = str(error.strerror or error).lower()
        return UnreachableError(
            f"no broker answers at {self._broker} ({said})",
            hint="The cluster named this address; the one given with -b may be another."
            if not isinstance(error, ssl.SSLError)
            else "Set -X ssl.ca.location=FILE to the certificate that signed the broker's.",
        )


# --- TLS -----------------------------------------------------------------------------------------

_TLS_PROPERTIES = {
    "ssl.ca.location",
    "ssl.ca.pem",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.key.password",
    "ssl.endpoint.identification.algorithm",
    "enable.ssl.certificate.verification",
}


def tls_context(properties: Mapping[str, str]) -> ssl.SSLContext | None:
    """TLS as librdkafka's properties say; None where they ask for none.

    Raises:
        UsageError: they ask for SASL, or for TLS by properties that are not known here.
    """
    protocol = properties.get("security.protocol", "plaintext").lower()
    if protocol == "plaintext":
        return None
    if protocol != "ssl":
        raise UsageError(
            f"security.protocol={protocol}: this command speaks to brokers over PLAINTEXT and SSL",
            hint="It can't log in with SASL; use a listener without it, "
            "or Kafka's own kafka-transactions.sh.",
        )
    for name in properties:
        if name.startswith("ssl.") and name not in _TLS_PROPERTIES:
            raise UsageError(
                f"--property {name} is not supported by this command",
                hint=f"Supported are {', '.join(sorted(_TLS_PROPERTIES))}.",
            )
    return _tls_context(properties)


def _tls_context(properties: Mapping[str, str]) -> ssl.SSLContext:
    certificate, key = (properties.get(f"ssl.{n}.location") for n in ("certificate", "key"))
    try:
        context = ssl.create_default_context(
            cafile=properties.get("ssl.ca.location"), cadata=properties.get("ssl.ca.pem")
        )
        if certificate:
            context.load_cert_chain(certificate, key, properties.get("ssl.key.password"))
    except OSError as error:
        raise UsageError(f"--property: TLS can't be set up: {error}") from error
    if properties.get("ssl.endpoint.identification.algorithm", "https").lower() == "none":
        context.check_hostname = False
    if properties.get("enable.ssl.certificate.verification", "true").lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


# --- errors --------------------------------------------------------------------------------------


def check(code: int, subject: str, message: str | None = None, hint: str = "") -> None:
    """Raise what an error code in an answer says.

    Args:
        message: what the broker says about it.

    Raises:
        TidemillError: the code is not zero; of the type that stands for it.
    """
    if code:
        raise refusal(code, subject, message, hint)


def refusal(code: int, subject: str, message: str | None = None, hint: str = "") -> TidemillError:
    """The error that stands for a code."""
    from kio.schema.errors import ErrorCode

    from tidemill.kafka.errors import CODES

    kinds: dict[int, type[TidemillError]] = {
        number: kind for kind, number in reversed(CODES.items())
    }
    # What the broker itself never says or means otherwise.
    kinds |= {5: LeaderMovedError, 6: LeaderMovedError, 16: CoordinatorNotAvailableError}
    try:
        name = ErrorCode(code).name.replace("_", " ")
    except ValueError:
        name = f"error {code}"
    return kinds.get(code, TidemillError)(f"{subject}: {message or name}", hint=hint)


def until_settled(call: Callable[[], T]) -> T:
    """Call again while the answer is one that passes: loading, not available yet, still ending.

    Raises:
        RequestTimedOutError: it did not pass in ten seconds.
        TidemillError: what ``call`` raises.
    """
    deadline = time.monotonic() + REQUEST_SECONDS
    while True:
        try:
            return call()
        except _PASSING as error:
            if time.monotonic() > deadline:
                raise RequestTimedOutError(
                    f"{error}, for {REQUEST_SECONDS:.0f} seconds now", hint="Try again later."
                ) from error
            time.sleep(AGAIN_SECONDS)
