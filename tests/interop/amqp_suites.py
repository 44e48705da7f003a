"""The acceptance suites of AMQP clients, run from their sources against a tidemill broker.

``python -m tests.interop.amqp_suites [--sources FOLDER] [--port N] [NAME...]`` clones pika, kombu,
py-amqp and aiormq into a temporary folder (or takes the checkouts in FOLDER), starts brokers on
127.0.0.1:5672 and, with TLS, on 5671, and runs the suites. Exit code 0 if exactly the tests of
``EXPECTED`` fail. The reasons are in ``FINDINGS.md``. aiormq's suite needs ``pip install
aiomisc-pytest``. py-amqp's checkout gets a certificate of a new authority, because the suite's own
has no server certificate.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.broker_process import BrokerProcess
from tests.support.certificates import self_signed

DEFAULT_PORT = 5672
"""pika's suite knows no other."""
TLS_PORT = 5671
"""The others' suites know no other."""


@dataclass(frozen=True)
class Suite:
    """The suite of one client.

    Attributes:
        url: its repository.
        tests: files, relative to the repository.
        without: a pytest expression for what needs more than a broker.
        env: the environment that the suite's own option -E asks for.
        certificate, key: of the server, relative to the repository; empty without TLS.
        authority: the file that gets the certificate of a new authority, if the server's is made.
    """

    url: str
    tests: tuple[str, ...]
    without: str
    env: str = ""
    certificate: str = ""
    key: str = ""
    authority: str = ""


SUITES = {
    "pika": Suite(
        "https://github.com/pika/pika",
        (
            "tests/acceptance/blocking_adapter_test.py",
            "tests/acceptance/async_adapter_tests.py",
            "tests/acceptance/thread_safe_connection_test.py",
            "tests/acceptance/enforce_one_basicget_test.py",
        ),
        # Adapters of other packages; the adapter is not what is tested here.
        "not gevent and not tornado",
    ),
    "kombu": Suite(
        "https://github.com/celery/kombu",
        ("t/integration/test_py_amqp.py",),
        "not redis",
        "py-amqp",
    ),
    "py-amqp": Suite(
        "https://github.com/celery/py-amqp",
        ("t/integration/test_rmq.py", "t/integration/test_integration.py"),
        "not default_certs",  # they connect to another site
        "rabbitmq",
        "t/certs/server.pem",
        "t/certs/server.key",
        "t/certs/ca_certificate.pem",
    ),
    "aiormq": Suite(
        "https://github.com/mosquito/aiormq",
        ("tests/test_channel.py", "tests/test_connection.py"),
        "not big_message",  # 20 MiB, and it does not wait for the answer
        "",
        "tests/certs/server.pem",
        "tests/certs/server.key",
    ),
}
EXPECTED: dict[str, set[str]] = {
    "aiormq": {
        f"tests/test_connection.py::test_bad_channel[{url}]"
        for url in ("amqp", "amqp-named", "amqps", "amqps-client")
    }
}
"""Tests that fail, by suite."""


@contextlib.contextmanager
def tls_broker(suite: Suite, root: Path, folder: Path) -> Iterator[None]:
    """Run a broker with the suite's certificate, if it has one."""
    if not suite.certificate:
        yield
        return
    certificate, key = root / suite.certificate, root / suite.key
    if suite.authority:
        made, made_key = self_signed(folder)
        for target in (certificate, root / suite.authority):
            shutil.copy(made, target)
        shutil.copy(made_key, key)
    settings = {
        "amqp.port": str(TLS_PORT),
        "amqp.tls_cert": str(certificate.absolute()),
        "amqp.tls_key": str(key.absolute()),
    }
    with BrokerProcess(folder / f"tls-{root.name}", settings=settings):
        yield


def run(suite: Suite, root: Path, port: int) -> set[str]:
    """Run a suite and print its output; return the names of the tests that fail."""
    # The settings of the suite's own project would ask for plugins and containers.
    options = ["-q", "-rfE", "--tb=short", "-p", "no:cacheprovider", "-c", os.devnull]
    options += ["-o", "python_classes=test_* Test*", "-W", "ignore"]
    options += ["-E", suite.env] if suite.env else []
    command = [sys.executable, "-m", "pytest", *options, "--rootdir", ".", "--timeout=300"]
    done = subprocess.run(
        [*command, *(("-k", suite.without) if suite.without else ()), *suite.tests],
        cwd=root,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")]),
            "RABBITMQ_HOST": "127.0.0.1",
            "RABBITMQ_5672_TCP": str(port),
            "AMQP_URL": f"amqp://guest:guest@127.0.0.1:{port}//",
        },
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    print(done.stdout)
    if done.returncode not in (0, 1):
        raise SystemExit(f"the suite did not run: exit code {done.returncode}")
    return set(re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE))


def main() -> int:
    """Run the suites; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(SUITES))
    parser.add_argument("--sources", type=Path, help="folder with a checkout of each client")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT)
    arguments = parser.parse_args()
    unexpected = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with BrokerProcess(folder / "broker", settings={"amqp.port": str(arguments.port)}):
            for name in arguments.names or SUITES:
                suite = SUITES[name]
                root = (arguments.sources or folder) / name
                if arguments.sources is None:
                    clone = ["git", "clone", "-q", "--depth", "1", suite.url, str(root)]
                    subprocess.run(clone, check=True)
                with tls_broker(suite, root, folder):
                    failed = run(suite, root, arguments.port)
                for test in sorted(failed ^ EXPECTED.get(name, set())):
                    unexpected += 1
                    print(f"{name}: {'fails' if test in failed else 'passes'}: {test}")
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
