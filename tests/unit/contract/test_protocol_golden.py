"""Messages as an earlier version of pylog had them, recorded: its clients and brokers are understood, and understand.

``python tests/unit/contract/test_protocol_golden.py`` records the present ones. Do that when `PROTOCOL_VERSION` rises,
never to make the test pass: until then fields are added with a default, and nothing else changes.
"""

from __future__ import annotations

import base64
import importlib
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from broker_runtime.contract import requests
from broker_runtime.contract.requests import PROTOCOL_VERSION, Message, decode, encode

GOLDEN = Path(__file__).parents[2] / "golden" / f"protocol-{PROTOCOL_VERSION}.json"
MODULES = ("requests", "actions", "streams", "transactions", "flight")


def messages() -> dict[str, type[Message]]:
    """All there are, by name."""
    for module in MODULES:
        importlib.import_module(f"broker_runtime.contract.{module}")
    kinds: list[type[Message]] = [Message]
    for kind in kinds:
        kinds.extend(kind.__subclasses__())
    own = {kind.__name__: kind for kind in kinds if kind.__module__.startswith("broker_runtime.contract")}
    return {name: kind for name, kind in sorted(own.items()) if name not in ("Message", "Request")}


def shape(kind: Any) -> str:
    """A type as it is on the wire, without its bounds."""
    name = type(kind).__name__.removesuffix("Type")
    if name == "Struct":
        return str(kind.cls.__name__)
    if name == "Union":
        return " | ".join(sorted(map(shape, kind.types)))
    if name in ("VarTuple", "List"):
        return f"[{shape(kind.item_type)}]"
    if name == "Tuple":
        return f"({', '.join(map(shape, kind.item_types))})"
    if name == "Dict":
        return f"{{{shape(kind.key_type)}: {shape(kind.value_type)}}}"
    if name == "Literal":
        return " | ".join(sorted({type(value).__name__.capitalize() for value in kind.values}))
    return name


def fields_of(kind: type[Message]) -> dict[str, str]:
    """Each field's shape; those that must be there end with ``!``."""
    info: Any = msgspec.inspect.type_info(kind)
    return {field.encode_name: shape(field.type) + ("!" if field.required else "") for field in info.fields}


def sample(kind: Any) -> Any:
    """A small value of a type."""
    name = type(kind).__name__.removesuffix("Type")
    if name == "Struct":
        return kind.cls(**{field.name: sample(field.type) for field in kind.fields if field.required})
    if name == "Union":
        return next((None for each in kind.types if type(each).__name__ == "NoneType"), sample(kind.types[0]))
    if name == "Tuple":
        return tuple(map(sample, kind.item_types))
    if name == "Literal":
        return kind.values[0]
    least = getattr(kind, "min_length", None) or 1
    simple = {
        "Int": getattr(kind, "ge", None) or 0,
        "Str": "x" * least,
        "Bytes": b"x" * least,
        "Bool": False,
        "Float": 0.5,
    }
    return simple.get(name, {} if name == "Dict" else ())


def record() -> dict[str, dict[str, Any]]:
    """What is kept: fields, and the bytes of a message in which only those are given that must be."""
    return {
        name: {
            "fields": fields_of(kind),
            "bytes": base64.b64encode(encode(sample(msgspec.inspect.type_info(kind)))).decode(),
        }
        for name, kind in messages().items()
    }


RECORDED: dict[str, dict[str, Any]] = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}


@pytest.mark.parametrize("name", RECORDED)
def test_message_has_all_recorded_fields_and_others_only_with_a_default(name: str) -> None:
    """An old peer finds in a message what it knows, and may leave out what it does not."""
    kind = messages()[name]
    fields, recorded = fields_of(kind), RECORDED[name]["fields"]
    for field, expected in recorded.items():
        alternatives = set(fields[field].split(" | "))
        assert set(expected.split(" | ")) <= alternatives, f"{name}.{field} was {expected}, is {fields[field]}"
        assert fields[field].endswith("!") <= expected.endswith("!"), f"{name}.{field} may be missing in old messages"
    assert [field for field, kind in fields.items() if field not in recorded and kind.endswith("!")] == []


@pytest.mark.parametrize("name", RECORDED)
def test_bytes_of_an_old_peer_are_understood(name: str) -> None:
    """Requests by brokers, responses by clients."""
    kind = messages()[name]
    data = base64.b64decode(RECORDED[name]["bytes"])
    found = decode(data, kind)
    again = msgspec.msgpack.decode(encode(found))
    assert {field: again[field] for field in msgspec.msgpack.decode(data)} == msgspec.msgpack.decode(data)


def test_recorded_are_the_messages_of_this_protocol_version() -> None:
    """A blank record would prove nothing."""
    assert len(RECORDED) > 60
    assert {"FetchRequest", "ReadRequest", "ProduceHello", "MetadataResponse"} <= RECORDED.keys()
    assert requests.PROTOCOL_VERSION == 1


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(record(), indent=1, sort_keys=True) + "\n")
