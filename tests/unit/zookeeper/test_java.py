"""Finding a Java for the bundled ZooKeeper."""

import stat

import pytest

from broker_runtime.contract.errors import JavaNotFoundError
from broker_runtime.zookeeper.java import find_java, home_passed_over, java_version


def fake_java(directory, says, code=0):
    directory.mkdir(parents=True, exist_ok=True)
    java = directory / "java"
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {code}\n")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    return java


@pytest.fixture(autouse=True)
def not_on_macos(monkeypatch):
    monkeypatch.setattr("sys.platform", "linux")


def test_java_home_is_preferred_to_path(tmp_path):
    home = fake_java(tmp_path / "home" / "bin", 'openjdk version "21.0.1"')
    fake_java(tmp_path / "path", 'openjdk version "17.0.1"')
    assert find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path")}) == home


def test_java_on_path_is_used_when_java_home_is_too_old(tmp_path):
    fake_java(tmp_path / "home" / "bin", 'java version "1.8.0_301"')
    path = fake_java(tmp_path / "path", 'openjdk version "17.0.15" 2025-04-15')
    assert find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path")}) == path


def test_error_about_missing_java_names_the_command_to_run():
    """A newcomer gets this error, word for word."""
    with pytest.raises(JavaNotFoundError) as caught:
        find_java({"PATH": "/nowhere"})
    assert str(caught.value) == (
        "[JAVA_NOT_FOUND] The bundled ZooKeeper needs Java 17 or later; JAVA_HOME is unset and java is not on PATH. "
        "Debian/Ubuntu: apt install openjdk-17-jre-headless · macOS: brew install openjdk@17 · "
        "conda: conda install -c conda-forge openjdk=17"
    )


def test_java_that_is_too_old_is_named(tmp_path):
    java = fake_java(tmp_path, 'openjdk version "11.0.2"')
    with pytest.raises(JavaNotFoundError, match=f"{java} is Java 11"):
        find_java({"PATH": str(tmp_path)})


def test_java_home_without_java_is_named(tmp_path):
    with pytest.raises(JavaNotFoundError, match=f"JAVA_HOME={tmp_path} has no working Java and java is not on PATH"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": "/nowhere"})


@pytest.mark.parametrize(
    ("says", "code", "version"),
    [
        ('java version "1.8.0_301"', 0, 8),
        ('openjdk version "17" 2021-09-14', 0, 17),
        ('openjdk version "22-ea"', 0, 22),
        ("no java here", 0, None),
        ('openjdk version "17"', 1, None),
    ],
)
def test_version_is_parsed_from_javas_output(tmp_path, says, code, version):
    assert java_version(fake_java(tmp_path, says, code)) == version


def test_file_that_cannot_be_run_is_no_java(tmp_path):
    (tmp_path / "java").write_text("")
    assert java_version(tmp_path / "java") is None
    assert java_version(tmp_path / "missing") is None


def test_java_home_that_is_passed_over_is_named(tmp_path):
    """Another Java runs ZooKeeper then, but Spark does not pass over it."""
    fake_java(tmp_path / "old" / "bin", 'java version "1.8.0_301"')
    fake_java(tmp_path / "new" / "bin", 'openjdk version "21.0.1"')
    assert home_passed_over({}) is None
    assert home_passed_over({"JAVA_HOME": str(tmp_path / "new")}) is None
    assert home_passed_over({"JAVA_HOME": str(tmp_path / "old")}) == (
        f"JAVA_HOME={tmp_path / 'old'} has Java 8, not 17 or later"
    )
    assert home_passed_over({"JAVA_HOME": "/nowhere"}) == "JAVA_HOME=/nowhere has no working Java, not 17 or later"
