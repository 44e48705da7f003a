"""The idle connections of this process, by the settings of librdkafka.

Must not know: records, transactions.
"""

from __future__ import annotations

from tidemill.kafka_client.producing.cluster import Cluster
from tidemill.spark.base.clients import ClientPool

clusters: ClientPool[Cluster] = ClientPool(Cluster.close, limit=4)
