"""A MySQL server from its binaries, on a Unix socket and a TCP port, in a folder of its own.

MySQL refuses to run as root; there it runs as the user ``mysql``, which a package of MariaDB or
MySQL makes. ``scripts/mysql-server.sh`` gets a server where the distribution has none.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.mariadb import PASSWORD, USER, Server, install, write_user
from tests.support.ports import reserve_port
from tests.support.processes import NotInstalledError, ServerProcess, as_user, own_folder

_PLACES = "/opt/mysql/bin:/usr/sbin:/usr/local/sbin:/usr/local/mysql/bin"
_QUICK = (
    "--innodb-buffer-pool-size=32M",
    "--innodb-redo-log-capacity=64M",
    "--innodb-flush-method=nosync",
    "--innodb-flush-log-at-trx-commit=0",
    "--skip-innodb-doublewrite",
    "--performance-schema=OFF",
    "--sync-binlog=0",
)


__all__ = ["PASSWORD", "USER", "MySql", "mysql"]


@dataclass(frozen=True)
class MySql(Server):
    """A MySQL server that runs.

    Attributes:
        port: its TCP port on the loopback address.
        data: the folder of its data, with the certificates that it made.
    """

    port: int
    data: Path


def _binary() -> str:
    """Return the path of a mysqld that is not MariaDB's."""
    candidates = [os.environ.get("MYSQL_BIN"), shutil.which("mysqld")]
    candidates += [shutil.which("mysqld", path=each) for each in _PLACES.split(":")]
    for found in filter(None, candidates):
        path = os.path.join(found, "mysqld") if os.path.isdir(found) else found
        version = subprocess.run(
            [path, "--no-defaults", "--version"], capture_output=True, text=True
        )
        if version.returncode == 0 and "MariaDB" not in version.stdout:
            return path
    raise NotInstalledError("MySQL is not installed: run scripts/mysql-server.sh as root")


def _common(binary: str) -> list[str]:
    command = [binary, "--no-defaults"]
    root = Path(binary).resolve().parent.parent / "root" / "usr"
    if root.is_dir():  # made by scripts/mysql-server.sh
        command.append(f"--basedir={root}")
    return command


@contextmanager
def mysql(log: Path, options: Sequence[str] = ()) -> Iterator[MySql]:
    """Run a server that is set up for change capture.

    Args:
        log: file that gets its output.
        options: more options of the server.

    Raises:
        NotInstalledError: it can't be started here.
    """
    binary = _binary()
    with own_folder("mysql") as folder:
        before = as_user("mysql", folder)
        data, init = folder / "data", write_user(folder, "%")
        command = [*before, *_common(binary), f"--datadir={data}", "--secure-file-priv=NULL"]
        install([*command, *_QUICK, "--initialize-insecure", f"--init-file={init}"], folder)
        found = MySql(f"{folder}/socket", reserve_port(), data)
        command += [f"--socket={found.socket}", f"--port={found.port}", "--bind-address=127.0.0.1"]
        command += ["--mysqlx=OFF", "--server-id=1", "--log-bin=binlog", "--gtid-mode=ON"]
        command += ["--enforce-gtid-consistency=ON", "--binlog-row-metadata=FULL"]
        with ServerProcess("mysql", [*command, *_QUICK, *options], log, cwd=folder) as process:
            process.wait_until(lambda: found.answers, 120)
            yield found
