"""A sink that keeps documents in Elasticsearch 7.10 or newer, or in OpenSearch, by its HTTP API.

The name of the sink is an alias of an index ``<name>-000001``, so that a rebuild can be switched
with one request. The server compares versions (``version_type=external_gte``), also those of
deletions, whose versions it keeps for ``index.gc_deletes``. Must not know: Spark, Kafka.

Source: Elasticsearch 8, REST APIs, "Bulk API", "Index API: versioning" and "Aliases".
"""

from __future__ import annotations

import base64
import json
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from http.client import HTTPException
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from tidemill.spark.errors import OptionError, SinkError
from tidemill.spark.sinks.base import Mistake, QueryContext, as_columns, mistakes_of
from tidemill.spark.sinks.documents.store import Document, DocumentSink, DocumentStore, text_of

VERSION = "_tidemill_version"
"""Field of each document with its version, because ``_version`` can't be searched."""
API_KEY = "ELASTICSEARCH_API_KEY"
"""Environment variable with an API key, if the URL has no user."""
PASSWORD = "ELASTICSEARCH_PASSWORD"
"""Environment variable with the password of the URL's user."""
TIMEOUT_S = 60
ATTEMPTS = 5
"""Attempts for requests and documents that the server rejects because it is busy."""
_PAUSE_S = 0.2
_CHUNK = 1_000
_CHUNK_BYTES = 5 << 20
_LONGEST_KEY = 512
_BUSY = (429, 502, 503, 504)
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,200}")
_HOW = (
    'Write url="https://user@host:9200"; keep the password in the variable '
    f"{PASSWORD}, or an API key in {API_KEY}."
)


@dataclass(frozen=True)
class ElasticsearchSink(DocumentSink):
    """Keeps documents in Elasticsearch or OpenSearch. A batch that is run again changes nothing.

    Attributes:
        index: Name of the alias under which readers find the documents. Its index is created if it
            is missing.
        key: Columns that identify a document.
        url: The server: ``https://user@host:9200``. It is never shown.
        keep_deleted: How long the server keeps the version of a deleted document
            (``index.gc_deletes``). A change that arrives later and is older brings it back.
        order_by: If a key occurs more than once in a batch, the row with the greatest values in
            these columns wins. Rows with a column ``_version`` need none.
        is_beside: Whether to write the index that a rebuild makes.
    """

    index: str
    url: str = field(default="http://localhost:9200", repr=False)
    keep_deleted: str = "7d"
    is_beside: bool = field(default=False, kw_only=True, repr=False)

    @property
    def target(self) -> str:
        return f"index {self.index} in Elasticsearch"

    @property
    def place(self) -> Hashable:
        return ("elasticsearch", self.url, self.index, self.is_beside)

    def check(self, context: QueryContext) -> Iterable[Mistake]:
        yield from super().check(context)
        yield from mistakes_of(lambda: _server(self.url))
        if not _NAME.fullmatch(self.index):
            yield Mistake(
                f"invalid name of an index {self.index!r}",
                "Use small letters, digits, '.', '_' and '-'; begin with a letter or a digit.",
            )
        if not re.fullmatch(r"[0-9]+(ms|s|m|h|d)", self.keep_deleted):
            yield Mistake(f"invalid keep_deleted {self.keep_deleted!r}", 'For example "7d".')

    def store(self) -> ElasticsearchStore:
        return ElasticsearchStore(self)

    def beside(self) -> ElasticsearchSink:
        return replace(self, is_beside=True)


class ElasticsearchStore(DocumentStore):
    """The documents of one alias."""

    def __init__(self, sink: ElasticsearchSink) -> None:
        super().__init__(sink.key_columns, as_columns(sink.order_by))
        self._sink = sink
        self._base, self._headers = _server(sink.url)

    @property
    def target(self) -> str:
        return self._sink.target

    def last_version(self) -> int | None:
        index = self._written()
        self._request("POST", f"/{index}/_refresh")
        query = {
            "size": 1,
            "sort": [{VERSION: {"order": "desc", "unmapped_type": "long"}}],
            "_source": [VERSION],
        }
        hits = self._request("POST", f"/{index}/_search", query)["hits"]["hits"]
        return int(hits[0]["_source"][VERSION]) if hits else None

    def write(self, documents: Iterator[Document], last: int) -> None:
        index = self._written()
        for part in _chunks(documents, self.target):
            self._bulk(index, part)

    def switch(self) -> None:
        """Move the alias to the index of a rebuild and remove the old index, in one request."""
        current = self._current()
        following = _following(self._sink.index, current)
        if not self._exists(following):
            return
        actions: list[dict[str, Any]] = [
            {"add": {"index": following, "alias": self._sink.index, "is_write_index": True}}
        ]
        if current is not None:
            actions.append({"remove_index": {"index": current}})
        self._request("POST", "/_aliases", {"actions": actions})

    def discard(self) -> None:
        """Remove the index of a rebuild that was not switched."""
        following = _following(self._sink.index, self._current())
        if self._exists(following):
            self._request("DELETE", f"/{following}")

    # --- indexes ----------------------------------------------------------------------------------

    def _written(self) -> str:
        """Return the index that is written; create it if it is missing."""
        current = self._current()
        if current is None:
            current = _following(self._sink.index, None)
            self._create(current, {self._sink.index: {"is_write_index": True}})
        if not self._sink.is_beside:
            return current
        following = _following(self._sink.index, current)
        if not self._exists(following):
            self._create(following, {})
        return following

    def _current(self) -> str | None:
        """Return the index of the alias, or None if there is no alias."""
        status, found = self._send("GET", f"/_alias/{self._sink.index}")
        if status == 404:
            if self._exists(self._sink.index):
                raise SinkError(
                    f"{self.target} is an index, and the sink needs the name of an alias",
                    hint="Use another name; the sink creates the alias and its index.",
                )
            return None
        names = list(self._checked("GET", status, found))
        if len(names) != 1:
            raise SinkError(f"the alias of {self.target} has the indexes {', '.join(names)}")
        return str(names[0])

    def _exists(self, index: str) -> bool:
        status, found = self._send("HEAD", f"/{index}")
        if status not in (200, 404):
            self._checked("HEAD", status, found)
        return status == 200

    def _create(self, index: str, aliases: dict[str, Any]) -> None:
        body = {
            "settings": {"index": {"gc_deletes": self._sink.keep_deleted}},
            "mappings": {"properties": {VERSION: {"type": "long"}}},
            "aliases": aliases,
        }
        self._request("PUT", f"/{index}", body)

    # --- documents --------------------------------------------------------------------------------

    def _bulk(self, index: str, lines: Sequence[bytes]) -> None:
        """Write documents; send those again that the server was too busy for.

        A conflict of versions means that the server has a newer one, so nothing is left to do.
        """
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(_PAUSE_S * 2**attempt)
            status, found = self._send("POST", f"/{index}/_bulk", b"".join(lines))
            if status in _BUSY:
                continue
            items = self._checked("POST", status, found)["items"]
            left = []
            for line, item in zip(lines, items, strict=True):
                ((action, result),) = item.items()
                code = result["status"]
                if code in _BUSY:
                    left.append(line)
                elif not (code < 300 or code == 409 or (action == "delete" and code == 404)):
                    raise self._error(code, result)
            if not left:
                return
            lines = left
        raise SinkError(
            f"can't write {self.target}: the server is too busy",
            hint="The batch will be retried. Give the streams a lower max_offsets_per_trigger.",
        )

    # --- HTTP -------------------------------------------------------------------------------------

    def _request(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request, and return what the server answers."""
        content = None if body is None else json.dumps(body).encode()
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(_PAUSE_S * 2**attempt)
            status, found = self._send(method, path, content)
            if status not in _BUSY:
                break
        return self._checked(method, status, found)

    def _checked(self, method: str, status: int, found: bytes) -> Any:
        try:
            parsed = json.loads(found) if found else {}
        except ValueError:
            parsed = {}
        if status >= 300 or not isinstance(parsed, dict):
            raise self._error(status, parsed if isinstance(parsed, dict) else {})
        return parsed

    def _send(self, method: str, path: str, content: bytes | None = None) -> tuple[int, bytes]:
        """Return the status and the body of a response."""
        headers = dict(self._headers)
        if content is not None:
            is_bulk = path.endswith("/_bulk")
            headers["Content-Type"] = f"application/{'x-ndjson' if is_bulk else 'json'}"
        request = urllib.request.Request(
            self._base + path, data=content, headers=headers, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise SinkError(
                f"can't write {self.target}: {reason}",
                hint="Check the url, and that the server runs. The batch will be retried.",
            ) from None  # the error may have the URL

    def _error(self, status: int, found: dict[str, Any]) -> SinkError:
        error = found.get("error", "")
        reason = error.get("reason", "") if isinstance(error, dict) else str(error)
        hint = ""
        if status in (401, 403):
            hint = f"Check the user, and the variable {PASSWORD} or {API_KEY}; the user needs the "
            hint += "privileges create_index, manage and write on the index."
        elif status in _BUSY:
            hint = "The server is too busy. The batch will be retried."
        text = f"can't write {self.target}: {reason or 'the server refused it'} (status {status})"
        return SinkError(text, hint=hint)


def _following(name: str, current: str | None) -> str:
    """Return the name of the index after another one."""
    found = re.fullmatch(rf"{re.escape(name)}-([0-9]+)", current or "")
    return f"{name}-{int(found[1]) + 1 if found else 1:06}"


def _chunks(documents: Iterator[Document], target: str) -> Iterator[list[bytes]]:
    """Yield the lines of requests that are neither too long nor too many."""
    part: list[bytes] = []
    size = 0
    for line in (_line(each, target) for each in documents):
        if part and (len(part) >= _CHUNK or size + len(line) > _CHUNK_BYTES):
            yield part
            part, size = [], 0
        part.append(line)
        size += len(line)
    if part:
        yield part


def _line(document: Document, target: str) -> bytes:
    """Return the lines of a document in a bulk request."""
    if len(document.key.encode()) > _LONGEST_KEY:
        raise SinkError(f"can't write {target}: a key has more than {_LONGEST_KEY} bytes")
    how: dict[str, Any] = {"_id": document.key}
    if document.version is not None:
        how |= {"version": document.version, "version_type": "external_gte"}
    action = "delete" if document.fields is None else "index"
    lines: list[Any] = [{action: how}]
    if document.fields is not None:
        fields = {name: _value(value) for name, value in document.fields.items()}
        lines.append({**fields, VERSION: document.version})
    return b"".join(json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in lines)


def _value(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None  # JSON has no such numbers
    return value if isinstance(value, (bool, int, float, str)) else text_of(value)


def _server(url: str) -> tuple[str, dict[str, str]]:
    """Return a server's URL without credentials, and headers with them. No error shows the URL."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise OptionError("can't parse the url of the Elasticsearch server", hint=_HOW) from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
        raise OptionError("can't parse the url of the Elasticsearch server", hint=_HOW)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    place = host if port is None else f"{host}:{port}"
    base = urlunsplit((parts.scheme, place, quote(unquote(parts.path.rstrip("/"))), "", ""))
    if parts.username:
        word = parts.password or os.environ.get(PASSWORD, "")
        pair = f"{unquote(parts.username)}:{unquote(word) if parts.password else word}"
        return base, {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
    key = os.environ.get(API_KEY)
    return base, {"Authorization": f"ApiKey {key}"} if key else {}
