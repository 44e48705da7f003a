"""The definition of a source: what a user writes in its TOML file, and what workers read.

It contains no secret: ``${env:NAME}`` and ``${file:PATH}`` refer to them. Must not know: Kafka, or
a particular database.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator

from tidemill.connect.base.definitions import StoredSection
from tidemill.connect.base.secrets import resolve
from tidemill.connect.cdc.errors import DefinitionError
from tidemill.settings.section import Section

if TYPE_CHECKING:
    from tidemill.connect.cdc.contract import Capture


class TableRules(Section):
    """Rules for the rows of a table.

    Attributes:
        exclude_columns: columns that no record has.
        mask: columns whose values are replaced by a fixed text.
        hash: columns whose values are replaced by a keyed hash (HMAC-SHA-256 with ``hash_key``).
        where: conditions ``column operator value`` that all must hold, or the row is left out.
    """

    exclude_columns: list[str] = []
    mask: dict[str, str] = {}
    hash: list[str] = []
    where: list[str] = []


class Outbox(Section):
    """A table whose inserted rows are events, each for the topic of its aggregate type.

    The names of the columns are those of Debezium's outbox event router.
    """

    table: str
    topic_prefix: str = "outbox.event"
    id: str = "id"
    aggregate_type: str = "aggregatetype"
    aggregate_id: str = "aggregateid"
    event_type: str = "type"
    payload: str = "payload"


class Definition(StoredSection):
    """A source of [change data capture](cdc.md). One worker, `sources`, runs all of them.

    Paths of a database are relative to the file.
    """

    key = "source"
    docs = "docs/cdc.md"
    invalid = DefinitionError
    is_repeated = True

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$",
        description="Identifies the source: its transactional id, its topics and its objects in "
        "the database.",
    )
    kind: str = Field(
        min_length=1,
        description="sqlite, mariadb, mysql, postgres, or the name of an entry point in the group "
        "tidemill.sources.",
    )
    prefix: str = Field(
        "",
        pattern=r"^[A-Za-z0-9._-]{0,100}$",
        description="First part of the topics' names; default: the name.",
    )
    tables: list[str] = Field(["*"], min_length=1, description="Patterns of the tables to capture.")
    exclude: list[str] = Field([], description="Patterns of tables to leave out.")
    snapshot: Literal["initial", "never"] = Field(
        "initial",
        description="initial reads the tables first, never starts with the changes from now on.",
    )
    keyless: Literal["refuse", "skip", "all-columns"] = Field(
        "refuse",
        description="What happens to tables without a primary key: refuse, skip or all-columns.",
    )
    format: Literal["debezium", "plain"] = Field(
        "debezium", description="Debezium's envelope, or plain rows."
    )
    managed: bool = Field(
        True, description="Whether the worker of tidemill dev and tidemill serve runs it."
    )
    on_lost_position: Literal["stop", "resnapshot"] = Field(
        "stop", description="stop and wait for the user, or resnapshot without asking."
    )
    on_bad_row: Literal["stop", "dead-letter"] = Field(
        "stop",
        description="What happens to a row that is too large, not decodable or refused: stop and "
        "name it, or write it to the topic PREFIX.dlq and continue.",
    )
    partitions: int = Field(1, ge=1, le=10_000, description="Partitions of the tables' topics.")
    topic_configs: dict[str, str] = Field({}, description="More configs of the tables' topics.")
    chunk_rows: int = Field(
        10_000,
        ge=1,
        le=1_000_000,
        description="Most rows of a part of a snapshot. Large rows make smaller parts.",
    )
    heartbeat_s: float = Field(
        10.0,
        ge=0.1,
        le=3600,
        description="How often the state is stored if no captured table changes, in seconds. A "
        "worker that was fenced notices it then.",
    )
    transactions: bool = Field(
        False,
        description="Whether events and the topic PREFIX.transaction describe transactions.",
    )
    hash_key: str = Field("", description="The key for hash; a reference.")
    database: dict[str, Any] = Field(
        {}, description="Where the database is; its keys belong to the kind."
    )
    table: dict[str, TableRules] = Field({}, description="Rules by schema.table.")
    outbox: Outbox | None = Field(None, description="The outbox router.")

    @model_validator(mode="after")
    def _require_key_of_hashes(self) -> Self:
        if self.hash_key == "" and any(rules.hash for rules in self.table.values()):
            raise DefinitionError(
                "hash needs a key, or anyone could compute the hashes of known values",
                hint='hash_key = "${env:NAME}" or "${file:/path}"',
            )
        return self

    def relative_to(self, folder: Path) -> Self:
        """Return the definition with a ``database.path`` that is relative to a folder."""
        path = self.database.get("path")
        if not isinstance(path, str) or path.startswith("${"):
            return self  # what a reference gives is not relative to the file
        found = str((folder.absolute() / path).resolve())
        return self.model_copy(update={"database": {**self.database, "path": found}})

    @property
    def topic_prefix(self) -> str:
        """The first part of the topics' names."""
        return self.prefix or self.name

    def capture(self) -> Capture:
        """Return what the source is made from, with secrets resolved.

        Raises:
            SettingsError: a reference can't be resolved.
        """
        from tidemill.connect.cdc.contract import Capture

        return Capture(
            self.name,
            tuple(self.tables),
            tuple(self.exclude),
            self.keyless,
            resolve(self.database),
        )


parse = Definition.parse
read_file = Definition.read_file
