"""Parses JSON by a schema in DDL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from tidemill.spark.source.parse import Parsed, Parser, make_parser
from tidemill.spark.source.parse.ddl_schema import schema_of

Parse = Callable[..., Parsed]


def make(ddl: str, *, only: list[str] | None = None, **options: Any) -> Parser:
    """Make a parser."""
    return make_parser(schema_of(ddl, **options), only=only)


@pytest.fixture
def parse() -> Parse:
    """Parse values. Also checks that ``check`` gives the same reasons."""

    def parsed(ddl: str, *values: str | bytes | None, **options: Any) -> Parsed:
        parser = make(ddl, **options)
        array = pa.array([v.encode() if isinstance(v, str) else v for v in values], pa.binary())
        result = parser.parse(array)
        for column in result.columns:
            column.validate(full=True)
        assert parser.check(array) == result.reasons
        return result

    return parsed
