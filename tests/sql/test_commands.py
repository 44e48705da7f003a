"""Statements that are taken out of a text, line by line."""

from __future__ import annotations

from typing import Any

import pytest

duckdb = pytest.importorskip("duckdb", minversion="1.5", reason="tidemill[sql] needs it")

from tidemill.sql import commands  # noqa: E402
from tidemill.sql.commands import Splitter  # noqa: E402
from tidemill.sql.errors import SqlError  # noqa: E402


def split(text: str) -> list[str]:
    """Return the statements of a text, and what is left."""
    splitter, lines = Splitter(), text.encode().splitlines(keepends=True)
    found = [each for line in lines for each in splitter.add(line)]
    return [*found, splitter.rest]


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 'a;\n;b'';\n' || ';';",
        "SELECT E'a\\';\n\\\n;\\\\';",
        "SELECT 'a\\\n\\';",
        "SELECT $$a;\n';\n$$;",
        "SELECT $tag$;\n$$;\n$other$;\n$tag$;",
        "SELECT $é$;\n$é$, ';é';",
        'SELECT 1 AS "a;\n"";\n";',
        'SELECT 1 AS "a\n";',
        "SELECT 1 -- a;\n+ 2 --'\n;",
        "SELECT 1 +-- a;\n2;",
        "/* a;\n;\n*/ SELECT 1;",
        "/* a; /* b;\n;*/ ;\n/*/*\n;\n*/*/*/ SELECT /*/;\n*/ 1;",
        "-- /*\nSELECT 1;",
        "SELECT '/*', \"--\", $$'$$;",
        "SELECT note'a' FROM t;",
        "SELECT 'é;\n';",
        "SELECT $1, a$$;",
        "SELECT\r\n'a;\r\n'\r\n;",
    ],
)
def test_a_semicolon_in_a_string_a_name_or_a_comment_ends_no_statement(statement: str) -> None:
    text = f"SELECT 0; {statement} SELECT 'last'\n"
    assert split(text) == ["SELECT 0;", statement, "SELECT 'last'"]


def test_comments_alone_are_no_statement() -> None:
    assert split("; ;\n/* a;\n*/ -- b;\n;;\n-- c\n/* d */\n") == [""]


@pytest.mark.parametrize("text", ["SELECT 'a;\nb;", "/* a;\nSELECT 1;", 'SELECT "a;', "$$\n$a$;"])
def test_what_has_not_ended_is_left(text: str) -> None:
    assert split(f"SELECT 1;{text}\n") == ["SELECT 1;", text]


def test_nothing_is_left_of_a_statement_that_is_forgotten() -> None:
    splitter = Splitter()
    splitter.add(b"SELECT 'a;\n")
    assert splitter.has_begun
    splitter.clear()
    assert not splitter.has_begun
    assert splitter.add(b"SELECT 1;\n") == ["SELECT 1;"]


@pytest.mark.parametrize(
    ("first", "line", "last"),
    [
        ("SELECT * FROM (VALUES ('')\n", ", ('it''s;')\n", ");\n"),
        ("SELECT '\n", "a;''\n", "';\n"),
        ("/*\n", "a;\n", "*/ SELECT 1;\n"),
        ("SELECT $a$\n", "$$;\n", "$a$;\n"),
    ],
)
def test_each_line_of_a_statement_is_parsed_by_itself(
    monkeypatch: pytest.MonkeyPatch, first: str, line: str, last: str
) -> None:
    taken = []
    tokenize = duckdb.tokenize

    def counted(text: str) -> Any:
        taken.append(len(text))
        return tokenize(text)

    monkeypatch.setattr(duckdb, "tokenize", counted)
    text = first + line * 1000 + last
    assert split(text) == [text.strip(), ""]
    assert max(taken) < 50  # and not all lines again
    assert len(taken) < 10 * 1000


def test_a_statement_without_an_end_is_an_error_before_memory_is_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(commands, "LONGEST", 1000)
    splitter = Splitter()
    for _ in range(3):  # each statement counts for itself
        assert splitter.add(b"SELECT '%s';\n" % (b"a" * 900))
    splitter.add(b"-- the next line begins a statement\n")
    splitter.add(b"SELECT 1; SELECT\n")
    with pytest.raises(SqlError, match="line 5 has more than 1,000 bytes"):
        splitter.add(b"1," * 500)


def test_what_is_not_utf8_is_an_error_with_its_line() -> None:
    splitter = Splitter()
    assert splitter.add("\ufeffSELECT 'é';\n".encode()) == ["SELECT 'é';"]
    with pytest.raises(SqlError, match="line 2 is not UTF-8"):
        splitter.add("SELECT 'é';\n".encode("latin-1"))
