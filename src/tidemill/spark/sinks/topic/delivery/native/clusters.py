"""The idle connections of this process, by the settings of librdkafka.

Must not know: records, transactions.
"""

from __future__ import annotations

from tidemill.spark.base.clients import ClientPool
from tidemill.spark.sinks.topic.delivery.native.cluster import Cluster

clusters: ClientPool[Cluster] = ClientPool(Cluster.close, limit=4)
