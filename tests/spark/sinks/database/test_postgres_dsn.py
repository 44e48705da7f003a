"""A dsn is checked before anything connects, and is never shown."""

from __future__ import annotations

import traceback

import pytest

from tidemill.spark.errors import OptionError, SchemaError
from tidemill.spark.sinks.database import rows as upsert_rows
from tidemill.spark.sinks.database.postgres_dsn import TOMBSTONES, check, place_of

BROKEN = [
    "postgresql//etl:S3CRET@db/flights",
    "postgresql:etl:S3CRET@db/flights",
    "postgresql://etl:S3CRET /@db/flights",
    "postgresql://etl:S3CRET%@db/flights",
    "postgresql://etl:x/S3CRET@db/flights",
    "postgresql://etl:x@S3CRET@db/flights",
    "postgresql://etl:x@db:S3CRET/flights",
    "host=db password=x S3CRET dbname=flights",
    "host=db password=x S3CRET=7 dbname=flights",
    "host=db password='S3CRET dbname=flights",
    "host=db port=S3CRET",
    "etl:S3CRET@db",
]


@pytest.mark.parametrize("dsn", BROKEN)
def test_a_mistyped_dsn_is_refused_without_its_text(dsn: str) -> None:
    with pytest.raises(OptionError, match="can't parse the dsn for PostgreSQL") as refusal:
        check(dsn, "t")
    assert "postgresql://etl@db/flights" in refusal.value.hint
    assert "S3CRET" not in "".join(traceback.format_exception(refusal.value))
    assert refusal.value.__cause__ is None
    assert refusal.value.__context__ is None


@pytest.mark.parametrize(
    "dsn",
    [
        "",
        "host=db dbname=flights user=etl@azure password='S3 CRET'",
        "host=/run/postgresql port=5433",
        "host=a,b port=5432,5433 dbname=flights",
        "service=flights",
        "postgres://etl%40azure:S3%40CRET@db/flights?sslmode=require",
        "postgresql://etl@[::1]:5432/flights",
        "postgresql:///flights?host=/run/postgresql",
    ],
)
def test_others_are_not(dsn: str) -> None:
    check(dsn, "schema.table")


@pytest.mark.parametrize("table", ["t" * 55, f"schema.{'t' * 55}", "ü" * 28, f"{'s' * 64}.t"])
def test_names_that_postgresql_would_cut_are_refused(table: str) -> None:
    with pytest.raises(SchemaError, match="is too long for PostgreSQL") as refusal:
        check("", table)
    assert "54 bytes" in refusal.value.hint
    assert upsert_rows.TOMBSTONES == TOMBSTONES


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("host=a dbname=x", "host=b dbname=x", False),
        ("host=a dbname=x", "host=a dbname=y", False),
        ("host=a port=5433 dbname=x", "host=a dbname=x", False),
        ("service=a", "service=b", False),
        ("host=a dbname=x user=u password=p", "postgresql://v:q@A:5432/x?sslmode=require", True),
        ("host=a user=x", "host=a user=y dbname=x", True),
        ("host=a dbname=x", "host=env dbname=x", False),
        ("dbname=x", "host=env dbname=x", True),
        ("broken", "broken", True),
        ("broken", "host=a", False),
    ],
)
def test_two_dsns_are_of_the_same_database(
    monkeypatch: pytest.MonkeyPatch, one: str, other: str, is_same: bool
) -> None:
    monkeypatch.delenv("PGPORT", raising=False)
    monkeypatch.setenv("PGHOST", "env")
    assert (place_of(one) == place_of(other)) == is_same
