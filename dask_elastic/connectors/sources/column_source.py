"""Base class of the sources of this package: checks their common options and prunes columns."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Self

import pyarrow as pa

from dask_elastic.topology.duration import parse_duration
from dask_elastic.topology.pace import rows_within
from dask_elastic.topology.schema import plain_schema
from dask_elastic.topology.source import Replay, Source
from dask_elastic.topology.state_kind import Duration
from dask_elastic.vocab.errors import ColumnMissing, SourceError, TopologyError

BATCH_SECONDS = 0.1
"""Seconds of rows that a batch holds at most if the source has a rate; bounds the age of an offset."""


class ColumnSource(Source):
    """A source of named columns that reads only the columns that operators use.

    Parameters
    ----------
    rate : float or None
        Largest number of rows per second over all instances; None for no limit.
    event_time : str or None
        The column with the event time of each row; of a timestamp or date type. Times without a zone
        count as UTC.
    slack : str, float, timedelta or None
        How far a row's event time may lie behind the newest seen so far before the row counts as late.
    parallel : int
        Number of instances that read at the same time.
    columns : sequence of str or None
        The columns to offer; None offers all.
    replay : str or None
        For a source that cannot rewind: "at-most-once" if jobs with checkpoints may read it all the same.

    Raises
    ------
    TopologyError
        When an option is invalid.
    """

    def __init__(
        self,
        *,
        rate: float | None = None,
        event_time: str | None = None,
        slack: Duration | None = None,
        parallel: int = 1,
        columns: Sequence[str] | None = None,
        replay: Replay | None = None,
    ):
        kind = type(self).__name__
        if rate is not None and not (isinstance(rate, int | float) and math.isfinite(rate) and rate > 0):
            raise TopologyError(
                f"sources.{kind}: rate is {rate!r}; give rows per second above 0, or None for no limit."
            )
        if not isinstance(parallel, int) or parallel < 1:
            raise TopologyError(f"sources.{kind}: parallel is {parallel!r}; give the number of instances, 1 or more.")
        if event_time is not None and not isinstance(event_time, str):
            raise TopologyError(f"sources.{kind}: event_time is {event_time!r}; give the name of a column.")
        if slack and event_time is None:
            raise TopologyError(f"sources.{kind}: slack is {slack!r}, but there is no event_time; give event_time too.")
        if isinstance(columns, str) or not all(isinstance(name, str) for name in columns or ()):
            raise TopologyError(f"sources.{kind}: columns is {columns!r}; give a list of names.")
        if replay not in (None, "at-most-once"):
            raise TopologyError(f'sources.{kind}: replay is {replay!r}; give "at-most-once", or None.')
        self.rate = rate
        self.replay = replay
        self.event_time = event_time
        self.slack = 0.0 if slack is None else parse_duration(slack, f"sources.{kind}: slack")
        if not 0 <= self.slack < math.inf:
            raise TopologyError(f"sources.{kind}: slack is {slack!r}; give a duration of 0 or more, such as '10 min'.")
        self.parallel = parallel
        self.columns = None if columns is None else tuple(dict.fromkeys(columns))
        self._needed: tuple[str, ...] | None = None

    def __repr__(self) -> str:
        """Return the call that creates the source, as text."""
        options = {
            "columns": self.columns,
            "rate": self.rate,
            "event_time": self.event_time,
            "slack": self.slack or None,
            "replay": self.replay,
        }
        parts = [self._what(), *(f"{name}={value!r}" for name, value in options.items() if value is not None)]
        parts += [f"parallel={self.parallel}"] if self.parallel != 1 else []
        return f"{type(self).__name__}({', '.join(parts)})"

    def columns_read(self, columns: tuple[str, ...] | None) -> Self:
        """Return a copy that reads only some columns, and the column of event time.

        Parameters
        ----------
        columns : tuple of str or None
            The columns that operators use; None means all that the source offers.

        Returns
        -------
        Source
            The copy. Its `check` and `read` raise if a column does not exist.
        """
        pruned = copy.copy(self)
        pruned._needed = columns
        return pruned

    @property
    def divided(self) -> str:
        """How the rows are divided among the instances, where options decide it: a resumed job must not change it."""
        return ""

    def known_schema(self) -> pa.Schema | None:
        """Return the schema of the rows that it yields, if the client knows it.

        Returns
        -------
        Schema or None
            A plain schema of the columns that are read.
        """
        offered = self._offered()
        if offered is None:
            return None
        return plain_schema(pa.schema([offered.field(name) for name in self._names(offered)]))

    def _offered(self) -> pa.Schema | None:
        """Return the schema of all of its columns, None if the client does not know it."""
        return getattr(self, "schema", None)

    def _what(self) -> str:
        """Return the first argument as text."""
        return "..."

    def _names(self, schema: pa.Schema) -> list[str]:
        """Return the columns to read, in the order in which the source offers them.

        Raises
        ------
        SourceError
            When a column does not exist, another has the same name, or event time is not a timestamp or date.
        """
        offered = list(schema.names if self.columns is None else self.columns)
        self._require(offered, schema.names)
        self._require_event_time(schema)
        needed = offered if self._needed is None else list(self._needed)
        self._require([name for name in needed if name != self.event_time], offered)
        wanted = {*needed, self.event_time}
        if self.event_time is not None and self.event_time not in offered:
            offered.append(self.event_time)
        # A batch without columns loses its number of rows when it is sent: keep one column.
        names = [name for name in offered if name in wanted] or offered[:1]
        if twice := [name for name in names if schema.names.count(name) > 1]:
            count = schema.names.count(twice[0])
            raise SourceError(
                f"{self!r}: {count} columns are named {twice[0]!r}. Rename one, or leave it out with columns=[...]."
            )
        return names

    def _require(self, names: Sequence[str], present: Sequence[str]) -> None:
        missing = [name for name in names if name not in present]
        if missing:
            raise ColumnMissing(repr(self), missing[0], tuple(present))

    def _require_event_time(self, schema: pa.Schema) -> None:
        name = self.event_time
        if name is None:
            return
        if name not in schema.names:
            raise SourceError(f"{self!r}: no column {name!r} for event_time; choose one of {_listed(schema.names)}.")
        kind = schema.field(name).type
        if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
            times = [
                field.name for field in schema if pa.types.is_timestamp(field.type) or pa.types.is_date(field.type)
            ]
            hint = f"choose one of {_listed(times)}" if times else "no column is a time; cast one to a timestamp"
            raise SourceError(f"{self!r}: event_time {name!r} is {kind}, not a timestamp or date; {hint}.")

    def _no_offset(self, offset: object) -> SourceError:
        """Return the error for an offset of another kind of source, which had its name before a job was resumed."""
        return SourceError(f"{self!r}: {offset!r} is not an offset of this source; submit the job anew.")

    def _rows_at_once(self, most: int, instances: int) -> int:
        """Return the largest number of rows that one batch may hold."""
        rate = None if self.rate is None else self.rate / instances
        return rows_within(rate, BATCH_SECONDS, most)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names)
