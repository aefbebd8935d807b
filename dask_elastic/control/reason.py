"""Why a decision is what it is, in sentences that people read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dask_elastic.control.demand import Demand
from dask_elastic.control.guard import Owner, Step
from dask_elastic.control.overload import utilisation, waiting_seconds
from dask_elastic.control.settings import ControlSettings
from dask_elastic.control.sharing import Portion
from dask_elastic.vocab.snapshot import JobSnapshot, NodeSnapshot

_NAMED = 3
"""So many executors are named, the others counted."""


def reason(
    job: JobSnapshot,
    demand: Demand,
    portion: Portion,
    changes: Sequence[Step],
    held: Mapping[Owner, str],
    nodes: Sequence[NodeSnapshot],
    bound: Mapping[str, int],
    slots: int | None,
    settings: ControlSettings,
) -> str:
    """Return why a job's cores change, or why they do not.

    Parameters
    ----------
    job : JobSnapshot
        What is measured.
    demand : Demand
        What the job needs.
    portion : Portion
        What it gets.
    changes : sequence of Step
        Changes of its cores.
    held : mapping
        Those of them that are held back, and why.
    nodes : sequence of NodeSnapshot
        The workers.
    bound : mapping of str to int
        Operators that hold the GIL, and how many cores of a node help them.
    slots : int or None
        Cores that there are for all jobs that share them; None if there are fewer than executors.
    settings : ControlSettings
        How the loop decides.

    Returns
    -------
    str
        A few clauses, the cause first.
    """
    clauses = [
        *_causes(job, demand, portion, changes, nodes, settings),
        *_limits(job, demand, bound),
        *_lacks(job, demand, portion, slots),
    ]
    if held:
        executor, why = next((owner[2], text) for owner, text in held.items())
        others = f" and {len(held) - 1} more" if len(held) > 1 else ""
        clauses.append(f"held back: {executor}{others}, because {why}")
    if not clauses:
        clauses.append("nothing is amiss any more")
    if job.dry_run:
        clauses.append("a dry run: nothing is carried out")
    return "; ".join(clauses) + "."


def _causes(
    job: JobSnapshot,
    demand: Demand,
    portion: Portion,
    changes: Sequence[Step],
    nodes: Sequence[NodeSnapshot],
    settings: ControlSettings,
) -> list[str]:
    found = []
    leaving = [
        node.address
        for place, node in enumerate(nodes)
        if node.retiring and any(step.before[place] > step.after[place] for step in changes)
    ]
    if leaving:
        found.append(f"{_names(leaving)} {'retires' if len(leaving) == 1 else 'retire'}")
    if demand.overloaded:
        found.append(_overload(job, demand, settings))
    elif not demand.satisfied:
        found.append(_too_few(job, demand))
    if portion.exchanged:
        found.append("cores change hands within the job, so that its slowest executor gets faster")
    if found or not changes:
        return found
    released = (portion.keep < demand.current).any()
    if released:
        return [f"a surplus of cores has lasted {settings.release_after:g} s or longer"]
    if any(step.after.sum() < step.before.sum() for step in changes):
        return ["others need cores that it can spare"]
    if any(step.after.sum() > step.before.sum() for step in changes):
        return ["it is given a core more where that moves less state"]
    return ["cores change their nodes, for data to travel less or to make room"]


def _overload(job: JobSnapshot, demand: Demand, settings: ControlSettings) -> str:
    executors = [job.executors[place] for place in demand.overloaded]
    worst = max(executors, key=waiting_seconds)
    names = _names([str(executor.executor) for executor in executors])
    pinned = " (pinned)" if all(executor.pinned for executor in executors) else ""
    verb = "is" if len(executors) == 1 else "are"
    busy = 100 * min(utilisation(worst), 1)
    return (
        f"{names}{pinned} {verb} overloaded (up to {duration(waiting_seconds(worst))} of work wait, cores {busy:.0f} % "
        f"busy), so cores are planned for {settings.growth:g} times what they achieve"
    )


def _too_few(job: JobSnapshot, demand: Demand) -> str:
    if demand.behind > 0:
        return f"tuples wait {duration(demand.behind)} at their sources, and cores are planned to work that off"
    expected = demand.queues.latency(demand.current)
    if job.latency_target is None or expected == np.inf:
        return f"the cores held are too few for {demand.queues.external:,.0f} tuples/s, which is with headroom"
    total = demand.hop + demand.error * expected
    return f"{duration(total)} are expected of the cores held, the target is {duration(job.latency_target)}"


def _limits(job: JobSnapshot, demand: Demand, bound: Mapping[str, int]) -> list[str]:
    found = [
        f"threads of {name} hold the GIL: no more than {most} {'core' if most == 1 else 'cores'} of a node "
        f"{'helps' if most == 1 else 'help'}, so it grows on other nodes only"
        for name, most in sorted(bound.items())
    ]
    for place, most, needed in zip(demand.places, demand.most.tolist(), demand.needed.tolist(), strict=True):
        executor, part = job.executors[place], job.executors[place].heaviest_shard
        if place in demand.overloaded and needed >= most and part * most > 1:
            found.append(
                f"one shard is {100 * part:.0f} % of the load of {executor.executor}: beyond {most} cores none helps"
            )
    return found


def _lacks(job: JobSnapshot, demand: Demand, portion: Portion, slots: int | None) -> list[str]:
    found = [] if slots is not None else ["executors outnumber the cores and share them"]
    if not demand.feasible and job.latency_target is not None:
        what = "no allocation" if slots is None else f"no allocation of {slots} cores"
        why = f"{what} reaches {duration(job.latency_target)}"
        if demand.hop >= job.latency_target:
            why += f", {duration(demand.hop)} are spent outside of its executors"
        found.append(f"{why}: this is the best effort")
    if portion.starved:
        found.append(
            f"{portion.starved} more {'core' if portion.starved == 1 else 'cores'} would be needed than it can have"
        )
    return found


def duration(seconds: float) -> str:
    """Return seconds as people write them.

    Examples
    --------
    >>> duration(0.0504), duration(2.5), duration(0.00002)
    ('50.4 ms', '2.5 s', '20 us')
    """
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= unit or name == "us":
            return f"{seconds / unit:.3g} {name}"
    raise AssertionError("unreachable")


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMED])
    return f"{shown} and {len(names) - _NAMED} more" if len(names) > _NAMED else shown
