"""The column of event time by which the state of a function expires."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from dask_elastic.topology.graph import OperatorGraph
from dask_elastic.topology.operators import SourceOperator
from dask_elastic.topology.state_kind import Declared, StateKind
from dask_elastic.topology.timer import Timer
from dask_elastic.topology.windows.event_time import columns_of, origins_of
from dask_elastic.vocab.errors import SchemaMismatch, TopologyError


def expiry_time(
    topology: OperatorGraph,
    producers: Sequence[str],
    time: object,
    state: Mapping[str, Declared] | None,
    timers: Mapping[str, Timer] | None,
    where: str,
) -> str | None:
    """Return the column of event time by which state expires.

    Parameters
    ----------
    topology : OperatorGraph
        The topology.
    producers : sequence of str
        The operators whose rows the compute reads.
    time : object
        The column that the user named; None for that of the source, or the end of windows before the compute.
    state : mapping or None
        The declared state.
    timers : mapping or None
        The declared timers.
    where : str
        The compute, for the error text.

    Returns
    -------
    str or None
        The column; None if no state expires in event time.

    Raises
    ------
    TopologyError
        When the column is not known, a column is named in vain, or a timer has no event time.
    """
    kinds = {name: kind for name, kind in (state or {}).items() if isinstance(kind, StateKind)}
    names = [name for name, kind in kinds.items() if kind.ttl_micros is not None]
    if time is not None and not (isinstance(time, str) and time):
        raise TopologyError(f"{where}: time is {time!r}; give the name of a column.")
    if not names:
        if time is not None:
            raise TopologyError(f"{where}: time={time!r} is for state with ttl_clock='event'; omit it.")
        return None
    for timer, declared in (timers or {}).items():
        if declared.clock == "processing":
            raise TopologyError(
                f"{where}: what the timer {timer!r} writes has no event time by which state {names[0]!r} could expire; "
                "give the timer clock='event', or omit ttl_clock."
            )
    return time or _known(topology, producers, names[0], where)


def check_time_type(kind: pa.DataType, column: str, where: str) -> None:
    """Check the type of a column of event time.

    Parameters
    ----------
    kind : DataType
        The type of the column.
    column : str
        Its name.
    where : str
        The operator, for the error text.

    Raises
    ------
    SchemaMismatch
        When it is neither timestamps nor dates; a column of nulls only tells nothing.

    Examples
    --------
    >>> check_time_type(pa.int64(), "at", "compute 'planes'")
    Traceback (most recent call last):
        ...
    dask_elastic.vocab.errors.SchemaMismatch: compute 'planes': state expires by the column 'at', which is int64; ...
    """
    if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_null(kind)):
        raise SchemaMismatch(
            f"{where}: state expires by the column {column!r}, which is {kind}; cast it to a timestamp in a map, or "
            "name another column with time=."
        )


def _known(topology: OperatorGraph, producers: Sequence[str], state: str, where: str) -> str:
    found: dict[str, str] = {}
    for operator in origins_of(topology, producers):
        columns = columns_of(operator)
        if not columns:
            problem = (
                f"source {operator.name!r} has no event time; give it event_time='column'"
                if isinstance(operator, SourceOperator)
                else f"the column of event time of the results of compute {operator.name!r} is not known; name it with "
                "time='column'"
            )
            raise TopologyError(f"{where}: state {state!r} expires in event time, but {problem}.")
        found.setdefault(columns[-1], operator.name)
    if len(found) > 1:
        each = ", ".join(f"{column!r} of {operator!r}" for column, operator in found.items())
        raise TopologyError(
            f"{where}: its inputs differ in their columns of event time: {each}. Give them one name in a map, and name "
            "it with time='column'."
        )
    return next(iter(found))
