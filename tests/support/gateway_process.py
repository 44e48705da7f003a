"""A gateway in a process of its own.

Knows the command line (``tidemill gateway``) only.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support import environment
from tests.support.ports import reserve_port
from tests.support.ready_process import ReadyProcess


class GatewayProcess(ReadyProcess):
    """``tidemill gateway`` on loopback.

    Args:
        folder: for the output. It is created, and kept.
        bootstrap: address of the brokers.
        settings: ``--set`` values, e.g. ``{"gateway.body_bytes": "2048"}``.
        config: a settings file.
    """

    def __init__(
        self,
        folder: Path,
        bootstrap: str,
        *,
        settings: Mapping[str, str] | None = None,
        config: Path | None = None,
    ) -> None:
        cache = {"XDG_CACHE_HOME": str(folder / "cache")}  # of indexes
        env = {**environment.without_settings(), **cache}
        super().__init__("tidemill gateway", folder, "gateway.log", env, forked=True)
        self.port = reserve_port()
        self._command: Sequence[str] = [
            *(sys.executable, "-m", "tidemill", "gateway", "-b", bootstrap),
            *("--port", str(self.port)),
            *(() if config is None else ("--config", str(config))),
            *(f"--set={key}={value}" for key, value in (settings or {}).items()),
        ]

    @property
    def url(self) -> str:
        """The address of the topics, without a slash at the end."""
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> Sequence[str]:
        """Return the program and its arguments."""
        return self._command
