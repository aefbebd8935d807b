"""The reasons of decisions, as sentences for users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dask_elastic.control.demand import JobDemand
from dask_elastic.control.guard import ProposedChange
from dask_elastic.control.keys import ExecutorKey
from dask_elastic.control.overload import backlog_seconds, utilisation
from dask_elastic.control.settings import ControlSettings
from dask_elastic.control.sharing import Portion
from dask_elastic.vocab.counted import counted
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot, NodeSnapshot

RESOLVED = "all earlier problems are resolved"
"""The reason of a decision that changes nothing and follows one that named a problem."""

_NAMED = 3
"""Number of executors that are named; further ones are only counted."""


def reason(
    job: JobSnapshot,
    demand: JobDemand,
    portion: Portion,
    changes: Sequence[ProposedChange],
    deferred: Mapping[ExecutorKey, str],
    nodes: Sequence[NodeSnapshot],
    bound: Mapping[str, int],
    slots: int | None,
    settings: ControlSettings,
) -> str:
    """Return why a job's cores change, or why they do not.

    Parameters
    ----------
    job : JobSnapshot
        The job's measurements.
    demand : JobDemand
        The cores it needs.
    portion : Portion
        The cores it gets.
    changes : sequence of ProposedChange
        Changes of its cores.
    deferred : mapping
        The executors whose changes are deferred, and why.
    nodes : sequence of NodeSnapshot
        The workers.
    bound : mapping of str to int
        GIL-bound operators, and how many cores per node speed them up.
    slots : int or None
        Number of cores available to all jobs that share them; None if there are fewer than executors.
    settings : ControlSettings
        The settings of the loop.

    Returns
    -------
    str
        A few clauses: what was measured, then what is predicted or limits the job.
    """
    clauses = [
        *_measured(job, demand, changes),
        *_causes(job, demand, portion, changes, nodes, bound, settings),
        *_limits(job, demand, bound),
        *_lacks(job, demand, portion, slots),
    ]
    if deferred:
        executor, why = next((key[2], text) for key, text in deferred.items())
        others = f" and {len(deferred) - 1} more" if len(deferred) > 1 else ""
        clauses.append(f"the change of {executor}{others} is deferred, because {why}")
    if not clauses:
        clauses.append(RESOLVED)
    if job.dry_run:
        clauses.append("dry run, so nothing is carried out")
    return "; ".join(clauses) + "."


def _missed(job: JobSnapshot) -> bool:
    return job.latency_target is not None and job.latency is not None and job.latency > job.latency_target


def _measured(job: JobSnapshot, demand: JobDemand, changes: Sequence[ProposedChange]) -> list[str]:
    """Return that the target is missed, and what the model predicts if that does not explain it."""
    if not _missed(job) or job.latency is None or job.latency_target is None:
        return []
    found = [f"the measured latency is {duration(job.latency)}, the target {duration(job.latency_target)}"]
    if demand.satisfied and demand.feasible and not changes:
        predicted = demand.hop + demand.error * demand.queues.latency(demand.current)
        if predicted <= job.latency_target:
            found.append(f"{duration(predicted)} are predicted with its current cores, so it gets no more")
    return found


def _causes(
    job: JobSnapshot,
    demand: JobDemand,
    portion: Portion,
    changes: Sequence[ProposedChange],
    nodes: Sequence[NodeSnapshot],
    bound: Mapping[str, int],
    settings: ControlSettings,
) -> list[str]:
    found = []
    leaving = [
        node.address
        for index, node in enumerate(nodes)
        if node.retiring and any(change.taken.get(index, 0) < 0 for change in changes)
    ]
    if leaving:
        found.append(f"{_names(leaving)} {'is' if len(leaving) == 1 else 'are'} retiring")
    if demand.overloaded:
        found.append(_overload(job, demand, settings))
    elif not demand.satisfied:
        found.append(_too_few(job, demand))
    if portion.exchanged:
        found.append("cores are exchanged between its executors, so that the slowest one gets faster")
    if found or not changes:
        return found
    less = {change.key[2] for change in changes if sum(change.taken.values()) < 0}
    if less and all(_has_too_many(executor, bound) for executor in job.executors if executor.executor in less):
        return ["cores are released that do not speed it up"]
    if (portion.keep < demand.current).any():
        return [f"it has had surplus cores for at least {settings.release_after:g} s"]
    if less:
        return ["other executors need cores that it can spare"]
    if any(sum(change.taken.values()) > 0 for change in changes):
        return ["an additional core reduces the state that has to move"]
    return ["cores move to other nodes, to reduce network traffic or to free cores"]


def _has_too_many(executor: ExecutorSnapshot, bound: Mapping[str, int]) -> bool:
    """Whether an executor has more cores on a node than speed it up."""
    most = bound.get(executor.executor.component)
    return most is not None and any(count > most for count in executor.cores.values())


def _overload(job: JobSnapshot, demand: JobDemand, settings: ControlSettings) -> str:
    executors = [job.executors[index] for index in demand.overloaded]
    worst = max(executors, key=backlog_seconds)
    names = _names([str(executor.executor) for executor in executors])
    verb = "is" if len(executors) == 1 else "are"
    busy = 100 * min(utilisation(worst), 1)
    backlog = f"{verb} overloaded (backlog up to {duration(backlog_seconds(worst))}, cores {busy:.0f} % busy)"
    if all(executor.pinned for executor in executors):
        return f"{names} (pinned) {backlog}, and pinned cores do not follow the load"
    return f"{names} {backlog}, so cores are planned for {settings.growth:g} times the current throughput"


def _too_few(job: JobSnapshot, demand: JobDemand) -> str:
    executors = [job.executors[index] for index in demand.indices]
    if without := [str(executor.executor) for executor in executors if not executor.total_cores]:
        return f"{_names(without)} {'has' if len(without) == 1 else 'have'} no cores"
    if demand.source_lag > 0:
        return f"its sources lag by {duration(demand.source_lag)}, so cores are planned to catch up"
    expected = demand.queues.latency(demand.current)
    if expected == np.inf and round(demand.queues.external) == 0:
        backlog = max(backlog_seconds(job.executors[index]) for index in demand.indices)
        return f"its cores are too few for a backlog of {duration(backlog)}, although no tuples arrive just now"
    if job.latency_target is None or expected == np.inf:
        return f"its cores are too few for {demand.queues.external:,.0f} tuples/s (headroom included)"
    total = demand.hop + demand.error * expected
    if _missed(job):
        return f"{duration(total)} are predicted with its current cores (headroom included)"
    return (
        f"the predicted latency with its current cores is {duration(total)}, the target {duration(job.latency_target)}"
    )


def _limits(job: JobSnapshot, demand: JobDemand, bound: Mapping[str, int]) -> list[str]:
    found = [
        f"threads of {name} hold the GIL: more than {counted(most, 'core')} per node would not "
        "speed it up, so it grows on other nodes only"
        for name, most in sorted(bound.items())
    ]
    overloads = set(demand.overloaded)
    for index, most, needed in zip(demand.indices, demand.most.tolist(), demand.needed.tolist(), strict=True):
        if index not in overloads or needed < most:
            continue
        executor, part = job.executors[index], job.executors[index].heaviest_shard
        if part * most > 1:
            found.append(
                f"one shard is {100 * part:.0f} % of the load of {executor.executor}, so more than "
                f"{counted(most, 'core')} would not speed it up"
            )
    return found


def _lacks(job: JobSnapshot, demand: JobDemand, portion: Portion, slots: int | None) -> list[str]:
    found = [] if slots is not None else ["there are fewer cores than executors, so executors share cores"]
    if not demand.feasible and job.latency_target is not None:
        if job.executors and all(executor.pinned for executor in job.executors):
            return [*found, "all of its executors are pinned, so no cores are planned to reach the target"]
        what = "no allocation" if slots is None else f"no allocation of {counted(slots, 'core')}"
        why = f"{what} reaches {duration(job.latency_target)}"
        if demand.hop >= job.latency_target:
            why += f" ({duration(demand.hop)} are spent outside of its executors)"
        found.append(f"{why}, so this is the best effort")
    if portion.starved:
        found.append(f"it needs {portion.starved} more {'core' if portion.starved == 1 else 'cores'} than it can get")
    return found


def duration(seconds: float) -> str:
    """Return seconds as text with a unit.

    Examples
    --------
    >>> duration(0.0504), duration(2.5), duration(0.00002), duration(1234.5)
    ('50.4 ms', '2.5 s', '20 us', '1,234 s')
    """
    for unit, name in ((1.0, "s"), (1e-3, "ms")):
        # What rounds to a unit is one of it: three digits of 999.9 ms would be 1e+03 ms.
        if abs(seconds) >= unit * 0.9995:
            amount = seconds / unit
            return f"{amount:,.0f} {name}" if abs(amount) >= 999.5 else f"{amount:.3g} {name}"
    return f"{seconds * 1e6:.3g} us"


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMED])
    return f"{shown} and {len(names) - _NAMED} more" if len(names) > _NAMED else shown
