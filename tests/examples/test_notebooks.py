"""Every notebook runs from its first cell to its last in a kernel of its own."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = pytest.mark.slow

NOTEBOOKS = Path(__file__).parent.parent.parent / "examples" / "notebooks"
LIMIT_S = 300


def run(name: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the cells showed, as text."""
    for variable in list(os.environ):
        if variable.startswith(("PYSPARK_", "SPARK_HOME", "PYLOG_BOOTSTRAP")):
            monkeypatch.delenv(variable)
    monkeypatch.setenv("IPYTHONDIR", str(directory / "ipython"))
    monkeypatch.setenv("JUPYTER_PATH", str(kernel(directory)))
    book: Any = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    nbformat.validate(book)
    assert all(not cell.get("outputs") for cell in book.cells), "a notebook is kept without what it showed"
    client = NotebookClient(
        book, timeout=LIMIT_S, kernel_name="pylog-test", resources={"metadata": {"path": directory}}
    )
    client.execute()
    outputs = [output for cell in book.cells for output in cell.get("outputs", ())]
    shown = [output.get("text") or str(output.get("data", {}).get("text/plain", "")) for output in outputs]
    kinds = {kind for output in outputs for kind in output.get("data", {})}
    return "\n".join([*shown, *sorted(kinds)])


def kernel(directory: Path) -> Path:
    """This Python as a kernel, wherever Jupyter looks for others."""
    place = directory / "jupyter" / "kernels" / "pylog-test"
    place.mkdir(parents=True)
    (place / "kernel.json").write_text(
        json.dumps(
            {
                "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
                "display_name": "pylog test",
                "language": "python",
            }
        )
    )
    return directory / "jupyter"


def test_word_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = run("word_count", tmp_path, monkeypatch)
    assert [count for word, count in re.findall(r"\|\s*(\w+)\|\s*(\d+)\|", shown) if word == "to"] == ["3", "5"]
    assert "topics=('lines',)" in shown


def test_flights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = run("flights", tmp_path, monkeypatch)
    assert "60000 flights sent" in shown
    assert "carrier" in shown
    assert "image/png" in shown


def test_exactly_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = run("exactly_once", tmp_path, monkeypatch)
    assert "the first run failed: True" in shown
    assert "0 rows can be read" in shown
    assert "1000 rows, 1000 of them different" in shown
