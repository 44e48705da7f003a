"""The kinds of worker that run beside a broker: a section of the settings, and what it runs.

A new kind is one entry of ``KINDS``. ``tidemill.workers`` runs the processes. This module must not
know how.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from pydantic import Field

from tidemill.connect.alerts.definition import AlertEntry, AlertsSection, ReceiverEntry
from tidemill.connect.cdc.definition import Definition
from tidemill.connect.cdc.topics import SOURCES
from tidemill.connect.direct.definition import Definition as Bridge
from tidemill.connect.direct.topics import BRIDGES
from tidemill.connect.webhooks.definition import Webhook
from tidemill.connect.webhooks.topics import WEBHOOKS
from tidemill.gateway.console.settings import ConsoleSettings
from tidemill.gateway.hooks.settings import HookEntry, HooksSection
from tidemill.gateway.settings import GatewaySettings
from tidemill.protocols.amqp.settings import AmqpListener
from tidemill.protocols.contract import Address, address_text
from tidemill.protocols.http.settings import HealthListener
from tidemill.settings import Section, Settings
from tidemill.sql.views.definition import Definition as View
from tidemill.sql.views.topics import VIEWS
from tidemill.workers.spec import WorkerSpec


@dataclass(frozen=True, slots=True)
class Broker:
    """The facts about the broker that a kind of worker can use.

    ``client`` has the properties of a Kafka client of this broker, with ``bootstrap.servers``.
    ``addresses`` has host and port of each protocol that is served, by name.
    """

    settings: Settings
    client: Mapping[str, str]
    file: Path | None
    has_topic: Callable[[str], bool]
    addresses: Mapping[str, Address] = field(default_factory=dict)

    def command(self, *arguments: str) -> list[str]:
        """Return a command of tidemill that reaches this broker."""
        properties = dict(self.client)
        servers = ("--bootstrap-servers", properties.pop("bootstrap.servers"))
        given = [text for each in properties.items() for text in ("-X", "=".join(each))]
        return [sys.executable, "-m", "tidemill", *arguments, *servers, *given]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of worker: its section of the settings, and which workers the entries there mean.

    ``address`` returns a name, a URL and where it listens for the banner, if users reach the
    worker.
    """

    section: type[Section]
    workers: Callable[[Broker], Iterable[WorkerSpec]]
    address: Callable[[Settings], tuple[str, str, Address] | None] = lambda _: None


class PipelineEntry(Section):
    """A pipeline that runs beside the broker, with the options of `tidemill pipeline run`."""

    key = "pipeline"
    is_repeated = True

    file: Path = Field(description="Python file that declares the pipeline.")
    name: str | None = Field(
        None,
        min_length=1,
        description="The pipeline to run, if the file declares several. The worker is "
        "pipeline/NAME; without a name, NAME is that of the file.",
    )
    master: str = Field("local[2]", description="Spark's master, e.g. spark://host:7077.")
    start_at: str | None = Field(
        None,
        alias="from",
        description="Where queries without a checkpoint start: beginning, end, a time or "
        "@milliseconds; default: as the streams declare.",
    )
    source_format: Literal["tidemill", "kafka"] = Field(
        "tidemill", description="Spark source for the topics: tidemill's, or Spark's own."
    )
    spark_log: Path | None = Field(
        None, description="File for Spark's output; default: spark.log in the pipeline's folder."
    )

    @property
    def entry_name(self) -> str:
        """The name of the pipeline, or of its file."""
        return self.name or self.file.stem

    def options(self) -> list[str]:
        """Return the arguments of ``tidemill pipeline run`` that are set."""
        options = {
            "--pipeline": self.name,
            "--master": self.master,
            "--from": self.start_at,
            "--source-format": self.source_format,
            "--spark-log": self.spark_log,
        }
        given = ((name, str(value)) for name, value in options.items() if value is not None)
        return [text for each in given for text in each]


class PublishEntry(Section):
    """A store of events whose accepted events are copied to a topic."""

    key = "publish"
    is_repeated = True

    store: str = Field(min_length=1, description="Topic of the event store.")
    to: str = Field(
        min_length=1,
        description="Topic that gets one record for each accepted event, exactly once. The worker "
        "is publish/TOPIC. It starts with the store.",
    )
    partitions: int = Field(
        1, ge=1, le=10_000, description="Partitions of the topic, if it is created."
    )

    @property
    def entry_name(self) -> str:
        """The name of the topic."""
        return self.to


def _of_board(
    section: type[Section], topic: str, name: str, stop_s: float = 8
) -> Callable[[Broker], Iterable[WorkerSpec]]:
    """Return the one worker of all definitions of a kind, such as sources.

    It reads the file again, to store the definitions that are declared in it. It starts with the
    first definition, in the file or in the topic. ``NAME.run`` of the settings switches it off.
    """

    def workers(broker: Broker) -> Iterable[WorkerSpec]:
        settings = broker.settings
        if not settings.value(f"{name}.run"):
            return
        # Without a file, nothing is declared any more.
        file = os.devnull if broker.file is None else str(broker.file.absolute())
        yield WorkerSpec(
            name,
            broker.command(section.key, "run", "--all", "--declared", file),
            wanted=lambda: bool(settings.entries(section)) or broker.has_topic(topic),
            stop_s=stop_s,
        )

    return workers


def _views(broker: Broker) -> Iterable[WorkerSpec]:
    """Yield the worker of all views, whose files are in the data folder."""
    folder = str(broker.settings.data_dir.absolute() / "views")
    for spec in _of_board(View, VIEWS, "views", stop_s=30)(broker):
        yield replace(spec, command=[*spec.command, "--dir", folder])


def _pipelines(broker: Broker) -> Iterable[WorkerSpec]:
    data_dir = str(broker.settings.data_dir.absolute())
    for entry in broker.settings.entries(PipelineEntry):
        file = str(entry.file.absolute())
        run = ("pipeline", "run", file, *entry.options(), "--data-dir", data_dir)
        yield WorkerSpec(f"pipeline/{entry.entry_name}", broker.command(*run), stop_s=30)


def _publishers(broker: Broker) -> Iterable[WorkerSpec]:
    for entry in broker.settings.entries(PublishEntry):
        run = ("events", "publish", entry.store, "--to", entry.to)
        yield WorkerSpec(
            f"publish/{entry.to}",
            broker.command(*run, "--partitions", str(entry.partitions)),
            wanted=lambda store=entry.store: broker.has_topic(store),  # type: ignore[misc]
        )


def _gateway(broker: Broker) -> Iterable[WorkerSpec]:
    """Yield the gateway, with the settings that are in force."""
    settings = broker.settings.section(GatewaySettings)
    if not settings.enabled:
        return
    amqp = broker.settings.section(AmqpListener)
    if amqp.key in broker.addresses and not settings.amqp_url:
        scheme = "amqp" if amqp.tls_cert is None else "amqps"
        url = f"{scheme}://{address_text(*broker.addresses[amqp.key])}/"
        settings = settings.model_copy(update={"amqp_url": url})
    file = os.devnull if broker.file is None else str(broker.file.absolute())
    given = [
        f"--set={section.key}.{name}={_text(value)}"
        for section in (
            settings,
            broker.settings.section(HooksSection),
            broker.settings.section(ConsoleSettings),
        )
        for name, value in section.model_dump(mode="json").items()
        if value not in ("", None)
    ]
    yield WorkerSpec("gateway", broker.command("gateway", "--config", file, *given), stop_s=20)


def _alerts(broker: Broker) -> Iterable[WorkerSpec]:
    """Yield the worker of alerts, with the address of the broker's own metrics."""
    settings = broker.settings.section(AlertsSection)
    if not settings.run or broker.file is None or not broker.settings.entries(AlertEntry):
        return
    values = settings.model_dump(mode="json")
    health = broker.addresses.get(HealthListener.key)
    if not settings.scrape and health is not None:
        values["scrape"] = f"http://{address_text(*health)}/metrics"
    given = [
        f"--set={settings.key}.{name}={_text(value)}"
        for name, value in values.items()
        if value != ""
    ]
    run = broker.command("alert", "run", "--config", str(broker.file.absolute()), *given)
    yield WorkerSpec("alerts", run, stop_s=20)


def _none(broker: Broker) -> Iterable[WorkerSpec]:
    """Yield nothing: the gateway serves these."""
    return ()


def _gateway_address(settings: Settings) -> tuple[str, str, Address] | None:
    """Return where the gateway is; the broker does not know a port that is picked by itself."""
    section = settings.section(GatewaySettings)
    if not section.enabled or not section.port:
        return None
    scheme = "http" if section.tls_cert is None else "https"
    url = f"{scheme}://{address_text(section.host, section.port)}/"
    return scheme, url, (section.host, section.port)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


KINDS = [
    Kind(GatewaySettings, _gateway, _gateway_address),
    Kind(ConsoleSettings, _none),
    Kind(HooksSection, _none),
    Kind(HookEntry, _none),
    Kind(Definition, _of_board(Definition, SOURCES, "sources")),
    Kind(Webhook, _of_board(Webhook, WEBHOOKS, "webhooks", stop_s=30)),
    Kind(Bridge, _of_board(Bridge, BRIDGES, "bridges", stop_s=30)),
    Kind(AlertsSection, _alerts),
    Kind(AlertEntry, _none),
    Kind(ReceiverEntry, _none),
    Kind(View, _views),
    Kind(PublishEntry, _publishers),
    Kind(PipelineEntry, _pipelines),
]
"""All kinds, in the order in which their workers start."""


def worker_specs(broker: Broker) -> list[WorkerSpec]:
    """Return the workers that run beside a broker."""
    return [spec for kind in KINDS for spec in kind.workers(broker)]
