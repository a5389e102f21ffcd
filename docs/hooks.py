"""What mkdocs does beside its own work; it loads this file itself.

README.md is the front page: its links to ``docs/pages/…``, which work where the repository is shown, become links of
the site. Pages may link to drawings elsewhere in the repository; these become files of the site.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT: Final = Path(__file__).parent.parent
_PAGES: Final = "docs/pages/"
# Folders of drawings that pages link to: where they are, and where in the site.
_DRAWINGS: Final = {"bench/timeline/figures": "images/timeline"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the front page and the drawings."""
    files.append(File.generated(config, "index.md", content=front_page((ROOT / "README.md").read_text())))
    for folder, place in _DRAWINGS.items():
        for path in sorted((ROOT / folder).glob("*.svg")):
            files.append(File.generated(config, f"{place}/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turns links to the repository's files into links of the site."""
    depth = page.file.src_uri.count("/")
    for folder, place in _DRAWINGS.items():
        markdown = markdown.replace(f"]({'../' * (depth + 2)}{folder}/", f"]({'../' * depth}{place}/")
    return re.sub(rf"\]\({'../' * (depth + 2)}README\.md", f"]({'../' * depth}index.md", markdown)


def on_page_context(context: Any, page: Any, **_: Any) -> Any:
    """Gives a page the room of what would stand beside it and be empty."""
    has_sections = any(item.children for item in page.toc.items)
    page.meta["hide"] = ([] if page.parent else ["navigation"]) + ([] if has_sections else ["toc"])
    return context


def front_page(readme: str) -> str:
    """README with the links of the site."""
    return readme.replace(f"]({_PAGES}", "](").replace(f'src="{_PAGES}', 'src="')
