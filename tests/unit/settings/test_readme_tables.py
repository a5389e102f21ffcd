"""README's tables of settings are the code's. ``python tests/unit/settings/test_readme_tables.py`` writes them anew."""

from __future__ import annotations

import re
from pathlib import Path

from broker_runtime.contract.settings import reference_table

README = Path(__file__).parents[3] / "README.md"
_BLOCK = re.compile(r"(<!-- settings:(\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def with_tables(text: str) -> str:
    """README with every block of settings made anew."""
    return _BLOCK.sub(lambda found: f"{found[1]}{reference_table(found[2]).strip()}\n{found[3]}", text)  # type: ignore[arg-type]


def test_readme_has_the_settings_of_the_code() -> None:
    """One table in the code generates validation, help and the reference."""
    text = README.read_text()
    assert {scope for _, scope, _ in _BLOCK.findall(text)} == {"topic", "broker", "producer", "consumer"}
    assert with_tables(text) == text


if __name__ == "__main__":
    README.write_text(with_tables(README.read_text()))
