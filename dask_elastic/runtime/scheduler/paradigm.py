"""The executors and cores that a job demands at its start, by paradigm.

To add a paradigm, add a function here and a name to `dask_elastic.runtime.protocol.job_spec.PARADIGMS`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from dask_elastic.planning.initial import PlacementRequest
from dask_elastic.routing.group_table import GroupTable
from dask_elastic.runtime.protocol.job_spec import RESOURCE, STATIC, ComponentSummary


def demands(
    paradigm: str,
    summaries: Iterable[ComponentSummary],
    cores: Mapping[str, int],
    free_slots: Sequence[int],
    instances: Mapping[str, int] | None = None,
) -> list[PlacementRequest]:
    """Return the demand of each source and stateful operator of a job.

    Parameters
    ----------
    paradigm : str
        One of `PARADIGMS`.
    summaries : iterable of ComponentSummary
        The components.
    cores : mapping of str to int
        Cores of each executor of an operator, where the user has set them.
    free_slots : sequence of int
        Free slots of each node.
    instances : mapping of str to int, optional
        Instances and executors that components have already, in a restart.

    Examples
    --------
    >>> counted = ComponentSummary("counted", "compute", ("rows",), ("counted",), 2, 256)
    >>> demands("executor-centric", [counted], {}, [4, 4])[0].instances
    2
    >>> demands("static", [counted], {}, [4, 4])[0]
    PlacementRequest(name='counted', instances=8, stateful=True, cores=1, homes=())
    >>> demands("resource-centric", [counted], {}, [4, 4])[0].instances
    2
    """
    parts = [summary for summary in summaries if summary.kind != "sink"]
    if instances is not None:
        single = 1 if paradigm in (STATIC, RESOURCE) else None
        return [
            PlacementRequest(
                s.name,
                instances[s.name],
                s.kind == "compute",
                cores.get(s.name, single) if s.kind == "compute" else None,
            )
            for s in parts
        ]
    if paradigm in (STATIC, RESOURCE):
        requests = _single_cores(parts, sum(max(slots, 0) for slots in free_slots))
        return [*map(_with_groups, requests, parts)] if paradigm == RESOURCE else requests
    return [PlacementRequest(s.name, s.instances, s.kind == "compute", cores.get(s.name)) for s in parts]


def at_homes(request: PlacementRequest, nodes: Sequence[str], homes: Mapping[tuple[str, int], str]) -> PlacementRequest:
    """Return a request with the nodes that are given for some executors and instances, as far as they are left.

    Parameters
    ----------
    request : PlacementRequest
        The demand of a component.
    nodes : sequence of str
        The address of each node.
    homes : mapping of (str, int) to str
        Addresses by component and number.

    Examples
    --------
    >>> at_homes(PlacementRequest("counted", 2, True), ["a", "b"], {("counted", 0): "b", ("counted", 1): "c"}).homes
    (1, None)
    """
    places = {address: node for node, address in enumerate(nodes)}
    given = (places.get(homes.get((request.name, index), "")) for index in range(request.instances or 0))
    return replace(request, homes=tuple(given)) if homes else request


def continued_instances(
    paradigm: str, summaries: Iterable[ComponentSummary], running: Mapping[str, int], slots: int
) -> dict[str, int]:
    """Return the instances and executors with which a job continues after a restart.

    The executors of key groups are as many as the job would begin with, unless the user has set their number.

    Parameters
    ----------
    paradigm : str
        One of `PARADIGMS`.
    summaries : iterable of ComponentSummary
        The components.
    running : mapping of str to int
        Instances and executors before the restart, by component.
    slots : int
        Slots that the job may use.

    Examples
    --------
    >>> counted = ComponentSummary("counted", "compute", ("rows",), ("counted",), None, 256)
    >>> continued_instances("resource-centric", [counted], {"rows": 1, "counted": 4}, slots=2)
    {'rows': 1, 'counted': 2}
    >>> continued_instances("executor-centric", [counted], {"rows": 1, "counted": 4}, slots=2)
    {'rows': 1, 'counted': 4}
    """
    if paradigm != RESOURCE:
        return dict(running)
    parts = [summary for summary in summaries if summary.kind != "sink"]
    fitting = map(_with_groups, _single_cores(parts, slots), parts)
    open_numbers = {s.name for s in parts if s.kind == "compute" and s.instances is None}
    return {**running, **{one.name: one.instances or 1 for one in fitting if one.name in open_numbers}}


def first_groups(
    paradigm: str, summaries: Iterable[ComponentSummary], homes: Mapping[str, Sequence[int]]
) -> dict[str, tuple[int, ...]]:
    """Return the executor of each key group of a job that begins without state; nothing if groups do not move.

    Parameters
    ----------
    paradigm : str
        One of `PARADIGMS`.
    summaries : iterable of ComponentSummary
        The components.
    homes : mapping of str to sequence of int
        The home of each executor.

    Returns
    -------
    dict of str to tuple of int
        By stateful component.
    """
    if paradigm != RESOURCE:
        return {}
    stateful = [summary for summary in summaries if summary.kind == "compute"]
    return {s.name: tuple(GroupTable.initial(s.shards, homes[s.name]).owners.tolist()) for s in stateful}


def _with_groups(request: PlacementRequest, summary: ComponentSummary) -> PlacementRequest:
    """Return a request with as many executors as the user has set, and at most one for each key group."""
    if not request.stateful:
        return request
    wanted = summary.instances or request.instances or 1
    return replace(request, instances=min(wanted, summary.shards))


def _single_cores(parts: Sequence[ComponentSummary], slots: int) -> list[PlacementRequest]:
    """Divide the slots evenly among the stateful operators: one executor of one core for each slot, at least one."""
    stateful = [part.name for part in parts if part.kind == "compute"]
    shares = {
        name: max(1, slots // len(stateful) + (position < slots % len(stateful)))
        for position, name in enumerate(stateful)
    }
    return [
        PlacementRequest(part.name, shares[part.name], True, 1)
        if part.name in shares
        else PlacementRequest(part.name, part.instances, False)
        for part in parts
    ]
