"""A tidemill broker in a process of its own.

Knows the command line (``tidemill serve``) only.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from tests.support import environment
from tests.support.ports import reserve_port
from tests.support.ready_process import ReadyProcess

NO_RETENTION = {"log.retention_check_ms": str(24 * 3_600_000)}
"""By default a broker looks every five minutes for records that are older than seven days, and
deletes them. Many tests write records with times of long ago, and a busy machine runs them in the
sixth minute of a broker that they share."""

ALONE = {"gateway.enabled": "false", "health.enabled": "false"}
"""Without what a broker offers besides its protocols: they have fixed ports."""


class BrokerProcess(ReadyProcess):
    """``tidemill serve`` on loopback over one data folder.

    Args:
        folder: for the data folder, the log and the output. It is created, and kept.
        settings: ``--set`` values, e.g. ``{"default_partitions": "4"}``. Those of ``NO_RETENTION``
            and ``ALONE`` are the default.
        env: variables in addition to the present ones, of which those of tidemill are removed.
        command: replaces ``python -m tidemill``, e.g. a wrapper that injects faults.
        fresh: start a Python of its own. By default, ``python -m`` is forked from a process that
            has imported tidemill, which saves half a second of processor time.
        plain: pass only ``settings``, for a version that may not know the others.
    """

    def __init__(
        self,
        folder: Path,
        *,
        settings: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        command: Sequence[str] = (sys.executable, "-m", "tidemill"),
        fresh: bool = False,
        plain: bool = False,
    ) -> None:
        is_forked = not fresh and [*command][:2] == [sys.executable, "-m"]
        variables = {**environment.without_settings(), **(env or {})}
        super().__init__("tidemill serve", folder, "broker.log", variables, forked=is_forked)
        self.data_dir = folder / "data"
        own = {} if plain else {**NO_RETENTION, **ALONE, "amqp.port": str(reserve_port())}
        self._settings = {**own, **(settings or {})}
        self._command = list(command)
        self._port = reserve_port()

    @property
    def bootstrap(self) -> str:
        """``host:port`` for clients."""
        return f"127.0.0.1:{self._port}"

    @property
    def port(self) -> int:
        """The port of the Kafka protocol."""
        return self._port

    @property
    def amqp_port(self) -> int:
        """The port of AMQP, known after the first start if the settings name port 0."""
        return int(self._settings["amqp.port"])

    def command(self) -> Sequence[str]:
        """Return the program and its arguments."""
        return [
            *self._command,
            *("serve", "--data-dir", str(self.data_dir)),
            *("--host", "127.0.0.1", "--kafka-port", str(self._port)),
            *(f"--set={key}={value}" for key, value in self._settings.items()),
        ]

    def start(self, timeout: float = 120) -> Self:
        """Start and wait until it reports that it is ready, as ``ReadyProcess``."""
        super().start(timeout)
        self._port = int(str(self.ready_event["kafka"]).rpartition(":")[2])
        if "amqp" in self.ready_event:
            # A restart keeps it.
            self._settings["amqp.port"] = str(self.ready_event["amqp"]).rpartition(":")[2]
        return self
