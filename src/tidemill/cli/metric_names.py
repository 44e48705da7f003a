"""The modules that declare metrics: for the reference, and to check names in rules of alerts."""

from __future__ import annotations

import importlib

METRICS = (
    ("The process", "tidemill.metrics.process"),
    ("Requests of the Kafka protocol", "tidemill.protocols.kafka.metrics"),
    ("Errors", "tidemill.metrics.errors"),
    ("Connections and memory", "tidemill.net.metrics"),
    ("Topics and disk", "tidemill.engine.metrics.logs"),
    ("Syncs", "tidemill.engine.journaling"),
    ("Groups and transactions", "tidemill.engine.metrics.groups"),
    ("Queues", "tidemill.engine.metrics.queues"),
    ("Names of kafka_exporter", "tidemill.engine.metrics.kafka_names"),
    ("Names of RabbitMQ: what the broker knows", "tidemill.engine.metrics.rabbitmq_names"),
    ("Names of RabbitMQ: connections and messages", "tidemill.protocols.amqp.metrics"),
    ("Sent as StatsD", "tidemill.cli.server.statsd"),
    ("The gateway", "tidemill.gateway.metrics"),
    ("Sources of change data capture", "tidemill.connect.cdc.metrics"),
    ("Bridges", "tidemill.connect.direct.metrics"),
    ("Webhooks", "tidemill.connect.webhooks.metrics"),
    ("Alerts", "tidemill.connect.alerts.metrics"),
    ("Event stores", "tidemill.eventstore.metrics"),
    ("Queries of pipelines", "tidemill.spark.pipelines.metrics"),
)
"""Titles, and the modules that declare metrics."""


def known_series() -> set[str]:
    """Return the names of all series that tidemill's processes can have."""
    from tidemill.metrics.definition import defined

    for _, module in METRICS:
        importlib.import_module(module)
    ends = {"histogram": ("_bucket", "_sum", "_count")}
    return {f"{each.name}{end}" for each in defined() for end in ends.get(each.kind, ("",))}
