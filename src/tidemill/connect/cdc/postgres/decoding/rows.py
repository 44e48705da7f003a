"""Decodes rows of pgoutput to objects: one decoder for each shape of a table, made once.

Rows that rules, a router or a snapshot must see pass here, and those that lack values. The
extension encodes all others from the bytes of their messages (``runs``). Must not know:
connections, the catalog, transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct, error
from typing import Any

from tidemill.connect.cdc.postgres.errors import ProtocolError
from tidemill.connect.cdc.postgres.types import Convert

Row = dict[str, Any]
DecodeRow = Callable[[bytes, int], tuple[Row, int]]
"""Takes a message and the place of its tuple; returns the row and the place behind the tuple.
A column whose value is stored out of line and was not changed is missing in the row."""

_u32 = Struct(">I").unpack_from
_u16 = Struct(">H").unpack_from
_TEXT, _NULL, _UNCHANGED = b"tnu"


def decoder(columns: Sequence[tuple[str, Convert]]) -> DecodeRow:
    """Return a decoder for rows with these columns, in this order."""
    count = len(columns)

    def decode(data: bytes, at: int) -> tuple[Row, int]:
        row: Row = {}
        try:
            if _u16(data, at)[0] != count:
                raise ProtocolError(f"a row has {_u16(data, at)[0]} columns, its table {count}")
            at += 2
            for name, convert in columns:
                kind = data[at]
                if kind == _TEXT:
                    start = at + 5
                    at = start + _u32(data, at + 1)[0]
                    row[name] = convert(data[start:at])
                elif kind == _NULL:
                    row[name] = None
                    at += 1
                elif kind == _UNCHANGED:
                    at += 1
                else:
                    raise ProtocolError(f"column {name} has a value of unknown format {kind}")
        except (IndexError, error):
            raise ProtocolError(f"a row of pgoutput is cut after {len(data)} bytes") from None
        if at > len(data):
            raise ProtocolError(f"a row needs {at} bytes, its message has {len(data)}")
        return row, at

    return decode


def identity_decoder(columns: Sequence[tuple[str, Convert, bool]]) -> DecodeRow:
    """Return a decoder for old rows that hold the replica identity only.

    The other columns are NULL in the message whatever their value was, so the row leaves them out.

    Args:
        columns: Name, conversion, and whether the column belongs to the replica identity.
    """
    decode = decoder([(name, convert) for name, convert, _ in columns])
    names = [name for name, _, is_identity in columns if is_identity]

    def decode_identity(data: bytes, at: int) -> tuple[Row, int]:
        row, at = decode(data, at)
        return {name: row[name] for name in names if name in row}, at

    return decode_identity
