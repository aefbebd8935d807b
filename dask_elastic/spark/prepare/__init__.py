"""Preparation of recordings with Spark: read, clean, order and join them, and say what was dropped and why.

Everything here takes and returns data frames of Spark and runs nothing until it is asked for rows or counts. The
cleaning serves batches and streams alike; ordering, and finding copies, needs a batch.
"""

from __future__ import annotations

from dask_elastic.spark.prepare.counts import Counts
from dask_elastic.spark.prepare.edits import edits
from dask_elastic.spark.prepare.flights import flights
from dask_elastic.spark.prepare.histograms import key_histograms
from dask_elastic.spark.prepare.orders import exchange_orders, retail_orders
from dask_elastic.spark.prepare.prepared import PreparationError, Prepared, judge
from dask_elastic.spark.prepare.rates import Rates, rates
from dask_elastic.spark.prepare.reading import read
from dask_elastic.spark.prepare.recordings import RECORDINGS
from dask_elastic.spark.prepare.texts import texts
from dask_elastic.spark.prepare.weather import weather, with_weather

__all__ = [
    "RECORDINGS",
    "Counts",
    "PreparationError",
    "Prepared",
    "Rates",
    "edits",
    "exchange_orders",
    "flights",
    "judge",
    "key_histograms",
    "rates",
    "read",
    "retail_orders",
    "texts",
    "weather",
    "with_weather",
]
