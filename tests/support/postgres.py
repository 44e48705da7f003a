"""A PostgreSQL server from its binaries, on a Unix socket in a folder of its own.

PostgreSQL refuses to run as root; there it runs as the user ``postgres``, which its package makes.
The environment variable POSTGRES_BIN names the folder of another version's binaries.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.processes import NotInstalledError, ServerProcess, as_user, own_folder

_INIT = ("-A", "trust", "--no-sync", "--encoding=UTF8", "--locale=C")
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


def binaries() -> Path:
    """Return the folder of PostgreSQL's binaries.

    Raises:
        NotInstalledError: it is not installed.
    """
    chosen = os.environ.get("POSTGRES_BIN")
    if chosen:
        return Path(chosen)
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    on_path = shutil.which("initdb")
    if not found and on_path is None:
        raise NotInstalledError("PostgreSQL is not installed: apt-get install postgresql")
    return found[-1].parent if found else Path(str(on_path)).resolve().parent


def make_data(folder: Path) -> None:
    """Make the data of a server in a folder, with the superuser ``tidemill``."""
    command = [*as_user("postgres", folder), str(binaries() / "initdb"), "-D", str(folder / "data")]
    made = subprocess.run(
        [*command, "-U", "tidemill", *_INIT],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stdout + made.stderr


def dsn_of(folder: Path, settings: Mapping[str, str]) -> str:
    """Return the dsn of a server that listens on a socket in its folder."""
    return f"host={folder} port={settings.get('port', _PORT)} user=tidemill dbname=postgres"


def start(folder: Path, log: Path, settings: Mapping[str, str]) -> ServerProcess:
    """Start a server on the data of a folder, and wait until it answers.

    Args:
        folder: the folder of ``make_data``. It gets the socket.
        log: file that gets its output.
        settings: settings of the server, e.g. ``LOGICAL``.
    """
    options = {
        "listen_addresses": "",
        "unix_socket_directories": str(folder),
        "port": _PORT,
        "fsync": "off",
        "shared_buffers": "16MB",
        **settings,
    }
    arguments = [f"-c{key}={value}" for key, value in options.items()]
    before = as_user("postgres", folder)
    command = [*before, str(binaries() / "postgres"), "-D", str(folder / "data"), *arguments]
    process = ServerProcess("postgres", command, log, cwd=folder)
    process.wait_until(lambda: _answers(dsn_of(folder, settings)), 120)
    return process


@contextmanager
def postgres(log: Path, settings: Mapping[str, str] | None = None) -> Iterator[str]:
    """Run a server and yield the dsn of an empty database.

    Args:
        log: file that gets its output.
        settings: settings of the server, e.g. ``LOGICAL``.

    Raises:
        NotInstalledError: it can't be started here.
    """
    settings = settings or {}
    with own_folder("pg") as folder:
        make_data(folder)
        with start(folder, log, settings) as server:
            yield dsn_of(folder, settings)
            server.send_signal(signal.SIGINT)  # ends its children, which are groups of their own
            server.wait(60)


def _answers(dsn: str) -> bool:
    import psycopg

    try:
        psycopg.connect(dsn).close()
    except psycopg.OperationalError:
        return False
    return True
