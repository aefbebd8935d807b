"""A text that says which computes run in one task, and what keeps the others apart."""

from __future__ import annotations

from dask_elastic.topology.fused.attributes import producers
from dask_elastic.topology.fused.groups import Fuse, FusedGroup, Rates, fused_groups, pair_obstacle
from dask_elastic.topology.graph import OperatorGraph
from dask_elastic.topology.operators import Compute


def explain(topology: OperatorGraph, fuse: Fuse = "auto", rates: Rates | None = None) -> str:
    """Return which computes would run in one task, one line per compute.

    Parameters
    ----------
    topology : OperatorGraph
        A valid topology.
    fuse, rates
        As for `fused_groups`.

    Returns
    -------
    str
        Lines with aligned columns.

    Raises
    ------
    TopologyError
        When a pair cannot be fused, or the rates are not valid.
    """
    groups = fused_groups(topology, fuse, rates)
    of = {name: group for group in groups for name in group.operators}
    computes = [operator for operator in topology.in_order() if isinstance(operator, Compute)]
    tasks = len(computes) - sum(len(group.operators) - 1 for group in groups)
    lines = [f"Topology {topology.name!r}: {_count(len(computes), 'compute')} in {_count(tasks, 'component')}"]
    width = max((len(operator.name) for operator in computes), default=0)
    for operator in computes:
        lines.append(f"  {operator.name:{width}}  {_line(topology, operator, of.get(operator.name), fuse)}")
    return "\n".join(lines)


def task_of(groups: tuple[FusedGroup, ...]) -> dict[str, str]:
    """Return, by each compute that runs in another one's task, the name of this one.

    Parameters
    ----------
    groups : tuple of FusedGroup
        The groups.

    Returns
    -------
    dict of str to str
        The first compute of its group, by compute.

    Examples
    --------
    >>> task_of((FusedGroup(("planes", "worst"), ("plane",)),))
    {'worst': 'planes'}
    """
    return {name: group.operators[0] for group in groups for name in group.operators[1:]}


def _line(topology: OperatorGraph, operator: Compute, group: FusedGroup | None, fuse: Fuse) -> str:
    if group is not None and operator.name != group.operators[0]:
        return f"in the task of {group.operators[0]!r}"
    routed = "by " + ", ".join(operator.keys if group is None else group.columns)
    before = [name for name in producers(topology, operator.name) if isinstance(topology.operator(name), Compute)]
    if not before:
        return routed
    reason = next(filter(None, (pair_obstacle(topology, name, operator.name) for name in before)), None)
    if reason is None:
        reason = "fuse=False" if fuse is False else "not chosen"
    return f"{routed}; apart from {', '.join(map(repr, before))}: {reason}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
