"""The timers of user logic: of one key, and of all keys of a batch."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from dask_elastic.state.layout import StateLayout
from dask_elastic.state.stored_values import Known, Values
from dask_elastic.vocab.arrow_arrays import array_of, numpy_of
from dask_elastic.vocab.errors import StateError, StateValueError

_EPOCH = datetime.datetime(1970, 1, 1)
_MOST_SECONDS = 9e12
"""Seconds that are a 64-bit number of microseconds."""

_TIMES = "a datetime, a numpy.datetime64, or seconds since 1970 as state.now"


class KeyTimers:
    """The timers of one key, for logic per row and per key: ``state.timers``.

    Notes
    -----
    A key has at most one time for each declared timer: setting it again replaces the time. A timer whose time has
    passed already fires with the next watermark, or the next tick of the clock. It is cleared before its function is
    called.

    Examples
    --------
    >>> import dask_elastic as de
    >>> @de.per_row
    ... def process(row, state):
    ...     state.timers.set("expire", state.now + 60)
    """

    __slots__ = ("_layout", "_opened", "_position")

    def __init__(self, opened: Callable[[str], Any], layout: StateLayout, position: int) -> None:
        self._opened = opened
        self._layout = layout
        self._position = position

    def set(self, name: str, at: Any) -> None:
        """Set a timer, or move it to another time.

        Parameters
        ----------
        name : str
            The timer's declared name.
        at : datetime, numpy.datetime64 or float
            When it fires. A datetime without a time zone is in UTC; a number is in seconds since 1970.

        Raises
        ------
        StateError
            If the timer is not declared.
        StateValueError
            If the time is none.

        Examples
        --------
        >>> import datetime
        >>> def process(row, state):
        ...     state.timers.set("close", row["at"] + datetime.timedelta(minutes=5))
        """
        self._opened(_hidden(self._layout, name)).set(self._position, _moment(name, at))

    def delete(self, name: str) -> None:
        """Delete a timer; one that is not set stays unset.

        Parameters
        ----------
        name : str
            The timer's declared name.

        Raises
        ------
        StateError
            If the timer is not declared.

        Examples
        --------
        >>> def process(row, state):
        ...     if row["kind"] == "logout":
        ...         state.timers.delete("close")
        """
        self._opened(_hidden(self._layout, name)).set(self._position, None)

    def get(self, name: str) -> datetime.datetime | None:
        """Return the time of a timer.

        Parameters
        ----------
        name : str
            The timer's declared name.

        Returns
        -------
        datetime or None
            The time in UTC, without a time zone; None if it is not set.

        Raises
        ------
        StateError
            If the timer is not declared.

        Examples
        --------
        >>> def process(row, state):
        ...     if state.timers.get("close") is None:
        ...         state.timers.set("close", row["at"])
        """
        found: datetime.datetime | None = self._opened(_hidden(self._layout, name)).get(self._position)
        return found


class KeptValues(Protocol):
    """The declared values of the keys of a batch, as timers use them; see `StateView`."""

    layout: StateLayout

    def __len__(self) -> int: ...

    def get(self, name: str) -> Values:
        """Return a declared value of every key."""
        ...

    def known(self, name: str) -> Known:
        """Return which keys have a value."""
        ...

    def set(self, name: str, values: Any, where: Known | None = None) -> None:
        """Set a declared value of all or some keys."""
        ...


class BatchTimers:
    """The timers of all keys of a batch, for logic per batch: ``state.timers``.

    Notes
    -----
    As `KeyTimers`, with one time per key, in the order of ``state.keys``.

    Examples
    --------
    >>> def process(batch, state):
    ...     state.timers.set("expire", np.full(len(state), state.now + 60))
    """

    __slots__ = ("_view",)

    def __init__(self, view: KeptValues) -> None:
        self._view = view

    def set(self, name: str, at: Any, where: Known | None = None) -> None:
        """Set a timer of all or some keys.

        Parameters
        ----------
        name : str
            The timer's declared name.
        at : array-like
            One time per key: timestamps, or seconds since 1970 as numbers. A null deletes the key's timer.
        where : ndarray of bool, optional
            The keys whose timer is set; all by default.

        Raises
        ------
        StateError
            If the timer is not declared, or the length does not fit.
        StateValueError
            If the type does not fit, or a number of seconds is no time.

        Examples
        --------
        >>> def process(batch, state):
        ...     newest = batch["at"].to_numpy()[state.last]
        ...     state.timers.set("close", newest + np.timedelta64(5, "m"))
        """
        value, moments, keys = _hidden(self._view.layout, name), _moments(name, at), len(self._view)
        if len(moments) != keys:
            raise StateError(f"timer {name!r}: {len(moments)} times for {keys} keys; give one per key of state.keys")
        self._view.set(value, moments, where)

    def delete(self, name: str, where: Known | None = None) -> None:
        """Delete a timer of all or some keys.

        Parameters
        ----------
        name : str
            The timer's declared name.
        where : ndarray of bool, optional
            The keys whose timer is deleted; all by default.

        Raises
        ------
        StateError
            If the timer is not declared.

        Examples
        --------
        >>> def process(batch, state):
        ...     state.timers.delete("close", where=state.get("count") > 9)
        """
        self._view.set(_hidden(self._view.layout, name), np.full(len(self._view), np.datetime64("NaT", "us")), where)

    def get(self, name: str) -> Values:
        """Return the times of a timer.

        Parameters
        ----------
        name : str
            The timer's declared name.

        Returns
        -------
        ndarray of datetime64
            One time per key in UTC, NaT where the timer is not set.

        Raises
        ------
        StateError
            If the timer is not declared.

        Examples
        --------
        >>> def process(batch, state):
        ...     unset = np.isnat(state.timers.get("close"))
        ...     state.timers.set("close", np.full(len(state), state.now + 60), where=unset)
        """
        value = _hidden(self._view.layout, name)
        return np.where(self._view.known(value), self._view.get(value), np.datetime64("NaT", "us"))


def _hidden(layout: StateLayout, timer: str) -> str:
    found = layout.timers.get(timer)
    if found is None:
        names = ", ".join(map(repr, layout.timers)) or "none"
        raise StateError(f"the timer {timer!r} is not declared in timers={{...}}; the declared timers are: {names}")
    return found


def _moment(timer: str, at: Any) -> datetime.datetime:
    """Return a time as a datetime in UTC without a time zone, in whole microseconds."""
    if isinstance(at, np.datetime64):
        at = at.astype("M8[us]").item()
    if isinstance(at, datetime.datetime):
        # A time of pandas has nanoseconds and may be NaT, which is no number of microseconds.
        plain = at.to_pydatetime(warn=False) if hasattr(at, "to_pydatetime") else at
        if isinstance(plain, datetime.datetime) and plain == plain:
            zoned = plain.tzinfo is not None
            return plain.astimezone(datetime.UTC).replace(tzinfo=None) if zoned else plain
    elif isinstance(at, datetime.date):
        return datetime.datetime(at.year, at.month, at.day)
    elif isinstance(at, int | float | np.number) and not isinstance(at, bool) and math.isfinite(at):
        try:
            return _EPOCH + datetime.timedelta(seconds=float(at))
        except OverflowError as error:
            raise StateValueError(f"timer {timer!r} was set for {at!r} seconds, which is no time: {error}") from error
    raise StateValueError(f"timer {timer!r} was set for {at!r}; give {_TIMES}. To delete it, call state.timers.delete")


def _moments(timer: str, at: Any) -> Any:
    """Return times as an array of microseconds in UTC, null where none is given."""
    if isinstance(at, pa.ChunkedArray):
        at = at.combine_chunks()
    try:
        array = _array(at)
        if pa.types.is_timestamp(array.type):
            return array.cast(pa.timestamp("us", array.type.tz), safe=False).cast(pa.timestamp("us"))
        if pa.types.is_date(array.type) or pa.types.is_null(array.type):
            return array.cast(pa.timestamp("us"))
        if pa.types.is_integer(array.type) or pa.types.is_floating(array.type):
            return _of_seconds(timer, numpy_of(array).astype(np.float64))
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise StateValueError(f"timer {timer!r} was set for {at!r}: {error}; give one time per key") from error
    raise StateValueError(
        f"timer {timer!r} was set for times of type {array.type}; give timestamps, or seconds since 1970"
    )


def _array(values: Any) -> pa.Array:
    if isinstance(values, pa.Array):
        return values
    plain = isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "iuf" and values.dtype.isnative
    return array_of(values) if plain else pa.array(values)


def _of_seconds(timer: str, seconds: Values) -> pa.Array:
    """Return seconds since 1970 as times; NaN is null."""
    none = np.isnan(seconds)
    invalid = ~none & ~(np.abs(seconds) < _MOST_SECONDS)
    if invalid.any():
        raise StateValueError(
            f"timer {timer!r} was set for {seconds[invalid][0]} seconds, which is no time; give {_TIMES}"
        )
    return array_of((np.where(none, 0, seconds) * 1e6).astype("M8[us]"), mask=none)
