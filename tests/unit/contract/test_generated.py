"""What is generated from the settings' definitions in the code is up to date: the clients' keywords.

``python tests/unit/contract/test_generated.py`` generates them again. The reference is `tests/test_docs.py`'s.
"""

from __future__ import annotations

import json
import re
import typing
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from broker_runtime.contract.settings import (
    AdminSettings,
    ConsumerSettings,
    ProducerSettings,
    Setting,
    definitions,
    settings_of,
)
from broker_runtime.contract.settings.kinds import Kind

DEFINITIONS = Path(definitions.__file__)
_KEYWORDS = re.compile(r"(# --- made from the classes above [^\n]*\n).*?(# --- end of what is made -)", re.DOTALL)
_TYPES = {
    Kind.TEXT: "str | None",
    Kind.INTEGER: "int",
    Kind.SIZE: "int | str",
    Kind.DURATION: "int | str",
    Kind.BOOLEAN: "bool",
    Kind.PATH: "str | Path | None",
    Kind.SECRET: "str | Secret | None",
    Kind.NAMES: "Sequence[str] | str | None",
}
"""The annotation for a caller, where it is the same for all settings of a kind."""


def with_keywords(text: str) -> str:
    """The module of definitions with the keywords generated again."""
    classes = [keywords_of(AdminSettings), keywords_of(ProducerSettings), keywords_of(ConsumerSettings)]
    return _KEYWORDS.sub(lambda found: found[1] + "\n\n".join(classes) + "\n\n" + found[2], text)


def keywords_of(settings_class: type) -> str:
    """The source of the class of keywords for a client's class of settings.

    ``bootstrap_servers`` is omitted: it is a parameter of its own in every client.
    """
    scope = settings_class.__name__.removesuffix("Settings")
    base = "TypedDict" if settings_class is AdminSettings else "AdminKeywords"
    types = typing.get_type_hints(settings_class)
    settings = {setting.keyword: setting for setting in settings_of(scope.lower()).values()}  # type: ignore[arg-type]
    own = [keyword for keyword in settings_class.__annotations__ if keyword != "bootstrap_servers"]
    lines = [f"class {scope}Keywords({base}, total=False):", f'    """`{scope}`\'s settings."""', ""]
    lines += [f"    {keyword}: {written_type(settings[keyword], types[keyword])}" for keyword in own]
    return "\n".join([*lines, ""])


def written_type(setting: Setting, parsed: Any) -> str:
    """The annotation of the setting for a caller; ``parsed`` is the type of its parsed value."""
    if setting.kind in _TYPES:
        return _TYPES[setting.kind]
    parts = (parsed,) if get_origin(parsed) is Literal else get_args(parsed)
    return " | ".join(literal(setting) if get_origin(part) is Literal else name_of(part) for part in parts)


def literal(setting: Setting) -> str:
    """The words to choose from, their synonyms, and whole numbers without quotes."""
    words = [*setting.choices, *(alias for alias, _ in setting.aliases)]
    numbers = [word for word in words if re.fullmatch(r"-?\d+", word)]
    return f"Literal[{', '.join([*map(json.dumps, words), *numbers])}]"


def name_of(part: Any) -> str:
    """A type as it is written in a module that imports its names."""
    return "None" if part is type(None) else re.sub(r"\b(typing|collections\.abc)\.", "", str(part))


def test_keywords_of_clients_are_their_settings() -> None:
    """A type checker knows each setting of a client as a keyword, and the types it accepts."""
    text = DEFINITIONS.read_text()
    assert len(_KEYWORDS.findall(text)) == 1
    assert with_keywords(text) == text


if __name__ == "__main__":
    DEFINITIONS.write_text(with_keywords(DEFINITIONS.read_text()))
