"""The self-check: published records against what they should be, record by record.

What they should be is computed in ``check_results``, straight from the data set. Here is only what
is equal, what differs, what is missing and what is there too much. Knows nothing of events, topics
or Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Record = Mapping[str, Any]
"""A record's value: a JSON object as a mapping. Fields without a value are left out."""

Identity = tuple[str, ...]
"""The fields that tell one record of a query from another, as text."""


@dataclass(frozen=True)
class Check:
    """A query's records against expected ones.

    Attributes:
        query: its name.
        equal: how many records are equal in all fields.
        unequal: records with (expected, published).
        missing: records that were expected and not published.
        unexpected: records that were published and not expected.
        repeated: records that were published once more, equal or not: each is to be there once.
    """

    query: str
    equal: int
    unequal: Mapping[Identity, tuple[Record, Record]]
    missing: Mapping[Identity, Record]
    unexpected: Mapping[Identity, Record]
    repeated: tuple[Identity, ...] = ()

    @property
    def expected(self) -> int:
        """How many records there should be."""
        return self.equal + len(self.unequal) + len(self.missing)

    @property
    def ok(self) -> bool:
        """Whether the published records are exactly the expected ones, each of them once."""
        return not (self.unequal or self.missing or self.unexpected or self.repeated)


def compare(
    query: str,
    expected: Iterable[Record],
    published: Iterable[Record],
    identity: tuple[str, ...],
) -> Check:
    """Each record for equality in all fields, exactly: figures to the last bit.

    Args:
        query: for the report.
        expected: what should be there.
        published: what is there.
        identity: names of the fields that tell a record from the others.

    Raises:
        ValueError: two expected records have the same identity.
    """
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
    """The fields of a record that tell it from others; of a window its start and its end."""
    return tuple(_text(record.get(name)) for name in identity)


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return "/".join(str(each) for each in value.values())
    return "" if value is None else str(value)
