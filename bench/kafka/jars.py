"""Apache Kafka's broker, and Spark's connector to it, as jars that Maven fetches once into ``build/``.

Needs ``mvn``; without it the error says so in one line. The connector is that of the nearest Spark release, which works
with Spark 4.3, and comes without its dependencies: Spark has them already.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

KAFKA_VERSION: Final = "3.9.1"
CONNECTOR_VERSION: Final = "4.2.0"
_BUILD: Final = Path(__file__).resolve().parent.parent.parent / "build"
_FETCH_LIMIT_S: Final = 300


@dataclass(frozen=True, slots=True)
class _Artifact:
    group: str
    name: str
    version: str

    def as_xml(self, *, alone: bool) -> str:
        exclusion = "<exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>" if alone else ""
        return (
            f"<dependency><groupId>{self.group}</groupId><artifactId>{self.name}</artifactId>"
            f"<version>{self.version}</version><exclusions>{exclusion}</exclusions></dependency>"
        )


_BROKER: Final = (
    _Artifact("org.apache.kafka", "kafka_2.13", KAFKA_VERSION),
    _Artifact("org.slf4j", "slf4j-reload4j", "1.7.36"),
)
_CONNECTOR: Final = (
    _Artifact("org.apache.spark", "spark-sql-kafka-0-10_2.13", CONNECTOR_VERSION),
    _Artifact("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    _Artifact("org.apache.commons", "commons-pool2", "2.12.1"),
    _Artifact("org.apache.kafka", "kafka-clients", KAFKA_VERSION),
)


def broker_class_path() -> str:
    """What ``java -cp`` takes to run a Kafka broker."""
    return f"{_fetched(f'kafka-broker-{KAFKA_VERSION}', _BROKER, alone=False)}/*"


def connector_jars() -> list[Path]:
    """What Spark needs beside its own jars for ``format("kafka")``."""
    return sorted(_fetched(f"kafka-connector-{CONNECTOR_VERSION}", _CONNECTOR, alone=True).glob("*.jar"))


def _fetched(name: str, artifacts: tuple[_Artifact, ...], *, alone: bool) -> Path:
    """The directory with the jars. ``alone``: without those they depend on."""
    jars = _BUILD / name
    if jars.is_dir():
        return jars
    if shutil.which("mvn") is None:
        raise RuntimeError("Kafka's jars come by Maven: mvn is not on PATH")
    part = jars.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    dependencies = "\n".join(artifact.as_xml(alone=alone) for artifact in artifacts)
    (part / "pom.xml").write_text(
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>\n'
        "<groupId>bench</groupId><artifactId>kafka</artifactId><version>1</version>\n"
        f"<dependencies>\n{dependencies}\n</dependencies></project>\n"
    )
    command = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={part}"]
    subprocess.run(command, cwd=part, check=True, timeout=_FETCH_LIMIT_S, stdout=subprocess.DEVNULL)
    part.rename(jars)
    return jars
