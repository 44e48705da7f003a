"""Statements in the binary log: what one means for rows that have no events of their own.

The server writes statements that define tables as text. Some of them change rows without rows
events: ALTER TABLE fills new columns, DROP PARTITION deletes, RENAME TABLE puts another table in
place. ``parse_statement`` names the tables, and whether their rows have to be read again. It is
careful in one direction only: what it does not know counts as a change.

Must not know events, the catalog, or which tables are captured.

Source: MariaDB documentation, "ALTER TABLE"; MySQL manual, "ALTER TABLE Statement" and "ALTER TABLE
Partition Operations".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

Action = Literal["changed", "look", "dropped", "created", "created_if_missing"]
"""The effect of a statement on a table:

- ``changed``: rows have possibly changed without events;
- ``look``: its definition has perhaps changed, its rows have not;
- ``dropped``: it is gone under this name;
- ``created``, ``created_if_missing``: it is there, and possibly was not before.
"""


class Effect(NamedTuple):
    """The effect of a statement on one table.

    Attributes:
        database: its database; empty: the default one of the session.
        name: the table; empty: all tables of the database.
        why: what has changed its rows, for people.
    """

    action: Action
    database: str
    name: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Statement:
    """The meaning of a statement.

    Attributes:
        kind: ``begin``, ``commit``, ``rollback``, ``savepoint``, ``rollback_to``, ``truncate``,
            ``change`` (a change of rows that was logged as a statement), ``xa_start``, ``xa`` or
            ``other``. ``begin`` is also a CREATE TABLE whose rows follow in the same transaction.
        database: of the truncated table, if the statement names it.
        name: of the table or savepoint.
        effects: what it does with tables, in order.
        unread: whether it defines tables in a way that was not understood.
    """

    kind: str
    database: str = ""
    name: str = ""
    effects: tuple[Effect, ...] = ()
    unread: bool = False


_BEGIN, _COMMIT = Statement("begin"), Statement("commit")
_CHANGES = frozenset({"INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD"})
_TOKEN = re.compile(
    r"""
    (?P<skip>\s+ | --(?=\s|$)[^\n]* | \#[^\n]* | /\*(?!!|M!)(?:.*?\*/|.*) | /\*M?!\d* | \*/)
    | `(?P<tick>(?:[^`]|``)*)`
    | "(?P<quote>(?:[^"\\]|""|\\.)*)"
    | '(?P<text>(?:[^'\\]|''|\\.)*)'
    | (?P<word>[\w$]+)
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
"""Comments that the server executes are read as if they were none."""
_ATOMIC = re.compile(r"\bSTART\s+TRANSACTION\s*;?\s*$", re.IGNORECASE)
"""The end of a CREATE TABLE of MySQL whose rows follow in the same transaction."""
_TAIL = 200


class _Token(NamedTuple):
    """A word in upper case, a quoted name, a text, or a sign."""

    kind: str
    text: str
    name: str


def _tokens(text: str) -> Iterator[_Token]:
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or ""
        if kind == "skip":
            continue
        found = match[kind]
        if kind == "tick":
            yield _Token("name", "", found.replace("``", "`"))
        elif kind == "quote":
            yield _Token("name", "", found.replace('""', '"'))
        elif kind == "word":
            yield _Token("word", found.upper(), found)
        else:
            yield _Token(kind, found, "")


class _UnreadError(Exception):
    """The statement has another form than expected."""


class _Reader:
    """Reads the tokens of a statement, one after the other."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)  # a long statement is not read to its end without need
        self._next: list[_Token] = []

    @property
    def is_at_end(self) -> bool:
        return self.word() in ("", ";") and not self._is_name()

    def rest(self) -> list[_Token]:
        """Take all other tokens."""
        found = [*self._next, *self._tokens]
        self._next.clear()
        while found and found[-1].text == ";":
            found.pop()
        return found

    def word(self) -> str:
        """Return the next token's text without taking it: a word in upper case, or a sign."""
        self._look(1)
        return self._next[0].text if self._next else ""

    def take(self, *words: str) -> bool:
        """Take these words, if they are the next ones."""
        self._look(len(words))
        if [each.text for each in self._next[: len(words)]] != list(words):
            return False
        del self._next[: len(words)]
        return True

    def any_of(self, *words: str) -> bool:
        """Take one of these words, if one is the next."""
        return any(self.take(word) for word in words)

    def skip_behind(self, word: str) -> None:
        """Take all tokens up to a word that is in no parentheses, and the word."""
        depth = 0
        while True:
            self._look(1)
            if not self._next:
                raise _UnreadError
            token = self._next.pop(0)
            depth += (token.text == "(") - (token.text == ")")
            if (token.kind, token.text, depth) == ("word", word, 0):
                return

    def name(self) -> str:
        """Take a name."""
        if not self._is_name():
            raise _UnreadError
        return self._next.pop(0).name

    def _is_name(self) -> bool:
        self._look(1)
        return bool(self._next) and self._next[0].kind in ("name", "word")

    def _look(self, count: int) -> None:
        while len(self._next) < count and (token := next(self._tokens, None)) is not None:
            self._next.append(token)

    def table(self) -> tuple[str, str]:
        """Take the name of a table; return database and name."""
        first = self.name()
        return (first, self.name()) if self.take(".") else ("", first)


def parse_statement(text: str) -> Statement:
    """Return the meaning of a statement."""
    if text == "BEGIN":  # the usual ones
        return _BEGIN
    if text == "COMMIT":
        return _COMMIT
    try:
        return _parse(_Reader(text), text)
    except _UnreadError:
        return Statement("other", unread=True)


def _parse(reader: _Reader, text: str) -> Statement:
    while reader.take("SET", "STATEMENT"):  # of MariaDB: variables for one statement
        reader.skip_behind("FOR")
    first = reader.word()
    if not reader.take(first):
        return Statement("other")
    match first:
        case "COMMIT" | "BEGIN":
            return Statement(first.lower())
        case "SAVEPOINT":
            return Statement("savepoint", name=reader.name())
        case "ROLLBACK":
            reader.take("WORK")
            if not reader.take("TO"):
                return Statement("rollback")
            reader.take("SAVEPOINT")
            return Statement("rollback_to", name=reader.name())
        case "XA":
            return Statement("xa_start" if reader.any_of("START", "BEGIN") else "xa")
        case "TRUNCATE":
            reader.take("TABLE")
            return Statement("truncate", *reader.table())
        case "DELETE" if reader.take("FROM"):
            # A server that has lost the rows of a MEMORY table writes this.
            table = reader.table()
            return Statement("truncate", *table) if reader.is_at_end else Statement("change")
        case _ if first in _CHANGES:
            return Statement("change")
        case "CREATE":
            return _create(reader, text)
        case _:
            return Statement("other", effects=tuple(_effects(first, reader)))


def _create(reader: _Reader, text: str) -> Statement:
    reader.take("OR", "REPLACE")
    if not reader.take("TABLE"):  # a temporary one is not captured
        return Statement("other")
    action: Action = "created_if_missing" if reader.take("IF", "NOT", "EXISTS") else "created"
    effects = (Effect(action, *reader.table(), "it was created again"),)
    return Statement("begin" if _ATOMIC.search(text[-_TAIL:]) else "other", effects=effects)


def _effects(first: str, reader: _Reader) -> Iterator[Effect]:
    match first:
        case "ALTER":
            reader.take("ONLINE")
            is_ignoring = reader.take("IGNORE")  # it deletes rows that have a key of another one
            if reader.take("TABLE"):
                yield from _alter(reader, is_ignoring)
        case "RENAME":
            if reader.any_of("TABLE", "TABLES"):
                yield from _rename(reader)
        case "DROP":
            yield from _drop(reader)
        case "REPAIR":
            if reader.any_of("TABLE", "TABLES"):
                for table in _listed(reader):
                    yield Effect("changed", *table, "REPAIR TABLE can have lost rows")


def _listed(reader: _Reader) -> Iterator[tuple[str, str]]:
    yield reader.table()
    while reader.take(","):
        yield reader.table()


def _rename(reader: _Reader) -> Iterator[Effect]:
    reader.take("IF", "EXISTS")
    while True:
        old = reader.table()
        _skip_wait(reader)
        if not reader.take("TO"):
            raise _UnreadError
        new = reader.table()
        yield Effect("dropped", *old)
        yield Effect("changed", *new, "another table was renamed to it")
        if not reader.take(","):
            return


def _skip_wait(reader: _Reader) -> None:
    if reader.take("WAIT"):
        reader.name()
    else:
        reader.take("NOWAIT")


def _drop(reader: _Reader) -> Iterator[Effect]:
    if reader.any_of("TABLE", "TABLES"):
        reader.take("IF", "EXISTS")
        for table in _listed(reader):
            yield Effect("dropped", *table)
    elif reader.any_of("DATABASE", "SCHEMA"):
        reader.take("IF", "EXISTS")
        yield Effect("dropped", reader.name(), "")
    elif reader.take("INDEX"):
        reader.take("IF", "EXISTS")
        index = reader.name()
        if not reader.take("ON"):
            raise _UnreadError
        if index.upper() == "PRIMARY":
            yield Effect("changed", *reader.table(), "DROP INDEX changed its key")


# --- ALTER TABLE ------------------------------------------------------------------------------

_KEEPS_ROWS = frozenset(
    {"REORGANIZE", "COALESCE", "REBUILD", "ANALYZE", "OPTIMIZE", "CHECK", "ADD", "SECONDARY_LOAD"}
    | {"SECONDARY_UNLOAD"}
)
"""Operations on partitions that move rows, and neither remove nor add one."""

_KEPT = {
    "ADD": {"INDEX", "KEY", "UNIQUE", "FULLTEXT", "SPATIAL", "CONSTRAINT", "FOREIGN", "CHECK"},
    "DROP": {"INDEX", "KEY", "CONSTRAINT", "FOREIGN", "CHECK"},
    "ALTER": {"INDEX", "KEY", "CONSTRAINT", "CHECK"},
    "RENAME": {"INDEX", "KEY"},
    "DEFAULT": {"CHARSET", "CHARACTER", "COLLATE"},
    "ENABLE": {"KEYS"},
    "DISABLE": {"KEYS"},
    "REMOVE": {"PARTITIONING"},
    "PARTITION": {"BY"},
    "ORDER": {"BY"},
    "CHARACTER": {"SET"},
    "WITH": {"VALIDATION"},
    "WITHOUT": {"VALIDATION"},
}
"""First and second word of clauses after which the rows are the same."""

_OPTIONS = frozenset(
    {"ALGORITHM", "LOCK", "FORCE", "COMMENT", "AUTO_INCREMENT", "ENGINE", "ROW_FORMAT", "CHARSET"}
    | {"COLLATE", "STATS_AUTO_RECALC", "STATS_PERSISTENT", "STATS_SAMPLE_PAGES", "MAX_ROWS"}
    | {"MIN_ROWS", "AVG_ROW_LENGTH", "CHECKSUM", "TABLE_CHECKSUM", "PACK_KEYS", "DELAY_KEY_WRITE"}
    | {"KEY_BLOCK_SIZE", "COMPRESSION", "ENCRYPTION", "ENCRYPTED", "ENCRYPTION_KEY_ID"}
    | {"PAGE_CHECKSUM", "PAGE_COMPRESSED", "PAGE_COMPRESSION_LEVEL", "TRANSACTIONAL"}
    | {"AUTOEXTEND_SIZE", "TABLESPACE", "ENGINE_ATTRIBUTE", "SECONDARY_ENGINE_ATTRIBUTE"}
    | {"SECONDARY_ENGINE", "SECONDARY_LOAD", "SECONDARY_UNLOAD", "NOWAIT"}
)
_OF_COLUMNS = frozenset({"DEFAULT", "VISIBLE", "INVISIBLE"})
"""``ALTER COLUMN … SET DEFAULT`` concerns later rows only."""
_SECOND_WORDS = frozenset({"COLUMN", "PRIMARY", "TO", "TABLESPACE"})


def _alter(reader: _Reader, is_ignoring: bool) -> Iterator[Effect]:
    reader.take("IF", "EXISTS")
    table = reader.table()
    _skip_wait(reader)
    clauses = list(_clauses(reader.rest()))
    first = [each.text for each in clauses[0][:2]] if clauses else []
    if len(first) == 2 and first[1] in ("PARTITION", "TABLE") and first[0] != "ADD":
        yield from _alter_partitions(table, clauses[0])
        return
    changing = [each for each in clauses if not _keeps_rows(each)]
    renamed = [each for each in changing if _is_rename(each)]
    if renamed:
        yield Effect("dropped", *table)
        table = _renamed(renamed[-1])
    if is_ignoring:
        yield Effect("changed", *table, "ALTER IGNORE TABLE can have deleted rows")
    elif changing:
        words = [each.text for each in changing[0][:2]]
        clause = " ".join(words if words[-1] in _SECOND_WORDS else words[:1])
        yield Effect("changed", *table, f"ALTER TABLE {clause} changed it")
    else:
        yield Effect("look", *table)


def _clauses(tokens: Sequence[_Token]) -> Iterator[list[_Token]]:
    """Yield the parts between commas that are in no parentheses."""
    depth = 0
    part: list[_Token] = []
    for each in tokens:
        depth += (each.text == "(") - (each.text == ")")
        if each.text == "," and not depth:
            yield part
            part = []
        else:
            part.append(each)
    if part:
        yield part


def _alter_partitions(table: tuple[str, str], clause: Sequence[_Token]) -> Iterator[Effect]:
    words = [each.text for each in clause]
    if words[0] in _KEEPS_ROWS:
        yield Effect("look", *table)
        return
    why = f"{words[0]} {words[1]} changed its rows"
    yield Effect("changed", *table, why)
    if words[0] in ("EXCHANGE", "CONVERT"):
        at = words.index("TABLE") + 1 if "TABLE" in words else len(words)
        yield Effect("changed", *_table_at(clause[at:]), why)


def _table_at(tokens: Sequence[_Token]) -> tuple[str, str]:
    if not tokens or not tokens[0].name:
        raise _UnreadError
    if len(tokens) > 2 and tokens[1].text == "." and tokens[2].name:
        return tokens[0].name, tokens[2].name
    return "", tokens[0].name


def _keeps_rows(clause: Sequence[_Token]) -> bool:
    """Return whether the rows and their key are the same after a clause of ALTER TABLE."""
    words = [each.text for each in clause if each.kind == "word"]
    first, second = [*words, "", ""][:2]
    if any(each.name.upper() == "PRIMARY" for each in clause) or "UNION" in words:
        return False
    if "ENGINE" in words and "INNODB" not in [each.name.upper() for each in clause]:
        return False  # BLACKHOLE, for example, has no rows
    if first in _OPTIONS or second in _KEPT.get(first, ()):
        return True
    if first == "ADD" and second == "PARTITION":
        return True
    return first == "ALTER" and not _OF_COLUMNS.isdisjoint(words)


def _is_rename(clause: Sequence[_Token]) -> bool:
    words = [each.text for each in clause]
    return words[0] == "RENAME" and words[1:2] not in (["COLUMN"], ["INDEX"], ["KEY"])


def _renamed(clause: Sequence[_Token]) -> tuple[str, str]:
    return _table_at(clause[2:] if clause[1].text in ("TO", "AS", "=") else clause[1:])
