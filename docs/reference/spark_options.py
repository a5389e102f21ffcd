"""Options of ``format("pylog")``."""

from __future__ import annotations

from broker_runtime.contract.settings import settings_of
from docs.reference.markdown import sections, table
from pyspark_log.spark.option_definitions import SETTINGS_IN_SPARK, SINK_OPTIONS, SOURCE_OPTIONS, SparkOption
from pyspark_log.spark.option_table import CLIENT_PREFIX, CLIENT_SETTINGS, Direction

_HEAD = ("option", "default", "")


def page() -> str:
    """The page."""
    return sections(
        "# Spark options",
        'All options of `format("pylog")`. The guide [Spark](../guides/spark.md) says how they are used. Names are '
        "case-insensitive, and an unknown one is refused by name.",
        "## Reading",
        "For `spark.read` and `spark.readStream`. One of the first three is required.",
        table(_HEAD, map(_row, SOURCE_OPTIONS)),
        "### The client's settings, for reading",
        table(_HEAD, _client_rows("source")),
        "## Writing",
        "For `df.write` and `df.writeStream`.",
        table(_HEAD, map(_row, SINK_OPTIONS)),
        "### The client's settings, for writing",
        table(_HEAD, _client_rows("sink")),
    )


def _row(option: SparkOption) -> tuple[str, str, str]:
    return f"`{option.name}`", option.default, option.sentence


def _client_rows(direction: Direction) -> list[tuple[str, str, str]]:
    settings = settings_of("consumer" if direction == "source" else "producer")
    in_spark = {option.name: option for option in SETTINGS_IN_SPARK}
    rows = []
    for name in [name for name in settings if name in CLIENT_SETTINGS[direction]]:
        if name in in_spark:
            default, sentence = in_spark[name].default, in_spark[name].sentence
        else:
            shown = settings[name].show(settings[name].default)
            default, sentence = f"`{shown}`" if shown else "none", settings[name].sentence
        rows.append((f"`{CLIENT_PREFIX}{name}`", default, sentence))
    return rows
