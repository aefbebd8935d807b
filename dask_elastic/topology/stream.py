"""The streams of a topology, on which users call methods that add operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dask_elastic.topology import validation
from dask_elastic.topology.aggregates.aggregation import Aggregate
from dask_elastic.topology.expiry_time import expiry_time
from dask_elastic.topology.fused.declared import check_keeps, check_partition
from dask_elastic.topology.graph import OperatorGraph
from dask_elastic.topology.joins.joinable import Joinable
from dask_elastic.topology.operator_output import KeyedOutput, OperatorOutput, label_of
from dask_elastic.topology.operators import Compute, Filter, MapOperator
from dask_elastic.topology.state_kind import Declared, check_store
from dask_elastic.topology.timer import Timer, check_timers
from dask_elastic.topology.windowing import Spans
from dask_elastic.topology.windows.windowed_stream import WindowedStream
from dask_elastic.vocab.errors import TopologyError


class Stream(OperatorOutput):
    """The output rows of one operator, or of several in a union; returned by the methods of `Topology` and `Stream`.

    Each method adds an operator that reads this stream. Several operators may read the same stream; each gets all of
    its rows.

    Parameters
    ----------
    topology : Topology
        The topology that the stream is part of.
    producers : tuple of str
        The names of the operators whose output this is.

    Examples
    --------
    >>> import pyarrow.compute as pc
    >>> from dask_elastic.topology import Source, Topology
    >>> class Flights(Source):
    ...     def read(self, context):
    ...         yield from ()
    >>> flights = Topology("delays").source("flights", Flights())
    >>> flights.filter(pc.field("delay") > 15, name="late")
    Stream('late' of topology 'delays')
    """

    def __repr__(self) -> str:
        return f"Stream({' + '.join(map(repr, self._producers))} of topology {self._topology.name!r})"

    def map(
        self,
        function: Callable[[pa.RecordBatch], Any],
        *,
        columns: Sequence[str] | None = None,
        keeps: Sequence[str] = (),
        name: str | None = None,
    ) -> Stream:
        """Turn each batch into another, into several, or into none.

        Parameters
        ----------
        function : callable
            Takes a RecordBatch; returns a RecordBatch or Table, a dict of columns, a pandas or Polars DataFrame, or
            another object with Arrow's PyCapsule interface; or an iterable of these, or None.
        columns : sequence of str, optional
            The columns that the function reads. It gets only these, and sources skip columns that no operator reads.
            All by default.
        keeps : sequence of str
            The columns that the function returns with the values that they had in the row from which it made them.
            Computes before and behind it, by such a column, can run in one task; see `submit`, ``fuse``.
        name : str, optional
            The operator's name; by default that of the function.

        Returns
        -------
        Stream
            The function's output.

        Raises
        ------
        TopologyError
            When the function cannot be called with one argument, or the name is taken.

        Examples
        --------
        >>> from dask_elastic.topology import Source, Topology
        >>> class Flights(Source):
        ...     def read(self, context):
        ...         yield from ()
        >>> def first_row(batch):
        ...     return batch.slice(0, 1)
        >>> Topology("delays").source("flights", Flights()).map(first_row)
        Stream('first_row' of topology 'delays')
        """
        where = label_of("map", name)
        validation.check_function(function, where, "batch")
        read = validation.check_columns(columns, where)
        kept = check_keeps(keeps, where)
        given = self._topology.choose_name("map", name, function)
        return self._added(MapOperator(given, function, read, keeps=kept))

    def filter(
        self,
        predicate: Callable[[pa.RecordBatch], Any] | pc.Expression,
        *,
        columns: Sequence[str] | None = None,
        name: str | None = None,
    ) -> Stream:
        """Keep the rows for which a predicate holds.

        Parameters
        ----------
        predicate : callable or pyarrow.compute.Expression
            Takes a RecordBatch and returns one boolean per row; or an expression such as `pc.field("delay") > 15`.
            Null counts as false.
        columns : sequence of str, optional
            The columns that the predicate reads. All by default.
        name : str, optional
            The operator's name; by default that of the function.

        Returns
        -------
        Stream
            The rows that are kept, in order.

        Raises
        ------
        TopologyError
            When the predicate is neither a function nor an expression, or the name is taken.

        Examples
        --------
        >>> import pyarrow.compute as pc
        >>> from dask_elastic.topology import Source, Topology
        >>> class Flights(Source):
        ...     def read(self, context):
        ...         yield from ()
        >>> flights = Topology("delays").source("flights", Flights())
        >>> flights.filter(pc.field("delay") > 15)
        Stream('filter-1' of topology 'delays')
        >>> flights.filter(lambda batch: pc.is_valid(batch["delay"]), columns=["delay"], name="known")
        Stream('known' of topology 'delays')
        """
        where = label_of("filter", name)
        validation.check_predicate(predicate, where)
        read = validation.check_columns(columns, where)
        given = self._topology.choose_name("filter", name, predicate)
        return self._added(Filter(given, predicate, read))

    def key_by(self, *columns: str) -> KeyedStream:
        """Choose the columns by which the next operator keeps its state.

        Parameters
        ----------
        *columns : str
            The key columns. Rows that are equal in all of them share one state and are processed in order.

        Returns
        -------
        KeyedStream
            The stream on which to call `compute`.

        Raises
        ------
        TopologyError
            When there are no columns, or they are not distinct names.

        Examples
        --------
        >>> from dask_elastic.topology import Source, Topology
        >>> class Flights(Source):
        ...     def read(self, context):
        ...         yield from ()
        >>> Topology("delays").source("flights", Flights()).key_by("plane")
        KeyedStream('flights' by 'plane' of topology 'delays')
        """
        keys = validation.check_keys(columns, f"stream of {self._label()}")
        return KeyedStream(self._topology, self._producers, keys)

    def window(
        self, windows: object, *, time: str | Sequence[str] | None = None, spans: Spans = "within"
    ) -> WindowedStream[Stream]:
        """Divide all rows into windows, without a key.

        One task computes them: rows that a key could divide among cores belong behind `key_by`.

        Parameters
        ----------
        windows : window, str, float, timedelta, or list of these
            As for `KeyedStream.window`.
        time : str or sequence of str, optional
            As for `KeyedStream.window`.
        spans : {"within", "overlapping"}
            As for `KeyedStream.window`.

        Returns
        -------
        WindowedStream
            The stream on which to call `compute`.

        Raises
        ------
        TopologyError
            When the windows are not valid, or do not fit the stream.

        Examples
        --------
        >>> import dask_elastic as de
        >>> from dask_elastic import aggregate as agg
        >>> rows = pa.table({"delay": [5, 8], "at": pa.array([0, 7200], pa.timestamp("s"))})
        >>> flights = de.Topology("delays").source("flights", de.sources.Arrow(rows, event_time="at"))
        >>> flights.window("1h").compute({"flights": agg.Count()}, name="hourly")
        Stream('hourly' of topology 'delays')
        """
        every = KeyedOutput(self._topology, self._producers, (), self._topology.note_key_by(self._producers, ()))
        return WindowedStream(every, windows, time, spans, self._stream_of)

    @property
    def late(self) -> Stream:
        """The rows that came too late for the windows of this stream's compute, as they came.

        Raises
        ------
        TopologyError
            When the stream is not that of a windowed compute with ``late="stream"``.

        Examples
        --------
        >>> import dask_elastic as de
        >>> from dask_elastic import aggregate as agg
        >>> rows = pa.table({"plane": ["a"], "at": pa.array([0], pa.timestamp("s"))})
        >>> flights = de.Topology("delays").source("flights", de.sources.Arrow(rows, event_time="at"))
        >>> hourly = flights.key_by("plane").window("1h")
        >>> hourly.compute({"flights": agg.Count()}, name="hourly", late="stream").late
        Stream('hourly-late' of topology 'delays')
        """
        return self._stream_of(self._topology.late_rows(self._producers))

    def union(self, *others: Stream) -> Stream:
        """Merge the rows of several streams; the rows of each stream keep their order.

        Parameters
        ----------
        *others : Stream
            Other streams of the same topology, with the same columns.

        Returns
        -------
        Stream
            All rows.

        Raises
        ------
        TopologyError
            When a stream belongs to another topology, is keyed, or occurs twice.

        Examples
        --------
        >>> from dask_elastic.topology import Source, Topology
        >>> class Flights(Source):
        ...     def read(self, context):
        ...         yield from ()
        >>> topology = Topology("delays")
        >>> topology.source("east", Flights()).union(topology.source("west", Flights()))
        Stream('east' + 'west' of topology 'delays')
        """
        if not others:
            raise TopologyError(f"stream of {self._label()}: union got no other stream; give at least one.")
        producers = list(self._producers)
        for other in others:
            for producer in self._checked(other, "union").producers:
                if producer in producers:
                    raise TopologyError(
                        f"stream of {self._label()}: union has the stream of {producer!r} twice, which would count "
                        "its rows twice; name it once."
                    )
                producers.append(producer)
        return Stream(self._topology, tuple(producers))

    def _stream_of(self, operator: str) -> Stream:
        return Stream(self._topology, (operator,))

    def _added(self, operator: MapOperator | Filter) -> Stream:
        self._topology.add(operator, self._producers)
        return Stream(self._topology, (operator.name,))


class KeyedStream(Joinable[Stream]):
    """A stream and the columns by which the next operator keeps its state; returned by `Stream.key_by`.

    Parameters
    ----------
    topology : Topology
        The topology that the stream is part of.
    producers : tuple of str
        The names of the operators whose rows are keyed.
    keys : tuple of str
        The key columns.

    Examples
    --------
    >>> from dask_elastic.topology import Source, Topology
    >>> class Flights(Source):
    ...     def read(self, context):
    ...         yield from ()
    >>> Topology("delays").source("flights", Flights()).key_by("plane", "day").keys
    ('plane', 'day')
    """

    def __init__(self, topology: OperatorGraph, producers: tuple[str, ...], keys: tuple[str, ...]):
        super().__init__(topology, producers, keys, topology.note_key_by(producers, keys))

    def _stream_of(self, operator: str) -> Stream:
        return Stream(self._topology, (operator,))

    def __repr__(self) -> str:
        producers = " + ".join(map(repr, self._producers))
        keys = ", ".join(map(repr, self._keys))
        return f"KeyedStream({producers} by {keys} of topology {self._topology.name!r})"

    def window(
        self, windows: object, *, time: str | Sequence[str] | None = None, spans: Spans = "within"
    ) -> WindowedStream[Stream]:
        """Divide the rows of each key into windows.

        Parameters
        ----------
        windows : window, str, float, timedelta, or list of these
            A window of `dask_elastic.windows`, such as `tumbling`, `hopping` or `session`; a duration for a tumbling
            window; or a list of windows over event time, which share their partial results.
        time : str or sequence of str, optional
            The column with the time of each row; or two, for the begin and the end of the span that a row stands for.
            By default the source's column of event time; for results of windows, ``window_start`` and ``window_end``.
            Count windows need none: with ``()``, their results are bounded by numbers of rows.
        spans : {"within", "overlapping"}
            Which instances a row that stands for a span is in: those that contain all of it, or any part of it.

        Returns
        -------
        WindowedStream
            The stream on which to call `compute`.

        Raises
        ------
        TopologyError
            When the windows are not valid, or do not fit the stream.

        Examples
        --------
        >>> import dask_elastic as de
        >>> from dask_elastic import aggregate as agg
        >>> rows = pa.table({"plane": ["a"], "at": pa.array([0], pa.timestamp("s"))})
        >>> flights = de.Topology("delays").source("flights", de.sources.Arrow(rows, event_time="at"))
        >>> flights.key_by("plane").window(["10min", "1h"]).compute({"flights": agg.Count()}, name="several")
        Stream('several' of topology 'delays')
        """
        return WindowedStream(self, windows, time, spans, self._stream_of)

    def compute(
        self,
        logic: Mapping[str, Aggregate] | Callable[[pa.RecordBatch, Any], Any],
        *,
        name: str | None = None,
        state: Mapping[str, Declared] | None = None,
        timers: Mapping[str, Timer] | None = None,
        executors: int | None = None,
        shards: int = 256,
        store: str | None = None,
        partition_by: Sequence[str] | None = None,
        keeps: Sequence[str] = (),
        time: str | None = None,
    ) -> Stream:
        """Keep state for each key.

        Parameters
        ----------
        logic : mapping of str to Aggregate, or callable
            Aggregates by output column: for each batch, the operator emits the new values of the keys in it. Or a
            function of a batch and the state of its keys; the operator emits what it returns, as with `map`. Or a
            function decorated with `per_row` or `per_key`, which is called for each row or for each key of a batch.
        name : str, optional
            The operator's name, by which the job's state is queried; by default the function's, or `compute-1`.
        state : mapping of str to type, optional
            What a function keeps per key: an Arrow type for a value, `object` for any Python object, or a `Value`,
            `List` or `Map`, which may have a time to live.
        timers : mapping of str to Timer, optional
            The timers that a function can set for each key with ``state.timers``, by name.
        executors : int, optional
            The number of executors into which the key space is divided. Each gets as many cores as its load needs.
            Chosen from the number of nodes and cores by default.
        shards : int
            The number of shards of each executor. A shard is what moves between cores.
        store : str, optional
            Where the state is kept: "memory"; "disk", for state that is larger than the memory of the workers; or
            "auto", in memory until that is short. By default the job's option `state_store`.
        partition_by : sequence of str, optional
            The key columns by which this compute may share a task with its neighbours; all by default. See `submit`,
            ``fuse``.
        keeps : sequence of str
            As for `map`, of a function; aggregates keep the key columns.
        time : str, optional
            The column of event time by which state with ``ttl_clock="event"`` expires; by default that of the source.

        Returns
        -------
        Stream
            Key columns and aggregates, or what the function returns.

        Raises
        ------
        TopologyError
            When the logic, the state or an option is invalid, or the name is taken.

        Examples
        --------
        >>> from dask_elastic.topology import Source, Topology
        >>> class Flights(Source):
        ...     def read(self, context):
        ...         yield from ()
        >>> def longest(batch, state):
        ...     state.set("longest", ...)
        >>> flights = Topology("delays").source("flights", Flights())
        >>> flights.key_by("plane").compute(longest, state={"longest": pa.float64()})
        Stream('longest' of topology 'delays')
        """
        where = label_of("compute", name)
        checked = validation.check_logic(logic, self._keys, where)
        declared = validation.check_state(state, checked, self._keys, where)
        checked_timers = check_timers(timers, checked, declared, self._keys, where)
        if executors is not None:
            validation.check_count(executors, where, "executors")
        validation.check_count(shards, where, "shards", validation.MOST_SHARDS)
        check_store(store, where)
        column = expiry_time(self._topology, self._producers, time, declared, checked_timers, where)
        divided, kept = check_partition(partition_by, self._keys, where), check_keeps(keeps, where)
        given = self._topology.choose_name("compute", name, logic)
        operator = Compute(given, self._keys, checked, declared, executors, shards, checked_timers, store)
        operator = replace(operator, partition_by=divided, keeps=kept, time=column)
        self._topology.add(operator, self._producers, self._key_by)
        return Stream(self._topology, (given,))
