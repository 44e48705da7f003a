"""Keep the views current that ``tidemill.views`` defines. Must not know: statements."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from tidemill.confluent.clients import Kafka
from tidemill.connect.base.manager import Commands, Manager
from tidemill.sql.views.definition import Definition
from tidemill.sql.views.keeper import Keeper
from tidemill.sql.views.topics import VIEWS


def manager(kafka: Kafka, folder: Path, only: Collection[str] | None = None) -> Manager[Definition]:
    """Return what keeps views current until it is stopped.

    Args:
        folder: for the files of all views.
        only: names of the views; None: all that are ``managed``.

    Raises:
        UnreachableError: no broker answers.
    """

    def keep(definition: Definition, commands: Commands) -> Keeper:
        return Keeper(definition, kafka, folder, commands)

    return Manager(kafka, VIEWS, "view", Definition.decode, keep, only)
