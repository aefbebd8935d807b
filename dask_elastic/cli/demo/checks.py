"""Checks of the demonstration: results equal those of a batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq

from dask_elastic.cli.demo.flight_delays import KEYS
from dask_elastic.cli.terminal.console_table import Cell, ConsoleTable

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
    failure : str
        The verdict if it did not pass.
    """

    what: str
    passed: bool
    details: str
    failure: str = "WRONG"


def compare_state(job: str, operator: str, found: pd.DataFrame, expected: pd.DataFrame) -> Iterator[Check]:
    """Compare each column of an operator's state in a job with that of the batch."""
    found = found.set_index(KEYS[operator]).sort_index()
    same_keys = found.index.equals(expected.index)
    yield Check(f"{job}: {operator}: keys", same_keys, f"{len(found):,} of {len(expected):,}")
    for column in EXACT if same_keys else ():
        differing = int((found[column].to_numpy() != expected[column].to_numpy()).sum())
        yield Check(f"{job}: {operator}: {column}", not differing, f"{differing} differ; sum {found[column].sum():,}")
    if same_keys:
        error = float((found["mean"] - expected["mean"]).abs().max())
        yield Check(f"{job}: {operator}: mean", error < LARGEST_ERROR, f"largest difference {error:.1e}")


def compare_updates(job: str, updates: Path, expected: pd.DataFrame) -> Check:
    """Check that the sink wrote each update once, and that the last one of each route is the route's final value."""
    written = pq.read_table(updates).to_pandas()
    last = written.sort_values("flights").groupby("route").last().sort_index()
    same = last.index.equals(expected.index) and (last["total"] == expected["total"]).all()
    # Each update of a route counts more flights than the one before.
    repeated = int(written.duplicated(["route", "flights"]).sum())
    details = f"{len(written):,} updates, {repeated} of them repeated"
    return Check(f"{job}: route_updates: last of each route", bool(same) and not repeated, details)


def check_table(checks: list[Check], against: str) -> ConsoleTable:
    """Return checks as a table.

    Parameters
    ----------
    checks : list of Check
        The checks.
    against : str
        The batch system whose results are the reference.
    """
    rows: list[list[Cell]] = [
        [check.what, ("ok", "green") if check.passed else (check.failure, "bold red"), check.details]
        for check in checks
    ]
    return ConsoleTable([f"against {against}", "verdict", "details"], rows, left=3, full=False)
