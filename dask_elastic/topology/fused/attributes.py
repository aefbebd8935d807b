"""Partition attributes: the columns whose values may decide where an operator's rows are computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dask_elastic.topology.graph import OperatorGraph
from dask_elastic.topology.operators import Compute, Filter, MapOperator, Operator, SourceOperator
from dask_elastic.topology.windows.late_rows import LateRows


class Attribute(NamedTuple):
    """A column, and where its values come from: two columns are one attribute if they have the same values in a row.

    Parameters
    ----------
    operator : str
        The operator that made the values.
    column : str
        The column.
    read : bool
        Whether the operator only read them, from several inputs.

    Examples
    --------
    >>> Attribute("flights", "plane").column
    'plane'
    """

    operator: str
    column: str
    read: bool = False


def attributes(topology: OperatorGraph) -> dict[str, frozenset[Attribute]]:
    """Return the partition attributes of each source, compute and sink.

    Parameters
    ----------
    topology : OperatorGraph
        The topology.

    Returns
    -------
    dict of str to frozenset of Attribute
        By operator, in topological order; empty for operators that cannot be fused. Maps and filters are left out: they
        run in the task of each producer.

    Notes
    -----
    Enorm, section 4.4. A filter and aggregates keep the values of columns; a function keeps those that it declares.

    Examples
    --------
    >>> from dask_elastic import Topology, sources
    >>> from dask_elastic import aggregate as agg
    >>> topology = Topology("delays")
    >>> flights = topology.source("flights", sources.Arrow({"plane": ["a"], "day": [1]}))
    >>> days = flights.key_by("plane", "day").compute({"flights": agg.Count()}, name="days")
    >>> _ = days.key_by("plane").compute({"most": agg.Max("flights")}, name="planes")
    >>> found = attributes(topology)
    >>> sorted(attribute.column for attribute in found["days"]), found["days"] >= found["planes"]
    (['day', 'plane'], True)
    """
    stateful = (operator for operator in topology.in_order() if not isinstance(operator, MapOperator | Filter))
    return {operator.name: _of_operator(topology, operator) for operator in stateful}


def obstacle(operator: Operator) -> str | None:
    """Return why an operator cannot run in one task with another compute, or None.

    Parameters
    ----------
    operator : Operator
        The operator.

    Returns
    -------
    str or None
        What prevents it, to follow the operator's name in a sentence.

    Examples
    --------
    >>> from dask_elastic.topology.aggregate import Count
    >>> obstacle(Compute("planes", ("plane",), {"flights": Count()})) is None
    True
    >>> from dask_elastic.topology.windowing import EventWindow, Windowing
    >>> windowing = Windowing((EventWindow(0, 10, 10),), ("at",))
    >>> obstacle(Compute("planes", ("plane",), lambda rows: rows, windowing=windowing))
    'calls a function for each window'
    """
    if not isinstance(operator, Compute):
        return f"is a {operator.kind}, not a compute"
    if operator.join is not None:
        return "is a join"
    windowing = operator.windowing
    if windowing is not None and operator.aggregates is None:
        return "calls a function for each window"
    return None


def producer(topology: OperatorGraph, compute: str) -> str | None:
    """Return the only source or compute from which rows reach a compute, on a single path through maps and filters.

    Parameters
    ----------
    topology : OperatorGraph
        The topology.
    compute : str
        The compute.

    Returns
    -------
    str or None
        Its name; None if there are several, or several paths.
    """
    name = compute
    while True:
        inputs = topology.inputs(name)
        if len(inputs) != 1:
            return None
        name = inputs[0].name
        if not isinstance(inputs[0], MapOperator | Filter):
            return name


def reads_late(topology: OperatorGraph, compute: str) -> bool:
    """Return whether a compute with one producer reads the rows that came too late for the producer's windows.

    Parameters
    ----------
    topology : OperatorGraph
        The topology.
    compute : str
        The compute.

    Returns
    -------
    bool
        Whether they pass through the operator of late rows.
    """
    operator = topology.inputs(compute)[0]
    while isinstance(operator, MapOperator | Filter):
        if isinstance(operator, LateRows):
            return True
        operator = topology.inputs(operator.name)[0]
    return False


def producers(topology: OperatorGraph, operator: str) -> list[str]:
    """Return all sources and computes from which rows reach an operator directly or through maps and filters.

    Parameters
    ----------
    topology : OperatorGraph
        The topology.
    operator : str
        The operator.

    Returns
    -------
    list of str
        Each once.
    """
    found: dict[str, None] = {}
    waiting = [*topology.inputs(operator)]
    while waiting:
        one = waiting.pop()
        if isinstance(one, MapOperator | Filter):
            waiting += topology.inputs(one.name)
        else:
            found[one.name] = None
    return [*found]


def rewriting(topology: OperatorGraph, compute: str, columns: Mapping[str, object]) -> str | None:
    """Return the last map before a compute that does not declare that it keeps any of some columns, or None.

    Parameters
    ----------
    topology : OperatorGraph
        The topology.
    compute : str
        The compute.
    columns : mapping with str keys
        The columns, at least one of which has to be kept.

    Returns
    -------
    str or None
        The map, or the compute that feeds it if its function does not keep them.
    """
    inputs = topology.inputs(compute)
    while len(inputs) == 1:
        operator = inputs[0]
        if not any(_keeps(operator, column) for column in columns):
            return operator.name
        if not isinstance(operator, MapOperator | Filter):
            return None
        inputs = topology.inputs(operator.name)
    return None


def _of_operator(topology: OperatorGraph, operator: Operator) -> frozenset[Attribute]:
    if not isinstance(operator, Compute) or obstacle(operator) is not None:
        return frozenset()
    return frozenset(_read(topology, operator.name, column) for column in operator.partition_by or operator.keys)


def _read(topology: OperatorGraph, reader: str, column: str) -> Attribute:
    """Return where the values of a column come from that an operator reads."""
    while True:
        inputs = topology.inputs(reader)
        if len(inputs) != 1:
            return Attribute(reader, column, read=True)
        if not _keeps(inputs[0], column):
            return Attribute(inputs[0].name, column)
        reader = inputs[0].name


def _keeps(operator: Operator, column: str) -> bool:
    """Return whether an operator returns a column with the values that it had in its input."""
    if isinstance(operator, Filter):
        return True
    if isinstance(operator, MapOperator):
        return column in operator.keeps
    if isinstance(operator, SourceOperator) or obstacle(operator) is not None:
        return False
    assert isinstance(operator, Compute)
    return column in (operator.keeps if operator.aggregates is None else operator.keys)
