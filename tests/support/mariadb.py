"""A MariaDB server from its binaries, on a Unix socket in a folder of its own.

MariaDB refuses to run as root; there it runs as the user ``mysql``, which its package makes.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.processes import NotInstalledError, ServerProcess, as_user, own_folder

_INSTALL = (
    "--skip-test-db",
    "--auth-root-authentication-method=normal",
    "--innodb-flush-method=nosync",
)
USER, PASSWORD = "tidemill", "a secret of the test"


@dataclass(frozen=True)
class Server:
    """A server that runs, of MariaDB or MySQL.

    Attributes:
        socket: the path of its Unix socket.
    """

    socket: str

    def connect(self, **options: Any) -> Any:
        """Return a new connection of PyMySQL."""
        import pymysql

        return pymysql.connect(
            unix_socket=self.socket, user=USER, password=PASSWORD, charset="utf8mb4", **options
        )

    @property
    def answers(self) -> bool:
        """Whether a client can log in."""
        import pymysql

        try:
            self.connect().close()
        except pymysql.err.OperationalError:
            return False
        return True


class MariaDb(Server):
    """A MariaDB server that runs."""


def write_user(folder: Path, host: str) -> Path:
    """Write the statements that make the tests' user, who can do everything; return the file."""
    init = folder / "init.sql"
    init.write_text(
        f"CREATE USER {USER}@'{host}' IDENTIFIED BY '{PASSWORD}';\n"
        f"GRANT ALL PRIVILEGES ON *.* TO {USER}@'{host}' WITH GRANT OPTION;\n"
    )
    init.chmod(0o644)
    return init


def install(command: Sequence[str], folder: Path) -> None:
    """Run a command that makes the data of a server."""
    made = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr


def _binary(*names: str) -> str:
    for name in names:
        found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
        if found:
            return found
    raise NotInstalledError("MariaDB is not installed: apt-get install mariadb-server")


@contextmanager
def mariadb(log: Path, options: Sequence[str] = ()) -> Iterator[MariaDb]:
    """Run a server that is set up for change capture.

    Args:
        log: file that gets its output.
        options: more options of the server.

    Raises:
        NotInstalledError: it can't be started here.
    """
    installer, server = _binary("mariadb-install-db"), _binary("mariadbd")
    with own_folder("mariadb") as folder:
        before = as_user("mysql", folder)
        data, init = folder / "data", write_user(folder, "localhost")
        install([*before, installer, "--no-defaults", f"--datadir={data}", *_INSTALL], folder)
        command = [*before, server, "--no-defaults", f"--datadir={data}", f"--init-file={init}"]
        command += ["--skip-networking", f"--socket={folder}/socket", "--server-id=1"]
        command += ["--log-bin=binlog", "--binlog-format=ROW", "--binlog-row-metadata=FULL"]
        command += ["--innodb-flush-method=nosync", "--innodb-flush-log-at-trx-commit=0"]
        command += ["--innodb-buffer-pool-size=16M", "--innodb-log-file-size=8M", *options]
        with ServerProcess("mariadb", command, log, cwd=folder) as process:
            found = MariaDb(f"{folder}/socket")
            process.wait_until(lambda: found.answers, 120)
            yield found
