"""The broker's settings: names, types, units, defaults and limits, each declared once.

``section`` is the base of all tables, ``broker`` has those of the engine, and ``definitions`` lists
them. A protocol declares its own in its folder. ``cli.server.settings_file`` reads them from a
file, the environment and flags. The configs of topics (Kafka's ``retention.ms`` and others) are
declared in ``log.config``. This folder must not do I/O.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field

from tidemill.settings.broker import (
    Bridges,
    Groups,
    Limits,
    Log,
    Queues,
    Security,
    Sources,
    Telemetry,
    Transactions,
    Views,
    Webhooks,
)
from tidemill.settings.definitions import ENV_PREFIX, SettingDef, keys_of
from tidemill.settings.section import HOST, INT, Section

__all__ = [
    "ENV_PREFIX",
    "Bridges",
    "Groups",
    "Limits",
    "Log",
    "Queues",
    "Section",
    "Security",
    "SettingDef",
    "Settings",
    "Sources",
    "Telemetry",
    "Transactions",
    "Views",
    "Webhooks",
    "definitions",
]

S = TypeVar("S", bound=Section)


class Settings(Section):
    """All settings of a broker.

    Attributes:
        sections: the sections of protocols and workers. ``section`` finds one by its class.
    """

    data_dir: Path = Field(Path("tidemill-data"), description="The data folder.")
    host: Annotated[str, HOST] = Field("127.0.0.1", description="Address to listen on.")
    insecure: bool = Field(
        False,
        description="Whether clients on other machines are served without a login. By default the "
        "broker does not start then.",
    )
    node_id: int = Field(1, ge=0, le=2**31 - 1, description="The broker's id (node.id).")
    auto_create_topics: bool = Field(
        True,
        description="Whether the broker creates a topic when a client first uses it "
        "(auto.create.topics.enable).",
    )
    default_partitions: int = Field(
        1,
        ge=1,
        le=INT,
        description="Partitions of a topic that is created without a number (num.partitions).",
    )
    limits: Limits = Field(default_factory=Limits)
    groups: Groups = Field(default_factory=Groups)
    queues: Queues = Field(default_factory=Queues)
    transactions: Transactions = Field(default_factory=Transactions)
    log: Log = Field(default_factory=Log)
    sources: Sources = Field(default_factory=Sources)
    webhooks: Webhooks = Field(default_factory=Webhooks)
    bridges: Bridges = Field(default_factory=Bridges)
    views: Views = Field(default_factory=Views)
    security: Security = Field(default_factory=Security)
    telemetry: Telemetry = Field(default_factory=Telemetry)
    sections: tuple[Section, ...] = ()

    def section(self, kind: type[S]) -> S:
        """Return the section of a class, with its defaults if it is not set."""
        return next(iter(self.entries(kind)), None) or kind()

    def entries(self, kind: type[S]) -> list[S]:
        """Return all tables of a class of which the file has a list, in the file's order."""
        return [each for each in self.sections if isinstance(each, kind)]

    def value(self, key: str) -> Any:
        """Return a value by its dotted key. Settings that were loaded have all sections.

        Raises:
            AttributeError: there is no such key.
        """
        name, _, rest = key.partition(".")
        declared = next((each for each in self.sections if each.key == name), None)
        if declared is not None:
            return getattr(declared, rest)
        return functools.reduce(getattr, key.split("."), self)


def definitions(declared: Iterable[type[Section]]) -> Iterator[SettingDef]:
    """Yield all settings: single keys, the declared sections, and those of the engine."""
    yield from keys_of(Settings)
    for kind in declared:
        yield from keys_of(kind, f"{kind.key}.")
    for name, field in Settings.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from keys_of(field.annotation, f"{name}.")
