"""Rows to prepare: samples of the recordings, and of their stand-ins."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dask_elastic.spark.prepare import RECORDINGS

TYPES = {
    "timestamp_ntz": pa.timestamp("us"),
    "bigint": pa.int64(),
    "int": pa.int32(),
    "smallint": pa.int16(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
}
FILES = {
    "flights": "flights_nyc2013/flights.parquet",
    "weather": "weather_nyc2013/weather.parquet",
    "edits": "wiki_edits/edits.parquet",
    "exchange_orders": "orders_bitstamp/orders.parquet",
    "retail_orders": "retail_orders/orders.parquet",
    "texts": "commit_texts/commits.parquet",
}
SAMPLED = 12_000


@pytest.fixture(scope="session")
def sample(data_path: Callable[[str], Path]) -> Callable[[str], pd.DataFrame]:
    """Return a function that samples rows of a recording, or of its stand-in, evenly over time."""

    def rows(name: str) -> pd.DataFrame:
        table = pq.read_table(data_path(FILES[name]))
        # The weather is joined with flights, so it must not have gaps.
        step = 1 if name == "weather" else max(1, table.num_rows // SAMPLED)
        table = table.take(np.arange(0, table.num_rows, step))
        text = [pa.types.is_dictionary(field.type) for field in table.schema]
        plain = [
            field.with_type(pa.string()) if words else field for field, words in zip(table.schema, text, strict=True)
        ]
        return table.cast(pa.schema(plain)).to_pandas()

    return rows


@pytest.fixture(scope="session")
def columns_of() -> Callable[[str], dict[str, str]]:
    """Return a function that returns a recording's columns and their Spark types."""
    return lambda recording: dict(column.split(" ") for column in RECORDINGS[recording].split(", "))


@pytest.fixture(scope="session")
def store(columns_of: Callable[[str], dict[str, str]]) -> Callable[[pd.DataFrame, str, Path], str]:
    """Return a function that writes rows as Parquet with the types of a recording, and returns the path."""

    def write(frame: pd.DataFrame, recording: str, path: Path) -> str:
        columns = columns_of(recording)
        schema = pa.schema({name: TYPES[columns[name]] for name in frame.columns})
        pq.write_table(pa.Table.from_pandas(frame, schema=schema, preserve_index=False), path)
        return str(path)

    return write
