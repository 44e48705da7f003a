"""kafka-python's own integration tests, run against a tidemill broker.

They are in kafka-python's source distribution, which is fetched with pip, so this is a program and
no test: ``python -m tests.interop.kafka_python_suite [--sdist FILE] [--bootstrap HOST:PORT]``.
Exit code 0 if exactly the tests of ``EXPECTED`` fail.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from tests.support.broker_process import BrokerProcess

VERSION = "3.0.12"
KAFKA_VERSION = "4.3.0"

EXPECTED = {
    "test_admin_integration.py::test_create_describe_delete_acls",
    "test_ssl_integration.py::TestSSLConnection::test_ssl_handshake",
    "test_ssl_integration.py::TestSSLConnection::test_legacy_kafka_client_ssl",
}
"""Tests that need ACLs or TLS certificates of the suite's own broker."""

SETTINGS = {
    # The tests assume their own fixture's broker: id 0, 4 partitions by default, short sessions.
    "node_id": "0",
    "default_partitions": "4",
    "groups.min_session_timeout_ms": "1000",
}

SERVICE = '''"""Stands in for a module that the source distribution leaves out."""


class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def open(self):
        pass

    def close(self):
        pass


class SpawnedService:
    def __init__(self, *args, **kwargs):
        raise RuntimeError("only an external broker can be used here")
'''


def fetch(folder: Path) -> Path:
    """Download the source distribution with pip."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:"]
    subprocess.run([*command, f"kafka-python=={VERSION}", "-d", str(folder)], check=True)
    (found,) = folder.glob("kafka_python-*.tar.gz")
    return found


def run_suite(sdist: Path, folder: Path, bootstrap: str) -> set[str]:
    """Run the integration tests; returns the names of those that fail, and prints the output."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    root = folder / f"kafka_python-{VERSION}"
    # Without it, ``test`` is the standard library's.
    (root / "test" / "__init__.py").touch()
    service = root / "test" / "service.py"
    if not service.exists():
        service.write_text(SERVICE)
    options = ["-p", "no:asyncio", "-p", "no:cacheprovider", "-q", "-rfE", "--tb=short"]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            *options,
            "--timeout=300",
            "--timeout-method=signal",
            "test/integration",
        ],
        cwd=root,
        env={
            **os.environ,
            "PYTHONPATH": str(root),
            "KAFKA_VERSION": KAFKA_VERSION,
            "KAFKA_URI": f"kafka://{bootstrap}",
            "KAFKA_ROOT": str(folder),
        },
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    print(done.stdout)
    if done.returncode not in (0, 1):
        raise SystemExit(f"pytest itself failed with exit code {done.returncode}")
    lines = re.findall(r"^(?:FAILED|ERROR) test/integration/(\S+)", done.stdout, re.MULTILINE)
    return set(lines)


def main() -> int:
    """Start a broker, run the suite, compare."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sdist", type=Path, help="kafka-python's source distribution")
    parser.add_argument("--bootstrap", help="another broker than a fresh tidemill")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kafka-python-suite-") as name:
        folder = Path(name)
        sdist = arguments.sdist or fetch(folder)
        if arguments.bootstrap:
            failed = run_suite(sdist, folder, arguments.bootstrap)
        else:
            with BrokerProcess(folder / "broker", settings=SETTINGS) as broker:
                failed = run_suite(sdist, folder, broker.bootstrap)
    for test in sorted(failed - EXPECTED):
        print(f"fails and should not: {test}")
    for test in sorted(EXPECTED - failed):
        print(f"passes now: remove it from EXPECTED: {test}")
    return 0 if failed == EXPECTED else 1


if __name__ == "__main__":
    sys.exit(main())
