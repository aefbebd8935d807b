"""Why an executor has as many cores as it has: the rule that sets the number, in sentences for users."""

from __future__ import annotations

import math

from dask_elastic.control.decision_writer import Preview
from dask_elastic.control.demand import JobDemand
from dask_elastic.control.explanation.amounts import cores, latency
from dask_elastic.control.keys import job_key
from dask_elastic.control.overload import backlog_seconds, utilisation
from dask_elastic.control.queues import NO_LIMIT
from dask_elastic.control.reason import duration
from dask_elastic.control.settings import ControlSettings
from dask_elastic.vocab.snapshot import ExecutorSnapshot


def count_reasons(preview: Preview, index: int, settings: ControlSettings, has_ended: bool = False) -> tuple[str, ...]:
    """Return why an executor has its number of cores, and why it has not another one.

    Parameters
    ----------
    preview : Preview
        What the control loop would decide now about its job.
    index : int
        The executor's index in the job.
    settings : ControlSettings
        The settings of the loop.
    has_ended : bool
        Whether the job has ended, so that nothing changes next.

    Returns
    -------
    tuple of str
        Sentences without a full stop: what the executor needs and why, what limits it, and what changes next.
    """
    job_plan = preview.job_plan
    executor = job_plan.job.executors[index]
    if executor.pinned:
        if executor.service_rate is None:
            return (
                "its cores are pinned or are just being changed, or its worker has stopped reporting: the control loop "
                "leaves them unchanged",
            )
        return ("its cores are pinned or are just being changed: the control loop leaves them unchanged",)
    if index not in job_plan.demand.indices:
        return (
            "its service rate has not been measured, so its demand is unknown: a new executor keeps its cores for "
            f"{settings.release_after:g} s, and then one",
        )
    position = job_plan.demand.indices.index(index)
    found = [
        *_overload(job_plan.demand, index, executor, settings),
        _need(preview, position, settings),
        *_limits(preview, position, executor),
        *_sharing(preview, position),
        *_surplus(preview, position),
        *([] if has_ended else _next(preview, executor)),
    ]
    return tuple(found)


def awaited(preview: Preview, settings: ControlSettings) -> str | None:
    """Return what a job that has more cores than it needs waits for before it releases some.

    Parameters
    ----------
    preview : Preview
        What the control loop would decide now about the job.
    settings : ControlSettings
        The settings of the loop.

    Returns
    -------
    str or None
        A sentence without a full stop; None if it has no surplus.
    """
    job_plan = preview.job_plan
    for position, index in enumerate(job_plan.demand.indices):
        executor = job_plan.job.executors[index].executor
        if surplus := _kept_beyond(preview, position):
            return f"{executor} has {cores(surplus)} more than it needs, which it keeps {_until(preview)}"
        if _needs_fewer(preview, position, settings):
            return (
                f"{executor} needs fewer cores than it has, which it keeps until the surplus has lasted for "
                f"{preview.patience:g} s"
            )
    return None


def _overload(demand: JobDemand, index: int, executor: ExecutorSnapshot, settings: ControlSettings) -> list[str]:
    if index not in demand.overloaded:
        return []
    busy = 100 * min(utilisation(executor), 1)
    return [
        f"overload: a backlog of {duration(backlog_seconds(executor))} waits and its cores are {busy:.0f} % busy, so "
        f"cores are planned for {settings.growth:g} times its throughput"
    ]


def _need(preview: Preview, position: int, settings: ControlSettings) -> str:
    """Return what one core fewer than needed would cause."""
    demand = preview.job_plan.demand
    target = preview.job_plan.job.latency_target
    count = int(demand.needed[position])
    load = float(demand.queues.loads[position])
    if count == 1:
        return f"every executor has at least one core; its load is {load:.2f} cores (headroom included)"
    less, expected = cores(count - 1), _with_one_less(demand, position, settings)
    if math.isinf(expected):
        busy = f"{load * _caution(demand, settings):.2f} cores (headroom included)"
        return f"stability: with {less} its queue would grow, since its load is {busy}"
    total = demand.hop + demand.error * expected
    if target is None:
        return f"the job has no latency target, so it keeps its cores; its load is {load:.2f} cores"
    if total > target:
        return f"target: with {less} {duration(total)} are predicted (headroom included), above {duration(target)}"
    return f"{less} would do now, but it has needed {count} within the last {settings.yield_after:g} s"


def _with_one_less(demand: JobDemand, position: int, settings: ControlSettings) -> float:
    fewer = demand.needed.copy()
    fewer[position] -= 1
    queues = demand.queues.scaled(_caution(demand, settings))
    # Queues of other executors that grow in any case, as with a hot key, say nothing about this one.
    counts = queues.loads < demand.needed
    counts[position] = True
    return queues.take(counts).latency(fewer[counts])


def _caution(demand: JobDemand, settings: ControlSettings) -> float:
    # A core is released at a higher headroom than the one at which it is requested.
    return (1 + settings.release_headroom) / (1 + settings.headroom) if demand.satisfied else 1.0


def _needs_fewer(preview: Preview, position: int, settings: ControlSettings) -> bool:
    demand, target = preview.job_plan.demand, preview.job_plan.job.latency_target
    if target is None or demand.needed[position] == 1:
        return False
    return demand.hop + demand.error * _with_one_less(demand, position, settings) <= target


def _limits(preview: Preview, position: int, executor: ExecutorSnapshot) -> list[str]:
    demand, name = preview.job_plan.demand, executor.executor.component
    found = []
    if name in preview.bound:
        found.append(
            f"GIL: threads of {name} hold it, so {cores(preview.bound[name])} per node at most speed it up, and it "
            "grows on other nodes only"
        )
    most, part = int(demand.most[position]), executor.heaviest_shard
    if most < NO_LIMIT and int(demand.needed[position]) >= most:
        if part * most > 1:
            why = f"one shard has {100 * part:.0f} % of its load"
        elif name in preview.bound:
            why = "the nodes have no more that speed it up"
        else:
            why = "the effect of the core that it got last is still being measured"
        found.append(f"limit: more than {cores(most)} would not speed it up now, because {why}")
    return found


def _sharing(preview: Preview, position: int) -> list[str]:
    job_plan = preview.job_plan
    needed, given = int(job_plan.demand.needed[position]), int(job_plan.portion.cores[position])
    if given < needed:
        return [
            f"sharing: it needs {cores(needed)} and gets {given}, because the {job_plan.slots} slots that jobs share "
            "are divided max-min fairly"
        ]
    if job_plan.portion.exchanged:
        return ["cores are exchanged between the job's executors, so that the slowest one gets faster"]
    return []


def _surplus(preview: Preview, position: int) -> list[str]:
    surplus = _kept_beyond(preview, position)
    return [f"surplus: it keeps {cores(surplus)} beyond those {_until(preview)}"] if surplus else []


def _kept_beyond(preview: Preview, position: int) -> int:
    """Return how many cores an executor keeps although it does not need them."""
    job_plan = preview.job_plan
    current = int(job_plan.demand.current[position])
    kept = min(int(job_plan.portion.keep[position]), current)
    return 0 if job_plan.portion.exchanged else max(kept - int(job_plan.demand.needed[position]), 0)


def _until(preview: Preview) -> str:
    if preview.job_plan.job.latency_target is None:
        return "while no other executor needs them, since the job has no latency target"
    return f"until the surplus has lasted for {preview.patience:g} s, unless other executors need them"


def _next(preview: Preview, executor: ExecutorSnapshot) -> list[str]:
    job_plan = preview.job_plan
    key = (*job_key(job_plan.job), executor.executor)
    if key in job_plan.deferred:
        return [f"a change is due, but is deferred, because {job_plan.deferred[key]}"]
    for change in job_plan.changes:
        if change.key == key:
            after = cores(sum(change.after.values()))
            dry = ", but this is a dry run" if job_plan.job.dry_run else ""
            return [
                f"the next decision gives it {after}{dry}; {latency(preview.outlook.predicted)} is then predicted"
                if preview.outlook.predicted is not None
                else f"the next decision gives it {after}{dry}"
            ]
    return []
