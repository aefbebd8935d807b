"""ELB's and CLB's figures 2 to 4 and Table 1: imbalance and moved state, window by window.

Notes
-----
ELB/CLB, section 5.1. Algorithms are compared by the imbalance of each window before moves. The paper's figures 3
and 4 and its table use a recording of tweets that is not public: a stream of changing topics replaces it. PKG splits
each key over two instances; its moved state is, for each key, the smaller of the two parts, which must be merged in
every window. This is an interpretation: the paper does not define it. CLB is shown with both weights of the fourth
erratum.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dask_elastic.papers.experiment import run
from dask_elastic.papers.figures.figure import Figure
from dask_elastic.papers.workloads.substreams import gaussian_counts, problems, topical_counts, zipf_counts
from dask_elastic.planning.placement.consistent_hash import hashed
from dask_elastic.planning.placement.correlation import Correlation
from dask_elastic.planning.placement.eager import Eager
from dask_elastic.planning.placement.planner import PlacementPlanner
from dask_elastic.planning.placement.problem import Floats
from dask_elastic.planning.placement.universal_hash import UniversalHash

INSTANCES, EVERY = 10, 24
"""Instances, and windows between two runs of CLB: five of them in the paper's 120 windows."""

_WINDOWS, _FEW_WINDOWS = 120, 72
_CHUNKS = 20


def skew(seed: int, quick: bool) -> pa.Table:
    """Run CLB over a Gaussian and a Zipf stream of the same mean.

    Parameters
    ----------
    seed : int
        Seeds arrivals and the first placement.
    quick : bool
        Use fewer windows.

    Returns
    -------
    pyarrow.Table
        One row per stream and window: stream, window, imbalance (tuples squared) and share of the state that moved.
    """
    windows = _FEW_WINDOWS if quick else _WINDOWS
    streams = {"Gaussian": gaussian_counts(seed, windows), "Zipf": zipf_counts(seed, windows)}
    clb = Correlation(weights="printed")
    return pa.concat_tables(_history("stream", name, clb, counts, seed, EVERY) for name, counts in streams.items())


def rivals(seed: int, quick: bool) -> pa.Table:
    """Run ELB, CLB, UHLB and PKG over a stream of changing topics.

    Parameters
    ----------
    seed : int
        Seeds the stream and the first placement.
    quick : bool
        Use fewer windows.

    Returns
    -------
    pyarrow.Table
        One row an algorithm and window: algorithm, window, imbalance (tuples squared) and share of the state that
        moved.
    """
    counts = topical_counts(seed, _FEW_WINDOWS if quick else _WINDOWS)
    planners: dict[str, tuple[PlacementPlanner, int]] = {
        "ELB": (Eager(), 1),
        "CLB": (Correlation(weights="printed"), EVERY),
        "CLB, exact weights": (Correlation(weights="exact"), EVERY),
        "UHLB": (UniversalHash(), 1),
    }
    tables = [_history("algorithm", name, one, counts, seed, every) for name, (one, every) in planners.items()]
    return pa.concat_tables([*tables, _two_choices(counts, seed)])


def summary(seed: int, quick: bool) -> pa.Table:
    """Return mean and standard deviation of the measures of `rivals`, one row per algorithm."""
    table = rivals(seed, quick)
    grouped = table.group_by("algorithm", use_threads=False).aggregate(
        [("imbalance", "mean"), ("imbalance", "stddev"), ("moved_share", "mean")]
    )
    return grouped.rename_columns(["algorithm", "mean", "deviation", "moved_share"])


def draw_windows(key: str, measure: str, label: str, table: pa.Table, axes: Any) -> None:
    """Draw a measure window by window, a line for each value of the key."""
    for value in table[key].unique().to_pylist():
        rows = table.filter(pc.equal(table[key], value))
        axes.plot(rows["window"].to_numpy(), rows[measure].to_numpy(), label=value, linewidth=1)
    axes.set(xlabel="window", ylabel=label, yscale="log")
    axes.legend(fontsize=8)


def draw_moves(table: pa.Table, axes: Any) -> None:
    """Draw the moved state of each window as points, and its mean over all windows as a line."""
    for number, value in enumerate(table["algorithm"].unique().to_pylist()):
        rows = table.filter(pc.equal(table["algorithm"], value))
        share = 100 * rows["moved_share"].to_numpy()
        axes.plot(rows["window"].to_numpy(), np.where(share > 0, share, np.nan), ".", color=f"C{number}", markersize=4)
        axes.axhline(
            max(share.mean(), 1e-3), color=f"C{number}", linewidth=1, label=f"{value}: {share.mean():.2f} % a window"
        )
    axes.set(xlabel="window", ylabel="state that moves (% of all)", yscale="log")
    axes.legend(fontsize=8)


def draw_summary(table: pa.Table, axes: Any) -> None:
    """Draw mean and standard deviation of the imbalance as bars."""
    names = table["algorithm"].to_pylist()
    axes.bar(names, table["mean"].to_numpy(), yerr=table["deviation"].to_numpy(), capsize=4)
    axes.set(ylabel="imbalance (tuples²), mean and standard deviation", yscale="log")


def _history(key: str, name: str, planner: PlacementPlanner, counts: Floats, seed: int, every: int) -> pa.Table:
    table = run(planner, problems(counts, INSTANCES, memory=EVERY, seed=seed), name, seed, every)
    return _windows(key, name, table["variance_before"].to_numpy(), table["moved_share"].to_numpy())


def _windows(key: str, name: str, imbalance: Floats, moved_share: Floats) -> pa.Table:
    return pa.table(
        {
            key: [name] * len(imbalance),
            "window": np.arange(len(imbalance)),
            "imbalance": imbalance,
            "moved_share": moved_share,
        }
    )


def _two_choices(counts: Floats, seed: int) -> pa.Table:
    """Send each part of a key's tuples to the less loaded of two instances; keys are interleaved."""
    substreams = np.arange(counts.shape[1])
    first = (hashed(substreams, seed) % np.uint64(INSTANCES)).astype(np.int64)
    # The second choice is never the first one.
    second = (first + 1 + (hashed(substreams, seed + 1) % np.uint64(INSTANCES - 1)).astype(np.int64)) % INSTANCES
    choices = list(zip(first.tolist(), second.tolist(), strict=True))
    imbalance, moved = np.zeros(len(counts)), np.zeros(len(counts))
    for window, row in enumerate(counts):
        loads, taken = [0.0] * INSTANCES, np.zeros(len(row))
        for _ in range(_CHUNKS):
            for key, part in enumerate((row / _CHUNKS).tolist()):
                one, other = choices[key]
                chosen = one if loads[one] <= loads[other] else other
                loads[chosen] += part
                taken[key] += part if chosen == one else 0.0
        imbalance[window] = np.var(loads)
        moved[window] = np.minimum(taken, row - taken).sum() / row.sum()
    return _windows("algorithm", "PKG", imbalance, moved)


FIGURES: tuple[Figure, ...] = (
    Figure(
        "elb-clb-2",
        "ELB/CLB, figure 2",
        "Imbalance of CLB on a Gaussian and a Zipf stream, 10 instances",
        skew,
        partial(draw_windows, "stream", "imbalance", "imbalance (tuples²)"),
    ),
    Figure(
        "elb-clb-3",
        "ELB/CLB, figure 3",
        "Imbalance over time, 10 instances",
        rivals,
        partial(draw_windows, "algorithm", "imbalance", "imbalance (tuples²)"),
    ),
    Figure("elb-clb-4", "ELB/CLB, figure 4", "State that moves, 10 instances", rivals, draw_moves),
    Figure("elb-clb-table-1", "ELB/CLB, Table 1", "Imbalance of the algorithms, 10 instances", summary, draw_summary),
)
