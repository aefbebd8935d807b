"""Groups of computes that run in one task: chosen by Enorm's Algorithm 1, or by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

from dask_elastic.topology.fused.attributes import (
    Attribute,
    attributes,
    obstacle,
    producer,
    producers,
    reads_late,
    rewriting,
)
from dask_elastic.topology.fusion import fuse as fused_components
from dask_elastic.topology.graph import OperatorGraph
from dask_elastic.topology.operators import Compute
from dask_elastic.vocab.errors import TopologyError
from dask_elastic.vocab.numbers import is_number

Fuse: TypeAlias = Literal["auto", False] | Sequence[tuple[str, str]]
"""Which computes to fuse: none, those that Algorithm 1 chooses, or pairs of a compute and one that reads it."""

Rates: TypeAlias = Mapping[tuple[str, str], float]
"""Rows per second between operators, by (producer, consumer)."""

DEFAULT_SHARDS = 256


class FusedGroup(NamedTuple):
    """Computes that run in one task.

    Parameters
    ----------
    operators : tuple of str
        The computes; the first one feeds the others, and gives the component its name, executors and shards.
    columns : tuple of str
        The columns by whose hash the rows are routed: key columns of all of them.

    Examples
    --------
    >>> FusedGroup(("planes", "worst"), ("plane",)).operators
    ('planes', 'worst')
    """

    operators: tuple[str, ...]
    columns: tuple[str, ...]


def fused_groups(topology: OperatorGraph, fuse: Fuse = "auto", rates: Rates | None = None) -> tuple[FusedGroup, ...]:
    """Choose the computes that run in one task.

    Parameters
    ----------
    topology : OperatorGraph
        A valid topology.
    fuse : "auto", False or sequence of (str, str)
        The choice: by Algorithm 1, none, or pairs of a compute and one that reads it.
    rates : mapping of (str, str) to float, optional
        Rows per second by producer and consumer, as a job reports them. Algorithm 1 fuses first where most rows flow,
        and nothing where none do. Without rates it fuses first what shares most attributes.

    Returns
    -------
    tuple of FusedGroup
        The groups of two computes or more.

    Raises
    ------
    TopologyError
        When a pair cannot be fused, or the rates are not valid.

    Notes
    -----
    Enorm, section 4.4.1. A group is a tree: each of its computes but the first gets all of its rows from another one,
    on one path. Components therefore never form a cycle.

    Examples
    --------
    >>> from dask_elastic import Topology, sources
    >>> from dask_elastic import aggregate as agg
    >>> topology = Topology("delays")
    >>> flights = topology.source("flights", sources.Arrow({"plane": ["a"], "delay": [1]}))
    >>> planes = flights.key_by("plane").compute({"delay": agg.Mean("delay")}, name="planes")
    >>> _ = planes.key_by("plane").compute({"worst": agg.Max("delay")}, name="worst")
    >>> fused_groups(topology)
    (FusedGroup(operators=('planes', 'worst'), columns=('plane',)),)
    """
    if fuse is False:
        return ()
    neighbours = _neighbours(topology)
    chosen = _pairs(topology, fuse, neighbours)
    if chosen is None:
        possible = [pair for pair in neighbours if pair_obstacle(topology, *pair) is None]
        weights = _weights(topology, possible, rates)
    else:
        weights = dict.fromkeys(chosen, 1.0)
    having = attributes(topology)
    components = fused_components(having, {pair: weights.get(pair, 0.0) for pair in neighbours})
    groups = tuple(_group(topology, members, having) for members in components if len(members) > 1)
    together = {name: group for group in groups for name in group.operators}
    for first, second in chosen or ():
        if together.get(first) is None or together.get(first) != together.get(second):
            raise TopologyError(
                f"fuse: compute {second!r} cannot run in the task of {first!r} together with the other pairs, since "
                "all of them share no key column; leave a pair out."
            )
    return groups


def pairs(topology: OperatorGraph, groups: Sequence[FusedGroup]) -> list[tuple[str, str]]:
    """Return the pairs that give the same groups by hand.

    Parameters
    ----------
    topology : OperatorGraph
        The topology.
    groups : sequence of FusedGroup
        Its groups.

    Returns
    -------
    list of (str, str)
        Each compute but the first of a group, behind the one from which it gets its rows.
    """
    return [(producers(topology, name)[0], name) for group in groups for name in group.operators[1:]]


def pair_obstacle(topology: OperatorGraph, first: str, second: str) -> str | None:
    """Return why two operators cannot run in one task, as a sentence with the remedy, or None.

    Parameters
    ----------
    topology : OperatorGraph
        The topology.
    first, second : str
        An operator, and one that reads its rows.

    Returns
    -------
    str or None
        The sentence, without a full stop; None if they can be fused.
    """
    operators = [topology.operator(name) for name in (first, second)]
    for operator in operators:
        if (reason := obstacle(operator)) is not None:
            return f"{operator.name!r} {reason}"
    if producer(topology, second) != first:
        sources = producers(topology, second)
        if first not in sources:
            return f"{second!r} does not read the rows of {first!r}; name a compute and the next one behind it"
        others = [name for name in sources if name != first]
        extra = f"from {', '.join(map(repr, others))} too" if others else "on several paths"
        return f"{second!r} gets rows {extra}; only one compute may feed it, on one path"
    if reads_late(topology, second):
        return f"{second!r} reads the late rows of {first!r}, which are rows of its input; leave the pair out"
    one, other = operators
    assert isinstance(one, Compute)
    assert isinstance(other, Compute)
    having = attributes(topology)
    if not _shared([having[first], having[second]]):
        return _no_attribute(topology, one, other)
    if other.executors not in (None, one.executors):
        return f"{second!r} has executors={other.executors}, and {first!r} has not; give both the same number"
    if other.shards not in (DEFAULT_SHARDS, one.shards):
        return f"{second!r} has shards={other.shards}, and {first!r} has {one.shards}; give both the same number"
    return None


def _no_attribute(topology: OperatorGraph, first: Compute, second: Compute) -> str:
    one, other = (operator.partition_by or operator.keys for operator in (first, second))
    common = [column for column in one if column in other]
    if not common:
        return f"{first.name!r} by {', '.join(one)} and {second.name!r} by {', '.join(other)} share no key column"
    at = rewriting(topology, second.name, dict.fromkeys(common))
    columns = ", ".join(map(repr, common))
    return f"{at!r} between them may change {columns}; if it does not, give it keeps=[{columns}]"


def _pairs(
    topology: OperatorGraph, fuse: object, neighbours: Sequence[tuple[str, str]]
) -> list[tuple[str, str]] | None:
    """Return the pairs given by hand, checked; None for "auto"."""
    if fuse == "auto":
        return None
    if isinstance(fuse, str) or not isinstance(fuse, Sequence):
        raise TopologyError(f'fuse is {fuse!r}; give "auto", False, or pairs of names such as [("a", "b")].')
    pairs = []
    for pair in fuse:
        if not (isinstance(pair, tuple | list) and len(pair) == 2 and all(isinstance(name, str) for name in pair)):
            raise TopologyError(f'fuse has {pair!r}; give pairs of names such as ("a", "b").')
        first, second = pair
        for name in pair:
            topology.operator(name)
        if (reason := pair_obstacle(topology, first, second)) is not None:
            raise TopologyError(f"fuse: {first!r} and {second!r} cannot run in one task: {reason}.")
        assert (first, second) in neighbours
        pairs.append((first, second))
    return pairs


def _neighbours(topology: OperatorGraph) -> list[tuple[str, str]]:
    """Return all pairs of a source or compute and a compute or sink that reads its rows."""
    return [(name, reader) for reader in attributes(topology) for name in producers(topology, reader)]


def _weights(
    topology: OperatorGraph, pairs: Sequence[tuple[str, str]], rates: Rates | None
) -> dict[tuple[str, str], float]:
    """Return the score of each pair that can be fused."""
    if rates is None:
        having = attributes(topology)
        return {pair: float(len(_shared([having[name] for name in pair]))) for pair in pairs}
    for edge, rate in rates.items():
        if edge not in topology.edges:
            raise TopologyError(f"rates has {edge!r}; give rates by (producer, consumer), such as {topology.edges[0]}.")
        if not is_number(rate) or not 0 <= rate < float("inf"):
            raise TopologyError(f"the rate of {edge!r} is {rate!r}: give rows per second, 0 or more.")
    # The last operator before a compute, which may be a map, sends its rows.
    return {pair: rates.get((topology.inputs(pair[1])[0].name, pair[1]), 0.0) for pair in pairs}


def _group(topology: OperatorGraph, members: frozenset[str], having: Mapping[str, frozenset[Attribute]]) -> FusedGroup:
    operators = tuple(operator.name for operator in topology.in_order() if operator.name in members)
    shared = {attribute.column for attribute in _shared([having[name] for name in operators])}
    first = topology.operator(operators[0])
    assert isinstance(first, Compute)
    return FusedGroup(operators, tuple(key for key in first.keys if key in shared))


def _shared(parts: Sequence[frozenset[Attribute]]) -> frozenset[Attribute]:
    return frozenset.intersection(*parts)
