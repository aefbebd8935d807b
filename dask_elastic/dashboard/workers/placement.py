"""Where the executors of a job are: for each operator and worker, what is there and how much of its input is local."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from dask_elastic.control.placement.group_map import GroupMap
from dask_elastic.dashboard.key_skew import by_operator
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot


@dataclass
class Placed:
    """The executors of one operator whose home is on one worker.

    Parameters
    ----------
    operator : str
        The operator.
    worker : str
        The address of the worker.
    executors : list of ExecutorSnapshot
        The executors.
    received, local : float
        Bytes per second of their inputs, and the part that comes from sources and executors on the worker.
    groups : int
        Their key groups; 0 where groups do not move.
    exchanged, within : float
        Bytes per second that the key groups exchange with those of other operators, and the part within the worker.
    """

    operator: str
    worker: str
    executors: list[ExecutorSnapshot] = field(default_factory=list)
    received: float = 0.0
    local: float = 0.0
    groups: int = 0
    exchanged: float = 0.0
    within: float = 0.0

    @property
    def load(self) -> float:
        """Cores that their arrivals keep busy; those of executors that are not measured do not count."""
        return math.fsum(one.arrival_rate / one.service_rate for one in self.executors if one.service_rate)

    @property
    def state_bytes(self) -> int:
        """Bytes of their state."""
        return sum(one.state_bytes for one in self.executors)


def placed(job: JobSnapshot, addresses: tuple[str, ...], groups: GroupMap) -> list[Placed]:
    """Return what each operator has on each worker, by operator in order, and by worker.

    Parameters
    ----------
    job : JobSnapshot
        The job.
    addresses : tuple of str
        The address of each node of its snapshot.
    groups : GroupMap
        Its key groups.
    """
    nodes: dict[tuple[str, int], int] = {(one.component, one.index): one.node for one in job.sources}
    nodes |= {(one.executor.component, one.executor.index): one.home for one in job.executors}
    found: dict[tuple[str, int], Placed] = {}
    for name, executors in by_operator(job.executors).items():
        for home in sorted({one.home for one in executors}):
            found[name, home] = Placed(name, addresses[home])
        for one in executors:
            part = found[name, one.home]
            part.executors.append(one)
            for component, index, rate in one.traffic:
                part.received += rate
                if nodes.get((component, index)) == one.home:
                    part.local += rate
        if name in groups.operators:
            exchanged, within = groups.exchanged(name)
            for one in executors:
                part, owned = found[name, one.home], one.groups
                if owned is not None:
                    part.groups += len(owned)
                    part.exchanged += float(exchanged[owned].sum())
                    part.within += float(within[owned].sum())
    return [*found.values()]
