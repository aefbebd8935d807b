"""The sentences that say why a planner moves a home, what it expects, and what else could have been done."""

from __future__ import annotations

from dask_elastic.control.explanation.amounts import size
from dask_elastic.control.reason import duration
from dask_elastic.vocab.counted import three_digits
from dask_elastic.vocab.plan import HOME, LABELLED, NONE, HomeForecast

_NAMES = {NONE: "if nothing moves", LABELLED: "if its shards move and the home stays", HOME: "if the home moves"}


def move_reason(forecast: HomeForecast, reason: str) -> str:
    """Return why a home moves, what is expected of it, and what the other strategies would cost.

    Parameters
    ----------
    forecast : HomeForecast
        What the planner expects.
    reason : str
        Why homes move, as the placement loop says.

    Returns
    -------
    str
        Sentences for people.

    Examples
    --------
    >>> from dask_elastic.vocab.plan import StrategyCost
    >>> costs = (StrategyCost("none", 61.2, 0.0, 0.0, 0.0), StrategyCost("labelled", 3.21, 2.0**20, 0.06, 1e6, False),
    ...          StrategyCost("home", 4.0, 2.0**20, 0.055, 0.0))
    >>> print(move_reason(HomeForecast("flux", 2.0**20, 0.055, 0.5, 0.0, costs), "homes move for balance."))
    Placement 'flux': homes move for balance. Expected: 1.0 MiB of state, a pause of 55 ms, a load distance lower by
    50 % of the mean. Rows wait for 4 row-seconds if the home moves, 61.2 if nothing moves.
    """
    expected = [f"{size(forecast.moved_bytes)} of state", f"a pause of {duration(forecast.pause)}"]
    if abs(forecast.gain) >= 0.005:
        change = "lower" if forecast.gain > 0 else "higher"
        expected.append(f"a load distance {change} by {abs(forecast.gain):.0%} of the mean".replace("%", " %"))
    if abs(forecast.traffic) >= 1:
        change = "less" if forecast.traffic > 0 else "more"
        expected.append(f"{size(abs(forecast.traffic))}/s {change} between workers")
    expects = [] if forecast.strategy == NONE else [f"Expected: {', '.join(expected)}."]
    return " ".join([f"Placement {forecast.placement!r}: {reason}", *expects, *_compared(forecast)])


def _compared(forecast: HomeForecast) -> list[str]:
    """Return what the chosen strategy costs, and what the others that are allowed would cost."""
    chosen = [one for one in forecast.costs if one.strategy == forecast.strategy]
    others = [one for one in forecast.costs if one.allowed and one.strategy != forecast.strategy]
    if not chosen:
        return []
    others.sort(key=lambda one: one.waiting)
    named = [f"{three_digits(one.waiting)} {_NAMES[one.strategy]}" for one in others]
    first = f"Rows wait for {three_digits(chosen[0].waiting)} row-seconds {_NAMES[forecast.strategy]}"
    return [f"{', '.join([first, *named])}."]
