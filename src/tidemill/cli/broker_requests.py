"""Opens ``kafka_client.admin`` for a command: what it asks, librdkafka does not offer.

It takes the same properties of TLS and SASL as librdkafka, except for Kerberos and OAUTHBEARER.
"""

from __future__ import annotations

from tidemill.cli.client import CONNECT_SECONDS, Cluster, rejected
from tidemill.cli.output import UsageError
from tidemill.errors import UnreachableError
from tidemill.kafka_client.admin.requests import BrokerRequests, Wording
from tidemill.kafka_client.errors import ConnectionFailedError
from tidemill.kafka_client.settings import Address, connection_settings


def requests_to(cluster: Cluster) -> BrokerRequests:
    """Return requests to the brokers of a cluster. Close it, or use it as a context manager.

    Raises:
        UnsupportedSettingError: the cluster's properties ask for what only librdkafka has.
        UsageError: a certificate or key can't be read.
    """

    def unreachable(error: ConnectionFailedError, named: Address | None) -> UnreachableError:
        if named is None:
            return cluster.no_answer(str(error))
        return UnreachableError(
            f"no broker answers at {error}",
            hint="The cluster named this address; the one given with -b may be another.",
        )

    settings = connection_settings(cluster.config(), "tidemill-cli")
    try:
        return BrokerRequests(settings, Wording(unreachable, rejected), CONNECT_SECONDS)
    except OSError as error:
        raise UsageError(f"--property: TLS can't be set up: {error}") from error
