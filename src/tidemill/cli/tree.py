"""The commands below ``tidemill``, each imported when it is used.

Each server and worker is a process of the command, and would otherwise keep the options and texts
of a hundred other commands in memory: 5 MB, and a tenth of a second at the start. The help and the
reference import all of them. Must not know: what the commands do.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, MutableMapping
from typing import Any

import typer
import typer.main

from tidemill.cli.options import CommandGroup

PLACES: dict[str, tuple[str, str | None]] = {
    "dev": ("server.serve:dev", None),
    "serve": ("server.serve:serve", None),
    "gateway": ("gateway.commands:gateway", "Serve topics over HTTP."),
    "sql": ("sql.commands:sql", "Query topics with SQL."),
    "demo": (
        "demo.commands:demo",
        "Run a demo pipeline on flight data, and check its results.",
    ),
    "backup": ("backup.commands:backup", "Copy the data folder of a broker, also while it runs."),
    "restore": ("backup.commands:restore", "Make a data folder of a backup."),
    "doctor": ("server.doctor:doctor", "Check this machine, the data folder and the port."),
    "version": ("main:version", None),
    "topic": ("topic.commands:app", "Manage topics; produce and consume records."),
    "group": ("group.commands:app", "Manage consumer groups: lag, replay, delete."),
    "transaction": (
        "transaction.commands:app",
        "Manage transactions; find what holds readers back.",
    ),
    "pipeline": ("pipeline.commands:app", None),
    "source": ("source.commands:app", "Capture the changes of databases."),
    "webhook": ("webhook.commands:app", "Deliver topics to HTTP endpoints."),
    "alert": ("alert.commands:app", "List, acknowledge and silence alerts."),
    "bridge": ("bridge.commands:app", "Bring StatsD and the like into topics."),
    "view": ("view.commands:app", "Keep results of SQL current."),
    "queue": ("queue.commands:app", "Manage queues; publish and consume."),
    "exchange": ("exchange.commands:app", "Manage exchanges, which fill queues."),
    "events": ("events:app", "Read and write event stores; publish them."),
    "worker": ("worker.commands:app", "List, restart and watch worker processes."),
    "user": ("user.commands:app", "Manage users and their passwords."),
    "acl": ("acl.commands:app", "Manage rules of access; explain a decision."),
    "permission": ("permission.commands:app", "Manage what AMQP users may do."),
    "quota": ("quota.commands:app", "Manage quotas of users and clients."),
    "config": ("server.config:app", "Show the broker's settings."),
}
"""Module and attribute, below ``tidemill.cli``, and the line in the help, by name, in the order of
the help. Without a line, the help shows the beginning of the command's own text."""


class Commands(MutableMapping[str, Any]):
    """The commands by name, as click objects. A command is made when it is looked up."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = _made(name, *PLACES[name])
        return self._made[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._made[name] = command

    def __delitem__(self, name: str) -> None:
        del self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(PLACES)

    def __len__(self) -> int:
        return len(PLACES)


def _made(name: str, place: str, line: str | None) -> Any:
    module, _, attribute = place.partition(":")
    found = getattr(importlib.import_module(f"tidemill.cli.{module}"), attribute)
    parent = CommandGroup(rich_markup_mode=None, pretty_exceptions_enable=False)
    if isinstance(found, typer.Typer):
        parent.add_typer(found, name=name, short_help=line)
    else:
        parent.command(name, short_help=line)(found)
    return typer.main.get_group(parent).commands[name]
