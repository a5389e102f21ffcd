"""Brokers of the previous version are replaced by this one's one by one, and back, while clients of both go on.

The previous version is the newest tag ``v…`` before this commit; until there is one, the commit that recorded the
messages of the present protocol (`tests/golden`). ``PYLOG_UPGRADE_FROM`` names another commit. A clone without history
cannot tell, and skips.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from pyspark_log import Admin
from pyspark_log.errors import RetriableError
from pyspark_log.testing import LocalCluster
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
CLIENT = Path(__file__).parent / "upgrade_client.py"
RECORDED = "tests/golden/protocol-1.json"
TOPIC = "flights"
BUILD_LIMIT_S = 300.0
LIMIT_S = 120.0
PROGRESS = 50  # records that each producer gets acknowledged between two replacements


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One version of pylog: its name here, and where Python finds its packages."""

    name: str
    packages: Path

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(self.packages)}


def git(*arguments: str) -> str | None:
    """What git says; None: it does not know."""
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, timeout=60, check=False
        )
    except FileNotFoundError:
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def previous_commit() -> str | None:
    """The commit of the previous version; None: this clone does not know."""
    wanted = os.environ.get("PYLOG_UPGRADE_FROM")
    if wanted:
        found = git("rev-parse", "--verify", f"{wanted}^{{commit}}")
        assert found is not None, f"PYLOG_UPGRADE_FROM={wanted}: must be a commit of this repository"
        return found
    if git("rev-parse", "--is-shallow-repository") != "false":
        return None  # its oldest commit seems to have added everything
    tag = git("describe", "--tags", "--abbrev=0", "--match", "v[0-9]*", "HEAD^")
    return git("rev-parse", f"{tag}^{{commit}}") if tag else git(
        "log", "--diff-filter=A", "--format=%H", "-1", "--", RECORDED
    )  # fmt: skip


PREVIOUS = previous_commit()


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Version, Version]:
    """The previous version, installed from a wheel of its own, and this one."""
    directory = tmp_path_factory.mktemp("previous")
    source, wheels, packages = directory / "source", directory / "wheels", directory / "packages"
    source.mkdir()
    archive = directory / "source.tar"
    subprocess.run(["git", "-C", str(ROOT), "archive", "--output", str(archive), str(PREVIOUS)], check=True, timeout=60)
    subprocess.run(["tar", "-xf", str(archive), "-C", str(source)], check=True, timeout=60)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    for command in (
        [*pip, "wheel", "--no-deps", "--wheel-dir", str(wheels), str(source)],
        [
            *pip,
            "install",
            "--no-deps",
            "--target",
            str(packages),
            "--no-index",
            "--find-links",
            str(wheels),
            "pyspark-log",
        ],
    ):
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_LIMIT_S, check=False)
        assert done.returncode == 0, done.stderr
    return Version(name="previous", packages=packages), Version(name="present", packages=ROOT)


def records_in(file: Path) -> list[tuple[int, int, str]]:
    """Those of whole lines: partition, offset, value."""
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    found = [line.split(maxsplit=2) for line in lines if line.endswith("\n")]
    return [(int(partition), int(offset), value.strip()) for partition, offset, value in found]


class Client:
    """`upgrade_client.py` of one version, running. It ends with this process, if not before."""

    def __init__(self, kind: str, version: Version, servers: str, directory: Path) -> None:
        self.name = f"{kind}-{version.name}"
        self.file = directory / f"{self.name}.records"
        self._errors = directory / f"{self.name}.err"
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(CLIENT), kind, servers, TOPIC, self.name, str(self.file)],
                stdin=subprocess.PIPE, stderr=errors, env=version.environment, cwd=directory,
            )  # fmt: skip

    @property
    def records(self) -> list[tuple[int, int, str]]:
        return records_in(self.file)

    def wait_for_more(self) -> None:
        """Returns when `PROGRESS` further records came through."""
        before = self._count
        wait_until(lambda: self._count >= before + PROGRESS or self._has_ended, f"{self.name} goes on", LIMIT_S)
        assert not self._has_ended, self._errors.read_text()

    def finish(self) -> list[tuple[int, int, str]]:
        """Lets it end; returns all its records."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(LIMIT_S) == 0, self._errors.read_text()
        return self.records

    def close(self) -> None:
        if not self._has_ended:
            self._process.kill()
            self._process.wait(LIMIT_S)

    @property
    def _count(self) -> int:
        return self.file.read_bytes().count(b"\n") if self.file.exists() else 0

    @property
    def _has_ended(self) -> bool:
        return self._process.poll() is not None


@pytest.fixture
def cluster(
    own_zookeepers: None, versions: tuple[Version, Version], monkeypatch: pytest.MonkeyPatch
) -> Iterator[LocalCluster]:
    """Three brokers of the previous version."""
    monkeypatch.setenv("PYTHONPATH", str(versions[0].packages))
    with LocalCluster(brokers=3) as running:
        yield running


def packages_of(cluster: LocalCluster, broker_id: int) -> set[str]:
    """Where a broker's own modules come from, as Linux has it of its process."""
    environment = Path(f"/proc/{cluster.pid(broker_id)}/environ").read_bytes().split(b"\0")
    return {each.partition(b"=")[2].decode() for each in environment if each.startswith(b"PYTHONPATH=")}


@pytest.mark.skipif(PREVIOUS is None, reason="this clone does not have the history that tells the previous version")
def test_brokers_are_replaced_by_the_next_version_and_back_under_load(
    versions: tuple[Version, Version], cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nothing that was acknowledged is lost, doubled or moved, whatever version its producer, its brokers and its
    readers have, and no client notices more than a delay."""
    previous, present = versions
    for version in versions:
        probe = [sys.executable, "-P", "-c", "import broker_runtime, pyspark_log; print(broker_runtime.__file__)"]
        done = subprocess.run(probe, capture_output=True, text=True, timeout=60, check=True, env=version.environment)
        assert Path(done.stdout.strip()).is_relative_to(version.packages)
    with Admin(cluster.bootstrap_servers) as admin, ExitStack() as stack:
        admin.create_topic(TOPIC, partitions=3, replication_factor=3, config={"min.insync.replicas": "2"})
        cluster.wait_until_ready()
        assert admin.overview().is_healthy, "what the previous version does not say is unknown, and no illness"
        clients = {
            (kind, version.name): Client(kind, version, cluster.bootstrap_servers, tmp_path)
            for kind in ("produce", "transact", "consume")
            for version in versions
        }
        for client in clients.values():
            stack.callback(client.close)

        def replace_all(version: Version) -> None:
            monkeypatch.setenv("PYTHONPATH", str(version.packages))
            for broker_id in cluster.broker_ids:
                for client in clients.values():
                    client.wait_for_more()
                wait_until(
                    lambda: admin.check_health().is_healthy,
                    "all replicas are in sync",
                    LIMIT_S,
                    ignoring=(RetriableError,),
                )
                cluster.stop(broker_id)
                cluster.start(broker_id)
                if sys.platform == "linux":
                    assert packages_of(cluster, broker_id) == {str(version.packages)}
            for client in clients.values():
                client.wait_for_more()

        replace_all(present)
        replace_all(previous)

        acknowledged = [
            record for (kind, _), client in clients.items() if kind != "consume" for record in client.finish()
        ]
        assert len(acknowledged) == len({value for _, _, value in acknowledged}) >= 4 * 8 * PROGRESS
        delivered = {name: client.finish() for (kind, name), client in clients.items() if kind == "consume"}
        stored = {version.name: Client("read", version, cluster.bootstrap_servers, tmp_path) for version in versions}
        for reader in stored.values():
            stack.callback(reader.close)
        found = {name: reader.finish() for name, reader in stored.items()}

    assert sorted(found["previous"]) == sorted(found["present"])
    values = [value for _, _, value in found["present"]]
    assert len(values) == len(set(values)), "a record is there twice"
    assert set(acknowledged) <= set(found["present"]), "a record that was acknowledged is gone, or elsewhere"
    for name, records in delivered.items():
        assert set(acknowledged) <= set(records) <= set(found["present"]), f"what the {name} consumer was given"
