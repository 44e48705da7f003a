"""The definition of a source: what a user writes in its TOML file, and what workers read.

It contains no secret: ``${env:NAME}`` and ``${file:PATH}`` refer to them. Must not know: Kafka, or
a particular database.
"""

from __future__ import annotations

import json
import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tidemill.connect.base.secrets import find_plain, resolve
from tidemill.connect.cdc.contract import Capture, Keyless
from tidemill.connect.cdc.errors import DefinitionError


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TableRules(_Section):
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


class Outbox(_Section):
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


class Definition(_Section):
    """A source.

    Attributes:
        name: identifies it: its transactional id, its topics and its objects in the database.
        kind: sqlite, mariadb, mysql, postgres, or the name of an entry point in the group
            ``tidemill.sources``.
        prefix: first part of the topics' names; default: the name.
        tables: patterns of the tables to capture.
        exclude: patterns of tables to leave out.
        snapshot: "initial" reads the tables first, "never" starts with the changes from now on.
        keyless: what happens to tables without a primary key.
        format: Debezium's envelope, or plain rows.
        managed: whether the broker's own worker (``tidemill dev``, ``serve``) runs it.
        on_lost_position: "stop" and wait for the user, or "resnapshot" by itself.
        partitions: of the tables' topics.
        topic_configs: more configs of the tables' topics.
        chunk_rows: most rows of a part of a snapshot. Large rows make smaller parts.
        heartbeat_s: how often the state is stored if no captured table changes, in seconds. A
            worker that was fenced notices it then.
        transactions: whether events and the topic ``<prefix>.transaction`` describe transactions.
        hash_key: the key for ``hash``; a reference.
        database: where the database is; its keys belong to the kind.
        table: rules by ``schema.table``.
        outbox: the outbox router.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    kind: str = Field(min_length=1)
    prefix: str = Field("", pattern=r"^[A-Za-z0-9._-]{0,100}$")
    tables: list[str] = Field(["*"], min_length=1)
    exclude: list[str] = []
    snapshot: Literal["initial", "never"] = "initial"
    keyless: Keyless = "refuse"
    format: Literal["debezium", "plain"] = "debezium"
    managed: bool = True
    on_lost_position: Literal["stop", "resnapshot"] = "stop"
    partitions: int = Field(1, ge=1, le=10_000)
    topic_configs: dict[str, str] = {}
    chunk_rows: int = Field(10_000, ge=1, le=1_000_000)
    heartbeat_s: float = Field(10.0, ge=0.1, le=3600)
    transactions: bool = False
    hash_key: str = ""
    database: dict[str, Any] = {}
    table: dict[str, TableRules] = {}
    outbox: Outbox | None = None

    @property
    def topic_prefix(self) -> str:
        """The first part of the topics' names."""
        return self.prefix or self.name

    def capture(self) -> Capture:
        """Return what the source is made from, with secrets resolved.

        Raises:
            SettingsError: a reference can't be resolved.
        """
        return Capture(
            self.name,
            tuple(self.tables),
            tuple(self.exclude),
            self.keyless,
            resolve(self.database),
        )

    def encode(self) -> bytes:
        """Return the definition as a record's value."""
        return self.model_dump_json(exclude_defaults=True).encode()

    @classmethod
    def decode(cls, value: bytes) -> Definition:
        """Return the definition of a record.

        Raises:
            DefinitionError: it is invalid.
        """
        try:
            return parse(json.loads(value))
        except ValueError as error:
            raise DefinitionError(f"the stored definition is not JSON: {error}") from error


def parse(values: dict[str, Any]) -> Definition:
    """Check the values of a definition.

    Raises:
        DefinitionError: a key or a value is invalid, or a secret is in it as plain text.
    """
    plain = find_plain(values)
    if plain:
        raise DefinitionError(
            f"{plain[0]} contains a secret as plain text, and definitions are stored and shown",
            hint=f'Refer to it: {plain[0].rpartition(".")[2]} = "${{env:NAME}}" or '
            '"${file:/path}".',
        )
    try:
        definition = Definition.model_validate(values)
    except ValidationError as error:
        raise _invalid(error) from None
    if definition.hash_key == "" and any(rules.hash for rules in definition.table.values()):
        raise DefinitionError(
            "hash needs a key, or anyone could compute the hashes of known values",
            hint='hash_key = "${env:NAME}" or "${file:/path}"',
        )
    return definition


def read_file(path: Path) -> Definition:
    """Read a definition from a TOML file. A relative ``database.path`` is relative to the file.

    Raises:
        DefinitionError: the file can't be read, or is invalid.
    """
    try:
        values = tomllib.loads(path.read_text())
    except OSError as error:
        raise DefinitionError(f"can't read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DefinitionError(f"{path} is not valid TOML: {error}") from error
    database = values.get("database")
    if isinstance(database, dict) and isinstance(database.get("path"), str):
        database["path"] = str((path.absolute().parent / database["path"]).resolve())
    try:
        return parse(values)
    except DefinitionError as error:
        raise DefinitionError(f"{path}: {error}", hint=error.hint) from error


def _invalid(error: ValidationError) -> DefinitionError:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        close = get_close_matches(key, Definition.model_fields, n=1)
        hint = f"Did you mean {close[0]}?" if close else "See docs/cdc.md for the keys."
        return DefinitionError(f"unknown key {key}", hint=hint)
    if first["type"] == "missing":
        return DefinitionError(f"the key {key} is missing")
    return DefinitionError(f"invalid {key}: {first['msg'][:1].lower()}{first['msg'][1:]}")
