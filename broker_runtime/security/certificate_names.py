"""``ssl.principal.mapping.rules``: from the name in a client's certificate to its principal, with Kafka's syntax.

    RULE:pattern/replacement/    the name that the pattern matches, whole; $1 is its first group
    RULE:pattern/replacement/L   the same in lower case; U: in upper case
    DEFAULT                      the name as it is

Kafka's rules see a distinguished name; ours what gRPC gives: the first SAN, or the CN where there is none.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from broker_runtime.contract.errors import InvalidConfigError

_DEFAULT: Final = "DEFAULT"
_RULE: Final = re.compile(r"RULE:(?P<pattern>(?:\\.|[^/\\])*)/(?P<replacement>(?:\\.|[^/\\])*)/(?P<case>[LU]?)")
_GROUP: Final = re.compile(r"\$(\d)")

Rule = Callable[[str], str | None]


def parse_mapping_rules(text: str) -> Rule:
    """The principal of a certificate's name; None: no rule matches. Raises `InvalidConfigError`."""
    rules: list[Rule] = []
    rest = text.strip()
    while rest:
        found = _RULE.match(rest)
        if found is not None:
            rules.append(_rule(found, text))
            rest = rest[found.end() :]
        elif rest.startswith(_DEFAULT):
            rules.append(lambda name: name)
            rest = rest[len(_DEFAULT) :]
        else:
            raise _refused(text)
        rest = rest.strip()
        if rest and not rest.startswith(","):
            raise _refused(text)
        rest = rest.removeprefix(",").strip()

    def apply(name: str) -> str | None:
        return next((principal for rule in rules if (principal := rule(name)) is not None), None)

    return apply


def _rule(found: re.Match[str], text: str) -> Rule:
    try:
        pattern = re.compile(found["pattern"].replace(r"\/", "/"))
    except re.error as error:
        raise InvalidConfigError(f"ssl.principal.mapping.rules={text!r}: {found['pattern']!r}: {error}") from None
    replacement = found["replacement"].replace(r"\/", "/")
    if any(int(number) > pattern.groups for number in _GROUP.findall(replacement)):
        raise InvalidConfigError(
            f"ssl.principal.mapping.rules={text!r}: {pattern.pattern!r} has no such group as in {replacement!r}"
        )
    cases: dict[str, Callable[[str], str]] = {"L": str.lower, "U": str.upper, "": str}
    change = cases[found["case"]]

    def apply(name: str) -> str | None:
        match = pattern.fullmatch(name)
        if match is None:
            return None
        return change(_GROUP.sub(lambda group: match[int(group[1])] or "", replacement))

    return apply


def _refused(text: str) -> InvalidConfigError:
    return InvalidConfigError(
        f"ssl.principal.mapping.rules={text!r}: must be DEFAULT or RULE:pattern/replacement/ (with L or U behind it), "
        "or several with commas between"
    )
