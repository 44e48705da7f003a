"""Take statements apart that are not queries: INSERT INTO a topic, COPY to a file, views, EXPLAIN.

DuckDB knows no topics, so what is before the query of such a statement is parsed here, with
DuckDB's own tokens; the query is left to DuckDB. Must not know: connections, clients.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import duckdb

from tidemill.sql.errors import SqlError, StatementRefusedError

LONGEST = 16 << 20
"""The most bytes of a statement that ``Splitter`` takes."""
_QUERY_WORDS = {"select", "with", "from", "values", "("}
_NAMED = "use letters, digits, '_' and '-'"
_INSERT_FORM = "Write INSERT INTO topic [(columns)] SELECT ..."
_COPY_FORM = "Write COPY topic TO 'file' or COPY (SELECT ...) TO 'file'."
_VIEW_FORM = "Write CREATE [OR REPLACE] MATERIALIZED VIEW name AS SELECT ..."
_DROP_FORM = "Write DROP MATERIALIZED VIEW name."


@dataclass(frozen=True, slots=True)
class Insert:
    """``INSERT INTO topic (columns) query``.

    Attributes:
        columns: names for the columns of the query; empty for its own.
    """

    topic: str
    columns: tuple[str, ...]
    query: str


@dataclass(frozen=True, slots=True)
class Copy:
    """``COPY (query) TO 'path' options``.

    Attributes:
        options: as they are written, e.g. ``(FORMAT parquet)``.
    """

    query: str
    path: str
    options: str


@dataclass(frozen=True, slots=True)
class CreateView:
    """``CREATE MATERIALIZED VIEW name AS query``."""

    name: str
    query: str
    replaces: bool


@dataclass(frozen=True, slots=True)
class DropView:
    """``DROP MATERIALIZED VIEW name``."""

    name: str


@dataclass(frozen=True, slots=True)
class Explain:
    """``EXPLAIN statement``."""

    statement: str


@dataclass(frozen=True, slots=True)
class ShowTables:
    """``SHOW TABLES``."""


Command = Insert | Copy | CreateView | DropView | Explain | ShowTables


def parse(statement: str) -> Command | None:
    """Return what a statement does besides reading; None if it is none of these.

    Raises:
        SqlError: it begins as one of these, and is malformed; or it is not valid text.
    """
    tokens = _Tokens(statement)
    if tokens.take("insert"):
        return _insert(tokens)
    if tokens.take("copy"):
        return _copy(tokens)
    if tokens.take("create"):
        replaces = tokens.take("or") and tokens.take("replace")
        return _create(tokens, replaces) if tokens.take("materialized") else None
    if tokens.take("drop") and tokens.take("materialized"):
        tokens.need("view", _DROP_FORM)
        name = tokens.name(_DROP_FORM)
        tokens.end(_DROP_FORM)
        return DropView(name)
    if tokens.word == "explain" and tokens.following != "analyze":
        tokens.take("explain")
        return Explain(tokens.rest())
    return (
        ShowTables()
        if tokens.are("show", "tables") or tokens.are("show", "all", "tables")
        else None
    )


class Splitter:
    """Takes the statements out of a text that comes line by line. Each ends with ``;``.

    A ``;`` in a string, a name or a comment ends nothing. Each line is parsed a single time,
    however long its statement is.
    """

    def __init__(self) -> None:
        self._line = 0
        self.clear()

    def clear(self) -> None:
        """Forget the statement that has begun."""
        self._pieces: list[str] = []
        self._size = self._begin = 0
        self._has_words = False
        self._opening: str | None = ""

    @property
    def has_begun(self) -> bool:
        """Whether the text ends amid a statement or a comment."""
        return self._has_words or self._opening != ""

    @property
    def rest(self) -> str:
        """The statement or comment that has begun; empty if none has."""
        return "".join(self._pieces).strip() if self.has_begun else ""

    def add(self, line: bytes) -> list[str]:
        """Take a line with its end, and return the statements that end in it.

        Raises:
            SqlError: its statement has more bytes than ``LONGEST``, or it is not UTF-8.
        """
        self._line += 1
        if not self.has_begun:
            self._begin = self._line
        self._size += len(line)
        if self._size > LONGEST:
            raise SqlError(
                f"the statement that begins in line {self._begin} has more than {LONGEST:,} bytes",
                hint="Is its ';' missing, or the end of a string or a comment?",
            )
        try:
            text = line.decode("utf-8-sig" if self._line == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise SqlError(f"line {self._line} is not UTF-8: {error.reason}") from error
        return self._add(text)

    def _add(self, line: str) -> list[str]:
        before = f"{self._opening}\n" if self._opening else ""
        tokens: list[Any] = []
        if self._opening is not None:
            tokens, self._opening = _tokens(before + line)
        encoded, begin = (before + line).encode(), len(before.encode())  # DuckDB counts bytes
        found = []
        for at, kind in tokens:
            if kind.name == "operator" and encoded[at : at + 1] == b";":
                if self._has_words:
                    end = encoded[begin : at + 1].decode()
                    found.append("".join([*self._pieces, end]).strip())
                self._pieces, self._has_words, begin = [], False, at + 1
                self._size, self._begin = len(encoded) - begin, self._line
            elif kind.name != "comment":
                self._has_words = True
        # Some versions of DuckDB have no token for what has not ended.
        self._has_words |= self._opening is None or self._opening[:1] not in ("", "/")
        self._pieces.append(encoded[begin:].decode())
        return found


def _tokens(text: str) -> tuple[list[Any], str | None]:
    """Return DuckDB's tokens of lines, and what begins the one that has not ended.

    DuckDB says of no token where it ends, and its versions differ in what they make of one that
    does not. So a ``;`` is added, which is a token of its own only if it is in no other.

    Returns:
        The tokens, and ``'``, ``E'``, ``"``, the tag of a string in dollars, or ``/*`` for each
        comment that is open; empty if all have ended; None if DuckDB does not know the text.
    """

    def closed(end: str) -> list[Any] | None:
        probe = f"{text}\n{end};"
        found = duckdb.tokenize(probe)
        is_closed = found and found[-1][0] == len(probe.encode()) - 1
        return found[:-1] if is_closed else None

    if (tokens := closed("")) is not None:
        return tokens, ""
    comments = ("/*" * depth for depth in range(1, text.count("/*") + 1))  # the first that fits
    tags = re.findall(r"\$\w*\$", text)
    for opening in ("'", '"', *comments, *dict.fromkeys(reversed(tags))):
        ending = opening[::-1] if opening[0] == "/" else opening
        if (tokens := closed(ending)) is not None:
            escapes = opening == "'" and closed("\\'") is None
            return tokens, "E'" if escapes else opening
    return duckdb.tokenize(text), None


def _insert(tokens: _Tokens) -> Insert:
    tokens.need("into", _INSERT_FORM)
    topic, columns = tokens.name(_INSERT_FORM), []
    if tokens.word == "(" and tokens.following not in _QUERY_WORDS:
        tokens.take("(")
        while True:
            columns.append(tokens.name(_INSERT_FORM))
            if tokens.take(")"):
                break
            tokens.need(",", _INSERT_FORM)
    if tokens.word not in _QUERY_WORDS:
        raise SqlError("INSERT has no query", hint=_INSERT_FORM)
    return Insert(topic, tuple(columns), tokens.rest())


def _copy(tokens: _Tokens) -> Copy:
    if tokens.take("("):
        query = tokens.until_closed(_COPY_FORM)
    else:
        query = f"SELECT * FROM {tokens.quoted_name(_COPY_FORM)}"
    tokens.need("to", _COPY_FORM)
    if tokens.word[:1] != "'":
        raise SqlError("COPY names no file", hint=_COPY_FORM)
    path = tokens.text()[1:-1].replace("''", "'")
    return Copy(query, path, tokens.rest())


def _create(tokens: _Tokens, replaces: bool) -> CreateView:
    tokens.need("view", _VIEW_FORM)
    name = tokens.name(_VIEW_FORM)
    if not all(each.isalnum() or each in "_-" for each in name) or not name.isascii():
        raise SqlError(f"invalid view name {name!r}: {_NAMED}")
    tokens.need("as", _VIEW_FORM)
    return CreateView(name, tokens.rest(), replaces)


class _Tokens:
    """The tokens of a statement, without comments, and a place among them."""

    def __init__(self, statement: str) -> None:
        try:
            self._text = text = statement.encode()  # DuckDB counts bytes
        except UnicodeEncodeError as error:
            raise SqlError(f"the statement is not valid text: {error}") from error
        found = duckdb.tokenize(statement)
        starts = [start for start, _ in found]
        ends = [*starts[1:], len(text)][: len(starts)]
        self._spans = [
            (start, start + len(text[start:end].rstrip()))
            for (start, kind), end in zip(found, ends, strict=True)
            if kind.name != "comment"
        ]
        while self._spans and self._word(len(self._spans) - 1) == ";":
            self._spans.pop()
        self._at = 0

    def _slice(self, start: int, end: int) -> str:
        return self._text[start:end].decode()

    def _word(self, at: int) -> str:
        return self._slice(*self._spans[at]).lower() if at < len(self._spans) else ""

    @property
    def word(self) -> str:
        """The next token in lower case; empty at the end."""
        return self._word(self._at)

    @property
    def following(self) -> str:
        """The token behind the next one."""
        return self._word(self._at + 1)

    def take(self, word: str) -> bool:
        """Move past the next token if it is this one, and return whether it is."""
        found = self.word == word
        self._at += found
        return found

    def are(self, *words: str) -> bool:
        """Return whether these are all tokens that are left."""
        return tuple(map(self._word, range(self._at, len(self._spans)))) == words

    def need(self, word: str, form: str) -> None:
        """Move past the next token, which must be this one.

        Raises:
            SqlError: it is another one.
        """
        if not self.take(word):
            raise SqlError(f"expected {word.upper()}, found {self.word or 'the end'}", hint=form)

    def text(self) -> str:
        """Return the next token as it is written, and move past it."""
        self._at += 1
        return self._slice(*self._spans[self._at - 1])

    def quoted_name(self, form: str) -> str:
        """Return the next name as it is written, and move past it.

        Raises:
            SqlError: the next token is not a name.
        """
        word = self.word
        if not word or not (word[0].isalnum() or word[0] in '"_'):
            raise SqlError(f"expected a name, found {word or 'the end'}", hint=form)
        if self.following == ".":
            hint = "A name with a dot is written in double quotes."
            raise StatementRefusedError("tables have no schema", hint=hint)
        return self.text()

    def name(self, form: str) -> str:
        """Return the next name without its quotes, and move past it.

        Raises:
            SqlError: the next token is not a name.
        """
        text = self.quoted_name(form)
        return text[1:-1].replace('""', '"') if text[0] == '"' else text

    def until_closed(self, form: str) -> str:
        """Return the text until the parenthesis is closed that was opened, and move behind it.

        Raises:
            SqlError: it is not closed.
        """
        first, depth = self._at, 1
        while depth and self._at < len(self._spans):
            depth += {"(": 1, ")": -1}.get(self.word, 0)
            self._at += 1
        if depth or self._at - 1 == first:
            raise SqlError("a parenthesis is not closed, or empty", hint=form)
        return self._slice(self._spans[first][0], self._spans[self._at - 2][1])

    def rest(self) -> str:
        """Return the text behind the place."""
        left = self._spans[self._at :]
        return self._slice(left[0][0], left[-1][1]) if left else ""

    def end(self, form: str) -> None:
        """Return if nothing is left.

        Raises:
            SqlError: something is.
        """
        if self.word:
            raise SqlError(f"expected the end, found {self.word}", hint=form)
