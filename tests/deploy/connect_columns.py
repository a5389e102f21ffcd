"""Columns of Spark Connect as text, without a server: a program, since gRPC in a process changes how it forks.

`tests/spark/test_load.py` has those of a classic session.
"""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
from pyspark.sql.connect import functions as F  # noqa: N812

from broker_runtime.contract.predicate import parse_predicate
from broker_runtime.contract.predicate.tree import Prefix
from pyspark_log.spark.load import _Rendered


def main() -> None:
    """Names are never taken for values, and values keep their type; what cannot be said is None."""
    for column, text in (
        (F.col("2024") > F.col("year"), "(`2024` > `year`)"),
        (~F.col("true"), "(NOT `true`)"),
        (F.col("_metadata.offset") > 5, "(`_metadata`.`offset` > 5)"),
        (F.col("`a.b`") == "it's", r"(`a.b` = 'it\'s')"),
        (F.col("d") < Decimal("1.50"), "(`d` < 1.50BD)"),
        (F.col("d") < 1.5, "(`d` < 1.5D)"),
        (F.col("t") >= dt.date(2026, 1, 31), "(`t` >= DATE '2026-01-31')"),
        (F.col("s").isNull() | F.col("s").isin("a", None), "((`s` IS NULL) OR (`s` IN ('a', NULL)))"),
        (F.expr("a > 5"), "(a > 5)"),
        (F.length("s") > 5, None),
        (F.col("d") < float("nan"), None),
    ):
        assert _Rendered.of(column).text == text, (_Rendered.of(column).text, text)
    made = _Rendered.of((F.col("a") > 1) & (F.col("_metadata.offset") > F.length("`b.c`")))
    assert (made.text, made.names, made.knows_names) == (None, [("a",), ("_metadata", "offset"), ("b.c",)], True)
    assert not _Rendered.of(F.expr("a > 1")).knows_names
    beginning = _Rendered.of(F.col("s").startswith("5%_")).text  # a wildcard in it is none
    assert beginning is not None
    root = parse_predicate(beginning, {"s": pa.string()}).root
    assert isinstance(root, Prefix)
    assert root.value == b"5%_"


main()
