"""MariaDB: keys have one text in snapshot and stream, also those of its own types."""

from __future__ import annotations

import random

import pytest

from tests.contracts.binlog_keys import KeysContract
from tests.support.effort import rounds
from tests.support.mariadb import Server
from tidemill.connect.cdc.binlog.decoding.columns import codec_of
from tidemill.connect.cdc.binlog.decoding.table_map import STRING, ColumnMap

GROUPS = (b"\0\0", b"\0\0", b"\xff\xff", b"\0\x05")


class TestKeys(KeysContract):
    KEYS = {
        "INET6": [
            "'::ffff:192.0.2.7'",
            "'::192.0.2.7'",
            "'::1'",
            "'::'",
            "'2001:db8:0:1:1:1:1:1'",
            "'1::'",
            "'1:0:0:2::3'",
        ],
        "INET4": ["'10.0.0.1'", "'0.0.0.0'"],
        "UUID": [
            "'f81d4fae-7dec-11d0-a765-00a0c91e6bf6'",
            "'00000000-0000-0000-0000-000000000000'",
            "'01890a5d-ac96-774b-bcce-b302099a8057'",
        ],
        "BINARY(16)": ["'a'"],
        "VARCHAR(10) COLLATE utf8mb4_nopad_bin": ["'a'", "'a '"],
        "CHAR(5) COLLATE utf8mb4_general_nopad_ci": ["'a'", "'b '"],
    }


@pytest.mark.parametrize(("type_name", "size"), [("inet6", 16), ("inet4", 4)])
def test_any_address_has_the_text_of_the_server(server: Server, type_name: str, size: int) -> None:
    chance = random.Random(3)
    raw = [
        b"".join(chance.choice([*GROUPS, chance.randbytes(2)]) for _ in range(size // 2))
        for _ in range(rounds("ADDRESSES", 2000, 200_000))
    ]
    column = ColumnMap(STRING, size=size, name="k")
    convert = codec_of(column, type_name, "t.k").convert
    with server.connect() as connection, connection.cursor() as cursor:
        for begin in range(0, len(raw), 1000):
            part = raw[begin : begin + 1000]
            casts = (f"CAST(x'{each.hex()}' AS {type_name})" for each in part)
            cursor.execute(f"SELECT {', '.join(casts)}")
            assert [convert(each) for each in part] == list(cursor.fetchone())
            # The binary log leaves out zeros at the end.
            assert [convert(each.rstrip(b"\0")) for each in part] == [convert(e) for e in part]
