"""The judgement of the demonstration: whether the elastic job met its target, and the static job did so less often."""

from __future__ import annotations

from dask_elastic.cli.demo.checks import Check
from dask_elastic.cli.demo.outcome import Outcome
from dask_elastic.cli.terminal.quantities import duration

LEAST_SHARE = 0.8
"""Share of the seconds in which the elastic job is to be within its target."""

LEAST_GAIN = 0.2
"""By how much that share is to exceed the share of the static job."""


def judge(static: Outcome, elastic: Outcome, rows: int) -> list[Check]:
    """Judge the outcomes of both jobs.

    Parameters
    ----------
    static, elastic : Outcome
        The outcomes.
    rows : int
        The number of flights that each job was to count.

    Returns
    -------
    list of Check
        Whether all flights were counted once, whether both jobs have recovered, whether the elastic job was within its
        target in enough seconds, and whether it was so more often than the static job.

    Examples
    --------
    >>> static = Outcome(16, 0.25, 1.6, 2.1, 180.0, 8_000, 0, 3.1)
    >>> elastic = Outcome(16, 0.9375, 0.05, 0.1, 110.0, 8_000, 120, None)
    >>> [check.passed for check in judge(static, elastic, rows=8_000)]
    [True, True, True, False, True, True]
    >>> [check.passed for check in judge(elastic, static, rows=8_001)]
    [False, False, False, True, False, False]
    """
    both = (("static", static), ("elastic", elastic))
    checks = [
        Check(f"{name}: flights counted", outcome.rows == rows, f"{outcome.rows:,} of {rows:,}")
        for name, outcome in both
    ]
    checks += [
        Check(
            f"{name}: recovered after a killed worker",
            outcome.recovery is not None,
            "it has not restarted" if outcome.recovery is None else f"in {duration(outcome.recovery)}",
            "MISSED",
        )
        for name, outcome in both
    ]
    own, other = elastic.share or 0.0, static.share or 0.0
    measured = elastic.share is not None and static.share is not None
    return [
        *checks,
        Check(
            "elastic: seconds within the target",
            measured and own >= LEAST_SHARE,
            f"{own:.0%} of {elastic.seconds}; {LEAST_SHARE:.0%} at least",
            "MISSED",
        ),
        Check(
            "elastic: more such seconds than static",
            measured and round(own - other, 9) >= LEAST_GAIN,
            f"{100 * (own - other):.0f} points; {100 * LEAST_GAIN:.0f} at least",
            "MISSED",
        ),
    ]
