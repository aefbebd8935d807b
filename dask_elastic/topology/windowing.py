"""Windows of a compute: which rows each result is computed from, and what happens to rows that come too late."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Literal, TypeAlias

from dask_elastic.vocab.errors import TopologyError

WINDOW_START, WINDOW_END, REVISION, WITHDRAWN = "window_start", "window_end", "revision", "withdrawn"
"""The columns that results of windows have beside the keys and the aggregates."""

Emit: TypeAlias = Literal["closed", "updates"]
LatePolicy: TypeAlias = Literal["drop", "stream"]
NullTimePolicy: TypeAlias = Literal["drop", "late", "refuse"]
Share: TypeAlias = bool | Literal["auto"]
Spans: TypeAlias = Literal["within", "overlapping"]

MOST_SLICES = 1024
"""With more slices in an instance and its allowed lateness, each instance has a state of its own instead."""

MOST = 2**62
"""Times, lengths and gaps are below: their sums are then numbers of 64 bits."""
_UNITS = {"d": 86_400_000_000, "h": 3_600_000_000, "min": 60_000_000, "s": 1_000_000, "ms": 1_000, "us": 1}


@dataclass(frozen=True)
class EventWindow:
    """A window of a fixed length over event time.

    Its instances are the half-open intervals [begin, begin + length) for all begins that differ from `start` by a
    multiple of `frequency`, also earlier ones. They overlap if the frequency is less than the length, adjoin if it is
    equal, and leave gaps if it is greater.

    Parameters
    ----------
    start : int
        The begin of one instance, in microseconds since the Unix epoch.
    length : int
        The length of an instance in microseconds.
    frequency : int
        Microseconds from the begin of an instance to the begin of the next.

    Raises
    ------
    TopologyError
        When a number is not an integer, or the length or the frequency is not above 0.

    Notes
    -----
    Enorm, section 4.2.

    Examples
    --------
    >>> print(EventWindow(start=0, length=3_600_000_000, frequency=600_000_000))
    1h every 10min
    """

    start: int
    length: int
    frequency: int

    def __post_init__(self) -> None:
        _check_number("EventWindow", "start", self.start, -MOST)
        _check_number("EventWindow", "length", self.length, 1)
        _check_number("EventWindow", "frequency", self.frequency, 1)

    def __str__(self) -> str:
        text = duration_text(self.length)
        if self.frequency != self.length:
            text += f" every {duration_text(self.frequency)}"
        phase = self.start % self.frequency
        return f"{text} from {duration_text(phase)}" if phase else text


@dataclass(frozen=True)
class SessionWindow:
    """A window over the rows of a key of which each follows the one before within less than a gap of event time.

    An instance is [time of the first row, time of the last row + gap).

    Parameters
    ----------
    gap : int
        Microseconds of event time without rows of the key that end a session.

    Raises
    ------
    TopologyError
        When the gap is not an integer above 0.

    Examples
    --------
    >>> print(SessionWindow(gap=1_800_000_000))
    sessions with a gap of 30min
    """

    gap: int

    def __post_init__(self) -> None:
        _check_number("SessionWindow", "gap", self.gap, 1)

    def __str__(self) -> str:
        return f"sessions with a gap of {duration_text(self.gap)}"


@dataclass(frozen=True)
class CountWindow:
    """A window over a fixed number of rows of one key, in the order in which they arrive.

    The rows of a key are numbered from 0. An instance contains the rows [begin, begin + length) for a begin that is a
    multiple of `frequency`.

    Parameters
    ----------
    length : int
        The rows in an instance.
    frequency : int
        Rows from the begin of an instance to the begin of the next.

    Raises
    ------
    TopologyError
        When a number is not an integer above 0.

    Examples
    --------
    >>> print(CountWindow(length=100, frequency=10))
    100 rows every 10 rows
    """

    length: int
    frequency: int

    def __post_init__(self) -> None:
        _check_number("CountWindow", "length", self.length, 1)
        _check_number("CountWindow", "frequency", self.frequency, 1)

    def __str__(self) -> str:
        text = f"{self.length} rows"
        return text if self.frequency == self.length else f"{text} every {self.frequency} rows"


WindowSpec: TypeAlias = EventWindow | SessionWindow | CountWindow


@dataclass(frozen=True)
class Windowing:
    """The windows of a compute, the columns with its rows' times, and its policies.

    Parameters
    ----------
    windows : tuple of EventWindow, SessionWindow or CountWindow
        Event windows, or one window of another kind.
    time : tuple of str
        One column of timestamps: a row at t is in the instances with begin <= t < end. Two columns, not for sessions:
        a row of a span t1..t2 is in those with begin <= t1 and t2 <= end. Of a count window, the times bound the
        results; without any, numbers of rows do.
    allowed_lateness : int
        Microseconds after the close of an instance during which rows still correct its result.
    emit : {"closed", "updates"}
        When results appear: when an instance closes, or after each batch, too.
    late : {"drop", "stream"}
        Where rows go that come after the allowed lateness; they are counted in any case.
    null_time : {"drop", "late", "refuse"}
        Where rows without a time go: dropped and counted, as late rows, or the job fails.
    exact : bool
        Whether a row of a span is only in the instance with the same begin and end, as partial results are.
    share : bool or "auto"
        Whether instances share partial results per slice, or have a state each; "auto" shares if rows are in several
        instances, and these consist of at most `MOST_SLICES` slices.
    spans : {"within", "overlapping"}
        Which instances a row of a span is in: those that contain all of it, or any part of it.

    Raises
    ------
    TopologyError
        When there is no window, windows differ in kind or share instances, or a time or a policy does not fit them.

    Examples
    --------
    >>> minute = 60_000_000
    >>> windows = tuple(EventWindow(0, length * minute, length * minute) for length in (10, 30))
    >>> print(Windowing(windows, ("taken",), allowed_lateness=5 * minute))
    10min, 30min of taken, late by 5min at most
    """

    windows: tuple[EventWindow, ...] | tuple[SessionWindow] | tuple[CountWindow]
    time: tuple[str, ...]
    allowed_lateness: int = 0
    emit: Emit = "closed"
    late: LatePolicy = "drop"
    null_time: NullTimePolicy = "drop"
    exact: bool = False
    share: Share = "auto"
    spans: Spans = "within"

    def __post_init__(self) -> None:
        self._check_windows()
        self._check_time()
        if not _is_whole(self.allowed_lateness) or not 0 <= self.allowed_lateness < MOST:
            raise TopologyError(
                f"allowed_lateness is {self.allowed_lateness!r}; give microseconds as an integer, 0 or more."
            )
        _check_choice("emit", self.emit, ("closed", "updates"))
        _check_choice("late", self.late, ("drop", "stream"))
        _check_choice("null_time", self.null_time, ("drop", "late", "refuse"))
        _check_choice("spans", self.spans, ("within", "overlapping"))
        if self.spans == "overlapping" and (self.counted or len(self.time) != 2):
            raise TopologyError(
                "spans='overlapping' is for rows that stand for a span of time, in windows over event time; name the "
                "columns of its begin and its end with time=(begin, end)."
            )
        if self.counted and (self.allowed_lateness or self.late != "drop" or self.null_time == "late"):
            raise TopologyError("count windows have no late rows; omit allowed_lateness, late, and null_time='late'.")
        if self.counted and self.emit != "closed":
            raise TopologyError(
                "a result of a count window appears with the row that completes it; omit emit, or compute without a "
                "window for the results of all rows so far."
            )
        if self.share is not True and self.share is not False and self.share != "auto":
            raise TopologyError(f"share is {self.share!r}; give True, False or 'auto'.")
        if self.share is True and self.unshared is not None:
            raise TopologyError(f"share=True, but {self} cannot share slices, because {self.unshared}; omit share.")

    @property
    def counted(self) -> bool:
        """Whether instances are numbers of rows, not spans of event time."""
        return isinstance(self.windows[0], CountWindow)

    @property
    def slice(self) -> int:
        """The length of the longest slices of which all instances consist, in microseconds; 0 for other windows."""
        windows = self._event_windows
        numbers = [number for window in windows for number in (window.length, window.frequency)]
        return math.gcd(*numbers, *(window.start - windows[0].start for window in windows))

    @property
    def shares(self) -> bool:
        """Whether instances share partial results per slice."""
        if self.share == "auto":
            longest = max((window.length for window in self._event_windows), default=0)
            slices = (longest + self.allowed_lateness) // max(1, self.slice)
            return self.unshared is None and slices <= MOST_SLICES
        return self.share

    @property
    def unshared(self) -> str | None:
        """Why instances cannot share partial results of slices; None if they can."""
        if not self._event_windows:
            return "only windows of a fixed length over event time consist of slices"
        if len(self.time) > 1:
            return "rows that stand for spans of time may lie across slices"
        if sum(-(-window.length // window.frequency) for window in self._event_windows) <= 1:
            return "no row is in two instances"
        return None

    @property
    def changes_sharing(self) -> bool:
        """Whether a running job may cease to share partial results, and begin to again."""
        return self.share == "auto" and self.shares

    @property
    def separate_if_fixed(self) -> bool:
        """Whether rows are added to instances where the choice cannot follow the load: slices may cost much more."""
        return self.changes_sharing and self.emit == "updates"

    @property
    def revised(self) -> bool:
        """Whether results may follow results of the same instance, and have the column `revision`."""
        return self.allowed_lateness > 0 or self.emit == "updates"

    @property
    def output_columns(self) -> tuple[str, ...]:
        """The columns that results have beside the keys and the aggregates."""
        revised = (REVISION, WITHDRAWN) if self.joins_results else (REVISION,)
        return (WINDOW_START, WINDOW_END, *(revised if self.revised else ()))

    @property
    def joins_results(self) -> bool:
        """Whether an instance may replace others that have results: sessions that grow or are joined do."""
        return self.revised and isinstance(self.windows[0], SessionWindow)

    def has_same_state(self, other: Windowing | None) -> bool:
        """Return whether the state of this windowing is also that of another.

        Parameters
        ----------
        other : Windowing or None
            The other one; None for state without windows.

        Examples
        --------
        >>> windowing = Windowing((EventWindow(0, 10, 10),), ("taken",))
        >>> windowing.has_same_state(Windowing((EventWindow(0, 10, 10),), ("taken",), null_time="refuse"))
        True
        >>> windowing.has_same_state(Windowing((EventWindow(0, 20, 20),), ("taken",)))
        False
        """
        if other is None or self.shares != other.shares:
            return False
        return self == replace(other, late=self.late, null_time=self.null_time, share=self.share)

    def __str__(self) -> str:
        text = ", ".join(map(str, self.windows))
        if self.time:
            of = ", bounded by" if self.counted else " overlapping" if self.spans == "overlapping" else " of"
            text += f"{of} {'..'.join(self.time)}"
        if self.allowed_lateness:
            text += f", late by {duration_text(self.allowed_lateness)} at most"
        return f"{text}, with updates" if self.emit == "updates" else text

    def _check_windows(self) -> None:
        if not isinstance(self.windows, tuple) or not self.windows:
            raise TopologyError(f"windows is {self.windows!r}; give a tuple of at least one window.")
        kinds = {type(window): window for window in self.windows}
        for kind, window in kinds.items():
            if kind not in (EventWindow, SessionWindow, CountWindow):
                raise TopologyError(f"{window!r} is not a window; give one such as de.windows.tumbling('10min').")
        if len(kinds) > 1:
            raise TopologyError(
                f"the windows of one compute are of one kind, but these are {', '.join(map(str, kinds.values()))}; "
                "write one compute for each kind."
            )
        if EventWindow not in kinds and len(self.windows) > 1:
            raise TopologyError(
                f"a compute has one window of this kind, but these are {', '.join(map(str, self.windows))}; "
                "write one compute for each."
            )
        for one, other in combinations(self._event_windows, 2):
            if _share_instances(one, other):
                raise TopologyError(
                    f"the windows {one} and {other} have instances in common, whose results could not be told apart; "
                    "give one of them only, or write a compute for each."
                )

    @property
    def _event_windows(self) -> list[EventWindow]:
        return [window for window in self.windows if isinstance(window, EventWindow)]

    def _check_time(self) -> None:
        if not isinstance(self.time, tuple) or not all(isinstance(name, str) and name for name in self.time):
            raise TopologyError(f"the time of windows is {self.time!r}; give the names of its columns as a tuple.")
        window = self.windows[0]
        if not self.time:
            if isinstance(window, CountWindow):
                return
            raise TopologyError(f"the window {window} has no column of event time; name it with time='column'.")
        elif len(self.time) > 2 or len(set(self.time)) != len(self.time):
            raise TopologyError(f"time={self.time!r}; give one column, or two with the begin and the end of a span.")
        elif len(self.time) == 2 and isinstance(window, SessionWindow):
            raise TopologyError(
                f"sessions are of points in time, but time={self.time!r} was given; name one column, or compute over "
                "event windows."
            )


def _share_instances(one: EventWindow, other: EventWindow) -> bool:
    # By the Chinese remainder theorem.
    apart = one.start - other.start
    return one.length == other.length and apart % math.gcd(one.frequency, other.frequency) == 0


def duration_text(microseconds: int) -> str:
    """Return a duration in its largest whole unit.

    Parameters
    ----------
    microseconds : int
        The duration.

    Returns
    -------
    str
        A text that `duration.seconds_of` parses.

    Examples
    --------
    >>> duration_text(600_000_000), duration_text(90_000_000), duration_text(0)
    ('10min', '90s', '0s')
    """
    if not microseconds:
        return "0s"
    unit = next(unit for unit, size in _UNITS.items() if microseconds % size == 0)
    return f"{microseconds // _UNITS[unit]}{unit}"


def _check_number(kind: str, name: str, value: Any, least: int) -> None:
    if not _is_whole(value) or not least <= value < MOST:
        valid = "an integer" if least < 0 else "an integer above 0"
        raise TopologyError(f"{kind}: {name} is {value!r}; give {valid}, below 2**62.")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_choice(name: str, value: object, valid: tuple[str, ...]) -> None:
    if value not in valid:
        raise TopologyError(f"{name} is {value!r}; give {' or '.join(map(repr, valid))}.")
