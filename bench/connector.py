"""Finds Spark's own Kafka connector, a contender of the pipelines.

PySpark's wheel lacks its jars. Maven copies them once into a cache folder outside of the
repository. Must not know: what is measured.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

VERSION = "4.2.0"
"""The newest version of the connector that Maven resolves. It runs on PySpark 4.3."""

ARTIFACTS = (
    "spark-sql-kafka-0-10_2.13",
    "spark-token-provider-kafka-0-10_2.13",
    "kafka-clients",
    "commons-pool2",
)
"""The jars that PySpark's wheel lacks, without their versions."""

MAVEN_TIMEOUT_S = 300.0

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>bench</groupId><artifactId>connector</artifactId><version>1</version>
<dependencies><dependency><groupId>org.apache.spark</groupId>
<artifactId>{artifact}</artifactId><version>{version}</version></dependency></dependencies>
</project>
"""


class ConnectorNotFoundError(Exception):
    """The jars are not in the cache, and Maven can't fetch them. The message says why."""


def cache_folder() -> Path:
    """Return the folder of the jars, below XDG_CACHE_HOME or ~/.cache."""
    parent = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return parent / "tidemill" / f"spark-kafka-connector-{VERSION}"


def find_connector(folder: Path | None = None) -> list[Path]:
    """Return the connector's jars; copy them with Maven if they are not in the cache.

    Args:
        folder: Folder of the jars; default: ``cache_folder()``.

    Raises:
        ConnectorNotFoundError: The jars are missing, and Maven is missing or can't fetch them.
    """
    folder = folder or cache_folder()
    if (found := _jars_in(folder)) is not None:
        return found
    maven = shutil.which("mvn")
    if maven is None:
        raise ConnectorNotFoundError(f"{folder} has no jars, and there is no mvn to fetch them")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="connector-") as project:
        Path(project, "pom.xml").write_text(_POM.format(artifact=ARTIFACTS[0], version=VERSION))
        command = [maven, "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime"]
        command += [f"-DincludeArtifactIds={','.join(ARTIFACTS)}", f"-DoutputDirectory={folder}"]
        try:
            done = subprocess.run(
                command,
                cwd=project,
                capture_output=True,
                text=True,
                timeout=MAVEN_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ConnectorNotFoundError(
                f"mvn did not fetch the connector within {MAVEN_TIMEOUT_S:g} s"
            ) from None
    if (found := _jars_in(folder)) is None:
        raise ConnectorNotFoundError(
            f"mvn could not fetch the connector {VERSION}: {done.stdout[-1000:].strip()}"
        )
    return found


def jars_or_none(wanted: bool | None) -> list[str]:
    """Return the connector's jars, or none if it does not take part.

    Args:
        wanted: Whether it takes part; None if it is found.

    Raises:
        ConnectorNotFoundError: It is wanted, but not found.
    """
    if wanted is False:
        return []
    try:
        return [str(jar) for jar in find_connector()]
    except ConnectorNotFoundError as error:
        if wanted:
            raise
        print(f"note: no Spark Kafka connector to compare with: {error}", file=sys.stderr)
        return []


def _jars_in(folder: Path) -> list[Path] | None:
    """Return one jar for each artifact, or None if one is missing."""
    found = [next(iter(sorted(folder.glob(f"{name}-[0-9]*.jar"))), None) for name in ARTIFACTS]
    jars = [each for each in found if each is not None]
    return jars if len(jars) == len(ARTIFACTS) else None
