"""Predicates (``where``): what a reader wants of a topic, in the words of Spark SQL.

    tree     the predicate, typed: nodes over columns
    syntax   text into words and literals
    parse    a text and a topic's schema into a tree
    rows     a tree over Arrow columns: which rows match
    spans    a tree over a column that rises with offsets: between which values all matches lie
    frames   the tree as brokers take it, over a frame's statistics: whether any row can match

Rule: what Spark SQL would answer. A comparison with NULL is unknown, and only rows whose answer is true match. NaN
equals itself and is larger than all numbers. Strings compare by their UTF-8 bytes.
"""

from broker_runtime.contract.predicate.parse import METADATA_COLUMNS, parse_predicate
from broker_runtime.contract.predicate.rows import matching
from broker_runtime.contract.predicate.tree import Predicate

__all__ = ["METADATA_COLUMNS", "Predicate", "matching", "parse_predicate"]
