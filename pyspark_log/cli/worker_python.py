"""The Python that Spark starts to look up and run Python data sources, and whether pylog is installed in it.

Spark uses the environment variable PYSPARK_DRIVER_PYTHON, else PYSPARK_PYTHON, else python3 on PATH. Its own setting
``spark.pyspark.python`` has no effect on the look-up.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

_ANSWER_LIMIT_S = 60.0
_QUESTION = """
import importlib.metadata as m, json, sys
def version(name):
    try: return m.version(name)
    except m.PackageNotFoundError: return None
try:
    import pyspark_log; error = None
except BaseException as found: error = f"{type(found).__name__}: {found}"
print(json.dumps({"python": sys.version.split()[0], "executable": sys.executable, "error": error,
                  "pylog": version("pyspark-log"), "pyspark": version("pyspark")}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPython:
    """What was found. ``problem`` None: Spark will find pylog. ``said_by``: what names this Python."""

    said_by: str
    command: str
    executable: str | None = None
    python: str | None = None
    pylog: str | None = None
    pyspark: str | None = None
    problem: str | None = None


def worker_python(environment: Mapping[str, str] | None = None) -> WorkerPython:
    """Runs the Python that Spark would start, in the caller's environment. Blocks for at most a minute."""
    environment = os.environ if environment is None else environment
    said_by = next((name for name in ("PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON") if environment.get(name)), "PATH")
    command = environment.get(said_by) if said_by != "PATH" else "python3"
    assert command is not None
    found = shutil.which(command, path=environment.get("PATH", os.defpath))
    if found is None:
        return WorkerPython(said_by=said_by, command=command, problem=f"{command} was not found")
    try:
        # PYTHONSAFEPATH: Spark's workers do not see the modules of the current directory.
        answer = subprocess.run(
            [found, "-c", _QUESTION],
            env={**environment, "PYTHONSAFEPATH": "1"},
            capture_output=True,
            text=True,
            timeout=_ANSWER_LIMIT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        said = json.loads(answer.stdout.strip().splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError):
        return WorkerPython(said_by=said_by, command=command, problem=f"{found} does not run Python code with -c")
    problem = None if said["error"] is None else f"it cannot import pyspark_log ({said['error']})"
    return WorkerPython(
        said_by=said_by,
        command=command,
        executable=said["executable"],
        python=said["python"],
        pylog=said["pylog"],
        pyspark=said["pyspark"],
        problem=problem,
    )
