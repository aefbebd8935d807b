"""The methods by which a keyed stream is joined with another one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

import pyarrow as pa

from dask_elastic.topology import validation
from dask_elastic.topology.graph import check_same
from dask_elastic.topology.joins import definition
from dask_elastic.topology.joins.definition import SideSchema
from dask_elastic.topology.joins.joining import LEFT, RIGHT, How, Joining, JoinSide
from dask_elastic.topology.joins.side_rows import SideRows
from dask_elastic.topology.operator_output import KeyedOutput
from dask_elastic.topology.operators import Compute, MapOperator
from dask_elastic.topology.state_kind import Duration, check_store
from dask_elastic.topology.windowing import EventWindow
from dask_elastic.vocab.arrow_arrays import has_union
from dask_elastic.vocab.errors import TopologyError

S = TypeVar("S")
"""`Stream`, which imports this module."""


class Joinable(KeyedOutput, ABC, Generic[S]):
    """A stream with keys, and the joins with another one; the base of `KeyedStream`."""

    @abstractmethod
    def _stream_of(self, operator: str) -> S:
        """Return the stream of an operator."""

    def join(
        self,
        other: Joinable[S],
        *,
        within: Duration | tuple[Duration, Duration] | None = None,
        window: EventWindow | Duration | None = None,
        how: How = "inner",
        time: str | tuple[str | None, str | None] | None = None,
        suffixes: tuple[str, str] = ("", "_right"),
        nulls_equal: bool = False,
        left_schema: SideSchema | None = None,
        right_schema: SideSchema | None = None,
        name: str | None = None,
        executors: int | None = None,
        shards: int = 256,
        store: str | None = None,
    ) -> S:
        """Join rows of both streams that have equal keys, and times within bounds or in one window.

        This stream is the left side. A pair is emitted once, when its second row is processed. Rows wait in the state
        until the watermark shows that no row of the other side can match any more.

        Parameters
        ----------
        other : KeyedStream
            The right side, with as many key columns of the same types; their names may differ.
        within : duration, or pair of durations, optional
            The least and the greatest time of the right row minus that of the left one, both included, such as
            ("-1h", "2h"). One duration stands for both directions.
        window : EventWindow or duration, optional
            In place of `within`: rows match if they are in one instance of the window, such as
            ``de.windows.hopping("1h", "10min")``; in several, once for each. A duration is that of tumbling windows.
        how : {"inner", "left", "right", "outer"}
            Which rows without a match are emitted, with nulls for the other side, once none can follow.
        time : str or pair of str, optional
            The column of event time, of both sides or of each. By default that of the sources.
        suffixes : tuple of str
            Appended to names of columns that both sides have, except keys.
        nulls_equal : bool
            Whether a null key equals another one, as in pandas. By default it equals none, as in SQL.
        left_schema, right_schema : Schema or mapping of str to DataType, optional
            The columns of each side that are joined. By default all, if the client knows them: it does not know the
            columns that a map returns.
        name : str, optional
            The operator's name; `join-1` and so on by default.
        executors, shards, store
            As for `compute`.

        Returns
        -------
        Stream
            The columns of the left side, then those of the right side without its keys; with `window`,
            ``window_start`` and ``window_end``. If only the right side has a row, the key columns have its key.

        Raises
        ------
        TopologyError
            When the streams cannot be joined so: the message names the culprit and the remedy.

        Notes
        -----
        Rows that are older than the watermark are late, and dropped. A row without a time matches none.

        Examples
        --------
        >>> import dask_elastic as de
        >>> from dask_elastic.testing import run
        >>> at = pa.array([0, 60], pa.timestamp("s"))
        >>> orders = pa.table({"order": [1, 2], "item": ["lamp", "desk"], "at": at})
        >>> payments = pa.table({"paid_for": [2], "amount": [90.0], "at": at[1:]})
        >>> topology = de.Topology("paid")
        >>> left = topology.source("orders", de.sources.Arrow(orders, event_time="at"))
        >>> right = topology.source("payments", de.sources.Arrow(payments, event_time="at"))
        >>> paid = left.key_by("order").join(right.key_by("paid_for"), within=("0s", "1h"), how="left")
        >>> paid.sink(de.sinks.Collect(), name="out")
        >>> for row in run(topology).outputs["out"].sort_by("order").select(["order", "item", "amount"]).to_pylist():
        ...     print(row)
        {'order': 1, 'item': 'lamp', 'amount': None}
        {'order': 2, 'item': 'desk', 'amount': 90.0}
        """
        where = "join" if name is None else f"join {name!r}"
        definition.check_how(how, definition.HOWS, where)
        if (within is None) == (window is None):
            both = "neither within nor window" if within is None else "both within and window"
            raise TopologyError(
                f"{where} got {both}; give one of them, as in within=('-1h', '2h') or window='10min': it bounds the "
                "time for which rows wait."
            )
        left, right = self._sides(other, time, (left_schema, right_schema), where)
        if window is not None:
            lower = upper = 0
            windowed = definition.check_window(window, where)
        else:
            (lower, upper), windowed = definition.bounds(within, where), None
        joining = _joining(
            "interval" if windowed is None else "window", how, left, right, suffixes, nulls_equal, where,
            lower=lower, upper=upper, window=windowed,
        )  # fmt: skip
        return self._joined(other, joining, name, where, executors, shards, store)

    def join_asof(
        self,
        other: Joinable[S],
        *,
        tolerance: Duration | None = None,
        how: str = "left",
        time: str | tuple[str | None, str | None] | None = None,
        suffixes: tuple[str, str] = ("", "_right"),
        nulls_equal: bool = False,
        left_schema: SideSchema | None = None,
        right_schema: SideSchema | None = None,
        name: str | None = None,
        executors: int | None = None,
        shards: int = 256,
        store: str | None = None,
    ) -> S:
        """Join each row with the newest row of the other stream that has its key and is not later.

        A row waits until the watermark has passed its time, so that the result does not depend on which stream is read
        first. Of several rows of the other stream with the same time, the one that arrived last is taken.

        Parameters
        ----------
        other : KeyedStream
            The right side, such as prices that change: of each key the newest row is kept.
        tolerance : duration, optional
            By how much the row of the other stream may be older; by default by any time, and the newest row of each key
            is kept for ever.
        how : {"left", "inner"}
            Whether a row without a match is emitted with nulls, or dropped.
        time, suffixes, nulls_equal, left_schema, right_schema, name, executors, shards, store
            As for `join`.

        Returns
        -------
        Stream
            The columns of the left side, then those of the right side without its keys.

        Raises
        ------
        TopologyError
            When the streams cannot be joined so: the message names the culprit and the remedy.

        Examples
        --------
        >>> import dask_elastic as de
        >>> from dask_elastic.testing import run
        >>> seconds = lambda *times: pa.array(times, pa.timestamp("s"))
        >>> trades = pa.table({"share": ["A", "A"], "at": seconds(5, 20)})
        >>> quotes = pa.table({"share": ["A", "A"], "price": [1.0, 2.0], "at": seconds(0, 10)})
        >>> topology = de.Topology("priced")
        >>> left = topology.source("trades", de.sources.Arrow(trades, event_time="at"))
        >>> right = topology.source("quotes", de.sources.Arrow(quotes, event_time="at"))
        >>> priced = left.key_by("share").join_asof(right.key_by("share"))
        >>> priced.sink(de.sinks.Collect(), name="out")
        >>> run(topology).outputs["out"]["price"].to_pylist()
        [1.0, 2.0]
        """
        where = "join_asof" if name is None else f"join_asof {name!r}"
        definition.check_how(how, ("left", "inner"), where)
        limit = None if tolerance is None else definition.signed_microseconds(tolerance, f"{where}: tolerance")
        if limit is not None and limit < 0:
            raise TopologyError(f"{where}: tolerance is {tolerance!r}; give a duration of 0 or more.")
        left, right = self._sides(other, time, (left_schema, right_schema), where)
        joining = _joining("asof", how, left, right, suffixes, nulls_equal, where, tolerance=limit)
        return self._joined(other, joining, name, where, executors, shards, store)

    def _sides(
        self, other: object, time: object, schemas: tuple[SideSchema | None, SideSchema | None], where: str
    ) -> tuple[JoinSide, JoinSide]:
        if not isinstance(other, Joinable):
            raise TopologyError(
                f"{where} was given {other!r}; give the other stream with its keys: stream.key_by(...)."
            )
        check_same(self._topology, other._topology, where)
        times = (time, time) if time is None or isinstance(time, str) else time
        if not isinstance(times, list | tuple) or len(times) != 2:
            raise TopologyError(f"{where}: time is {time!r}; give the name of a column, or a pair of them.")
        given = zip((self, other), times, schemas, ("left", "right"), strict=True)
        left, right = (
            definition.side_of(self._topology, stream._producers, stream._keys, column, schema, where, which)
            for stream, column, schema, which in given
        )
        definition.check_key_types(left, right, where)
        return left, right

    def _joined(
        self,
        other: Joinable[S],
        joining: Joining,
        name: str | None,
        where: str,
        executors: int | None,
        shards: int,
        store: str | None,
    ) -> S:
        """Add the operators of a join: a map for each side, and the join of their union."""
        if executors is not None:
            validation.check_count(executors, where, "executors")
        validation.check_count(shards, where, "shards", validation.MOST_SHARDS)
        check_store(store, where)
        topology = self._topology
        given = topology.choose_name("join", name, None)
        maps = []
        for side, stream, which in ((LEFT, self, "left"), (RIGHT, other, "right")):
            columns = tuple(joining.sides[side].schema.names)
            mapped = topology.choose_name("map", f"{given}-{which}", None)
            rows = SideRows(given, joining, side)
            topology.add(MapOperator(mapped, rows, columns, joining.input), stream._producers, stream._key_by)
            maps.append(mapped)
        topology.add(Compute(given, joining.left.keys, joining, None, executors, shards, None, store), maps)
        return self._stream_of(given)


def _joining(
    kind: Any, how: Any, left: JoinSide, right: JoinSide, suffixes: object, nulls_equal: bool, where: str, **bounds: Any
) -> Joining:
    """Return the definition of a join, with a place in the shared columns for each column that is no key."""
    if (
        not isinstance(suffixes, Sequence)
        or isinstance(suffixes, str)
        or len(suffixes) != 2
        or not all(isinstance(suffix, str) for suffix in suffixes)
    ):
        raise TopologyError(f"{where}: suffixes is {suffixes!r}; give two texts, as in suffixes=('', '_right').")
    shared: list[pa.DataType] = []
    sides = []
    for side in (left, right):
        free: dict[pa.DataType, list[int]] = {}
        for place, known in enumerate(shared):
            free.setdefault(known, []).append(place)
        places: dict[str, int] = {}
        for field in side.schema:
            if field.name in side.keys:
                continue
            if has_union(field.type):
                raise TopologyError(
                    f"{where}: column {field.name!r} has type {field.type}, and rows with unions cannot wait for each "
                    "other. Derive columns of other types from it in a map before the join, or leave it out there."
                )
            if not free.get(field.type):
                free[field.type] = [len(shared)]
                shared.append(field.type)
            places[field.name] = free[field.type].pop(0)
        sides.append(replace(side, places=places))
    pair = (str(suffixes[0]), str(suffixes[1]))
    joining = Joining(kind, how, sides[0], sides[1], tuple(shared), pair, nulls_equal=bool(nulls_equal), **bounds)
    definition.check_output_names(joining.output, where)
    return joining
