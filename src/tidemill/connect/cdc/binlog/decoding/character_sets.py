"""Decode text of the character sets of MariaDB and MySQL as the servers convert it to UTF-8.

The servers differ from Python's codecs of the same name in many characters. ``character_sets.json``
has the differences, which ``scripts/character_sets.py`` asks from both servers. A code without a
character becomes "?", as in every client that reads the table. Bytes that are not valid in their
character set, for example half of a surrogate pair, are shown as ``\\xNN``.

Must not know columns or rows. Source: MySQL source, "strings/ctype-*.cc", for the structure of the
multi-byte sets; MariaDB documentation, "Supported character sets and collations".
"""

from __future__ import annotations

import codecs
import json
import re
import struct
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

BINARY = "binary"
UTF8 = frozenset({"utf8", "utf8mb3", "utf8mb4"})

Decode = Callable[[bytes], str]

SINGLE_BYTE = {
    "armscii8": "ascii",
    "ascii": "ascii",
    "cp1250": "cp1250",
    "cp1251": "cp1251",
    "cp1256": "cp1256",
    "cp1257": "cp1257",
    "cp850": "cp850",
    "cp852": "cp852",
    "cp866": "cp866",
    "dec8": "latin-1",
    "geostd8": "ascii",
    "greek": "iso8859-7",
    "hebrew": "iso8859-8",
    "hp8": "hp_roman8",
    "keybcs2": "ascii",
    "koi8r": "koi8-r",
    "koi8u": "koi8-u",
    "latin1": "cp1252",
    "latin2": "iso8859-2",
    "latin5": "iso8859-9",
    "latin7": "iso8859-13",
    "macce": "mac_latin2",
    "macroman": "mac_roman",
    "swe7": "ascii",
    "tis620": "tis_620",
}
"""Python's codec that is closest to each character set with one byte for each character."""

_EUC_JP = rb"\x8e[\xa0-\xdf]|\x8f[\xa1-\xfe][\xa1-\xfe]|[\xa1-\xfe][\xa1-\xfe]"
_SHIFT_JIS = rb"[\x81-\x9f\xe0-\xfc][\x40-\x7e\x80-\xfc]|[\xa1-\xdf]"
MULTI_BYTE = {
    "big5": ("big5", rb"[\xa1-\xf9][\x40-\x7e\xa1-\xfe]"),
    "cp932": ("cp932", _SHIFT_JIS),
    "eucjpms": ("euc_jp", _EUC_JP),
    "euckr": ("cp949", rb"[\x81-\xfe][\x41-\x5a\x61-\x7a\x81-\xfe]"),
    "gb18030": (
        "gb18030",
        rb"[\x81-\xfe][\x40-\x7e\x80-\xfe]|[\x81-\xfe][\x30-\x39][\x81-\xfe][\x30-\x39]",
    ),
    "gb2312": ("gb2312", rb"[\xa1-\xf7][\xa1-\xfe]"),
    "gbk": ("gbk", rb"[\x81-\xfe][\x40-\x7e\x80-\xfe]"),
    "sjis": ("shift_jis", _SHIFT_JIS),
    "ujis": ("euc_jp", _EUC_JP),
}
"""Python's codec that is closest to each multi-byte set, and its codes that are not ASCII."""

_UTF16 = {"ucs2": "utf-16-be", "utf16": "utf-16-be", "utf16le": "utf-16-le"}

SUPPORTED = frozenset({*SINGLE_BYTE, *MULTI_BYTE, *_UTF16, *UTF8, "utf32"})


def decode_utf8(data: bytes) -> str:
    """Decode UTF-8. A byte that is not valid becomes ``\\xNN``."""
    return data.decode("utf-8", "backslashreplace")


@cache
def text_decoder(character_set: str) -> Decode | None:
    """Return the function that decodes text of a character set; None if it is not supported."""
    if character_set in UTF8:
        return decode_utf8
    if character_set == "ucs2":
        return _ucs2
    if character_set == "utf32":
        return _utf32
    if character_set in _UTF16:
        codec = _UTF16[character_set]
        return lambda data: data.decode(codec, "backslashreplace")
    if character_set in SINGLE_BYTE:
        table = single_byte_table(SINGLE_BYTE[character_set], differences(character_set))
        return lambda data: codecs.charmap_decode(data, "strict", table)[0]
    if character_set in MULTI_BYTE:
        return MultiByte(*MULTI_BYTE[character_set], differences(character_set)).decode
    return None


def has_ascii(decode: Decode) -> bool:
    """Return whether text of ASCII characters has the same bytes as in ASCII."""
    raw = bytes(range(128))
    return decode(raw) == raw.decode("ascii")


# --- differences ------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _file() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        files(__package__).joinpath("character_sets.json").read_text("ascii")
    )
    return found


def differences(character_set: str) -> dict[bytes, str]:
    """Return the codes that Python's codec decodes in another way, or not at all."""
    found: dict[bytes, str] = {}
    for first, characters in _file().get(character_set, {}).items():
        code = bytes.fromhex(first)
        match characters:
            case [text]:  # one code that is several characters
                characters = [text]
            case [character, count]:
                characters = [chr(ord(character) + each) for each in range(count)]
        for index, character in enumerate(characters):
            found[code[:-1] + bytes([code[-1] + index])] = character
    return found


def single_byte_table(codec: str, differing: Mapping[bytes, str]) -> str:
    """Return the characters of the 256 bytes. One without a character is "?"."""
    return "".join(
        differing.get(byte) or byte.decode(codec, "ignore") or "?"
        for byte in (bytes([number]) for number in range(256))
    )


class MultiByte:
    """Decodes a multi-byte character set.

    Args:
        codec: Python's codec that is closest.
        codes: matches a code that is not ASCII.
        differing: the codes that this codec decodes in another way, or not at all.
    """

    def __init__(self, codec: str, codes: bytes, differing: Mapping[bytes, str]) -> None:
        self._codec = codec
        self._differing = differing
        self._code = re.compile(rb"[\x00-\x7f]+|(?:%b)|." % codes, re.DOTALL)
        self._is_code = re.compile(codes, re.DOTALL)
        wrong = [re.escape(code) for code in differing if self._python(code) is not None]
        self._suspicious = re.compile(b"|".join(wrong)) if wrong else None

    def _python(self, code: bytes) -> str | None:
        try:
            return code.decode(self._codec)
        except UnicodeDecodeError:
            return None

    def is_one_code(self, data: bytes) -> bool:
        """Return whether bytes are one code that is not ASCII."""
        return self._is_code.fullmatch(data) is not None

    def decode(self, data: bytes) -> str:
        """Return the text."""
        if self._suspicious is None or self._suspicious.search(data) is None:
            try:
                return data.decode(self._codec)
            except UnicodeDecodeError:
                pass
        return "".join(self._character(code) for code in self._code.findall(data))

    def _character(self, code: bytes) -> str:
        found = self._differing.get(code) or self._python(code)
        if found is not None:
            return found
        if self.is_one_code(code):
            return "?"
        return code.decode("ascii", "backslashreplace")


def _ucs2(data: bytes) -> str:
    """Decode UCS-2, in which a surrogate is a character of its own, and so not valid in UTF-8."""
    units = struct.unpack(f">{len(data) // 2}H", data[: len(data) // 2 * 2])
    if len(data) % 2 or not any(0xD800 <= unit < 0xE000 for unit in units):
        return data.decode("utf-16-be", "backslashreplace")
    return _show_surrogates("".join(map(chr, units)))


def _utf32(data: bytes) -> str:
    """Decode UTF-32, in which MariaDB stores surrogates too."""
    for errors in ("strict", "surrogatepass"):
        try:
            return _show_surrogates(data.decode("utf-32-be", errors))
        except UnicodeDecodeError:
            continue
    return data.decode("utf-32-be", "backslashreplace")


def _show_surrogates(text: str) -> str:
    """Return a text with its surrogates as the bytes that a server sends for them."""
    return decode_utf8(text.encode("utf-8", "surrogatepass"))
