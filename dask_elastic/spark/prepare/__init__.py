"""Preparation of recordings with Spark: read, clean, sort and join them, and count dropped rows by reason.

All functions take and return Spark data frames, and run nothing before rows or counts are requested. Cleaning works for
batches and streams; sorting and the search for copies need a batch.
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
