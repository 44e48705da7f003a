"""Changes and rows that stay as the database delivered them, until they are needed as objects.

The compiled extension turns them into records without an object for each row, which is several
times faster. Where rules, a router or a snapshot must see each row, they are unpacked: both ways
give the same records. Must not know: Kafka, or a particular database.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Protocol, TypeVar, overload

from tidemill.connect.cdc.contract import Change, Row, Table

ColumnRule = tuple[str, int, Callable[[bytes], Any], bool]
"""A column's name, the number of the rule for its text (see ``ChangeEncoder``), the function for a
text without a rule, and whether the column belongs to the replica identity."""

VALUE_RULE = 0

EncodeRows = Callable[[Any, list[Any], int, bytes, int], int]
"""``encode_rows`` or ``encode_copy`` of the extension."""

Item = TypeVar("Item")


class Encoders(Protocol):
    """Gives the compiled encoders of tables."""

    def of(self, table: Table, columns: tuple[ColumnRule, ...]) -> Any:
        """Return the ``ChangeEncoder`` of a table whose rows have these columns."""
        ...


class PackedChanges(Protocol):
    """Committed changes that are not unpacked.

    Attributes:
        ts_ms: time of the commit of the first one.
    """

    ts_ms: int

    def __len__(self) -> int: ...

    def tables(self) -> Collection[Table]:
        """Return the tables that the changes can be of."""
        ...

    def unpack(self) -> list[Change]:
        """Return the changes."""
        ...

    def encode(self, encoders: Encoders, stamp_ms: int) -> int:
        """Encode the changes, and return the number of records.

        Args:
            stamp_ms: time of processing.

        Raises:
            OverflowError: a record is too large; the message is its size in bytes.
        """
        ...


class _Lazy(Sequence[Item]):
    """A sequence that is unpacked when one of its items is read. It equals a list of its items."""

    @abstractmethod
    def unpacked(self) -> list[Item]:
        """Return all items as objects."""

    def __iter__(self) -> Iterator[Item]:
        return iter(self.unpacked())

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | list[Item]:
        return self.unpacked()[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self.unpacked() == list(other)

    __hash__ = None  # type: ignore[assignment]


class Changes(_Lazy[Change]):
    """Changes in commit order, some of them packed.

    Reading one of them unpacks all, and from then on they are the same objects.

    Attributes:
        parts: lists of changes, and packed ones.
    """

    def __init__(self) -> None:
        self.parts: list[list[Change] | PackedChanges] = []
        self._count = 0

    def append(self, change: Change) -> None:
        """Add a change at the end."""
        if not self.parts or not isinstance(self.parts[-1], list):
            self.parts.append([])
        last = self.parts[-1]
        assert isinstance(last, list)
        last.append(change)
        self._count += 1

    def add(self, packed: PackedChanges) -> None:
        """Add packed changes at the end."""
        self.parts.append(packed)
        self._count += len(packed)

    @property
    def ts_ms(self) -> int:
        """The commit time of the first change."""
        first = self.parts[0]
        return first[0].ts_ms if isinstance(first, list) else first.ts_ms

    def unpacked(self) -> list[Change]:
        """Return all changes as objects."""
        if len(self.parts) != 1 or not isinstance(self.parts[0], list):
            found: list[Change] = []
            for part in self.parts:
                found += part if isinstance(part, list) else part.unpack()
            self.parts = [found]
        only = self.parts[0]
        assert isinstance(only, list)
        return only

    def __len__(self) -> int:
        return self._count


class PackedRows(_Lazy[Row]):
    """Rows of a snapshot that are not unpacked, until one of them is read.

    Args:
        items: the rows as the database gave them.
        columns: the columns, all of the table.
        encode: the function of the extension that takes the items.
        unpack: returns the rows.
        row_bytes: about how many bytes a row has.
    """

    def __init__(
        self,
        items: list[Any],
        columns: tuple[ColumnRule, ...],
        encode: EncodeRows,
        unpack: Callable[[], list[Row]],
        row_bytes: int,
    ) -> None:
        self._items = items
        self._columns = columns
        self._encode = encode
        self._unpack = unpack
        self._rows: list[Row] | None = None
        self.row_bytes = row_bytes

    @property
    def is_packed(self) -> bool:
        """Whether no row was read: a row that was read can have been changed."""
        return self._rows is None

    def encode(
        self, encoders: Encoders, table: Table, ts_ms: int, tail: bytes, stamp_ms: int
    ) -> int:
        """Encode the rows, and return the number of records.

        Args:
            ts_ms: time of the read.
            tail: the end of the envelope's block ``source``.
            stamp_ms: time of processing.

        Raises:
            OverflowError: a record is too large; the message is its size in bytes.
        """
        encoder = encoders.of(table, self._columns)
        return self._encode(encoder, self._items, ts_ms, tail, stamp_ms)

    def unpacked(self) -> list[Row]:
        """Return the rows as objects."""
        if self._rows is None:
            self._rows = self._unpack()
        return self._rows

    def __len__(self) -> int:
        return len(self._items)
