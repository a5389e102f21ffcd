"""``ssl.principal.mapping.rules``: Kafka's syntax, from a certificate's name to a principal."""

from __future__ import annotations

import pytest

from broker_runtime.contract.errors import InvalidConfigError
from broker_runtime.security.certificate_names import parse_mapping_rules


@pytest.mark.parametrize(
    ("rules", "name", "principal"),
    [
        ("DEFAULT", "Alice.example.org", "Alice.example.org"),
        (r"RULE:^(.*)\.example\.org$/$1/", "Alice.example.org", "Alice"),
        (r"RULE:^(.*)\.example\.org$/$1/L", "Alice.example.org", "alice"),
        (r"RULE:(.*)\.example\.org/$1/U", "Alice.example.org", "ALICE"),
        (r"RULE:^(.*)\.example\.org$/$1/L", "alice.example.com", None),
        (r"RULE:^(.*)\.example\.org$/$1/L,DEFAULT", "Alice.example.com", "Alice.example.com"),
        (r"RULE:(.*)\.org/$1/L, RULE:(.*)\.com/$1@com/", "Bob.com", "Bob@com"),
        (r"RULE:spiffe:\/\/prod\/(.*)/$1/", "spiffe://prod/etl", "etl"),
        (r"RULE:(a)(b)?c/$1-$2/", "ac", "a-"),
        (r"RULE:bob/x/", "bobby", None),  # the whole name must match
        (r"RULE:a{1,2}/two/", "aa", "two"),  # a comma in a pattern
    ],
)
def test_first_rule_that_matches_the_whole_name_counts(rules: str, name: str, principal: str | None) -> None:
    assert parse_mapping_rules(rules)(name) == principal


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        ("RULE:(/x/", "missing \\), unterminated"),
        ("RULE:a/$1/", "has no such group"),
        ("RULE:a/b", "must be DEFAULT or RULE"),
        ("default", "must be DEFAULT or RULE"),
        ("DEFAULT DEFAULT", "must be DEFAULT or RULE"),
        ("RULE:a/b/X", "must be DEFAULT or RULE"),
    ],
)
def test_rules_that_are_not_right_are_refused_at_the_start(rules: str, says: str) -> None:
    with pytest.raises(InvalidConfigError, match=says):
        parse_mapping_rules(rules)
