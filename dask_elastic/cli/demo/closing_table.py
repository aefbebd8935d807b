"""The closing table: static, elastic, and what was aimed at."""

from __future__ import annotations

from collections.abc import Callable

from dask_elastic.cli.demo.judgement import LEAST_GAIN, LEAST_SHARE
from dask_elastic.cli.demo.outcome import Outcome
from dask_elastic.cli.terminal.console_table import Cell, ConsoleTable
from dask_elastic.cli.terminal.quantities import MISSING, count, duration


def closing_table(static: Outcome, elastic: Outcome, target: float, rows: int) -> ConsoleTable:
    """Return the outcomes of both jobs beside what was aimed at.

    Parameters
    ----------
    static, elastic : Outcome
        The outcomes.
    target : float
        The target of the mean latency, in seconds.
    rows : int
        The number of flights that each job was to count.
    """
    aims = f"{LEAST_SHARE:.0%}, and {100 * LEAST_GAIN:.0f} points above static"
    lines: list[tuple[str, Callable[[Outcome], str], str]] = [
        ("seconds within the target", lambda outcome: _percent(outcome.share), f"at least {aims}"),
        ("mean latency", lambda outcome: duration(outcome.mean), duration(target)),
        ("p99 in the median second", lambda outcome: duration(outcome.p99), MISSING),
        ("core-seconds", lambda outcome: count(outcome.core_seconds), MISSING),
        ("shard moves", lambda outcome: count(outcome.moves), MISSING),
        ("flights counted", lambda outcome: count(outcome.rows), count(rows)),
        ("recovered after a killed worker in", lambda outcome: duration(outcome.recovery), MISSING),
    ]
    cells: list[list[Cell]] = [[name, of(static), (of(elastic), "bold"), aim] for name, of, aim in lines]
    return ConsoleTable(["", "static", "elastic", "target"], cells, full=False)


def _percent(share: float | None) -> str:
    return MISSING if share is None else f"{share:.0%}"
