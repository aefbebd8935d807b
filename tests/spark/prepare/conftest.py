"""Rows to prepare: samples of the recordings, or of stand-ins if a recording is missing."""

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
def sample(
    recording: Callable[[str], Path | None], stand_in: Callable[[str], pa.Table]
) -> Callable[[str], pd.DataFrame]:
    """Return a function that samples rows of a recording, or of its stand-in, evenly over time."""

    def rows(name: str) -> pd.DataFrame:
        real = recording(FILES[name])
        if real is not None:
            table = pq.read_table(real)
        else:
            table = OWN_STAND_INS[name]() if name in OWN_STAND_INS else stand_in(FILES[name])
        # The weather is joined with flights, so it must not have gaps.
        step = 1 if name == "weather" else max(1, table.num_rows // SAMPLED)
        table = table.take(np.arange(0, table.num_rows, step))
        text = [pa.types.is_dictionary(field.type) for field in table.schema]
        plain = [
            field.with_type(pa.string()) if words else field for field, words in zip(table.schema, text, strict=True)
        ]
        return table.cast(pa.schema(plain)).to_pandas()

    return rows


def make_weather() -> pa.Table:
    """Make hourly reports of three stations for 2013, with some values missing."""
    random = np.random.default_rng(2013)
    hours = np.arange(
        np.datetime64("2013-01-01T06", "ms"), np.datetime64("2013-12-30T23", "ms"), np.timedelta64(1, "h")
    )
    rows = 3 * len(hours)
    measures = ("temp", "dewp", "humid", "wind_dir", "wind_speed", "wind_gust", "precip", "pressure", "visib")
    columns = {"station": np.repeat(["EWR", "JFK", "LGA"], len(hours)), "ts": np.tile(hours, 3)}
    for measure in measures:
        values = np.round(random.normal(50, 10, rows), 1)
        # As in the recording, visibility is never missing.
        missing = {"wind_gust": 0.8, "visib": 0.0}.get(measure, 0.01)
        columns[measure] = pa.array(values, mask=random.random(rows) < missing)
    return pa.table(columns)


def make_texts(rows: int = 10_000) -> pa.Table:
    """Make texts sorted by arrival; a fifth are late, and some have an event time in the future."""
    random = np.random.default_rng(2004)
    arrival = np.sort(random.integers(0, 10**9, rows)) * np.timedelta64(1, "s") + np.datetime64("2004-11-24", "ms")
    late = np.where(random.random(rows) < 0.22, random.integers(1, 10**6, rows), 0)
    late[:: rows // 10] = -60
    words = np.array(["Fix", "the", "typo", "in", "docs", "Merge", "branch", "of", "tests", "\u00e4"])
    return pa.table(
        {
            "arrival_ts": arrival,
            "event_ts": arrival - late * np.timedelta64(1, "s"),
            "author_id": random.integers(0, 500, rows),
            "is_merge": random.random(rows) < 0.25,
            "text": [" ".join(random.choice(words, size)) for size in random.integers(1, 12, rows)],
        }
    )


OWN_STAND_INS = {"weather": make_weather, "texts": make_texts}


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
