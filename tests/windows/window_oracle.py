"""The results of windows over a whole input, by pandas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from dask_elastic.topology.windowing import CountWindow, EventWindow, SessionWindow, Windowing

START, END = "window_start", "window_end"
Aggregates = Mapping[str, tuple[str, str | None]]
"""By output: the function, "size" or a name that pandas knows, and its column."""


class Expected(NamedTuple):
    """Results by key and instance, in order; and the numbers of pairs of rows and instances, and of other rows."""

    results: pd.DataFrame
    pairs: int
    outside: int
    untimed: int


def expected(rows: pa.Table, keys: list[str], windowing: Windowing, aggregates: Aggregates) -> Expected:
    """Return the results over all rows, none of which is late.

    Times are in microseconds since the Unix epoch. Results of count windows are those of complete instances, bounded
    by numbers of rows if there is no time.
    """
    frame = _frame(rows, windowing)
    timed = frame.dropna(subset=list(windowing.time))
    window = windowing.windows[0]
    if isinstance(window, SessionWindow):
        parts = [_sessions(timed, keys, windowing.time[0], window.gap)]
    elif isinstance(window, CountWindow):
        pairs = _counts(timed, keys, window)
        complete = _bounded(pairs, keys, window, windowing.time)
        results = _grouped(complete, [*keys, START, END, "instance"], aggregates).drop(columns="instance")
        return Expected(results, len(pairs), len(timed) - pairs["row"].nunique(), len(frame) - len(timed))
    else:
        policy = windowing.time, windowing.spans == "overlapping"
        parts = [_instances(timed, *policy, one) for one in windowing.windows if isinstance(one, EventWindow)]
    pairs = pd.concat(parts)
    return Expected(
        _grouped(pairs, [*keys, START, END], aggregates),
        len(pairs),
        len(timed) - pairs["row"].nunique(),
        len(frame) - len(timed),
    )


def microseconds(column: pa.ChunkedArray | pa.Array) -> np.ndarray[Any, Any]:
    """Return times as floats of whole microseconds, rounded down; nulls are NaN."""
    if pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("s"))
    unit = {"s": (1_000_000, 1), "ms": (1_000, 1), "us": (1, 1), "ns": (1, 1_000)}[column.type.unit]
    numbers = column.cast(pa.int64())
    # Numbers of 64 bits are exact up to 2**53 as floats: the times of tests are.
    return np.array([np.nan if n is None else n * unit[0] // unit[1] for n in numbers.to_pylist()], float)


def _frame(rows: pa.Table, windowing: Windowing) -> pd.DataFrame:
    frame = rows.to_pandas()
    for column in windowing.time:
        frame[column] = microseconds(rows[column])
    return frame.assign(row=np.arange(len(frame)))


def _instances(frame: pd.DataFrame, time: tuple[str, ...], overlapping: bool, window: EventWindow) -> pd.DataFrame:
    begin, end = (frame[time[side]].to_numpy().astype(np.int64) for side in (0, -1))
    last = (begin - window.start) // window.frequency
    # A point lies before the end of an instance, a span may end with it.
    shortest = end if len(time) > 1 else begin + 1
    first = -((window.start + window.length - shortest) // window.frequency)
    if overlapping:
        # A span does not reach the instance that begins as it ends; without a length, it is a point.
        last = -((window.start - np.maximum(end, begin + 1)) // window.frequency) - 1
        first = (begin - window.start - window.length) // window.frequency + 1
    count = np.maximum(last - first + 1, 0)
    pairs = frame.loc[frame.index.repeat(count)]
    number = np.repeat(first, count) + _ranges(count)
    starts = window.start + number * window.frequency
    return pairs.assign(**{START: starts, END: starts + window.length})


def _sessions(frame: pd.DataFrame, keys: list[str], time: str, gap: int) -> pd.DataFrame:
    if frame.empty:
        return frame.assign(**{START: 0, END: 0})
    ordered = frame.sort_values(time, kind="stable")
    grouped = ordered.groupby(keys, dropna=False, sort=False)
    opens = ~(grouped[time].diff() < gap)
    sessions = ordered.assign(session=opens.cumsum().where(opens))
    sessions["session"] = sessions.groupby(keys, dropna=False, sort=False)["session"].ffill()
    times = sessions.groupby("session")[time]
    return sessions.assign(
        **{START: times.transform("min").astype(np.int64), END: times.transform("max").astype(np.int64) + gap}
    )


def _counts(frame: pd.DataFrame, keys: list[str], window: CountWindow) -> pd.DataFrame:
    ordinal = frame.groupby(keys, dropna=False).cumcount().to_numpy() if len(frame) else np.empty(0, np.int64)
    last = ordinal // window.frequency
    first = np.maximum((ordinal - window.length) // window.frequency + 1, 0)
    count = np.maximum(last - first + 1, 0)
    starts = (np.repeat(first, count) + _ranges(count)) * window.frequency
    return frame.loc[frame.index.repeat(count)].assign(instance=starts)


def _bounded(pairs: pd.DataFrame, keys: list[str], window: CountWindow, time: tuple[str, ...]) -> pd.DataFrame:
    """Return the pairs of complete instances, with their bounds."""
    groups = pairs.groupby([*keys, "instance"], dropna=False)
    pairs = pairs[groups["row"].transform("size") == window.length]
    if not time or pairs.empty:
        return pairs.assign(**{START: pairs["instance"], END: pairs["instance"] + window.length})
    groups = pairs.groupby([*keys, "instance"], dropna=False)
    first, last = (groups[time[side]].transform(("min", "max")[side]).astype(np.int64) for side in (0, -1))
    return pairs.assign(**{START: first, END: last + (len(time) == 1)})


def _ranges(counts: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def _grouped(pairs: pd.DataFrame, by: list[str], aggregates: Aggregates) -> pd.DataFrame:
    grouped = pairs.groupby(by, dropna=False, sort=True)
    columns = {}
    for output, (function, column) in aggregates.items():
        if function == "size":
            columns[output] = grouped.size()
        elif function == "sum":
            columns[output] = grouped[column].sum(min_count=1)
        else:
            columns[output] = grouped[column].agg(function)
    results = pd.DataFrame(columns).reset_index()
    return results if len(results) else pd.DataFrame(columns=[*by, *aggregates])


def standing(results: pa.Table, keys: list[str]) -> pa.Table:
    """Return what a reader has in the end who keeps the last result of each instance until it is withdrawn."""
    last: dict[tuple[Any, ...], int] = {}
    names = [*keys, START, END]
    for number, row in enumerate(results.select([*names, "withdrawn"]).to_pylist()):
        instance = tuple(row[name] for name in names)
        last.pop(instance, None)
        if not row["withdrawn"]:
            last[instance] = number
    return results.take(list(last.values())).drop_columns(["revision", "withdrawn"])


def records(found: pd.DataFrame | pa.Table, places: int = 9) -> list[tuple[Any, ...]]:
    """Return results as comparable tuples in order: floats are rounded, nulls are None, times are microseconds."""
    if isinstance(found, pa.Table):
        columns = []
        for column in found.columns:
            kind = column.type
            column = pc.cast(column.cast(pa.timestamp("us")), pa.int64()) if pa.types.is_timestamp(kind) else column
            columns.append(column.to_pylist())
    else:
        columns = [[None if pd.isna(value) else value for value in found[name]] for name in found.columns]
    rows = zip(*([_plain(value, places) for value in column] for column in columns), strict=True)
    return sorted(rows, key=repr)


def _plain(value: Any, places: int) -> Any:
    if isinstance(value, float | np.floating):
        return None if np.isnan(value) else round(float(value), places)
    return int(value) if isinstance(value, int | np.integer) else value
