"""The definition of a materialized view: what a user writes, and what the worker reads.

This module is imported when a broker starts. Must not know: DuckDB, Kafka.
"""

from __future__ import annotations

from pydantic import Field

from tidemill.connect.base.definitions import StoredSection
from tidemill.sql.errors import DefinitionError


class Definition(StoredSection):
    """A [materialized view](guide-sql.md#materialized-views) of topics.

    One worker, `views`, keeps all of them current.
    """

    key = "view"
    docs = "docs/guide-sql.md"
    invalid = DefinitionError
    is_repeated = True

    name: str = Field(
        pattern=r"^[A-Za-z0-9_-]{1,100}$", description="The name by which statements read it."
    )
    query: str = Field(min_length=1, description="The query whose result it has.")
    columns: dict[str, str] = Field(
        {},
        description="Columns of topics in DuckDB's types, by topic; others are taken from a "
        "sample when the view is made.",
    )
    version: str = Field(
        "",
        max_length=100,
        description="Any text. If it changes, the view is made again from what its topics have. "
        "CREATE OR REPLACE sets a new one.",
    )
    memory: str = Field("1GB", description="DuckDB's memory limit.")
    managed: bool = Field(
        True, description="Whether the worker of tidemill dev and tidemill serve keeps it."
    )
