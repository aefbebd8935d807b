"""A job as it would be measured if its key groups had other executors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_elastic.control.placement.group_map import GroupMap, OperatorGroups
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def regrouped(job: JobSnapshot, owners: Mapping[str, Sequence[int] | Ints]) -> JobSnapshot:
    """Return a job whose key groups have other executors, which get what is measured for their groups.

    Parameters
    ----------
    job : JobSnapshot
        The job.
    owners : mapping of str to sequence of int
        The executor of each group, by operator. Operators whose groups are not known, or are not as many, stay as they
        are.

    Returns
    -------
    JobSnapshot
        The job. Rates, queues and service rates follow the loads of the groups; without measured loads only the groups
        themselves change.

    Notes
    -----
    The share of a group in what its executor gets is taken to be that in its load. Rows of a group take as long as they
    do at its present executor.

    Examples
    --------
    >>> from dask_elastic.vocab.identity import ExecutorId
    >>> loads = {0: [0.6, 0.2, 0.0], 1: [0.0, 0.0, 0.1]}
    >>> def busy(index, groups, rate):
    ...     known = {"shard_load": np.array(loads[index]), "groups": np.array(groups)}
    ...     return ExecutorSnapshot(ExecutorId("count", index), 0, {0: 1}, rate, 500.0, **known)
    >>> job = JobSnapshot("words", 1, (busy(0, [0, 1], 400.0), busy(1, [2], 50.0)))
    >>> [(round(one.arrival_rate), one.groups.tolist()) for one in regrouped(job, {"count": [0, 1, 1]}).executors]
    [(300, [0]), (150, [1, 2])]
    """
    known = GroupMap.of(job, {}).operators
    found: dict[Any, ExecutorSnapshot] = {}
    for name, of in owners.items():
        operator, after = known.get(name), np.asarray(of, dtype=np.int64)
        if operator is not None and len(after) == len(operator.owner):
            found |= {one.executor: one for one in _regrouped(operator, after)}
    return replace(job, executors=tuple(found.get(one.executor, one) for one in job.executors))


def _regrouped(operator: OperatorGroups, after: Ints) -> list[ExecutorSnapshot]:
    if (after == operator.owner).all():
        return list(operator.executors)
    groups = [np.flatnonzero(after == index) for index in range(len(operator.executors))]
    if any(one.shard_load is None for one in operator.executors):
        return [replace(one, groups=own) for one, own in zip(operator.executors, groups, strict=True)]
    return _measured(operator, after, groups)


def _measured(operator: OperatorGroups, after: Ints, groups: Sequence[Ints]) -> list[ExecutorSnapshot]:
    executors, before, count = operator.executors, operator.owner, len(operator.executors)
    share = _shares(operator.load, before, count)

    def moved(values: Sequence[float]) -> list[float]:
        """Return what each executor gets of what the executors have now."""
        found: list[float] = np.bincount(after, share * np.array(values, np.float64)[before], count).tolist()
        return found

    arrivals, throughputs = moved([one.arrival_rate for one in executors]), moved([one.throughput for one in executors])
    inputs, outputs = moved([one.bytes_in for one in executors]), moved([one.bytes_out for one in executors])
    busy = moved([one.arrival_rate / one.service_rate if one.service_rate else 0.0 for one in executors])
    queues = moved([float(one.queue) for one in executors])
    change = np.bincount(after, operator.nbytes, count) - np.bincount(before, operator.nbytes, count)
    found = []
    for index, one in enumerate(executors):
        own = np.isin(np.arange(len(after)), groups[index])
        found.append(
            replace(
                one,
                arrival_rate=arrivals[index],
                throughput=throughputs[index],
                bytes_in=inputs[index],
                bytes_out=outputs[index],
                service_rate=arrivals[index] / busy[index] if busy[index] > 0 else one.service_rate,
                queue=round(queues[index]),
                state_bytes=max(round(one.state_bytes + change[index]), 0),
                shard_load=np.where(own, operator.load, 0.0),
                shard_bytes=np.where(own, operator.nbytes, 0.0),
                groups=groups[index],
            )
        )
    return found


def _shares(load: Floats, owner: Ints, executors: int) -> Floats:
    """Return the share of each group in the load of its executor; equal shares where there is none."""
    totals = np.bincount(owner, load, executors)[owner]
    evenly = 1.0 / np.bincount(owner, minlength=executors)[owner]
    return np.where(totals > 0, load / np.where(totals > 0, totals, 1.0), evenly)
