"""The reference: pages that say what the code says, and nothing else. `tests/test_docs.py` fails when one is stale.

spark_options  options of ``format("pylog")``
settings       of topics, brokers and clients
metrics        what brokers, and clients that are told to, publish for Prometheus
errors         the tree of errors, with what a caller and a script can do
commands       `pylog`, each command with its options
permissions    what each request of the protocol needs
python_api     the names that ``pyspark_log`` exports
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from docs.reference import commands, errors, metrics, permissions, python_api, settings, spark_options

FOLDER: Final = Path(__file__).parent.parent / "pages" / "reference"
_MADE: Final = "<!-- Written by `python -m docs`: change the code that it reads, not this. -->\n\n"


def pages() -> dict[Path, str]:
    """All generated pages, and what is to be in them."""
    content = {
        "spark-options.md": spark_options.page(),
        "topic-settings.md": settings.page("topic"),
        "broker-settings.md": settings.page("broker"),
        "producer-settings.md": settings.page("producer"),
        "consumer-settings.md": settings.page("consumer"),
        "admin-settings.md": settings.page("admin"),
        "metrics.md": metrics.page(),
        "client-metrics.md": metrics.clients_page(),
        "errors.md": errors.page(),
        "cli.md": commands.page(),
        "permissions.md": permissions.page(),
        "python.md": python_api.page(),
    }
    return {FOLDER / name: _MADE + text for name, text in content.items()}
