"""Opens ``kafka_client.admin`` for the console. What it asks runs in a thread.

Must not know: what the requests are about.
"""

from __future__ import annotations

from tidemill.confluent.clients import Kafka
from tidemill.errors import NotAllowedError, UnreachableError
from tidemill.kafka_client.admin.requests import BrokerRequests, Wording
from tidemill.kafka_client.errors import (
    ConnectionFailedError,
    ConnectionRejectedError,
    UnsupportedSettingError,
)
from tidemill.kafka_client.settings import Address, connection_settings


def requests_to(kafka: Kafka) -> BrokerRequests:
    """Return requests to the brokers of a cluster. Close it, or use it as a context manager.

    Raises:
        UnsupportedSettingError: the client's settings ask for what only librdkafka has.
    """

    def unreachable(error: ConnectionFailedError, named: Address | None) -> UnreachableError:
        if named is None:
            return kafka.unreachable("ask the brokers", str(error))
        return UnreachableError(f"no broker answers at {error}")

    def rejected(error: ConnectionRejectedError) -> NotAllowedError:
        return NotAllowedError(f"the broker refuses the login: {error}")

    config = {**kafka.properties, "bootstrap.servers": kafka.servers}
    try:
        settings = connection_settings(config, "tidemill-console")
    except UnsupportedSettingError as error:
        raise UnsupportedSettingError(
            f"topics, groups and transactions can't be listed with this login: {error}",
            hint=f"Pages of records, queues, alerts and workers are there. {error.hint or ''}",
        ) from error
    return BrokerRequests(settings, Wording(unreachable, rejected))
