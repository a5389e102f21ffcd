"""Finds a Java that can run the bundled ZooKeeper: `JAVA_HOME`, then `PATH`, then macOS's own list.

Rule: a Java is chosen only after it has printed its version. `find_java` returns a path; nothing started here outlives
the call.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from broker_runtime.contract.errors import JavaNotFoundError

MINIMUM_VERSION: Final = 17
HOW_TO_INSTALL: Final = (
    "Debian/Ubuntu: apt install openjdk-17-jre-headless · macOS: brew install openjdk@17 · "
    "conda: conda install -c conda-forge openjdk=17"
)

_ANSWER_LIMIT_S = 20.0
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')


def find_java(environment: Mapping[str, str] | None = None) -> Path:
    """The ``java`` to run, version 17 or later. Blocks while it asks for versions (20 s each at most).

    Raises `JavaNotFoundError` that says where it looked, what it found there and how to install one.
    """
    environment = os.environ if environment is None else environment
    found: list[str] = []
    home = environment.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        version = java_version(java)
        if version is not None and version >= MINIMUM_VERSION:
            return java
        found.append(f"JAVA_HOME={home} has {_name(version)}")
    else:
        found.append("JAVA_HOME is unset")
    on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
    if on_path is None:
        found.append("java is not on PATH")
    else:
        version = java_version(Path(on_path))
        if version is not None and version >= MINIMUM_VERSION:
            return Path(on_path)
        found.append(f"{on_path} is {_name(version)}")
    listed = _listed_by_macos() if sys.platform == "darwin" else None
    if listed is not None:
        return listed
    raise JavaNotFoundError(
        f"The bundled ZooKeeper needs Java {MINIMUM_VERSION} or later; {' and '.join(found)}. {HOW_TO_INSTALL}"
    )


def home_passed_over(environment: Mapping[str, str] | None = None) -> str | None:
    """What is wrong with ``JAVA_HOME``, where it is set and `find_java` does not use it. Blocks as `find_java`."""
    home = (os.environ if environment is None else environment).get("JAVA_HOME")
    if not home:
        return None
    version = java_version(Path(home) / "bin" / "java")
    if version is not None and version >= MINIMUM_VERSION:
        return None
    return f"JAVA_HOME={home} has {_name(version)}, not {MINIMUM_VERSION} or later"


def java_version(java: Path) -> int | None:
    """The feature version (8, 11, 17 …) that this ``java`` prints; None if it is not a working Java."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, timeout=_ANSWER_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search((answer.stderr + answer.stdout).decode(errors="replace"))
    if answer.returncode != 0 or match is None:
        return None
    major, minor = match.groups()
    return int(minor or 0) if major == "1" else int(major)


def _listed_by_macos() -> Path | None:
    """macOS keeps Javas that are not on PATH; its `/usr/bin/java` exists without any and only shows a dialogue."""
    try:
        answer = subprocess.run(
            ["/usr/libexec/java_home", "-v", f"{MINIMUM_VERSION}+"],
            capture_output=True,
            timeout=_ANSWER_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    java = Path(answer.stdout.decode(errors="replace").strip()) / "bin" / "java"
    version = java_version(java) if answer.returncode == 0 else None
    return java if version is not None and version >= MINIMUM_VERSION else None


def _name(version: int | None) -> str:
    return "no working Java" if version is None else f"Java {version}"
