"""The names that ``pyspark_log`` exports."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pyspark_log
from docs.reference.markdown import sections

# They have pages of their own, or nothing that is called.
_LEFT_OUT = ("errors", "DefaultSource")
_LINE_LENGTH = 100


def page() -> str:
    """The page."""
    return sections(
        "# Python",
        "What `from pyspark_log import …` gives. The guide [Python](../guides/python.md) shows it at work. Settings "
        "by keyword are those of the [producer](producer-settings.md), the [consumer](consumer-settings.md) and the "
        "[admin](admin-settings.md); errors are in [Errors](errors.md).",
        *(_named(name, getattr(pyspark_log, name)) for name in names()),
    )


def names() -> list[str]:
    """The names that are described."""
    return [name for name in pyspark_log.__all__ if name not in _LEFT_OUT]


def members(described: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties of a class, its own and inherited from classes of ours, in their order."""
    seen: set[str] = set()
    for base in described.__mro__:
        if base.__module__.split(".")[0] not in ("pyspark_log", "broker_runtime"):
            continue
        for name, member in vars(base).items():
            is_described = inspect.isfunction(member) or isinstance(member, property | classmethod | staticmethod)
            if is_described and not name.startswith("_") and name not in seen:
                seen.add(name)
                yield name, member


def _named(name: str, described: Any) -> str:
    parts = [f"## {name}"]
    if inspect.isclass(described):
        if not _fields(described):
            parts.append(_signature(name, described.__init__))
        parts += [_prose(described), _fields(described)]
        parts += [_member(name, member, found) for member, found in members(described)]
    else:
        parts += [_signature(name, described), _prose(described)]
    return sections(*parts)


def _member(owner: str, name: str, member: Any) -> str:
    if isinstance(member, property):
        return sections(f"### {owner}.{name}", f"A property. {_prose(member)}")
    function = getattr(member, "__func__", member)
    return sections(f"### {owner}.{name}", _signature(f"{owner}.{name}", function), _prose(function))


def _fields(described: type) -> str:
    """A record's fields, or an enumeration's members."""
    if issubclass(described, enum.Enum):
        return "\n".join(f"- `{member.name}`" for member in described)
    marks = ("_fields", "__struct_fields__")
    if not dataclasses.is_dataclass(described) and not any(hasattr(described, mark) for mark in marks):
        return ""
    annotations = {
        name: annotation
        for base in reversed(described.__mro__)
        for name, annotation in inspect.get_annotations(base).items()
        if not name.startswith("_") and "ClassVar" not in str(annotation)
    }
    # Of named tuples the annotations are references to what they name.
    shown = {name: getattr(each, "__forward_arg__", each) for name, each in annotations.items()}
    return "\n".join(f"- `{name}`: `{annotation}`" for name, annotation in shown.items())


def _signature(name: str, function: Any) -> str:
    signature = inspect.signature(function)
    shown, is_keyword_only = [], False
    for parameter in signature.parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is parameter.VAR_POSITIONAL or (
            parameter.kind is parameter.KEYWORD_ONLY and not is_keyword_only
        ):
            is_keyword_only = True
            if parameter.kind is parameter.KEYWORD_ONLY:
                shown.append("*")
        shown.append(_parameter(parameter))
    returned = signature.return_annotation
    end = "" if returned is signature.empty or name.split(".")[-1][0].isupper() else f" -> {returned}"
    line = f"{name}({', '.join(shown)}){end}"
    if len(line) > _LINE_LENGTH:
        line = f"{name}(\n" + "".join(f"    {each},\n" for each in shown) + f"){end}"
    return f"```text\n{line}\n```"


def _parameter(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    annotation = "" if parameter.annotation is parameter.empty else f": {parameter.annotation}"
    default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
    return f"{stars}{parameter.name}{annotation}{default}"


def _prose(described: Any) -> str:
    text = inspect.getdoc(described) or ""
    # What markdown would take for a tag is text, unless it stands in code.
    pieces = re.split(r"(``.+?``|`.+?`)", text)
    return "".join(piece if piece.startswith("`") else piece.replace("<", "&lt;") for piece in pieces)
