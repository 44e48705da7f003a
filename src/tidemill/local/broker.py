"""Start a broker for a program, a notebook or a test, and stop it at the end.

The broker is ``tidemill serve`` on loopback, in a process of its own. Must not know: its inside.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tidemill.errors import TidemillError
from tidemill.local.processes import ChildProcess

HOST = "127.0.0.1"
_OFF = {"sources.run": "false", "gateway.enabled": "false", "health.enabled": "false"}
"""Left out: what has a fixed port, and the workers. A setting brings them back."""


class BrokerProcessError(TidemillError):
    """The broker did not start, or ended too early."""


class Broker:
    """A broker of one's own: a process with free ports on loopback.

    Use it as a context manager, or call ``stop``. It also ends when the thread that started it
    ends (on Linux, even if the process is killed)::

        with tidemill.Broker() as broker:
            producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})

    Args:
        data_dir: the data folder, which is kept. Without it, the data is in a temporary folder
            that is deleted at the end.
        settings: as ``--set`` takes them, e.g. ``{"default_partitions": "4"}``.
        port: the port for Kafka clients; 0, the default, takes a free one. With the port of a
            broker that has ended, its clients find the new one.
        amqp: whether it also serves queues.
        log_file: where the broker logs; by default a file beside the data.

    Attributes:
        bootstrap_servers: ``host:port`` for Kafka clients.
        amqp_url: the URL for AMQP clients; empty without ``amqp``.

    Raises:
        BrokerProcessError: the broker did not start; the message says why.
    """

    def __init__(
        self,
        data_dir: str | Path | None = None,
        *,
        settings: Mapping[str, str] | None = None,
        port: int = 0,
        amqp: bool = False,
        log_file: str | Path | None = None,
    ) -> None:
        self._temporary: Path | None = None
        if data_dir is None:
            self._temporary = Path(tempfile.mkdtemp(prefix="tidemill-"))
            data_dir = self._temporary / "data"
        self.data_dir = Path(data_dir).absolute()
        default = self.data_dir.with_name(f"{self.data_dir.name}.log")
        self.log_file = Path(log_file or default).absolute()
        self._port = port
        self._settings = {**_OFF, "amqp.enabled": str(amqp).lower(), **(settings or {})}
        if amqp:
            self._settings.setdefault("amqp.port", "0")
        self._process: ChildProcess | None = None
        self.bootstrap_servers = ""
        self.amqp_url = ""
        try:
            self._start()
        except BrokerProcessError as error:
            self.stop()
            if self._temporary is None:
                raise
            raise BrokerProcessError(str(error), hint="") from error  # its log is deleted
        except OSError as error:
            self.stop()
            raise BrokerProcessError(
                f"the broker can't write to {self.log_file.parent}: {error.strerror}",
                hint="Give a data_dir that this user can write to.",
            ) from error
        except BaseException:
            self.stop()
            raise

    @property
    def pid(self) -> int:
        """The process id of the broker. It must run."""
        if self._process is None:
            raise BrokerProcessError("the broker is stopped", hint="Start a new one.")
        return self._process.pid

    def check_running(self) -> None:
        """Check that the broker still runs.

        Raises:
            BrokerProcessError: it has ended by itself; the message says why.
        """
        if self._process is not None:
            self._process.check_running()

    def stop(self) -> None:
        """Stop the broker cleanly, and delete a temporary data folder.

        Does nothing if it is stopped. A folder of the caller's can be used for another broker.
        """
        process, self._process = self._process, None
        if process is not None:
            process.stop()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = self.bootstrap_servers if self._process is not None else "stopped"
        return f"<tidemill.Broker {state}>"

    def _start(self) -> None:
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        ready_file = self.log_file.with_suffix(".ready")
        self._process = ChildProcess(
            "the broker",
            [
                *("serve", "--data-dir", str(self.data_dir)),
                *("--host", HOST, "--kafka-port", str(self._port)),
                *(f"--set={name}={value}" for name, value in self._settings.items()),
            ],
            self.log_file,
            ready_file,
            error=BrokerProcessError,
        )
        try:
            ready = self._process.wait_until_ready(ready_file)
        finally:
            ready_file.unlink(missing_ok=True)
        self.bootstrap_servers = str(ready["kafka"])
        if "amqp" in ready:
            self.amqp_url = f"amqp://guest:guest@{ready['amqp']}/"
