"""Make the file with the differences between Python's codecs and the servers' character sets.

    python -m scripts.character_sets

It starts MariaDB and MySQL, asks each for its conversion of every code to UTF-8, and writes what
Python's closest codec decodes in another way to ``character_sets.json`` of the decoder. Run it in
the root of a checkout, after a server changed its tables.
"""

from __future__ import annotations

import json
import tempfile
from itertools import chain
from pathlib import Path
from typing import Any

from tests.support import character_sets
from tests.support.mariadb import mariadb
from tests.support.mysql import mysql

from tidemill.connect.cdc.binlog.decoding.character_sets import (
    MULTI_BYTE,
    SINGLE_BYTE,
    MultiByte,
    single_byte_table,
)

PLACE = Path("src/tidemill/connect/cdc/binlog/decoding/character_sets.json")
_FEWEST = 3
"""A run of so many characters that follow each other is written as the first one and a count."""


def main() -> None:
    """Write the file."""
    found: dict[str, dict[bytes, str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for run in (mariadb, mysql):
            with run(Path(folder) / "log") as server, server.connect() as connection:
                character_sets.prepare(connection)
                for name, longest in character_sets.character_sets(connection).items():
                    merge(found, name, differing(connection, name, longest))
    values = {name: compact(each) for name, each in sorted(found.items()) if each}
    PLACE.write_text(json.dumps(values, indent=1) + "\n")


def differing(connection: Any, name: str, longest: int) -> dict[bytes, str]:
    """Return the codes of a character set that Python's codec decodes in another way."""
    if name in SINGLE_BYTE:
        table = single_byte_table(SINGLE_BYTE[name], {})
        codes = character_sets.of_codes(connection, name, 1)
        return {code: text for code, text in codes if len(code) == 1 and table[code[0]] != text}
    if name not in MULTI_BYTE:
        return {}
    known = MultiByte(*MULTI_BYTE[name], {})
    asked = [character_sets.of_codes(connection, name, longest)]
    asked.append(character_sets.of_characters(connection, name))
    return {
        code: text
        for code, text in chain.from_iterable(asked)
        if known.is_one_code(code) and known.decode(code) != text
    }


def merge(found: dict[str, dict[bytes, str]], name: str, more: dict[bytes, str]) -> None:
    """Add the differences of a server. Only one of them takes some codes."""
    before = found.setdefault(name, {})
    contradicting = {code for code, text in more.items() if before.setdefault(code, text) != text}
    if contradicting:
        raise SystemExit(f"the servers differ in {name}: {sorted(contradicting)}")


def compact(codes: dict[bytes, str]) -> dict[str, Any]:
    """Return the codes with those joined whose last bytes follow each other."""
    runs: list[tuple[bytes, str]] = []
    several = {code.hex(): [text] for code, text in codes.items() if len(text) > 1}
    for code, text in sorted(each for each in codes.items() if len(each[1]) == 1):
        if runs and runs[-1][0][:-1] == code[:-1]:
            first, texts = runs[-1]
            if first[-1] + len(texts) == code[-1]:
                runs[-1] = (first, texts + text)
                continue
        runs.append((code, text))
    return {code.hex(): _counted(text) for code, text in runs} | several


def _counted(text: str) -> Any:
    follow = all(ord(each) == ord(text[0]) + index for index, each in enumerate(text))
    return [text[0], len(text)] if follow and len(text) >= _FEWEST else text


if __name__ == "__main__":
    main()
