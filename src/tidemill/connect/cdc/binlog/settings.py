"""The ``[database]`` section of a source with a binary log, and connections made from it.

Must not know tables, the binary log or positions. Secrets never get into messages.
"""

from __future__ import annotations

import codecs
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pymysql
from pymysql.converters import encoders

from tidemill.connect.base.secrets import Secret
from tidemill.connect.cdc.errors import DefinitionError, SetupError, SourceUnavailableError

_TLS = ("ssl_ca", "ssl_cert", "ssl_key")
_KEYS = frozenset(
    {"host", "port", "user", "password", "unix_socket", "server_id", "connect_timeout", *_TLS}
    | {"ssl_verify"}
)
_REFUSED = frozenset({1044, 1045, 1049, 1142, 1227, 1698})
"""Server errors that a new attempt does not change: access denied, unknown database."""

_UTF8 = "tidemill_utf8"


def _utf8(name: str) -> codecs.CodecInfo | None:
    """Return the codec of results: UTF-8 in which a byte that is not valid becomes ``\\xNN``.

    A server sends such bytes for halves of surrogate pairs. The stream shows them in the same way.
    """
    if name != _UTF8:
        return None
    return codecs.CodecInfo(
        codecs.utf_8_encode,
        lambda data, errors="strict": codecs.utf_8_decode(data, "backslashreplace", True),
        name=_UTF8,
    )


codecs.register(_utf8)


@dataclass(frozen=True, slots=True)
class Settings:
    """The address of a server, and the user.

    Attributes:
        server_id: the id of this replica, different from those of the server and its replicas.
    """

    host: str
    port: int
    user: str
    password: Secret
    unix_socket: str | None
    server_id: int
    connect_timeout_s: int
    tls: Mapping[str, Any]

    @classmethod
    def parse(cls, database: Mapping[str, Any], name: str, product: str = "MariaDB") -> Settings:
        """Read the section.

        Args:
            database: the section, with secrets resolved.
            name: the source's name; the default of ``server_id`` is made from it.
            product: the name of the kind of server, for messages.
        """
        unknown = sorted(set(database) - _KEYS)
        if unknown:
            raise DefinitionError(
                f"unknown key {unknown[0]!r} in [database]",
                hint=f"Known keys for {product}: {', '.join(sorted(_KEYS))}",
            )
        if not database.get("user"):
            raise DefinitionError("[database] needs a user", hint='For example: user = "tidemill"')
        tls: dict[str, Any] = {key: _revealed(database[key]) for key in _TLS if database.get(key)}
        if tls and database.get("ssl_verify", True) is not False:
            tls |= {"ssl_verify_cert": True, "ssl_verify_identity": True}
        default_id = zlib.crc32(f"tidemill source {name}".encode()) & 0x7FFFFFFF | 0x40000000
        return cls(
            host=_revealed(database.get("host", "127.0.0.1")),
            port=_integer(database, "port", 3306, 65535),
            user=_revealed(database["user"]),
            password=Secret(_revealed(database.get("password", ""))),
            unix_socket=database.get("unix_socket"),
            server_id=_integer(database, "server_id", default_id, 0xFFFFFFFF),
            connect_timeout_s=_integer(database, "connect_timeout", 10, 3600),
            tls=tls,
        )

    def connect(self, read_timeout: int | None = None) -> pymysql.Connection[Any]:
        """Open a connection with text values, in UTC and UTF-8.

        Args:
            read_timeout: seconds without any answer after which the connection is lost.
        """
        try:
            connection = pymysql.connect(
                host=self.host,
                port=self.port,
                user=self.user,
                password=self.password.reveal(),
                unix_socket=self.unix_socket,
                charset="utf8mb4",
                autocommit=True,
                connect_timeout=self.connect_timeout_s,
                read_timeout=read_timeout,
                conv=dict(encoders),  # values of results stay text
                **(self.tls or ({"ssl_disabled": True} if self.unix_socket else {})),
            )
        except pymysql.err.MySQLError as error:
            raise connection_error(error, self) from error
        except RuntimeError as error:  # PyMySQL lacks a package for this way to log in
            raise SetupError(
                f"user {self.user!r} can't log in to {self.host}:{self.port}: {error}",
                hint="Without TLS, the password is encrypted by the package cryptography. Set "
                "ssl_ca in [database] (the server's ca.pem), use unix_socket, or install it: "
                "pip install cryptography",
            ) from error
        except OSError as error:  # the file of a certificate
            raise SetupError(f"TLS of the database connection can't be set up: {error}") from error
        with connection.cursor() as cursor:
            cursor.execute("SET time_zone = '+00:00'")
            # PyMySQL escapes with backslashes, which a server's default mode can switch off.
            cursor.execute("SET SESSION sql_mode = ''")
        return connection


def take_any_text(connection: pymysql.Connection[Any]) -> None:
    """Let results have text that is not valid UTF-8. It makes each text slower."""
    connection.encoding = _UTF8


def connection_error(error: pymysql.err.MySQLError, settings: Settings) -> Exception:
    """Return the typed error for an error of PyMySQL."""
    code = error.args[0] if error.args else 0
    text = error.args[1] if len(error.args) > 1 else str(error)
    place = settings.unix_socket or f"{settings.host}:{settings.port}"
    if code in _REFUSED:
        return SetupError(
            f"the database at {place} refuses user {settings.user!r}: {text}",
            hint="Check user and password, and grant what `tidemill source check` lists.",
        )
    return SourceUnavailableError(f"the database at {place} does not answer: {text} ({code})")


def _revealed(value: Any) -> str:
    """Return a text, which can come from the environment or a file."""
    return value.reveal() if isinstance(value, Secret) else str(value)


def _integer(database: Mapping[str, Any], key: str, default: int, largest: int) -> int:
    value = database.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= largest:
        raise DefinitionError(
            f"invalid {key} in [database]: {value!r}", hint=f"Use a number from 1 to {largest}."
        )
    return value
