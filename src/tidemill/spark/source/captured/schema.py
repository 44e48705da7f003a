"""The columns of a stream of changes. Must not know: how envelopes are read, Spark."""

from __future__ import annotations

from tidemill.spark.base.ddl import columns, escaped
from tidemill.spark.source.planning.parsing import RECORD_COLUMNS

VERSION, COMMIT_TIME = "_version", "commit_time"


def event_schema(ddl: str) -> str:
    """Return the columns of the events of a table, as DDL.

    Args:
        ddl: the columns of the table. Those with the names of ``RECORD_COLUMNS`` come from the
            record.

    Raises:
        SchemaError: the schema is malformed.
    """
    made = columns(ddl)
    of_record = [each for each in made if each.name in RECORD_COLUMNS]
    fields = ", ".join(
        f"{escaped(each.name)}: {each.type}" for each in made if each not in of_record
    )
    more = "".join(f", {escaped(each.name)} {each.type}" for each in of_record)
    return (
        f"op STRING, before STRUCT<{fields}>, after STRUCT<{fields}>, {COMMIT_TIME} TIMESTAMP, "
        f"{VERSION} BIGINT, source STRING, transaction_id STRING{more}"
    )
