"""A PostgreSQL server from its binaries, on a Unix socket in a folder of its own.

PostgreSQL refuses to run as root; there it runs as the user ``postgres``, which its package makes.
The environment variable POSTGRES_BIN names the folder of another version's binaries.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.processes import NotInstalledError, ServerProcess

INIT = ("-A", "trust", "--no-sync", "--encoding=UTF8", "--locale=C")
LOGICAL = {
    "wal_level": "logical",
    "max_replication_slots": "60",
    "max_wal_senders": "60",
    "max_connections": "100",
    "max_prepared_transactions": "5",
    "logical_decoding_work_mem": "64kB",
    "autovacuum": "off",
}
"""Settings for change data capture, with which the server streams transactions above 64 kB."""
_PORT = 5432  # a part of the socket's name only


class PostgresNotFoundError(NotInstalledError):
    """PostgreSQL can't be started here; the message says why."""


def binaries() -> Path:
    """Return the folder of PostgreSQL's binaries.

    Raises:
        PostgresNotFoundError: it is not installed.
    """
    chosen = os.environ.get("POSTGRES_BIN")
    if chosen:
        return Path(chosen)
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    on_path = shutil.which("initdb")
    if not found and on_path is None:
        raise PostgresNotFoundError("PostgreSQL is not installed: apt-get install postgresql")
    return found[-1].parent if found else Path(str(on_path)).resolve().parent


def as_user(folder: Path) -> list[str]:
    """Return the prefix of a command that runs as another user, who gets the folder."""
    if os.getuid() != 0:
        return []
    try:
        user = pwd.getpwnam("postgres")
    except KeyError:
        raise PostgresNotFoundError(
            "root can't run PostgreSQL, and there is no user postgres"
        ) from None
    if shutil.which("setpriv") is None:
        raise PostgresNotFoundError("root can't run PostgreSQL without setpriv (util-linux)")
    os.chown(folder, user.pw_uid, user.pw_gid)
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]


@contextmanager
def postgres(log: Path, settings: Mapping[str, str] | None = None) -> Iterator[str]:
    """Run a server and yield the dsn of an empty database.

    Args:
        log: file that gets its output.
        settings: settings of the server, e.g. ``LOGICAL``.

    Raises:
        PostgresNotFoundError: it can't be started here.
    """
    found = binaries()
    # Not below the tests' folder: the other user could not get there, and a socket's path is short.
    folder = Path(tempfile.mkdtemp(prefix="tidemill-pg-"))
    try:
        before = as_user(folder)
        data = folder / "data"
        made = subprocess.run(
            [*before, str(found / "initdb"), "-D", str(data), "-U", "tidemill", *INIT],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert made.returncode == 0, made.stdout + made.stderr
        options = {
            "listen_addresses": "",
            "unix_socket_directories": str(folder),
            "port": _PORT,
            "fsync": "off",
            "shared_buffers": "16MB",
            **(settings or {}),
        }
        arguments = [f"-c{key}={value}" for key, value in options.items()]
        command = [*before, str(found / "postgres"), "-D", str(data), *arguments]
        with ServerProcess("postgres", command, log, cwd=folder) as server:
            dsn = f"host={folder} port={options['port']} user=tidemill dbname=postgres"
            server.wait_until(lambda: _answers(dsn), 120)
            yield dsn
            server.send_signal(signal.SIGINT)  # ends its children, which are groups of their own
            server.wait(60)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _answers(dsn: str) -> bool:
    import psycopg

    try:
        psycopg.connect(dsn).close()
    except psycopg.OperationalError:
        return False
    return True
