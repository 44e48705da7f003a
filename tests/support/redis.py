"""A Redis or Valkey server from its binary, on a Unix socket in a folder of its own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.processes import NotInstalledError, ServerProcess, own_folder


@contextmanager
def redis_server(log: Path, password: str = "") -> Iterator[str]:
    """Run a server and yield its URL, without the password.

    Args:
        log: file that gets its output.
        password: the password that it asks for.

    Raises:
        NotInstalledError: it is not installed.
    """
    binary = shutil.which("redis-server") or shutil.which("valkey-server")
    if binary is None:
        raise NotInstalledError("Redis is not installed: apt-get install redis-server")
    with own_folder("redis") as folder:
        socket = folder / "socket"
        command = [binary, "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir"]
        command += [str(folder), "--requirepass", password]
        with ServerProcess("redis", command, log, cwd=folder) as process:
            process.wait_until(socket.exists, 120)
            yield f"unix://{socket}?db=0"
