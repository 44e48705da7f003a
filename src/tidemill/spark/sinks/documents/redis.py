"""A sink that keeps a hash for each key in Redis 6.2 or newer, or in Valkey.

The hash of a key is ``<prefix>:<generation>:row:<key>``. The text of ``<prefix>:current`` is the
present generation, so that a rebuild can be switched with one command. A script on the server
compares versions. A deletion removes the hash, and keeps its version for a time. Must not know:
Spark, Kafka.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from tidemill.duration import microseconds
from tidemill.extras import load
from tidemill.spark.errors import MissingPackageError, OptionError, SinkError
from tidemill.spark.sinks.base import Mistake, QueryContext, as_columns, mistakes_of
from tidemill.spark.sinks.documents.store import Document, DocumentSink, DocumentStore, text_of

PASSWORD = "REDISCLI_AUTH"
"""Environment variable with the password, if the URL has none. ``redis-cli`` uses it, too."""
TIMEOUT_S = 30
"""Seconds to wait for an answer of the server."""
_CHUNK = 1_000
_HOW = (
    'Write url="redis://host:6379/0", rediss:// for TLS, or unix:///path; keep the password in the '
    f"variable {PASSWORD}."
)

_WRITE = """
local stored = redis.call('HGET', KEYS[1], '_version') or redis.call('GET', KEYS[2])
local version = ARGV[1]
if version == '' then
  if not stored then return 0 end
  version = stored
end
if stored and (#stored > #version or (#stored == #version and stored > version)) then return 0 end
redis.call('DEL', KEYS[1])
if #ARGV == 2 then
  redis.call('SET', KEYS[2], version, 'PX', ARGV[2])
  return 1
end
redis.call('DEL', KEYS[2])
redis.call('HSET', KEYS[1], '_version', version, unpack(ARGV, 3))
return 1
"""
"""Writes a hash, or deletes it if there are no fields. Versions are compared as text, because Lua's
numbers lose digits above 2**53."""
_GREATEST = """
local stored = redis.call('GET', KEYS[1])
local version = ARGV[1]
if stored and (#stored > #version or (#stored == #version and stored >= version)) then return 0 end
redis.call('SET', KEYS[1], version)
return 1
"""
_SWITCH = """
local following = redis.call('GET', KEYS[2])
if not following then return 0 end
local old = redis.call('GET', KEYS[1])
if old then redis.call('SADD', KEYS[3], old) end
redis.call('SET', KEYS[1], following)
redis.call('DEL', KEYS[2])
return 1
"""


@dataclass(frozen=True)
class RedisSink(DocumentSink):
    """Keeps a hash for each key in Redis or Valkey. A batch that is run again changes nothing.

    Attributes:
        prefix: First part of the keys: ``<prefix>:<generation>:row:<key>``. In a Redis cluster it
            must contain a hash tag: ``{aircraft}``.
        key: Columns that identify a row.
        url: The server: ``redis://host:6379/0``. It is never shown. Keep the password in the
            variable ``REDISCLI_AUTH`` instead.
        keep_deleted: How long the version of a deleted row is kept. A change that arrives later
            and is older brings the row back.
        order_by: If a key occurs more than once in a batch, the row with the greatest values in
            these columns wins. Rows with a column ``_version`` need none.
        is_beside: Whether to write the generation that a rebuild makes.
    """

    prefix: str
    url: str = field(default="redis://localhost:6379/0", repr=False)
    keep_deleted: str = "7 days"
    is_beside: bool = field(default=False, kw_only=True, repr=False)

    @property
    def target(self) -> str:
        return f"hashes {self.prefix} in Redis"

    @property
    def place(self) -> Hashable:
        return ("redis", self.url, self.prefix, self.is_beside)

    def check(self, context: QueryContext) -> Iterable[Mistake]:
        yield from super().check(context)
        yield from mistakes_of(lambda: _check(self.url))
        yield from mistakes_of(lambda: microseconds(self.keep_deleted))
        if not self.prefix:
            yield Mistake("RedisSink has no prefix", 'For example prefix="aircraft".')

    def store(self) -> RedisStore:
        return RedisStore(self)

    def beside(self) -> RedisSink:
        return replace(self, is_beside=True)


class RedisStore(DocumentStore):
    """The hashes of one prefix."""

    def __init__(self, sink: RedisSink) -> None:
        super().__init__(sink.key_columns, as_columns(sink.order_by))
        self._sink = sink
        self._keep_ms = max(1, microseconds(sink.keep_deleted) // 1000)
        self._driver = _module()
        _check(sink.url)
        options: dict[str, Any] = {"socket_timeout": TIMEOUT_S, "socket_connect_timeout": TIMEOUT_S}
        if urlsplit(sink.url).password is None and os.environ.get(PASSWORD):
            options["password"] = os.environ[PASSWORD]
        self._client = self._driver.Redis.from_url(sink.url, **options)
        self._write = self._client.register_script(_WRITE)
        self._greatest = self._client.register_script(_GREATEST)

    @property
    def target(self) -> str:
        return self._sink.target

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def last_version(self) -> int | None:
        with self._errors():
            found = self._client.get(f"{self._generation()}last")
        return None if found is None else int(found)

    def write(self, documents: Iterator[Document], last: int) -> None:
        with self._errors():
            prefix = self._generation()
            self._greatest(keys=[f"{prefix}last"], args=[last])
            while part := list(itertools.islice(documents, _CHUNK)):
                pipe = self._client.pipeline(transaction=False)
                for each in part:
                    keys = [f"{prefix}row:{each.key}", f"{prefix}deleted:{each.key}"]
                    self._write(keys=keys, args=self._arguments(each), client=pipe)
                pipe.execute()

    def switch(self) -> None:
        """Make the generation of a rebuild the present one, and delete the old one."""
        with self._errors():
            script = self._client.register_script(_SWITCH)
            script(keys=[self._name("current"), self._name("next"), self._name("old")])
            for old in self._client.smembers(self._name("old")):
                self._delete(old.decode())
                self._client.srem(self._name("old"), old)

    def discard(self) -> None:
        """Delete the generation of a rebuild that was not switched."""
        with self._errors():
            following = self._client.get(self._name("next"))
            if following is not None:
                self._delete(following.decode())
                self._client.delete(self._name("next"))

    def _name(self, what: str) -> str:
        return f"{self._sink.prefix}:{what}"

    def _generation(self) -> str:
        """Return the prefix of the generation that is written."""
        current = self._name("current")
        self._client.set(current, 1, nx=True)
        number = int(self._client.get(current))
        if self._sink.is_beside:
            self._client.set(self._name("next"), number + 1, nx=True)
            number = int(self._client.get(self._name("next")))
        return f"{self._sink.prefix}:{number}:"

    def _delete(self, generation: str) -> None:
        pattern = "".join(f"\\{c}" if c in "*?[]\\^" else c for c in self._sink.prefix)
        found = self._client.scan_iter(match=f"{pattern}:{generation}:*", count=_CHUNK)
        while part := list(itertools.islice(found, _CHUNK)):
            self._client.unlink(*part)

    def _arguments(self, document: Document) -> Sequence[Any]:
        version = "" if document.version is None else document.version
        if document.fields is None:
            return [version, self._keep_ms]
        made: list[Any] = [version, self._keep_ms]
        for name, value in document.fields.items():
            made += [name, value if isinstance(value, bytes) else text_of(value)]
        return made

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise the client's errors as ``SinkError``."""
        try:
            yield
        except (self._driver.RedisError, OSError) as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise SinkError(
                f"can't write {self.target}: {lines[0]}", hint=_hint(self._driver, error)
            ) from error


def _check(url: str) -> None:
    """Check a URL. No error shows a part of it."""
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("redis", "rediss", "unix") and (parts.port or 1) > 0
    except ValueError:
        is_valid = False
    if not is_valid:
        raise OptionError("can't parse the url of the Redis server", hint=_HOW)


def _module() -> Any:
    """Import the package, which is an optional dependency."""
    return load("redis", MissingPackageError)


def _hint(driver: Any, error: BaseException) -> str:
    if isinstance(error, driver.AuthenticationError):
        return f"Check the user in the url, and the password in the variable {PASSWORD}."
    if isinstance(error, (driver.ConnectionError, driver.TimeoutError, OSError)):
        return "Check the url, and that the server runs. The batch will be retried."
    if "OOM" in str(error):
        return "The server has no memory left: raise maxmemory."
    return ""
