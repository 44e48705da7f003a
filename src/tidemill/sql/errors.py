"""The errors of SQL on topics. Knows no DuckDB and no client."""

from __future__ import annotations

from tidemill.errors import TidemillError


class SqlError(TidemillError):
    """A statement is malformed, or failed while it ran. The text is DuckDB's where it has one."""


class StatementRefusedError(SqlError):
    """A statement is of a kind that is not allowed: it would change something, or touch files."""

    default_hint = (
        "Allowed are SELECT, WITH, FROM, VALUES, DESCRIBE, SUMMARIZE, PIVOT, EXPLAIN, "
        "INSERT INTO topic, and COPY ... TO with a folder for files."
    )


class MalformedStatementError(SqlError):
    """A statement is not valid SQL, or declares invalid columns. Another run can't change that."""


class UnknownTableError(SqlError):
    """A statement names a table that is not a topic."""


class OtherTopicError(SqlError):
    """A topic that was followed was deleted, and created again."""


class TooMuchToReadError(SqlError):
    """A statement would read more than its limit allows.

    Attributes:
        bytes: about how much it would read.
    """

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(
            f"the statement reads about {size:,} bytes, and the limit is {limit:,}",
            hint="Add a condition on _offset, _timestamp or _partition, or raise the limit.",
        )
        self.bytes = size


class QueryEndedError(SqlError):
    """A statement was cancelled, or took longer than its time limit."""


class DefinitionError(StatementRefusedError):
    """The definition of a view is invalid."""

    default_hint = "See docs/guide-sql.md."
