"""The conversion of a server's character sets to UTF-8, asked from the server itself."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any


def prepare(connection: Any) -> None:
    """Make the temporary tables that ``conversion`` reads: all sequences of one and two bytes, and
    those of three with which a character of EUC-JP begins."""
    execute = connection.cursor().execute
    execute("SET SESSION sql_mode = ''")
    execute("SET SESSION group_concat_max_len = 10000000")
    execute("CREATE DATABASE IF NOT EXISTS codes")
    execute("USE codes")
    execute("CREATE TEMPORARY TABLE codes (x varbinary(4) PRIMARY KEY)")
    sequences = [bytes([one]) for one in range(256)]
    sequences += [bytes([one, two]) for one in range(128, 256) for two in range(256)]
    sequences += [bytes([0x8F, two, one]) for two in range(161, 255) for one in range(161, 255)]
    _insert(execute, "codes", sequences)
    execute("CREATE TEMPORARY TABLE characters (x varbinary(4) PRIMARY KEY)")
    points = (number for number in range(0x10000) if not 0xD800 <= number < 0xE000)
    _insert(execute, "characters", (chr(number).encode() for number in points))


def _insert(execute: Any, table: str, values: Iterable[bytes]) -> None:
    execute(f"INSERT INTO {table} VALUES " + ",".join(f"(x'{each.hex()}')" for each in values))


def character_sets(connection: Any) -> dict[str, int]:
    """Return the most bytes of a character in each character set, without that of bytes."""
    cursor = connection.cursor()
    cursor.execute("SELECT character_set_name, maxlen FROM information_schema.character_sets")
    return {name: longest for name, longest in sorted(cursor.fetchall()) if name != "binary"}


def of_codes(connection: Any, name: str, longest: int) -> Iterator[tuple[bytes, str]]:
    """Yield each code of at most so many bytes, and the text that the server makes of it.

    Sequences of two and three bytes that are two characters or more are among them.
    """
    yield from _pairs(
        connection,
        f"SELECT x, CAST(CONVERT(x USING {name}) AS BINARY), "
        f"CAST(CONVERT(CONVERT(x USING {name}) USING utf8mb4) AS BINARY) FROM codes "
        f"WHERE length(x) <= {longest}",
    )


def all_codes(connection: Any, name: str, longest: int) -> bytes:
    """Return all codes of at most so many bytes that a column can hold, one after the other."""
    codes = (code for code, _ in of_codes(connection, name, longest))
    if name == "eucjpms":  # MySQL converts more than it stores
        codes = (code for code in codes if _EUC_JP.fullmatch(code))
    return b"".join(codes)


ALL_CHARACTERS = "GROUP_CONCAT(CONVERT(CONVERT(x USING utf8mb4) USING {}) ORDER BY x SEPARATOR '')"
"""All rows of ``characters`` in a character set, as one text."""

_EUC_JP = re.compile(rb"[\x00-\x7f]|\x8e[\xa1-\xdf]|\x8f?[\xa1-\xfe]{2}", re.DOTALL)


def of_characters(connection: Any, name: str) -> Iterator[tuple[bytes, str]]:
    """Yield the code of each character of the Basic Multilingual Plane, and the text that the
    server makes of it. A character that the set lacks is converted to a question mark."""
    code = f"CONVERT(CONVERT(x USING utf8mb4) USING {name})"
    yield from _pairs(
        connection,
        f"SELECT CAST({code} AS BINARY), CAST({code} AS BINARY), "
        f"CAST(CONVERT({code} USING utf8mb4) AS BINARY) FROM characters",
    )


def _pairs(connection: Any, statement: str) -> Iterator[tuple[bytes, str]]:
    cursor = connection.cursor()
    cursor.execute(statement)
    for given, code, text in cursor.fetchall():
        if code == given and text:  # what is not valid is changed, or gives no text
            yield given, text.decode("utf-8", "backslashreplace")
