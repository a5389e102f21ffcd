"""The common options: where they may stand, which source wins, which error ends with which status."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import typer

import pyspark_log
from broker_runtime.contract import errors
from pyspark_log.cli.exit_status import status_of, translated_errors
from pyspark_log.cli.invocation import DEFAULT_ADDRESS, DEFAULT_TIMEOUT_S, Invocation
from pyspark_log.cli.options import GivenOptions
from pyspark_log.cli.output import OutputFormat


@pytest.fixture(autouse=True)
def no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hides the environment and the home directory of the user who runs the tests."""
    for name in ("PYLOG_BOOTSTRAP_SERVERS", "PYLOG_OUTPUT", "PYLOG_TIMEOUT", "PYLOG_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def write_config(directory: Path, text: str) -> None:
    (directory / "pylog").mkdir()
    (directory / "pylog" / "config.toml").write_text(text)


def test_flag_wins_over_environment_over_file_over_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A flag wins over PYLOG_…, which wins over ~/.config/pylog/config.toml, which wins over the default."""
    assert Invocation.resolve(GivenOptions()).bootstrap_servers == DEFAULT_ADDRESS
    assert not Invocation.resolve(GivenOptions()).address_is_given
    write_config(tmp_path, 'bootstrap-servers = "file:1"\noutput = "yaml"\ntimeout = "3s"\n')
    from_file = Invocation.resolve(GivenOptions())
    assert (from_file.bootstrap_servers, from_file.output, from_file.timeout_s) == ("file:1", OutputFormat.YAML, 3.0)
    monkeypatch.setenv("PYLOG_BOOTSTRAP_SERVERS", "environment:1")
    monkeypatch.setenv("PYLOG_OUTPUT", "json")
    monkeypatch.setenv("PYLOG_TIMEOUT", "4")
    from_environment = Invocation.resolve(GivenOptions())
    assert from_environment.bootstrap_servers == "environment:1"
    assert (from_environment.output, from_environment.timeout_s) == (OutputFormat.JSON, 4.0)
    given = GivenOptions(bootstrap_server="flag:1", output=OutputFormat.NAME, timeout="5")
    from_flag = Invocation.resolve(given)
    assert (from_flag.bootstrap_servers, from_flag.output, from_flag.timeout_s) == ("flag:1", OutputFormat.NAME, 5.0)


def test_option_is_distinguished_from_environment_and_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Some commands take less from a place that is meant for all commands."""
    write_config(tmp_path, 'output = "yaml"\ntimeout = "3s"\n')
    from_file = Invocation.resolve(GivenOptions())
    assert (from_file.output_is_option, from_file.timeout_is_option, from_file.timeout_is_given) == (False, False, True)
    monkeypatch.setenv("PYLOG_OUTPUT", "json")
    monkeypatch.setenv("PYLOG_TIMEOUT", "4")
    from_environment = Invocation.resolve(GivenOptions())
    assert (from_environment.output_is_option, from_environment.timeout_is_option) == (False, False)
    from_option = Invocation.resolve(GivenOptions(output=OutputFormat.NAME, timeout="5"))
    assert (from_option.output_is_option, from_option.timeout_is_option) == (True, True)


class RecordedProducer:
    """Keeps the configuration that it was made with."""

    config: Mapping[str, Any]

    def __init__(self, bootstrap_servers: str, *, config: Mapping[str, Any]) -> None:
        type(self).config = config

    def __enter__(self) -> RecordedProducer:
        return self

    def __exit__(self, *error: object) -> None:
        pass


@pytest.mark.parametrize(
    ("given", "file", "expected"),
    [
        (GivenOptions(), 'timeout = "3s"', None),
        (GivenOptions(), 'timeout = "3s"\n"delivery.timeout.ms" = "1m"', "1m"),
        (GivenOptions(timeout="5"), "", 5000),
        (GivenOptions(timeout="5"), '"delivery.timeout.ms" = "1m"', 5000),
        (GivenOptions(timeout="5", setting=("delivery.timeout.ms=9s",)), "", "9s"),
    ],
)
def test_only_the_option_timeout_bounds_delivery(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: GivenOptions, file: str, expected: object
) -> None:
    """A timeout for all commands is meant for their requests; records may be sent again for longer."""
    write_config(tmp_path, file)
    monkeypatch.setattr(pyspark_log, "Producer", RecordedProducer)
    with Invocation.resolve(given).producer():
        assert RecordedProducer.config.get("delivery.timeout.ms") == expected


def test_client_settings_of_the_file_reach_the_clients_that_know_them(tmp_path: Path) -> None:
    """The file serves all clients; -X is for the command's own client, which refuses unknown settings."""
    write_config(tmp_path, '[client]\nlinger.ms = 7\n"client.id" = "me"\n')
    invocation = Invocation.resolve(GivenOptions(setting=("acks=1", "linger.ms=9")))
    assert invocation.settings("producer")["linger.ms"] == "9"
    assert "linger.ms" not in Invocation.resolve(GivenOptions()).settings("admin")
    assert Invocation.resolve(GivenOptions()).settings("admin")["client.id"] == "me"
    assert invocation.settings("admin")["request.timeout.ms"] == round(DEFAULT_TIMEOUT_S * 1000)


@pytest.mark.parametrize(
    "text",
    [
        '"bootstrap.servers" = "file:1"',
        'bootstrap.servers = "file:1"',
        'bootstrap.servers = ["file:1"]',
        '[bootstrap]\nservers = "file:1"',
        'bootstrap-server = "file:1"',
        'bootstrap-servers = "file:1"',
        '[client]\nbootstrap.servers = "file:1"',
    ],
)
def test_file_accepts_kafkas_name_of_the_brokers(tmp_path: Path, text: str) -> None:
    """The setting may be quoted, dotted or in a table; the command line's former names still work."""
    write_config(tmp_path, text)
    assert Invocation.resolve(GivenOptions()).bootstrap_servers == "file:1"


def test_file_accepts_client_settings_at_its_top(tmp_path: Path) -> None:
    """Kafka's names need no table around them; `client.id` is a setting like any other."""
    write_config(tmp_path, 'linger.ms = 7\nclient.id = "me"\n"enable.idempotence" = false\nrequest.timeout.ms = "3s"\n')
    settings = Invocation.resolve(GivenOptions()).settings("producer")
    assert settings == {"linger.ms": 7, "client.id": "me", "enable.idempotence": False, "request.timeout.ms": "3s"}
    assert Invocation.resolve(GivenOptions(timeout="2")).settings("producer")["request.timeout.ms"] == 2000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bootstrap = 'x'", "'bootstrap' is not a setting of this file; did you mean 'bootstrap.servers'?"),
        ("bootstrap.servers = 5", "bootstrap.servers=5: must be a list of host:port"),
        ("bootstrap.servers = 'nowhere'", "bootstrap.servers='nowhere': must be host:port"),
        ("bootstrap.servers = 'a:1'\nbootstrap-server = 'b:1'", "bootstrap.servers is given twice"),
        ("not toml", "is not valid TOML"),
        ("[client]\nno.such.setting = 1", "'no.such.setting' is not a setting of this file"),
        ("retention.ms = 5", "'retention.ms' is not a setting of this file; it is a topic setting"),
        ("linger.ms = 'soon'", "linger.ms='soon': must be a number of milliseconds"),
        ("output = 'pdf'", "output: 'pdf' is not one of table, wide"),
        ("output = 3", "output: 3 is not one of table, wide"),
        ("timeout = '-1'", "timeout: '-1'"),
        ("client = 1", "'client' is not a setting of this file"),
    ],
)
def test_file_is_refused_by_name_when_it_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    """The error names the file, the key and what is allowed."""
    write_config(tmp_path, text)
    with pytest.raises(errors.InvalidConfigError) as refused:
        Invocation.resolve(GivenOptions())
    assert str(tmp_path / "pylog" / "config.toml") in refused.value.message
    assert message in refused.value.message


def test_brokers_may_be_given_as_a_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`-X bootstrap.servers=…` is an option, so it wins over environment, file and default."""
    write_config(tmp_path, 'bootstrap.servers = "file:1"\n')
    monkeypatch.setenv("PYLOG_BOOTSTRAP_SERVERS", "environment:1")
    invocation = Invocation.resolve(GivenOptions(setting=("bootstrap.servers=flag:1,other:2", "linger.ms=9")))
    assert invocation.bootstrap_servers == "flag:1,other:2"
    assert invocation.address_is_given
    for scope in ("admin", "producer", "consumer"):
        assert "bootstrap.servers" not in invocation.settings(scope), "the clients are given it once"


def test_brokers_that_are_given_twice_must_be_the_same() -> None:
    """If -b and -X bootstrap.servers differ, that is one error."""
    same = GivenOptions(bootstrap_server="a:1", setting=("bootstrap.servers=a:1",))
    assert Invocation.resolve(same).bootstrap_servers == "a:1"
    with pytest.raises(errors.InvalidConfigError) as refused:
        Invocation.resolve(GivenOptions(bootstrap_server="a:1", setting=("bootstrap.servers=b:1",)))
    assert refused.value.message == "-b a:1 and -X bootstrap.servers=b:1 name different brokers: give only one of them"


@pytest.mark.parametrize(
    ("given", "variable", "place"),
    [
        (GivenOptions(bootstrap_server="nowhere"), "", "-b: bootstrap.servers='nowhere'"),
        (GivenOptions(setting=("bootstrap.servers=nowhere",)), "", "-X: bootstrap.servers='nowhere'"),
        (GivenOptions(), "nowhere", "$PYLOG_BOOTSTRAP_SERVERS: bootstrap.servers='nowhere'"),
    ],
)
def test_invalid_address_is_refused_with_its_source(
    monkeypatch: pytest.MonkeyPatch, given: GivenOptions, variable: str, place: str
) -> None:
    """The error says where the address was given, and what is allowed."""
    monkeypatch.setenv("PYLOG_BOOTSTRAP_SERVERS", variable)
    with pytest.raises(errors.InvalidConfigError) as refused:
        Invocation.resolve(given)
    assert refused.value.message == f"{place}: must be host:port (127.0.0.1:9192)"


@pytest.mark.parametrize("setting", ["linger.ms", "=5", ""])
def test_setting_is_refused_without_name_or_value(setting: str) -> None:
    """-X takes name=value."""
    with pytest.raises(errors.InvalidConfigError, match="-X"):
        Invocation.resolve(GivenOptions(setting=(setting,)))


def test_last_option_wins() -> None:
    """`pylog -o json topic list -o yaml` prints yaml; repeated settings add up."""
    outer = GivenOptions(output=OutputFormat.JSON, setting=("a=1",), quiet=True, verbose=1)
    both = outer.then(GivenOptions(output=OutputFormat.YAML, setting=("b=2",), yes=True))
    assert both == GivenOptions(output=OutputFormat.YAML, setting=("a=1", "b=2"), quiet=True, yes=True, verbose=1)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.TopicAlreadyExistsError, 1),
        (errors.CorruptRecordError, 1),
        (errors.PortInUseError, 1),
        (errors.JavaNotFoundError, 1),
        (errors.InvalidConfigError, 2),
        (errors.OptionError, 2),
        (errors.UnknownTopicOrPartitionError, 3),
        (errors.BrokerUnavailableError, 4),
        (errors.RequestTimedOutError, 4),
        (errors.NotAPylogBrokerError, 4),
    ],
)
def test_error_ends_with_its_status_and_one_line(
    error: type[errors.PylogError], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """1 failed, 2 usage, 3 not found, 4 unreachable; `[CODE] message`, no traceback, on standard error."""
    with pytest.raises(typer.Exit) as ended, translated_errors(verbose=0):
        raise error("what and why")
    assert ended.value.exit_code == status
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", f"[{error.code}] what and why\n")


def test_every_error_has_a_status() -> None:
    """No error of the tree ends as success, and none needs a traceback."""
    for kind in errors.all_error_classes():
        error = pickle.loads(pickle.dumps(kind("text")))
        assert 1 <= status_of(error) <= 5


def test_interrupt_ends_with_130() -> None:
    """An interrupt ends with status 130."""
    with pytest.raises(typer.Exit) as ended, translated_errors(verbose=0):
        raise KeyboardInterrupt
    assert ended.value.exit_code == 130


def test_defect_shows_its_traceback_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    """-v shows where the defect happened; without it, one line mentions -v."""
    for verbose, has_traceback in ((0, False), (1, True)):
        with pytest.raises(typer.Exit), translated_errors(verbose=verbose):
            _ = 1 / 0
        assert ("Traceback" in capsys.readouterr().err) == has_traceback


def test_command_commits_only_what_it_printed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A client that commits by itself would acknowledge records that nobody has seen."""
    made: list[Mapping[str, Any]] = []

    class Stub:
        def __init__(self, **given: Any) -> None:
            made.append(given["config"])

        def __enter__(self) -> None:
            pass

        def __exit__(self, *raised: object) -> None:
            pass

    monkeypatch.setattr(pyspark_log, "Consumer", Stub)
    write_config(tmp_path, "enable.auto.commit = true\n")
    with Invocation.resolve(GivenOptions()).consumer(group="g"):
        pass
    assert (made[0]["enable.auto.commit"], made[0]["group.id"]) == (False, "g")
    given = Invocation.resolve(GivenOptions(setting=("enable.auto.commit=true",)))
    with (
        pytest.raises(errors.OptionError, match=r"-X enable\.auto\.commit: has no meaning here"),
        given.consumer(group="g"),
    ):
        pass
