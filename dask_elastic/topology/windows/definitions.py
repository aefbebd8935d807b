"""How users define windows: `tumbling`, `hopping`, `sliding`, `session` and `count`."""

from __future__ import annotations

import datetime
from typing import Any, TypeAlias

from dask_elastic.topology import validation
from dask_elastic.topology.duration import parse_duration, seconds_of
from dask_elastic.topology.state_kind import Duration
from dask_elastic.topology.windowing import (
    MOST,
    CountWindow,
    EventWindow,
    SessionWindow,
    WindowSpec,
    duration_text,
)
from dask_elastic.vocab.errors import TopologyError

Start: TypeAlias = Duration | datetime.datetime
"""When one instance begins: a datetime, in UTC if it has no time zone, or a duration since the Unix epoch."""

MOST_INSTANCES = 100_000
"""Instances of windows over event time that one row may be in: with a state of some 400 bytes for each, the first row
of a key takes 40 MB."""

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)


def tumbling(length: Duration, start: Start = 0) -> EventWindow:
    """Return a window over event time whose instances adjoin, without gap or overlap.

    Parameters
    ----------
    length : str, float or timedelta
        The length of an instance: text such as "10min", or seconds.
    start : str, float, timedelta or datetime, optional
        When one instance begins; the others follow and precede it at multiples of the length. A datetime, in UTC if it
        has no time zone; or a duration since the Unix epoch.

    Returns
    -------
    EventWindow
        The window.

    Raises
    ------
    TopologyError
        When the length or the start is not valid.

    Examples
    --------
    >>> import dask_elastic as de
    >>> print(de.windows.tumbling("10min"))
    10min
    >>> print(de.windows.tumbling("1d", start="6h"))
    1d from 6h
    """
    size = microseconds(length, "tumbling: length")
    return EventWindow(_start(start, "tumbling"), size, size)


def hopping(length: Duration, frequency: Duration, start: Start = 0) -> EventWindow:
    """Return a window over event time whose instances begin at intervals of at most their length, and may overlap.

    Parameters
    ----------
    length : str, float or timedelta
        The length of an instance: text such as "1h", or seconds.
    frequency : str, float or timedelta
        The time from the begin of an instance to the begin of the next, at most the length.
    start : str, float, timedelta or datetime, optional
        When one instance begins; as for `tumbling`.

    Returns
    -------
    EventWindow
        The window.

    Raises
    ------
    TopologyError
        When an argument is not valid, or the frequency is above the length.

    Examples
    --------
    >>> import dask_elastic as de
    >>> print(de.windows.hopping("1h", "10min"))
    1h every 10min
    """
    size, every = microseconds(length, "hopping: length"), microseconds(frequency, "hopping: frequency")
    if every > size:
        raise TopologyError(
            f"hopping: frequency is {duration_text(every)}, above the length, {duration_text(size)}, so that rows "
            "between two instances would be in none; give a lower frequency, or write "
            f"de.windows.sliding({start!r}, {length!r}, {frequency!r}) if that is intended."
        )
    return EventWindow(_start(start, "hopping"), size, every)


def sliding(start: Start, length: Duration, frequency: Duration) -> EventWindow:
    """Return a window over event time by start, length and frequency, whose instances may overlap or leave gaps.

    Parameters
    ----------
    start : str, float, timedelta or datetime
        When one instance begins; as for `tumbling`.
    length : str, float or timedelta
        The length of an instance: text such as "1h", or seconds.
    frequency : str, float or timedelta
        The time from the begin of an instance to the begin of the next. If it is above the length, rows between two
        instances are in no result.

    Returns
    -------
    EventWindow
        The window.

    Raises
    ------
    TopologyError
        When an argument is not valid.

    Notes
    -----
    Enorm, section 4.2.

    Examples
    --------
    The first quarter of an hour of each hour:

    >>> import dask_elastic as de
    >>> print(de.windows.sliding(0, "15min", "1h"))
    15min every 1h
    """
    size, every = microseconds(length, "sliding: length"), microseconds(frequency, "sliding: frequency")
    return EventWindow(_start(start, "sliding"), size, every)


def session(gap: Duration) -> SessionWindow:
    """Return a window over the rows of a key that follow each other within less than a gap of event time.

    Parameters
    ----------
    gap : str, float or timedelta
        Event time without rows of the key after which a session ends: text such as "30min", or seconds.

    Returns
    -------
    SessionWindow
        The window.

    Raises
    ------
    TopologyError
        When the gap is not valid.

    Examples
    --------
    >>> import dask_elastic as de
    >>> print(de.windows.session("30min"))
    sessions with a gap of 30min
    """
    return SessionWindow(microseconds(gap, "session: gap"))


def count(length: int, frequency: int | None = None) -> CountWindow:
    """Return a window over a number of rows of a key, in the order in which they arrive.

    Parameters
    ----------
    length : int
        The rows in an instance.
    frequency : int, optional
        Rows from the begin of an instance to the begin of the next, at most the length; by default the length.

    Returns
    -------
    CountWindow
        The window.

    Raises
    ------
    TopologyError
        When a number is not valid, or the frequency is above the length.

    Examples
    --------
    >>> import dask_elastic as de
    >>> print(de.windows.count(100, frequency=10))
    100 rows every 10 rows
    """
    size = validation.check_count(length, "count", "length")
    step = validation.check_count(size if frequency is None else frequency, "count", "frequency")
    if step > size:
        raise TopologyError(
            f"count: frequency is {step}, above the length, {size}, so that rows between two instances would be in "
            f"none; give {size} or less."
        )
    return CountWindow(size, step)


def windows_of(given: object, where: str) -> tuple[WindowSpec, ...]:
    """Return the windows that a user passes to `window`.

    Parameters
    ----------
    given : object
        A window, a duration for a tumbling window, or a list or tuple of these.
    where : str
        The stream, for the error text.

    Returns
    -------
    tuple of EventWindow, SessionWindow or CountWindow
        The windows.

    Raises
    ------
    TopologyError
        When one of them is neither, or a row would be in more than `MOST_INSTANCES` instances of them.

    Examples
    --------
    >>> [str(window) for window in windows_of(["10min", hopping("1h", "30min")], "stream of 'loans'")]
    ['10min', '1h every 30min']
    """
    if isinstance(given, list | tuple):
        if not given:
            raise TopologyError(f"{where}: window got an empty list; give at least one window, such as '10min'.")
        windows = tuple(_window(one, where) for one in given)
    else:
        windows = (_window(given, where),)
    _check_instances(windows, where)
    return windows


def _check_instances(windows: tuple[WindowSpec, ...], where: str) -> None:
    counts = {w: -(-w.length // w.frequency) for w in windows if isinstance(w, EventWindow)}
    if (instances := sum(counts.values())) > MOST_INSTANCES:
        raise TopologyError(
            f"{where}: each row would be in {instances:,} instances, most of them of the window "
            f"{max(counts, key=counts.__getitem__)}; a state for each of them takes some 400 bytes. Give a higher "
            f"frequency or a lower length, so that a row is in {MOST_INSTANCES:,} instances at most."
        )


def microseconds(duration: Any, where: str, least: int = 1) -> int:
    """Parse a duration into microseconds.

    Parameters
    ----------
    duration : str, float or timedelta
        As for `tumbling`.
    where : str
        What the duration is for, for the error text.
    least : {0, 1}
        The shortest valid one.

    Returns
    -------
    int
        The duration.

    Raises
    ------
    TopologyError
        When it is not a duration, is too short, or is not whole in microseconds.

    Examples
    --------
    >>> microseconds("1.5ms", "tumbling: length")
    1500
    >>> microseconds("10 parsecs", "tumbling: length")
    Traceback (most recent call last):
        ...
    dask_elastic.vocab.errors.TopologyError: tumbling: length is '10 parsecs', whose unit of time is unknown; ...
    """
    if isinstance(duration, datetime.timedelta):
        whole = duration // _MICROSECOND
    else:
        seconds = seconds_of(duration, where) if least else parse_duration(duration, where)
        try:
            whole = round(seconds * 1e6)
        except (OverflowError, ValueError):
            raise TopologyError(f"{where} is {duration!r}; give a finite duration.") from None
        if abs(seconds * 1e6 - whole) > 1e-3:
            raise TopologyError(f"{where} is {duration!r}; event time has microseconds, give whole ones.")
    if whole < least:
        valid = "above 0" if least else "of 0 or more"
        raise TopologyError(f"{where} is {duration!r}; give a duration {valid}, such as '10min'.")
    if whole >= MOST:
        raise TopologyError(f"{where} is {duration!r}; give less than 2**62 microseconds, which are 146,135 years.")
    return whole


def _window(given: object, where: str) -> WindowSpec:
    if isinstance(given, EventWindow | SessionWindow | CountWindow):
        return given
    if isinstance(given, str | int | float | datetime.timedelta) and not isinstance(given, bool):
        size = microseconds(given, f"{where}: the length of the window")
        return EventWindow(0, size, size)
    raise TopologyError(
        f"{where}: window got {given!r}, of type {type(given).__name__}; give a window such as "
        "de.windows.hopping('1h', '10min'), a duration for a tumbling window, or a list of these."
    )


def _start(start: Start, kind: str) -> int:
    if isinstance(start, datetime.datetime):
        instant = start if start.tzinfo is not None else start.replace(tzinfo=datetime.UTC)
        return (instant - _EPOCH) // _MICROSECOND
    if isinstance(start, datetime.timedelta):
        return start // _MICROSECOND
    if isinstance(start, int | float) and not isinstance(start, bool) and start < 0:
        return -microseconds(-start, f"{kind}: start")
    return microseconds(start, f"{kind}: start", least=0)
