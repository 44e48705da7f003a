"""Opens our own client's requests to brokers with the settings of confluent-kafka's clients.

Must not know: what the requests are about.
"""

from __future__ import annotations

from tidemill.confluent.clients import Kafka
from tidemill.errors import NotAllowedError, SettingsError, TidemillError, UnreachableError
from tidemill.kafka_client.admin.requests import REQUEST_S, BrokerRequests, Wording
from tidemill.kafka_client.errors import (
    ConnectionFailedError,
    ConnectionRejectedError,
    TlsRejectedError,
)
from tidemill.kafka_client.settings import Address, connection_settings


def requests_to(kafka: Kafka, client: str, connect_s: float = REQUEST_S) -> BrokerRequests:
    """Return requests to the brokers of a cluster. Close it, or use it as a context manager.

    Args:
        client: The client id.
        connect_s: How long a broker can take to accept a connection and its login, in seconds.

    Raises:
        UnsupportedSettingError: The settings ask for what only librdkafka has.
        SettingsError: A certificate or key can't be read.
    """

    def unreachable(error: ConnectionFailedError, named: Address | None) -> UnreachableError:
        if named is None:
            return kafka.unreachable("ask the brokers", str(error))
        return UnreachableError(f"no broker answers at {error}")

    def rejected(error: ConnectionRejectedError) -> TidemillError:
        if isinstance(error, TlsRejectedError):
            return kafka.unreachable("ask the brokers", str(error))
        return NotAllowedError(f"the broker refuses the login: {error}")

    config = {**kafka.properties, "bootstrap.servers": kafka.servers}
    settings = connection_settings(config, client)
    try:
        return BrokerRequests(settings, Wording(unreachable, rejected), connect_s)
    except OSError as error:
        raise SettingsError(f"a certificate or key can't be read: {error}") from error
