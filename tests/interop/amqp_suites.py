"""The acceptance suites of AMQP clients, run from their sources against a tidemill broker.

``python -m tests.interop.amqp_suites [--sources FOLDER] [--port N] [NAME...]`` clones pika, kombu,
py-amqp and aiormq into a temporary folder (or takes the checkouts in FOLDER), starts a broker on
127.0.0.1:5672 and runs the suites. Exit code 0 if exactly the tests of ``EXPECTED`` fail. The
reasons are in ``FINDINGS.md``. aiormq's suite needs ``pip install aiomisc-pytest``.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.support.broker_process import BrokerProcess

DEFAULT_PORT = 5672
"""pika's suite knows no other."""


@dataclass(frozen=True)
class Suite:
    """The suite of one client.

    Attributes:
        url: its repository.
        tests: files, relative to the repository.
        without: a pytest expression for what needs more than a broker.
        env: the environment that the suite's own option -E asks for.
    """

    url: str
    tests: tuple[str, ...]
    without: str
    env: str = ""


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
        # They need RabbitMQ's TLS port with the suite's certificates, and another site.
        "not tls",
        "rabbitmq",
    ),
    "aiormq": Suite(
        "https://github.com/mosquito/aiormq",
        ("tests/test_channel.py", "tests/test_connection.py"),
        # They need port 5671 with the suite's certificates.
        "not amqps and not ssl",
    ),
}
EXPECTED: dict[str, set[str]] = {
    "aiormq": {
        "tests/test_connection.py::test_bad_channel[amqp]",
        "tests/test_connection.py::test_bad_channel[amqp-named]",
    }
}
"""Tests that fail, by suite."""


def run(suite: Suite, root: Path, port: int) -> set[str]:
    """Run a suite and print its output; return the names of the tests that fail."""
    # The settings of the suite's own project would ask for plugins and containers.
    options = ["-q", "-rfE", "--tb=short", "-p", "no:cacheprovider", "-c", os.devnull]
    options += ["-o", "python_classes=test_* Test*", "-W", "ignore"]
    options += ["-E", suite.env] if suite.env else []
    command = [sys.executable, "-m", "pytest", *options, "--rootdir", ".", "--timeout=60"]
    done = subprocess.run(
        [*command, "-k", suite.without, *suite.tests],
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
                failed = run(suite, root, arguments.port)
                for test in sorted(failed ^ EXPECTED.get(name, set())):
                    unexpected += 1
                    print(f"{name}: {'fails' if test in failed else 'passes'}: {test}")
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
