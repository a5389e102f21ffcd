"""The Helm chart in examples/deployment/helm: what its templates make, and if brokers accept it. No cluster is run.

Where the machine has no helm, nothing can be rendered; where it has no kubernetes-validate, what is rendered is not
compared with the API's schemas.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from broker_runtime.broker import STOP_LIMIT_S
from broker_runtime.broker_process import GRACE_S
from broker_runtime.contract.settings import BrokerSettings, load_broker_settings, settings_of

ROOT = Path(__file__).parents[2]
CHART = ROOT / "examples" / "deployment" / "helm" / "pylog"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
HELM = shutil.which("helm")
VALIDATE = shutil.which("kubernetes-validate")
ZOOKEEPER = "zk-0.zk:2181,zk-1.zk:2181/pylog"
needs_helm = pytest.mark.skipif(HELM is None, reason="this machine has no helm")


def helm(*arguments: str, values: dict[str, Any] | None = None, directory: Path) -> subprocess.CompletedProcess[str]:
    """Runs helm on the chart with these values beside those of the chart."""
    file = directory / "values.json"
    file.write_text(json.dumps({"zookeeper": {"connect": ZOOKEEPER}, **(values or {})}))
    home = {name: str(directory) for name in ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME")}
    return subprocess.run(
        [str(HELM), *arguments, "-f", str(file)],
        capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **home},
    )  # fmt: skip


def rendered(directory: Path, **values: Any) -> dict[str, dict[str, Any]]:
    """What the chart makes, by kind and name."""
    arguments = ("template", "log", str(CHART), "--namespace", "prod", "--kube-version", "1.31.0")
    done = helm(*arguments, values=values, directory=directory)
    assert done.returncode == 0, done.stderr
    (directory / "rendered.yaml").write_text(done.stdout)
    return {f"{each['kind']}/{each['metadata']['name']}": each for each in yaml.safe_load_all(done.stdout) if each}


def settings_in_pod(directory: Path, made: dict[str, dict[str, Any]], pod: str) -> BrokerSettings:
    """What a broker is started with: the container's own command is run, with a `pylog` that keeps its arguments."""
    (container,) = made["StatefulSet/log-pylog"]["spec"]["template"]["spec"]["containers"]
    *shell, script = container["command"]
    mounted, scratch, bin_ = directory / "etc", directory / "scratch", directory / "bin"
    for each in (mounted, scratch, bin_):
        each.mkdir(exist_ok=True)
    (mounted / "broker.toml").write_text(made["ConfigMap/log-pylog"]["data"]["broker.toml"])
    (bin_ / "pylog").write_text('#!/bin/sh\necho "$@"\n')
    (bin_ / "pylog").chmod(0o755)
    domain = next(each["value"] for each in container["env"] if each["name"] == "PYLOG_DOMAIN")
    done = subprocess.run(
        [*shell, script.replace("/tmp/", f"{scratch}/").replace("/etc/pylog", str(mounted))],
        capture_output=True, text=True, timeout=60, check=True,
        env={"PATH": f"{bin_}:{os.environ['PATH']}", "HOSTNAME": pod, "PYLOG_DOMAIN": domain},
    )  # fmt: skip
    assert done.stdout.split() == ["broker", "start", "--config", str(scratch / "broker.toml")]
    return load_broker_settings(scratch / "broker.toml")


@needs_helm
def test_chart_passes_lint(tmp_path: Path) -> None:
    """Also its strict rules."""
    done = helm("lint", str(CHART), "--strict", directory=tmp_path)
    assert done.returncode == 0, done.stdout


@needs_helm
def test_each_pod_starts_a_broker_of_its_own(tmp_path: Path) -> None:
    """The pod's number makes the id, its name the address, and settings go through whatever type they have."""
    given = {"num.partitions": 6, "log.dir.min.free.bytes": 2147483648, "delete.topic.enable": False,
             "replica.lag.time.max.ms": "10s"}  # fmt: skip
    made = rendered(tmp_path, settings=given)
    found = settings_in_pod(tmp_path, made, "log-pylog-11")
    assert found.broker_id == 12
    assert str(found.advertised_listeners) == "log-pylog-11.log-pylog-brokers.prod.svc.cluster.local:9192"
    assert found.zookeeper_connect == ZOOKEEPER
    assert (found.num_partitions, found.log_dir_min_free_bytes) == (6, 2147483648)
    assert (found.delete_topic_enable, found.replica_lag_time_max_ms) == (False, 10_000)
    assert found.default_replication_factor == VALUES["settings"]["default.replication.factor"]


@needs_helm
def test_pods_are_kept_apart_probed_where_they_listen_and_keep_their_data(tmp_path: Path) -> None:
    """The StatefulSet, its services, its volumes and its budget fit each other."""
    made = rendered(tmp_path)
    pods = made["StatefulSet/log-pylog"]["spec"]
    pod = pods["template"]["spec"]
    (container,) = pod["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    found = settings_in_pod(tmp_path, made, "log-pylog-0")
    assert found.http_listener is not None
    assert (ports["pylog"], ports["http"]) == (found.listeners.port, found.http_listener.port)
    probes = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert {name: each["path"] for name, each in probes.items()} == {
        "startup": "/readyz", "liveness": "/healthz", "readiness": "/readyz",
    }  # fmt: skip
    (claim,) = pods["volumeClaimTemplates"]
    (data,) = [each for each in container["volumeMounts"] if each["name"] == claim["metadata"]["name"]]
    assert all(str(path).startswith(data["mountPath"]) for path in found.log_dirs)
    assert pods["serviceName"] == "log-pylog-brokers"
    assert made["Service/log-pylog-brokers"]["spec"]["clusterIP"] == "None"
    labels = pods["template"]["metadata"]["labels"].items()
    for kind, at in (("Service/log-pylog-brokers", None), ("PodDisruptionBudget/log-pylog", "matchLabels")):
        selector = made[kind]["spec"]["selector"]
        assert (selector if at is None else selector[at]).items() <= labels
    (apart,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart["labelSelector"]["matchLabels"].items() <= labels
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["terminationGracePeriodSeconds"] > STOP_LIMIT_S + GRACE_S


@needs_helm
@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"zookeeper": {"connect": ""}}, "/zookeeper/connect"),
        ({"zookeeper": {"connect": "zk"}}, "/zookeeper/connect"),
        ({"replicas": 0}, "/replicas"),
        ({"settings": {"broker.id": 7}}, "broker.id"),
        ({"antiAffinity": "some"}, "/antiAffinity"),
        ({"persistance": {}}, "persistance"),
    ],
)
def test_values_that_cannot_be_are_refused(tmp_path: Path, values: dict[str, Any], named: str) -> None:
    """Before anything is made, and by name."""
    done = helm("template", "log", str(CHART), "--kube-version", "1.31.0", values=values, directory=tmp_path)
    assert done.returncode != 0
    assert named in done.stderr


@needs_helm
@pytest.mark.skipif(VALIDATE is None, reason="this machine has no kubernetes-validate")
@pytest.mark.parametrize("values", [{}, {"antiAffinity": "soft", "topologyKey": ""}, {"antiAffinity": "none"}])
def test_kubernetes_knows_every_field(tmp_path: Path, values: dict[str, Any]) -> None:
    """By the schemas of its API, strictly."""
    rendered(tmp_path, **values)
    done = subprocess.run(
        [str(VALIDATE), "--strict", "-k", "1.31", str(tmp_path / "rendered.yaml")],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_values_fit_their_schema_and_the_settings_that_brokers_know() -> None:
    """Also where there is no helm: every value is described, and the chart's own settings are real ones."""
    assert SCHEMA["properties"].keys() >= VALUES.keys()
    assert set(SCHEMA["required"]) <= VALUES.keys()
    known = settings_of("broker")
    refused = SCHEMA["properties"]["settings"]["propertyNames"]["not"]["enum"]
    assert set(refused) <= known.keys()
    template = (CHART / "templates" / "configmap.yaml").read_text()
    set_by_chart = re.findall(r'^    "?([a-z.]+)"? = ', template, re.MULTILINE)
    assert {*set_by_chart, "broker.id", "advertised.listeners"} == set(refused)
    for name, value in VALUES["settings"].items():
        known[name].parse(value)
    assert re.fullmatch(SCHEMA["properties"]["zookeeper"]["properties"]["connect"]["pattern"], ZOOKEEPER)


def test_chart_is_of_this_version() -> None:
    """Its image is tagged with it."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
