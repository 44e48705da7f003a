"""Checks this machine at the start: limits, rights and addresses. Problems are logged.

Only an address that is open to other machines ends the start. ``doctor`` checks some of it before.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from pathlib import Path

import structlog

from tidemill import system
from tidemill.errors import SettingsError
from tidemill.protocols.logins.settings import LoginSettings, OauthSettings
from tidemill.settings import Limits, Settings

OTHER_FILES = 128
"""Open files besides segments and connections: the journal, sockets, libraries, pipes of workers,
and what is open for a moment only: folders, indexes, checkpoints."""
LEAST_FILES = 16
"""Least segment files that can be open, as for ``limits.open_files``."""
_OTHERS = 0o007

log = structlog.get_logger("tidemill.server")


def needed_files(limits: Limits) -> int:
    """Return how many files the broker's limits let it open at the same time."""
    from tidemill.log.disk.index import most_maps

    # While files are synced before they are closed, a quarter more can be open.
    files = limits.open_files + limits.open_files // 4 + most_maps(limits.open_files)
    return files + limits.connections + OTHER_FILES


def fit_open_files(limits: Limits) -> Limits:
    """Raise the process's limit of open files if the broker can need more.

    Returns:
        The limits. If the system allows fewer open files, ``connections`` gets at most half of
        them, and ``open_files`` the rest. ``OTHER_FILES`` stay free.
    """
    needed = needed_files(limits)
    allowed = system.allow_open_files(needed)
    if allowed is None or allowed >= needed:
        return limits
    free = max(allowed - OTHER_FILES, 0)
    connections = max(min(limits.connections, free // 2), 1)
    files = max(min(limits.open_files, (free - connections) * 2 // 3), LEAST_FILES)
    log.warning(
        "open_files.too_few",
        allowed=allowed,
        needed=needed,
        connections=connections,
        open_files=files,
        why="limits.connections and limits.open_files together need more than the system "
        "allows, so the broker uses lower ones",
        hint="Raise the limit (ulimit -Hn, LimitNOFILE in systemd), or lower these settings.",
    )
    return limits.model_copy(update={"connections": connections, "open_files": files})


def check_folder(data_dir: Path) -> None:
    """Warn if other users of the machine have rights to the data folder. It is left as it is."""
    mode = data_dir.stat().st_mode & 0o777
    if mode & _OTHERS:
        log.warning(
            "data_dir.open_to_others",
            path=str(data_dir.absolute()),
            mode=f"{mode:04o}",
            why="all users of this machine have rights to this folder with all records",
            hint=f"Run chmod -R o-rwx {data_dir.absolute()}",
        )


def check_addresses(unguarded: Sequence[tuple[str, str, int]], *, insecure: bool) -> None:
    """Refuse to serve clients on other machines that need no login.

    Args:
        unguarded: name, host and port of each listener whose clients need no login.
        insecure: whether that is wanted; then it is a warning.

    Raises:
        SettingsError: other machines can connect to one of them.
    """
    for name, host, port in unguarded:
        if _is_loopback(host):
            continue
        if not insecure:
            raise SettingsError(
                f"the listener {name} on {host}:{port} needs no login: every machine that can "
                "reach this address could read, write and delete all data",
                hint=f"""Set what logins need, in tidemill.toml:
  [{name}]
  tls_cert = "broker.pem"             # with its key in the file, or in tls_key
  mechanisms = "SCRAM-SHA-256"
and make the first user: tidemill user create. --host 127.0.0.1 serves this machine only, and
--insecure serves everyone.""",
            )
        log.warning(
            "address.open",
            listener=name,
            host=host,
            port=port,
            why="clients need no login: every machine that can reach this address can read, "
            "write and delete all data",
            hint="Set mechanisms and tls_cert, use --host 127.0.0.1, or restrict access with a "
            "firewall or a private network.",
        )


def check_users(*, needed: bool, stored: bool, settings: Settings) -> None:
    """Warn if clients have to log in, and no user can.

    Args:
        needed: whether clients have to log in.
        stored: whether the broker stores a user.
    """
    elsewhere = settings.section(LoginSettings).users_file, settings.section(OauthSettings).jwks
    if needed and not stored and not any(elsewhere):
        log.warning(
            "logins.no_users",
            why="clients have to log in, and there are no users",
            hint="Stop the broker and make a super user: tidemill user create NAME --admin "
            f"--data-dir {settings.data_dir}",
        )


def _is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a host: an address or a name."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        pass
    try:
        found = {str(each[4][0]) for each in socket.getaddrinfo(host, None)}
    except OSError:
        return False  # binding it fails, too
    return all(ipaddress.ip_address(each.partition("%")[0]).is_loopback for each in found)
