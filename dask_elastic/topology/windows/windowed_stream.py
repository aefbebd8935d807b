"""Streams divided into windows, on which users call `compute`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Generic, TypeAlias, TypeVar

from dask_elastic.topology import validation
from dask_elastic.topology.aggregates.aggregation import Aggregate
from dask_elastic.topology.aggregates.partial_results import Partial
from dask_elastic.topology.logic_level import OutputColumns
from dask_elastic.topology.operator_output import KeyedOutput, label_of
from dask_elastic.topology.operators import Compute, MapOperator
from dask_elastic.topology.state_kind import Duration, check_store
from dask_elastic.topology.windowing import (
    CountWindow,
    Emit,
    LatePolicy,
    NullTimePolicy,
    Share,
    Windowing,
)
from dask_elastic.topology.windows.definitions import microseconds, windows_of
from dask_elastic.topology.windows.event_time import check_spans, time_columns
from dask_elastic.topology.windows.merged_function import merged_function
from dask_elastic.topology.windows.one_key import ONE_KEY, OneKey
from dask_elastic.topology.windows.own_logic import check_function
from dask_elastic.vocab.errors import TopologyError

Logic: TypeAlias = Mapping[str, Aggregate] | Callable[..., Any]
S = TypeVar("S")
"""`Stream`, which imports this module."""


class WindowedStream(KeyedOutput, Generic[S]):
    """A stream divided into windows of each key, or of all rows; returned by `window` of streams and keyed streams.

    Parameters
    ----------
    keyed : KeyedOutput
        The stream and its key columns; none for windows over all rows.
    given : object
        The windows, as passed to `window`.
    time : str or sequence of str or None
        The columns of event time; None for those that the topology tells.
    spans : {"within", "overlapping"}
        Which instances a row of a span is in.
    stream_of : callable
        Makes the stream of an operator with a name.

    Raises
    ------
    TopologyError
        When the windows are not valid, or do not fit the stream.

    Examples
    --------
    >>> import dask_elastic as de
    >>> import pyarrow as pa
    >>> rows = pa.table({"plane": ["a"], "at": pa.array([0], pa.timestamp("s"))})
    >>> flights = de.Topology("delays").source("flights", de.sources.Arrow(rows, event_time="at"))
    >>> flights.key_by("plane").window(de.windows.hopping("1h", "10min"))
    WindowedStream('flights' by 'plane', 1h every 10min of at, of topology 'delays')
    """

    def __init__(self, keyed: KeyedOutput, given: object, time: object, spans: Any, stream_of: Callable[[str], S]):
        super().__init__(keyed.topology, keyed.producers, keyed.keys, keyed.key_by_number)
        self._stream_of = stream_of
        where = f"stream of {self._label()}"
        self._check_revisions(where)
        windows: Any = windows_of(given, where)
        columns = _time_given(time, where)
        if columns is None:
            counted = any(isinstance(window, CountWindow) for window in windows)
            columns = time_columns(self._topology, self._producers, where, needed=not counted)
        self._windowing = _checked(windows, columns, where, spans=spans)
        check_spans(self._topology, self._producers, self._windowing, where)

    @property
    def windowing(self) -> Windowing:
        """The windows and their columns of event time."""
        return self._windowing

    def __repr__(self) -> str:
        keys = f" by {', '.join(map(repr, self._keys))}" if self._keys else ""
        return f"WindowedStream({self._label()}{keys}, {self._windowing}, of topology {self._topology.name!r})"

    def compute(
        self,
        logic: Mapping[str, Aggregate] | Callable[..., Any],
        *,
        name: str | None = None,
        allowed_lateness: Duration = 0,
        emit: Emit = "closed",
        late: LatePolicy = "drop",
        null_time: NullTimePolicy = "drop",
        partials: bool = False,
        share: Share = "auto",
        merge: Callable[..., Any] | None = None,
        output: OutputColumns | None = None,
        executors: int | None = None,
        shards: int = 256,
        store: str | None = None,
    ) -> S:
        """Compute aggregates, or a function, over each window of each key.

        Parameters
        ----------
        logic : mapping of str to Aggregate, or callable
            Aggregates by output column. Or a function `function(rows, instances)` of the rows of the windows that close
            together, and their `Instances`. Or a function decorated with `per_key`, called as
            ``function(key, rows, window)`` with the rows of one window of a key and its `Instance`; or with `per_row`,
            called as ``function(row, state)`` for each of these rows, with an `InstanceState`.
        name : str, optional
            The operator's name, by which the job's state is queried; by default the function's, or `compute-1`.
        allowed_lateness : str, float or timedelta, optional
            For how long rows that come after the close of a window still correct its result, in event time.
        emit : {"closed", "updates"}
            When results appear: when a window closes, or also before that, after each batch that changes it.
        late : {"drop", "stream"}
            Where rows go that come after the allowed lateness: they are dropped, or sent to the stream `late` of the
            results, each once if it is late for all windows that contain it. They are counted in any case.
        null_time : {"drop", "late", "refuse"}
            Where rows without a time go: they are dropped and counted, sent to the stream of late rows, or fail the
            job.
        partials : bool
            Whether results are the partial ones of the aggregates, which `consolidate` merges with others.
        share : bool or "auto"
            Whether a row is added to one partial result per slice, which its instances share, or to a state of each
            instance. "auto" shares wherever a row is in several instances, up to 1,024 slices in each, until the cost
            model finds that the other plan costs less. With ``emit="updates"``, slices are merged after each batch,
            which pays for many rows of a key in a batch.
        merge : callable, optional
            Makes the function one of partial results, which windows share like those of aggregates; no row waits. It is
            then called with the rows of a batch in each slice or window of a key. Of batches, as
            ``function(rows, parts)``, with `Instances` whose table has the keys alone; it returns a row for each part,
            and ``merge(left, right)`` gets two RecordBatches of partial results, row by row of the same parts. Per key,
            as ``function(key, rows)``; it returns a dict or None. Per row, as ``function(row, state)``; what it puts
            into the dict `state` is the partial result. Then ``merge(a, b)`` gets two dicts. It must be associative and
            commutative, and return for the results of two parts what the function returns for both at once.
        output : Schema or mapping of str to DataType, optional
            The columns of the partial results of a function of batches with `merge`; of others, the decorator has them.
        executors : int, optional
            The number of executors into which the key space is divided; 1 for windows over all rows.
        shards : int
            The number of shards of each executor.
        store : str, optional
            Where the state is kept, as for `KeyedStream.compute`.

        Returns
        -------
        Stream
            Key columns, ``window_start`` and ``window_end``, ``revision`` if results may be corrected, ``withdrawn`` if
            these are of sessions, and aggregates or what a function per key or row returns. Of a function of batches,
            what it returns.

        Raises
        ------
        TopologyError
            When the logic or an option is not valid, or the name is taken.

        Examples
        --------
        >>> import dask_elastic as de
        >>> import pyarrow as pa
        >>> from dask_elastic import aggregate as agg
        >>> rows = pa.table({"plane": ["a"], "at": pa.array([0], pa.timestamp("s"))})
        >>> flights = de.Topology("delays").source("flights", de.sources.Arrow(rows, event_time="at"))
        >>> flights.key_by("plane").window("1h").compute({"flights": agg.Count()}, name="hourly")
        Stream('hourly' of topology 'delays')
        """
        where = label_of("compute", name)
        windowing = self._with_policies(allowed_lateness, emit, late, null_time, where, share)
        checked = self._check_logic(logic, merge, output, windowing, where)
        if partials:
            checked = _partial(checked, windowing, self._keys, where)
        if executors is not None:
            validation.check_count(executors, where, "executors", None if self._keys else 1)
        validation.check_count(shards, where, "shards", validation.MOST_SHARDS)
        check_store(store, where)
        given = self._topology.choose_name("compute", name, None if isinstance(logic, Mapping) else logic)
        keys, producers = self._keys, self._producers
        if not keys:
            keys, producers, executors = (ONE_KEY,), (self._add_key(checked, windowing),), 1
        operator = Compute(given, keys, checked, None, executors, shards, None, store, windowing)
        self._topology.add(operator, producers, self._key_by)
        return self._stream_of(given)

    def restrict_to_own_spans(self) -> None:
        """Let rows be only in the instances that have their begin and end; called by `consolidate`."""
        self._windowing = replace(self._windowing, exact=True)

    def _check_revisions(self, where: str) -> None:
        """Check that no input repeats results; behind a map or a filter, this is up to the user."""
        for name in self._producers:
            operator = self._topology.operator(name)
            if isinstance(operator, Compute) and operator.windowing is not None and operator.windowing.revised:
                raise TopologyError(
                    f"{where}: results of compute {name!r} may be corrected, and each revision would count as a row; "
                    "choose some in a filter before the window, such as .filter(pc.field('revision') == 0)."
                )

    def _with_policies(self, lateness: Any, emit: Any, late: Any, null_time: Any, where: str, share: Any) -> Windowing:
        allowed = microseconds(lateness, f"{where}: allowed_lateness", least=0)
        windowing = self._windowing
        policies = (allowed, emit, late, null_time, windowing.exact, share, windowing.spans)
        changed = _checked(windowing.windows, windowing.time, where, *policies)
        if changed.null_time == "late" and changed.late != "stream":
            raise TopologyError(
                f"{where}: null_time='late' sends rows without a time to the stream of late rows, which there is only "
                "with late='stream'; pass this, too, or have them dropped."
            )
        return changed

    def _check_logic(self, logic: object, merge: object, output: object, windowing: Windowing, where: str) -> Logic:
        if merge is not None:
            return merged_function(logic, merge, output, windowing, self._keys, where)
        if output is not None:
            raise TopologyError(
                f"{where}: output= declares the columns of the partial results that merge= merges; pass this, too, or "
                "omit output."
            )
        if not isinstance(logic, Mapping | Aggregate):
            return check_function(logic, windowing, self._keys, where)
        checked = validation.check_logic(logic, self._keys, where)
        assert isinstance(checked, Mapping)
        for column in windowing.output_columns:
            if column in self._keys or column in checked:
                kind = "key column" if column in self._keys else "aggregate"
                raise TopologyError(
                    f"{where}: results of windows have a column {column!r}, but the {kind} {column!r} has this name, "
                    f"too; rename the {kind}."
                )
        return checked

    def _add_key(self, logic: Logic, windowing: Windowing) -> str:
        columns = None
        reads_all = not isinstance(logic, Mapping) or any(aggregate.reads_all for aggregate in logic.values())
        if not reads_all and windowing.late != "stream":
            assert isinstance(logic, Mapping)
            read = (column for aggregate in logic.values() for column in aggregate.columns)
            # A map of no columns could not tell how many rows there are.
            columns = tuple(dict.fromkeys((*windowing.time, *read))) or None
        function = OneKey()
        name = self._topology.choose_name("map", None, function)
        self._topology.add(MapOperator(name, function, columns), self._producers)
        return name


def _partial(logic: Logic, windowing: Windowing, keys: tuple[str, ...], where: str) -> Mapping[str, Aggregate]:
    if not isinstance(logic, Mapping):
        raise TopologyError(
            f"{where}: partials=True is for what can be merged, aggregates and functions with merge=; pass a merge."
        )
    if windowing.revised:
        raise TopologyError(
            f"{where}: partial results are merged once; omit allowed_lateness and emit, and give the source slack."
        )
    for output in logic:
        if output in keys:
            raise TopologyError(
                f"{where}: partial results have a column {output!r}, as a key has; rename the key column."
            )
    return {output: Partial(aggregate) for output, aggregate in logic.items()}


def _time_given(time: object, where: str) -> tuple[str, ...] | None:
    if time is None:
        return None
    names = (time,) if isinstance(time, str) else time
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) and name for name in names):
        raise TopologyError(f"{where}: time is {time!r}; give the name of a column, or of the two of a span.")
    return tuple(names)


def _checked(windows: Any, time: tuple[str, ...], where: str, *policies: Any, **others: Any) -> Windowing:
    try:
        return Windowing(windows, time, *policies, **others)
    except TopologyError as error:
        raise TopologyError(f"{where}: {error}") from None
