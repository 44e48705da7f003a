"""Text of every character set of a server: the stream and a snapshot give what the server converts.

The tests of each server subclass ``CharacterSetsContract``, in a folder with the fixtures of
``tests.connect.cdc.binlog_servers``.
"""

from __future__ import annotations

from typing import Any

from tests.connect.cdc.binlog_servers import Execute, Server, poll_all
from tests.support import character_sets
from tidemill.connect.cdc.binlog.catalog import CatalogTable, Field
from tidemill.connect.cdc.binlog.checks import check_tables
from tidemill.connect.cdc.binlog.source import BinlogSource
from tidemill.connect.cdc.contract import Capture

_LABELS = {
    "sjis": "表ｱ",
    "ujis": "表",
    "euckr": "똠한",
    "latin1": "é€",
    "greek": "λ",
    "koi8u": "ї•",
}


class CharacterSetsContract:
    """Text of all character sets."""

    def test_the_stream_gives_each_code_of_each_character_set_as_the_server_converts_it(
        self, server: Server, source: BinlogSource, execute: Execute, shop: str
    ) -> None:
        with server.connect() as connection:
            character_sets.prepare(connection)
            names = character_sets.character_sets(connection)
            columns = ", ".join(f"{each} longtext CHARACTER SET {each}" for each in names)
            labels = ", ".join(
                f"label_{each} enum('{label}') CHARACTER SET {each}"
                for each, label in _LABELS.items()
            )
            execute(f"CREATE TABLE t (id INT PRIMARY KEY, {columns}, {labels})")
            source.start(None)
            labels = ", ".join(f"'{each}'" for each in _LABELS.values())
            codes = ", ".join(
                f"_{name} X'{character_sets.all_codes(connection, name, longest).hex()}'"
                for name, longest in names.items()
            )
            characters = ", ".join(map(character_sets.ALL_CHARACTERS.format, names))
            insert = connection.cursor().execute
            insert(f"INSERT INTO {shop}.t VALUES (1, {codes}, {labels})")
            insert(f"INSERT INTO {shop}.t SELECT 2, {characters}, {labels} FROM characters")
            connection.commit()
        streamed: list[dict[str, Any]] = [each.after for each in poll_all(source, 2)]
        (captured,) = source.tables()
        snapshot = list(source.read_chunk(captured, None, 10).rows)
        for row, read in zip(streamed, snapshot, strict=True):
            for name, value in row.items():
                assert value == read[name], (name, _difference(value, read[name]))
        assert all(
            len(row[name] or "") > 127 for row in streamed for name in names if name != "utf32"
        )
        assert len(streamed[1]["utf32"]) == 0x10000 - 0x800
        assert {name: streamed[1][f"label_{name}"] for name in _LABELS} == _LABELS

    def test_the_check_names_each_column_of_an_unknown_character_set(self) -> None:
        names = ("id", None), ("a", "klingon"), ("b", "klingon"), ("c", "utf8mb4")
        fields = tuple(Field(name, "text", "text", True, known) for name, known in names)
        table = CatalogTable("shop", "t", "InnoDB", 0, fields, ("id",))
        texts = [each.text for each in check_tables([table], Capture("shop"), "'u'@'%'")]
        assert texts == [
            f"column shop.t.{each} has the character set klingon, which is not supported"
            for each in "ab"
        ]


def _difference(streamed: str, read: str) -> list[tuple[str, str]]:
    """Return the first characters that differ."""
    return [each for each in zip(streamed, read, strict=False) if each[0] != each[1]][:9]
