"""Keep the views current that ``tidemill.views`` defines. Must not know: statements."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from tidemill.confluent.asking import TopicQuestions
from tidemill.confluent.clients import Kafka
from tidemill.connect.base.board import create_topic
from tidemill.connect.base.keeper import RestartingKeeper
from tidemill.connect.base.manager import Commands, Manager
from tidemill.connect.base.runs import Runs
from tidemill.errors import DataLossError
from tidemill.sql.errors import MalformedStatementError, SqlError, StatementRefusedError
from tidemill.sql.views import files
from tidemill.sql.views.definition import Definition
from tidemill.sql.views.running import RunningView
from tidemill.sql.views.topics import VIEWS

PERMANENT = (MalformedStatementError, StatementRefusedError, DataLossError)
"""A view that fails with one of these waits for the user."""


def manager(kafka: Kafka, folder: Path, only: Collection[str] | None = None) -> Manager[Definition]:
    """Return what keeps views current until it is stopped.

    Args:
        folder: for the files of all views.
        only: names of the views; None: all that are ``managed``.

    Raises:
        UnreachableError: no broker answers.
    """

    def keep(definition: Definition, commands: Commands) -> RestartingKeeper:
        runs = Runs(PERMANENT, SqlError)
        return RestartingKeeper(RunningView(definition, kafka, folder), runs, commands)

    create_topic(kafka, VIEWS)
    board = files.board(TopicQuestions(kafka, "tidemill-views"))

    def tidy(names: Collection[str]) -> None:
        files.tidy(folder, board, names)

    return Manager(kafka, VIEWS, "view", Definition.decode, keep, only, exclusive=True, tidy=tidy)
