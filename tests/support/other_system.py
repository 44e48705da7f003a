"""Makes tests and programs believe that they don't run on Linux: takes away what only Linux has.

``pytest --other-system`` does it for all tests and for the programs that they start. Python imports
``sitecustomize`` at its start, in a program and in all Python processes that it starts. So this
hides calls of the system from a whole broker, or from a pipeline and its workers. It shows that
nothing needs them, and not that macOS does what it says.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from tidemill import system

_PROGRAM = """
import ctypes
import os
import selectors
import signal
import socket
import sys
import sysconfig
import types

sysconfig.get_config_vars()  # from a file whose name has the platform
sys.platform = "darwin"
for module, names in {
    os: (
        "fdatasync posix_fallocate posix_fadvise preadv pwritev RWF_NOWAIT RWF_DSYNC RWF_HIPRI "
        "sendfile copy_file_range splice eventfd memfd_create pipe2 getrandom pidfd_open "
        "sched_getaffinity sched_setaffinity sched_setscheduler getxattr setxattr listxattr "
        "O_DIRECT O_TMPFILE O_PATH O_NOATIME O_LARGEFILE"
    ),
    signal: "sigtimedwait sigwaitinfo pidfd_send_signal SIGPWR SIGSTKFLT SIGRTMIN SIGRTMAX",
    socket: "SOCK_NONBLOCK SOCK_CLOEXEC SO_PASSCRED TCP_CORK TCP_QUICKACK AF_NETLINK",
}.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
if hasattr(os, "process_cpu_count"):  # Python 3.13 has defined it with sched_getaffinity
    os.process_cpu_count = os.cpu_count
sys.modules["uvloop"] = None
selectors.DefaultSelector = selectors.PollSelector  # macOS has kqueue, which Linux has not
proxies = types.ModuleType("_scproxy")  # urllib asks macOS for its proxies
proxies._get_proxies = proxies._get_proxy_settings = dict
sys.modules["_scproxy"] = proxies

HIDDEN = ("mallopt", "malloc_trim", "syncfs", "prctl")


class CDLL(ctypes.CDLL):
    def __getattr__(self, name):
        if name in HIDDEN:
            raise AttributeError(name)
        return super().__getattr__(name)


ctypes.CDLL = CDLL
"""


def hide_linux(folder: Path, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Write the program into a folder; return the variables with which Python runs it first."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(_PROGRAM)
    before = (environ or os.environ).get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(folder), *([before] if before else [])])}


def leave_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the portable code run in this process, where it has another way for Linux."""
    monkeypatch.setattr(system, "is_linux", lambda: False)
    monkeypatch.setattr(system, "_has_cachestat", False)
