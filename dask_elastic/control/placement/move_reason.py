"""The sentences that say why a planner moves a home, what it expects, and what else could have been done."""

from __future__ import annotations

from dask_elastic.control.explanation.amounts import size
from dask_elastic.control.placement.strategies import HOME, LABELLED, NONE, cheapest
from dask_elastic.control.reason import duration
from dask_elastic.vocab.plan import HomeForecast, StrategyCost

_NAMES = {NONE: "if nothing moved", LABELLED: "if shards moved and the home stayed", HOME: "with this move"}


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
    >>> costs = (StrategyCost("none", 0.02, 0.0, 0.0, 0.0), StrategyCost("labelled", 0.003, 2.0**20, 0.06, 1e6, False),
    ...          StrategyCost("home", 0.004, 2.0**20, 0.055, 0.0))
    >>> print(move_reason(HomeForecast("flux", 2.0**20, 0.055, 0.5, 0.0, costs), "homes move for balance."))
    Placement 'flux': homes move for balance. Expected: 1.0 MiB of state, a pause of 55 ms, a load distance lower by
    50 % of the mean. Rows take 20 ms if nothing moved, 4 ms with this move, which is the least.
    """
    expected = [f"{size(forecast.moved_bytes)} of state", f"a pause of {duration(forecast.pause)}"]
    if abs(forecast.gain) >= 0.005:
        change = "lower" if forecast.gain > 0 else "higher"
        expected.append(f"a load distance {change} by {abs(forecast.gain):.0%} of the mean".replace("%", " %"))
    if abs(forecast.traffic) >= 1:
        change = "less" if forecast.traffic > 0 else "more"
        expected.append(f"{size(abs(forecast.traffic))}/s {change} between workers")
    sentences = [f"Placement {forecast.placement!r}: {reason}", f"Expected: {', '.join(expected)}."]
    return " ".join([*sentences, *_compared(forecast.costs)])


def _compared(costs: tuple[StrategyCost, ...]) -> list[str]:
    allowed = [one for one in costs if one.allowed]
    if not allowed:
        return []
    least = cheapest(allowed)
    named = [
        f"{duration(one.delay)} {_NAMES[one.strategy]}{', which is the least' if one is least else ''}"
        for one in allowed
    ]
    return [f"Rows take {', '.join(named)}."]
