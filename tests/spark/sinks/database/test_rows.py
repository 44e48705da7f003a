"""Layout of a batch, its keys, and versions. Needs no session."""

from __future__ import annotations

import pytest
from pyspark.sql.types import StructType

from tests.contracts.upsert import schema_of
from tidemill.spark.errors import SchemaError, SinkError
from tidemill.spark.sinks.database.rows import Column, layout_of
from tidemill.spark.sinks.database.version import created_at, version


def schema(ddl: str) -> StructType:
    """Return the schema of ``name type``, separated by commas, with Spark's JSON types."""
    return schema_of(*((name, kind) for name, kind in (part.split() for part in ddl.split(","))))


def test_columns_keys_and_deletions_are_found() -> None:
    given = schema("Id integer,price long,_DELETED boolean")
    layout = layout_of(given, ["id"], ["PRICE"])
    assert layout.columns == (Column("Id", "int"), Column("price", "bigint"))
    assert (layout.key, layout.order_by, layout.deletes) == (("Id",), ("price",), True)


@pytest.mark.parametrize(
    ("ddl", "key", "message", "hint"),
    [
        ("a integer", ["id"], "no column id, which key names", "Their columns are a"),
        ("a integer", [], "the key of the table has no columns", 'key="id"'),
        ("a integer,A string", ["a"], "more than one column a", ""),
        ("a integer,_version string", ["a"], "column _version is not a whole number", "Rename"),
        ("a integer,_deleted string", ["a"], "_deleted is not a BOOLEAN", ""),
        ("a integer,b void", ["a"], "b has the type void, which no table can store", "Cast it"),
        ("a integer,b interval", ["a"], "b has the type interval", "Cast it"),
    ],
)
def test_rows_that_do_not_fit_are_refused(
    ddl: str, key: list[str], message: str, hint: str
) -> None:
    with pytest.raises(SchemaError, match=message) as refusal:
        layout_of(schema(ddl), key)
    assert hint in refusal.value.hint


def test_a_nested_key_is_refused() -> None:
    with pytest.raises(SchemaError, match="key column window has a nested type") as refusal:
        layout_of(schema_of(("window", {"type": "struct", "fields": []})), ["window"])
    assert "window.start" in refusal.value.hint


def test_versions_grow_with_batches_and_more_so_with_checkpoints() -> None:
    early, late = 1_700_000_000_999, 1_700_000_001_000
    ordered = [(early, 0), (early, 1), (early, 2**31 - 1), (late, 0), (late, 5)]
    versions = [version(*each) for each in ordered]
    assert versions == sorted(set(versions))
    assert version(4_000_000_000_000, 2**31 - 1) < 2**63


def test_a_version_tells_when_its_checkpoint_was_made() -> None:
    assert created_at(version(1_700_000_000_999, 2**31 - 1)) == "2023-11-14 22:13:20 UTC"


@pytest.mark.parametrize(("created", "batch"), [(-1, 0), (2**45, 0), (0, -1), (0, 2**31)])
def test_numbers_beyond_a_version_are_refused(created: int, batch: int) -> None:
    with pytest.raises(SinkError):
        version(created * 1000 if created < 0 else created, batch)
