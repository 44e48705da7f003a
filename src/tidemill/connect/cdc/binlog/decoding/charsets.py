"""Character sets of MariaDB and MySQL, and how Python decodes their text.

Must not know events. Source: MariaDB documentation, "Supported character sets and collations".
"""

from __future__ import annotations

import codecs

BINARY = "binary"

_CODECS = {
    "ascii": "ascii",
    "big5": "big5",
    "cp1250": "cp1250",
    "cp1251": "cp1251",
    "cp1256": "cp1256",
    "cp1257": "cp1257",
    "cp850": "cp850",
    "cp852": "cp852",
    "cp866": "cp866",
    "cp932": "cp932",
    "eucjpms": "euc_jp",
    "euckr": "euc_kr",
    "gb18030": "gb18030",
    "gb2312": "gb2312",
    "gbk": "gbk",
    "greek": "iso8859-7",
    "hebrew": "iso8859-8",
    "koi8r": "koi8-r",
    "koi8u": "koi8-u",
    "latin1": "cp1252",
    "latin2": "iso8859-2",
    "latin5": "iso8859-9",
    "latin7": "iso8859-13",
    "macce": "mac_latin2",
    "macroman": "mac_roman",
    "sjis": "shift_jis",
    "tis620": "tis_620",
    "ucs2": "utf-16-be",
    "ujis": "euc_jp",
    "utf16": "utf-16-be",
    "utf16le": "utf-16-le",
    "utf32": "utf-32-be",
    "utf8": "utf-8",
    "utf8mb3": "utf-8",
    "utf8mb4": "utf-8",
}


def python_codec(character_set: str) -> str | None:
    """Return the name of Python's codec for a character set; None if Python has none."""
    return _CODECS.get(character_set)


def decode_text(data: bytes, codec: str) -> str:
    """Decode text.

    ``latin1`` of MariaDB is Windows-1252, where the five bytes without a character stand for the
    control characters with their number.

    Raises:
        UnicodeDecodeError: the bytes are not valid in the character set.
    """
    if codec != "cp1252":
        return data.decode(codec)
    return data.decode("cp1252", "tidemill.c1")


def _c1_control(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return error.object[error.start : error.end].decode("latin-1"), error.end


codecs.register_error("tidemill.c1", _c1_control)
