"""Write the SQL of the triggers that capture the changes of a table.

They use SQL that every SQLite since 3.8 knows, because they run in the process of each writer,
whatever its version. They copy values as they are into columns without a type, so nothing is
converted.

REPLACE deletes rows without firing a delete trigger, unless the writer sets recursive_triggers. A
row with the same key is simply overwritten. Rows that conflict in another unique index have other
keys, and so has a row whose key is equal to the new one, but is not the same text: a BEFORE trigger
copies them into a scratch table, and the AFTER trigger reports those that do not exist any more.
Source: sqlite.org/lang_conflict.html. Must not know: a connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidemill.connect.cdc.sqlite.schema import OWN_PREFIX, Shape, quoted

NOW_MS = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"


@dataclass(frozen=True, slots=True)
class Names:
    """The names of a source's objects in the database."""

    source: str

    @property
    def stem(self) -> str:
        """The first part of all names."""
        safe = "".join(c if c.isascii() and c.isalnum() else "_" for c in self.source)
        return f"{OWN_PREFIX}{safe}_"

    @property
    def meta(self) -> str:
        """The table with the change log's identity."""
        return self.stem + "meta"

    @property
    def layouts(self) -> str:
        """The table with the columns of each version of each table."""
        return self.stem + "layouts"

    @property
    def changes(self) -> str:
        """The change log."""
        return self.stem + "changes"

    @property
    def replaced(self) -> str:
        """The scratch table for rows that REPLACE possibly deletes."""
        return self.stem + "replaced"

    def trigger(self, table: str, event: str) -> str:
        """Return the name of a trigger."""
        return f"{self.stem}{event}_{table}"


def trigger_sql(names: Names, shape: Shape, layout: int) -> dict[str, str]:
    """Return the triggers of a table: name to CREATE TRIGGER statement.

    Args:
        layout: the number of its layout, which each change carries.
    """
    columns = [each.name for each in shape.columns]
    old, new = _values("OLD", columns), _values("NEW", columns)
    insert = [_log(names, layout, "c", new)]
    update = [_log(names, layout, "u", [*old, *new])]
    delete = [_log(names, layout, "d", old)]
    created: dict[str, str] = {}

    def create(event: str, when: str, body: Sequence[str]) -> None:
        name = names.trigger(shape.name, event)
        statements = "".join(f"  {statement};\n" for statement in body)
        created[name] = (
            f"CREATE TRIGGER {quoted(name)} {when} ON {quoted(shape.name)} FOR EACH ROW"
            f"\nBEGIN\n{statements}END"
        )

    if any(unique.columns for unique in shape.uniques):
        watch = _Replaced(names, shape, layout)
        for event, when, old_key in (("bi", "BEFORE INSERT", ""), ("bu", "BEFORE UPDATE", "OLD")):
            create(event, when, watch.before(old_key))
        insert = [*watch.after(), *insert]
        update = [*watch.after(), *update]
        delete = [*delete, watch.forget()]
    create("ai", "AFTER INSERT", insert)
    create("au", "AFTER UPDATE", update)
    create("ad", "AFTER DELETE", delete)
    return created


class _Replaced:
    """The statements that find rows which REPLACE deletes because of another unique index."""

    def __init__(self, names: Names, shape: Shape, layout: int) -> None:
        self._scratch = quoted(names.replaced)
        self._changes = quoted(names.changes)
        self._shape = shape
        self._layout = layout
        self._columns = [each.name for each in shape.columns]
        self._key = shape.key or tuple(self._columns)
        # Only this table's rows: a trigger of the user can write to another table in between.
        self._clear = f"DELETE FROM {self._scratch} WHERE layout = {layout}"

    def before(self, old: str) -> list[str]:
        table = quoted(self._shape.name)
        conflicts = " OR ".join(
            "("
            + " AND ".join(
                f"t.{quoted(column)} = NEW.{quoted(column)} COLLATE {quoted(collation)}"
                for column, collation in unique.columns
            )
            + ")"
            for unique in self._shape.uniques
            if unique.columns
        )
        itself = (
            " AND NOT ("
            + " AND ".join(f"t.{quoted(key)} IS OLD.{quoted(key)}" for key in self._key)
            + ")"
            if old
            else ""
        )
        count = len(self._columns)
        slots = ", ".join(f"v{number}" for number in range(count))
        values = ", ".join(f"t.{quoted(column)}" for column in self._columns)
        return [
            self._clear,
            f"INSERT INTO {self._scratch} (layout, {slots}) SELECT {self._layout}, {values} "
            f"FROM {table} AS t WHERE ({conflicts}){itself}",
        ]

    def after(self) -> list[str]:
        count = len(self._columns)
        slots = ", ".join(f"v{number}" for number in range(count))
        return [
            f"INSERT INTO {self._changes} (layout, op, ts, {slots}) "
            f"SELECT s.layout, 'd', {NOW_MS}, "
            + ", ".join(f"s.v{number}" for number in range(count))
            + f" FROM {self._scratch} AS s WHERE s.layout = {self._layout} AND NOT EXISTS ("
            f"SELECT 1 FROM {quoted(self._shape.name)} AS t WHERE {self._same_key('t')})",
            self._clear,
        ]

    def forget(self) -> str:
        """Return the statement for a writer with recursive_triggers: the delete is reported."""
        keys = " AND ".join(
            f"v{self._columns.index(key)} IS OLD.{quoted(key)}" for key in self._key
        )
        return f"DELETE FROM {self._scratch} WHERE layout = {self._layout} AND {keys}"

    def _same_key(self, alias: str) -> str:
        """Return the condition that a row has the key of a scratch row, as the topic has it.

        The topic of a table without a key has all columns as the key. As the table has a unique
        index, no two rows are equal in all of them.
        """
        shape = self._shape
        parts = []
        for key in self._key:
            column, value = f"{alias}.{quoted(key)}", f"s.v{self._columns.index(key)}"
            if shape.key:
                parts.append(f"{column} = {value}")
            if shape.equal_keys_differ or not shape.key:
                parts.append(f"{column} COLLATE BINARY IS {value}")
                parts.append(f"typeof({column}) = typeof({value})")
        return " AND ".join(parts)


def _log(names: Names, layout: int, op: str, values: Sequence[str]) -> str:
    slots = ", ".join(f"v{number}" for number in range(len(values)))
    return (
        f"INSERT INTO {quoted(names.changes)} (layout, op, ts, {slots}) "
        f"VALUES ({layout}, '{op}', {NOW_MS}, {', '.join(values)})"
    )


def _values(row: str, columns: Sequence[str]) -> list[str]:
    return [f"{row}.{quoted(column)}" for column in columns]
