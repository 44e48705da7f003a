"""Positions of MySQL: sets of transaction ids, tags, purged files, other servers, privileges."""

from __future__ import annotations

import random
from typing import Any

import pymysql
import pytest

from tests.connect.cdc.binlog_servers import Execute, MakeSource, poll_all, resumed
from tests.support.mysql import PASSWORD, USER, MySql
from tidemill.connect.base.secrets import resolve
from tidemill.connect.cdc.contract import Capture
from tidemill.connect.cdc.errors import (
    PermanentCaptureError,
    PositionLostError,
    SetupError,
)
from tidemill.connect.cdc.mysql import MySqlSource
from tidemill.connect.cdc.mysql.position import GtidSet, MySqlPosition

A = "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"
B = "bbbbbbbb-bbbb-bbbb-bbbb-bbbbbbbbbbbb"


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("", ""),
        (f"{A}:1-5", f"{A}:1-5"),
        (f"{A.upper()}:1-5:7:6", f"{A}:1-7"),
        (f"{B}:3,\n{A}:1:2-3", f"{A}:1-3,{B}:3"),
        (f"{A}:1-3:Tag:4:9-10:other:1", f"{A}:1-3,{A}:other:1,{A}:tag:4:9-10"),
    ],
)
def test_sets_are_parsed_and_written(text: str, written: str) -> None:
    assert str(GtidSet.parse(text)) == written


@pytest.mark.parametrize("text", ["x:1", f"{A}:x y", f"{A}:1-", f"{A}:-1", "1-2-3", f"{A}:9tag:1"])
def test_invalid_sets_are_refused(text: str) -> None:
    with pytest.raises(PermanentCaptureError):
        GtidSet.parse(text)


def test_sets_grow_and_contain_each_other() -> None:
    ids = GtidSet.parse(f"{A}:1-3:7")
    grown = ids.with_id(f"{A}:8").with_id(f"{A}:5").with_id(f"{B}:tag:1").with_id(f"{A}:2")
    assert str(grown) == f"{A}:1-3:5:7-8,{B}:tag:1"
    assert grown.contains(ids)
    assert not ids.contains(grown)
    assert grown.contains(GtidSet.parse(""))
    assert not grown.contains(GtidSet.parse(f"{A}:3-5"))


def test_random_sets_agree_with_the_server(server: MySql) -> None:
    rng = random.Random(7)

    def some() -> GtidSet:
        ids = GtidSet({})
        for _ in range(rng.randrange(30)):
            tag = rng.choice(["", "", "x:", "y_1:"])
            ids = ids.with_id(f"{rng.choice([A, B])}:{tag}{rng.randint(1, 30)}")
        return ids

    with server.connect() as connection, connection.cursor() as cursor:
        for _ in range(200):
            one, two = some(), some()
            cursor.execute(
                "SELECT GTID_SUBSET(%s, %s), GTID_SUBTRACT(%s, '')", (str(one), str(two), str(one))
            )
            is_subset, written = cursor.fetchone()
            assert two.contains(one) == bool(is_subset)
            assert str(GtidSet.parse(written)) == str(one)


def test_positions_are_stored_and_compared_by_their_place() -> None:
    at = MySqlPosition(GtidSet.parse(f"{A}:1-3"), A, "binlog.000009", 500)
    assert MySqlPosition.parse(at.stored()) == at
    later = at.after(f"{A}:4", "binlog.000010", 200)
    assert later.gtid == f"{A}:1-4"
    assert later.reached(at)
    assert not at.reached(later)
    assert not MySqlPosition(at.ids, A).reached(at)
    assert later.within(7).stored()["skip"] == 7


@pytest.mark.parametrize("position", [{}, {"gtid": "0-1-2", "skip": 0}, {"gtid": 5}])
def test_wrong_positions_are_refused(position: dict[str, int | str]) -> None:
    with pytest.raises(PermanentCaptureError):
        MySqlPosition.parse(position)


def test_transactions_with_tags_are_captured_and_the_position_has_them(
    source: MySqlSource, execute: Execute, server: MySql
) -> None:
    execute("CREATE TABLE a (id INT PRIMARY KEY)")
    position = source.start(None)
    try:
        execute("SET SESSION gtid_next = 'AUTOMATIC:my_tag'")
    except pymysql.err.MySQLError:
        pytest.skip("the server has no tags: it is older than 8.3")
    execute("INSERT INTO a VALUES (1)", "INSERT INTO a VALUES (2)")
    execute("SET SESSION gtid_next = 'AUTOMATIC'", "INSERT INTO a VALUES (3)")
    rows, position = resumed(source, position, 3)
    assert [row["id"] for row in rows] == [1, 2, 3]
    assert ":my_tag:1-2" in str(position["gtid"])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"gtid": f"{A}:1-5"}, "lacks transactions"),
        ({"gtid": "", "server_uuid": B}, "another server"),
        ({"skip": 3, "server_uuid": B}, "another server"),
    ],
)
def test_a_position_of_another_history_is_lost(
    source: MySqlSource, execute: Execute, monkeypatch: pytest.MonkeyPatch,
    changed: dict[str, Any], message: str
) -> None:  # fmt: skip
    monkeypatch.setattr("tidemill.connect.cdc.mysql.dialect._COMMIT_WAIT_S", 1)
    execute("CREATE TABLE a (id INT PRIMARY KEY)")
    position = source.start(None)
    with pytest.raises(PositionLostError, match=message):
        source.start({**position, **changed})


def test_a_server_that_took_over_continues_if_it_has_the_transactions(
    source: MySqlSource, execute: Execute
) -> None:
    execute("CREATE TABLE a (id INT PRIMARY KEY)")
    position = source.start(None)
    execute("INSERT INTO a VALUES (1)")
    source.start({**position, "server_uuid": B, "file": "binlog.000999", "pos": 5})
    batches: list[Any] = []
    assert poll_all(source, 1, batches=batches)[0].after == {"id": 1}
    assert batches[0].position["server_uuid"] == position["server_uuid"]


def test_check_names_what_is_missing_and_the_statement_that_gives_it(
    make_source: MakeSource, shop: str, execute: Execute
) -> None:
    user = f"u_{shop}"
    execute(
        "CREATE TABLE nokey (v INT)",
        "CREATE TABLE old (id INT PRIMARY KEY) ENGINE=MyISAM",
        f"CREATE USER {user}@localhost IDENTIFIED BY 'pw'",
        f"GRANT SELECT ON {shop}.* TO {user}@localhost",
    )
    settings = {
        "binlog_row_image": ("MINIMAL", "FULL"),
        "binlog_row_metadata": ("MINIMAL", "FULL"),
        "binlog_format": ("MIXED", "ROW"),
        "binlog_row_value_options": ("PARTIAL_JSON", ""),
        "gtid_mode": ("ON_PERMISSIVE", "ON"),
    }
    execute(*[f"SET GLOBAL {name} = '{bad}'" for name, (bad, _) in settings.items()])
    try:
        source = make_source(user=user, password="pw")
        found = source.check()
        with pytest.raises(SetupError, match="not ready"):
            source.start(None)
    finally:
        execute(*[f"SET GLOBAL {name} = '{good}'" for name, (_, good) in settings.items()])
    errors = [each for each in found if each.severity == "error"]
    fixes = [each.fix for each in errors]
    assert f"GRANT REPLICATION SLAVE ON *.* TO '{user}'@'localhost'" in fixes
    assert f"GRANT REPLICATION CLIENT ON *.* TO '{user}'@'localhost'" in fixes
    for name, (_, good) in settings.items():
        assert any(f"SET PERSIST {name} = " in each and good in each for each in fixes), name
    assert any("nokey" in each.text for each in errors)
    assert any("MyISAM" in each.text for each in found if each.severity == "warning")
    execute(f"GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {user}@localhost")
    granted = make_source(f"{shop}.old", user=user, password="pw")
    assert [each for each in granted.check() if each.severity == "error"] == []
    granted.start(None)
    execute(f"DROP USER {user}@localhost")


def test_privileges_of_a_role_count(make_source: MakeSource, shop: str, execute: Execute) -> None:
    user = f"u_{shop}"
    execute(
        "CREATE TABLE a (id INT PRIMARY KEY)",
        f"CREATE ROLE r_{shop}",
        f"GRANT REPLICATION SLAVE, REPLICATION CLIENT, SELECT ON *.* TO r_{shop}",
        f"CREATE USER {user}@localhost IDENTIFIED BY 'pw' DEFAULT ROLE r_{shop}",
    )
    source = make_source(user=user, password="pw")
    assert [each for each in source.check() if each.severity == "error"] == []
    execute(f"DROP USER {user}@localhost", f"DROP ROLE r_{shop}")


def test_a_login_over_tcp_uses_tls_or_says_what_it_needs(
    server: MySql, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = {"host": "127.0.0.1", "port": server.port, "user": USER, "password": PASSWORD}
    monkeypatch.setenv("MYSQL_CA", str(server.data / "ca.pem"))
    tls = resolve({"ssl_ca": "${env:MYSQL_CA}", "ssl_verify": False})
    secure = MySqlSource(Capture("s", database={**section, **tls}))
    secure.tables()
    secure.close()
    with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("FLUSH PRIVILEGES")  # the server forgets who has logged in
    monkeypatch.setattr("pymysql._auth._have_cryptography", False)
    monkeypatch.setattr("pymysql.connections.SSL_ENABLED", False)
    with pytest.raises(SetupError, match="cryptography") as caught:
        MySqlSource(Capture("s", database=section)).tables()
    assert "ssl_ca" in (caught.value.hint or "")
    assert PASSWORD not in str(caught.value)
