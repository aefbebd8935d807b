"""Timers of user-defined logic: what a compute declares so that its function can be called at a later time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dask_elastic.topology import validation
from dask_elastic.topology.logic_level import KeyLogic, RowLogic
from dask_elastic.vocab.errors import TopologyError
from dask_elastic.vocab.state_record import Clock

DUE = "due"
"""The column of the times in the batches that timers of logic per batch get."""

_HIDDEN = "!"


class Timer:
    """A timer that logic can set for each of its keys, and the function that is called when it fires.

    Parameters
    ----------
    function : callable
        Called as ``function(key, time, state)`` for logic per row and per key, with the time for which the timer was
        set as a `datetime` in UTC without a time zone. Called as ``function(batch, state)`` for logic per batch, with
        one row for each key: the key columns, and the time as the column ``due``. Returns what the logic may return.
    clock : {"event", "processing"}
        Whether the timer fires when the watermark reaches its time, or when the clock of the executor's home does.

    Raises
    ------
    TopologyError
        When the function is not callable, or there is no such clock.

    Examples
    --------
    Orders that are not paid within a quarter of an hour:

    >>> import datetime
    >>> import dask_elastic as de
    >>> import pyarrow as pa
    >>> @de.per_row
    ... def watch(row, state):
    ...     if row["what"] == "ordered":
    ...         state.timers.set("unpaid", row["at"] + datetime.timedelta(minutes=15))
    ...     else:
    ...         state.timers.delete("unpaid")
    >>> def report(order, time, state):
    ...     return {"order": order, "unpaid_at": time}
    >>> minutes = pa.array([0, 60, 240], pa.timestamp("s"))
    >>> rows = pa.table({"order": [1, 2, 1], "what": ["ordered", "ordered", "paid"], "at": minutes})
    >>> topology = de.Topology("shop")
    >>> orders = topology.source("orders", de.sources.Arrow(rows, event_time="at")).key_by("order")
    >>> unpaid = orders.compute(watch, timers={"unpaid": de.Timer(report)})
    >>> unpaid.sink(de.sinks.Collect(), name="out")
    >>> from dask_elastic.testing import run
    >>> run(topology).outputs["out"].to_pylist()
    [{'order': 2, 'unpaid_at': datetime.datetime(1970, 1, 1, 0, 16)}]
    """

    __slots__ = ("clock", "function")

    def __init__(self, function: Callable[..., Any], clock: Clock = "event") -> None:
        if not callable(function):
            raise TopologyError(f"Timer: {function!r} is not a function; give the one to be called when it fires.")
        if clock not in ("event", "processing"):
            raise TopologyError(f'Timer: clock is {clock!r}; give "event" or "processing".')
        self.function = function
        self.clock: Clock = clock

    def __repr__(self) -> str:
        return f"Timer({getattr(self.function, '__name__', self.function)!s}, clock={self.clock!r})"


def value_name(timer: str) -> str:
    """Return the name of the state value that holds the time of a timer."""
    return timer + _HIDDEN


def check_timers(
    timers: object,
    logic: Mapping[str, Any] | Callable[..., Any],
    state: Mapping[str, Any] | None,
    keys: tuple[str, ...],
    where: str,
) -> Mapping[str, Timer] | None:
    """Check the declared timers of a compute operator.

    Parameters
    ----------
    timers : object
        A dict of `Timer` by name; or None.
    logic : mapping or callable
        The logic that sets them.
    state : mapping or None
        The declared state.
    keys : tuple of str
        The key columns.
    where : str
        The operator, for the error text.

    Returns
    -------
    mapping of str to Timer, or None
        A copy of the declaration.

    Raises
    ------
    TopologyError
        When the logic is aggregates, or a name or function is invalid.
    """
    if not timers:
        return None
    if isinstance(logic, Mapping):
        raise TopologyError(f"{where}: aggregates set no timers; omit timers=, or give a function as logic.")
    if not isinstance(timers, Mapping):
        raise TopologyError(f"{where}: timers is {timers!r}; give a dict such as {{'close': de.Timer(close)}}.")
    per_batch = not isinstance(logic, RowLogic | KeyLogic)
    if DUE in keys:
        raise TopologyError(f"{where}: the time of a timer is in the column {DUE!r}; rename the key column {DUE!r}.")
    for name, timer in timers.items():
        if not isinstance(name, str) or not name:
            raise TopologyError(f"{where}: the timer {name!r} is not a name; give a str that is not empty.")
        if not isinstance(timer, Timer):
            raise TopologyError(f"{where}: timer {name!r} is {timer!r}; give de.Timer(function).")
        if value_name(name) in {*(state or {}), *keys}:
            raise TopologyError(
                f"{where}: timer {name!r} is stored as {value_name(name)!r}, which is a state value or a key column; "
                "rename one of them."
            )
        arguments = ("batch", "state") if per_batch else ("key", "time", "state")
        validation.check_function(timer.function, f"{where}, timer {name!r}", *arguments)
    return dict(timers)
