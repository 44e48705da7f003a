"""Parts of the commands of sources, webhooks and bridges, which a topic defines.

Must not know: a command, or what is defined.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from tidemill.cli import output
from tidemill.cli.client import Cluster
from tidemill.cli.options import Brokers
from tidemill.settings.section import Section

if TYPE_CHECKING:
    from tidemill.confluent.clients import Kafka
    from tidemill.connect.base.board import Board, BoardWriter, StoredDefinition

DefinitionFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="The definition, a TOML file.")
]
Replace = Annotated[bool, typer.Option("--replace", help="Replace a definition that exists.")]
Names = Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Which ones to run.")]
Every = Annotated[bool, typer.Option("--all", help="Run all that are managed, also later ones.")]
Declared = Annotated[
    Path | None,
    typer.Option(
        "--declared",
        metavar="FILE",
        help="First store what a settings file declares, and pause what is not in it any more.",
    ),
]


S = TypeVar("S", bound=Section)


def error_of(found: Mapping[str, Any]) -> object:
    """Return the error of a definition; None if it has none."""
    return found.get("error") or None


@dataclass(frozen=True, slots=True)
class Boards:
    """The commands' side of a topic with definitions.

    Attributes:
        noun: what is defined, as the command line calls it: ``bridge``.
        topic: the topic of the board.
        keys: the keys of definitions that are shown.
        hint: how one is created.
    """

    noun: str
    topic: str
    keys: tuple[str, ...]
    hint: str = "tidemill {noun} create FILE"

    # --- reading ------------------------------------------------------------------------------

    def kafka(self, brokers: Brokers) -> Kafka:
        """Return the cluster for ``-b`` and ``-X``, after a check that it is reachable."""
        return Cluster.at(brokers).kafka

    def read(self, kafka: Kafka) -> Board:
        """Return all definitions, commands and statuses."""
        from tidemill.connect.base.board import Board

        return Board.read(kafka, self.topic)

    def find(self, name: str, brokers: Brokers, *, to_change: bool = False) -> tuple[Kafka, Board]:
        """Return the cluster and the board, after a check that a definition exists.

        Args:
            to_change: also check that no settings file declares it.

        Raises:
            NotFoundError: it does not exist.
            DeclaredError: a settings file declares it.
        """
        kafka = self.kafka(brokers)
        board = self.read(kafka)
        self.require(board, name)
        if to_change:
            self._require_changeable(board, name)
        return kafka, board

    def require(self, board: Board, name: str) -> None:
        """Check that a definition exists.

        Raises:
            NotFoundError: it does not.
        """
        if name not in board.definitions:
            raise output.NotFoundError(
                f"{self.noun} {name} does not exist",
                hint=f"List the {self.noun}s: tidemill {self.noun} list",
            )

    def _require_changeable(self, board: Board, name: str) -> None:
        from tidemill.connect.base.declared import check_not_declared

        check_not_declared(board, self.noun, name)

    def emit_list(self, brokers: Brokers, columns: output.Columns, *, as_json: bool) -> None:
        """Print all definitions, with what their workers last published."""
        board = self.read(self.kafka(brokers))
        found = [self.described(board, name) for name in sorted(board.definitions)]
        output.emit_columns(columns, found, as_json=as_json)
        if not found:
            hint = self.hint.format(noun=self.noun)
            output.note(f"There is no {self.noun}. Create one: {hint}")

    def described(self, board: Board, name: str) -> dict[str, Any]:
        """Return what is known of a definition: its ``keys``, its state and its status."""
        from tidemill.connect.base.orders import describe

        known = describe(board, name)
        found = {
            "name": name,
            **{key: known.definition.get(key) for key in self.keys},
            "state": known.state,
            "status_age_ms": known.status_age_ms,
            "declared": known.declared,
            "definition": known.definition,
        }
        own = {*found, "phase", "source", "kind"}
        return found | {key: value for key, value in known.status.items() if key not in own}

    def fields(self, found: Mapping[str, Any]) -> list[tuple[str, object]]:
        """Return the fields for people that all definitions have, with their ``keys``."""
        age = output.duration_text(found["status_age_ms"])
        fields: list[tuple[str, object]] = [
            *((key, found[key]) for key in ("name", *self.keys, "state")),
            ("worker", found.get("worker")),
            ("status from", None if age is None else f"{age} ago"),
        ]
        return [*fields, ("declared in", found["declared"])] if found["declared"] else fields

    # --- changing -----------------------------------------------------------------------------

    def create(
        self,
        kafka: Kafka,
        definition: StoredDefinition,
        *,
        replace: bool,
        dry_run: bool,
        before: Callable[[], None] = lambda: None,
    ) -> bool:
        """Store a definition, and say so. Return whether it is stored.

        Args:
            before: called before the definition of a new name is stored.

        Raises:
            DefinitionExistsError: the name is taken, and it is not to be replaced.
            DeclaredError: a settings file declares it.
        """
        from tidemill.connect.base.board import create_topic
        from tidemill.connect.base.errors import DefinitionExistsError

        name, board = definition.name, self.read(kafka)
        exists = name in board.definitions
        if exists:
            self._require_changeable(board, name)
        if exists and not replace:
            raise DefinitionExistsError(
                f"{self.noun} {name} already exists",
                hint="Use another name, or --replace to change its definition.",
            )
        verb = "replace" if exists else "create"
        if dry_run:
            print(f"would {verb} {self.noun} {name}")
            return False
        create_topic(kafka, self.topic)
        if not exists:
            before()
        writer = self.writer(kafka)
        writer.define(definition)
        writer.flush()
        print(f"{verb}d {self.noun} {name}")
        return True

    def order(self, kafka: Kafka, name: str, command: str, **payload: Any) -> None:
        """Store a command."""
        from tidemill.connect.base import orders

        orders.order(kafka, self.topic, name, command, **payload)

    def pause(self, name: str, brokers: Brokers, *, paused: bool) -> None:
        """Store the command to pause or to continue, and say so.

        Raises:
            NotFoundError: it does not exist.
            DeclaredError: a settings file declares it, so it can't be paused.
        """
        from tidemill.connect.base import orders

        kafka, board = self.find(name, brokers)
        orders.pause(kafka, self.topic, self.noun, name, board, paused=paused)
        print(f"{'paused' if paused else 'resumed'} {self.noun} {name}")

    def delete(
        self,
        name: str,
        brokers: Brokers,
        question: str,
        topics: Sequence[str] = (),
        *,
        yes: bool,
        dry_run: bool,
    ) -> Kafka | None:
        """Delete a definition with its commands and its status.

        Args:
            question: what the user is asked.
            topics: topics that the caller deletes then.

        Returns:
            The cluster; None for a dry run.

        Raises:
            NotFoundError: it does not exist.
            DeclaredError: a settings file declares it.
        """
        kafka, board = self.find(name, brokers, to_change=True)
        if dry_run:
            print(f"would delete {self.noun} {name}")
            for topic in topics:
                print(f"would delete topic {topic}")
            return None
        output.confirm(question, yes=yes)
        writer = self.writer(kafka)
        writer.forget(name, board)
        writer.flush()
        return kafka

    def writer(self, kafka: Kafka) -> BoardWriter:
        """Return a writer of the topic."""
        from tidemill.connect.base.board import BoardWriter

        return BoardWriter(kafka, self.topic)

    # --- running ------------------------------------------------------------------------------

    def begin_run(
        self,
        kind: type[S],
        decode: Callable[[bytes], S],
        names: Sequence[str] | None,
        every: bool,
        declared: Path | None,
        brokers: Brokers,
    ) -> Kafka:
        """Check the arguments of ``run``, store what a file declares, and return the cluster.

        Args:
            kind: the class of the definitions.
            decode: returns a stored definition, or raises a TidemillError.

        Raises:
            UsageError: the arguments are invalid.
            NotFoundError: a name does not exist.
            SettingsError: the file is invalid.
        """
        from tidemill import telemetry
        from tidemill.cli.server.settings_file import entries_in
        from tidemill.connect.base.declared import apply_declared

        if bool(names) == every:
            raise output.UsageError(f"name the {self.noun}s to run, or use --all")
        if declared is not None and not every:
            raise output.UsageError("--declared is for --all")
        entries: Any = [] if declared is None else entries_in(declared, kind)
        kafka = self.kafka(brokers)
        board = self.read(kafka) if names else None
        for name in names or ():
            assert board is not None
            self.require(board, name)
            decode(board.definitions[name])
        telemetry.configure("info", "auto", color=output.colored(sys.stderr))
        if declared is not None:
            apply_declared(kafka, self.topic, self.noun, entries, str(declared.absolute()))
        return kafka
