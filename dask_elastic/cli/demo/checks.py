"""Checks of the demonstration: results equal those of a batch, and shards and cores moved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq

from dask_elastic.cli.demo.flight_delays import KEYS
from dask_elastic.cli.table import table as as_table

EXACT = ("flights", "total", "worst")
LARGEST_ERROR = 1e-9
"""Tolerance for means: the last digits of a float sum depend on the order of the rows."""


@dataclass(frozen=True)
class Check:
    """The result of one check.

    Parameters
    ----------
    what : str
        What was checked.
    passed : bool
        Whether the check passed.
    details : str
        The values found.
    """

    what: str
    passed: bool
    details: str


def compare_state(operator: str, found: pd.DataFrame, expected: pd.DataFrame) -> Iterator[Check]:
    """Compare each column of an operator's state with that of the batch."""
    found = found.set_index(KEYS[operator]).sort_index()
    same_keys = found.index.equals(expected.index)
    yield Check(f"{operator}: keys", same_keys, f"{len(found):,} of {len(expected):,}")
    for column in EXACT if same_keys else ():
        differing = int((found[column].to_numpy() != expected[column].to_numpy()).sum())
        yield Check(f"{operator}: {column}", not differing, f"{differing} differ; sum {found[column].sum():,}")
    if same_keys:
        error = float((found["mean"] - expected["mean"]).abs().max())
        yield Check(f"{operator}: mean", error < LARGEST_ERROR, f"largest difference {error:.1e}")


def compare_updates(updates: Path, expected: pd.DataFrame) -> Check:
    """Check that the last update of each route that the sink wrote is the route's final value."""
    written = pq.read_table(updates).to_pandas()
    last = written.sort_values("flights").groupby("route").last().sort_index()
    same = last.index.equals(expected.index) and (last["total"] == expected["total"]).all()
    return Check("route_updates: last of each route", bool(same), f"{len(written):,} updates")


def movements(metrics: pd.DataFrame, added: int, released: int) -> Iterator[Check]:
    """Check that shards and cores moved.

    Parameters
    ----------
    metrics : DataFrame
        The job's final metrics.
    added, released : int
        Numbers of cores that the control loop's decisions gave to executors and took from them.
    """
    moves, across = int(metrics["moves"].sum()), int(metrics["moves_across"].sum())
    yield Check("shards moved", moves > 0, f"{moves:,} moves, {across:,} of them between workers")
    yield Check("cores moved by the control loop", added > 0, f"{added} added, {released} released")


def as_text(checks: list[Check], against: str) -> str:
    """Format checks as a table.

    Parameters
    ----------
    checks : list of Check
        The checks.
    against : str
        The batch system whose results are the reference.
    """
    rows = [[check.what, "ok" if check.passed else "WRONG", check.details] for check in checks]
    return as_table([f"against {against}", "verdict", "details"], rows, left=3)
