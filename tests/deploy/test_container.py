"""The files in examples/deployment/container: they fit each other and a broker's settings. No container is run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from broker_runtime.broker import STOP_LIMIT_S
from broker_runtime.broker_process import GRACE_S
from broker_runtime.contract.settings import BrokerSettings, load_broker_settings

ROOT = Path(__file__).parents[2]
DIRECTORY = ROOT / "examples" / "deployment" / "container"
CONTAINERFILE = (DIRECTORY / "Containerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((DIRECTORY / "compose.yaml").read_text())
BROKERS = [name for name in COMPOSE["services"] if name.startswith("broker-")]


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, BrokerSettings]:
    """Of each broker of the compose file, read as it reads them."""
    found = {}
    for name in BROKERS:
        (config,) = COMPOSE["services"][name]["configs"]
        file = tmp_path / f"{name}.toml"
        file.write_text(COMPOSE["configs"][config["source"]]["content"])
        found[name] = load_broker_settings(file)
        assert config["target"] in CONTAINERFILE
    return found


def test_brokers_of_the_compose_file_make_one_cluster(settings: dict[str, BrokerSettings]) -> None:
    """Each has an id, an address and a volume of its own, and the same ZooKeeper, which is a service."""
    assert len(settings) == 3
    assert sorted(each.broker_id for each in settings.values()) == [1, 2, 3]
    addresses = [str(at) for each in settings.values() for _, at in each.advertised_listeners or ()]
    assert addresses == [f"{name}:9192" for name in settings]
    (zookeeper,) = {each.zookeeper_connect for each in settings.values()}
    assert zookeeper.partition(":")[0] in COMPOSE["services"]
    volumes = [COMPOSE["services"][name]["volumes"] for name in settings]
    assert sorted(volume.partition(":")[0] for (volume,) in volumes) == sorted({*COMPOSE["volumes"]} - {"zookeeper"})
    for (volume,), each in zip(volumes, settings.values(), strict=True):
        assert all(str(path).startswith(volume.partition(":")[2]) for path in each.log_dirs)


def test_health_check_asks_where_the_broker_listens(settings: dict[str, BrokerSettings]) -> None:
    """Otherwise every container would count as ill."""
    asked = re.search(r"http://127\.0\.0\.1:(\d+)/healthz", CONTAINERFILE)
    assert asked is not None
    assert {each.http_listener.port for each in settings.values() if each.http_listener} == {int(asked[1])}


def test_containers_are_given_the_time_to_stop() -> None:
    """A broker that is killed before would be recovered at its next start."""
    for name in BROKERS:
        assert int(COMPOSE["services"][name]["stop_grace_period"].removesuffix("s")) > STOP_LIMIT_S + GRACE_S


def test_images_are_built_of_what_is_there() -> None:
    """The targets exist, no image runs as root, and what the build may see makes the wheel."""
    stages = re.findall(r"^FROM \S+ AS (\w+)$", CONTAINERFILE, re.MULTILINE)
    assert {each["build"]["target"] for each in COMPOSE["services"].values()} <= set(stages)
    for target in ("broker", "zookeeper"):
        own = CONTAINERFILE.partition(f" AS {target}\n")[2].partition("\nFROM ")[0]
        assert re.findall(r"^USER (.+)$", own, re.MULTILINE)[-1] == "4711:4711"
    seen = re.findall(r"^!(.+)$", (DIRECTORY / "Containerfile.dockerignore").read_text(), re.MULTILINE)
    assert {"broker_runtime", "pyspark_log", "pyproject.toml", "README.md", "LICENSE"} <= set(seen)
    assert all((ROOT / each).exists() for each in seen)
