"""Finds the Kafka connectors of Spark and of Flink, and other jars that the contenders need.

The wheels of PySpark and of PyFlink lack the connectors. Maven copies them once into a cache folder
outside of the repository. Must not know: what is measured.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

VERSION = "4.2.0"
"""The newest version of the connector that Maven resolves. It runs on PySpark 4.3."""


@dataclass(frozen=True)
class Connector:
    """A connector in Maven's repository.

    Attributes:
        name: Name of its folder in the cache.
        group: Maven's group.
        version: Version of the first artifact.
        artifacts: The jars that the wheel lacks, without their versions. The others are
            dependencies of the first.
        whole: Whether all dependencies of the first artifact are copied, too.
    """

    name: str
    group: str
    version: str
    artifacts: tuple[str, ...]
    whole: bool = False


SPARK = Connector(
    "spark-kafka-connector",
    "org.apache.spark",
    VERSION,
    (
        "spark-sql-kafka-0-10_2.13",
        "spark-token-provider-kafka-0-10_2.13",
        "kafka-clients",
        "commons-pool2",
    ),
)
FLINK = Connector(
    "flink-kafka-connector", "org.apache.flink", "5.0.0-2.2", ("flink-sql-connector-kafka",)
)

MAVEN_TIMEOUT_S = 300.0

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>bench</groupId><artifactId>connector</artifactId><version>1</version>
<dependencies><dependency><groupId>{group}</groupId>
<artifactId>{artifact}</artifactId><version>{version}</version></dependency></dependencies>
</project>
"""


class ConnectorNotFoundError(Exception):
    """The jars are not in the cache, and Maven can't fetch them. The message says why."""


def cache_folder(connector: Connector = SPARK) -> Path:
    """Return the folder of a connector's jars, below XDG_CACHE_HOME or ~/.cache."""
    parent = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return parent / "tidemill" / f"{connector.name}-{connector.version}"


def find_connector(connector: Connector = SPARK, folder: Path | None = None) -> list[Path]:
    """Return a connector's jars; copy them with Maven if they are not in the cache.

    Args:
        connector: The connector.
        folder: Folder of the jars; default: ``cache_folder(connector)``.

    Raises:
        ConnectorNotFoundError: The jars are missing, and Maven is missing or can't fetch them.
    """
    folder = folder or cache_folder(connector)
    if (found := _jars_in(folder, connector)) is not None:
        return found
    maven = shutil.which("mvn")
    if maven is None:
        raise ConnectorNotFoundError(f"{folder} has no jars, and there is no mvn to fetch them")
    folder.mkdir(parents=True, exist_ok=True)
    printed = _copy(maven, connector, folder)
    if (found := _jars_in(folder, connector)) is None:
        raise ConnectorNotFoundError(
            f"mvn could not fetch {connector.name} {connector.version}: {printed[-1000:].strip()}"
        )
    return found


def _copy(maven: str, connector: Connector, folder: Path) -> str:
    """Copy the jars into a folder, and return what Maven prints."""
    command = [maven, "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime"]
    if not connector.whole:
        command += [f"-DincludeArtifactIds={','.join(connector.artifacts)}"]
    pom = _POM.format(
        group=connector.group, artifact=connector.artifacts[0], version=connector.version
    )
    with tempfile.TemporaryDirectory(prefix="connector-") as project:
        Path(project, "pom.xml").write_text(pom)
        try:
            done = subprocess.run(
                [*command, f"-DoutputDirectory={folder}"],
                cwd=project,
                capture_output=True,
                text=True,
                timeout=MAVEN_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ConnectorNotFoundError(
                f"mvn did not fetch {connector.name} within {MAVEN_TIMEOUT_S:g} s"
            ) from None
    return done.stdout


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


def _jars_in(folder: Path, connector: Connector) -> list[Path] | None:
    """Return one jar for each artifact, or None if one is missing."""
    names = connector.artifacts
    found = [next(iter(sorted(folder.glob(f"{name}-[0-9]*.jar"))), None) for name in names]
    jars = [each for each in found if each is not None]
    return jars if len(jars) == len(names) else None
