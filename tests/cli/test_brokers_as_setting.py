"""`-X bootstrap.servers=…` in front of real brokers, for every kind of command."""

from __future__ import annotations

from pathlib import Path

from pylog_command import Pylog

from pyspark_log.testing import LocalCluster


def test_every_command_accepts_the_brokers_as_a_setting(
    run_pylog: Pylog, pylog_cluster: LocalCluster, topic: str
) -> None:
    """An option wins over the environment, which names no live broker here."""
    setting = ("-X", f"bootstrap.servers={pylog_cluster.bootstrap_servers}")
    nobody = {"PYLOG_BOOTSTRAP_SERVERS": "127.0.0.1:1"}
    for command in (
        ("topic", "list"),
        ("topic", "describe", topic),
        ("produce", topic),
        ("consume", topic, "--from", "earliest", "--to", "end", "-g", f"{topic}-group"),
        ("group", "list"),
        ("group", "describe", f"{topic}-group"),
        ("cluster", "health"),
        ("partition", "moves"),
    ):
        done = run_pylog(*command, *setting, "--timeout", "20", stdin="a\nb\n", environment=nobody)
        assert done.returncode == 0, f"{command}: {done.stderr}"


def test_brokers_of_the_file_are_used(
    run_pylog: Pylog, pylog_cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    """`~/.config/pylog/config.toml` has Kafka's name of the setting."""
    file = tmp_path / ".config" / "pylog" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text(f'bootstrap.servers = "{pylog_cluster.bootstrap_servers}"\nlinger.ms = 1\noutput = "name"\n')
    assert topic in run_pylog("topic", "list").stdout.splitlines()
