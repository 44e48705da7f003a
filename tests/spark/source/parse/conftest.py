"""Makes parsers of JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from tidemill.spark.source.parse import Parsed, Parser, ParseSchema, make_parser

Make = Callable[..., Parser]
Parse = Callable[..., Parsed]


@pytest.fixture
def make() -> Make:
    """Make a parser of a schema in DDL."""

    def parser(ddl: str, *, only: list[str] | None = None, **options: Any) -> Parser:
        return make_parser(ParseSchema.from_ddl(ddl, **options), only=only)

    return parser


@pytest.fixture
def parse(make: Make) -> Parse:
    """Parse values by a schema in DDL. Also checks that ``check`` gives the same reasons."""

    def parsed(ddl: str, *values: str | bytes | None, **options: Any) -> Parsed:
        parser = make(ddl, **options)
        array = pa.array([v.encode() if isinstance(v, str) else v for v in values], pa.binary())
        result = parser.parse(array)
        for column in result.columns:
            column.validate(full=True)
        assert parser.check(array) == result.reasons
        return result

    return parsed
