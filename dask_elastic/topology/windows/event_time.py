"""The columns with the event time of a stream, as far as the topology tells them."""

from __future__ import annotations

from collections.abc import Sequence

from dask_elastic.topology.graph import OperatorGraph
from dask_elastic.topology.operators import Compute, Filter, MapOperator, Operator, SourceOperator
from dask_elastic.topology.windowing import WINDOW_END, WINDOW_START, EventWindow, Windowing, duration_text
from dask_elastic.topology.windows.late_rows import LateRows
from dask_elastic.vocab.errors import TopologyError


def time_columns(topology: OperatorGraph, producers: Sequence[str], where: str, needed: bool = True) -> tuple[str, ...]:
    """Return the columns with the event time of a stream.

    Parameters
    ----------
    topology : OperatorGraph
        The topology.
    producers : sequence of str
        The operators whose rows the stream has.
    where : str
        The stream, for the error text.
    needed : bool
        Whether windows need event time.

    Returns
    -------
    tuple of str
        The source's column; for results of windows, the columns of their begin and end. None if they are not needed
        and not known.

    Raises
    ------
    TopologyError
        When columns are needed, and a source has none, or those of an operator are not known or differ among inputs.

    Notes
    -----
    Maps may return any columns; those of event time are taken to keep their names.
    """
    found: dict[tuple[str, ...], Operator] = {}
    for operator in origins_of(topology, producers):
        columns = columns_of(operator)
        if not columns and needed:
            raise TopologyError(_unknown(operator, where))
        found.setdefault(columns, operator)
    if len(found) > 1 and not needed:
        return ()
    if len(found) > 1:
        each = ", ".join(f"{' and '.join(map(repr, names))} of {one.kind} {one.name!r}" for names, one in found.items())
        raise TopologyError(
            f"{where}: the window's inputs differ in their columns of event time: {each}. Give them one name in a map, "
            "and name it with time='column'."
        )
    return next(iter(found))


def check_spans(topology: OperatorGraph, producers: Sequence[str], windowing: Windowing, where: str) -> None:
    """Check that results of windows are not too long for all instances of a window that follows.

    Parameters
    ----------
    topology : OperatorGraph
        The topology.
    producers : sequence of str
        The operators whose rows the stream has.
    windowing : Windowing
        The window that follows.
    where : str
        The stream, for the error text.

    Raises
    ------
    TopologyError
        When no instance could contain a result.
    """
    if windowing.time != (WINDOW_START, WINDOW_END) or windowing.counted or windowing.spans == "overlapping":
        return
    longest = max(window.length for window in windowing.windows if isinstance(window, EventWindow))
    for operator in origins_of(topology, producers):
        before = operator.windowing if isinstance(operator, Compute) else None
        spans = [window.length for window in before.windows if isinstance(window, EventWindow)] if before else []
        if spans and min(spans) > longest:
            raise TopologyError(
                f"{where}: results of compute {operator.name!r} stand for {duration_text(min(spans))} or more, longer "
                f"than the window, {duration_text(longest)}: no instance would contain any. Give a longer window."
            )


def origins_of(topology: OperatorGraph, producers: Sequence[str]) -> list[Operator]:
    """Return the sources and computes from which rows come without another compute in between.

    Parameters
    ----------
    topology : OperatorGraph
        The topology.
    producers : sequence of str
        The operators whose rows a stream has.

    Returns
    -------
    list of Operator
        The operators, in no particular order.
    """
    waiting = [topology.operator(name) for name in producers]
    for operator in waiting:
        if isinstance(operator, MapOperator | Filter):
            before = topology.inputs(operator.name)
            if isinstance(operator, LateRows):
                # They are rows of the input of the compute that passes them on.
                before = tuple(one for compute in before for one in topology.inputs(compute.name))
            waiting += [one for one in before if one not in waiting]
    return [operator for operator in waiting if not isinstance(operator, MapOperator | Filter)]


def columns_of(operator: Operator) -> tuple[str, ...]:
    """Return the columns with the event time of the rows of a source or a compute; none if they are not known."""
    if isinstance(operator, SourceOperator) and operator.source.event_time is not None:
        return (operator.source.event_time,)
    if isinstance(operator, Compute) and operator.windowing is not None and operator.windowing.time:
        return WINDOW_START, WINDOW_END
    return ()


def _unknown(operator: Operator, where: str) -> str:
    if isinstance(operator, SourceOperator):
        return (
            f"{where}: source {operator.name!r} has no event time, so its windows would never close; give the source "
            "event_time='column'."
        )
    return (
        f"{where}: the column with the event time of the results of compute {operator.name!r} is not known; name it, "
        "as in window('10min', time='column')."
    )
