"""Opens ``kafka_client.admin`` for the console. What it asks runs in a thread.

Must not know: what the requests are about.
"""

from __future__ import annotations

from tidemill.confluent import requests
from tidemill.confluent.clients import Kafka
from tidemill.kafka_client.admin.requests import BrokerRequests
from tidemill.kafka_client.errors import UnsupportedSettingError


def requests_to(kafka: Kafka) -> BrokerRequests:
    """Return requests to the brokers of a cluster. Close it, or use it as a context manager.

    Raises:
        UnsupportedSettingError: the client's settings ask for what only librdkafka has.
    """
    try:
        return requests.requests_to(kafka, "tidemill-console")
    except UnsupportedSettingError as error:
        raise UnsupportedSettingError(
            f"topics, groups and transactions can't be listed with this login: {error}",
            hint=f"Pages of records, queues, alerts and workers are there. {error.hint or ''}",
        ) from error
