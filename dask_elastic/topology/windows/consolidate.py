"""Consolidation of streams: partial results of several windowed computes are merged per key and window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dask_elastic.topology.aggregates.aggregation import Aggregate
from dask_elastic.topology.aggregates.partial_results import Merged, Partial
from dask_elastic.topology.operator_output import label_of
from dask_elastic.topology.operators import Compute
from dask_elastic.topology.windowing import WINDOW_END, WINDOW_START, EventWindow, Windowing
from dask_elastic.topology.windows.event_time import origins_of
from dask_elastic.topology.windows.results import result_keys
from dask_elastic.vocab.errors import TopologyError

if TYPE_CHECKING:
    from dask_elastic.topology.stream import Stream


def consolidate(
    streams: Sequence[Stream],
    *,
    by: str | Sequence[str] = (),
    name: str | None = None,
    partials: bool = False,
    executors: int | None = None,
    shards: int = 256,
    store: str | None = None,
) -> Stream:
    """Merge the partial results of windowed computes into one result for each key and window.

    Parameters
    ----------
    streams : sequence of Stream
        Results of ``window(...).compute({...}, partials=True)``: of one compute or of several, with the same aggregates
        and the same windows.
    by : str or sequence of str
        The key columns of the results, some or all of those of the partial results; none for one result per window.
    name : str, optional
        The operator's name, by which the job's state is queried; `compute-1` and so on by default.
    partials : bool
        Whether to return partial results again, to be consolidated with others.
    executors : int, optional
        The number of executors into which the key space is divided, as for `KeyedStream.compute`.
    shards : int
        The number of shards of each executor.
    store : str, optional
        Where the state is kept, as for `KeyedStream.compute`.

    Returns
    -------
    Stream
        Key columns, ``window_start``, ``window_end``, and the aggregates. A result appears when the watermark of all
        streams has passed the end of its window.

    Raises
    ------
    TopologyError
        When a stream has no partial results, or their windows or aggregates differ.

    Notes
    -----
    Enorm, section 4: the operator `consolidate`. Partial results that arrive together are merged in pairs, in the order
    of arrival, which differs among streams.

    Examples
    --------
    >>> import dask_elastic as de
    >>> import pyarrow as pa
    >>> from dask_elastic import aggregate as agg
    >>> from dask_elastic.testing import run
    >>> topology = de.Topology("delays")
    >>> parts = []
    >>> for name, delays in {"east": [3, 5], "west": [10, 2]}.items():
    ...     rows = pa.table({"plane": ["a", "b"], "delay": delays, "at": pa.array([0, 60], pa.timestamp("s"))})
    ...     flights = topology.source(name, de.sources.Arrow(rows, event_time="at"))
    ...     parts.append(flights.key_by("plane").window("1h").compute({"delay": agg.Mean("delay")}, partials=True))
    >>> both = de.consolidate(parts, by="plane", name="both")
    >>> both.sink(de.sinks.Collect(), name="out")
    >>> sorted((row["plane"], row["delay"]) for row in run(topology).outputs["out"].to_pylist())
    [('a', 6.5), ('b', 3.5)]
    """
    where = label_of("consolidate", name)
    given = list(streams) if isinstance(streams, Sequence) else []
    if not given:
        raise TopologyError(f"{where}: streams is {streams!r}; give a list of at least one stream of partial results.")
    windowing, aggregates = _common(given, where)
    columns = _columns(by, given, where)
    all_rows = given[0].union(*given[1:]) if len(given) > 1 else given[0]
    times = (WINDOW_START, WINDOW_END)
    windowed = (all_rows.key_by(*columns) if columns else all_rows).window(list(windowing.windows), time=times)
    windowed.restrict_to_own_spans()
    merged = {output: Merged(aggregate, output) for output, aggregate in aggregates.items()}
    return windowed.compute(merged, name=name, partials=partials, executors=executors, shards=shards, store=store)


def _columns(by: object, streams: list[Stream], where: str) -> tuple[str, ...]:
    columns = (by,) if isinstance(by, str) else by
    if not isinstance(columns, list | tuple) or not all(isinstance(column, str) for column in columns):
        raise TopologyError(f"{where}: by is {by!r}; give the name of a key column, or a list of names.")
    # A map behind a compute may add columns.
    operators = [stream.topology.operator(producer) for stream in streams for producer in stream.producers]
    for operator in operators:
        if not isinstance(operator, Compute):
            continue
        missing = [column for column in columns if column not in operator.keys]
        if missing:
            raise TopologyError(
                f"{where}: by has {missing[0]!r}, which is no key of compute {operator.name!r}; its keys are "
                f"{list(result_keys(operator.keys))}."
            )
    return tuple(columns)


def _common(streams: list[Stream], where: str) -> tuple[Windowing, dict[str, Aggregate]]:
    """Return the windows and the aggregates that all streams have."""
    found: tuple[Windowing, dict[str, Aggregate], str] | None = None
    for stream in streams:
        for operator in origins_of(stream.topology, stream.producers):
            if not isinstance(operator, Compute) or operator.windowing is None or not _partials(operator):
                raise TopologyError(
                    f"{where}: the results of {operator.kind} {operator.name!r} are no partial results of windows; "
                    "give those of window(...).compute({...}, partials=True)."
                )
            windowing, aggregates = operator.windowing, _partials(operator)
            if not isinstance(windowing.windows[0], EventWindow):
                raise TopologyError(
                    f"{where}: compute {operator.name!r} has {windowing.windows[0]}, whose bounds differ from key to "
                    "key; only windows of a fixed length over event time can be consolidated."
                )
            if found is None:
                found = windowing, aggregates, operator.name
            elif set(found[0].windows) != set(windowing.windows):
                raise TopologyError(
                    f"{where}: the windows of compute {found[2]!r} are {_text(found[0])}, those of compute "
                    f"{operator.name!r} are {_text(windowing)}; they must be the same."
                )
            elif repr(found[1]) != repr(aggregates):
                raise TopologyError(
                    f"{where}: the aggregates of compute {found[2]!r} are {found[1]}, those of compute "
                    f"{operator.name!r} are {aggregates}; they must be the same."
                )
    assert found is not None
    return found[0], found[1]


def _partials(operator: Compute) -> dict[str, Aggregate]:
    """Return the aggregates whose partial results a compute returns; none if it does not."""
    logic = operator.aggregates or {}
    return {
        output: one.aggregate.aggregate if isinstance(one.aggregate, Merged) else one.aggregate
        for output, one in logic.items()
        if isinstance(one, Partial)
    }


def _text(windowing: Windowing) -> str:
    return ", ".join(map(str, windowing.windows))
