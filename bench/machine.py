"""Describes the machine, and controls its page cache and memory figures. Linux only."""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
from pathlib import Path

import psutil


def describe(folder: Path) -> dict[str, str]:
    """Return what a reader must know to compare figures.

    Args:
        folder: The folder for the data.
    """
    mount, kind = file_system(folder)
    memory = psutil.virtual_memory().total / 1e9
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "processor": f"{psutil.cpu_count()} x {_processor()}",
        "memory": f"{memory:.0f} GB",
        "disk": f"{kind} on {mount}",
        "kernel": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "load before": f"{os.getloadavg()[0]:.1f} (above 0.5 the figures are noisy)",
    }


def _processor() -> str:
    fields: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    name = fields.get("model name", platform.machine())
    mhz = fields.get("cpu MHz")
    return f"{name}, {float(mhz) / 1000:.1f} GHz" if mhz else name


def file_system(folder: Path) -> tuple[str, str]:
    """Return device and type of the file system of a folder."""
    best = ("?", "?")
    longest = -1
    for part in psutil.disk_partitions(all=True):
        if folder.resolve().is_relative_to(part.mountpoint) and len(part.mountpoint) > longest:
            longest = len(part.mountpoint)
            best = (part.device, part.fstype)
    return best


def settle() -> None:
    """Write all dirty pages to disk, so that no contender waits for the writes of another."""
    os.sync()


def forget_pages(folder: Path) -> None:
    """Remove the files of a folder from the page cache, as after a restart of the machine."""
    settle()
    for path in folder.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process in 10^6 bytes."""
    return _status_mb(pid, "VmRSS")


def peak_mb(pid: int) -> float:
    """Return the highest resident memory since ``reset_peak``, or since the process started."""
    return _status_mb(pid, "VmHWM")


def reset_peak(pid: int) -> None:
    """Start measuring the peak again, if the kernel allows it."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def written_bytes(pid: int) -> int | None:
    """Return the bytes that a process has written to disks; None where the system can't say."""
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    except OSError:
        return None
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))


def _status_mb(pid: int, name: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024 / 1e6
    raise ProcessLookupError(f"process {pid} has ended")
