"""The parts that all requests share. Must not know: routes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from tidemill.confluent.clients import Kafka
from tidemill.connect.alerts.desk import Desk
from tidemill.gateway.alerting import kept_alerts
from tidemill.gateway.amqp.actions import AmqpActions
from tidemill.gateway.amqp.state import AmqpState
from tidemill.gateway.cluster.stores import Stores
from tidemill.gateway.cluster.tables import Tables
from tidemill.gateway.cluster.transactions import Transactions
from tidemill.gateway.cluster.watch import Watch
from tidemill.gateway.following import Hub
from tidemill.gateway.guard import Budget
from tidemill.gateway.idempotency import Keys
from tidemill.gateway.kept import Kept
from tidemill.gateway.metrics import MetricsPage
from tidemill.gateway.queries import Queries
from tidemill.gateway.reading import Pool
from tidemill.gateway.settings import GatewaySettings
from tidemill.gateway.topics import CLIENT, Catalog
from tidemill.gateway.writing import Writer, new_producer
from tidemill.metrics.registry import Registry

SEARCHERS = 2
"""Slices of searches that run at the same time. Others wait for their turn."""


@dataclass(frozen=True)
class Clients:
    """The Kafka clients that parts begin with."""

    admin: AdminClient
    producer: Producer

    @classmethod
    async def of(cls, kafka: Kafka) -> Clients:
        """Return new ones, made in threads: with a token, confluent-kafka sleeps for a second."""
        made = asyncio.to_thread(kafka.admin, CLIENT), asyncio.to_thread(new_producer, kafka)
        return cls(*await asyncio.gather(*made))


@dataclass
class Parts:
    """Kafka clients and limits that serve requests. It belongs to one event loop.

    Attributes:
        budget: The memory of bodies and of records that are not acknowledged yet.
        pool: Reads from explicit positions.
        searching: Reads for searches of the console, which must not hold requests up.
        hub: Follows topics.
        registry: What the gateway measures.
        metrics: The page with the metrics of all workers.
        watch: The snapshot of all topics and groups. It costs nothing until it is asked for.
        amqp: Changes queues and connections; None where there is no AMQP.
        amqp_state: Knows queues and connections.
        alerts: The state of alerts.
        transactions: Knows what is open, and ends it.
        tables: What workers publish: statuses and definitions.
        stores: Event stores that pages look into.
        queries: Runs queries of SQL.
    """

    kafka: Kafka
    settings: GatewaySettings
    budget: Budget
    writer: Writer
    catalog: Catalog
    keys: Keys
    pool: Pool
    searching: Pool
    hub: Hub
    registry: Registry
    metrics: MetricsPage
    watch: Watch
    amqp: AmqpActions | None
    amqp_state: AmqpState
    alerts: Kept[Desk]
    transactions: Transactions
    tables: Tables
    stores: Stores
    queries: Queries

    @classmethod
    def start(
        cls,
        kafka: Kafka,
        settings: GatewaySettings,
        beside: Parts | None = None,
        clients: Clients | None = None,
    ) -> Parts:
        """Return the parts, in a running event loop.

        Args:
            beside: other parts, with which these share memory and measurements.
            clients: the clients to begin with; by default new ones.
        """
        budget = Budget(settings.inflight_bytes) if beside is None else beside.budget
        catalog = Catalog(kafka, None if clients is None else clients.admin)
        writer = Writer(kafka, budget, None if clients is None else clients.producer)
        registry = Registry() if beside is None else beside.registry
        amqp = AmqpActions(settings.amqp_url, kafka) if settings.amqp_url else None
        return cls(
            kafka,
            settings,
            budget,
            writer,
            catalog,
            keys=Keys(kafka, writer, settings),
            pool=Pool(kafka),
            searching=Pool(kafka, SEARCHERS),
            hub=Hub(kafka, catalog),
            registry=registry,
            metrics=MetricsPage(kafka, registry),
            watch=Watch(kafka, None if beside is None else beside.watch.history),
            amqp=amqp,
            amqp_state=AmqpState(kafka, kafka if beside is None else beside.kafka),
            alerts=kept_alerts(kafka),
            transactions=Transactions(kafka),
            tables=Tables(kafka),
            stores=Stores(kafka),
            queries=Queries(kafka, settings, None if beside is None else beside.queries),
        )

    def stop(self) -> None:
        """End answers that wait for new records, and queries. All others are completed."""
        self.hub.stop()
        self.queries.stop()

    async def close(self) -> None:
        """End what runs. Records under way get a few seconds."""
        await self.watch.close()
        await asyncio.to_thread(self.amqp_state.close)
        await self.stores.close()
        await self.writer.close()
        await self.hub.close()
        await self.pool.close()
        await self.searching.close()
