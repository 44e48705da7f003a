"""Compare published records with the expected ones, record by record.

``check_results`` computes the expected records from the data set. This module must not know events,
topics or Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Record = Mapping[str, Any]
"""A record's value: a JSON object as a mapping. Fields without a value are left out."""

Identity = tuple[str, ...]
"""The fields that identify a record of a query, as text."""


@dataclass(frozen=True)
class Check:
    """The result of comparing a query's records with the expected ones.

    Those in ``unequal`` are (expected, published). Those in ``repeated`` were published more than
    once, equal or not.
    """

    query: str
    equal: int
    unequal: Mapping[Identity, tuple[Record, Record]]
    missing: Mapping[Identity, Record]
    unexpected: Mapping[Identity, Record]
    repeated: tuple[Identity, ...] = ()

    @property
    def expected(self) -> int:
        """The number of expected records."""
        return self.equal + len(self.unequal) + len(self.missing)

    @property
    def ok(self) -> bool:
        """Whether the published records are exactly the expected ones, each once."""
        return not (self.unequal or self.missing or self.unexpected or self.repeated)


def compare(
    query: str,
    expected: Iterable[Record],
    published: Iterable[Record],
    identity: tuple[str, ...],
) -> Check:
    """Compare all fields of each record exactly: numbers to the last bit."""
    wanted: dict[Identity, Record] = {}
    for record in expected:
        key = identify(record, identity)
        if key in wanted:
            raise ValueError(f"{query}: two records are expected for {key}")
        wanted[key] = {name: value for name, value in record.items() if value is not None}
    found: dict[Identity, Record] = {}
    repeated = []
    for record in published:
        key = identify(record, identity)
        if key in found:
            repeated.append(key)
        found[key] = {name: value for name, value in record.items() if value is not None}
    both = wanted.keys() & found.keys()
    unequal = {key: (wanted[key], found[key]) for key in both if wanted[key] != found[key]}
    return Check(
        query=query,
        equal=len(both) - len(unequal),
        unequal=dict(sorted(unequal.items())),
        missing={key: wanted[key] for key in sorted(wanted.keys() - both)},
        unexpected={key: found[key] for key in sorted(found.keys() - both)},
        repeated=tuple(repeated),
    )


def identify(record: Record, identity: tuple[str, ...]) -> Identity:
    """Return the fields that identify a record. A window is its start and its end."""
    return tuple(_text(record.get(name)) for name in identity)


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return "/".join(str(each) for each in value.values())
    return "" if value is None else str(value)
