"""The library's own histogram, sketch, hashes and parser of durations, compared with public libraries.

Prints one JSON line per comparison, in microseconds (hashes: nanoseconds per row), the best of the rounds. What is not
installed is left out. Decision 37 has the figures.

    pip install ddsketch datasketches xxhash
    python benchmarks/libraries.py [--rows 65536] [--rounds 5]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import pickle
import time
from collections.abc import Callable, Iterator
from typing import Any

import dask.utils
import numpy as np
import pandas as pd
import pyarrow as pa

from dask_elastic import aggregate as agg
from dask_elastic.meters import LatencyHistogram
from dask_elastic.routing.hashing import hash_columns
from dask_elastic.topology.aggregates.grouping import Grouping
from dask_elastic.topology.duration import seconds_of

Figure = tuple[str, str, Callable[[], Any]]
KEYS = 10_000


def histograms(random: np.random.Generator, rows: int) -> Iterator[Figure]:
    """Yield what a histogram does, ours and that of ddsketch."""
    values = random.lognormal(-4, 1.5, rows)
    ours, other = LatencyHistogram(), LatencyHistogram()
    other.record_many(values)
    yield "histogram: record rows", "ours", lambda: ours.record_many(values)
    yield "histogram: merge", "ours", lambda: ours.merge(other)
    yield "histogram: two quantiles", "ours", lambda: ours.quantiles((0.5, 0.99))
    yield "histogram: pickle", "ours", lambda: pickle.dumps(ours)
    if importlib.util.find_spec("ddsketch") is None:
        return
    from ddsketch import DDSketch

    listed, sketch, second = values.tolist(), DDSketch(0.02), DDSketch(0.02)
    for value in listed:
        second.add(value)
    yield "histogram: record rows", "ddsketch", lambda: [sketch.add(value) for value in listed]
    yield "histogram: merge", "ddsketch", lambda: sketch.merge(second)
    yield "histogram: two quantiles", "ddsketch", lambda: [sketch.get_quantile_value(q) for q in (0.5, 0.99)]
    yield "histogram: pickle", "ddsketch", lambda: pickle.dumps(sketch)


def sketches(random: np.random.Generator, rows: int) -> Iterator[Figure]:
    """Yield counting distinct values of many keys, ours and with one sketch of datasketches per key."""
    keys, values = random.integers(0, KEYS, rows), random.integers(0, 2**62, rows)
    bound = agg.DistinctCount("v").bind(pa.schema({"v": pa.int64()}))
    batch, grouping = pa.record_batch({"v": values}), Grouping(keys, KEYS)
    state = bound.update(bound.initial(KEYS), batch, grouping)
    yield "distinct count: rows of 10,000 keys", "ours", lambda: bound.update(state, batch, grouping)
    yield "distinct count: results", "ours", lambda: bound.result(state)
    if importlib.util.find_spec("datasketches") is None:
        return
    from datasketches import HLL_8, hll_sketch

    made = [hll_sketch(11, HLL_8) for _ in range(KEYS)]
    pairs = list(zip(keys.tolist(), values.tolist(), strict=True))
    name = "datasketches"
    yield "distinct count: rows of 10,000 keys", name, lambda: [made[key].update(value) for key, value in pairs]
    yield "distinct count: results", name, lambda: [one.get_estimate() for one in made]


def hashes(random: np.random.Generator, rows: int) -> Iterator[Figure]:
    """Yield hashing one column, ours, with pandas and with xxhash."""
    short = pa.array([f"N{number:05d}" for number in random.integers(0, 4_000, rows)])
    columns = {
        "int64": pa.array(random.integers(0, 2**62, rows)),
        "short strings": short,
        "distinct strings": pa.array([f"user-{number:020d}-session" for number in random.integers(0, 2**62, rows)]),
        "dictionary": short.dictionary_encode(),
    }
    for kind, column in columns.items():
        batch = pa.record_batch({"k": column})
        yield f"hash: {kind}", "ours", lambda batch=batch: hash_columns(batch, ("k",))
        yield f"hash: {kind}", "pandas", lambda column=column: pandas_hashes(column)
        if importlib.util.find_spec("xxhash") is not None:
            yield f"hash: {kind}", "xxhash", lambda column=column: xxhashes(column)


def pandas_hashes(column: pa.Array) -> np.ndarray:
    """Return a hash for each value."""
    series = column.to_pandas()
    return pd.util.hash_array(series.array if pa.types.is_dictionary(column.type) else series.to_numpy())


def xxhashes(column: pa.Array) -> list[int]:
    """Return a hash for each value."""
    from xxhash import xxh3_64_intdigest

    if pa.types.is_integer(column.type):
        return [xxh3_64_intdigest(value.to_bytes(8, "little", signed=True)) for value in column.to_pylist()]
    return [xxh3_64_intdigest(value.encode()) for value in column.to_pylist()]


def durations(random: np.random.Generator, rows: int) -> Iterator[Figure]:
    """Yield parsing a duration, ours and that of Dask."""
    yield "duration", "ours", lambda: seconds_of("250ms", "ttl")
    yield "duration", "dask", lambda: dask.utils.parse_timedelta("250ms")


def best(function: Callable[[], Any], rounds: int) -> float:
    """Return the seconds of the fastest of several calls."""
    found = float("inf")
    for _ in range(rounds):
        began = time.perf_counter()
        function()
        found = min(found, time.perf_counter() - began)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=65_536)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    for figures in (histograms, sketches, hashes, durations):
        for what, library, function in figures(np.random.default_rng(0), chosen.rows):
            is_hash = figures is hashes
            took = best(function, chosen.rounds) * (1e9 / chosen.rows if is_hash else 1e6)
            unit = "ns_per_row" if is_hash else "microseconds"
            print(json.dumps({"what": what, "library": library, unit: round(took, 2), **vars(chosen)}))


if __name__ == "__main__":
    main()
