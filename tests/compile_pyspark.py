"""``python tests/compile_pyspark.py [undo]``: puts compiled modules into the zip that Spark's Python processes import.

Spark puts ``pyspark.zip`` of its installation before everything else on its processes' path, and Python cannot write
what it has compiled into a zip: each process compiles anew all that it imports, more than half of the work of its
start. The tests start hundreds. The sources stay in the zip; another version of Python takes those. To be run before
Spark is: a process that has opened the former zip may not find what it imports later.

Works on the PySpark of the Python that runs it, and imports nothing of this repository.
"""

from __future__ import annotations

import compileall
import importlib.util
import re
import sys
import tempfile
import zipfile
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import Final

_FIRST: Final = "pyspark/__init__.pyc"
_UNUSED: Final = re.compile(r"/modules/.*/tests/")  # PySpark's own tests are half of it


def archive() -> Path:
    """The zip of the PySpark that this Python imports. Raises `FileNotFoundError`."""
    found = importlib.util.find_spec("pyspark")
    places = found.submodule_search_locations if found else None
    if not places:
        raise FileNotFoundError(f"there is no pyspark in {sys.prefix}")
    return Path(places[0]) / "python" / "lib" / "pyspark.zip"


def add_compiled(zipped: Path) -> None:
    """Puts the zip's modules into it once more, compiled, unless they are there; it is replaced as a whole."""
    with zipfile.ZipFile(zipped) as before, tempfile.TemporaryDirectory(dir=zipped.parent) as name:
        if _FIRST in before.namelist():
            return
        unpacked, written = Path(name) / "modules", Path(name) / "written.zip"
        before.extractall(unpacked)
        # Beside the sources, where `zipimport` looks. Unchecked: nothing else can change a module in the zip.
        compileall.compile_dir(
            unpacked,
            ddir=str(zipped),
            legacy=True,
            quiet=2,
            rx=_UNUSED,
            invalidation_mode=PycInvalidationMode.UNCHECKED_HASH,
        )
        with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as after:
            for path in sorted(unpacked.rglob("*")):
                if path.is_file():
                    after.write(path, path.relative_to(unpacked))
        written.replace(zipped)


def remove_compiled(zipped: Path) -> None:
    """The zip as it was installed: benches measure what users have."""
    with zipfile.ZipFile(zipped) as before, tempfile.TemporaryDirectory(dir=zipped.parent) as name:
        if _FIRST not in before.namelist():
            return
        written = Path(name) / "written.zip"
        with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as after:
            for each in before.infolist():
                if not each.filename.endswith(".pyc"):
                    after.writestr(each, before.read(each), zipfile.ZIP_DEFLATED)
        written.replace(zipped)


if __name__ == "__main__":
    (remove_compiled if sys.argv[1:] == ["undo"] else add_compiled)(archive())
