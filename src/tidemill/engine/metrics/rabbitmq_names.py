"""RabbitMQ's names for what the engine and the process know, so that its dashboard shows them.

Each of the dashboard's expressions joins ``rabbitmq_identity_info`` by instance. What only the
protocol knows is in ``protocols.amqp.metrics``. Source:
https://www.rabbitmq.com/docs/prometheus, and the dashboard RabbitMQ-Overview.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator

from tidemill import __version__, system
from tidemill.engine.queues.core import QueueCore
from tidemill.metrics.definition import Metric, counter
from tidemill.metrics.definition import gauge as own_gauge
from tidemill.metrics.registry import Family, Registry


def gauge(name: str, text: str, *labels: str) -> Metric:
    """Declare a gauge with a name of RabbitMQ."""
    return own_gauge(name, text, *labels, foreign=True)


IDENTITY = gauge(
    "rabbitmq_identity_info",
    "1; its labels name the node and the cluster.",
    *("rabbitmq_node", "rabbitmq_cluster", "rabbitmq_cluster_permanent_id", "rabbitmq_endpoint"),
)
BUILD = gauge(
    "rabbitmq_build_info",
    "1; its labels have versions: that of RabbitMQ is the one whose behaviour is offered.",
    *("rabbitmq_version", "erlang_version", "product_name", "product_version"),
)
UPTIME = gauge("rabbitmq_erlang_uptime_seconds", "How long the broker has run.")
QUEUES = gauge("rabbitmq_queues", "Queues.")
READY = gauge("rabbitmq_queue_messages_ready", "Messages that wait, in all queues.")
UNACKED = gauge("rabbitmq_queue_messages_unacked", "Unsettled messages, of all queues.")
MESSAGES = gauge("rabbitmq_queue_messages", "Both together.")
CONSUMERS = gauge("rabbitmq_consumers", "Consumers of all queues.")
GLOBAL_CONSUMERS = gauge("rabbitmq_global_consumers", "Consumers of all queues.", "protocol")
CREATED = counter("rabbitmq_queues_created_total", "Queues that were created since the start.")
DELETED = counter("rabbitmq_queues_deleted_total", "Queues that were deleted since the start.")
DISK = gauge("rabbitmq_disk_space_available_bytes", "Free space of the data folder's disk.")
DISK_LIMIT = gauge(
    "rabbitmq_disk_space_available_limit_bytes", "0: tidemill has no such limit, see Operations."
)
RESIDENT = gauge("rabbitmq_process_resident_memory_bytes", "Memory of the broker in RAM.")
MEMORY_LIMIT = gauge(
    "rabbitmq_resident_memory_limit_bytes", "Memory of the machine: the broker has no such limit."
)
OPEN_FILES = gauge("rabbitmq_process_open_fds", "Open file descriptors of the broker.")
MOST_FILES = gauge("rabbitmq_process_max_fds", "File descriptors that the broker can open.")

OFFERED = "3.10.8"
"""The version of RabbitMQ that the AMQP tests compare with."""


def add_rabbitmq_names(
    registry: Registry, queues: QueueCore, data_dir: str, cluster_id: str
) -> None:
    """Add these metrics to a registry."""
    node = f"tidemill@{socket.gethostname()}"
    began = time.monotonic()

    def collect() -> Iterator[Family]:
        yield IDENTITY, [((node, "tidemill", cluster_id, "aggregated"), 1)]
        yield BUILD, [((OFFERED, "none", "tidemill", __version__), 1)]
        yield UPTIME, [((), time.monotonic() - began)]
        live = list(queues.registry.queues.values())
        ready = unacked = consumers = 0
        for number, queue in enumerate(live):
            ready += queue.ready
            unacked += queue.unacknowledged
            consumers += len(queue.all_consumers)
            if number % 128 == 127:
                yield QUEUES, ()  # a place to pause
        yield QUEUES, [((), len(live))]
        yield READY, [((), ready)]
        yield UNACKED, [((), unacked)]
        yield MESSAGES, [((), ready + unacked)]
        yield CONSUMERS, [((), consumers)]
        yield GLOBAL_CONSUMERS, [(("amqp091",), consumers)]
        yield CREATED, [((), queues.registry.created)]
        yield DELETED, [((), queues.registry.deleted)]
        yield from _machine(data_dir)

    registry.collect(collect)


def _machine(data_dir: str) -> Iterator[Family]:
    disk, usage = os.statvfs(data_dir), system.process_usage()
    yield DISK, [((), disk.f_frsize * disk.f_bavail)]
    yield DISK_LIMIT, [((), 0)]
    yield RESIDENT, [((), usage.resident_bytes)]
    yield MEMORY_LIMIT, [((), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))]
    if usage.open_files is not None:
        yield OPEN_FILES, [((), usage.open_files)]
    if usage.most_files is not None:
        yield MOST_FILES, [((), usage.most_files)]
