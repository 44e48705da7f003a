"""Start a gateway for a program or a test, and stop it at the end: topics over HTTP.

The gateway is ``tidemill gateway`` on loopback, in a process of its own, in front of any broker.
Must not know: its inside.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tidemill.errors import TidemillError
from tidemill.local.processes import ChildProcess


class GatewayProcessError(TidemillError):
    """The gateway did not start, or ended too early."""


class Gateway:
    """A gateway of one's own: a process with a free port on loopback, until ``stop``.

    Use it as a context manager, or call ``stop``. It also ends when the thread that started it
    ends (on Linux, even if the process is killed)::

        with tidemill.Broker() as broker, tidemill.Gateway(broker.bootstrap_servers) as gateway:
            urlopen(f"{gateway.url}/topics")

    Args:
        bootstrap_servers: the brokers, also of Apache Kafka.
        settings: as ``--set`` takes them, e.g. ``{"gateway.origins": "http://localhost:3000"}``.
        properties: librdkafka's properties, e.g. for TLS and SASL.
        log_file: where the gateway logs; by default a file that is deleted at the end.

    Attributes:
        url: the address of topics, without a slash at the end.

    Raises:
        GatewayProcessError: the gateway did not start; the message says why.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        settings: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
        log_file: str | Path | None = None,
    ) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="tidemill-"))
        log = Path(log_file).absolute() if log_file else self._folder / "gateway.log"
        self._process: ChildProcess | None = None
        self.url = ""
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            ready_file = self._folder / "gateway.ready"
            self._process = ChildProcess(
                "the gateway",
                [
                    *("gateway", "-b", bootstrap_servers, "--port", "0"),
                    *(f"--set={name}={value}" for name, value in (settings or {}).items()),
                    *(f"-X{name}={value}" for name, value in (properties or {}).items()),
                ],
                log,
                ready_file,
                error=GatewayProcessError,
            )
            self.url = str(self._process.wait_until_ready(ready_file)["topics"])
        except BaseException as error:
            self.stop()
            if isinstance(error, GatewayProcessError) and log_file is None:
                raise GatewayProcessError(str(error), hint="") from error  # its log is deleted
            raise

    @property
    def pid(self) -> int:
        """The process id of the gateway. It must run."""
        if self._process is None:
            raise GatewayProcessError("the gateway is stopped", hint="Start a new one.")
        return self._process.pid

    def check_running(self) -> None:
        """Check that the gateway still runs.

        Raises:
            GatewayProcessError: it has ended by itself; the message says why.
        """
        if self._process is not None:
            self._process.check_running()

    def stop(self) -> None:
        """Stop the gateway cleanly. Does nothing if it is stopped."""
        process, self._process = self._process, None
        if process is not None:
            process.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<tidemill.Gateway {self.url if self._process is not None else 'stopped'}>"
