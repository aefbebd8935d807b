"""A join as a value: the two sides, which rows match, and the columns of the results."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypeAlias

import pyarrow as pa

from dask_elastic.topology.windowing import WINDOW_END, WINDOW_START, EventWindow, duration_text

How: TypeAlias = Literal["inner", "left", "right", "outer"]
JoinKind: TypeAlias = Literal["interval", "window", "asof"]

LEFT, RIGHT = 0, 1
"""The sides, as the column `SIDE` has them."""

SIDE, TIME = "__side", "__time"
"""Columns of the joined rows before the join: the side, and the time in microseconds; of a window, its begin."""

MOST = 2**61
"""Times and bounds in microseconds are below, so that their sums and differences are numbers of 64 bits."""


@dataclass(frozen=True)
class JoinSide:
    """One of the two streams of a join.

    Parameters
    ----------
    keys : tuple of str
        Its key columns.
    time : str
        Its column of event time.
    schema : Schema
        The columns that are joined, the keys and the time among them.
    places : mapping of str to int
        For each column that is no key, the number of the shared column that carries it; see `Joining`.
    """

    keys: tuple[str, ...]
    time: str
    schema: pa.Schema
    places: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Joining:
    """A join of two keyed streams.

    Parameters
    ----------
    kind : str
        "interval": rows match if the time of the right row minus that of the left is between `lower` and `upper`.
        "window": rows match if they are in the same instance of a window. "asof": a left row matches the newest right
        row that is not later.
    how : str
        Which rows without a match are emitted: those of the left side, of the right one, of both ("outer"), or none.
    left, right : JoinSide
        The sides.
    shared : tuple of DataType
        The types of the shared columns: each carries one column of the left side, one of the right, or one of each, so
        that the rows of both sides have one schema.
    suffixes : tuple of str
        Appended to the names of left and right columns that both sides have.
    lower, upper : int
        The bounds of an interval in microseconds, both included.
    window : EventWindow, optional
        The window.
    tolerance : int, optional
        The greatest difference of times in microseconds for "asof"; None for any.
    nulls_equal : bool
        Whether null keys equal each other.
    """

    kind: JoinKind
    how: How
    left: JoinSide
    right: JoinSide
    shared: tuple[pa.DataType, ...]
    suffixes: tuple[str, str]
    lower: int = 0
    upper: int = 0
    window: EventWindow | None = None
    tolerance: int | None = None
    nulls_equal: bool = False

    @property
    def sides(self) -> tuple[JoinSide, JoinSide]:
        """The left and the right side."""
        return self.left, self.right

    @property
    def outer(self) -> tuple[bool, bool]:
        """Whether left rows without a match are emitted, and whether right ones are."""
        return self.how in ("left", "outer"), self.how in ("right", "outer")

    @property
    def reaches(self) -> tuple[int, int]:
        """For the left and the right side, the microseconds after a row's time up to which a match may have its time.

        A row can be removed when the watermark is later than that.
        """
        if self.window is not None:
            return self.window.length - 1, self.window.length - 1
        return (0, 0) if self.kind == "asof" else (self.upper, -self.lower)

    @property
    def grace(self) -> int:
        """Microseconds after its time from which on a row is late, if the watermark is later than that."""
        return 0 if self.window is None else self.window.length - 1

    @property
    def delay(self) -> int:
        """Microseconds by which the times of results may be older than the watermark of the inputs."""
        return self.window.length if self.window is not None else max(0, *self.reaches)

    @cached_property
    def input(self) -> pa.Schema:
        """The schema of the rows of both sides: the key columns of the left side, side, time, and shared columns."""
        keys = [pa.field(key, self.left.schema.field(key).type) for key in self.left.keys]
        shared = [pa.field(shared_name(number), kind) for number, kind in enumerate(self.shared)]
        return pa.schema([*keys, pa.field(SIDE, pa.int8()), pa.field(TIME, pa.int64()), *shared])

    @cached_property
    def output(self) -> pa.Schema:
        """The schema of the results: the left columns, the right ones that are no keys, and the window's span."""
        names = [name for name in self.left.schema.names if name not in self.left.places]
        both = {*self.left.schema.names} & {*self.right.places}
        left = [
            pa.field(name + self.suffixes[0] if name in both and name not in names else name, kind)
            for name, kind in zip(self.left.schema.names, self.left.schema.types, strict=True)
        ]
        right = [
            pa.field(name + self.suffixes[1] if name in both else name, self.right.schema.field(name).type)
            for name in self.right.places
        ]
        return pa.schema([*left, *right, *self._span()])

    def same_state(self, other: Joining) -> bool:
        """Return whether rows that wait for this join can wait for the other one: only suffixes may differ."""
        same = ("kind", "how", "left", "right", "shared", "lower", "upper", "window", "tolerance", "nulls_equal")
        return all(getattr(self, name) == getattr(other, name) for name in same)

    def _span(self) -> list[pa.Field]:
        if self.window is None:
            return []
        kind = self.left.schema.field(self.left.time).type
        span = pa.timestamp("us", kind.tz if pa.types.is_timestamp(kind) else None)
        return [pa.field(WINDOW_START, span), pa.field(WINDOW_END, span)]

    def __str__(self) -> str:
        if self.kind == "asof":
            within = "" if self.tolerance is None else f" within {duration_text(self.tolerance)}"
            return f"{self.how} join as of the left time{within}"
        if self.window is not None:
            return f"{self.how} join per window, {self.window}"
        return f"{self.how} join from {_signed(self.lower)} to {_signed(self.upper)}"


def shared_name(number: int) -> str:
    """Return the name of a shared column.

    Examples
    --------
    >>> shared_name(3)
    '__3'
    """
    return f"__{number}"


def _signed(microseconds: int) -> str:
    return f"-{duration_text(-microseconds)}" if microseconds < 0 else duration_text(microseconds)
