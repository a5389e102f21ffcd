"""Writes what is generated: ``python -m docs``."""

from __future__ import annotations

from docs import pictures, reference

if __name__ == "__main__":
    for path, content in {**reference.pages(), **pictures.drawings()}.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
